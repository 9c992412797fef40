"""Answers to questions of the bank, asked anew: the text fits one screen, the document obeys its schema."""

import importlib.util
import json
from importlib.resources import files

import jsonschema
import pytest
from command_line import in_process
from questions import asking_folder, questions, write_sweep_tables
from record import ANSWERS, read
from rich.cells import cell_len

SCHEMAS = [json.loads(each.read_bytes()) for each in files("equipoise.report").joinpath("schemas").iterdir()]
NUM_LINES, NUM_COLUMNS = 25, 80
# The longest answers known, beside every twelfth question.
LONGEST = (
    *("four-systems-spot", "three-systems", "config-file", "deadline-hours", "buy", "two-systems-budget"),
    "terms-of-one-of-two",
    *("ask-tokens-two-systems", "predict-lora-h200-default"),
)


@pytest.fixture(scope="module")
def folder():
    with asking_folder() as made:
        write_sweep_tables(made)
        yield made


def shown():
    """The questions to ask: those of models in code where PyTorch is installed."""
    has_torch = importlib.util.find_spec("torch") is not None
    return [
        each
        for place, each in enumerate(questions())
        if (place % 12 == 0 or each.name in LONGEST)
        and not each.this_machine
        and (has_torch or each.theme != "own_models")
    ]


@pytest.fixture(scope="module")
def answers(folder):
    """What the command line prints, and the document, of each question with an answer."""
    found = {}
    env = {"COLUMNS": str(NUM_COLUMNS), "EQUIPOISE_LEDGER": str(folder / "ledger.jsonl")}
    for each in shown():
        ended = in_process(each.verb, *each.args, "--json-out", "answer.json", cwd=folder, env=env)
        if ended.returncode == 0:
            document = json.loads((folder / "answer.json").read_bytes())
            found[each.name] = (ended.stdout.splitlines(), document)
    assert set(LONGEST) <= found.keys()
    assert len(found) >= 25
    return found


def too_large(texts):
    """Lines and columns of each text that does not fit."""
    sizes = {name: (len(lines), max(map(cell_len, lines))) for name, lines in texts.items()}
    return {name: size for name, size in sizes.items() if size[0] > NUM_LINES or size[1] > NUM_COLUMNS}


def test_answers_fit_a_screen(answers):
    assert too_large({name: lines for name, (lines, _) in answers.items()}) == {}


def test_every_recorded_answer_fits_a_screen():
    texts = {name: each["text"].splitlines() for name, each in read(ANSWERS)[1].items() if each["text"]}
    assert len(texts) > 200
    assert too_large(texts) == {}


def test_four_systems_that_compete_have_a_row_each(folder):
    chips = ["h100", "h200", "b200", "mi300x"]
    asked = (
        "llama31_8b",
        "--tokens",
        "1T",
        "--accelerator",
        ",".join(chips),
        "--deadline",
        "6d",
        "--budget",
        "120k",
    )
    lines = in_process("advise", *asked, cwd=folder, env={"COLUMNS": str(NUM_COLUMNS)}).stdout.splitlines()
    table = lines[next(place for place, line in enumerate(lines) if line.startswith("System")) :]
    assert [
        chip for chip in chips if any(chip.upper() in line for line in table if "\u2013" in line)
    ] == chips
    assert len(lines) <= NUM_LINES


def test_the_recommended_row_is_marked(answers):
    marked = {
        name: sum(line.rstrip().endswith("recommended") for line in lines)
        for name, (lines, document) in answers.items()
        if document.get("recommended") and len(document["candidates"]) > 1
    }
    assert "terms-of-one-of-two" in marked
    assert {name: number for name, number in marked.items() if number != 1} == {}


def test_documents_obey_the_schemas_that_ship(answers):
    validators = {each["$id"]: jsonschema.Draft202012Validator(each) for each in SCHEMAS}
    documents = {name: document for name, (_, document) in answers.items()}
    assert {each["schema"] for each in documents.values()} == validators.keys()
    errors = {
        name: jsonschema.exceptions.best_match(validators[each["schema"]].iter_errors(each))
        for name, each in documents.items()
    }
    assert {
        name: f"{error.json_path}: {error.message}"[:300] for name, error in errors.items() if error
    } == {}

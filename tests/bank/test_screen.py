"""What is printed for a question of the bank fits one screen: 25 lines of 80 columns."""

import importlib.util

import pytest
from questions import asking_folder, questions, write_sweep_tables
from rich.cells import cell_len
from typer.testing import CliRunner

from equipoise.cli.app import _app

NUM_LINES, NUM_COLUMNS = 25, 80
# The longest answers known, beside every sixth question.
LONGEST = (
    *("four-systems-spot", "three-systems", "config-file", "deadline-hours", "buy", "two-systems-budget"),
    *("ask-tokens-two-systems", "ask-model-experts", "predict-lora-h200-default", "allocate-mixed"),
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
        if (place % 6 == 0 or each.name in LONGEST)
        and not each.this_machine
        and (has_torch or each.theme != "own_models")
    ]


def test_answers_fit_a_screen(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(NUM_COLUMNS))
    monkeypatch.setenv("EQUIPOISE_LEDGER", str(folder / "ledger.jsonl"))
    runner, app = CliRunner(), _app()
    sizes = {}
    for each in shown():
        ended = runner.invoke(app, [each.verb, *each.arguments])
        if ended.exit_code == 0:
            lines = ended.stdout.splitlines()
            sizes[each.name] = (len(lines), max(map(cell_len, lines)))
    assert set(LONGEST) <= sizes.keys()
    assert len(sizes) >= 35
    assert {name: size for name, size in sizes.items() if size[0] > NUM_LINES or size[1] > NUM_COLUMNS} == {}

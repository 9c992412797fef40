"""The options of the verbs that ask: each field is declared once, and is an option of exactly its verbs."""

import ast
import inspect
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from command_line import equipoise, in_process

from equipoise import cli
from equipoise.cli.app import with_takers
from equipoise.cli.decide import advise, allocate, plan, predict
from equipoise.cli.output import Output
from equipoise.decide.question.field import GROUPS
from equipoise.decide.question.query import FIELDS, TrainingQuery, fields_of

VERBS = {"advise": advise, "plan": plan, "predict": predict, "allocate": allocate}
OUTPUTS = set(Output.__struct_fields__) - {"verb"}
OWN = {verb: {"training"} for verb in ("advise", "plan", "predict")} | {
    "allocate": {"jobs", "objective", "electricity_by_hour", "begin"}
}


def _parameters(verb):
    return inspect.signature(VERBS[verb], eval_str=True).parameters


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_exactly_its_fields_as_options(verb):
    assert set(_parameters(verb)) - OUTPUTS - OWN.get(verb, set()) == set(fields_of(verb))
    for name, field in fields_of(verb).items():
        (option,) = _parameters(verb)[name].annotation.__metadata__
        declared = {each for each in (option.default, *(option.param_decls or ())) if each is not ...}
        assert declared == {f"--{each}" for each in (field.option, *field.also)}
        assert option.help.startswith(field.help)


def test_a_field_is_declared_in_the_table_alone():
    source = Path(cli.__file__).parents[1]
    declaring = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"Field", "_asked"}
        and any(each.arg in {"option", "group"} for each in node.keywords)
    }
    assert not declaring
    table = tomllib.loads((source / "decide" / "question" / "fields.toml").read_text())
    declared = [name for blocks in table.values() for name in blocks]
    assert sorted(declared) == sorted(TrainingQuery.__struct_fields__)


def test_presentation_is_the_same_for_every_question():
    for verb in ("advise", "plan", "predict"):
        # `predict` recommends no strategy that could be launched.
        missing = {"launch"} if verb == "predict" else set()
        assert OUTPUTS - set(_parameters(verb)) == missing


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_the_options_by_group_with_their_defaults(verb):
    ended = equipoise(verb, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(ended.stdout.split())
    assert fields_of(verb)
    assert not re.search(r"<(list\[|str|int|float|Path)", words)
    for field in fields_of(verb).values():
        assert f"{GROUPS[field.group]}:" in lines
        assert f"--{field.option}" in words
        if field.unset:
            assert f"[default: {field.unset}]" in words


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("equipoise advise llama2_70b_l", "llama2_70b_lora"),
        ("equipoise plan bert --accelerator h100-sxm5-8", "h100-sxm5-80gb"),
        ("equipoise plan bert --objective bal", "balance"),
        ("equipoise predict --round v4", "v4.0\nv4.1"),
    ],
)
def test_a_shell_completes_names_of_a_question(words, completed):
    env = {"_EQUIPOISE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert equipoise(env=env).stdout.strip() == completed


def test_the_same_question_from_options_and_from_a_file_has_the_same_answer(tmp_path):
    (tmp_path / "job.toml").write_text(
        'workload = "llama31_8b"\naccelerator = "64x h100"\ntokens = "10G"\nprice = {h100 = 2.1}\n'
        'deadline = "7d"\n'
    )
    options = ("--accelerator", "64x h100", "--tokens", "10G", "--price", "h100=2.1", "--deadline", "7d")
    from_options, from_file = (
        json.loads(in_process("advise", *asked, "--json", cwd=tmp_path).stdout)
        for asked in (("llama31_8b", *options), ("job.toml",))
    )
    for found in (from_options, from_file):
        assert found["schema"] == "equipoise.advise/2"
        found.pop("search_s")
        for system in found["systems"]:
            system.pop("search_s")
    assert from_options == from_file
    best = from_options["recommended"]
    assert best["usd"]["value"] == pytest.approx(2.1 * best["accelerator_hours"], rel=1e-4)


def test_a_workload_beside_a_file_takes_the_place_of_its_own(mine):
    path = mine('workload = "lab:net"\naccelerator = "h100"\nmax_accelerators = 8\n', "q.toml")
    ended = in_process("advise", path, "--workload", "bert", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    stated = in_process("advise", "--workload", "bert", "--accelerator", "h100", "--max", "8", "--json")
    assert ended.stdout == stated.stdout


def test_plan_takes_the_terms_that_its_answer_offers(mine):
    path = mine(
        '[[quote]]\nprovider = "Long Lease"\nsystem = "h100-sxm5-80gb"\nterms = "reserved"\n'
        'minimum = "1 year"\nusd_per_hour = 1.6\n',
        "quotes.toml",
    )
    asked = ("plan", "llama31_8b", "--tokens", "10G", "--accelerator", "h100", "--at", "8", "--prices", path)
    (offered,) = re.findall(r"\((--terms \w+)\)", in_process(*asked).stdout)
    taken = in_process(*asked, *offered.split(), "--json")
    assert (taken.returncode, taken.stderr) == (0, "")
    recommended = json.loads(taken.stdout)["recommended"]
    assert recommended["terms"] == "on_demand"


def test_a_prefix_and_a_plain_number_are_the_same_amount():
    assert FIELDS["training_tokens"].read("1T") == FIELDS["training_tokens"].read(1e12) == 1e12
    assert FIELDS["training_samples"].read("10k") == 10_000.0
    assert FIELDS["deadline_s"].read("7d") == FIELDS["deadline_s"].read(168) == 7 * 86_400.0
    assert FIELDS["price"].read(["h100=2.1", "4"]) == (("h100", 2.1), ("", 4.0))


def test_lists_are_repeated_or_separated_by_commas():
    asked = ("plan", "llama31_8b", "--examples", "1k", "--sequence", "1k", "--accelerator", "h100", "--json")
    lists = {"--train": ("lora", "dpo"), "--precision": ("bf16", "fp8"), "--at": ("8", "16")}
    once = [text for option, items in lists.items() for text in (option, ",".join(items))]
    often = [text for option, items in lists.items() for item in items for text in (option, item)]
    first, second = (json.loads(in_process(*asked, *options).stdout)["question"] for options in (once, often))
    assert first == second
    assert (first["train"], first["precision"]) == (["lora", "dpo"], ["bf16", "fp8"])
    assert first["sizes"]["listed"] == [8, 16]


@pytest.mark.parametrize(
    "given",
    [
        "h100-sxm5-80gb,b200-sxm-180gb",
        ("h100-sxm5-80gb", "b200-sxm-180gb"),
        ["h100-sxm5-80gb, b200-sxm-180gb"],
    ],
)
def test_systems_are_repeated_or_separated_by_commas(given):
    assert FIELDS["systems"].read(given) == ("h100-sxm5-80gb", "b200-sxm-180gb")


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "bert", "--accelerator", "h100", "--at", "8", "--fix", "tp=3"],
        ["plan", "gpt2", "--accelerator", "h100"],
    ],
    ids=" ".join,
)
def test_a_complaint_about_options_of_the_verb_asked_names_no_other(arguments):
    done = in_process(*arguments)
    assert done.returncode != 0
    assert not re.findall(r"\badvise\b", done.stderr)


def test_a_complaint_says_which_verb_takes_an_option_that_this_one_does_not():
    words = with_takers("other --stock, or --price", ["plan", "bert"])
    assert re.findall(r"--stock|--price|advise|plan", words) == [
        "--stock",
        "--price",
        "--stock",
        "advise",
        "plan",
    ]


def test_what_is_missing_is_accepted_as_it_is_written():
    asked = ("plan", "gpt2", "--accelerator", "h100", "--at", "8")
    ways = in_process(*asked).stderr.partition(": give ")[2].split(", or ")
    assert [way.split()[0] for way in ways] == ["--tokens", "--samples"]
    for way in ways:
        assert in_process(*asked, *way.split()).returncode == 0


def test_times_that_predict_lacks_are_given_by_its_own_option():
    done = in_process("predict", "gnmt", "--accelerator", "h100", "--at", "16")
    assert done.returncode == 3
    assert "--from FILE.csv" in done.stderr
    assert not re.findall(r"--runs|\badvise\b", done.stderr)


@pytest.mark.parametrize("workload", ["gpt2", "vit_large"])
def test_what_is_missing_and_another_verb_takes_is_a_command_of_it_that_runs(workload):
    done = in_process("predict", workload, "--accelerator", "h100", "--at", "8")
    assert done.returncode != 0
    (command,) = re.findall("`equipoise (.*?)`", done.stderr)
    assert command.split()[:2] == ["advise", workload]
    assert in_process(*shlex.split(command)).returncode == 0


@pytest.mark.parametrize("named", [("llama32_1b",), ("--workload", "llama32_1b"), ("--workload=llama32_1b",)])
def test_the_command_that_a_refusal_of_predict_names_runs(named):
    refused = in_process("predict", *named, "--accelerator", "h100", "--at", "8")
    assert refused.returncode == 2
    program, *command = shlex.split(refused.stderr.split("`")[1])
    assert program == "equipoise"
    ended = in_process(*command)
    assert (ended.returncode, ended.stderr) == (0, "")

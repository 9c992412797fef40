"""A file of a question, beside what is given with it."""

import math
import os
import re

import pytest

from equipoise.decide.question.query import fields_of
from equipoise.errors import DataError, UsageError
from equipoise.library.decisions import file_values, read_question


def refusal(path, verb):
    """What is said against a file of one key; nothing where it is read."""
    try:
        assert len(file_values(path, verb=verb)) == 1
    except DataError as err:
        return str(err)
    return ""


WHOLE = """
workload = "bert"
accelerator = ["h100-sxm5-80gb", "a100-sxm4-80gb"]
max_accelerators = 64
objective = "cost"
deadline = "90min"
price = {h100-sxm5-80gb = 2}
"""


@pytest.fixture
def ask(tmp_path):
    """The question of a file with this text, and of options given beside it."""

    def asked(text, verb="advise", **given):
        path = tmp_path / "job.toml"
        path.write_text(text)
        return read_question({"workload": str(path), **given}, verb=verb)

    return asked


def test_a_file_holds_the_same_options(ask):
    found = ask(WHOLE)
    assert found.workload == "bert"
    assert found.systems == ("h100-sxm5-80gb", "a100-sxm4-80gb")
    assert (found.max_accelerators, found.objective, found.deadline_s) == (64, "cost", 5400.0)
    assert found.price == (("h100-sxm5-80gb", 2.0),)


def test_the_command_line_comes_before_the_file(ask):
    found = ask(WHOLE, objective="time", accelerator=["h200-sxm5-141gb"], here=False, deadline=None, trace=[])
    assert found.objective == "time"
    assert found.systems == ("h200-sxm5-141gb",)
    assert found.deadline_s == 5400.0


@pytest.mark.parametrize(
    ("line", "given", "kept"),
    [
        ('tokens = "1T"', {"samples": "10k"}, {"training_samples": 10_000.0, "training_tokens": None}),
        ("here = true", {"accelerator": ["h100"]}, {"here": False, "systems": ("h100",)}),
        ('accelerator = "h100"', {"here": True}, {"here": True, "systems": ()}),
    ],
)
def test_what_is_given_replaces_the_same_in_other_words(ask, line, given, kept):
    found = ask(f'workload = "bert"\n{line}\n', **given)
    assert {name: getattr(found, name) for name in kept} == kept


@pytest.mark.parametrize(
    "line",
    ['price = {h100 = 2.1, b200 = "4"}', "[price]\nh100 = 2.1\nb200 = 4", 'price = ["h100=2.1", "b200=4"]'],
)
def test_a_price_of_each_system_is_a_table_or_a_list(ask, line):
    assert ask(f'workload = "bert"\n{line}\n').price == (("h100", 2.1), ("b200", 4.0))


def test_values_by_name_are_a_table_or_texts(ask):
    stated = ask('workload = "bert"\nfix = ["tp=8", "fused_loss=true"]\n').fixed
    assert ask('workload = "bert"\n[fix]\ntp = 8\nfused_loss = true\n').fixed == stated


def test_paths_are_from_the_folder_of_the_file(ask, tmp_path):
    found = ask(WHOLE + 'runs = "mine"\nhardware = "chips.toml"\ntrace = ["a.json", "b.json"]\n')
    assert found.runs == tmp_path / "mine"
    assert found.hardware == (tmp_path / "chips.toml",)
    assert found.traces == (tmp_path / "a.json", tmp_path / "b.json")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('acelerator = "h100"', "'acelerator'.*accelerator"),
        ("max_accelerators = 2.5", "max_accelerators.*'2.5'"),
        ("max_accelerators = true", "max_accelerators = True"),
        ('objective = "fast"', "objective.*'fast'.*balance, time"),
        ("accelerator = [1]", "accelerator = 1"),
        ("accelerator = {a = 1}", "accelerator.*table"),
        ("gpu = 'h100'", "'gpu'.*accelerator"),
        ('ask = "fame"', "tokens, model"),
        ('html = "a.html"', "'html'"),
        ('law = "amdahl"', "'law'.*predict"),
        ('buy = "yes"', "buy.*true .*false"),
        ("also = [1]", "also = 1"),
        ('runs = ["a", "b"]', "runs.*DIR"),
        ('runs = "a\\u0000b"', "runs.*text"),
        ("deadline = inf", "deadline.*inf"),
        ("deadline = 1979-05-27", "deadline"),
        ("price = [[1]]", "price.*number"),
        ("workload = [", "not valid TOML"),
        ('workload = "other.toml"', "other.toml"),
    ],
)
def test_what_no_field_means_is_refused_with_file_and_key(ask, tmp_path, line, words):
    whole = line if line.startswith("workload") else f'workload = "bert"\n{line}\n'
    with pytest.raises(DataError) as refused:
        ask(whole)
    assert str(refused.value).startswith(f"{tmp_path / 'job.toml'}: ")
    assert re.search(words, str(refused.value))


def test_a_file_without_a_workload_says_what_to_add(ask):
    with pytest.raises(DataError, match="no workload"):
        ask('accelerator = "h100"\n')


def test_what_may_never_end_is_not_read(tmp_path, mine):
    pipe = tmp_path / "job.toml"
    os.mkfifo(pipe)
    with pytest.raises(DataError, match=re.escape(str(pipe))):
        file_values(pipe, verb="advise")
    long = mine("#" * 2**20 + "\n", "long.toml")
    with pytest.raises(DataError, match="more than 1,048,576 bytes"):
        file_values(long, verb="advise")


def test_without_a_file_the_options_are_the_question():
    found = read_question({"workload": "bert", "accelerator": ["x"], "deadline": "2"}, verb="advise")
    assert found.deadline_s == 7200.0
    assert math.isinf(read_question({"workload": "bert", "accelerator": ["x"]}, verb="advise").within_s)
    with pytest.raises(UsageError, match="90min"):
        read_question({"workload": "bert", "accelerator": ["x"], "deadline": "soon"}, verb="advise")


def test_money_and_limits_are_asked_in_a_file_too(ask):
    whole = WHOLE.replace('objective = "cost"\n', "")
    found = ask(whole + 'ask = "model"\nbudget = 500\ntokens_per_param = 100\n')
    assert (found.ask, found.tokens_per_param, found.budget_usd) == ("model", 100.0, 500.0)
    with pytest.raises(UsageError, match="--ask tokens and --buy"):
        ask(WHOLE + 'ask = "tokens"\nbuy = true\n')


def test_every_field_of_a_verb_is_a_key(tmp_path):
    # A value of a kind that every field takes is read, or refused for what it is: never as an unknown key.
    (path := tmp_path / "job.toml").write_text("")
    for verb in ("advise", "plan", "predict"):
        fields = fields_of(verb)
        assert fields
        for field in fields.values():
            text = "true" if field.kind == "flag" else '"1"'
            path.write_text(f"{field.key} = {text}\n")
            message = refusal(path, verb)
            assert repr(field.key) not in message  # so are unknown keys named


def test_a_file_may_name_a_config_of_the_hub_beside_it(tmp_path, mine):
    path = mine(
        'config = "config.json"\ntrain = ["lora", "dpo"]\nexamples = "10k"\nepochs = 2\nsequence = "2k"\n',
        "q.toml",
    )
    asked = read_question({"workload": str(path)}, verb="plan")
    assert asked.config == tmp_path / "config.json"
    assert asked.train == ("lora", "dpo")
    assert (asked.training_examples, asked.num_epochs, asked.sequence_tokens) == (10_000, 2, 2048)
    # Another budget takes the place of examples and epochs, a workload that of the file.
    changed = read_question({"workload": str(path), "tokens": "1G"}, verb="plan")
    assert (changed.training_tokens, changed.training_examples, changed.num_epochs) == (1e9, None, None)

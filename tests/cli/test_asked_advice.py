"""A file of options, beside the command line."""

import inspect
import math
import os

import pytest

from equipoise.advice.answer.asked import Owning, Sought
from equipoise.cli.advise import advise
from equipoise.cli.asked_advice import KEYS, NOT_KEYS, Asked, asked, wanted
from equipoise.errors import DataError, UsageError

WHOLE = """
workload = "bert"
accelerator = ["h100-sxm5-80gb", "a100-sxm4-80gb"]
max_accelerators = 64
objective = "cost"
deadline = "90min"
price = 2
"""


def _written(tmp_path, text):
    path = tmp_path / "job.toml"
    path.write_text(text)
    return Asked(workload=str(path))


def test_a_file_holds_the_same_options(tmp_path):
    found = wanted(asked(_written(tmp_path, WHOLE)))
    assert found.workload == "bert"
    assert found.accelerators == ("h100-sxm5-80gb", "a100-sxm4-80gb")
    assert found.deadline_s == 5400.0
    assert found.terms.usd_per_accelerator_hour == 2.0


def test_the_command_line_comes_before_the_file(tmp_path):
    path = _written(tmp_path, WHOLE).workload
    found = wanted(asked(Asked(workload=path, objective="time", accelerator=("h200-sxm5-141gb",))))
    assert found.objective == "time"
    assert found.accelerators == ("h200-sxm5-141gb",)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('acelerator = "h100"', "did you mean accelerator"),
        ("max_accelerators = 2.5", "a whole number"),
        ("max_accelerators = true", "a whole number"),
        ('objective = "fast"', "expected one of time, cost, energy, balance"),
        ("accelerator = [1]", "expected text or a list of such"),
        ("workload = [", "no TOML"),
        ("hosting = '10'", "hosting = '10'; expected a number"),
        ('ask = "fame"', "expected one of tokens, model"),
        ('html = "a.html"', "only an option: where the answer goes"),
        ('buy = "yes"', "expected true or false"),
        ("also = [1]", "a path or a list of such"),
    ],
)
def test_what_no_option_means_is_refused_with_its_place(tmp_path, line, words):
    with pytest.raises(DataError, match=words):
        asked(
            _written(
                tmp_path,
                f"{'' if 'workload' in line else chr(10).join(['workload = ' + chr(34) + 'bert' + chr(34), ''])}{line}\n",
            )
        )


def test_what_may_never_end_is_not_read(tmp_path):
    pipe = tmp_path / "job.toml"
    os.mkfifo(pipe)
    with pytest.raises(DataError, match="not a regular file"):
        asked(Asked(workload=str(pipe)))


def test_a_deadline_is_hours_or_has_its_unit():
    assert wanted(Asked(workload="bert", accelerator=("x",), deadline="2")).deadline_s == 7200.0
    assert math.isinf(wanted(Asked(workload="bert", accelerator=("x",))).deadline_s)
    with pytest.raises(UsageError, match="90min"):
        wanted(Asked(workload="bert", accelerator=("x",), deadline="soon"))


def test_every_option_of_the_verb_is_a_key_or_says_why_not():
    options = {*inspect.signature(advise).parameters}
    assert options == {*KEYS, *NOT_KEYS}
    assert not {*KEYS} & {*NOT_KEYS}
    assert all(NOT_KEYS.values())


def test_money_is_asked_for_in_a_file(tmp_path):
    text = WHOLE + 'queue = 1\nhosting = 0\nhorizon = 24\nruns = "mine"\nhardware = "chips.toml"\n'
    options = asked(_written(tmp_path, text))
    found = wanted(options)
    assert found.owning == Owning(hosting_usd_per_month=0.0, horizon_months=24.0)
    assert found.queue_s == 3600.0
    assert found.runs == tmp_path / "mine"
    assert options.hardware == (tmp_path / "chips.toml",)


def test_what_money_is_enough_for_is_another_question(tmp_path):
    found = wanted(asked(_written(tmp_path, WHOLE + 'ask = "model"\nbudget = 500\ntokens_per_param = 100')))
    assert isinstance(found, Sought)
    assert (found.ask, found.tokens_per_param, found.request.budget_usd) == ("model", 100.0, 500.0)
    with pytest.raises(UsageError, match="two answers"):
        wanted(asked(_written(tmp_path, WHOLE + 'ask = "tokens"\nbuy = true')))
    with pytest.raises(UsageError, match="belongs to --ask"):
        wanted(Asked(workload="bert", accelerator=("x",), tokens_per_param=20.0))

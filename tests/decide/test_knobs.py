"""What `--fix` and `--precision` mean: the values that knobs of the strategy may take."""

import pytest

from equipoise.decide.question.training import parameter_choices
from equipoise.errors import InputError, UsageError


def test_values_are_one_several_or_a_range():
    found = parameter_choices(["tp=8", "pp=1..4", "recompute=none,full"], precision=("bf16", "fp8"))
    assert found == {
        "tp": (8,),
        "pp": (1, 2, 3, 4),
        "recompute": ("none", "full"),
        "precision": ("bf16", "fp8"),
    }


@pytest.mark.parametrize(
    "text",
    [
        "tp=8,pp=1,2,recompute=none,full",
        " tp=8 pp=1,2  recompute=none,full",
        "tp=8, pp=1..2, recompute=none,full",
    ],
)
def test_one_text_may_hold_several_parameters(text):
    found = parameter_choices([text])
    assert found == {"tp": (8,), "pp": (1, 2), "recompute": ("none", "full")}


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        (["tp=2", "tp=4"], r"\btp .*twice"),
        (["tp=4..2"], r"tp=4\.\.2"),
        (["recompute=none..full"], r"recompute=none\.\.full.*numbers"),
        (["tp=1..1000000"], "at most 10,000 values"),
        (["global_batch=2"], "give --global-batch"),
        (["tp"], "tp=VALUE"),
        (["tp=four"], "whole number"),
        (["shards=3"], "shards"),
    ],
)
def test_what_fixes_nothing_is_refused(fixed, words):
    with pytest.raises(InputError, match=words):
        parameter_choices(fixed)


def test_a_precision_is_stated_once():
    with pytest.raises(UsageError, match=r"--precision and --fix precision"):
        parameter_choices(["precision=bf16"], precision=("fp8",))

"""A file of options, beside the command line."""

import math

import pytest

from equipoise.cli.asked_advice import Asked, asked, request
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
    found = request(asked(_written(tmp_path, WHOLE)))
    assert found.workload == "bert"
    assert found.accelerators == ("h100-sxm5-80gb", "a100-sxm4-80gb")
    assert found.deadline_s == 5400.0
    assert found.terms.usd_per_accelerator_hour == 2.0


def test_the_command_line_comes_before_the_file(tmp_path):
    path = _written(tmp_path, WHOLE).workload
    found = request(asked(Asked(workload=path, objective="time", accelerator=("h200-sxm5-141gb",))))
    assert found.objective == "time"
    assert found.accelerators == ("h200-sxm5-141gb",)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('acelerator = "h100"', "did you mean accelerator"),
        ("max_accelerators = 2.5", "a whole number"),
        ("max_accelerators = true", "a whole number"),
        ('objective = "fast"', "expected one of time, cost, energy, balance"),
        ("accelerator = [1]", "a list of texts"),
        ("workload = [", "no TOML"),
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


def test_a_deadline_is_hours_or_has_its_unit():
    assert request(Asked(workload="bert", accelerator=("x",), deadline="2")).deadline_s == 7200.0
    assert math.isinf(request(Asked(workload="bert", accelerator=("x",))).deadline_s)
    with pytest.raises(UsageError, match="90min"):
        request(Asked(workload="bert", accelerator=("x",), deadline="soon"))

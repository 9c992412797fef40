"""Pages of collectives, traces and backtests: the numbers of their blocks, and that both renderings hold."""

import re
from pathlib import Path

import pytest
from parsed_page import Parsed, printed

from equipoise.bench.collectives.files import read_files
from equipoise.bench.trace import read_traces
from equipoise.calibration.advice_backtest import held_out_advice
from equipoise.calibration.collective_verdicts import judged
from equipoise.diagnose.stragglers import trace_steps
from equipoise.report import html
from equipoise.report.blocks import Table
from equipoise.report.pages.backtest import ADVICE_BACKTEST, BACKTEST
from equipoise.report.pages.collectives import COLLECTIVES
from equipoise.report.pages.trace import TRACE
from equipoise.runs.embedded import scores
from equipoise.scaling.backtest import backtest
from equipoise.spec.mlperf import best_per_size

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def collectives():
    return judged(read_files((EXAMPLES / "nccl-a100.txt",), operation=None))


@pytest.fixture(scope="module")
def trace():
    return trace_steps(read_traces([EXAMPLES / "dlrm-traces.tar.gz"]))


@pytest.fixture(scope="module")
def errors():
    return backtest(best_per_size(scores().entries), rounds=["v0.5"])


@pytest.fixture(scope="module")
def advised():
    return held_out_advice(scores().entries, rounds=["v0.5"])


def keys(page, findings, name):
    """What each row of a table of the page sorts by, by title of its column."""
    found = [
        block
        for _, blocks in page.content(findings)
        for block in blocks
        if isinstance(block, Table) and block.name == name
    ]
    (table,) = found
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, (cell.key for cell in row), strict=True)) for row in table.rows]


@pytest.mark.parametrize(
    ("page", "name"),
    [(COLLECTIVES, "collectives"), (TRACE, "trace"), (BACKTEST, "errors"), (ADVICE_BACKTEST, "advised")],
)
def test_both_renderings_fit_and_the_short_one_is_a_screen(page, name, request):
    findings = request.getfixturevalue(name)
    brief, full = (printed(page, findings, full=each).splitlines() for each in (False, True))
    assert max(map(len, (*brief, *full))) <= 80
    assert len(brief) <= 32
    shown = Parsed(html.render(page, findings))
    assert shown.unbalanced == []
    anchors = [each["id"] for each in shown.elements if "id" in each]
    assert len(anchors) == len(set(anchors))
    assert [each["id"] for each in shown.all("section")] == [section.name for section in page.sections]


def test_the_rates_of_collectives_are_those_of_the_fit(collectives):
    first, *ranges = keys(COLLECTIVES, collectives, "fits")
    (fit,) = collectives.fits
    assert first["Bus, GB/s"] == fit.bus_byte_per_s
    assert first["N"] == 8
    assert len(ranges) == len(fit.curve.regimes)


def test_the_headline_of_collectives_names_what_is_slow(mine):
    # 32 MiB in 4,190 us are 8.0 GB/s, of 24 over PCIe 4.0 x16: what sendrecv_perf printed between two RTX 3090.
    path = mine(
        "".join(
            f"#  Rank {rank} Group 0 Pid 1 on ws device {rank} [0x01] NVIDIA GeForce RTX 3090\n"
            for rank in (0, 1)
        )
        + "    16777216       4194304     float     sum      -1   2130.1    7.88    7.88      0   2129.0    7.88    7.88    N/A\n"
        + "    33554432       8388608     float     sum      -1   4190.7    8.01    8.01      0   4188.0    8.01    8.01    N/A\n",
        "sendrecv.txt",
    )
    found = judged(read_files([path], operation=None))
    headline = printed(COLLECTIVES, found, full=False).splitlines()[2]
    assert re.match(r"Slow: .*\bsend\b.*\b2 ranks$", headline)


def test_the_parts_of_a_traced_step_sum_to_it(trace):
    rows = keys(TRACE, trace, "ranks")
    assert [row["Rank"] for row in rows] == [0, 3, 6, 7]
    for row in rows:
        assert row["Compute"] + row["Exposed"] + row["Idle"] == pytest.approx(1.0)
    assert "Late: rank 7" in printed(TRACE, trace, full=False)


def test_the_errors_of_a_backtest_are_beside_those_of_baselines(errors):
    rows = keys(BACKTEST, errors, "methods")
    assert rows[0]["Median"] == errors.pooled_law.median_abs_error
    assert len(rows) == 1 + len(errors.baselines)
    assert keys(BACKTEST, errors, "worst")[0]["N"] == 256


def test_objectives_of_advice_are_compared_with_what_was_found(advised):
    rows = keys(ADVICE_BACKTEST, advised, "objectives")
    assert {row["Groups"] for row in rows} == {1}
    (worst,) = keys(ADVICE_BACKTEST, advised, "advice-worst")
    assert (worst["Largest known"], worst["Found"]) == (16, 256)

"""The pages of `scores` and `record` on entries made here: what is unknown, what is shared, what fits a screen."""

import re
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

from equipoise.cli.output import page_text
from equipoise.decide.ledger import Ledger, LedgerEntry, LedgerReport, MeasuredResult, RecordedPrediction
from equipoise.report.pages.ledger import LEDGER
from equipoise.report.pages.orientation import scores_page
from equipoise.scaling.metrics import SCORE_COLUMNS


@pytest.fixture(autouse=True)
def _columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def entries(*given):
    return pl.DataFrame([dict.fromkeys(SCORE_COLUMNS) | each for each in given], infer_schema_length=None)


BERT = {"round": "v9.9", "workload": "bert", "submitter": "Org", "system": "machine", "num_accelerators": 8}


def shown(frame, *, is_sorted=False):
    return page_text(scores_page(is_sorted=is_sorted), frame, full=False).splitlines()


def test_entries_of_one_accelerator_name_it_once():
    one = BERT | {"accelerator": "h100-sxm5-80gb", "score_s": 600.0}
    lines = shown(entries(one, one | {"score_s": 90.0}))
    assert sum("h100" in line for line in lines) == 1
    assert [line.split()[:2] for line in lines if "Org / machine" in line] == [["8", "10.00"], ["8", "1.50"]]


def test_an_entry_without_score_or_accelerator_says_why():
    lines = shown(entries(BERT | {"score_s": None, "reason": "9 of 10 logs missing"}))
    (row,) = (line for line in lines if line.startswith("\N{EN DASH}"))
    assert "(9 of 10 logs missing)" in row
    assert "None" not in "".join(lines)


def test_sorted_entries_of_several_workloads_name_each():
    frame = entries(BERT | {"score_s": 1.0}, BERT | {"workload": "rgat", "score_s": 2.0})
    lines = shown(frame, is_sorted=True)
    assert [line.split()[1] for line in lines if line.startswith("v9.9")] == ["bert", "rgat"]


def test_no_entry_is_one_line():
    assert len(shown(entries(BERT).clear())) == 1


PREDICTED = RecordedPrediction(
    verb="plan", workload="llama31_405b", accelerator="h100-sxm5-80gb", num_accelerators=11_616,
    quantity="time_to_train_s", value=36_000.0, low=30_000.0, high=44_000.0, kind="model",
)  # fmt: skip


RATE = replace(
    PREDICTED, quantity="samples_per_s", value=2_500.0, low=2_000.0, high=3_000.0, num_accelerators=8
)


@pytest.mark.parametrize("num_measured", [1, 2])
@pytest.mark.parametrize("prediction", [PREDICTED, RATE])
def test_a_long_ledger_fits_one_screen_and_counts_what_is_left_out(prediction, num_measured):
    one = MeasuredResult(quantity=prediction.quantity, value=2.0 * prediction.value)
    measured = (one,) * num_measured
    kept = tuple(
        LedgerEntry(id=f"{place:08x}", made="2026-03-02", prediction=prediction, measured=measured)
        for place in range(30)
    )
    ledger = Ledger(path=Path("ledger.jsonl"), entries=kept, num_damaged=1)
    text = page_text(LEDGER, LedgerReport(ledger=ledger, entries=kept, num_added=None), full=False)
    lines = text.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    shown_ids = [line.split()[0] for line in lines if line.startswith("0000")]
    assert 3 <= len(shown_ids) < 30
    assert shown_ids[-1] == "0000001d"
    assert f"{30 - len(shown_ids)} earlier" in text
    assert "plan" in text
    # Half of the time; at half of the rate a training takes twice as long.
    assert ("-50 %" if prediction.quantity == "time_to_train_s" else "+100 %") in text


@pytest.mark.parametrize(("times_s", "num_said"), [((300.0,), []), ((300.0, 310.0, 350.0), ["3"])])
def test_a_median_of_several_measurements_says_of_how_many(times_s, num_said):
    measured = tuple(MeasuredResult(quantity="time_to_train_s", value=each) for each in times_s)
    entry = LedgerEntry(id="0000001d", made="2026-03-02", prediction=PREDICTED, measured=measured)
    ledger = Ledger(path=Path("ledger.jsonl"), entries=(entry,), num_damaged=0)
    text = page_text(LEDGER, LedgerReport(ledger=ledger, entries=(entry,), num_added=1), full=False)
    assert re.findall(r"0000001d of (\d+)", text) == num_said

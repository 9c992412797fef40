"""The ledger: what is written stays, whoever writes and whatever is killed; errors by hand."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from equipoise.decide.ledger import (
    SCHEMA,
    MeasuredResult,
    RecordedPrediction,
    add_measured,
    add_predictions,
    append,
    ledger_path,
    matches,
    nearest_differences,
    read_ledger,
    running,
)
from equipoise.errors import DataError, UsageError


def prediction(**changes):
    facts = {
        "verb": "predict",
        "workload": "bert",
        "accelerator": "h100-sxm5-80gb",
        "num_accelerators": 8,
        "quantity": "time_to_train_s",
        "value": 100.0,
        "low": 80.0,
        "high": 120.0,
        "kind": "published",
    }
    return RecordedPrediction(**facts | changes)


def run(**changes):
    facts = {
        "run_id": "sweep/1",
        "status": "success",
        "workload": "bert",
        "accelerator": "h100-sxm5-80gb",
        "num_accelerators": 8,
        "strategy": None,
        "global_batch_samples": 256,
        "time_to_train_s": 110.0,
        "samples_per_s": 1000.0,
    }
    return facts | changes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_nothing_is_there_before_somebody_asks(path):
    assert read_ledger(path).entries == ()
    assert running(path) is None
    assert not path.exists()


def test_what_is_written_is_read(path):
    ids = add_predictions(path, [prediction(), prediction(num_accelerators=16)])
    add_measured(path, [(ids[0], MeasuredResult(quantity="time_to_train_s", value=125.0))])
    first, second = read_ledger(path).entries
    assert (first.prediction, second.prediction) == (prediction(), prediction(num_accelerators=16))
    assert (first.outcome, second.outcome) == (125.0, None)
    assert first.error == pytest.approx(-0.2)  # 100 predicted, 125 measured
    assert first.is_covered is False


def test_a_prediction_from_a_file_whose_name_is_no_utf_8_is_kept(path):
    add_predictions(path, [prediction(from_runs=(os.fsdecode(b"r\xe9sum\xe9/1"),))])
    found = read_ledger(path)
    assert found.num_damaged == 0
    assert [each.prediction.value for each in found.entries] == [100.0]


def test_the_running_error_by_hand(path):
    # Times 100, 100, 100 predicted; 125, 100, 80 measured: off by -20 %, 0 and +25 %.
    ids = add_predictions(path, [prediction(num_accelerators=size) for size in (1, 2, 4, 8)])
    for id_, value in zip(ids, (125.0, 100.0, 80.0), strict=False):
        add_measured(path, [(id_, MeasuredResult(quantity="time_to_train_s", value=value))])
    found = running(path)
    assert (found.num_predictions, found.num_measured) == (4, 3)
    assert found.record.median_abs_error == pytest.approx(0.2)
    assert found.record.p90_abs_error == pytest.approx(0.24)  # 0.8 of the way from 0.20 to 0.25
    assert found.record.coverage == pytest.approx(2 / 3)
    assert found.bias == pytest.approx(1.0)


def test_errors_name_the_workloads_and_accelerators_that_they_are_of(path):
    chips = ("h100-sxm5-80gb", "a100-sxm4-80gb")
    ids = add_predictions(path, [prediction(accelerator=each) for each in chips])
    for id_ in ids:
        add_measured(path, [(id_, MeasuredResult(quantity="time_to_train_s", value=100.0))])
    of_all, of_one = running(path).record.of, running(path, accelerator=chips[0]).record.of
    assert all(each in of_all for each in ("bert", *chips))
    assert "bert" in of_one
    assert chips[1] not in of_one


def test_rates_are_compared_as_times(path):
    # 1000 samples per second predicted, 800 measured: the predicted time was 20 % too short.
    (id_,) = add_predictions(
        path, [prediction(quantity="samples_per_s", value=1000.0, low=900.0, high=1100.0)]
    )
    add_measured(path, [(id_, MeasuredResult(quantity="samples_per_s", value=800.0))])
    assert read_ledger(path).entries[0].error == pytest.approx(-0.2)


def test_a_run_counts_once_for_predictions_of_its_set_up(path):
    add_predictions(
        path,
        [
            prediction(),
            prediction(num_accelerators=16),
            prediction(workload="resnet"),
            prediction(global_batch_samples=512),
            prediction(quantity="samples_per_s", value=900.0, low=800.0, high=1000.0),
        ],
    )
    found = list(matches(read_ledger(path), [run()]))
    assert [each.value for _, each in found] == [110.0, 1000.0]
    add_measured(path, found)
    assert not list(matches(read_ledger(path), [run()]))
    assert not list(matches(read_ledger(path), [run(run_id="x", status="failed: memory")]))


def test_a_run_does_not_test_a_prediction_that_was_made_from_it(path):
    (id_,) = add_predictions(path, [prediction(from_runs=("sweep/1", "sweep/2"))])
    assert read_ledger(path).entries[0].prediction.from_runs == ("sweep/1", "sweep/2")
    found = list(matches(read_ledger(path), [run(), run(run_id="sweep/3")]))
    assert [(one, result.source) for one, result in found] == [(id_, "sweep/3")]


def test_a_later_prediction_replaces_an_earlier_one(path):
    old, new = add_predictions(path, [prediction(), prediction(value=105.0)])
    assert [id_ for id_, _ in matches(read_ledger(path), [run()])] == [new]
    assert old != new


@pytest.mark.parametrize(
    ("ran", "predicted", "is_counted"),
    [
        ("ddp", "dp=8 microbatch=32 global_batch=256", True),
        ("fsdp", "dp=8 microbatch=32 global_batch=256 zero_stage=3", True),
        ("ddp", "dp=8 microbatch=32 global_batch=256 zero_stage=3", False),
        ("ddp", "dp=4 tp=2 microbatch=32 global_batch=256", False),
        ("powersgd:4", "dp=8 microbatch=32 global_batch=256", False),
        (None, "dp=8 microbatch=32 global_batch=256", True),
        # What a user's rows at several sizes have in common.
        ("dp=8 zero_stage=3", "zero_stage=3", True),
        ("dp=8 zero_stage=2", "zero_stage=3", False),
    ],
)
def test_ways_of_the_harness_are_compared_with_strategies(path, ran, predicted, is_counted):
    add_predictions(path, [prediction(strategy=predicted, global_batch_samples=256)])
    assert bool(list(matches(read_ledger(path), [run(strategy=ran)]))) is is_counted


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": float("nan")},
        {"low": 0.0},
        {"low": 101.0},
        {"high": float("inf")},
        {"num_accelerators": 0},
        {"num_accelerators": True},
        {"quantity": "miles"},
        {"kind": "guessed"},
        {"level": 1.0},
        {"workload": "x" * 2000},
    ],
)
def test_a_prediction_that_is_none_is_refused(wrong):
    with pytest.raises(UsageError, match="a prediction"):
        prediction(**wrong)


def test_lines_of_schema_1_are_read(path):
    facts = to_builtins(prediction()) | {
        "kind": "modelled",
        "id": "5b1f0c2e",
        "made": "2026-03-02T09:14:05+00:00",
    }
    path.write_text(json.dumps({"schema": "equipoise.ledger/1", "line": "prediction"} | facts) + "\n")
    (entry,) = read_ledger(path).entries
    assert (entry.id, entry.prediction) == ("5b1f0c2e", prediction(kind="model"))


def test_lines_that_are_none_of_its_own_are_counted_and_skipped(path):
    (id_,) = add_predictions(path, [prediction()])
    good = path.read_bytes()
    path.write_bytes(b'{"half a line\n[1]\nnull\n' + good + b'{"schema": "other/1"}\n' + good[:-20] + b"\n")
    found = read_ledger(path)
    assert [each.id for each in found.entries] == [id_]
    assert found.num_damaged == 5


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400))
def test_any_bytes_are_a_ledger_without_entries_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "ledger.jsonl"
    path.write_bytes(data)
    assert read_ledger(path).entries == ()


def test_a_ledger_that_cannot_be_is_refused_in_words(tmp_path):
    for wrong in (tmp_path, Path("/dev/null")):
        with pytest.raises(DataError, match="ledger"):
            add_predictions(wrong, [prediction()])
        with pytest.raises(DataError, match=re.escape(str(wrong))):
            read_ledger(wrong)


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("EQUIPOISE_LEDGER", str(tmp_path / "own.jsonl"))
    assert ledger_path() == tmp_path / "own.jsonl"
    monkeypatch.delenv("EQUIPOISE_LEDGER")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert ledger_path() == tmp_path / "equipoise" / "ledger.jsonl"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ledger_path() == tmp_path / ".local" / "share" / "equipoise" / "ledger.jsonl"


# Appends numbered lines, and says so after each that is on disk.
WRITER = """
import sys
from pathlib import Path
from equipoise.decide.ledger import append
path, name = Path(sys.argv[1]), sys.argv[2]
for number in range(int(sys.argv[3])):
    append(path, [{"writer": name, "number": number, "text": "x" * 3000}])
    print(number, flush=True)
"""


def writer(path, name, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, path, name, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_writers_at_once_lose_nothing(path):
    writers = [writer(path, str(name), 40) for name in range(4)]
    assert [each.wait(60) for each in writers] == [0] * 4
    for each in writers:
        each.stdout.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((line["writer"], line["number"]) for line in lines) == sorted(
        (str(name), number) for name in range(4) for number in range(40)
    )


def test_a_kill_at_any_moment_loses_no_line_that_was_acknowledged(path):
    survivor = writer(path, "survivor", 150)
    acknowledged = []
    for name in range(6):
        victim = writer(path, f"victim {name}", 10_000)
        first = [victim.stdout.readline() for _ in range(name + 1)]
        victim.send_signal(signal.SIGKILL)
        rest = [*first, *victim.stdout.read().split()]
        acknowledged += [(f"victim {name}", int(number)) for number in rest]
        victim.wait(10)
        victim.stdout.close()
    survivor.communicate(timeout=60)
    found = set()
    for line in path.read_bytes().split(b"\n"):
        try:
            document = json.loads(line)
        except ValueError:
            continue
        found.add((document["writer"], document["number"]))
    assert set(acknowledged) <= found
    assert {("survivor", number) for number in range(150)} <= found


def test_a_line_that_a_kill_cut_short_spoils_no_other(path):
    add_predictions(path, [prediction()])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])  # as a writer leaves it that is killed in mid-write
    add_predictions(path, [prediction(num_accelerators=16)])
    found = read_ledger(path)
    assert [each.prediction.num_accelerators for each in found.entries] == [8, 16]
    assert found.num_damaged == 1


def test_a_full_disk_leaves_the_ledger_as_it_was(path, monkeypatch):
    add_predictions(path, [prediction()])
    before = path.read_bytes()
    calls = []

    def write(descriptor, data):
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, bytes(data)[:100])

    real = os.write
    monkeypatch.setattr(os, "write", write)
    with pytest.raises(DataError, match=os.strerror(errno.ENOSPC)):
        append(path, [{"schema": SCHEMA}] * 40)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({"global_batch_samples": 1024}, [r"batch .*\b1024\b.*\b256\b"]),
        ({"strategy": "fsdp"}, ["strategy .*fsdp"]),
        ({"num_accelerators": 3, "workload": "other"}, ["workload .*other", r"number .*\b3\b"]),
        ({}, []),
        ({"status": "failed: memory"}, ["status .*failed: memory"]),
        ({"time_to_train_s": None}, ["quantity .*samples_per_s.*time_to_train_s"]),
    ],
    ids=str,
)
def test_the_facts_in_which_runs_differ_from_the_nearest_prediction_are_named(path, changed, facts):
    alike = {"strategy": "dp=8 microbatch=32 global_batch=256", "global_batch_samples": 256}
    add_predictions(path, [prediction(**alike), prediction(**alike, accelerator="b200", num_accelerators=16)])
    found = nearest_differences(read_ledger(path), [run(**changed)])
    assert len(found) == len(facts)
    assert all(re.match(each, words) for each, words in zip(facts, found, strict=True))

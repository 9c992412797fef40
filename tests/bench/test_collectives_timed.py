"""`collectives --measure` with real processes and gloo: right results, hung calls, files that read back."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from command_line import document, equipoise, prepared_ranks
from msgspec import convert, to_builtins
from msgspec.structs import replace
from waiting import awaited

from equipoise.bench.collectives import OPERATIONS, CollectivesTask, sizes_of, timed_document
from equipoise.bench.collectives.files import read_files, reading_in
from equipoise.bench.launchers import INPROCESS, SO_FAR, JobOutcome, write_document
from equipoise.calibration.collective_verdicts import judged
from equipoise.errors import DataError, EvidenceError, UsageError

SIZES = (1024, 3 * 4096, 2**18)


@pytest.fixture(scope="module")
def measured():
    """Every operation over gloo between two processes, and what was told on the way."""
    pytest.importorskip("torch", reason="torch is not installed")
    told = []
    asked = CollectivesTask(sizes_bytes=SIZES, num_rounds=2)
    with prepared_ranks():
        document = timed_document(asked, INPROCESS, num_starts=1, progress=lambda *each: told.append(each))
    return document, told


def test_every_operation_comes_out_right_and_is_timed(measured):
    document, _ = measured
    assert document["refused"] == {}
    assert {(row["operation"], row["size"]) for row in document["results"]} == {
        (operation, size) for operation in OPERATIONS for size in SIZES
    }
    assert document["results"]
    for row in document["results"]:
        side = row.get("in_place") or row["out_of_place"]
        assert side["nwrong"] == 0
        assert len(row["rounds_s"]) == 2
        # Not more cores than there are; the two clocks are read one after the other.
        assert 0 < row["cpu_fraction"] <= 1.25 * len(os.sched_getaffinity(0))
    assert (document["backend"], document["num_nodes"], document["num_ranks"]) == ("gloo", 1, 2)


def test_bus_bandwidth_is_that_of_nccl_tests(measured):
    document, _ = measured
    # doc/PERFORMANCE.md of nccl-tests: over 2 ranks 2(n-1)/n is 1 and (n-1)/n a half.
    factors = {"all_reduce": 1, "broadcast": 1, "send": 1}
    assert document["results"]
    for row in document["results"]:
        side = row.get("in_place") or row["out_of_place"]
        assert side["alg_bw"] == pytest.approx(row["size"] / side["time"] / 1e3)
        assert side["bus_bw"] == pytest.approx(side["alg_bw"] * factors.get(row["operation"], 0.5))


def test_progress_tells_operation_and_share(measured):
    _, told = measured
    assert told
    assert all(" of " in what and 0 <= done <= total for what, done, total in told)


def test_what_is_written_is_read_back_as_it_was(measured, mine):
    document, _ = measured
    path = mine(json.dumps(document), "links.json")
    reading = read_files([path])
    assert [run.operation for run in reading.runs] == list(
        dict.fromkeys(r["operation"] for r in document["results"])
    )
    direct = reading_in(document, where=str(path))
    assert reading.runs == direct.runs
    found = judged(reading)
    assert len(found.fits) == len(OPERATIONS)
    assert all(len(fit.cpu_fractions) == len(SIZES) for fit in found.fits)
    # One host: no link joins its processes, and nothing is claimed about one.
    assert {each.verdict for each in found.verdicts} <= {"unknown"}
    slow = replace(reading, runs=tuple(replace(run, num_nodes=2) for run in reading.runs))
    for seconds in (0.5, 0.137, 0.01):
        big = replace(slow.runs[0].timings[0], payload_bytes=2**24, in_place_s=seconds)
        one = replace(slow.runs[0], operation="all_reduce", timings=(replace(big, out_of_place_s=None),))
        (verdict,) = judged(replace(slow, runs=(one,)), link="1gbit").verdicts
        # 16 MiB at 1 Gbit/s take 134 ms without any framing.
        assert verdict.verdict == {0.5: "slow", 0.137: "normal", 0.01: "fast"}[seconds]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_ranks": "2"}, "whole number"),
        ({"results": [{}]}, "KeyError"),
        ({"results": 7}, "TypeError"),
        ({"refused": []}, "AttributeError"),
    ],
)
def test_a_document_that_is_not_as_written_is_refused(measured, change, words):
    with pytest.raises(DataError, match=words):
        reading_in({**measured[0], **change}, where="x.json")


def test_wrong_results_are_not_used(measured):
    document = json.loads(json.dumps(measured[0]))
    for row in document["results"]:
        (row.get("in_place") or row["out_of_place"])["nwrong"] = 1
    reading = reading_in(document, where="x.json")
    assert (reading.runs, [each["kind"] for each in reading.rejected.rows()]) == ((), ["wrong_results"])


def worker_of(rank):
    """The process of a rank that this process has started, once it is there."""

    def look():
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                told = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if parent == os.getpid() and f"RANK={rank}".encode() in told:
                return int(entry.name)
        return None

    number = awaited(look, limit_s=60)
    assert number, f"no process of rank {rank}"
    return number


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_collective_that_hangs_is_ended_and_said_and_the_others_are_measured():
    pytest.importorskip("torch", reason="torch is not installed")
    stopped = []

    def stop_one(what, _done, _total):
        if not stopped and what.startswith("broadcast"):
            stopped.append(worker_of(1))
            os.kill(stopped[0], signal.SIGSTOP)

    asked = CollectivesTask(
        operations=("broadcast", "all_reduce"), sizes_bytes=(2**20, 2**21, 2**22), num_rounds=12, limit_s=5.0
    )
    document = timed_document(asked, INPROCESS, num_starts=1, progress=stop_one)
    assert stopped
    assert list(document["refused"]) == ["broadcast"]
    assert "rank 0" in document["refused"]["broadcast"]
    assert {row["operation"] for row in document["results"]} == {"all_reduce"}


def test_ranks_that_cannot_be_started_are_told_of():
    pytest.importorskip("torch", reason="torch is not installed")
    broken = replace(INPROCESS, launch=lambda job: INPROCESS.launch(replace(job, limit_s=0.1)))
    with pytest.raises(EvidenceError, match="hung"):
        timed_document(CollectivesTask(), broken, num_starts=1)


def test_each_start_has_its_own_seed_however_often_it_begins_again():
    seeds = []

    def fail(job):
        seeds.append(job.task.seed)
        write_document(job.folder, SO_FAR, {"now": [job.task.operations[0], 1024]})
        return JobOutcome(reason="hung")

    with pytest.raises(EvidenceError):
        timed_document(
            CollectivesTask(operations=("broadcast", "all_reduce"), sizes_bytes=SIZES, seed=4),
            replace(INPROCESS, launch=fail),
            num_starts=2,
        )
    assert seeds == [4, 4]
    seeds.clear()
    row = {"operation": "all_reduce", "payload_bytes": 1024, "seconds": [1e-3], "num_wrong": 0}
    row |= {"cpu_fraction": [0.5], "num_calls": 1, "is_steady": True}

    def measure(job):
        seeds.append(job.task.seed)
        return JobOutcome(result={"rows": [row], "refused": {}})

    timed_document(
        CollectivesTask(operations=("all_reduce",), sizes_bytes=SIZES, seed=4),
        replace(INPROCESS, launch=measure),
        num_starts=4,
    )
    assert seeds == [4, 5, 6, 7]


def test_what_is_asked_for_reaches_the_processes_unchanged():
    asked = CollectivesTask(num_ranks=3, operations=("send",), sizes_bytes=(2**20,), seed=4)
    assert convert(json.loads(json.dumps(to_builtins(asked))), CollectivesTask) == asked


def test_sizes_are_read_as_nccl_tests_reads_them():
    assert sizes_of("1KiB,64K, 4MB,1G,1K") == (2**10, 2**16, 2**22, 2**30)


@pytest.mark.parametrize("text", ["", "1X", "-1", "1e3", "9" * 13, "1K,,2K", "B", "K"])
def test_sizes_that_are_none_are_refused(text):
    with pytest.raises(UsageError, match=r"--sizes '.*1024, 64K"):
        sizes_of(text)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"num_ranks": 1}, "expected 2 to"),
        ({"sizes_bytes": (4,)}, "--sizes 4: .*8 bytes"),
        ({"sizes_bytes": (2**60,)}, "at most"),
        ({"operations": ("hypercube",)}, "'hypercube'.* all_reduce"),
        ({"device": "abacus"}, "'abacus'.* cpu, cuda"),
    ],
)
def test_what_no_ranks_can_do_is_refused(asked, words):
    with pytest.raises(UsageError, match=words):
        CollectivesTask(**asked)


@pytest.mark.usefixtures("prepared_ranks")
def test_the_verb_measures_and_keeps_what_it_measured(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    options = (
        "--sizes",
        "1K,64K,1M",
        "--ops",
        "all-reduce",
        "--repeat",
        1,
        "--device",
        "cpu",
        "--out",
        "kept.json",
    )
    ended = equipoise("collectives", "--measure", *options, "--json", cwd=tmp_path)
    found = document(ended)
    assert [(fit["operation"], fit["num_ranks"], fit["num_points"]) for fit in found["fits"]] == [
        ("all_reduce", 2, 3)
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    again = equipoise("collectives", "kept.json", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["fits"] == found["fits"]
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["results"]
    for result in kept["results"]:
        result |= {
            side: result[side] | {"time": 1e308} for side in ("out_of_place", "in_place") if side in result
        }
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    broken = equipoise("collectives", "kept.json", cwd=tmp_path)
    assert (broken.returncode, broken.stderr.count("\n")) == (2, 1), broken.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--measure"),
        (("log.txt", "--measure"), "--measure"),
        (("log.txt", "--sizes", "1K"), "--sizes"),
        (("--measure", "--sizes", "some"), "'some'"),
        (("--measure", "--ops", "telepathy"), "telepathy"),
        (("--measure", "--out", "nowhere/x.json"), "nowhere"),
        (("log.txt", "--ops", "all_reduce,broadcast"), "one operation"),
        (("log.txt", "log.txt"), "given twice"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(arguments, words, tmp_path):
    (tmp_path / "log.txt").write_text("")
    ended = equipoise("collectives", *arguments, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1

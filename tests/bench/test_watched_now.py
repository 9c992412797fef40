"""Watched runs as their files tell now: who lives, what is read of long files, what is refused. No torch."""

import json
import os
import re
from contextlib import closing

import pytest
from msgspec import to_builtins

from equipoise.bench.watching import RankFile, RecordedStep, rank_record, rank_records, run_folder
from equipoise.bench.watching.rows import latest_step, run_files, run_now, runs_files
from equipoise.errors import DataError

LONG_AGO = (1e9, 1e9)
FIRST = {"schema": "equipoise.watched/1", "rank": 0, "num_ranks": 1}
STEP = to_builtins(RecordedStep(step=1, batches=1, samples=2, profiled=False, seconds={"step": 0.5}))


def rank_file(out, rank=0, num_ranks=1, run="20250101T000000-abcdef"):
    about = {"rank": rank, "num_ranks": num_ranks, "workload": "mine", "conditions": {"host": "here"}}
    return RankFile(run_folder(out, run), about)


def steps(num):
    return [
        RecordedStep(step=number, batches=1, samples=2, profiled=False, seconds={"step": 0.5})
        for number in range(1, num + 1)
    ]


def test_a_run_lives_while_a_process_holds_its_file(tmp_path):
    file = rank_file(tmp_path)
    file.add(steps(40))
    os.utime(file.path, LONG_AGO)
    found = run_files(file.path.parent)
    assert found.is_alive
    assert (run_now(found).status, latest_step(found)) == ("training", (40, False))
    file.close()
    found = run_files(file.path.parent)
    assert not found.is_alive
    assert run_now(found).status.startswith("failed: rank 0 ")


def test_after_the_last_measured_step_a_run_that_trains_says_so(tmp_path):
    about = {"rank": 0, "num_ranks": 1, "workload": "mine", "num_steps": 40}
    with closing(RankFile(run_folder(tmp_path, "20261123T000000-0"), about)) as file:
        file.add(steps(39))
        assert latest_step(run_files(file.path.parent)) == (39, False)
        file.add(steps(40)[39:])
        assert latest_step(run_files(file.path.parent)) == (40, True)


def test_where_disks_have_no_locks_a_file_written_a_moment_ago_lives_until_it_says_its_end(tmp_path):
    file = rank_file(tmp_path)
    file.close()
    assert run_files(file.path.parent).is_alive
    file.add([*steps(40), {"end": {"memory_bytes": 1}}])
    file.close()
    found = run_files(file.path.parent)
    assert (found.is_alive, run_now(found).status) == (False, "success")


def test_of_a_long_file_its_first_line_and_its_latest_steps_are_read(tmp_path):
    file = rank_file(tmp_path)
    file.add(steps(3000))
    found = rank_record(file.path, most_bytes=20_000)
    numbers = [step.step for step in found.steps]
    assert numbers == list(range(numbers[0], 3001))
    assert 100 < len(numbers) < 300
    assert (found.is_whole, found.about["workload"]) == (False, "mine")
    assert rank_record(file.path).is_whole
    file.close()


def test_of_many_runs_and_ranks_so_many_are_read(tmp_path):
    for number in range(25):
        (run_folder(tmp_path, f"run-{number:02}")).mkdir(parents=True)
    found, num_older = runs_files(tmp_path)
    assert ([each.folder.name for each in found[:2]], len(found), num_older) == (["run-24", "run-23"], 20, 5)
    for rank in range(70):
        rank_file(tmp_path, rank, 70).close()
    many = run_files(run_folder(tmp_path, "20250101T000000-abcdef"))
    assert (len(many.ranks), many.num_files) == (64, 70)
    assert not run_now(many).is_whole


def test_what_is_no_file_is_not_opened(tmp_path):
    folder = run_folder(tmp_path, "one")
    folder.mkdir(parents=True)
    os.mkfifo(folder / "rank-0.jsonl")
    (folder / "rank-1.jsonl").mkdir()
    assert run_files(folder).ranks == ()
    with pytest.raises(DataError, match=re.escape(str(folder))):
        run_now(run_files(folder))
    with pytest.raises(DataError, match=r"rank-\d\.jsonl: .*regular file"):
        rank_records(folder)


@pytest.mark.parametrize(
    "line",
    [
        STEP | {"seconds": {"step": 0}},
        STEP | {"seconds": {"step": 1e300}},
        STEP | {"seconds": {"step": 1, "input": -0.5}},
        STEP | {"seconds": None},
        STEP | {"samples": -1},
        STEP | {"step": 10**400},
        STEP | {"batches": True},
        {"stated": {"precision": ["fp32"]}},
        {"end": {"exchanged": {"step_s": 1.0}}},
        {"end": {"exchanged": {"communication_s": 1, "step_s": 1, "passes_s": 1}}},
        {"end": {"exchanged": {"communication_s": -1, "step_s": 1}}},
    ],
    ids=str,
)
def test_a_line_that_no_watch_writes_is_refused(mine, line):
    path = mine(f"{json.dumps(FIRST)}\n{json.dumps(line)}\n", "rank-0.jsonl")
    with pytest.raises(DataError, match=r"rank-0\.jsonl:2: "):
        rank_record(path)


@pytest.mark.parametrize(
    "about",
    [{"workload": 1}, {"batch_samples": 2.5}, {"conditions": {"core_sets": 1}}, {"conditions": []}],
    ids=str,
)
def test_a_first_line_that_no_watch_writes_is_refused(mine, about):
    path = mine(f"{json.dumps(FIRST | about)}\n", "rank-0.jsonl")
    with pytest.raises(DataError, match=r"rank-0\.jsonl:1: "):
        rank_record(path)

"""Finished trials stay on disk through anything: kills, full disks, resumed sweeps, damaged files."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import in_process
from msgspec.structs import replace

from equipoise.bench.launchers import JobOutcome, Launcher
from equipoise.bench.summary import summaries
from equipoise.bench.sweep import in_random_order, planned, run_sweep
from equipoise.bench.trial import FinishedTrial, Store, Trial, write_whole
from equipoise.errors import DataError, UsageError

NUM_KILLS = 10

# A sweep whose launcher starts a process that ends at once; each run of a trial leaves a line.
SWEEP = """
import os, subprocess, sys
from pathlib import Path
from equipoise.bench.launchers import JobOutcome, Launcher
from equipoise.bench.sweep import planned, run_sweep

def launch(job):
    subprocess.run(["true"], check=True)
    with open(sys.argv[2], "a") as runs:
        runs.write(job.task.trial_id + "\\n")
    return JobOutcome(result={"steps": [{"step": 1.0}] * 50})

def tell(what, done, total):
    print(done, flush=True)

trials = planned(workloads=["mlp"], methods=["ddp"], sizes=[1], batches=range(1, 41), num_repetitions=1)
instant = Launcher(name="instant", why_not=lambda: None, launch=launch)
run_sweep(trials, Path(sys.argv[1]), instant, limit_s=9.0, resume=True, progress=tell)
"""


def trials(num=3, workload="mlp"):
    return planned(
        workloads=[workload], methods=["ddp"], sizes=[1], batches=range(1, num + 1), num_repetitions=1
    )


def instant(run_ids, reason=None):
    """A launcher that measures nothing, in no time, and keeps a list of what it was given."""

    def launch(job):
        run_ids.append(job.task.trial_id)
        return JobOutcome(reason=reason) if reason else JobOutcome(result={"steps": [{"step": 1.0}]})

    return Launcher(name="instant", why_not=lambda: None, launch=launch)


def test_kills_lose_and_repeat_at_most_the_running_trial(tmp_path):
    out, runs = tmp_path / "out", tmp_path / "runs.txt"
    command = [sys.executable, "-c", SWEEP, str(out), str(runs)]
    kept = set()
    for _ in range(NUM_KILLS):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sweep:
            begun = [sweep.stdout.readline() for _ in range(3)]
            sweep.send_signal(signal.SIGKILL)
        now = {path.name for path in out.glob("trials/*.json")}
        assert kept <= now, "a finished trial is lost"
        assert all(json.loads(path.read_bytes())["status"] == "success" for path in out.glob("trials/*.json"))
        assert begun[0] == f"{len(kept)}\n", "the first that is run is the first not finished"
        kept = now
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert len(list(out.glob("trials/*.json"))) == 40
    assert not list(out.glob("trials/.*.part"))
    assert not list(out.glob("running-*"))
    # Run again were only trials that a kill interrupted: at most one a kill.
    assert 40 <= len(runs.read_text().splitlines()) <= 40 + NUM_KILLS
    assert {path.stem for path in out.glob("trials/*.json")} == set(runs.read_text().split())


def test_a_resumed_sweep_runs_nothing_twice(tmp_path):
    first, second = [], []
    run_sweep(trials(), tmp_path, instant(first), limit_s=1.0)
    found = run_sweep(trials(), tmp_path, instant(second), limit_s=1.0, resume=True)
    assert len(first) == len(set(first)) == len(found) == 3
    assert second == []


@pytest.mark.parametrize("planned", [False, True])
def test_what_a_kill_left_half_written_is_gone(tmp_path, planned):
    if planned:
        run_sweep(trials(), tmp_path, instant([]), limit_s=1.0)
    (tmp_path / "trials").mkdir(exist_ok=True)
    # As a kill leaves them while the plan, a table or a trial is written; what else is there stays.
    for name in (".equipoise-8x4_hnbb.part", "trials/.equipoise-a1.part", "mine.part"):
        (tmp_path / name).write_text("{")
    run_sweep(trials(), tmp_path, instant([]), limit_s=1.0, resume=True)
    assert [path.name for path in tmp_path.rglob("*.part")] == ["mine.part"]


def test_a_failed_trial_keeps_its_reason_and_the_sweep_goes_on(tmp_path):
    found = run_sweep(trials(), tmp_path, instant([], reason="rank 1 was killed"), limit_s=1.0)
    assert [(one.status, one.reason) for one in found] == [("failed", "rank 1 was killed")] * 3


def test_another_plan_or_none_asked_to_resume_is_refused(tmp_path):
    run_sweep(trials(), tmp_path, instant([]), limit_s=1.0)
    with pytest.raises(UsageError, match=r"--out .*--resume"):
        run_sweep(trials(), tmp_path, instant([]), limit_s=1.0)
    with pytest.raises(UsageError, match=r"\b1 .*\b4 "):
        run_sweep(trials(4), tmp_path, instant([]), limit_s=1.0, resume=True)


def test_a_folder_of_watched_runs_is_refused(tmp_path):
    (tmp_path / "watched").mkdir()
    with (
        pytest.raises(UsageError, match="watched runs"),
        Store(tmp_path).opened(trials(), resume=False),
    ):
        pass


def test_two_sweeps_never_share_a_folder(tmp_path):
    with (
        Store(tmp_path).opened(trials(), resume=False),
        pytest.raises(UsageError, match=re.escape(str(tmp_path)) + ".*another sweep"),
        Store(tmp_path).opened(trials(), resume=True),
    ):
        pass


def test_trials_of_another_machine_are_not_added_to(tmp_path):
    run_sweep(trials(), tmp_path, instant([]), limit_s=1.0)
    for path in tmp_path.glob("trials/*.json"):
        path.write_text(path.read_text().replace(f'"host": "{os.uname().nodename}"', '"host": "elsewhere"'))
    next(tmp_path.glob("trials/*.json")).unlink()
    with pytest.raises(DataError, match="host='elsewhere'"):
        run_sweep(trials(), tmp_path, instant([]), limit_s=1.0, resume=True)


def test_a_damaged_trial_is_named(tmp_path):
    run_sweep(trials(), tmp_path, instant([]), limit_s=1.0)
    damaged = next(tmp_path.glob("trials/*.json"))
    damaged.write_text("{")
    with pytest.raises(DataError, match=rf"{damaged.name}: not valid JSON"):
        Store(tmp_path).finished()


@pytest.mark.parametrize(
    "asked",
    [
        ("predict", "--from", "cut"),
        ("advise", "mlp", "--accelerator", "a100", "--samples", "1e6", "--runs", "cut"),
        ("export", "runs", "--data", "cut"),
        ("record", "--runs", "cut"),
    ],
    ids=lambda asked: asked[0],
)
def test_a_sweep_that_was_killed_is_said_to_have_been_cut_off(tmp_path, asked):
    run_sweep(trials(), tmp_path / "cut", instant([]), limit_s=1.0)
    ended = in_process(*asked, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "bench --out cut --resume" in ended.stderr


@pytest.mark.parametrize("num_left", [0, 1])
def test_a_sweep_of_code_is_shown_again_without_running_it(tmp_path, num_left):
    planned = trials(3, workload="mine:model")
    run_sweep(planned, tmp_path / "own", instant([]), limit_s=1.0)
    for path in sorted((tmp_path / "own" / "trials").glob("*.json"))[:num_left]:
        path.unlink()
    ended = in_process("bench", "--out", "own", "--resume", cwd=tmp_path)
    assert (ended.returncode == 0) is (num_left == 0), ended.stderr
    assert ("--allow-code" in ended.stderr) is (num_left > 0)


def test_trials_outlive_a_damaged_plan(tmp_path, mine):
    run_sweep(trials(), tmp_path, instant([]), limit_s=1.0)
    plan = mine("{", "sweep.json")
    with pytest.raises(DataError, match=r"sweep\.json.*; .*plan"):
        Store(tmp_path).plan()
    plan.unlink()  # as the message says, then the same sweep again
    started = []
    run_sweep(trials(), tmp_path, instant(started), limit_s=1.0)
    assert started == []
    assert Store(tmp_path).holds_all(trials())


def test_a_field_that_no_trial_has_is_named(tmp_path):
    run_sweep(trials(1), tmp_path, instant([]), limit_s=1.0)
    (path,) = tmp_path.glob("trials/*.json")
    path.write_text(path.read_text().replace('"seed": 0', '"seed": "x"'))
    with pytest.raises(DataError, match=rf"{path.name}: .*\$\.trial\.seed"):
        Store(tmp_path).finished()


@pytest.mark.parametrize("content", ["[]", "{}", '{"trials": 5}', '{"trials": [5]}', '{"trials": [{}]}'])
def test_a_damaged_plan_is_named(tmp_path, content):
    run_sweep(trials(), tmp_path, instant([]), limit_s=1.0)
    held = json.loads(content)
    if held:
        held["schema"] = "equipoise.sweep/1"
    (tmp_path / "sweep.json").write_text(json.dumps(held))
    with pytest.raises(DataError, match=r"sweep\.json"):
        Store(tmp_path).plan()


@pytest.mark.parametrize("result", [None, {"steps": "x"}, {"steps": [{"step": -1.0}]}, {"steps": [{}]}])
def test_a_result_that_no_worker_leaves_is_named(tmp_path, result):
    run_sweep(trials(1), tmp_path, instant([]), limit_s=1.0)
    (path,) = tmp_path.glob("trials/*.json")
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "result": result}))
    with pytest.raises(DataError, match=rf"{path.name}.*delete "):
        summaries(Store(tmp_path).finished())


def test_a_disk_that_is_full_is_said_and_leaves_what_was_there(tmp_path):
    path = tmp_path / "trial.json"
    write_whole(path, b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(DataError, match=r"trial\.json: .*--resume"):
            write_whole(path, b"x" * 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["trial.json"]


def test_order_is_random_within_a_repetition_and_the_same_for_the_same_seed():
    plan = planned(
        workloads=["mlp"], methods=["ddp"], sizes=[1, 2], batches=range(2, 22, 2), num_repetitions=2
    )
    order = in_random_order(plan, seed=1)
    assert order == in_random_order(reversed(plan), seed=1)
    assert [one.repetition for one in order] == [1] * 20 + [2] * 20
    assert [one.batch_samples for one in order[:20]] != sorted(one.batch_samples for one in order[:20])


def test_one_rank_is_measured_once_whatever_the_methods():
    plan = planned(workloads=["mlp"], methods=["ddp", "fp16"], sizes=[1, 2], batches=[8], num_repetitions=1)
    assert sorted(one.method for one in plan) == ["ddp", "fp16", "single"]


def test_a_stored_trial_comes_back(tmp_path):
    trial = Trial(workload="mlp", method="ddp", num_ranks=1, batch_samples=1)
    finished = FinishedTrial(
        trial=trial, status="success", reason=None, conditions={"a": 1}, result={"b": [2.0]}
    )
    with Store(tmp_path).opened([trial], resume=False) as store:
        store.add(finished)
    (found,) = Store(Path(tmp_path)).finished()
    assert replace(found, file="") == finished
    assert found.file == f"trials/{trial.trial_id}.json"


def test_a_sweep_of_an_earlier_version_is_read_and_resumed(tmp_path):
    """Before, a trial was called a cell: in the folder, the schema and the keys."""
    plan, run_ids = trials(3), []
    before = run_sweep(plan, tmp_path, instant(run_ids), limit_s=1.0)
    (tmp_path / "trials").rename(tmp_path / "cells")
    files = [tmp_path / "sweep.json", *(tmp_path / "cells").iterdir()]
    for path in files:
        found = json.loads(path.read_bytes())
        renamed = {{"trial": "cell", "trials": "cells"}.get(key, key): value for key, value in found.items()}
        renamed["schema"] = found["schema"].replace("trial", "cell")
        path.write_text(json.dumps(renamed))
    files[-1].unlink()
    resumed = run_sweep(plan, tmp_path, instant(run_ids), limit_s=1.0, resume=True)
    # The load of the machine is a condition, and another one when the last trial is run again.
    first, second = ([replace(one, file="", conditions={}) for one in some] for some in (before, resumed))
    assert second == first
    assert len(run_ids) == 4
    assert not (tmp_path / "trials").exists()
    assert {one.file for one in Store(tmp_path).finished()} == {
        f"cells/{each.trial_id}.json" for each in plan
    }

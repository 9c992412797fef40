"""The tables of a sweep: made from its trials, accepted by the verbs that read tables, honest about scores."""

import json
import re

import command_line
import polars as pl
import pytest

from equipoise.bench.launchers import JobOutcome, Launcher
from equipoise.bench.summary import NO_SCORE, run_row, write, write_sweep_tables
from equipoise.bench.sweep import planned, run_sweep
from equipoise.errors import DataError
from equipoise.runs.store import RUNS, STEPS, read_table, read_tables


def launch(job):
    """Perfect scaling but for 1 ms a step; one batch always fails."""
    if job.task.batch_samples == 64:
        return JobOutcome(reason="rank 1 was killed by SIGKILL")
    step_s = 0.001 + 0.008 / job.task.num_ranks * (1 + job.task.repetition / 1000)
    split = {"input": 0.0, "forward": step_s, "step": step_s}
    energy = {"energy_j": 3.0, "meter": "rapl", "reason": None}
    return JobOutcome(result={"steps": [split] * 4, "steady": True, "energy": energy})


@pytest.fixture
def sweep(tmp_path):
    folder = tmp_path / "my-sweep"
    trials = planned(
        workloads=["mlp"], methods=["ddp", "fp16"], sizes=[1, 2, 4], batches=[32, 64], num_repetitions=2
    )
    instant = Launcher(name="instant", why_not=lambda: None, launch=launch, binds_here=False)
    run_sweep(trials, folder, instant, limit_s=1.0)
    write_sweep_tables(folder)
    return folder


def equipoise(*arguments):
    ended = command_line.in_process(*arguments)
    return ended.returncode, ended.stdout, ended.stderr


def test_every_run_has_a_row_and_its_steps(sweep):
    tables = read_tables(sweep)
    assert tables.runs.height == 20
    assert set(tables.runs["origin"]) == {"measured"}
    assert set(tables.runs["campaign"]) == {"my-sweep"}
    assert [name for name in tables.runs["source_uri"] if not (sweep / name).exists()] == []
    assert tables.runs.filter(pl.col("num_accelerators") == 1)["strategy"].null_count() == 4
    failed = tables.runs.filter(pl.col("global_batch_samples") == 64)
    (status,) = set(failed["status"])
    assert re.match("failed: rank 1 .*SIGKILL", status)
    two = tables.runs.filter(
        (pl.col("num_accelerators") == 2) & (pl.col("status") == "success") & (pl.col("strategy") == "ddp")
    )
    assert sorted(two["samples_per_s"]) == pytest.approx([32 / 0.005008, 32 / 0.005004])
    assert set(two["energy_j"]) == {3.0}
    steps = read_table(sweep / "steps.parquet", STEPS)
    assert steps.height == 10 * 4 * 3
    assert set(steps["run_id"]) == set(tables.runs.filter(pl.col("status") == "success")["run_id"])


def test_configurations_are_entries_without_a_score_and_say_why(sweep):
    scores = read_tables(sweep).scores
    assert scores.height == 10
    assert scores["score_s"].null_count() == 10
    assert set(scores["reason"]) == {NO_SCORE}
    assert sorted(scores["num_failed"]) == [0] * 5 + [2] * 5


@pytest.mark.parametrize(
    "other", [{"num_nodes": 2}, {"accelerator": "a100-sxm4-80gb"}, {"sequence_tokens": 128.0}]
)
def test_runs_that_differ_in_any_part_of_the_configuration_are_entries(tmp_path, other):
    same = {"campaign": "mine", "system": "host", "workload": "mlp", "accelerator": "h100-sxm5-80gb"}
    same |= {"num_nodes": 1, "num_accelerators": 2, "global_batch_samples": 64, "source_uri": "x"}
    runs = [run_row({"run_id": "1", **same}), run_row({"run_id": "2", **same, **other})]
    write(tmp_path, runs, [])
    assert read_tables(tmp_path).scores.height == 2


def test_making_them_again_changes_nothing(sweep):
    before = {path.name: path.read_bytes() for path in sweep.glob("*.parquet")}
    write_sweep_tables(sweep)
    assert {path.name: path.read_bytes() for path in sweep.glob("*.parquet")} == before
    assert len(before) == 3
    assert not list(sweep.glob(".*.part"))


def test_verbs_take_a_sweep_as_data_and_as_a_users_times(sweep):
    code, out, _ = equipoise("export", "runs", "--data", sweep)
    assert (code, len(out.splitlines())) == (0, 21)
    code, out, _ = equipoise("export", "steps", "--data", sweep)
    assert (code, len(out.splitlines())) == (0, 121)
    code, out, _ = equipoise("scores", "--also", sweep, "--round", "my-sweep", "--json")
    assert (code, len(json.loads(out)["entries"])) == (0, 10)
    code, _, err = equipoise("predict", "--from", sweep / "runs.parquet")
    assert code == 2
    assert re.search("column strategy .*'ddp'.*'fp16'.*--strategy", err)
    stated = ("--strategy", "ddp", "--global-batch", "32")
    arguments = ("--from", sweep / "runs.parquet", *stated, "--law", "amdahl", "--at", "8")
    code, out, err = equipoise("predict", *arguments, "--json")
    assert code == 0, err
    # 1 ms + 8 ms / 8 for 32 samples, told for the reader's million of them.
    (eight,) = json.loads(out)["predictions"]
    assert eight["time_s"]["value"] == pytest.approx(0.002 * 1e6 / 32, rel=0.01)


def test_facts_that_no_column_takes_are_refused(tmp_path):
    row = run_row({"run_id": "a", "campaign": "c", "num_accelerators": 1, "status": "success"})
    assert set(row) == set(RUNS.names)
    with pytest.raises(DataError, match=r"table runs: .*column speed"):
        write(tmp_path, [{**row, "speed": 1.0}], [])
    with pytest.raises(DataError, match=r"2 rows .*'a'"):
        write(tmp_path, [row, row], [])

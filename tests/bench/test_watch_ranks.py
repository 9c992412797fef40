"""Watched loops on two real ranks over gloo: one's own, Lightning's and the Trainer's."""

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import prepared_python

pytest.importorskip("torch")

import equipoise
from equipoise.bench.phases import EXPOSED, FORWARD, INPUT, OVERLAPPED, PARTS, STEP, TOTAL
from equipoise.bench.watching import rank_record

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores of their own"
)

LOOPS = Path(__file__).with_name("watched.py")
TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--nproc-per-node=2",
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=127.0.0.1:0",
    "--local-addr=127.0.0.1",
)
SLEPT_S = 0.02


def needs(*packages):
    missing = [name for name in packages if not find_spec(name)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def ran(scenario, folder, *, started_by=TORCHRUN):
    python = prepared_python()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "SLURM_"))
    }
    return subprocess.run(
        [python, *started_by, str(LOOPS), scenario, str(folder)],
        env=environment | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHON_EXEC": python},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def seen(folder):
    """The run's row and its steps, one a row."""
    tables = equipoise.watched(folder)
    (run,) = tables.runs.rows(named=True)
    return run, tables.steps.pivot("phase", index="repetition", values="seconds")


def assert_no_evaluation_is_in_a_step(folder, rank, *, passes_per_step):
    """A step lies between the first pass of the one before it and that of the one after it.

    Of that time on the rank's own clock, evaluation is none of the step's, however busy the machine is.
    """
    own = json.loads((folder / f"own-{rank}.json").read_text())
    began_s = own["began_s"][::passes_per_step]
    (path,) = folder.glob(f"watched/*/rank-{rank}.jsonl")
    seconds = {step.step: step.seconds[STEP] for step in rank_record(path).steps}
    inner = [number for number in seconds if 2 <= number < len(began_s)]
    assert len(inner) >= 10
    for number in inner:
        evaluated_s = sum(
            each_s
            for num_passes, each_s in own["evaluated_s"]
            if number - 1 <= num_passes / passes_per_step <= number
        )
        assert seconds[number] <= began_s[number] - began_s[number - 2] - evaluated_s, number


@pytest.mark.parametrize(
    ("scenario", "started_by", "slow_phase"),
    [
        pytest.param("plain", TORCHRUN, INPUT, id="own loop"),
        pytest.param("lightning", (), FORWARD, id="lightning", marks=needs("lightning")),
        pytest.param("trainer", TORCHRUN, FORWARD, id="trainer", marks=needs("transformers", "accelerate")),
    ],
)
def test_two_ranks_give_the_phases_of_the_sweep(tmp_path, scenario, started_by, slow_phase):
    ended = ran(scenario, tmp_path, started_by=started_by)
    assert not ended.returncode, ended.stderr
    run, steps = seen(tmp_path)
    assert run["status"] == "success"
    assert (run["num_accelerators"], run["num_nodes"], run["precision"]) == (2, 1, "fp32")
    assert run["strategy"] == ("accumulate:2" if scenario == "trainer" else "ddp")
    assert run["global_batch_samples"] == 16
    assert len(steps) > 0  # how many are warm-up is the machine's
    assert steps[slow_phase].min() >= SLEPT_S
    assert steps[EXPOSED].min() > 0
    assert (steps.select(PARTS).sum_horizontal() - steps[STEP]).abs().max() < 1e-9
    assert (steps[TOTAL] - steps[EXPOSED] - steps[OVERLAPPED]).abs().max() < 1e-9
    for rank in range(2):
        assert_no_evaluation_is_in_a_step(tmp_path, rank, passes_per_step=2 if scenario == "trainer" else 1)
    assert "on 2 ranks" in (tmp_path / "summary-0").read_text()
    assert "rank 1" in (tmp_path / "summary-1").read_text()


def test_a_rank_that_dies_hangs_nobody_and_loses_nothing_of_the_others(tmp_path):
    ended = ran("dying", tmp_path)
    assert ended.returncode
    run, steps = seen(tmp_path)
    assert run["status"].startswith("failed: rank ")
    assert len(steps) > 0
    by_rank = {path.name: path.read_text() for path in tmp_path.glob("watched/*/rank-*.jsonl")}
    assert sorted(by_rank) == ["rank-0.jsonl", "rank-1.jsonl"]
    assert "end" not in json.loads(by_rank["rank-1.jsonl"].splitlines()[-1])

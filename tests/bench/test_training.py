"""Training for real: the loss falls, equal seeds give equal curves, and looking at the loss changes nothing."""

import math
from itertools import pairwise

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'equipoise[torch]'")

from equipoise.bench.equipment import launcher
from equipoise.bench.sweep import run_sweep
from equipoise.bench.trial import Trial
from equipoise.bench.trial_rank import NUM_POINTS, evaluated_after

DIGITS = 1437  # those that are trained on


def trial(method="localsgd:4", num_ranks=2, **others):
    return Trial(
        **{
            "workload": "mlp",
            "method": method,
            "num_ranks": num_ranks,
            "batch_samples": 64,
            "train_samples": 5 * DIGITS,
            **others,
        }
    )


def curves(folder, *trials):
    """The curve of each trial, trained by processes of their own."""
    finished = run_sweep(trials, folder, launcher("inprocess"), limit_s=120)
    assert {one.reason for one in finished} == {None}
    return {one.trial: one.result["curve"] for one in finished}


def losses(curve):
    return [(point["samples"], point["loss"], point["accuracy"]) for point in curve]


pytestmark = pytest.mark.usefixtures("prepared_ranks")


@pytest.mark.parametrize("method", ["accumulate:2", "localsgd:4", "fsdp"])
def test_held_out_loss_falls_and_time_goes_on(tmp_path, method):
    (curve,) = curves(tmp_path, trial(method)).values()
    # Ten classes: guessing costs ln 10 and is right for a tenth.
    assert curve[0]["samples"] == curve[0]["seconds"] == 0
    assert curve[0]["loss"] == pytest.approx(math.log(10), rel=0.1)
    assert curve[-1]["loss"] < 1.0
    assert curve[-1]["accuracy"] > 0.7
    assert curve[-1]["samples"] == 5 * DIGITS // 64 * 64
    assert all(one["seconds"] < other["seconds"] for one, other in pairwise(curve))


@pytest.mark.usefixtures("one_core")
def test_equal_seeds_give_equal_curves_and_others_do_not(tmp_path):
    short = {"num_ranks": 1, "train_samples": DIGITS}
    found = curves(
        tmp_path, *(trial("single", **short, **each) for each in ({}, {"repetition": 2}, {"seed": 1}))
    )
    one, same, other = (losses(curve) for curve in found.values())
    assert sum(a == b for a, b in ((one, same), (one, other), (same, other))) == 1


@pytest.mark.usefixtures("one_core")
def test_what_holds_nothing_out_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(
        "import torch\ndef model():\n    return torch.nn.Linear(4, 2), torch.ones(64, 4), torch.sum\n"
    )
    short = trial("single", num_ranks=1, workload="models:model", train_samples=64)
    (one,) = run_sweep([short], tmp_path / "out", launcher("inprocess"), limit_s=120)
    assert one.status == "failed"
    assert "no held-out data" in one.reason


def test_losses_are_taken_at_ends_of_cycles_and_at_the_end():
    for num_runs in (1, 7, 64, 1000):
        for period in (1, 8, 200):
            points = evaluated_after(num_runs, period)
            assert points[-1] == num_runs
            assert {each % period for each in points[:-1]} <= {0}
            assert len(points) <= NUM_POINTS + 1
            assert list(points) == sorted(set(points))

"""What ships with the package is of this dataset, loads, and is the record it says it is."""

import pytest

from equipoise.advice.forecast.record import _bins, shipped
from equipoise.runs import embedded
from equipoise.scaling.backtest import HeldOut
from equipoise.scaling.pooled import fit


def held_out(jump, predicted_s, *, low_s=90.0, high_s=110.0):
    """One result that took 100 s."""
    return HeldOut(
        round="v4.1",
        workload="bert",
        accelerator="h100-sxm5-80gb",
        num_accelerators=64,
        jump=jump,
        actual_s=100.0,
        predicted_s=predicted_s,
        low_s=low_s,
        high_s=high_s,
        actual_samples=None,
        predicted_samples=None,
        perfect_s=50.0,
        power_law_s=None,
    )


def test_bins_by_hand():
    results = [
        held_out(1.5, 101.0),
        held_out(2.0, 97.0),
        held_out(2.0, 110.0, low_s=105.0),
        held_out(16.0, 50.0),
    ]
    near, far = _bins(results, "largest", given_batch=False)
    assert (near.above, near.most, near.num_held_out) == (0.0, 2.0, 3)
    assert near.median_abs_error == pytest.approx(0.03)
    assert near.coverage == pytest.approx(2 / 3)
    assert (far.above, far.most, far.num_held_out) == (4.0, None, 1)
    assert far.median_abs_error == pytest.approx(0.5)


def test_what_ships_is_of_the_embedded_dataset():
    assert shipped().dataset == embedded.version(), "make dataset rewrites both"


@pytest.mark.parametrize("given_batch", [False, True])
def test_settings_that_ship_are_those_of_the_law(given_batch):
    nothing = embedded.load().scores.head(0)
    law = fit(nothing, given_batch=given_batch, settings=shipped().settings(given_batch=given_batch))
    assert law.settings() == {
        part: list(each) for part, each in shipped().settings(given_batch=given_batch).items()
    }


@pytest.mark.parametrize(
    ("protocol", "given_batch"), [("largest", False), ("largest", True), ("new_round", False)]
)
def test_bins_hold_every_result_of_the_summary(protocol, given_batch):
    found = shipped()
    summary = found.summary(protocol, given_batch=given_batch)
    bins = [each for each in found.bins if (each.protocol, each.given_batch) == (protocol, given_batch)]
    assert sum(each.num_held_out for each in bins) == summary.ours.num_groups
    held = sum(each.coverage * each.num_held_out for each in bins) / summary.ours.num_groups
    assert held == pytest.approx(summary.ours.coverage, abs=1e-4)
    assert "perfect" in summary.baselines


def test_each_jump_has_the_record_of_its_bin():
    records = [shipped().record("largest", jump=jump, given_batch=False) for jump in (0.5, 2.0, 4.0, 64.0)]
    assert [record.of.rpartition(", ")[2] for record in records] == [
        "up to 2 times the largest known",
        "up to 2 times the largest known",
        "up to 4 times the largest known",
        "more than 4 times the largest known",
    ]
    assert shipped().record("new_round", jump=2.0, given_batch=True) is None

"""What ships with the package is of this dataset, loads, and is that record."""

import re

import pytest

from equipoise.calibration.forecast_record import shipped
from equipoise.runs import embedded
from equipoise.scaling.pooled import fit


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
def test_jumps_hold_every_result_of_the_summary(protocol, given_batch):
    summary = shipped().summary(protocol, given_batch=given_batch)
    by_jump = summary.pooled_law.by_jump
    near, far = by_jump["up to 4x"], by_jump["beyond 4x"]
    assert near.num_groups + far.num_groups == summary.pooled_law.num_groups
    held = sum(each.coverage * each.num_groups for each in (near, far)) / summary.pooled_law.num_groups
    assert held == pytest.approx(summary.pooled_law.coverage, abs=1e-4)
    assert "perfect" in summary.baselines


def test_each_jump_has_the_record_of_its_bin():
    records = [shipped().record("largest", jump=jump, given_batch=False) for jump in (0.5, 2.0, 4.0, 64.0)]
    assert [re.search(r"(up to|more than) (\d) times", record.of).groups() for record in records] == [
        ("up to", "2"),
        ("up to", "2"),
        ("up to", "4"),
        ("more than", "4"),
    ]
    assert shipped().record("new_round", jump=2.0, given_batch=True) is None

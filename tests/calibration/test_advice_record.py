"""Errors of advised numbers by hand, and what ships of them."""

import re

import pytest

from equipoise.calibration.advice_backtest import HeldOutAdvice, Loss, advice_errors
from equipoise.calibration.curves import COMBINED, OURS, shipped_advice
from equipoise.runs import embedded
from equipoise.scaling.equilibrium import Equilibrium


def point(num_accelerators, *, limited_by=None, low=None, high=None):
    return Equilibrium(
        kind="balance",
        title="the balance point",
        num_accelerators=num_accelerators,
        low=low,
        high=high,
        level=0.9,
        limited_by=limited_by,
        time_s=1.0,
        efficiency=0.5,
        next_step=None,
    )


def result(advised, found, *, curve=0.0, measured=0.0, largest_known=128):
    return HeldOutAdvice(
        round="v1.0",
        workload="bert",
        accelerator="h100-sxm5-80gb",
        held_out="largest",
        objective="balance",
        largest_known=largest_known,
        largest=512,
        advised=advised,
        found=found,
        losses={OURS: Loss(num_accelerators=advised.num_accelerators, curve=curve, measured=measured)},
    )


def test_censored_groups_are_counted_apart():
    beyond = point(512, limited_by="data")
    results = [
        result(point(64, low=32, high=128), point(128), curve=0.02, measured=0.1),  # one doubling: within
        result(
            point(64, low=32, high=80), point(256), curve=0.06, measured=0.3
        ),  # two, and outside its interval
        result(beyond, beyond),
        result(beyond, point(64), measured=0.4, largest_known=64),
        result(point(64, low=16), beyond),
        result(point(64, low=16, high=256), beyond),
    ]
    whole, near, far = advice_errors(results)
    assert (whole.jump, whole.num_groups, whole.num_compared) == ("all", 6, 2)
    assert (whole.num_both_beyond, whole.num_advised_beyond, whole.num_found_beyond) == (1, 1, 2)
    ours = whole.methods[OURS]
    assert ours.within_doubling == 0.5
    assert ours.median_doublings == pytest.approx(1.5)
    assert ours.median_regret == pytest.approx(0.04)
    assert ours.mean_measured_regret == pytest.approx(0.8 / 6)
    assert whole.coverage == pytest.approx(4 / 6)
    assert (near.num_groups, far.num_groups, far.num_compared) == (5, 1, 0)
    assert far.methods[OURS].within_doubling is None


def test_what_ships_is_of_the_embedded_dataset():
    assert shipped_advice().dataset == embedded.version(), "make dataset rewrites both"


def test_balance_is_advised_within_a_doubling_as_promised():
    whole = next(
        each
        for each in shipped_advice().errors
        if (each.objective, each.held_out, each.jump) == ("balance", "largest", "all")
    )
    assert whole.methods[OURS].within_doubling >= 0.9
    assert whole.methods[OURS].median_regret <= 0.05
    assert whole.num_groups == 177


def test_the_record_shown_is_of_the_jump_in_question():
    near, far = (shipped_advice().record("balance", jump=jump) for jump in (1.0, 16.0))
    assert re.search(r"largest size .*, up to 4x", near.of)
    assert re.search(r"larger half .*, beyond 4x", far.of)
    assert 0 < near.num_compared <= near.num_groups


def test_the_joint_number_is_within_a_doubling_as_promised():
    shipped = shipped_advice(COMBINED)
    assert shipped.dataset == embedded.version(), "make profiles rewrites it"
    whole = next(
        each
        for each in shipped.errors
        if (each.objective, each.held_out, each.jump) == ("balance", "largest", "all")
    )
    assert whole.methods[OURS].within_doubling >= 0.9
    assert whole.methods[OURS].median_regret <= 0.05
    assert shipped.record("cost") is None

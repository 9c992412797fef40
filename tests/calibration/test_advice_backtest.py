"""Amdahl's law with 1 s serial and 64 s parallel work: N T^2 = (N + 64)^2 / N is least at N = 64, the balance."""

import pytest

from equipoise.calibration.advice_backtest import LARGEST_KNOWN, held_out_advice
from equipoise.calibration.curves import OURS
from equipoise.errors import EvidenceError
from equipoise.spec.mlperf import ScoredEntry

SIZES = (8, 16, 32, 64, 128, 256, 512)
AMDAHL = {size: 1.0 + 64.0 / size for size in SIZES}


def rows(campaign, times_s):
    return [
        ScoredEntry(
            entry_id=f"{campaign}/x/bert-{size}/bert",
            campaign=campaign,
            workload="bert",
            accelerator="h100-sxm5-80gb",
            num_accelerators=size,
            score_s=time_s,
        )
        for size, time_s in times_s.items()
    ]


def advised(entries, objective, held_out="largest", **options):
    results = held_out_advice(entries, **options)
    return next(one for one in results if (one.objective, one.held_out) == (objective, held_out))


@pytest.fixture(scope="module")
def by_amdahl():
    # The same curve a round before shows its bend; alone, six sizes show little of the seventh.
    both = (*rows("v1.0", AMDAHL), *rows("v1.1", {size: 0.9 * AMDAHL[size] for size in SIZES}))
    results = held_out_advice(both, rounds=["v1.1"])
    return {(one.objective, one.held_out): one for one in results}


def test_balance_of_a_known_law_is_found_and_advised(by_amdahl):
    for held_out, largest_known in (("largest", 256), ("half", 64)):
        one = by_amdahl["balance", held_out]
        assert (one.largest_known, one.largest) == (largest_known, 512)
        assert one.is_compared
        assert one.is_covered
        assert 32 <= one.found.num_accelerators <= 128
        assert one.num_doublings() <= 1.0


def test_losses_by_hand(by_amdahl):
    # 1 / (N T^2), but for a constant: 1/256 at 64, 1/400 at 256, 1/648 at 512, where perfect scaling stops.
    losses = by_amdahl["balance", "largest"].losses
    assert losses[LARGEST_KNOWN].num_accelerators == 256
    assert losses[LARGEST_KNOWN].measured == pytest.approx(1 - 256 / 400)
    assert losses["perfect"].num_accelerators == 512
    assert losses["perfect"].measured == pytest.approx(1 - 256 / 648)
    assert losses[OURS].curve < losses["perfect"].curve


def test_cost_meets_a_deadline_beyond_the_known_sizes(by_amdahl):
    # Known to 64, 2 s: three quarters of that take 128. Perfect scaling promises them at 64 / 0.75 = 85.
    one = by_amdahl["cost", "half"]
    assert 64 < one.found.num_accelerators < 256
    assert one.losses["perfect"].num_accelerators == 85
    assert one.losses["perfect"].curve == pytest.approx((1 + 64 / 85) / 1.5 - 1, abs=0.06)
    assert one.losses["perfect"].measured is None


def test_nothing_held_out_and_nothing_later_enters_the_advice():
    slow = {**AMDAHL, 512: 4.0}
    later = dict.fromkeys(SIZES, 3.0)
    one = advised(rows("v1.0", AMDAHL), "balance")
    other = advised((*rows("v1.0", slow), *rows("v1.1", later)), "balance", rounds=["v1.0"])
    assert other.advised == one.advised
    assert other.found != one.found


def test_perfect_scaling_is_censored_and_not_compared():
    one = advised(rows("v1.0", {size: 512.0 / size for size in SIZES}), "balance")
    assert one.advised.limited_by == "data"
    assert one.found.limited_by == "data"
    assert not one.is_compared


def test_three_sizes_have_no_half_of_their_own():
    results = held_out_advice(rows("v1.0", {8: 9.0, 16: 5.0, 32: 3.0}))
    assert {one.held_out for one in results} == {"largest"}


def test_too_few_sizes_are_not_enough_evidence():
    with pytest.raises(EvidenceError) as caught:
        held_out_advice(rows("v1.0", {8: 9.0, 16: 5.0}))
    assert "3 sizes" in caught.value.missing[0]

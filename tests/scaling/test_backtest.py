import numpy as np
import pytest

from equipoise.errors import EvidenceError
from equipoise.scaling.backtest import backtest
from equipoise.spec.mlperf import ScoredEntry, best_per_size


def _rows(campaign, workload, times_s, samples=None):
    return [
        ScoredEntry(
            entry_id=f"{campaign}/x/{workload}-{size}/{workload}",
            campaign=campaign,
            workload=workload,
            accelerator="h100-sxm5-80gb",
            num_accelerators=size,
            score_s=time_s,
            samples_to_target=samples,
        )
        for size, time_s in times_s.items()
    ]


def _best(*groups):
    return best_per_size(each for entries in groups for each in entries)


def test_baselines_by_hand():
    # Perfect scaling from 16 to 64: 60 / 4 = 15 s. The power law through (8, 100), (16, 60) has T = 100 (N/8)^b with
    # b = log2(0.6): at 64, three doublings, 100 * 0.6^3 = 21.6 s.
    result = backtest(_best(_rows("v1.0", "bert", {8: 100.0, 16: 60.0, 64: 20.0})))
    (held_out,) = result.groups
    assert held_out.jump == 4.0
    assert held_out.perfect_s == pytest.approx(15.0)
    assert held_out.power_law_s == pytest.approx(21.6)
    assert result.baselines["perfect"].median_abs_error == pytest.approx(0.25)
    assert result.baselines["power_law"].median_abs_error == pytest.approx(0.08)
    assert result.pooled_law.by_jump["2x to 4x"].num_groups == 1
    assert result.pooled_law.by_jump["up to 2x"].median_abs_error is None
    assert result.pooled_law.by_jump["2x to 4x"].coverage == float(held_out.low_s <= 20.0 <= held_out.high_s)
    assert result.pooled_law.by_jump["up to 2x"].coverage is None
    assert result.baselines["perfect"].by_jump["2x to 4x"].coverage is None


def test_groups_of_two_sizes_are_only_in_a_new_round():
    best = _best(
        _rows("v1.0", "bert", {8: 100.0, 16: 60.0}), _rows("v1.1", "rnnt", {8: 50.0, 16: 30.0, 32: 20.0})
    )
    assert [(one.workload, one.num_accelerators) for one in backtest(best).groups] == [("rnnt", 32)]
    new = backtest(best, protocol="new_round")
    assert [(one.workload, one.num_accelerators) for one in new.groups] == [
        ("bert", 16),
        ("rnnt", 16),
        ("rnnt", 32),
    ]
    assert new.groups[2].jump == 4.0
    assert "power_law" not in new.baselines


def test_rounds_chosen_are_predicted_as_in_the_whole():
    best = _best(
        _rows("v1.0", "bert", {8: 100.0, 16: 60.0, 64: 20.0}, 1e6),
        _rows("v1.1", "bert", {8: 90.0, 16: 50.0, 64: 16.0}, 1e6),
    )
    whole = backtest(best)
    assert backtest(best, rounds=["v1.1"]).groups[0].predicted_s == pytest.approx(
        whole.groups[1].predicted_s, rel=1e-2
    )
    assert set(whole.pooled_law.by_round) == {"v1.0", "v1.1"}


def test_nothing_to_hold_out_is_not_enough_evidence():
    with pytest.raises(EvidenceError) as caught:
        backtest(_best(_rows("v1.0", "bert", {8: 100.0, 16: 60.0})))
    assert "3 sizes" in caught.value.missing[0]


def test_the_interval_holds_for_nine_of_ten_synthetic_curves():
    # Amdahl curves of three workloads and 5 % noise: outside of the law's own family.
    rng = np.random.default_rng(3)
    groups = []
    for campaign in ("v1.0", "v1.1", "v2.0", "v2.1", "v3.0", "v3.1"):
        for number, workload in enumerate(("bert", "rnnt", "ssd_r34")):
            parallel_s, serial_s = 1e5 * rng.uniform(0.8, 1.2), 200.0 * (1 + number)
            times = {
                n: (serial_s + parallel_s / n) * float(np.exp(0.05 * rng.standard_normal()))
                for n in (8, 16, 32, 64, 128)
            }
            groups.append(_rows(campaign, workload, times))
    result = backtest(_best(*groups))
    assert result.pooled_law.num_groups == 18
    assert result.pooled_law.coverage >= 13 / 18  # P(fewer than 13 of 18 at 90 %) = 0.006
    assert result.pooled_law.median_abs_error < result.baselines["perfect"].median_abs_error

"""Rates of failure against the arithmetic of their sources."""

import pytest

from equipoise.economics.failures import clusters, hazards
from equipoise.errors import UsageError
from equipoise.perfmodel.goodput import TYPICAL_FAILURES


def test_llama_3_had_one_interruption_in_fifty_thousand_accelerator_hours():
    # 16,384 x 54 d x 24 h / 419.
    llama = next(each for each in clusters() if each.name.startswith("Llama 3"))
    assert llama.hours_between == pytest.approx(50_677, abs=1)
    assert llama.hours_between * 3600 == pytest.approx(float(TYPICAL_FAILURES.mean_time_between_s), rel=0.02)


def test_every_cluster_lies_within_the_interval():
    usual = hazards().hours_between
    held = [usual.low <= each.hours_between <= usual.high for each in clusters()]
    assert sum(held) >= len(held) - 1
    assert all(
        each.source.startswith(("http", "Llama", "Zhang", "Le Scao", "Kokolis")) for each in clusters()
    )


def test_the_usual_time_between_failures_is_the_geometric_mean():
    # 50,677, 13,605, 43,008, 29,538, 82,051 and 66,528 hours.
    assert hazards().hours_between.value == pytest.approx(41_044, rel=1e-3)


def test_own_rates_are_exact():
    found = hazards(hours_between=1000.0, preemptions_per_node_hour=0.01)
    assert (found.hours_between.low, found.hours_between.high) == (1000.0, 1000.0)
    assert found.preemptions_per_node_hour.value == 0.01


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(UsageError, match="--mtbf"):
        hazards(hours_between=rate)

"""Rates of failure against the arithmetic of their sources."""

import math

import pytest

from equipoise.economics.interruptions import clusters, hazards, spot_traces


def test_llama_3_had_one_interruption_in_fifty_thousand_accelerator_hours():
    # 16,384 x 54 d x 24 h / 419.
    llama = next(each for each in clusters() if each.name.startswith("Llama 3"))
    assert llama.hours_between == pytest.approx(50_677, abs=1)


def test_every_cluster_lies_within_the_interval():
    usual = hazards().hours_between
    found = clusters()
    assert found
    held = [usual.low <= each.hours_between <= usual.high for each in found]
    assert sum(held) >= len(held) - 1
    assert all(each.source.startswith(("http", "Llama", "Zhang", "Le Scao", "Kokolis")) for each in found)


def test_the_usual_time_between_failures_is_the_geometric_mean():
    # 50,677, 13,605, 43,008, 29,538, 82,051 and 66,528 hours.
    assert hazards().hours_between.value == pytest.approx(41_044, rel=1e-3)


def test_the_interval_is_of_a_further_cluster_after_six():
    # Student's t of 5 degrees of freedom at 0.95: 2.015, and sqrt(1 + 1 / 6), times the deviation of logarithms.
    logs = [math.log(each) for each in (50_677, 13_605, 43_008, 29_538, 82_051, 66_528)]
    mean = sum(logs) / 6
    deviation = math.sqrt(sum((each - mean) ** 2 for each in logs) / 5)
    half = 2.015 * math.sqrt(7 / 6) * deviation
    usual = hazards().hours_between
    assert (usual.low, usual.high) == pytest.approx((math.exp(mean - half), math.exp(mean + half)), rel=1e-3)


def test_spot_rates_by_hand():
    # Shares 0.25, 0.42, 0.53, 0.10: geometric mean 0.273. Waves: 24 in 11.4 h, 18 in 18.5, 9 in 5.5 (with 5.7
    # nodes: / 0.838), 3 in 19; of one node 1 in 24 h and 0.192 in 730.5, each / 0.273.
    share, waves = hazards().wave_share, hazards().waves_per_hour
    assert (share.low, share.high) == (0.10, 0.53)
    assert share.value == pytest.approx(0.273, abs=5e-4)
    assert waves.high == pytest.approx(24 / 11.4, rel=2e-3)
    assert waves.low == pytest.approx(0.192 / 730.5 / 0.273, rel=2e-3)
    rates = (2.106, 0.973 / 0.968, 1.636 / 0.838, 0.158 / 0.959, 0.0417 / 0.273, waves.low)
    assert waves.value == pytest.approx(math.exp(sum(map(math.log, rates)) / 6), rel=5e-3)


def test_every_spot_rate_has_a_source():
    assert len(spot_traces()) >= 6
    assert all("http" in each.source and each.waves_per_hour > 0.0 for each in spot_traces())

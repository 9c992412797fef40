"""What a system offers where it has too few sizes for a curve: the size reached by steps that each pay."""

import pytest

from equipoise.decide.select import Figures, Rule, choose, up_to_balance


def figures(num_accelerators, time_s, *, usd=None, system="host"):
    return Figures(
        id=f"{num_accelerators} x {system}",
        group=(system, "on_demand"),
        num_accelerators=num_accelerators,
        time_s=time_s,
        usd=usd,
        energy_j=None,
        is_within_size=True,
    )


# By hand: a step to k times the accelerators pays from 1 + (k - 1) / 2 times the speed on.
@pytest.mark.parametrize(
    ("times_s", "taken"),
    [
        ({1: 8.4, 2: 5.1}, 2),  # 1.65 of 1.5
        ({1: 10.0, 2: 7.0}, 1),  # 1.43 of 1.5
        ({1: 10.0, 2: 7.0, 4: 3.9}, 4),  # 2.56 of 2.5, from one straight to four
        ({2: 10.0, 3: 7.9}, 3),  # 1.27 of 1.25
        ({4: 10.0}, 4),
    ],
)
def test_a_measured_step_that_pays_is_taken(times_s, taken):
    members = [figures(size, time_s) for size, time_s in times_s.items()]
    (offered,) = up_to_balance(members, {}).values()
    assert offered[-1].num_accelerators == taken


def test_an_offer_that_a_larger_size_of_another_system_beats_is_not_taken():
    """Money times time of 16 x a (1,872) is less than of 8 x b (1,944), but 16 x b is faster for less."""
    amounts = {
        ("a", 8): (240, 7.9),
        ("a", 16): (240 * 0.975, 8.0),
        ("b", 8): (270, 7.2),
        ("b", 16): (140, 7.3),
    }
    found = [
        figures(size, float(time_s), usd=usd, system=system)
        for (system, size), (time_s, usd) in amounts.items()
    ]
    taken = choose(found, Rule(objective="balance"), {("a", "on_demand"): 16, ("b", "on_demand"): 8})
    assert taken == "8 x b"


@pytest.mark.parametrize("usd_per_hour", [1.0, None])
def test_a_size_that_a_smaller_one_of_its_system_beats_is_not_offered(usd_per_hour):
    """Between 32 and 64 a deadline has 48 tried, which a batch of 96 shares out evenly: faster for less."""
    hours = {32: 70.3, 48: 42.1, 64: 45.4}
    found = [
        figures(size, 3600 * each, usd=None if usd_per_hour is None else usd_per_hour * size * each)
        for size, each in hours.items()
    ]
    rule = Rule(objective="balance", deadline_s=60 * 3600.0)
    assert choose(found, rule, {("host", "on_demand"): 64}) == "48 x host"


def test_a_size_beyond_the_balance_is_taken_for_being_faster_and_no_dearer():
    found = [
        figures(size, time_s, usd=usd)
        for size, time_s, usd in ((64, 200.0, 10.0), (128, 120.0, 12.0), (256, 59.0, 11.8), (512, 50.0, 20.0))
    ]
    assert choose(found, Rule(objective="balance"), {("host", "on_demand"): 128}) == "256 x host"

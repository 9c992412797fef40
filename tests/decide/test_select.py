"""What a system offers where it has too few sizes for a curve: the size reached by steps that each pay."""

import pytest

from equipoise.decide.select import Figures, up_to_balance


def figures(num_accelerators, time_s):
    return Figures(
        id=str(num_accelerators),
        group=("host", "on_demand"),
        num_accelerators=num_accelerators,
        time_s=time_s,
        usd=None,
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

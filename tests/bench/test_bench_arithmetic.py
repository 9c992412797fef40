"""Arithmetic of the harness: trials, steadiness, outliers, phases, conditions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.bench.environment import conditions, core_sets, refuse_unlike
from equipoise.bench.phases import EXPOSED, PARTS, STEP, TOTAL, parts, with_total
from equipoise.bench.summary import is_steady, outliers
from equipoise.bench.trial import Trial
from equipoise.errors import DataError, UsageError


def trial(**changes):
    return Trial(**{"workload": "mlp", "method": "ddp", "num_ranks": 2, "batch_samples": 8, **changes})


def test_trials_that_differ_in_any_field_have_names_that_differ():
    others = [
        {"seed": 1},
        {"num_steps": 3},
        {"method": "accumulate:4"},
        {"repetition": 2},
        {"workload": "a:b"},
    ]
    names = {trial().trial_id, *(trial(**change).trial_id for change in others)}
    assert len(names) == 1 + len(others)
    assert all(name.replace("-", "").isalnum() for name in names)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_samples": 7}, "7.* 2 ranks"),
        ({"num_steps": 0}, "at least 1"),
        ({"precision": "fp7"}, "fp32, tf32, bf16"),
    ],
)
def test_a_trial_that_cannot_run_says_why(changes, words):
    with pytest.raises(UsageError, match=words):
        trial(**changes)


def test_a_falling_series_is_not_steady_and_a_level_one_is():
    level = [1.0, 1.02, 0.99, 1.01, 1.0, 0.98, 1.01, 1.0, 0.99, 1.02, 1.0, 1.01]
    assert is_steady(level)
    assert not is_steady([2.0 - 0.05 * step for step in range(12)])
    assert not is_steady(level[:11])


def test_steps_that_jump_halfway_are_not_steady():
    assert not is_steady([1.0, 1.01] * 3 + [1.3, 1.31] * 3)


@pytest.mark.law
@given(st.lists(st.floats(0.001, 10.0), min_size=4, max_size=4), st.floats(0.0, 1.0))
def test_parts_sum_to_the_step(lengths, share):
    names = ("input", "forward", "backward", "optimizer")
    begun = [sum(lengths[:place]) for place in range(4)]
    ready = begun[2] + share * lengths[2]
    found = parts(list(zip(names, begun, strict=True)), sum(lengths), [ready])
    assert sum(found[name] for name in PARTS) == pytest.approx(found[STEP])
    assert found[EXPOSED] == pytest.approx((1 - share) * lengths[2], abs=1e-9)


def test_exposed_communication_is_unknown_where_no_gradient_was_seen():
    found = parts([("forward", 0.0), ("backward", 1.0), ("optimizer", 3.0)], 4.0, [])
    assert EXPOSED not in found
    assert found["backward"] == 2.0


def test_an_exchange_outside_backward_is_exposed():
    found = parts([("forward", 0.0), ("communication", 1.0), ("rest", 3.0)], 3.5, [])
    assert found[EXPOSED] == 2.0
    assert found["rest"] == 0.5


def test_communication_in_total_is_never_below_what_is_exposed():
    found = with_total({STEP: 2.0, EXPOSED: 0.5}, total_s=0.1, step_s=1.0)
    assert found[TOTAL] == 0.5
    found = with_total({STEP: 2.0, EXPOSED: 0.5}, total_s=0.4, step_s=1.0)
    assert (found[TOTAL], found["communication_overlapped"]) == (0.8, pytest.approx(0.3))


def test_outliers_are_marked_and_equal_values_are_none():
    # Median 10, MAD 1: the score of 20 is 6.7, that of 15 is 3.4, just below 3.5.
    assert outliers([9, 10, 11, 9, 11, 10, 10, 15, 20])[-2:] == (False, True)
    assert not any(outliers([5.0] * 9))


def test_unlike_conditions_are_refused_by_name():
    here = conditions(core_sets=((0,),), launcher="inprocess")
    refuse_unlike([here, {**here, "load_1min": 99.0}], "ddp")
    with pytest.raises(DataError, match=r"ddp: .* torch='1'"):
        refuse_unlike([{**here, "torch": "1"}, {**here, "torch": "2"}], "ddp")


def test_each_rank_has_cores_of_its_own_and_more_ranks_than_cores_are_refused(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2, 3, 7})
    assert core_sets(1, most_ranks=2) == ((0, 1),)
    assert core_sets(2, most_ranks=2) == ((0, 1), (2, 3))
    with pytest.raises(DataError, match="6 ranks on 5 cores"):
        core_sets(6, most_ranks=6)

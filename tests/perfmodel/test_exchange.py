"""Laws of exchanging beside a backward pass."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from equipoise.perfmodel.exchange import at_batch, low_rank_bytes, overlapped, slowest_of, sparse_bytes

SECONDS = some.floats(1e-6, 10.0)
SHARES = some.floats(0.0, 0.9)
MESSAGES = some.lists(
    some.tuples(some.floats(0.0, 1.0), SECONDS, SHARES, some.floats(1.0, 20.0)), min_size=1, max_size=6
)


def _overlapped(pass_s, messages, *, faster=1.0):
    ready, alone, share, slower = (np.array(each) for each in zip(*sorted(messages), strict=True))
    alone = alone / faster
    return overlapped(pass_s, ready, alone, core_share=share, beside_s=alone * slower)


@pytest.mark.law
@given(SECONDS, MESSAGES)
def test_no_pass_ends_before_it_is_computed_or_its_messages_are_sent(pass_s, messages):
    found = _overlapped(pass_s, messages)
    assert found.computed_s >= pass_s * (1 - 1e-9)
    assert found.ended_s >= found.computed_s
    assert found.ended_s >= sum(alone for _, alone, _, _ in messages) * (1 - 1e-9)


@pytest.mark.law
@given(SECONDS, MESSAGES, some.floats(1.0, 100.0))
def test_faster_messages_never_end_a_pass_later(pass_s, messages, faster):
    slow, fast = _overlapped(pass_s, messages), _overlapped(pass_s, messages, faster=faster)
    assert fast.ended_s <= slow.ended_s * (1 + 1e-9)


@pytest.mark.law
@given(SECONDS, MESSAGES)
def test_messages_of_no_time_leave_a_pass_as_it_is(pass_s, messages):
    assert _overlapped(pass_s, messages, faster=1e15).ended_s == pytest.approx(pass_s, rel=1e-6)


@pytest.mark.law
@given(SECONDS, SECONDS)
def test_one_bucket_is_hidden_by_nothing(pass_s, message_s):
    found = overlapped(pass_s, [1.0], [message_s], core_share=[0.7])
    assert found.exposed_s == pytest.approx(message_s)
    assert found.ended_s == pytest.approx(pass_s + message_s)


@pytest.mark.law
@given(SECONDS, some.floats(0.0, 0.5), SECONDS)
def test_work_that_messages_take_from_a_core_is_done_later(pass_s, share, message_s):
    # All of the message beside computing: what it takes of the core is added to the pass, no more.
    found = overlapped(pass_s + message_s, [0.0], [message_s], core_share=[share])
    assert found.ended_s == pytest.approx(pass_s + message_s + share * message_s)


def test_two_messages_by_hand():
    # Ready at 5 and 10 of 10; the first takes 4 beside computing at half speed, which is done at 12; the
    # second starts then, with nothing beside it, and takes 3.
    found = overlapped(10.0, [0.5, 1.0], [4.0, 3.0], core_share=[0.5, 0.5])
    assert (float(found.computed_s), float(found.ended_s)) == (12.0, 15.0)


def test_cases_broadcast():
    found = overlapped(np.array([1.0, 2.0, 4.0]), [1.0], np.array([[0.5], [0.5], [1.5]]))
    assert found.ended_s.tolist() == [1.5, 2.5, 5.5]


def test_factors_are_sent_where_they_are_less_than_half():
    # 100 x 50 of rank 2: 300 of 5,000 values. 4 x 4 of rank 2: 16 of 16 values, sent whole. A convolution of
    # 8 filters of 3 x 5 x 5 is a matrix of 8 x 75: 166 of 600.
    assert low_rank_bytes([(100, 50), (4, 4), (10,), (8, 3, 5, 5)], 2) == (
        26 * 4,
        (200 + 16) * 4,
        (100 + 150) * 4,
    )


def test_a_sparse_message_has_a_place_for_each_value():
    assert sparse_bytes(1_000_000, 0.001) == 1000 * 8
    assert sparse_bytes(5, 0.001) == 8


def test_the_slowest_of_two_is_a_higher_quantile_of_one():
    steps = np.linspace(1.0, 2.0, 1001)
    assert slowest_of(steps, 1) == pytest.approx(1.0)
    assert slowest_of(steps, 2) == pytest.approx((1 + 0.5**0.5) / 1.5, rel=1e-3)


def test_batches_between_those_measured_have_a_fixed_part():
    assert at_batch([8, 32, 64], [1.0, 2.0, 4.0], 48) == pytest.approx(3.0)

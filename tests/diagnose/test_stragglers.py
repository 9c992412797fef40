import numpy as np
import pytest

from equipoise.bench.trace import Collectives, RankTrace, Traces, TraceStep, read_traces
from equipoise.diagnose.stragglers import lateness, trace_steps
from equipoise.report.pages.trace import trace_fields
from equipoise.runs import Tally


def trace_of(rank, compute_s, waits_s, *, idle_s=0.0, group="allreduce [0, 1]", matched=True):
    """A rank that computes so long in each step, and then is so long in each of the step's collectives."""
    steps = []
    groups, positions, starts, seconds = [], [], [], []
    for at, (computing, waits) in enumerate(zip(compute_s, waits_s, strict=True)):
        steps.append(
            TraceStep(
                number=at,
                step_s=computing + idle_s + sum(waits),
                compute_s=computing,
                communication_s=sum(waits),
                exposed_s=sum(waits),
                idle_s=idle_s,
                copy_s=0.0,
            )
        )
        start_s = computing + idle_s
        for wait in waits if matched else waits[: rank + 1]:
            groups.append(group)
            positions.append(at)
            starts.append(start_s)
            seconds.append(wait)
            start_s += wait
    return RankTrace(
        where=f"rank{rank}.json",
        rank=rank,
        world_size=None,
        device=0,
        steps=tuple(steps),
        collectives=Collectives(
            group=tuple(groups),
            step=np.array(positions),
            start_s=np.array(starts),
            seconds=np.array(seconds),
        ),
    )


def machine(compute_s, *, num_collectives=2, transfer_s=0.001, seed=None, **options):
    """Traces of ranks that compute for compute_s: (n_ranks, n_steps), and meet in collectives that the last one starts."""
    rng = np.random.default_rng(seed)
    compute_s = np.asarray(compute_s, dtype=float)
    parts = compute_s[:, :, None] * rng.dirichlet([50.0] * num_collectives, compute_s.shape)
    waits = parts.max(axis=0) - parts + transfer_s
    return [
        trace_of(rank, compute_s[rank], [list(each) for each in waits[rank]], **options)
        for rank in range(compute_s.shape[0])
    ]


def late_ranks(ranks):
    return [each.trace.rank for each in lateness(ranks) if each.is_late]


def test_the_rank_that_others_wait_for_is_late_by_what_they_wait():
    own = np.full((8, 10), 0.100)
    own[3] += 0.020
    found = lateness(machine(own, num_collectives=1))
    assert [each.trace.rank for each in found if each.is_late] == [3]
    assert found[3].late_s == pytest.approx(0.020)
    assert (found[3].share_of_steps, found[3].cause, found[3].by) == (1.0, "computes", "collectives")
    assert [each.late_s for each in found if each.trace.rank != 3] == [0] * 7


def test_lateness_is_a_share_of_the_median_step():
    """Two steps of 101 ms and two of 301 ms: half of the steps are shorter than 201 ms."""
    slow = np.array([0.1, 0.1, 0.3, 0.3])
    traces = Traces(ranks=tuple(machine([slow - 0.02, slow], num_collectives=1)), rejected=Tally())
    (straggler,) = trace_fields(trace_steps(traces))["stragglers"]
    assert straggler["late_s"] == pytest.approx(0.02)
    assert straggler["late_fraction"] == pytest.approx(0.02 / 0.201)


def test_a_rank_that_waits_for_its_host_is_late_by_idling():
    busy = trace_of(0, [0.1] * 5, [[0.051]] * 5)
    idle = trace_of(1, [0.1] * 5, [[0.001]] * 5, idle_s=0.05)
    (late,) = [each for each in lateness([busy, idle]) if each.is_late]
    assert (late.trace.rank, late.cause) == (1, "idles")
    assert late.late_s == pytest.approx(0.05)


@pytest.mark.parametrize("seed", range(10))
def test_jitter_makes_nobody_late(seed):
    rng = np.random.default_rng(seed)
    assert late_ranks(machine(0.1 * np.exp(rng.normal(0, 0.02, (8, 40))), seed=seed)) == []


@pytest.mark.parametrize("seed", range(10))
def test_a_late_rank_is_found_in_jitter(seed):
    own = 0.1 * np.exp(np.random.default_rng(seed).normal(0, 0.01, (8, 40)))
    own[5] *= 1.10
    assert late_ranks(machine(own, seed=seed)) == [5]


def test_a_rank_late_in_one_step_of_many_is_not_late():
    own = np.full((4, 20), 0.1)
    own[2, 7] = 5.0
    assert late_ranks(machine(own, num_collectives=1)) == []


def test_two_late_ranks_of_two_groups_are_both_found():
    first = machine(np.array([[0.10] * 5, [0.15] * 5]), num_collectives=1, group="allreduce [0, 1]")
    other = machine(np.array([[0.10] * 5, [0.15] * 5]), num_collectives=1, group="allreduce [2, 3]")
    shifted = [
        trace_of(
            each.rank + 2,
            [0.1 + 0.05 * each.rank] * 5,
            [[0.051 - 0.05 * each.rank]] * 5,
            group="allreduce [2, 3]",
        )
        for each in other
    ]
    found = lateness([*first, *shifted])
    assert [each.late_s for each in found] == pytest.approx([0, 0.05, 0, 0.05])


def test_where_collectives_do_not_match_own_time_decides():
    own = np.array([[0.1] * 6, [0.1] * 6, [0.13] * 6])
    found = lateness(machine(own, matched=False))
    assert {each.by for each in found} == {"own time"}
    assert found[2].late_s == pytest.approx(0.03)
    assert found[2].is_late


def test_one_rank_or_no_shared_step_tells_nothing():
    ranks = machine(np.full((2, 3), 0.1))
    assert lateness(ranks[:1]) == ()
    assert lateness([]) == ()
    assert lateness([ranks[0], trace_of(1, [], [])]) == ()


@pytest.mark.truth
def test_the_sample_of_eight_ranks_has_its_straggler(data_dir):
    ranks = read_traces([data_dir / "kineto" / "inputs__dlrm_kineto.tar.gz"]).ranks
    # Of its eight collectives rank 7 is in five the shortest time: it comes last to the first, by 5 ms.
    assert late_ranks(ranks) == [7]

"""Splits and schedules against trying everything, on small cases with whole hours."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.decide.allocation.problem import AllocationJob, Placed, SharingProblem, Tariff
from equipoise.decide.allocation.schedule import schedule, split
from equipoise.units import HOUR_S

POOL = 4
OBJECTIVES = ("time", "makespan", "cost", "energy")
EXACT = pytest.approx


@st.composite
def jobs(draw, *, longest=4):
    """A job of whole hours that is never slower on more accelerators, by at most their number."""
    sizes = sorted(draw(st.sets(st.integers(1, POOL), min_size=1, max_size=2)))
    times = [draw(st.integers(1, longest))]
    for _ in sizes[1:]:
        times.append(draw(st.integers(1, times[-1])))
    start = draw(st.integers(0, 2))
    slack = draw(st.one_of(st.none(), st.integers(0, 6)))
    return AllocationJob(
        name="job",
        sizes=tuple(sizes),
        time_s=tuple(each * HOUR_S for each in times),
        start_s=start * HOUR_S,
        deadline_s=math.inf if slack is None else (start + min(times) + slack) * HOUR_S,
        weight=draw(st.sampled_from([1.0, 2.0, 0.5])),
    )


def problems(objective, *, tariff=None, most=3, longest=4):
    return st.lists(jobs(longest=longest), min_size=1, max_size=most).map(
        lambda some: SharingProblem(
            jobs=tuple(some),
            num_accelerators=POOL,
            objective=objective,
            usd_per_accelerator_s=0.0 if tariff else 1.0 / HOUR_S,
            power_w=1000.0,
            tariff=tariff,
        )
    )


def everything(problem, *, horizon):
    """Every schedule in which all starts are whole hours before the horizon."""
    own = [
        [
            Placed(job=index, choice=choice, start_s=hour * HOUR_S)
            for choice in range(len(job.sizes))
            for hour in range(int(job.start_s / HOUR_S), horizon)
        ]
        for index, job in enumerate(problem.jobs)
    ]
    return (placed for placed in itertools.product(*own) if problem.is_feasible(placed))


def best_of_all(problem, *, horizon):
    return min((problem.value(placed) for placed in everything(problem, horizon=horizon)), default=None)


def horizon_of(problem):
    """By then everything can be over, one after another."""
    latest = max(job.start_s for job in problem.jobs)
    return int((latest + sum(max(job.time_s) for job in problem.jobs)) / HOUR_S)


@pytest.mark.law
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_schedule_of_whole_hours_is_better(objective):
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(problem=problems(objective))
    def check(problem):
        expected = best_of_all(problem, horizon=horizon_of(problem))
        found = schedule(problem)
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert found.is_proved
            assert problem.is_feasible(found.placed)
            assert problem.value(found.placed) == EXACT(expected)
            assert found.bound <= found.value * (1 + 1e-9)

    check()


@pytest.mark.law
def test_no_shift_into_cheaper_hours_is_missed():
    dear_at_first = Tariff(usd_per_kwh=(0.3, 0.3, 0.1, 0.2, 0.05, 0.2, *[0.3] * 18))

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(problem=problems("cost", tariff=dear_at_first, most=2, longest=3))
    def check(problem):
        expected = best_of_all(problem, horizon=horizon_of(problem) + 24)
        found = schedule(problem)
        if expected is None:
            assert found is None
        else:
            assert problem.is_feasible(found.placed)
            assert problem.value(found.placed) == EXACT(expected)

    check()


@pytest.mark.law
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    begin=st.integers(0, 23),
    minutes=st.floats(5.0, 55.0),
    cents=st.lists(st.integers(5, 40), min_size=24, max_size=24),
)
def test_a_job_is_not_put_off_within_an_hour_of_one_price(begin, minutes, cents):
    short = AllocationJob(
        name="short", sizes=(2,), time_s=(minutes * 60.0,), start_s=0.0, deadline_s=HOUR_S, weight=1.0
    )
    long = AllocationJob(
        name="long",
        sizes=(1, 2),
        time_s=(5.3 * HOUR_S, 3.1 * HOUR_S),
        start_s=0.0,
        deadline_s=math.inf,
        weight=1.0,
    )
    found = schedule(
        SharingProblem(
            jobs=(short, long),
            num_accelerators=POOL,
            objective="cost",
            power_w=826.0,
            tariff=Tariff(usd_per_kwh=tuple(each / 100 for each in cents), begin_s=begin * HOUR_S),
        )
    )
    assert [each.start_s for each in found.placed if each.job == 0] == [0.0]


@pytest.mark.law
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_split_is_better(objective):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(problem=problems(objective, most=4))
    def check(problem):
        choices = itertools.product(*(range(len(job.sizes)) for job in problem.jobs))
        splits = [
            tuple(
                Placed(job=index, choice=choice, start_s=problem.jobs[index].start_s)
                for index, choice in enumerate(each)
            )
            for each in choices
            if sum(job.sizes[choice] for job, choice in zip(problem.jobs, each, strict=True)) <= POOL
        ]
        values = [problem.value(each) for each in splits if problem.is_feasible(each)]
        found = split(problem)
        if not values:
            assert found is None
        else:
            assert problem.value(found) == EXACT(min(values))

    check()


@pytest.mark.law
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_split_in_lots_fits_and_is_no_better_than_the_best(objective):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(problem=problems(objective, most=4))
    def check(problem):
        best, in_lots = split(problem), split(problem, max_entries=12)
        assert in_lots is None or problem.is_feasible(in_lots)
        assert in_lots is None or problem.value(best) <= problem.value(in_lots) * (1 + 1e-9)

    check()


def test_a_pool_too_large_for_a_table_is_split_in_lots():
    # By hand: work of 12 and 6 hours on 1, 2 or 4 of 6 accelerators; 12/4 + 6/2 = 6 beats 12/2 + 6/4 = 7.5.
    two = SharingProblem(
        jobs=tuple(
            AllocationJob(name=name, sizes=(1, 2, 4), time_s=tuple(work * HOUR_S / n for n in (1, 2, 4)))
            for name, work in (("long", 12), ("short", 6))
        ),
        num_accelerators=6,
        objective="time",
    )
    for max_entries in (42, 21):
        assert two.value(split(two, max_entries=max_entries)) == EXACT(6 * HOUR_S)


def test_one_after_another_beats_side_by_side_where_jobs_scale_perfectly():
    # Two jobs of 4 accelerator-hours on 4: side by side on 2 each, 2 h + 2 h; in turn on 4, 1 h + 2 h.
    problem = SharingProblem(
        jobs=tuple(AllocationJob(name=name, sizes=(2, 4), time_s=(2 * HOUR_S, HOUR_S)) for name in "ab"),
        num_accelerators=4,
        objective="time",
    )
    assert problem.value(split(problem)) == EXACT(4 * HOUR_S)
    assert schedule(problem).value == EXACT(3 * HOUR_S)


def test_each_job_waits_for_a_cheap_night_of_its_own():
    # Three jobs of 4 h on the whole pool of 4 kW, nights of 4 h at 0.02 a kWh, a plan that begins after one:
    # 3 x 16 kWh at 0.02.
    night = Tariff(usd_per_kwh=(*[0.02] * 4, *[0.2] * 20), begin_s=4 * HOUR_S)
    problem = SharingProblem(
        jobs=tuple(AllocationJob(name=name, sizes=(POOL,), time_s=(4 * HOUR_S,)) for name in "abc"),
        num_accelerators=POOL,
        objective="cost",
        power_w=1000.0,
        tariff=night,
    )
    found = schedule(problem)
    assert found.is_proved
    assert found.value == EXACT(0.96)


def test_lateness_is_what_the_latest_job_exceeds_its_deadline_by():
    # Two jobs that each need the whole pool for 2 h, both due in 3 h: one is an hour late.
    problem = SharingProblem(
        jobs=tuple(
            AllocationJob(name=name, sizes=(4,), time_s=(2 * HOUR_S,), deadline_s=3 * HOUR_S) for name in "ab"
        ),
        num_accelerators=4,
        objective="time",
    )
    assert schedule(problem) is None
    late = SharingProblem(jobs=problem.jobs, num_accelerators=4, objective="lateness")
    assert schedule(late).value == EXACT(HOUR_S)


def test_a_search_that_is_cut_short_says_so_and_bounds_what_is_left():
    problem = SharingProblem(
        jobs=tuple(
            AllocationJob(
                name=str(k), sizes=(1, 2, 3, 4), time_s=tuple((9 + k) * HOUR_S / n**0.8 for n in (1, 2, 3, 4))
            )
            for k in range(6)
        ),
        num_accelerators=4,
        objective="time",
    )
    cut = schedule(problem, most_looked=50)
    assert not cut.is_proved
    assert problem.is_feasible(cut.placed)
    whole = schedule(problem)
    assert cut.bound <= whole.value <= cut.value
    assert cut.value * (1 - cut.gap) <= whole.value * (1 + 1e-9)


def many_jobs(num_jobs, *, num_accelerators, objective, deadlines_s=None):
    """Jobs of 1 to 100 hours, each half serial, on any power of two of the pool."""
    sizes = tuple(2**step for step in range(num_accelerators.bit_length()))
    return SharingProblem(
        jobs=tuple(
            AllocationJob(
                name=str(k),
                sizes=sizes,
                time_s=tuple(HOUR_S * (1 + 37 * k % 100) * (0.5 + 0.5 / size) for size in sizes),
                deadline_s=math.inf if deadlines_s is None else deadlines_s[k],
            )
            for k in range(num_jobs)
        ),
        num_accelerators=num_accelerators,
        objective=objective,
    )


def ends_on_one_size(problem, size):
    """When each job ends if all take the same size, the shortest first."""
    choice = problem.jobs[0].sizes.index(size)
    free_s = [0.0] * (problem.num_accelerators // size)
    ends = {}
    for index in sorted(range(len(problem.jobs)), key=lambda index: problem.jobs[index].time_s[choice]):
        first = min(range(len(free_s)), key=free_s.__getitem__)
        free_s[first] = ends[index] = free_s[first] + problem.jobs[index].time_s[choice]
    return [ends[index] for index in range(len(problem.jobs))]


@pytest.mark.law
@pytest.mark.parametrize(("objective", "value_of"), [("time", math.fsum), ("makespan", max)])
@pytest.mark.parametrize("num_jobs", [20, 100])
def test_many_jobs_take_no_more_than_a_list_of_them_on_one_size(num_jobs, objective, value_of):
    problem = many_jobs(num_jobs, num_accelerators=64, objective=objective)
    simple = min(value_of(ends_on_one_size(problem, size)) for size in problem.jobs[0].sizes)
    found = schedule(problem)
    assert problem.is_feasible(found.placed)
    assert found.value <= simple
    assert found.bound <= found.value


@pytest.mark.law
@pytest.mark.parametrize("objective", ["time", "makespan", "cost"])
def test_deadlines_of_many_jobs_are_kept_where_a_list_on_one_size_keeps_them(objective):
    listed = ends_on_one_size(many_jobs(30, num_accelerators=64, objective=objective), 8)
    problem = many_jobs(
        30, num_accelerators=64, objective=objective, deadlines_s=[1.1 * each for each in listed]
    )
    found = schedule(problem)
    assert found is not None
    assert problem.is_feasible(found.placed)


def test_each_of_many_jobs_runs_in_cheap_hours():
    # 20 jobs of 2 h on one accelerator of 1 kW each, or 3 accelerator-hours on two:
    # 20 x 2 kWh at the night's 0.05, though the plan begins at 9.
    night = Tariff(usd_per_kwh=(*[0.05] * 6, *[0.3] * 18), begin_s=9 * HOUR_S)
    problem = SharingProblem(
        jobs=tuple(
            AllocationJob(name=str(k), sizes=(1, 2), time_s=(2 * HOUR_S, 1.5 * HOUR_S)) for k in range(20)
        ),
        num_accelerators=POOL,
        objective="cost",
        power_w=1000.0,
        tariff=night,
    )
    found = schedule(problem)
    assert problem.is_feasible(found.placed)
    assert found.value == EXACT(20 * 2 * 0.05)


def test_a_job_that_does_not_end_last_holds_no_more_than_it_has_to():
    # The long job ends after 10 h in any case: the short one takes 4 h on one accelerator, not 3 h on two.
    problem = SharingProblem(
        jobs=(
            AllocationJob(name="long", sizes=(2,), time_s=(10 * HOUR_S,)),
            AllocationJob(name="short", sizes=(1, 2), time_s=(4 * HOUR_S, 3 * HOUR_S)),
        ),
        num_accelerators=POOL,
        objective="makespan",
    )
    found = schedule(problem)
    assert found.is_proved
    assert found.value == EXACT(10 * HOUR_S)
    assert [problem.span(each)[2] for each in found.placed] == [2, 1]

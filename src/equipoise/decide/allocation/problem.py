"""The problem of sharing a pool: its accelerators and rates, jobs with times by size, and solutions."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from equipoise.decide.question.query import TrainingQuery, query
from equipoise.decide.question.systems import RequestedSystem, rates_of, requested_systems
from equipoise.economics import Rates
from equipoise.errors import UnknownNameError, UsageError
from equipoise.spec.catalogue import Catalogue, counted_name
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import DEFAULT_GRID
from equipoise.units import DAY_S, HOUR_S, KWH_J

HOURS = 24


class Tariff(Struct, frozen=True, kw_only=True):
    """US dollars per kWh in each hour of a day. begin_s: seconds from midnight to the start of the plan."""

    usd_per_kwh: tuple[float, ...]
    begin_s: float = 0.0

    def usd_per_w(self, start_s: float, end_s: float) -> float:
        """Cost in US dollars of one watt from start_s to end_s.

        Assumes prices repeat every day. Source: definition, the integral of a step function.
        """
        return self._since_midnight(end_s + self.begin_s) - self._since_midnight(start_s + self.begin_s)

    def _since_midnight(self, moment_s: float) -> float:
        sums = (0.0, *accumulate(each * HOUR_S / KWH_J for each in self.usd_per_kwh))
        days, within_s = divmod(moment_s, DAY_S)
        hour = min(int(within_s // HOUR_S), HOURS - 1)
        return days * sums[-1] + sums[hour] + (within_s - hour * HOUR_S) * self.usd_per_kwh[hour] / KWH_J

    def changes_s(self, first_s: float, last_s: float) -> tuple[float, ...]:
        """Times from first_s to last_s at which the price changes."""
        hours = range(
            math.ceil((first_s + self.begin_s) / HOUR_S), math.floor((last_s + self.begin_s) / HOUR_S) + 1
        )
        return tuple(
            hour * HOUR_S - self.begin_s
            for hour in hours
            if self.usd_per_kwh[hour % HOURS] != self.usd_per_kwh[(hour - 1) % HOURS]
        )


class Pool(Struct, frozen=True, kw_only=True):
    """The accelerators to share. question: of a training on the pool, without a workload.

    cluster: the system with all its accelerators. tariff: of electricity. is_rented: whether
    accelerator-hours are paid, alone or in addition to electricity.
    """

    system: RequestedSystem
    cluster: Cluster
    question: TrainingQuery
    rates: Rates
    tariff: Tariff | None = None
    is_rented: bool = True

    @property
    def num_accelerators(self) -> int:
        """Total number of accelerators."""
        return self.cluster.num_accelerators


def pool_of(
    name: str,
    catalogue: Catalogue,
    *,
    price: Sequence[tuple[str, float]] = (),
    node_size: int | None = None,
    region: str = DEFAULT_GRID,
    currency: str | None = None,
    tariff: Tariff | None = None,
) -> Pool:
    """The pool named by a text such as "64x h100-sxm5-80gb"; one node without a number.

    price: US dollars per accelerator-hour by system, as in a question, which override the table's. node_size:
    accelerators per node, which overrides the system's. Raises SpecError for an unknown name, UsageError for
    an impossible number or price.
    """
    count, named = counted_name(name)
    if count == 0:
        raise UsageError(f"--accelerator {name!r} has no accelerators; expected 1 or more")
    try:
        nodes = catalogue.cluster(named)
    except UnknownNameError as err:
        raise err.within("--accelerator") from err
    number = count or node_size or nodes.node_size
    question = query(
        {
            "workload": "any",
            "accelerator": [f"{number}x {named}"],
            "max_accelerators": number,
            "node_size": node_size,
            "price": tuple(price),
            "region": region,
            "currency": currency,
        }
    )
    system = requested_systems(question, catalogue)[0]
    if count is None:
        chosen = f"a pool of {number}, one node (--accelerator '{2 * number}x {named}' for another number)"
        system = replace(system, chosen_for_you=(chosen, *system.chosen_for_you))
    nodes = catalogue.cluster(named, num_accelerators=number, **system.node)
    usd_per_hour = system.usd_per_accelerator_hour
    return Pool(
        system=system,
        cluster=nodes,
        question=question,
        rates=rates_of(question, system, system.terms[0]),
        tariff=tariff,
        is_rented=tariff is None if usd_per_hour is None else usd_per_hour > 0.0,
    )


Span: TypeAlias = tuple[float, float, int]  # start, end and accelerators of a job


class Occupancy(Struct, frozen=True, kw_only=True):
    """Accelerators in use over time.

    moments_s: ascending, the first minus infinity. in_use: from each moment to the next; 0 after the last.
    """

    moments_s: tuple[float, ...] = (-math.inf,)
    in_use: tuple[int, ...] = (0,)

    def with_span(self, span: Span) -> "Occupancy":
        """The occupancy with the accelerators of one more job."""
        moments, in_use = list(self.moments_s), list(self.in_use)
        places = []
        for moment_s in span[:2]:
            place = bisect_left(moments, moment_s)
            # A moment that differs by rounding only is the same, so that no job overlaps the next one.
            if place == len(moments) or is_after(moments[place], moment_s):
                if is_after(moment_s, moments[place - 1]) or place == 1:
                    moments.insert(place, moment_s)
                    in_use.insert(place, in_use[place - 1])
                else:
                    place -= 1
            places.append(place)
        for place in range(*places):
            in_use[place] += span[2]
        return Occupancy(moments_s=tuple(moments), in_use=tuple(in_use))

    def earliest(self, most_in_use: int, time_s: float, not_before_s: float) -> float:
        """The earliest time from which, for time_s, at most `most_in_use` accelerators are in use."""
        moments, in_use = self.moments_s, self.in_use
        start_s, begins = not_before_s, True
        for place in range(bisect_right(moments, not_before_s) - 1, len(moments) - 1):
            if in_use[place] > most_in_use:
                start_s, begins = moments[place + 1], True
                continue
            if begins:  # here, because most parts of a full schedule are passed over
                enough_s, begins = start_s + time_s, False
                enough_s -= ROUNDING * max(1.0, abs(enough_s))
            if moments[place + 1] >= enough_s:
                break
        return start_s


# Relative tolerance for rounding of sums of times.
ROUNDING = 2.0**-30

ObjectiveName: TypeAlias = Literal["time", "makespan", "cost", "energy", "lateness"]


class AllocationJob(Struct, frozen=True, kw_only=True):
    """One training, with its time on each allowed size.

    sizes, time_s: (n_choices,), sizes ascending. start_s: earliest start; deadline_s: latest end, infinite
    without one; both from the start of the plan. weight: of its waiting and running time.
    """

    name: str
    sizes: tuple[int, ...]
    time_s: tuple[float, ...]
    start_s: float = 0.0
    deadline_s: float = math.inf
    weight: float = 1.0

    @property
    def area(self) -> float:
        """The smallest number of accelerator-seconds over its sizes."""
        return min(size * time for size, time in zip(self.sizes, self.time_s, strict=True))


class Placed(Struct, frozen=True, kw_only=True):
    """A scheduled job: index of the job, index of its size, and its start."""

    job: int
    choice: int
    start_s: float


class SharingProblem(Struct, frozen=True, kw_only=True):
    """Jobs, a number of accelerators, and the objective to minimise.

    usd_per_accelerator_s: price of an occupied accelerator. power_w: of an accelerator and its part of the
    system. tariff: of electricity; None if its price does not matter.
    """

    jobs: tuple[AllocationJob, ...]
    num_accelerators: int
    objective: ObjectiveName
    usd_per_accelerator_s: float = 0.0
    power_w: float = 0.0
    tariff: Tariff | None = None

    @property
    def is_regular(self) -> bool:
        """Whether the objective is regular: an earlier end is never worse."""
        return not (self.objective == "cost" and self.tariff is not None)

    @property
    def is_sum(self) -> bool:
        """Whether the objective is a sum over jobs; otherwise it is their maximum."""
        return self.objective in {"time", "cost", "energy"}

    def worth(self, job: int, choice: int, start_s: float) -> float:
        """Contribution of one scheduled job to the objective."""
        about = self.jobs[job]
        time_s = about.time_s[choice]
        end_s = start_s + time_s
        if self.objective == "time":
            return about.weight * (end_s - about.start_s)
        if self.objective == "makespan":
            return end_s
        if self.objective == "lateness":
            return end_s - about.deadline_s
        held_s = about.sizes[choice] * time_s
        if self.objective == "energy":
            return held_s * self.power_w
        usd = held_s * self.usd_per_accelerator_s
        if self.tariff is None:
            return usd
        return usd + about.sizes[choice] * self.power_w * self.tariff.usd_per_w(start_s, end_s)

    def value(self, placed: Sequence[Placed]) -> float:
        """The objective of a complete schedule."""
        worths = [self.worth(each.job, each.choice, each.start_s) for each in placed]
        return math.fsum(worths) if self.is_sum else max(worths)

    def is_feasible(self, placed: Sequence[Placed]) -> bool:
        """Whether every job is scheduled once and in its time window, and the pool is never exceeded."""
        if sorted(each.job for each in placed) != list(range(len(self.jobs))):
            return False
        used = Occupancy()
        for each in placed:
            start_s, end_s, _ = span = self.span(each)
            if self.is_late(each.job, end_s) or is_after(self.jobs[each.job].start_s, start_s):
                return False
            used = used.with_span(span)
        return max(used.in_use) <= self.num_accelerators

    def is_late(self, job: int, end_s: float) -> bool:
        """Whether a job that ends at end_s violates its deadline; with lateness as objective, none does."""
        return self.objective != "lateness" and is_after(end_s, self.jobs[job].deadline_s)

    def span(self, placed: Placed) -> Span:
        """Start, end and accelerators of a scheduled job."""
        about = self.jobs[placed.job]
        return placed.start_s, placed.start_s + about.time_s[placed.choice], about.sizes[placed.choice]


class Solved(Struct, frozen=True, kw_only=True):
    """A schedule, in job order. value: of the objective. bound: lower bound over all schedules.

    is_proved: whether the schedule is proved optimal. num_explored: partial schedules evaluated. method: in
    words.
    """

    placed: tuple[Placed, ...]
    value: float
    bound: float
    is_proved: bool
    num_explored: int
    method: str

    @property
    def gap(self) -> float:
        """Optimality gap: largest possible improvement as a share of the value."""
        if self.is_proved or self.value <= 0.0:
            return 0.0
        return min(1.0, max(0.0, 1.0 - self.bound / self.value))


def is_after(one_s: float, other_s: float) -> bool:
    """Whether one time is later than another by more than rounding."""
    return one_s > other_s + ROUNDING * max(1.0, abs(other_s)) if math.isfinite(other_s) else False

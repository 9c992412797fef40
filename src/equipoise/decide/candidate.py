"""Candidate: one thing that one could do, with all that it takes, and whether it keeps every limit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from equipoise.decide.estimate import Estimate, Grade, OrderBound, PublishedResult
from equipoise.economics import Price, PriceTerms
from equipoise.economics.interruptions import Interrupted
from equipoise.spec.strategy import Precision, Strategy
from equipoise.stats import Interval
from equipoise.units import HOUR_S

ConstraintName: TypeAlias = Literal["deadline_s", "budget_usd", "memory_bytes", "max_accelerators"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A limit and what the candidate needs of it. value: None where it is not known; then it is not kept.

    probability: that the limit is kept.
    """

    name: ConstraintName
    limit: float
    value: float | None
    probability: float | None

    @property
    def is_kept(self) -> bool:
        """Whether the central value keeps the limit."""
        return self.value is not None and self.value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of the fullest accelerator: needed, by kind, and what it has; None is not known."""

    needed_bytes: float
    available_bytes: float | None
    by_kind_bytes: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStep:
    """One modelled step of the strategy: its time by cause, before any combining of estimates."""

    step_s: float
    by_cause_s: Mapping[str, float]
    num_samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRun:
    """One set-up that the user measured: samples of all ranks per second, the median over its runs.

    accelerator: None where the runs do not state it. strategy: as `bench` takes it; None on one device, or
    where it is not stated. log_sd: of the median.
    """

    run_ids: tuple[str, ...]
    accelerator: str | None
    num_accelerators: int
    global_batch_samples: int
    samples_per_s: float
    log_sd: float
    strategy: str | None
    precision: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """So many accelerators of one system, on one kind of terms, with one strategy and batch.

    system: as asked, the name in the catalogue. work_s: without interruptions; time_s: with them, and None
    where it cannot be estimated (`why_not`). step_s: work_s over the number of steps, so with what evaluation
    takes where published results hold it; model: the step as the performance model times it. energy_j: of the
    whole system, with the building where a PUE was given. mfu: FLOP of the model over those of the
    accelerators' peak in mfu_precision, at step_s; None where the time rests on published results, whose
    precision is not stated. disagreement: the factor by which the interval of the time was widened because
    estimators differ, 1 where they do not. speedup: over the smallest size known of the system, with its own
    interval: errors that both share cancel. order_bound: the time of another chip that work_s was moved to,
    because no better chip of a maker is slower.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("id", "accelerator_hours", "feasible", "pays_usd_per_hour")

    system: str
    title: str
    accelerator: str
    num_accelerators: int
    num_nodes: int | None
    terms: PriceTerms
    strategy: Strategy | None
    user_run: UserRun | None
    global_batch_samples: int | None
    num_samples: float | None
    num_steps: float | None
    step_s: Interval | None
    work_s: Interval
    time_s: Interval | None
    goodput: Interval | None
    why_not: str | None
    price: Price | None
    power_w: float | None
    usd: Interval | None
    energy_j: Interval | None
    carbon_kg: Interval | None
    electricity_usd: Interval | None
    interrupted: Interrupted | None
    mfu: float | None
    mfu_precision: Precision | None
    tokens_per_s_per_accelerator: float | None
    memory: Memory | None
    model: ModelStep | None
    speedup: Interval | None
    constraints: tuple[Constraint, ...]
    estimates: tuple[Estimate, ...]
    published: tuple[PublishedResult, ...]
    order_bound: OrderBound | None
    disagreement: float
    grade: Grade

    @property
    def id(self) -> str:
        """Unique in an answer, and the same in every answer to the same question."""
        return f"{self.system}/{self.num_accelerators}/{self.terms}"

    @property
    def accelerator_hours(self) -> float | None:
        """Accelerators times hours of elapsed time."""
        return None if self.time_s is None else self.num_accelerators * self.time_s.value / HOUR_S

    @property
    def feasible(self) -> bool:
        """Whether the central value of every constraint keeps its limit, and the time can be estimated."""
        return self.time_s is not None and all(each.is_kept for each in self.constraints)

    @property
    def pays_usd_per_hour(self) -> float | None:
        """US dollars per hour of elapsed time, all accelerators together; None without a price."""
        return None if self.price is None else self.num_accelerators * self.price.usd_per_accelerator_hour

    @property
    def broken(self) -> tuple[Constraint, ...]:
        """The constraints that are not kept."""
        return tuple(each for each in self.constraints if not each.is_kept)

    @property
    def strategy_text(self) -> str | None:
        """The strategy in its one text form, or the user's own as `bench` names it."""
        if self.strategy is not None:
            return self.strategy.text()
        return None if self.user_run is None else self.user_run.strategy

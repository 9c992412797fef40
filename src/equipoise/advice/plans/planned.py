"""What is asked of a plan and what it answers: records only."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from equipoise.advice.forecast.answer import MAX_ACCELERATORS, Evidence
from equipoise.advice.links.own_links import OwnLinks
from equipoise.advice.links.spoken import TimedCollectives
from equipoise.advice.plans.plan_record import PlanRecord
from equipoise.economics import Bill, Rates
from equipoise.errors import UsageError
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.space import Value
from equipoise.scaling.equilibrium import Equilibrium
from equipoise.scaling.law import FloatArray
from equipoise.spec.cluster import Cluster, NodeFacts
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import Workload
from equipoise.stats import Interval
from equipoise.units import HOUR_S

ObjectiveName: TypeAlias = Literal["time", "cost", "energy", "balance"]
_MOST_BATCH_SAMPLES = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. fewest, most: accelerators that may be taken; alike where the number is given.

    sizes: these alone, where several numbers are given and not a range.
    training_samples, training_tokens: where the workload's own target is not meant. deadline_s, budget_usd:
    a training may not exceed them. choices: values that knobs of the strategy may take; others are
    free within the usual. node: facts of the node in place of those of the tables. power_cap_w: of an
    one accelerator. profile: name of a calibration. collectives: timed by the user, in place of the links of
    the tables. num_best: layouts to tell.
    """

    workload: str
    accelerator: str
    fewest: int
    most: int
    sizes: tuple[int, ...] = ()
    objective: ObjectiveName = "balance"
    global_batch_samples: int | None = None
    training_samples: float | None = None
    training_tokens: float | None = None
    deadline_s: float = math.inf
    budget_usd: float = math.inf
    choices: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    node: NodeFacts = field(default_factory=NodeFacts)
    power_cap_w: float | None = None
    profile: str | None = None
    collectives: TimedCollectives | None = None
    num_best: int = 10

    def __post_init__(self) -> None:
        """Refuse sizes and batches that cannot be."""
        if not 1 <= self.fewest <= self.most <= MAX_ACCELERATORS:
            raise UsageError(
                f"--accelerators {self.fewest}..{self.most}; expected whole numbers from 1 to "
                f"{MAX_ACCELERATORS:,}, the smaller first"
            )
        batch = self.global_batch_samples
        if batch is not None and not 1 <= batch <= _MOST_BATCH_SAMPLES:
            raise UsageError(f"--global-batch {batch}; expected 1 to {_MOST_BATCH_SAMPLES:,} samples")
        deadline_h = self.deadline_s / HOUR_S
        for option, value in (("--deadline", deadline_h), ("--budget", self.budget_usd)):
            if not value > 0:
                raise UsageError(f"{option} {value:g}; expected a number above 0")
        if not self.num_best >= 1:
            raise UsageError(f"--top {self.num_best}; expected at least 1")

    def asks(self, num_accelerators: int) -> bool:
        """Whether a size may be recommended."""
        if self.sizes:
            return num_accelerators in self.sizes
        return self.fewest <= num_accelerators <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How many samples a training takes. words: of what, as in "the time to ...".

    samples: global batches -> samples. log_sd: a global batch -> log standard deviation of its samples.
    batches: global batches it is known for, smallest and largest; None where it does not depend on them.
    is_whole: False where it is only a unit of length, for want of what `missing` names.
    """

    words: str
    samples: Callable[[FloatArray], FloatArray]
    log_sd: Callable[[float], float]
    batches: tuple[int, int] | None
    is_whole: bool
    missing: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One strategy on so many accelerators: what a step and the whole training take.

    seconds: of a step, by cause. memory_bytes, memory: of the fullest accelerator, in all and by kind.
    samples: of the training. goodput: the share of the time that failures leave. flop_share: FLOP of the
    model, nothing twice, over those of the accelerators' peak in the strategy's precision.
    """

    accelerator: str
    strategy: Strategy
    step_s: float
    seconds: Mapping[str, float]
    memory_bytes: float
    memory: Mapping[str, float]
    samples: float
    goodput: float
    time: Interval
    flop_share: float | None
    bill: Bill

    @property
    def num_accelerators(self) -> int:
        """Accelerators it takes."""
        return self.strategy.num_accelerators


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why strategies fell out. needed, available: in the unit its reason ends in; None where it has none."""

    reason: str
    needed: float | None
    available: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What the model was calibrated on, and how wrong it was on what was held out; None is unknown."""

    name: str
    words: str
    num_held_out: int
    median_abs_error: float | None
    p90_abs_error: float | None
    coverage: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDoubt:
    """How unsure links leave a step, all else known: standard deviations of its logarithm.

    usual_log_sd: as they were believed to be; timed_log_sd: as the user timed them.
    """

    usual_log_sd: float
    timed_log_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer. recommended: None where nothing is legal, fits, and keeps deadline and budget.

    alternatives: the best other layouts on as many accelerators. by_size: the best at each size tried, asked
    or not, from the smallest; drawn_s: (n_draws, n_sizes) equally likely times of each. pareto: of the sizes
    asked, what none beats in time, money and energy at once. points: equilibria of the modelled curve;
    answer: the first reason to stop. basis, record: how wrong steps were on what the calibration held out,
    and plans of published trainings. seen: the result published on as many of the same accelerators as are
    recommended. remedy: what would make it fit; leanest: where nothing fits, the option of the most
    accelerators asked that needs the least memory. parameters: of the model, in use. num_considered,
    num_fitting: legal strategies among which the best were found, and those that fit into memory. search_s:
    seconds that finding them took, whenever that was. links: what the user's timed collectives said; None
    where none were given; link_doubt: how unsure links leave a step of what is recommended.
    """

    question: Question
    workload: Workload
    cluster: Cluster
    rates: Rates
    length: Length
    basis: Basis
    record: PlanRecord
    recommended: Option | None
    alternatives: tuple[Option, ...]
    by_size: tuple[Option, ...]
    drawn_s: FloatArray = field(compare=False, repr=False)
    pareto: tuple[Option, ...]
    points: tuple[Equilibrium, ...]
    answer: Equilibrium | None
    seen: Evidence | None
    rejected: tuple[Rejection, ...]
    remedy: str | None
    leanest: Option | None
    parameters: Parameters
    notes: tuple[str, ...]
    num_considered: int
    num_fitting: int
    search_s: float
    links: OwnLinks | None = None
    link_doubt: LinkDoubt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Plans for one workload on several accelerators. best: index of the one to take; None: none does."""

    plans: tuple[Plan, ...]
    best: int | None

    @property
    def plan(self) -> Plan:
        """The plan to take, or the first where none recommends anything."""
        return self.plans[self.best or 0]

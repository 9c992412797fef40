"""The records of a decision: Candidate, Answer. decision.py makes them in that order."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from statistics import NormalDist
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration import EvidenceSource
from equipoise.decide.evidence import (
    LEAST_LOG_SD,
    ErrorRecord,
    Estimate,
    Estimates,
    Grade,
    Group,
    OrderBound,
    PublishedResult,
    Shortfall,
    UserRun,
)
from equipoise.decide.question.query import TrainingQuery
from equipoise.economics import Price, Rates
from equipoise.economics.interruptions import Interrupted
from equipoise.economics.ownership import Ownership
from equipoise.economics.quotes import Charges
from equipoise.errors import SpecError
from equipoise.intervals import Interval, Tornado, num_sd
from equipoise.notes import Note, NoteKind
from equipoise.perfmodel.generation import RolloutSplit
from equipoise.perfmodel.space import Fault
from equipoise.scaling.equilibrium import (
    Equilibrium,
    Limit,
    least_speedup,
    least_speedup_for,
    paying_step,
    pays,
)
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import PriceTerms
from equipoise.spec.strategy import Precision, Strategy
from equipoise.spec.workload import Workload
from equipoise.units import HOUR_S

if TYPE_CHECKING:
    from equipoise.bench.topology.topology import Topology
    from equipoise.launch import Setting, Snippet
    from equipoise.runs.readers.measurements import Measurements


def probability_within(amount: Interval, limit: float) -> float:
    """The probability that an amount does not exceed a limit.

    Assumes that each side of the interval is half a log-normal, as in `product`, with a standard deviation of
    at least LEAST_LOG_SD: an end of the interval is then exceeded as often as the interval states.
    Source: definition.

    >>> probability_within(Interval(value=100.0, low=50.0, high=200.0, level=0.9), 100.0)
    0.5
    """
    if math.isinf(limit) or amount.value <= 0.0:
        return 1.0
    if limit <= 0.0:
        return 0.0
    end = amount.low if limit < amount.value else amount.high
    spread = max(abs(math.log(end / amount.value)) / num_sd(amount.level), LEAST_LOG_SD)
    # Of the smallest limits the ratio itself is zero.
    return NormalDist().cdf((math.log(limit) - math.log(amount.value)) / spread)


def about_fixed(faults: Sequence[Fault], query: TrainingQuery) -> Sequence[Fault]:
    """Of the reasons why strategies are illegal, those about what the question fixes; all where none is."""
    return [each for each in faults if query.fixed_names.intersection(each.parameters)] or faults


ConstraintName: TypeAlias = Literal["deadline_s", "budget_usd", "memory_bytes", "max_accelerators"]


class ConstraintWords(NamedTuple):
    """What a limit is called in a sentence, its unit, and what a candidate that breaks it does in a table.

    article: of the noun. broken: with {limit} for the number. loosened: what would let it be kept.
    """

    article: str
    noun: str
    unit: str
    broken: str
    loosened: str

    @property
    def name(self) -> str:
        """The noun with its article."""
        return f"{self.article}{self.noun}"


CONSTRAINTS: Final[Mapping[ConstraintName, ConstraintWords]] = {
    "deadline_s": ConstraintWords("a ", "deadline", "s", "misses deadline", "your deadline were later"),
    "budget_usd": ConstraintWords("a ", "budget", "USD", "over budget", "your budget were higher"),
    "memory_bytes": ConstraintWords(
        "", "memory per accelerator", "B", "does not fit", "its memory were larger"
    ),
    "max_accelerators": ConstraintWords(
        "a ", "size limit", "accelerators", "above {limit}", "more accelerators were allowed"
    ),
}


class Constraint(Struct, frozen=True, kw_only=True):
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

    @property
    def loosened(self) -> str:
        """What would let it be kept, as the condition of a sentence."""
        return CONSTRAINTS[self.name].loosened

    @property
    def lacks_price(self) -> bool:
        """Whether it is a budget that nobody can judge, as no price is known."""
        return self.name == "budget_usd" and self.value is None


class MemoryUse(Struct, frozen=True, kw_only=True):
    """Bytes of the fullest accelerator: needed, by kind, and what it has; None is not known.

    range_bytes: of what is needed, as wide as predictions of published executions were off.
    fits_probability: that the accelerator has as much, which has some percent more than its datasheet says.
    """

    needed_bytes: float
    available_bytes: float | None
    by_kind_bytes: Mapping[str, float]
    range_bytes: Interval | None = None
    fits_probability: float | None = None

    @property
    def share(self) -> float | None:
        """What is needed of what the accelerator has; None where that is not known."""
        return None if self.available_bytes is None else self.needed_bytes / self.available_bytes


# What is kept with less probability, a deadline or an accelerator's memory, may well be missed.
LIKELY: Final = 0.9


class SaferStrategy(Struct, frozen=True, kw_only=True):
    """What to train with where the recommended strategy does not fit, of the same size and batch.

    memory: that fits with a probability of at least LIKELY. time_ratio: of the time by it over that by
    the recommended strategy, by the performance model.
    """

    strategy: Strategy
    memory: MemoryUse
    time_ratio: float


class ModelStep(Struct, frozen=True, kw_only=True):
    """One modelled step of the strategy: its time by cause, before any combining of estimates."""

    step_s: float
    by_cause_s: Mapping[str, float]
    num_samples: float


class Candidate(Struct, frozen=True, kw_only=True):
    """So many accelerators of one system, on one kind of terms, with one strategy and batch.

    system: as asked, the name in the catalogue. work_s: without interruptions; time_s: with them, and None
    where it cannot be estimated (`why_not`). step_s: work_s over the number of steps, so with what evaluation
    takes where published results hold it; model: the step as the performance model times it. charges: what
    usd is made of, where that is more than accelerator-hours times price. energy_j: of the whole
    system, with the building where a PUE was given. mfu: FLOP of the model over those of the
    accelerators' peak in mfu_precision, at step_s; None where the time rests on published results, whose
    precision is not stated. disagreement: the factor by which the interval of the time was widened because
    estimators differ, 1 where they do not. speedup: over the smallest size known of the system, with its own
    interval: errors that both share cancel. order_bound: the time of another chip that work_s was moved to,
    because no better chip of a maker is slower. is_between: of a size between the usual ones, tried because
    one size is the best by what is asked.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = (
        "id",
        "accelerator_hours",
        "feasible",
        "probability",
        "usd_per_hour",
    )

    system: str
    title: str
    accelerator: str
    num_accelerators: int
    num_nodes: int | None
    terms: PriceTerms
    strategy: Strategy | None = None
    user_run: UserRun | None = None
    global_batch_samples: int | None = None
    num_samples: float | None = None
    num_steps: float | None = None
    step_s: Interval | None = None
    work_s: Interval
    time_s: Interval | None
    goodput: Interval | None
    why_not: str | None = None
    price: Price | None
    power_w: float | None
    usd: Interval | None
    charges: Charges | None = None
    energy_j: Interval | None
    carbon_kg: Interval | None
    electricity_usd: Interval | None
    interrupted: Interrupted | None = None
    mfu: float | None = None
    mfu_precision: Precision | None = None
    tokens_per_s_per_accelerator: float | None = None
    memory: MemoryUse | None = None
    model: ModelStep | None = None
    speedup: Interval | None = None
    constraints: tuple[Constraint, ...] = ()
    estimates: tuple[Estimate, ...]
    published: tuple[PublishedResult, ...] = ()
    order_bound: OrderBound | None = None
    disagreement: float
    grade: Grade
    is_between: bool = False

    @property
    def id(self) -> str:
        """Unique in an answer, and the same in every answer to the same question."""
        return f"{self.system}/{self.num_accelerators}/{self.terms}"

    @property
    def group(self) -> Group:
        """Its system and terms."""
        return self.system, self.terms

    @property
    def known_time_s(self) -> Interval:
        """The time of a candidate that has one."""
        assert self.time_s is not None
        return self.time_s

    @property
    def is_owned(self) -> bool:
        """Whether it is a machine of the user's own, which costs electricity alone."""
        return self.price is not None and self.price.is_owned

    @property
    def least_s(self) -> float:
        """What every accelerator is paid for in any case: the commitment of its price."""
        return 0.0 if self.price is None else self.price.minimum_s

    @property
    def has_published_batch(self) -> bool:
        """Whether its global batch is that of the best result published of its system and size."""
        batches = [each.global_batch_samples for each in self.published[:1]]
        return self.global_batch_samples is not None and batches == [self.global_batch_samples]

    @property
    def accelerator_hours(self) -> float | None:
        """Accelerators times hours of elapsed time."""
        return None if self.time_s is None else self.num_accelerators * self.time_s.value / HOUR_S

    @property
    def feasible(self) -> bool:
        """Whether the central value of every constraint keeps its limit, and the time can be estimated."""
        return self.time_s is not None and all(each.is_kept for each in self.constraints)

    @property
    def probability(self) -> float | None:
        """That every limit is kept; None without a limit that has one.

        Assumes that money and time miss their limits together, as money is time at a stated price: the least.
        """
        known = [each.probability for each in self.constraints if each.probability is not None]
        return min(known, default=None)

    @property
    def usd_per_hour(self) -> float | None:
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


def beyond_balance_words(
    best: Candidate, balance_size: int | None, candidates: Sequence[Candidate]
) -> str | None:
    """Why a size was taken beyond balance though a smaller one keeps the limits; None where it was not.

    balance_size: of its system. candidates: of the answer.
    """
    if balance_size is None or best.num_accelerators <= balance_size:
        return None
    alike = (each for each in candidates if each.feasible and each.group == best.group)
    ascending = sorted(alike, key=lambda each: each.num_accelerators)
    smaller = [each for each in ascending if each.num_accelerators < best.num_accelerators]
    if not smaller:
        return None
    within = [each for each in smaller if each.num_accelerators <= balance_size]
    other = within[-1] if within else smaller[0]
    than = "" if within else f" than {other.num_accelerators:,}, the smallest that keeps every limit,"
    if best.usd is not None and other.usd is not None and other.usd.value > 0.0:
        paid = f"{best.usd.value / other.usd.value:.3g}x the money"
    else:
        hours = [each.num_accelerators * each.known_time_s.value for each in (best, other)]
        paid = f"{hours[0] / hours[1]:.3g}x the accelerator-hours"
    return f"{best.num_accelerators:,} is faster{than} for {paid}"


class SizeStep(Struct, frozen=True, kw_only=True):
    """Going from a candidate to a larger one of the same system and terms.

    speedup: by the times of both; started_speedup: with what comes before the first step of either.
    least_speedup: from which on the step pays. pays: whether it does, as started; pays_by_times: whether it
    does by the times alone. usd_factor, accelerator_hours_factor: of the larger one over the smaller; None
    without a price.
    """

    before: Candidate
    after: Candidate
    speedup: float
    started_speedup: float
    least_speedup: float
    pays: bool
    pays_by_times: bool
    usd_factor: float | None
    accelerator_hours_factor: float


def size_step(before: Candidate, after: Candidate, start_s: float) -> SizeStep:
    """The step between two candidates whose times are known. start_s: what comes before the first step."""
    before_s, after_s = before.known_time_s.value, after.known_time_s.value
    speedup, started = before_s / after_s, (before_s + start_s) / (after_s + start_s)
    growth = _growth(before, after, start_s)
    # Unused hours are paid for however fast the step is.
    is_unused = after.least_s > after_s + start_s
    least = least_speedup_for(growth / started) if is_unused else float(least_speedup(growth))
    before_usd, after_usd = (None if each.usd is None else each.usd.value for each in (before, after))
    return SizeStep(
        before=before,
        after=after,
        speedup=speedup,
        started_speedup=started,
        least_speedup=least,
        pays=bool(pays(started, growth)),
        pays_by_times=bool(pays(speedup, _growth(before, after, 0.0))),
        usd_factor=after_usd / before_usd if before_usd and after_usd is not None else None,
        accelerator_hours_factor=after.num_accelerators / before.num_accelerators / speedup,
    )


def _growth(before: Candidate, after: Candidate, start_s: float) -> float:
    """How many times the accelerators a step is to; of a commitment as many as would use the hours paid."""
    one, other = (
        each.num_accelerators * max(1.0, each.least_s / (each.known_time_s.value + start_s))
        for each in (before, after)
    )
    return other / one


class SizeSteps(Struct, frozen=True, kw_only=True):
    """The steps to the recommended size and from it, between the sizes listed; None where there is none.

    taken: from the next smaller size, of those than which fewer are slower. longer: from the nearest smaller
    one from which a step pays, where `taken` does not and the size was chosen by such steps alone. beyond: to
    the next larger one.
    """

    taken: SizeStep | None
    longer: SizeStep | None
    beyond: SizeStep | None

    @property
    def ends(self) -> tuple[Candidate, ...]:
        """The sizes at their other ends, those next to the recommended one first."""
        smaller, beyond = (self.taken, self.longer), self.beyond
        before = [each.before for each in smaller if each is not None]
        return (*before[:1], *(() if beyond is None else (beyond.after,)), *before[1:])


class Relaxation(Struct, frozen=True, kw_only=True):
    """The least change of one limit that would do. candidate: id of the one it makes feasible, if known."""

    constraint: ConstraintName
    limit: float
    needed: float
    candidate: str | None


class Refusal(Struct, frozen=True, kw_only=True):
    """Why no candidate keeps every limit.

    cheapest, fastest: of all sizes that may be taken; None without prices, or where no strategy fits at all.
    relaxations: one per limit whose change alone would do; empty where several have to change, then `joint`
    has the least of each for the candidate that is closest. on_spot: what would be taken on spot capacity,
    where that keeps every limit and the question leaves terms open; it is none of the answer's candidates.
    """

    cheapest: Candidate | None
    fastest: Candidate | None
    relaxations: tuple[Relaxation, ...]
    joint: tuple[Relaxation, ...] = ()
    on_spot: Candidate | None = None


PER_ACCELERATOR_HOUR: Final = "USD per accelerator-hour"
ACCELERATORS: Final = "accelerators"  # the unit of how many are allowed


class Flip(Struct, frozen=True, kw_only=True):
    """A value of one input at which another candidate would be recommended. to: its id.

    value: what the answer rests on; flips_at: the nearest value that changes it, found by solving for it.
    system: whose price or speed it is, as `quantity` names it; None of a limit.
    """

    quantity: str
    system: str | None = None
    unit: str
    value: float
    flips_at: float
    to: str


def price_that_wins(candidate: str, flips: Sequence[Flip]) -> float | None:
    """The price of its own system below which a candidate, by its id, is chosen; None where none is known."""
    of_price = (each for each in flips if each.to == candidate and each.unit == PER_ACCELERATOR_HOUR)
    return next((each.flips_at for each in of_price if each.flips_at < each.value), None)


class SystemOffer(Struct, frozen=True, kw_only=True):
    """The candidate at which one system on one kind of terms would be taken, asked about by itself.

    candidate: its id; of a system that keeps no limits, that of the one closest to them. grade: of the
    evidence of its time. break_even_usd_per_hour: the value of an hour at which it costs as much as the
    recommended candidate, money and time together; None where one is better in both, has no price, or breaks
    a limit.
    """

    candidate: str
    system: str
    terms: PriceTerms
    is_feasible: bool
    grade: Grade
    break_even_usd_per_hour: float | None

    @property
    def group(self) -> Group:
        """Its system and terms."""
        return self.system, self.terms


class TimeValue(Struct, frozen=True, kw_only=True):
    """From which value of an hour on a candidate costs least, money and time together. candidate: its id."""

    from_usd_per_hour: float
    candidate: str


class Alternative(Struct, frozen=True, kw_only=True):
    """Another candidate, and when it would be chosen.

    case: `faster` where it is available, for it costs no more; `hour` where an hour is worth what lies
    between the ends; `price` where its price falls below `high`; `size` where more accelerators are allowed;
    `without` the recommended system.
    low, high: in US dollars, where is_priced, else in accelerator-hours; None is no end.
    """

    candidate: Candidate
    case: Literal["faster", "hour", "price", "size", "without"]
    low: float | None = None
    high: float | None = None
    is_priced: bool = True


class Infeasibility(Struct, frozen=True, kw_only=True):
    """Why strategies are no candidates: a fault makes them illegal; None where they lack memory.

    needed, available: bytes, where memory is lacking.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("reason",)
    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("fault",)

    fault: Fault | None = None
    needed: float | None = None
    available: float | None = None
    count: int

    @property
    def reason(self) -> str:
        """The words of the fault, or the name of the limit that is not kept."""
        return "memory_bytes" if self.fault is None else self.fault.words


class UnfitSize(Struct, frozen=True, kw_only=True):
    """A size at which no strategy runs. needed_bytes: the least of all; None unless memory is why."""

    num_accelerators: int
    needed_bytes: float | None


class Reason(Struct, frozen=True, kw_only=True):
    """One sentence of why, with what it rests on. formula: where a law is behind it."""

    words: str
    sources: tuple[EvidenceSource, ...] = ()
    formula: str | None = None


class Measurement(Struct, frozen=True, kw_only=True):
    """What to measure to reduce the uncertainty. expected_time_s: the interval of the time after it."""

    words: str
    command: str | None
    expected_time_s: Interval | None


class SystemAnswer(Struct, frozen=True, kw_only=True):
    """All that is known of one system for the question, before systems are compared.

    name: as the catalogue has it. cluster: None where the catalogue does not have it (a machine at hand).
    topology: of its node, where the user gave it or the machine at hand has it.
    estimates: of each estimator. equilibria: over its sizes on its first terms; balance_size: the first
    reason to stop. calibration, run_fit: of the performance model, in words, and what the user's own steps
    made of it. runs_on: title of the accelerator by whose runs the model is scaled, where the user has none
    on this one. software: whose measurements calibrate the model; None where the priors serve.
    time_per_step_time: modelled time of the training over that of its steps, more than 1 for
    pretrainings and where evaluation counts; None without a model. time_per_step_time_of: title of the
    published pretraining of the same model that sets it; None: all of its kind do. unfit: sizes that may be
    taken and have no candidate.
    best_strategies: of the recommended size, the fastest first, each as a candidate that has this strategy.
    trainings: the user's own whole trainings; None where there are none. shortfall: where nothing fits.
    """

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("topology", "estimates", "trainings", "shortfall")

    name: str
    title: str
    cluster: Cluster | None
    topology: "Topology | None"
    node_size: int | None
    stock: int | None
    rates: Mapping[PriceTerms, Rates]
    estimates: tuple[Estimates, ...]
    equilibria: tuple[Equilibrium, ...]
    balance_size: int | None
    best_strategies: tuple[Candidate, ...]
    user_runs: tuple[UserRun, ...]
    rejected: tuple[Infeasibility, ...]
    unfit: tuple[UnfitSize, ...]
    records: tuple[ErrorRecord, ...]
    calibration: str | None
    software: str | None
    time_per_step_time: float | None
    time_per_step_time_of: str | None
    transferred_from: str | None
    run_fit: str | None
    num_considered: int
    num_fitting: int
    search_s: float
    notes: tuple[Note, ...]
    trainings: "Measurements | None" = None
    runs_on: str | None = None
    shortfall: Shortfall | None = None


class Renting(Struct, frozen=True, kw_only=True):
    """The recommended candidate on one kind of terms. candidate: as it would be there."""

    candidate: Candidate
    tornado: Tornado | None


class Answer(Struct, frozen=True, kw_only=True, dict=True):
    """What to do, or why nothing keeps the limits; and everything else that was looked at.

    work: what the times are for, as in "the time to ...". chosen_for_you: what the question left open and was
    chosen, in words: shown first. offers: what each system would be taken at, the best first; the first is
    what is recommended, the second the next best of all systems. alternatives: the best of the rest.
    time_values: which candidate is best from which value of an hour on, the cheapest first. frontier: ids of
    the candidates that none beats in time, money and energy at once. rollout: how the recommended
    accelerators share generation and training; None where nothing is generated. safer: the fastest strategy
    that surely fits, of its axes or the next best, where the recommended one may not; None without any.
    """

    question: TrainingQuery
    dataset: str
    workload: Workload
    work: str
    systems: tuple[SystemAnswer, ...]
    candidates: tuple[Candidate, ...]
    recommended: Candidate | None
    refusal: Refusal | None
    equilibria: tuple[Equilibrium, ...]
    limited_by: Limit | None
    frontier: tuple[str, ...]
    flips: tuple[Flip, ...]
    time_values: tuple[TimeValue, ...]
    offers: tuple[SystemOffer, ...]
    alternatives: tuple[Alternative, ...]
    rejected: tuple[Infeasibility, ...]
    reasons: tuple[Reason, ...]
    to_measure: tuple[Measurement, ...]
    records: tuple[ErrorRecord, ...]
    sensitivity: Tornado | None
    renting: tuple[Renting, ...]
    ownership: Ownership | None
    rollout: RolloutSplit | None = None
    safer: SaferStrategy | None = None
    chosen_for_you: tuple[str, ...]
    notes: tuple[Note, ...]
    num_considered: int
    search_s: float

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("snippets", "settings")

    @cached_property
    def snippets(self) -> tuple["Snippet", ...]:
        """How to run the recommended strategy; nothing where none is known, or not how such chips start."""
        best, nodes = self.recommended, self._nodes
        if not self.is_launched or best is None or best.strategy is None or nodes is None:
            return ()
        from equipoise.launch import launch_snippets  # noqa: PLC0415 - only where scripts are shown

        try:
            return launch_snippets(
                best.strategy,
                nodes,
                workload=self.workload,
                settings=self.settings,
                software=self.system.software,
                is_asked_for=self.question.software is not None,
                is_spot=best.terms == "spot",
            )
        except SpecError:
            return ()

    def notes_of(self, *kinds: NoteKind) -> list[Note]:
        """The notes of some kinds."""
        return [each for each in self.notes if each.kind in kinds]

    @property
    def doubts(self) -> tuple[Note, ...]:
        """What first lines say of evidence: the first that was rejected, and the first that looks wrong."""
        return (*self.notes_of("not_used")[:1], *self.notes_of("check")[:1])

    @property
    def listed(self) -> tuple[Candidate, ...]:
        """Candidates of usual sizes, and those of other sizes that are recommended or offered."""
        refusal = self.refusal
        named = (self.recommended, *((refusal.cheapest, refusal.fastest) if refusal is not None else ()))
        kept = {each.id for each in named if each is not None} | {each.candidate for each in self.offers}
        return tuple(each for each in self.candidates if not each.is_between or each.id in kept)

    def sizes_of(self, one: Candidate) -> list[Candidate]:
        """The listed candidates of its system and terms whose time is known, the smallest first."""
        known = (each for each in self.listed if each.time_s is not None and each.group == one.group)
        return sorted(known, key=lambda each: each.num_accelerators)

    @cached_property
    def steps(self) -> SizeSteps | None:
        """The steps to and from the recommended size; None where it is the only one, or none."""
        sizes = [] if self.recommended is None else self.sizes_of(self.recommended)
        names = [each.id for each in sizes]
        at = names.index(self.recommended.id) if self.recommended and self.recommended.id in names else None
        if at is None or len(sizes) == 1:
            return None
        start_s = self.question.start_s
        # From a size than which fewer are no slower nobody would take a step.
        fastest_s = accumulate((each.known_time_s.value for each in sizes[:at]), min, initial=math.inf)
        smaller = [
            each
            for each, least_s in zip(sizes[:at], fastest_s, strict=False)
            if each.known_time_s.value < least_s
        ]
        taken = size_step(smaller[-1], sizes[at], start_s) if smaller else None
        beyond = size_step(sizes[at], sizes[at + 1], start_s) if at + 1 < len(sizes) else None
        longer = None
        is_by_steps = self.question.objective == "balance"
        if taken is not None and not taken.pays and not taken.before.broken and is_by_steps:
            times_s = [each.known_time_s.value + start_s for each in sizes[: at + 1]]
            least_s = [each.least_s for each in sizes[: at + 1]]
            place = paying_step([each.num_accelerators for each in sizes[: at + 1]], times_s, least_s=least_s)
            longer = None if place is None else size_step(sizes[place], sizes[at], start_s)
        return SizeSteps(taken=taken, longer=longer, beyond=beyond)

    @property
    def without_commitment(self) -> Candidate | None:
        """The choice on demand, where it leaves hours of a commitment unused and costs less without it."""
        best = self.recommended
        if best is None or best.usd is None or best.charges is None or not best.charges.unused_usd:
            return None
        on_demand = (each.candidate for each in self.renting if each.candidate.terms == "on_demand")
        return next((each for each in on_demand if each.usd and each.usd.value < best.usd.value), None)

    @property
    def why_not_launched(self) -> str | None:
        """Why no program is known that starts what is recommended, in words; None where some are."""
        best, cluster = self.recommended, self.system.cluster
        if best is None:
            return "nothing is recommended"
        if best.strategy is None:
            return "what is recommended was published or measured, and its strategy is not known"
        if cluster is None:
            return "its accelerator is not in the catalogue"
        if self.rollout is not None:
            return "no program here generates completions, as GRPO does"
        if not cluster.accelerator.is_started:
            title, vendor = cluster.accelerator.title, cluster.accelerator.vendor
            return f"no file here starts {title}: torch's launcher does not; {vendor}'s guide has what does"
        return None

    @property
    def is_launched(self) -> bool:
        """Whether a strategy is recommended that programs may start."""
        return self.why_not_launched is None

    @property
    def settings(self) -> tuple["Setting", ...]:
        """Settings of the runtime with a measured or documented reason on the recommended system."""
        best, nodes = self.recommended, self._nodes
        if best is None or best.strategy is None or nodes is None:
            return ()
        memory_share = None if best.memory is None else best.memory.share
        from equipoise.launch import runtime_settings  # noqa: PLC0415 - as above

        try:
            return runtime_settings(
                nodes,
                best.strategy,
                topology=self.system.topology,
                memory_share=memory_share,
                software=self.system.software,
            )
        except SpecError:
            return ()

    @property
    def _nodes(self) -> Cluster | None:
        """The recommended number of accelerators; None where the catalogue does not have them."""
        cluster = self.system.cluster
        if cluster is None or self.recommended is None:
            return None
        return replace(cluster, num_accelerators=self.recommended.num_accelerators)

    @property
    def system(self) -> SystemAnswer:
        """The system of the recommended candidate; the first where none is."""
        if self.recommended is None:
            return self.systems[0]
        return next(each for each in self.systems if each.name == self.recommended.system)

    @property
    def shown(self) -> Candidate | None:
        """The recommended candidate, else the fastest of all; None where there is none at all."""
        if self.recommended is not None:
            return self.recommended
        return None if self.refusal is None else self.refusal.fastest

    def candidate(self, candidate_id: str) -> Candidate:
        """The candidate of an id."""
        return next(each for each in self.candidates if each.id == candidate_id)

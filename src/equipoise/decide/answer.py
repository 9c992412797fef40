"""The records of a decision, from Constraint and Candidate to Answer. decision.py makes them."""

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
    at least LEAST_LOG_SD. Each end of the interval is then exceeded as often as its level states.
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
    # A ratio of limit and amount would underflow to zero for the smallest limits.
    return NormalDist().cdf((math.log(limit) - math.log(amount.value)) / spread)


def about_fixed(faults: Sequence[Fault], query: TrainingQuery) -> Sequence[Fault]:
    """The faults that concern parameters fixed by the question; all faults if none does."""
    return [each for each in faults if query.fixed_names.intersection(each.parameters)] or faults


ConstraintName: TypeAlias = Literal["deadline_s", "budget_usd", "memory_bytes", "max_accelerators"]


class ConstraintWords(NamedTuple):
    """The words and the unit for a limit in sentences and tables.

    article: of the noun. broken: status in a table, with {limit} for the number. loosened: condition under
    which the limit would be kept.
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
    """A limit and the candidate's value for it. value: None if unknown; the limit is then not kept.

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
        """The condition under which the limit would be kept, in words."""
        return CONSTRAINTS[self.name].loosened

    @property
    def lacks_price(self) -> bool:
        """Whether this is a budget that cannot be checked because no price is known."""
        return self.name == "budget_usd" and self.value is None


class MemoryUse(Struct, frozen=True, kw_only=True):
    """Memory of the accelerator that needs most: bytes needed, by kind, and available; None if unknown.

    range_bytes: interval of the bytes needed, from the errors of predictions for published executions.
    fits_probability: that they fit; devices have some percent more memory than their datasheets state.
    """

    needed_bytes: float
    available_bytes: float | None
    by_kind_bytes: Mapping[str, float]
    range_bytes: Interval | None = None
    fits_probability: float | None = None

    @property
    def share(self) -> float | None:
        """Needed over available memory; None if the latter is unknown."""
        return None if self.available_bytes is None else self.needed_bytes / self.available_bytes


# A deadline or a memory limit that is kept with a lower probability is reported as at risk.
LIKELY: Final = 0.9


class SaferStrategy(Struct, frozen=True, kw_only=True):
    """A strategy to use if the recommended one does not fit, with the same size and batch.

    memory: it fits with a probability of at least LIKELY. time_ratio: time with this strategy over time with
    the recommended one, by the performance model.
    """

    strategy: Strategy
    memory: MemoryUse
    time_ratio: float


class ModelStep(Struct, frozen=True, kw_only=True):
    """One step of the strategy as modelled: its time by cause, before estimates are combined."""

    step_s: float
    by_cause_s: Mapping[str, float]
    num_samples: float


class Candidate(Struct, frozen=True, kw_only=True):
    """A number of accelerators of one system, on one kind of terms, with one strategy and batch.

    system: the name in the catalogue, as asked. work_s: time without interruptions; time_s: with them, None
    if it cannot be estimated (`why_not`). step_s: work_s over the number of steps; includes evaluation if the
    time rests on published results, which include it. model: the step as the performance model times it.
    charges: the components of usd, if it is more than accelerator-hours times price. energy_j: of the whole
    system, including the building if a PUE was given. mfu: FLOP/s of the model at step_s over the peak FLOP/s
    of the accelerators in mfu_precision; None if the time rests on published results, whose precision is not
    stated. disagreement: the factor by which the interval of the time was widened because estimators differ;
    1 if they agree. speedup: over the system's smallest known size; errors that both sizes share cancel in
    its interval. order_bound: the time of another chip, or of fewer accelerators, to which work_s was moved,
    since neither a better chip of the same maker nor more accelerators are slower. is_between: whether the
    size lies between the usual ones; such sizes are tried where one may be the best answer.
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
        """Identifier, unique within an answer and the same in every answer to the same question."""
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
        """Whether the user owns the machine, so that it costs only electricity."""
        return self.price is not None and self.price.is_owned

    @property
    def least_s(self) -> float:
        """Seconds for which every accelerator is paid in any case: the commitment of its price."""
        return 0.0 if self.price is None else self.price.minimum_s

    @property
    def has_published_batch(self) -> bool:
        """Whether its global batch is that of the best published result of its system and size."""
        batches = [each.global_batch_samples for each in self.published[:1]]
        return self.global_batch_samples is not None and batches == [self.global_batch_samples]

    @property
    def accelerator_hours(self) -> float | None:
        """Number of accelerators times elapsed hours."""
        return None if self.time_s is None else self.num_accelerators * self.time_s.value / HOUR_S

    @property
    def feasible(self) -> bool:
        """Whether it has a time, and the central value of every constraint keeps its limit."""
        return self.time_s is not None and all(each.is_kept for each in self.constraints)

    @property
    def probability(self) -> float | None:
        """The probability that every limit is kept; None if no limit has a probability.

        Assumes that money and time exceed their limits together, since money is time at a stated price: the
        smallest of the probabilities.
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
        """The strategy in its text form, or the user's own as `bench` names it."""
        if self.strategy is not None:
            return self.strategy.text()
        return None if self.user_run is None else self.user_run.strategy


def beside_balance_words(
    best: Candidate, balance_size: int | None, candidates: Sequence[Candidate]
) -> str | None:
    """Words on why the balance size or a smaller one was not taken although it keeps the limits; None if not
    so.

    balance_size: of its system. candidates: of the answer.
    """
    alike = [each for each in candidates if each.feasible and each.group == best.group]
    ascending = sorted(alike, key=lambda each: each.num_accelerators)
    smaller = [each for each in ascending if each.num_accelerators < best.num_accelerators]
    if balance_size is None or best.num_accelerators == balance_size:
        return None
    if best.num_accelerators < balance_size:
        passed = [each for each in ascending if best.num_accelerators < each.num_accelerators <= balance_size]
        return _is_faster(best, passed[-1], f" than {passed[-1].num_accelerators:,}") if passed else None
    if not smaller:
        return None
    within = [each for each in smaller if each.num_accelerators <= balance_size]
    other = within[-1] if within else smaller[0]
    than = "" if within else f" than {other.num_accelerators:,}, the smallest that keeps every limit,"
    return _is_faster(best, other, than)


def _is_faster(best: Candidate, other: Candidate, than: str) -> str:
    """That a size is faster, and for how much of the money."""
    if best.usd is not None and other.usd is not None and other.usd.value > 0.0:
        paid = f"{best.usd.value / other.usd.value:.3g}x the money"
    else:
        hours = [each.num_accelerators * each.known_time_s.value for each in (best, other)]
        paid = f"{hours[0] / hours[1]:.3g}x the accelerator-hours"
    return f"{best.num_accelerators:,} is faster{than} for {paid}"


class SizeStep(Struct, frozen=True, kw_only=True):
    """The step from a candidate to a larger one of the same system and terms.

    speedup: ratio of the two times; started_speedup: the same with the time before the first step added to
    both. least_speedup: from which the step pays. pays: whether it pays by started_speedup; pays_by_times:
    whether it pays by speedup. usd_factor, accelerator_hours_factor: larger over smaller; usd_factor is None
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
    """The step between two candidates that have a time. start_s: time before the first training step."""
    before_s, after_s = before.known_time_s.value, after.known_time_s.value
    speedup, started = before_s / after_s, (before_s + start_s) / (after_s + start_s)
    growth = _growth(before, after, start_s)
    # Unused hours of a commitment are paid for, however fast the training is.
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
    """Ratio of the accelerators, each counted as the number that would use the hours of its commitment."""
    one, other = (
        each.num_accelerators * max(1.0, each.least_s / (each.known_time_s.value + start_s))
        for each in (before, after)
    )
    return other / one


class SizeSteps(Struct, frozen=True, kw_only=True):
    """The steps to and from the recommended size, between listed sizes; each None if there is none.

    taken: from the next smaller size that is faster than all sizes below it. longer: from the nearest smaller
    size from which a step pays, if `taken` does not pay and the objective is balance. beyond: to the next
    larger size.
    """

    taken: SizeStep | None = None
    longer: SizeStep | None = None
    beyond: SizeStep | None = None

    @property
    def ends(self) -> tuple[Candidate, ...]:
        """The candidates at the other ends of the steps, those next to the recommended one first."""
        smaller, beyond = (self.taken, self.longer), self.beyond
        before = [each.before for each in smaller if each is not None]
        return (*before[:1], *(() if beyond is None else (beyond.after,)), *before[1:])


class Relaxation(Struct, frozen=True, kw_only=True):
    """The least sufficient change of one limit. candidate: id of the one it makes feasible, if known."""

    constraint: ConstraintName
    limit: float
    needed: float
    candidate: str | None


class Refusal(Struct, frozen=True, kw_only=True):
    """Why no candidate keeps every limit.

    cheapest, fastest: among all eligible sizes; None without prices, or if no strategy fits at all.
    relaxations: one per limit whose change alone is sufficient. If several limits have to change, it is empty
    and `joint` has the changes for the closest candidate. on_spot: the recommendation on spot capacity, if
    that keeps every limit and the question leaves terms open; it is not one of the answer's candidates.
    """

    cheapest: Candidate | None
    fastest: Candidate | None
    relaxations: tuple[Relaxation, ...]
    joint: tuple[Relaxation, ...] = ()
    on_spot: Candidate | None = None


PER_ACCELERATOR_HOUR: Final = "USD per accelerator-hour"
ACCELERATORS: Final = "accelerators"  # the unit of how many are allowed


class Flip(Struct, frozen=True, kw_only=True):
    """A value of one input at which another candidate would be recommended. to: id of that candidate.

    value: used for the answer; flips_at: the nearest value that changes the answer.
    system: to which the price or speed belongs, as named in `quantity`; None for a limit.
    """

    quantity: str
    system: str | None = None
    unit: str
    value: float
    flips_at: float
    to: str


def price_that_wins(candidate: str, flips: Sequence[Flip]) -> float | None:
    """The price of its system below which the candidate of an id is chosen; None if none is known."""
    of_price = (each for each in flips if each.to == candidate and each.unit == PER_ACCELERATOR_HOUR)
    return next((each.flips_at for each in of_price if each.flips_at < each.value), None)


class SystemOffer(Struct, frozen=True, kw_only=True):
    """The candidate that would be chosen if its system, on one kind of terms, were the only one.

    candidate: its id; if no candidate of the system keeps the limits, the one closest to them. grade: of the
    evidence for its time. break_even_usd_per_hour: the value of an hour at which it costs as much as the
    recommended candidate, money and time together; None if one of the two is better in both, has no price, or
    breaks a limit.
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
    """The value of an hour from which a candidate costs least, money and time together. candidate: its id."""

    from_usd_per_hour: float
    candidate: str


class Alternative(Struct, frozen=True, kw_only=True):
    """Another candidate, and the case in which it would be chosen.

    case: `faster`: it is faster and costs no more; `hour`: the value of an hour lies between low and high;
    `price`: its price falls below `high`; `size`: more accelerators are allowed; `without`: the recommended
    system is not available.
    low, high: in US dollars if is_priced, else in accelerator-hours; None if unbounded.
    """

    candidate: Candidate
    case: Literal["faster", "hour", "price", "size", "without"]
    low: float | None = None
    high: float | None = None
    is_priced: bool = True


class Infeasibility(Struct, frozen=True, kw_only=True):
    """Why strategies were rejected. fault: makes them illegal; None if they lack memory.

    needed, available: bytes, if memory is lacking. count: number of strategies.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("reason",)
    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("fault",)

    fault: Fault | None = None
    needed: float | None = None
    available: float | None = None
    count: int

    @property
    def reason(self) -> str:
        """The words of the fault, or `memory_bytes`."""
        return "memory_bytes" if self.fault is None else self.fault.words


class UnfitSize(Struct, frozen=True, kw_only=True):
    """A size at which no strategy runs. needed_bytes: least of all; None unless memory is the reason."""

    num_accelerators: int
    needed_bytes: float | None


class Reason(Struct, frozen=True, kw_only=True):
    """One sentence that explains the answer, with its sources. formula: of the law used, if any."""

    words: str
    sources: tuple[EvidenceSource, ...] = ()
    formula: str | None = None


class Measurement(Struct, frozen=True, kw_only=True):
    """A measurement that would reduce the uncertainty. expected_time_s: interval of the time afterwards."""

    words: str
    command: str | None
    expected_time_s: Interval | None


class SystemAnswer(Struct, frozen=True, kw_only=True):
    """The result for one system, before systems are compared.

    name: in the catalogue. cluster: None if it is not in the catalogue (a machine at hand). topology: of its
    node, as given by the user or detected on the machine at hand.
    estimates: by each estimator. equilibria: among its sizes on its first terms; balance_size: the smallest
    of balance, marginal and floor. calibration: of the performance model, in words. run_fit: how the user's
    own steps changed the model, in words. runs_on: title of the accelerator whose runs scale the model, if
    the user has none on this one. software: whose measurements calibrate the model; None if only priors are
    used. time_per_step_time: modelled time of the training over that of its steps; more than 1 for
    pretrainings and where evaluation counts; None without a model. time_per_step_time_of: title of the
    published pretraining of the same model that sets it; None if all of its kind do. unfit: eligible sizes
    without a candidate.
    best_strategies: at the recommended size, the fastest first, each as a candidate with this strategy.
    trainings: the user's own whole trainings; None if there are none. shortfall: set if nothing fits.
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
    """The recommended candidate on one kind of terms. candidate: with the figures of these terms."""

    candidate: Candidate
    tornado: Tornado | None


class Answer(Struct, frozen=True, kw_only=True, dict=True):
    """The recommendation or the refusal, with all candidates and explanations.

    work: the work that the times are for, as in "the time to ...". chosen_for_you: choices made where the
    question left them open, in words; shown first. offers: the candidate that each system would be chosen at,
    the best first; the first is the recommendation, the second the best on any other system or terms.
    alternatives: the best of the other candidates. time_values: the best candidate for each range of the
    value of an hour, the cheapest first. frontier: ids of the Pareto-optimal candidates in time, money and
    energy. rollout: how the recommended accelerators share generation and training; None if nothing is
    generated. safer: the fastest strategy that is likely to fit, if the recommended one may not; None if
    there is none or it is not needed.
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
        """Scripts that run the recommended strategy; empty if the strategy or a launcher is not known."""
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
        """The notes of the given kinds."""
        return [each for each in self.notes if each.kind in kinds]

    @property
    def doubts(self) -> tuple[Note, ...]:
        """The first note on unused evidence and the first on evidence to check, for the headline."""
        return (*self.notes_of("not_used")[:1], *self.notes_of("check")[:1])

    @property
    def listed(self) -> tuple[Candidate, ...]:
        """Candidates of usual sizes, and of other sizes if recommended, offered or named in a refusal."""
        refusal = self.refusal
        named = (self.recommended, *((refusal.cheapest, refusal.fastest) if refusal is not None else ()))
        kept = {each.id for each in named if each is not None} | {each.candidate for each in self.offers}
        return tuple(each for each in self.candidates if not each.is_between or each.id in kept)

    def sizes_of(self, one: Candidate) -> list[Candidate]:
        """The listed candidates of its system and terms that have a time, in ascending order of size."""
        known = (each for each in self.listed if each.time_s is not None and each.group == one.group)
        return sorted(known, key=lambda each: each.num_accelerators)

    @cached_property
    def steps(self) -> SizeSteps:
        """The steps to and from the recommended size."""
        sizes = [] if self.recommended is None else self.sizes_of(self.recommended)
        names = [each.id for each in sizes]
        at = names.index(self.recommended.id) if self.recommended and self.recommended.id in names else None
        if at is None:
            return SizeSteps()
        start_s = self.question.start_s
        # A size that is no faster than a smaller one is no sensible start of a step.
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
        """The choice on demand, if the commitment leaves hours unused and costs more."""
        best = self.recommended
        if best is None or best.usd is None or best.charges is None or not best.charges.unused_usd:
            return None
        on_demand = (each.candidate for each in self.renting if each.candidate.terms == "on_demand")
        return next((each for each in on_demand if each.usd and each.usd.value < best.usd.value), None)

    @property
    def why_not_launched(self) -> str | None:
        """Why no program can be named that starts the recommended strategy; None if some can."""
        best, cluster = self.recommended, self.system.cluster
        if best is None:
            return "nothing is recommended"
        if best.strategy is None:
            return "the recommendation was published or measured, and its strategy is not known"
        if cluster is None:
            return "its accelerator is not in the catalogue"
        if self.rollout is not None:
            return "no program here generates completions, which GRPO needs"
        if not cluster.accelerator.is_started:
            title, vendor = cluster.accelerator.title, cluster.accelerator.vendor
            return f"no script here starts {title}: torch's launcher cannot; see {vendor}'s guide"
        return None

    @property
    def is_launched(self) -> bool:
        """Whether a strategy is recommended that known programs can start."""
        return self.why_not_launched is None

    @property
    def settings(self) -> tuple["Setting", ...]:
        """Runtime settings that have a measured or documented reason on the recommended system."""
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
        """The cluster with the recommended number of accelerators; None if it is not in the catalogue."""
        cluster = self.system.cluster
        if cluster is None or self.recommended is None:
            return None
        return replace(cluster, num_accelerators=self.recommended.num_accelerators)

    @property
    def system(self) -> SystemAnswer:
        """The system of the recommended candidate; the first system if there is none."""
        if self.recommended is None:
            return self.systems[0]
        return next(each for each in self.systems if each.name == self.recommended.system)

    @property
    def shown(self) -> Candidate | None:
        """The recommended candidate, else the fastest eligible one; None if there is none."""
        if self.recommended is not None:
            return self.recommended
        return None if self.refusal is None else self.refusal.fastest

    def candidate(self, candidate_id: str) -> Candidate:
        """The candidate with this id."""
        return next(each for each in self.candidates if each.id == candidate_id)

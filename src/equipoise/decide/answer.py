"""Answer: what a question comes to, as records. decision.py makes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.decide.candidate import Candidate, ConstraintName, UserRun
from equipoise.decide.estimate import ErrorRecord, Estimates, Source
from equipoise.decide.query import TrainingQuery
from equipoise.economics import PriceTerms, Rates
from equipoise.economics.owning import Ownership
from equipoise.economics.uncertain import Tornado
from equipoise.launch import Setting, Snippet
from equipoise.scaling.equilibrium import Equilibrium, Limit
from equipoise.spec.cluster import Cluster
from equipoise.spec.workload import Workload
from equipoise.stats import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """The least change of one limit that would do. candidate: id of the one it makes feasible, if known."""

    constraint: ConstraintName
    limit: float
    needed: float
    candidate: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why no candidate keeps every limit.

    cheapest, fastest: of all sizes that may be taken; None without prices, or where no strategy fits at all.
    relaxations: one per limit whose change alone would do; empty where several have to change, then `joint`
    has the least of each for the candidate that is closest.
    """

    cheapest: Candidate | None
    fastest: Candidate | None
    relaxations: tuple[Relaxation, ...]
    joint: tuple[Relaxation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A value of one input at which another candidate would be recommended. to: its id.

    value: what the answer rests on; flips_at: the nearest value that changes it, found by solving for it.
    """

    quantity: str
    unit: str
    value: float
    flips_at: float
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeValue:
    """From which value of an hour on a candidate costs least, money and time together. candidate: its id."""

    from_usd_per_hour: float
    candidate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another candidate, and when it would win, in one sentence. strategy: where only that differs."""

    candidate: Candidate
    wins_when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why strategies, or whole sizes, are no candidates. needed, available: in the unit of the reason."""

    reason: str
    needed: float | None
    available: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One sentence of why, with what it rests on. formula: where a law is behind it."""

    words: str
    sources: tuple[Source, ...] = ()
    formula: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What to measure to reduce the uncertainty. narrowed: the interval of the time that it would leave."""

    words: str
    command: str | None
    narrowed: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemAnswer:
    """All that is known of one system for the question, before systems are compared.

    name: as the catalogue has it. cluster: None where the catalogue does not have it (a machine at hand).
    estimates: of each estimator. equilibria: over its sizes on its first terms; balance_size: the first
    reason to stop. calibration, learnt: of the performance model, in words, and what the user's own steps
    made of it.
    best_strategies: of the recommended size, the fastest first, each as a candidate that has this strategy.
    """

    name: str
    title: str
    cluster: Cluster | None
    node_size: int | None
    stock: int | None
    rates: Mapping[PriceTerms, Rates]
    estimates: tuple[Estimates, ...] = field(metadata={"json": False})
    equilibria: tuple[Equilibrium, ...]
    balance_size: int | None
    best_strategies: tuple[Candidate, ...]
    user_runs: tuple[UserRun, ...]
    rejected: tuple[Rejection, ...]
    records: tuple[ErrorRecord, ...]
    calibration: str | None
    transferred_from: str | None
    learnt: str | None
    num_considered: int
    num_fitting: int
    search_s: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Renting:
    """The recommended candidate on one kind of terms. candidate: as it would be there."""

    candidate: Candidate
    tornado: Tornado | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to do, or why nothing keeps the limits; and everything else that was looked at.

    work: what the times are for, as in "the time to ...". chosen_for_you: what the question left open and was
    chosen, in words: shown first. alternatives: the best of the rest. time_values: which candidate is best
    from which value of an hour on, the cheapest first. frontier: ids of the candidates that none beats in
    time, money and energy at once.
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
    alternatives: tuple[Alternative, ...]
    rejected: tuple[Rejection, ...]
    reasons: tuple[Reason, ...]
    to_measure: tuple[Measurement, ...]
    records: tuple[ErrorRecord, ...]
    swing: Tornado | None
    renting: tuple[Renting, ...]
    ownership: Ownership | None
    snippets: tuple[Snippet, ...]
    settings: tuple[Setting, ...]
    chosen_for_you: tuple[str, ...]
    notes: tuple[str, ...]
    num_considered: int
    search_s: float

    @property
    def system(self) -> SystemAnswer:
        """The system of the recommended candidate; the first where none is."""
        if self.recommended is None:
            return self.systems[0]
        return next(each for each in self.systems if each.name == self.recommended.system)

    def candidate(self, candidate_id: str) -> Candidate:
        """The candidate of an id."""
        return next(each for each in self.candidates if each.id == candidate_id)

"""What an advice is: the choice, its evidence, what comes close, reasons, what to measure. Records only."""

from collections.abc import Mapping
from dataclasses import dataclass

from equipoise.advice.answer.asked import Request
from equipoise.advice.answer.checked_traces import TraceCheck
from equipoise.advice.answer.evidence import Evidence, Source
from equipoise.advice.answer.like_chips import LikeChip
from equipoise.advice.answer.own_runs import OwnRun
from equipoise.advice.forecast.answer import Forecast
from equipoise.advice.launch.settings import Setting
from equipoise.advice.launch.snippet import Snippet
from equipoise.advice.plans.planned import Length, Option, Plan
from equipoise.advice.risk import Risk
from equipoise.economics import Bill, Rates
from equipoise.economics.owning import Ownership
from equipoise.economics.uncertain import Tornado
from equipoise.scaling.equilibrium import Equilibrium
from equipoise.spec.cluster import Cluster
from equipoise.stats import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """So many accelerators: the joint time with all its evidence, its bill, and the strategy to train with.

    option: the best strategy of the performance model at this size; None where it has none. run: the user's
    own fastest set-up of this very size; None where none was measured. disagreement: the factor by
    which the time's interval was widened because the evidence differs; 1 where it does not. chance_in_time:
    that the deadline is kept; None without one.
    """

    accelerator: str
    num_accelerators: int
    option: Option | None
    run: OwnRun | None
    time: Interval
    evidence: tuple[Evidence, ...]
    disagreement: float
    bill: Bill
    chance_in_time: float | None = None

    @property
    def accelerator_hours(self) -> float:
        """What it takes of them."""
        return self.bill.accelerator_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class NextDoubling:
    """What twice the accelerators would gain and cost. gain_s: negative where they take longer.

    usd: what they cost more; None without a price. hour_usd: what an hour must be worth for it to pay.
    """

    num_accelerators: int
    time: Interval
    gain_s: float
    gain_fraction: float
    accelerator_hours_factor: float
    usd: float | None
    hour_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Something else to take, and when it would win. wins_when: a sentence."""

    choice: Choice
    words: str
    wins_when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One sentence of why, with what it rests on. formula: where a law is behind it."""

    words: str
    sources: tuple[Source, ...] = ()
    formula: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What to measure to be surer. narrowed: the interval of the time that it would leave.

    words: what to do, in a sentence. command: what to type; None where there is no one command.
    """

    words: str
    command: str | None
    narrowed: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """How wrong answers of a kind were on what was held out. of: what, in words, with its number.

    words: the sentence for people.
    """

    kind: str
    of: str
    num_held_out: int
    median_abs_error: float | None
    p90_abs_error: float | None
    coverage: float | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """All that is known of one kind of machine for the request, before machines are compared.

    cluster: None where the catalogue lacks what it takes. length: of the training. choices: by size, those
    that may be taken; beyond: by size, those that only show what more would do. layouts: the best strategies
    at the recommended size, the one to take first. recommended: None where `obstacle` says why.
    points: equilibria of the joint curve; answer: the first reason to stop. traces: of the user on this kind
    of accelerator, beside what the model says of them. like: the chip whose results were carried over to it.
    learnt: in words, what the own steps of the user made of the model.
    """

    accelerator: str
    title: str
    cluster: Cluster | None
    plan: Plan | None
    forecast: Forecast | None
    rates: Rates
    length: Length
    choices: tuple[Choice, ...]
    beyond: Mapping[int, Choice]
    recommended: Choice | None
    layouts: tuple[Option, ...]
    obstacle: str | None
    points: tuple[Equilibrium, ...]
    answer: Equilibrium | None
    notes: tuple[str, ...]
    traces: tuple[TraceCheck, ...] = ()
    like: LikeChip | None = None
    learnt: str | None = None

    @property
    def everyone(self) -> tuple[Choice, ...]:
        """Every size known, those that only show what more would do included, from the smallest."""
        return tuple(sorted((*self.choices, *self.beyond.values()), key=lambda each: each.num_accelerators))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer. standing: of the machine to take; others: of those compared with it.
    next_doubling: None where twice as many are beyond all evidence. alternatives: the closest first. swing:
    what moves the money, the largest part first; of accelerator-hours where there is no price. risks: of the
    choice on each terms of renting, with what fails on the way. ownership: of such an accelerator, where
    buying was asked about and can be told. snippets: to run it, the command first; settings: of the runtime,
    with their reasons.
    """

    request: Request
    workload: str
    title: str
    standing: Standing
    others: tuple[Standing, ...]
    next_doubling: NextDoubling | None
    alternatives: tuple[Alternative, ...]
    reasons: tuple[Reason, ...]
    to_measure: tuple[Measurement, ...]
    records: tuple[ErrorRecord, ...]
    swing: Tornado | None
    risks: tuple[Risk, ...]
    ownership: Ownership | None
    snippets: tuple[Snippet, ...]
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]

    @property
    def recommended(self) -> Choice | None:
        """What to take."""
        return self.standing.recommended

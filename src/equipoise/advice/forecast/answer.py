"""What is asked of a forecast and what it answers: records only."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from equipoise.economics import DEFAULT_GRID, Bill, Electricity, PriceTerms, Rates, electricity
from equipoise.errors import UsageError
from equipoise.scaling.equilibrium import Equilibrium
from equipoise.scaling.law import Domain, FloatArray
from equipoise.stats import Interval

EvidenceKind: TypeAlias = Literal["published", "measured"]
LEVEL = 0.9
# A prediction a size; more is a grid, and grids are for scripts that call Python.
MAX_SIZES = 64
MAX_ACCELERATORS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What is asked. sizes: numbers of accelerators; empty for those measured and one doubling more.

    round: whose results of the group to start from; its newest unless given. law: a name, for that one alone.
    """

    workload: str | None = None
    accelerator: str | None = None
    sizes: tuple[int, ...] = ()
    global_batch_samples: float | None = None
    law: str | None = None
    round: str | None = None

    def __post_init__(self) -> None:
        """Refuse sizes and batches that cannot be."""
        wrong = [size for size in self.sizes if not 1 <= size <= MAX_ACCELERATORS]
        if wrong:
            raise UsageError(f"--at {wrong[0]}; expected whole numbers from 1 to {MAX_ACCELERATORS:,}")
        if len(self.sizes) > MAX_SIZES:
            raise UsageError(f"--at has {len(self.sizes)} sizes; expected at most {MAX_SIZES}")
        batch = self.global_batch_samples
        if batch is not None and not 1.0 <= batch < float("inf"):
            raise UsageError(f"--global-batch {batch:g}; expected a finite number of samples, at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What money and time are worth to who asks.

    usd_per_accelerator_hour: instead of the price table. usd_per_hour: what an hour of waiting costs.
    deadline_s: no training may take longer. price_terms: on which to rent. usd_per_kwh, pue: of one's own
    electricity and building; where either is given, bills tell what the electricity costs.
    """

    usd_per_accelerator_hour: float | None = None
    region: str = DEFAULT_GRID
    usd_per_hour: float | None = None
    deadline_s: float | None = None
    price_terms: PriceTerms = "on_demand"
    usd_per_kwh: float | None = None
    pue: float | None = None

    def electricity(self, *, in_office: bool = False) -> Electricity | None:
        """What the user says of electricity, the rest as usual; None where nothing is said.

        in_office: what is usual in a room for people, not in a data centre.
        Raises UsageError for what is no such amount.
        """
        if self.usd_per_kwh is None and self.pue is None:
            return None
        return electricity(usd_per_kwh=self.usd_per_kwh, pue=self.pue, in_office=in_office)

    def __post_init__(self) -> None:
        """Refuse what is no amount."""
        for option, value in (("--hour-usd", self.usd_per_hour), ("--deadline", self.deadline_s)):
            if value is not None and not 0.0 < value < float("inf"):
                raise UsageError(f"{option} is {value:g}; expected a finite number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """How wrong predictions of this kind were on results held out. coverage: of the 90 % interval.

    of: what was held out, in words. num_held_out: how many results the figures are from.
    """

    of: str
    num_held_out: int
    median_abs_error: float
    p90_abs_error: float | None
    coverage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A result that bore on the answer. weight: its share of all weights; None where all count alike.

    ref: the entry, or the user's file. time_s: its time at num_accelerators, median where there are several.
    """

    kind: EvidenceKind
    ref: str
    num_accelerators: int
    time_s: float
    weight: float | None
    is_own: bool
    source_uri: str | None = None
    source_line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LawUsed:
    """The law behind the numbers. values: of a fitted law, by parameter. shares: of all laws weighed."""

    name: str
    assumes: str
    source: str
    values: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """The time at one size. outside: in words, why it is an extrapolation; None in the domain.

    energy_j: measured at this very size; None elsewhere. record: None where none was ever made.
    """

    num_accelerators: int
    time: Interval
    outside: str | None
    record: Record | None
    energy_j: float | None = None

    @property
    def in_domain(self) -> bool:
        """Whether the evidence covers sizes like this one."""
        return self.outside is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What one kind of evidence says, before anything is priced.

    work: what the times are for. domain: the sizes measured. curves_s: equally likely curves of time, as
    Fit.curves_s.
    """

    law: LawUsed
    work: str
    round: str | None
    domain: Domain
    foretold: tuple[Foretold, ...]
    curves_s: Callable[[FloatArray], FloatArray]
    evidence: tuple[Evidence, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The answer: times with their bills (the same length), equilibria, and the ground they stand on.

    answer: the first reason to stop; None without equilibria, and no_equilibria then says why.
    """

    workload: str | None
    accelerator: str | None
    ground: Ground
    bills: tuple[Bill, ...]
    rates: Rates
    equilibria: tuple[Equilibrium, ...]
    answer: Equilibrium | None
    no_equilibria: str | None

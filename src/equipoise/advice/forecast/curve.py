"""Times by size from published results or a user's own times: what is asked of a curve and what it says.

Records only: no money, no choice.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from equipoise.errors import UsageError
from equipoise.scaling.law import Domain, FloatArray
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.stats import Interval

EvidenceKind: TypeAlias = Literal["published", "measured"]
LEVEL = 0.9
# A prediction per size; more is a grid, and grids are for scripts that call Python.
MAX_SIZES = 64
MAX_ACCELERATORS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveQuestion:
    """What is asked. sizes: numbers of accelerators; empty for those measured and one doubling more.

    round: whose results of the group to start from; its newest unless given. law: a name, for that one alone.
    catalogue: what names mean.
    """

    workload: str | None = None
    accelerator: str | None = None
    sizes: tuple[int, ...] = ()
    global_batch_samples: float | None = None
    law: str | None = None
    round: str | None = None
    catalogue: Catalogue = field(default_factory=shipped, repr=False)

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
    """The law behind the numbers. values: of a fitted law, by parameter. shares: of all laws combined."""

    name: str
    assumes: str
    source: str
    values: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedTime:
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
class TimeCurve:
    """What published results, or a user's own times, say of time against size.

    work: what the times are for. domain: the sizes measured. curves_s: equally likely curves of time, as
    Fit.curves_s.
    """

    law: LawUsed
    work: str
    round: str | None
    domain: Domain
    predictions: tuple[PredictedTime, ...]
    curves_s: Callable[[FloatArray], FloatArray]
    evidence: tuple[Evidence, ...]
    notes: tuple[str, ...]

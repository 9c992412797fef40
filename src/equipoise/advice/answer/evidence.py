"""What a piece of evidence is, and a witness: one kind of evidence that tells times at several sizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from equipoise.scaling.law import Domain, FloatArray
from equipoise.stats import Interval

EvidenceKind: TypeAlias = Literal["published", "measured", "modelled"]
Curves: TypeAlias = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a witness has it from. ref: an entry, a run, a formula. share: of what that witness says.

    time_s: the time at num_accelerators that stands there; None where it states none.
    """

    kind: EvidenceKind
    ref: str
    share: float | None = None
    num_accelerators: int | None = None
    time_s: float | None = None
    source_uri: str | None = None
    source_line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """One kind of evidence: the time of the training at each size that it can tell, and why so sure.

    name: as in "published says ...". times: by number of accelerators, as the witness states them. log_sds:
    how wrong such times were, by size: the standard deviation of the logarithm; it decides the weight. why:
    what it rests on, in words, by size. curves_s: equally likely curves of time over
    `domain`; None where it tells no curve. is_beside: shown for comparison, without weight where others tell
    the time: what it says is in theirs already.
    """

    kind: EvidenceKind
    name: str
    times: Mapping[int, Interval]
    log_sds: Mapping[int, float]
    why: Mapping[int, str]
    sources: tuple[Source, ...]
    curves_s: Curves | None = None
    domain: Domain | None = None
    is_beside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one witness says of one size, and its weight in the answer. time: of the whole training."""

    kind: EvidenceKind
    name: str
    time: Interval
    weight: float
    why: str
    sources: tuple[Source, ...] = field(default=())

    @property
    def ref(self) -> str:
        """The first of its sources, in words."""
        return self.sources[0].ref if self.sources else self.name

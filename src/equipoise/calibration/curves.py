"""Times by size.

The question of a curve, and the laws of time against size fitted to measured times alone.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct, field

from equipoise.errors import FitError
from equipoise.intervals import LEVEL, Interval
from equipoise.scaling.fit import Fit, MeasuredTimes, fit, predict
from equipoise.scaling.laws import CANDIDATES, Domain, FloatArray, Law, law_named
from equipoise.scaling.posterior import MEASURED_NOISE, Noise
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.units import format_count

EvidenceKind: TypeAlias = Literal["published", "measured"]


class CurveQuestion(Struct, frozen=True, kw_only=True):
    """The question. sizes: numbers of accelerators; empty for those measured and one doubling more.

    round: whose results of the group to start from; its newest unless given. law: a name, for that one alone.
    catalogue: what names mean.
    """

    workload: str | None = None
    accelerator: str | None = None
    sizes: tuple[int, ...] = ()
    global_batch_samples: float | None = None
    law: str | None = None
    round: str | None = None
    catalogue: Catalogue = field(default_factory=shipped)


class ForecastRecord(Struct, frozen=True, kw_only=True):
    """How wrong predictions of this kind were on results held out. coverage: of the 90 % interval.

    of: what was held out, in words. num_held_out: how many results the figures are from.
    """

    of: str
    num_held_out: int
    median_abs_error: float
    p90_abs_error: float | None
    coverage: float


class CurveEvidence(Struct, frozen=True, kw_only=True):
    """A result that bore on the answer. weight: its share of all weights; None where all count equally.

    ref: the entry, or the user's file. time_s: its time at num_accelerators, median where there are several.
    """

    kind: EvidenceKind
    ref: str
    num_accelerators: int
    time_s: float
    weight: float | None
    is_same_group: bool
    source_uri: str | None = None
    source_line: int | None = None


class LawUsed(Struct, frozen=True, kw_only=True):
    """The law behind the numbers. values: of a fitted law, by parameter. shares: of all laws combined."""

    name: str
    assumes: str
    source: str
    values: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


class PredictedTime(Struct, frozen=True, kw_only=True):
    """The time at one size. outside: in words, why it is an extrapolation; None in the domain.

    energy_j: measured at this very size; None elsewhere. record: None where none was ever made.
    """

    num_accelerators: int
    time: Interval
    outside: str | None
    record: ForecastRecord | None
    energy_j: float | None = None

    @property
    def in_domain(self) -> bool:
        """Whether the evidence covers sizes like this one."""
        return self.outside is None


class TimeCurve(Struct, frozen=True, kw_only=True):
    """Time against size by published results, or by a user's own times.

    work: what the times are for. domain: the sizes measured. curves_s: equally likely curves of time, as
    Fit.curves_s.
    """

    law: LawUsed
    work: str
    round: str | None
    domain: Domain
    predictions: tuple[PredictedTime, ...]
    curves_s: Callable[[FloatArray], FloatArray]
    evidence: tuple[CurveEvidence, ...]
    notes: tuple[str, ...]


_MOST_SIZES = 8


def fitted_curve(
    data: MeasuredTimes,
    sizes: Sequence[int],
    *,
    law: str | None,
    noise: Noise = MEASURED_NOISE,
    work: str,
    evidence: tuple[CurveEvidence, ...],
    notes: tuple[str, ...] = (),
) -> TimeCurve:
    """The curve of laws fitted to measured times.

    law: the name of the only one to fit; all candidates unless given. noise: the scatter to expect.

    Raises FitError, naming what to measure, where the points are too few or do not depend on size.
    """
    laws = CANDIDATES if law is None else (law_named(law),)
    fitted = fit(data, laws, noise=noise)
    found = predict(fitted, [float(size) for size in sizes], level=LEVEL, of="run")
    record = _record(data, laws, noise)
    return TimeCurve(
        law=_law_used(fitted),
        work=work,
        round=None,
        domain=fitted.domain,
        predictions=tuple(
            PredictedTime(
                num_accelerators=size,
                time=Interval(
                    value=float(found.time_s[i]),
                    low=float(found.low_s[i]),
                    high=float(found.high_s[i]),
                    level=LEVEL,
                ),
                outside=_outside(size, float(found.extrapolation[i]), fitted),
                record=record,
            )
            for i, size in enumerate(sizes)
        ),
        curves_s=fitted.curves_s,
        evidence=evidence,
        notes=(*notes, *_outlier_notes(fitted)),
    )


def sizes_of_interest(measured: FloatArray) -> tuple[int, ...]:
    """The sizes to answer for when none is given: those measured, and one doubling more.

    Of many, a few even steps between the ends.
    """
    sizes = np.unique(measured)
    if len(sizes) > _MOST_SIZES:
        even = np.linspace(0, len(sizes) - 1, _MOST_SIZES).round().astype(int)
        sizes = sizes[even]
    return (*(int(size) for size in sizes), int(2 * sizes[-1]))


def _law_used(fitted: Fit) -> LawUsed:
    best = fitted.best
    return LawUsed(
        name=best.law.name,
        assumes=best.law.assumes,
        source=best.law.source,
        values=dict(zip(best.law.params, map(float, best.values), strict=True)),
        shares={each.law.name: each.weight for each in fitted.laws},
    )


def _outside(size: int, extrapolation: float, fitted: Fit) -> str | None:
    if extrapolation <= 1.0:
        return None
    beyond, end = ("beyond", "largest") if size > fitted.domain.largest else ("below", "smallest")
    at = fitted.domain.largest if beyond == "beyond" else fitted.domain.smallest
    return f"{extrapolation:.3g} times {beyond} the {end} measured size, {format_count(at)}"


def _outlier_notes(fitted: Fit) -> tuple[str, ...]:
    far = int(np.sum(fitted.outliers))
    if not far:
        return ()
    sizes = ", ".join(
        format_count(size) for size in np.unique(fitted.points.num_accelerators[fitted.outliers])
    )
    return (f"{far} runs are too far from any law and were excluded (at {sizes} accelerators).",)


def _record(data: MeasuredTimes, laws: tuple[Law, ...], noise: Noise) -> ForecastRecord | None:
    """How wrong the laws are at the largest measured size, fitted to the smaller ones; None with too few."""
    largest = data.sizes[-1]
    smaller = data.where(data.num_accelerators < largest)
    try:
        found = predict(fit(smaller, laws, noise=noise), largest, level=LEVEL, of="run")
    except FitError:
        return None
    actual_s = float(np.median(data.time_s[data.num_accelerators == largest]))
    error = abs(float(found.time_s[0]) / actual_s - 1.0)
    return ForecastRecord(
        of=f"the largest size measured, {format_count(largest)}, from the smaller ones",
        num_held_out=1,
        median_abs_error=error,
        p90_abs_error=None,
        coverage=float(found.low_s[0] <= actual_s <= found.high_s[0]),
    )

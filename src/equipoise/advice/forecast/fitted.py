"""Forecasts from measured times alone: the laws of time against size, fitted and weighed."""

from collections.abc import Sequence

import numpy as np

from equipoise.advice.forecast.curve import LEVEL, Evidence, LawUsed, PredictedTime, Record, TimeCurve
from equipoise.errors import FitError
from equipoise.scaling.fit import Fit, Points, fit, predict
from equipoise.scaling.law import FloatArray, Law
from equipoise.scaling.laws import CANDIDATES, law_named
from equipoise.scaling.posterior import MEASURED_NOISE, Noise
from equipoise.stats import Interval
from equipoise.units import format_count

_MOST_SIZES = 8


def fitted_curve(
    data: Points,
    sizes: Sequence[int],
    *,
    law: str | None,
    noise: Noise = MEASURED_NOISE,
    work: str,
    evidence: tuple[Evidence, ...],
    notes: tuple[str, ...] = (),
) -> TimeCurve:
    """What laws fitted to the points say.

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
    """The sizes to answer for when none is asked: those measured, and one doubling more.

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
    return (f"{far} runs lie too far from any law and were left out (at {sizes} accelerators).",)


def _record(data: Points, laws: tuple[Law, ...], noise: Noise) -> Record | None:
    """How wrong the laws are at the largest measured size, fitted to the smaller ones; None with too few."""
    largest = data.sizes[-1]
    smaller = data.where(data.num_accelerators < largest)
    try:
        found = predict(fit(smaller, laws, noise=noise), largest, level=LEVEL, of="run")
    except FitError:
        return None
    actual_s = float(np.median(data.time_s[data.num_accelerators == largest]))
    error = abs(float(found.time_s[0]) / actual_s - 1.0)
    return Record(
        of=f"the largest size measured, {format_count(largest)}, from the smaller ones",
        num_held_out=1,
        median_abs_error=error,
        p90_abs_error=None,
        coverage=float(found.low_s[0] <= actual_s <= found.high_s[0]),
    )

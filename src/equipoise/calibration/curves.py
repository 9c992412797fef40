"""Time against size: the question, laws fitted to measured times alone, and the records that ship.

The records hold settings and errors of the pooled law, and the accuracy of recommended numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct, field

from equipoise.calibration import EvidenceSource, HeldOutErrors
from equipoise.errors import FitError
from equipoise.files import shipped_record
from equipoise.intervals import LEVEL, Interval
from equipoise.notes import Note
from equipoise.scaling.backtest import JUMPS, BacktestSummary, Protocol
from equipoise.scaling.fit import Fit, MeasuredTimes, fit, fit_or_flat, predict
from equipoise.scaling.laws import CANDIDATES, Domain, FloatArray, Law, law_named
from equipoise.scaling.pooled import SubmitterSpread
from equipoise.scaling.posterior import MEASURED_NOISE, Noise
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.units import MOST_LISTED, format_count, format_duration, listed


class CurveQuestion(Struct, frozen=True, kw_only=True):
    """A question about a curve. sizes: numbers of accelerators; empty for measured sizes plus one doubling.

    round: the round whose results of the group are used; by default the newest. law: use only this law.
    catalogue: for resolving names.
    """

    workload: str | None = None
    accelerator: str | None = None
    sizes: tuple[int, ...] = ()
    global_batch_samples: float | None = None
    law: str | None = None
    round: str | None = None
    catalogue: Catalogue = field(default_factory=shipped)


class LawUsed(Struct, frozen=True, kw_only=True):
    """The law behind a curve. values: fitted parameters by name. shares: weights of combined laws by name."""

    name: str
    assumes: str
    source: str
    values: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


class PredictedTime(Struct, frozen=True, kw_only=True):
    """The time at one size. outside: why it is an extrapolation; None inside the domain.

    energy_j: measured at this size, or None. record: errors of such predictions; None if there is no record.
    """

    num_accelerators: int
    time: Interval
    outside: str | None
    record: HeldOutErrors | None
    energy_j: float | None = None

    @property
    def in_domain(self) -> bool:
        """Whether the size is inside the domain of the evidence."""
        return self.outside is None


class TimeCurve(Struct, frozen=True, kw_only=True):
    """Time against size, from published results or from a user's own times.

    work: description of what the times measure. domain: the range of measured sizes. curves_s: equally likely
    curves of time, as Fit.curves_s.
    """

    law: LawUsed
    work: str
    round: str | None
    domain: Domain
    predictions: tuple[PredictedTime, ...]
    curves_s: Callable[[FloatArray], FloatArray]
    evidence: tuple[EvidenceSource, ...]
    notes: tuple[Note, ...]


_MOST_SIZES = 8


def fitted_curve(
    data: MeasuredTimes,
    sizes: Sequence[int],
    *,
    law: str | None,
    noise: Noise = MEASURED_NOISE,
    work: str,
    evidence_of: Callable[[MeasuredTimes], tuple[EvidenceSource, ...]],
    notes: tuple[Note, ...],
) -> TimeCurve:
    """The curve of laws fitted to measured times.

    law: the only law to fit; by default all candidates are combined. noise: the expected scatter.
    evidence_of: returns the sources of the points that were kept, i.e. not rejected as outliers.

    Raises FitError, naming what to measure, if the points are too few or do not depend on size.
    """
    laws = CANDIDATES if law is None else (law_named(law),)
    fitted = fit_or_flat(data, noise=noise) if law is None else fit(data, laws, noise=noise)
    found = predict(fitted, [float(size) for size in sizes], level=LEVEL, of="run")
    kept = fitted.points.where(~fitted.outliers)
    record = _record(kept, laws, noise)
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
        evidence=evidence_of(kept),
        notes=(*notes, *_outlier_notes(fitted), *_stray_notes(fitted)),
    )


def sizes_of_interest(measured: FloatArray) -> tuple[int, ...]:
    """Default sizes of a curve: the measured ones plus one doubling.

    If there are many, a few evenly spaced ones.
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


def _outlier_notes(fitted: Fit) -> tuple[Note, ...]:
    far = int(np.sum(fitted.outliers))
    if not far:
        return ()
    sizes = ", ".join(
        format_count(size) for size in np.unique(fitted.points.num_accelerators[fitted.outliers])
    )
    return (Note(f"Runs too far from any law are excluded: {far} (at {sizes} accelerators).", "not_used"),)


def _stray_notes(fitted: Fit) -> tuple[Note, ...]:
    """Notes on sizes whose measurements no law follows, e.g. because only larger sizes span several nodes."""
    points = fitted.points
    by_law = predict(fitted, points.sizes, level=LEVEL, of="run")
    apart = []
    for size, low_s, high_s in zip(points.sizes, by_law.low_s, by_law.high_s, strict=True):
        measured_s = float(np.median(points.time_s[points.num_accelerators == size]))
        if not low_s <= measured_s <= high_s:
            within = f"{format_duration(low_s)} to {format_duration(high_s)}"
            apart.append(f"{format_duration(measured_s)} on {format_count(size)} ({within} by the laws)")
    if not apart:
        return ()
    words = (
        f"no law follows the measured {listed(apart, MOST_LISTED)}: they may be of other software, or cross "
        "a slower link; fit the sizes before and after by themselves."
    )
    return (Note(words, "check"),)


def _record(data: MeasuredTimes, laws: tuple[Law, ...], noise: Noise) -> HeldOutErrors | None:
    """Errors of the laws at the largest measured size when fitted to the smaller ones; None if too few."""
    largest = data.sizes[-1]
    smaller = data.where(data.num_accelerators < largest)
    try:
        found = predict(fit(smaller, laws, noise=noise), largest, level=LEVEL, of="run")
    except FitError:
        return None
    actual_s = float(np.median(data.time_s[data.num_accelerators == largest]))
    error = abs(float(found.time_s[0]) / actual_s - 1.0)
    return HeldOutErrors(
        of=f"the largest size measured, {format_count(largest)}, from the smaller ones",
        num_held_out=1,
        median_abs_error=error,
        p90_abs_error=None,
        coverage=float(found.low_s[0] <= actual_s <= found.high_s[0]),
    )


FORECAST = "forecast.json"
HeldOutPart: TypeAlias = Literal["largest", "half"]
Objective: TypeAlias = Literal["answer", "balance", "marginal", "floor", "cost"]
OURS: Final = "equipoise"
ALL_JUMPS = "all"
# Record files for numbers searched on the curves of published results alone, and on those combined with the
# model's (records/combined.py).
PUBLISHED, COMBINED = "advice.json", "combined_advice.json"
# Up to four times the largest known size, and beyond; there are too few groups for a finer division.
ADVICE_JUMPS = JUMPS[-2:]
# Descriptions of what is held out: by protocol for times, by part for advice.
HELD_OUT: Mapping[Protocol | HeldOutPart, str] = {
    "largest": "the largest size of a group",
    "half": "the larger half of a group's sizes",
    "new_round": "all but the smallest size of a group",
}


class Shipped(Struct, frozen=True, kw_only=True):
    """Settings of the pooled law without and with given batches, its errors, and the spread of submitters.

    dataset: version of the dataset that they were computed from.
    """

    dataset: str
    settings_without_batch: Mapping[str, Any] = field(name="settings")
    settings_given_batch: Mapping[str, Any]
    summaries: tuple[BacktestSummary, ...] = field(name="backtests")
    submitters: SubmitterSpread

    def settings(self, *, given_batch: bool) -> Mapping[str, Sequence[float]]:
        """The settings of the pooled law, as parameters of `pooled.fit`."""
        return self.settings_given_batch if given_batch else self.settings_without_batch

    def summary(self, protocol: Protocol, *, given_batch: bool) -> BacktestSummary | None:
        """The full record of one protocol; None if there is none."""
        wanted = (
            each for each in self.summaries if (each.protocol, each.given_batch) == (protocol, given_batch)
        )
        return next(wanted, None)

    def record(self, protocol: Protocol, *, jump: float, given_batch: bool) -> HeldOutErrors | None:
        """The errors at sizes `jump` times the largest known; None if none was held out.

        Without results for given batches, the errors for unknown batches, which are no smaller.
        """
        stated = [self.summary(protocol, given_batch=each) for each in dict.fromkeys((given_batch, False))]
        for found, (name, above, most) in product(stated, JUMPS):
            errors = found and found.pooled_law.by_jump.get(name)
            if errors and above < jump <= most and errors.coverage is not None:
                far = f"up to {most:g}" if np.isfinite(most) else f"more than {above:g}"
                return HeldOutErrors(
                    of=f"{HELD_OUT[protocol]}, {far} times the largest known",
                    num_held_out=errors.num_groups,
                    median_abs_error=errors.median_abs_error or 0.0,
                    p90_abs_error=errors.p90_abs_error,
                    coverage=errors.coverage,
                )
        return None


@cache
def shipped_forecasts() -> Shipped:
    """The shipped record. Raises DataError if the file is missing or invalid."""
    return shipped_record(FORECAST, Shipped, made_by="dataset")


class Way(Struct, frozen=True, kw_only=True):
    """Accuracy of one method of choosing a number. within_doubling, doublings: over the compared numbers.

    regret: loss of the compared numbers relative to those found, on the curve of all sizes. measured_regret:
    loss of all numbers, censored or not, relative to the best measured size. None if nothing was compared.
    """

    within_doubling: float | None
    median_doublings: float | None
    median_regret: float | None
    p90_regret: float | None
    mean_measured_regret: float | None
    p90_measured_regret: float | None


class AdviceErrors(Struct, frozen=True, kw_only=True):
    """The errors for one objective, one held-out part, and a range of jumps in size.

    num_compared: groups whose advised and found numbers lie inside the range of sizes. num_both_beyond: with
    both at the largest size or beyond. num_advised_beyond, num_found_beyond: with only one of them there.
    The remaining groups are at the smallest size or below. coverage: of the 90 % interval.
    methods: the advice and the simple rules, over the same groups.
    """

    objective: Objective
    held_out: HeldOutPart
    jump: str
    num_groups: int
    num_compared: int
    num_both_beyond: int
    num_advised_beyond: int
    num_found_beyond: int
    coverage: float
    methods: Mapping[str, Way]


class AdviceRecord(Struct, frozen=True, kw_only=True):
    """Accuracy of recommended numbers of one kind. of: description; other fields as in AdviceErrors."""

    objective: Objective
    of: str
    num_groups: int
    num_compared: int
    within_doubling: float
    median_regret: float
    p90_regret: float
    coverage: float


class ShippedAdvice(Struct, frozen=True, kw_only=True):
    """The shipped record. dataset: version of the dataset that it was computed from."""

    dataset: str
    errors: tuple[AdviceErrors, ...]

    def record(self, objective: Objective = "answer", *, jump: float = 1.0) -> AdviceRecord | None:
        """Accuracy of the advised number; None if none was ever compared.

        jump: the largest size in question over the largest with a known time. The record of near jumps is
        from groups without their largest size, that of far jumps from groups without their larger half.
        """
        (near, _, most), (far, _, _) = ADVICE_JUMPS
        part, name = ("largest", near) if jump <= most else ("half", far)
        for each in self.errors:
            ours = each.methods[OURS]
            if (each.objective, each.held_out, each.jump) != (objective, part, name):
                continue
            if ours.within_doubling is None or ours.median_regret is None or ours.p90_regret is None:
                return None
            return AdviceRecord(
                objective=objective,
                of=f"{HELD_OUT[each.held_out]} held out, {name} the largest known",
                num_groups=each.num_groups,
                num_compared=each.num_compared,
                within_doubling=ours.within_doubling,
                median_regret=ours.median_regret,
                p90_regret=ours.p90_regret,
                coverage=each.coverage,
            )
        return None


@cache
def shipped_advice(name: str = PUBLISHED) -> ShippedAdvice:
    """The shipped record, PUBLISHED or COMBINED. Raises DataError if the file is missing or invalid."""
    return shipped_record(name, ShippedAdvice, made_by="dataset profiles")

"""Times by size: the question of a curve, laws fitted to measured times alone, and the records that ship.

Records are settings and errors of the pooled law, and how right recommended numbers were.
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
    record: HeldOutErrors | None
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

    law: the name of the only one to fit; all candidates unless given. noise: the scatter to expect.
    evidence_of: the sources that runs are; asked of those that were not left out as too far from any law.

    Raises FitError, naming what to measure, where the points are too few or do not depend on size.
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


def _outlier_notes(fitted: Fit) -> tuple[Note, ...]:
    far = int(np.sum(fitted.outliers))
    if not far:
        return ()
    sizes = ", ".join(
        format_count(size) for size in np.unique(fitted.points.num_accelerators[fitted.outliers])
    )
    return (Note(f"Runs too far from any law are excluded: {far} (at {sizes} accelerators).", "not_used"),)


def _stray_notes(fitted: Fit) -> tuple[Note, ...]:
    """That no law follows what was measured at some size, as where only larger ones cross nodes."""
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
    """How wrong the laws are at the largest measured size, fitted to the smaller ones; None with too few."""
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
# Of numbers sought on the curves of published results alone, and on those combined with the model's
# (records/combined.py).
PUBLISHED, COMBINED = "advice.json", "combined_advice.json"
# Up to four times the largest known, and beyond: too few groups are compared for more.
ADVICE_JUMPS = JUMPS[-2:]
# What is held out, of times by protocol and of advice by part.
HELD_OUT: Mapping[Protocol | HeldOutPart, str] = {
    "largest": "the largest size of a group",
    "half": "the larger half of a group's sizes",
    "new_round": "all but the smallest size of a group",
}


class Shipped(Struct, frozen=True, kw_only=True):
    """Settings of the pooled law without and with given batches, its record, and the spread of submitters.

    dataset: the version they are of.
    """

    dataset: str
    settings_without_batch: Mapping[str, Any] = field(name="settings")
    settings_given_batch: Mapping[str, Any]
    summaries: tuple[BacktestSummary, ...] = field(name="backtests")
    submitters: SubmitterSpread

    def settings(self, *, given_batch: bool) -> Mapping[str, Sequence[float]]:
        """The settings of the pooled law, as `pooled.fit` takes them."""
        return self.settings_given_batch if given_batch else self.settings_without_batch

    def summary(self, protocol: Protocol, *, given_batch: bool) -> BacktestSummary | None:
        """The whole record of one protocol; None where it was not made."""
        wanted = (
            each for each in self.summaries if (each.protocol, each.given_batch) == (protocol, given_batch)
        )
        return next(wanted, None)

    def record(self, protocol: Protocol, *, jump: float, given_batch: bool) -> HeldOutErrors | None:
        """The errors at sizes so many times the largest known; None where none was held out.

        Where none was held out with its batch given, those of batches that the law did not know: no smaller.
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
    """What ships. Raises DataError where the file is missing or no such record."""
    return shipped_record(FORECAST, Shipped, made_by="dataset")


class Way(Struct, frozen=True, kw_only=True):
    """How right one way to choose a number was. within_doubling, doublings: of the numbers compared.

    regret: what the numbers compared lose against those found, on the curve of all sizes; measured_regret:
    what all lose against the best measured size, censored or not. None where nothing was compared.
    """

    within_doubling: float | None
    median_doublings: float | None
    median_regret: float | None
    p90_regret: float | None
    mean_measured_regret: float | None
    p90_measured_regret: float | None


class AdviceErrors(Struct, frozen=True, kw_only=True):
    """The errors for one objective where sizes were held out in one way, at some jumps in size.

    num_compared: groups where the number advised and the one found lie inside the sizes. Of the others:
    num_both_beyond lie at the largest size or beyond; num_advised_beyond and num_found_beyond, only one of
    the two; the rest lie at the smallest or below. coverage: how often the 90 % interval held.
    methods: advice and the simple rules, over the same groups.
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
    """How right numbers like this one were. of: over what, in words; the rest as in AdviceErrors."""

    objective: Objective
    of: str
    num_groups: int
    num_compared: int
    within_doubling: float
    median_regret: float
    p90_regret: float
    coverage: float


class ShippedAdvice(Struct, frozen=True, kw_only=True):
    """The record that ships; dataset: the version it is of."""

    dataset: str
    errors: tuple[AdviceErrors, ...]

    def record(self, objective: Objective = "answer", *, jump: float = 1.0) -> AdviceRecord | None:
        """How right the advised number was; None where none was ever held against one found.

        jump: the largest size in question over the largest with a time. Near jumps are those of the group's
        largest size held out, far ones those of its larger half: the others are few.
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
    """What ships, PUBLISHED or COMBINED. Raises DataError where the file is missing or is no such record."""
    return shipped_record(name, ShippedAdvice, made_by="dataset profiles")

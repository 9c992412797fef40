"""Published results as an estimator: the best result at a size, else times carried over from other sizes.

Sizes without comparable results are carried by the pooled law, sizes beyond its curve by the model's ratio,
and chips without any results from the nearest chip (`other_chips`).
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.calibration import EstimatorName, EvidenceSource
from equipoise.calibration.curves import CurveQuestion, PredictedTime, TimeCurve
from equipoise.calibration.forecasts import beaten_sizes, published_curve, results_of
from equipoise.decide.combine import combined_record, nearest_size, scaled_curves, with_time
from equipoise.decide.evidence import (
    LEAST_LOG_SD,
    DrawnCurves,
    Estimate,
    Estimates,
    Grade,
    PublishedResult,
    beyond_replicates,
    growth_of,
    level_at,
    repeated_log_sd,
)
from equipoise.errors import EvidenceError
from equipoise.intervals import log_sd, product, with_log_sd
from equipoise.scaling.laws import Domain
from equipoise.scaling.pooled import SubmitterSpread
from equipoise.spec.mlperf import Scores, newest_first, round_name
from equipoise.stats import by_key
from equipoise.units import format_count, format_percent, whole_percent

if TYPE_CHECKING:
    from equipoise.runs.readers.measurements import Measurements

# Beyond this many times the largest known size, only times are given, no size is recommended.
# Source: docs/experiments/0017: recommended sizes up to four times the largest known one were right within a
# doubling in 96 %; stopping at the largest known size loses three times as much.
FARTHEST = 4.0
# Error of the model's ratio of times between two strategies of one training.
# Source: docs/experiments/0038: standard deviation of the logarithm, 245 pairs of 7 sources.
_STRATEGY_RATIO_LOG_SD = 0.19
_MAX_RESULTS = 8
_CACHE_SIZE = 256


class PublishedEvidence(Struct, frozen=True, kw_only=True):
    """The published results of a workload on one accelerator.

    at_size: comparable results by size, the best first. curve: by the pooled law; None if it lacks data,
    which `missing` then names. trainings: the user's own whole trainings, if they are part of the curve.
    """

    at_size: Mapping[int, tuple[PublishedResult, ...]]
    curve: TimeCurve | None
    missing: tuple[str, ...] = ()
    trainings: "Measurements | None" = None


def published_evidence(
    scores: Scores,
    question: CurveQuestion,
    *,
    trainings: "Measurements | None" = None,
) -> PublishedEvidence:
    """The published evidence on the question's workload and accelerator.

    Results are comparable if they have the batch and round that the question states, if any.
    trainings: the user's own whole trainings, added as a group next to the published ones.
    """
    known: dict[int, tuple[PublishedResult, ...]] = {}
    if trainings is None:
        batch = question.global_batch_samples
        results = results_at_size(scores, str(question.workload), str(question.accelerator), question.round)
        known = of_batch(results, None if batch is None else int(batch))
    try:
        curve = published_curve(results_of(scores), question, own=trainings)
    except EvidenceError as err:
        return PublishedEvidence(at_size=known, curve=None, missing=err.missing)
    return PublishedEvidence(at_size=known, curve=curve, trainings=trainings)


def results_at_size(
    scores: Scores, workload: str, accelerator: str, round_: str | None = None
) -> dict[int, tuple[PublishedResult, ...]]:
    """The comparable results of each size, the best first; cached, since every system of a question asks.

    Without sizes that others beat (`beaten_sizes`). round_: to use; all unless given.
    """
    of_round = None if round_ is None else round_name(round_)
    return _results_by_accelerator(scores, workload, of_round).get(accelerator, _NO_RESULTS).counted


class BeatenResult(Struct, frozen=True, kw_only=True):
    """The best result at a size, and the result at another size that beats it (`beaten_sizes`)."""

    result: PublishedResult
    other: PublishedResult
    other_size: int


def beaten_at_size(scores: Scores, workload: str, accelerator: str) -> Mapping[int, BeatenResult]:
    """The beaten results, which do not count, by size."""
    return _results_by_accelerator(scores, workload, None).get(accelerator, _NO_RESULTS).beaten


def of_batch(
    known: Mapping[int, tuple[PublishedResult, ...]], global_batch_samples: int | None
) -> dict[int, tuple[PublishedResult, ...]]:
    """The results with a given batch; all if it is None."""
    found = {
        size: tuple(each for each in results if global_batch_samples in {None, each.global_batch_samples})
        for size, results in known.items()
    }
    return {size: results for size, results in found.items() if results}


class _ChipResults(Struct, frozen=True, kw_only=True):
    """The results of a chip: those that count, and the beaten ones, which do not."""

    counted: dict[int, tuple[PublishedResult, ...]] = field(default_factory=dict)
    beaten: Mapping[int, BeatenResult] = field(default_factory=dict)


_NO_RESULTS: Final = _ChipResults()


@lru_cache(maxsize=_CACHE_SIZE)
def _results_by_accelerator(scores: Scores, workload: str, round_: str | None) -> dict[str, _ChipResults]:
    found: dict[str, dict[int, list[PublishedResult]]] = {}
    entries = (each for each in scores.of(workload) if round_ in {None, each.campaign})
    # The newest comes first among equal times.
    for each in sorted(newest_first(entries), key=lambda each: each.score_s):
        at_size = found.setdefault(each.accelerator, {})
        at_size.setdefault(each.num_accelerators, []).append(
            PublishedResult(
                entry_id=each.entry_id,
                round=each.campaign,
                score_s=each.score_s,
                global_batch_samples=each.global_batch_samples,
                source_uri=each.source_uri,
                source_line=each.source_line,
            )
        )
    return {accelerator: _chip_results(at_size) for accelerator, at_size in found.items()}


def _chip_results(at_size: Mapping[int, Sequence[PublishedResult]]) -> _ChipResults:
    beaten = beaten_sizes({size: results[0].score_s for size, results in at_size.items()})
    return _ChipResults(
        counted={
            size: tuple(results[:_MAX_RESULTS])
            for size, results in sorted(at_size.items())
            if size not in beaten
        },
        beaten={
            size: BeatenResult(result=at_size[size][0], other=at_size[other][0], other_size=other)
            for size, other in sorted(beaten.items())
        },
    )


def published_sizes(scores: Scores | None, workload: str, accelerator: str) -> tuple[int, ...]:
    """The sizes with a comparable published result, ascending."""
    return () if scores is None else tuple(results_at_size(scores, workload, accelerator))


# Twice the spread of replicates: beyond it, the user's trainings scale differently from others.
_UNLIKE_LOG: Final = 2.0 * LEAST_LOG_SD


def published_estimates(evidence: PublishedEvidence) -> Estimates | None:
    """Estimates from published results; None if there are none.

    Errors of sizes carried by the pooled law are widened by the factor needed on held-out results.
    """
    found: dict[int, Estimate] = {}
    grade: dict[int, Grade] = {}
    curve = evidence.curve
    is_users = curve is not None and any(
        each.is_same_group and each.kind == "measured" for each in curve.evidence
    )
    estimator: EstimatorName = "measured" if is_users else "published"
    of_users = "your trainings, with the scaling of published ones"
    own_s = _own_times_s(evidence)
    # Other sizes share the uncertainty of the level of those that ran.
    unsure = fmean([beyond_replicates(repeated_log_sd(times_s)) for times_s in own_s.values()] or [0.0])
    if curve is not None:
        largest = _largest_with_result(evidence, curve)
        for each in curve.predictions:
            if each.record is None:
                continue
            size = each.num_accelerators
            spread = combined_record().at(size / largest).published_scale * log_sd(each.time)
            found[size] = Estimate(
                estimator=estimator,
                name=of_users if is_users else "carried from published results at other sizes",
                time_s=product(each.time, with_log_sd(1.0, unsure)) if unsure else each.time,
                log_sd=math.hypot(spread, unsure),
                why=_carried_why(each),
            )
            grade[size] = "measured" if is_users else "carried"
    longer = _user_scaling_factors(found, {size: median(times_s) for size, times_s in own_s.items()})
    for size, factor in longer.items():
        start = found[size]
        why = f"{start.why}; your trainings are assumed to keep taking {factor:.2f} times as long"
        found[size] = with_time(start, factor * start.time_s.value, start.log_sd, name=start.name, why=why)
    for size, times_s in own_s.items():
        found[size] = replace(found[size], **_own_training_fields(times_s))
    for size, results in evidence.at_size.items():
        found[size] = _best_result_estimate(results, size)
        grade[size] = "published"
    if not found:
        return None
    sizes = sorted(found)
    return Estimates(
        estimator=estimator,
        name=of_users if is_users else "published results",
        by_size={size: found[size] for size in sizes},
        grade=grade,
        sources=_sources(evidence),
        curves=None if curve is None else _law_curves(curve, sizes[-1] / 2.0, longer),
    )


def _user_scaling_factors(carried: Mapping[int, Estimate], own_s: Mapping[int, float]) -> dict[int, float]:
    """By size, the ratio of the user's training times to the carried estimates: interpolated between sizes
    that ran, and extrapolated if it grows significantly. Empty if they scale about like others.
    """
    logs = {
        size: math.log(time_s / carried[size].time_s.value)
        for size, time_s in own_s.items()
        if size in carried
    }
    if max(map(abs, logs.values()), default=0.0) < _UNLIKE_LOG:
        return {}
    growth = growth_of(logs)
    return {size: math.exp(level_at(logs, size, growth)) for size in carried}


def _law_curves(curve: TimeCurve, most: float, longer: Mapping[int, float]) -> DrawnCurves:
    """The curves of a law, scaled by `longer` by size. most: half of the largest estimated size."""
    drawn = DrawnCurves(time_s=curve.curves_s, domain=_asked_domain(curve.domain, most))
    return scaled_curves(drawn, longer) if longer else drawn


def carried_by_model(published: Estimates, model: Estimates) -> Estimates:
    """The published estimates, extended to further sizes by carrying the nearest time there with the model.

    Source: T(N) = T_model(N) T(M) / T_model(M), M the nearest size; errors as in data/combined.json.
    """
    found, grade = dict(published.by_size), dict(published.grade)
    shared = sorted(set(published.by_size) & set(model.by_size))
    for size in sorted(set(model.by_size) - set(published.by_size)):
        if not shared:
            break
        nearest = nearest_size(shared, size)
        doublings = abs(math.log2(nearest / size))
        start = published.by_size[nearest]
        ratio = model.by_size[size].time_s.value / model.by_size[nearest].time_s.value
        spread = math.hypot(start.log_sd, combined_record().carried(doublings))
        carried = with_time(
            start,
            ratio * start.time_s.value,
            spread,
            name=f"carried from published results at {format_count(nearest)} by the model",
            why=f"times carried this far by the model were off by {whole_percent(spread)} "
            "(standard deviation)",
        )
        found[size] = replace(carried, sources=())
        grade[size] = "carried"
    return replace(published, by_size={size: found[size] for size in sorted(found)}, grade=grade)


class Slowing(Struct, frozen=True, kw_only=True):
    """A restriction that submitters did not have, such as a power limit.

    by: the restriction in words, such as "fixed strategy". ratios: by size, modelled restricted over free
    time (`time_ratios`). results: of trainings that had the restriction too; None if results do not state it.
    """

    by: str
    ratios: Mapping[int, float]
    results: Mapping[int, tuple[PublishedResult, ...]] | None = None


def with_restriction(published: Estimates, slowing: Slowing) -> Estimates | None:
    """The published estimates under a restriction that submitters did not have.

    None if no size has an estimate and a ratio. With a ratio of 1, an estimate is unchanged, unless it is a
    result known not to have the restriction. Results with the restriction count unchanged.
    Source: T_restricted(N) = T(N) T_model,restricted(N) / T_model,free(N); errors of the ratio as in
    docs/experiments/0038.
    """
    ratios, by = slowing.ratios, slowing.by
    shared = sorted(set(published.by_size) & set(ratios))
    found, grade = {}, {}
    for size in shared:
        ratio = ratios[size]
        start = published.by_size[size]
        found[size], grade[size] = start, published.grade[size]
        if ratio == 1.0 and (slowing.results is None or grade[size] != "published"):
            continue
        spread = math.hypot(start.log_sd, _STRATEGY_RATIO_LOG_SD)
        slower = with_time(
            start,
            ratio * start.time_s.value,
            spread,
            name=f"{start.name}, with the {by}",
            why=f"{start.why}; by the model it takes {ratio:.2f} times as long with the {by} as without",
        )
        found[size] = replace(slower, log_sd=start.log_sd, strategy_log_sd=_STRATEGY_RATIO_LOG_SD, sources=())
        grade[size] = "measured" if start.estimator == "measured" else "carried"
    for size, results in (slowing.results or {}).items():
        found[size], grade[size] = _best_result_estimate(results, size), "published"
    if not found:
        return None
    curves = published.curves
    moved = {size: ratios[size] for size in shared}
    if curves is not None and any(each != 1.0 for each in moved.values()):
        curves = scaled_curves(curves, moved)
    return replace(
        published, by_size={size: found[size] for size in sorted(found)}, grade=grade, curves=curves
    )


def all_ratios(slowings: Sequence[Slowing]) -> dict[int, float]:
    """By size, the factor by which all restrictions together lengthen a training; empty without any."""
    shared = set.intersection(*({*each.ratios} for each in slowings)) if slowings else set()
    return {size: math.prod(each.ratios[size] for each in slowings) for size in sorted(shared)}


def restricted_by_ratios(restricted: Estimates, free: Estimates, slowings: Sequence[Slowing]) -> Estimates:
    """The model's estimates of a restricted training, as those of the free one times the ratios.

    The restrictions then lengthen them as they lengthen published times.
    """
    if not slowings:
        return restricted
    ratios = all_ratios(slowings)
    shared = sorted({*restricted.by_size} & {*free.by_size} & {*ratios})
    found = {}
    for size in shared:
        each, time_s = restricted.by_size[size], ratios[size] * free.by_size[size].time_s.value
        found[size] = with_time(each, time_s, each.log_sd, name=each.name)
    return replace(restricted, by_size=found)


def of_other_nodes(published: Estimates) -> Estimates:
    """The published estimates, named as those of other nodes, since no model can convert them."""
    return replace(
        published,
        by_size={
            size: replace(each, name=f"{each.name}, in other nodes")
            for size, each in published.by_size.items()
        },
        grade={size: "carried" if each == "published" else each for size, each in published.grade.items()},
    )


def time_ratios(*, restricted: Estimates, free: Estimates, least: float) -> dict[int, float]:
    """By size, the modelled time of the restricted training over that of the free one.

    least: lower bound of a ratio. It is 1 if the free training could also do what the restricted one does,
    even though it keeps the batch of the best published result, which the model might not choose; 0 if the
    free training is itself restricted to what ran.
    """
    return {
        size: max(least, restricted.by_size[size].time_s.value / free.by_size[size].time_s.value)
        for size in sorted(set(restricted.by_size) & set(free.by_size))
    }


def as_new_submitter(published: Estimates, spread: SubmitterSpread) -> Estimates:
    """The estimates for a submitter who is new to a size, instead of the best one there.

    The spread among submitters is added to the errors. Equilibria do not change, since all sizes have the
    same factor.
    """
    found = {}
    for size, each in published.by_size.items():
        wide = math.hypot(each.log_sd, spread.log_sd)
        found[size] = with_time(
            each,
            spread.factor * each.time_s.value,
            wide,
            name=f"{each.name}, for a new submitter",
            why=f"{each.why}; other submitters take {spread.factor:.2f} times as long as the best at a "
            f"size, and differ by {whole_percent(spread.log_sd)} (standard deviation, "
            f"{spread.num_results} results)",
        )
    return replace(published, name=f"{published.name}, for a new submitter", by_size=found)


def at_users_level(
    estimates: Estimates, measured: Estimates, sizes: Sequence[int], *, grade: Grade
) -> Estimates:
    """Estimates of others' trainings, scaled to the level of the user's runs.

    sizes: that ran. grade: of the scaled estimates. The errors of the runs and the scatter about a common
    level are added. If the level grows significantly with the size, it is interpolated and extrapolated
    instead, with the trend beyond the sizes that ran as a further error: if the user's machine scales unlike
    others, their estimates soon have no weight.
    Assumes that a level common to all sizes that ran is a property of the machine and its software.
    Source: the median of log(measured / estimated), its scatter, and its growth from the smallest to the
    largest size.
    """
    logs = {
        each: math.log(measured.by_size[each].time_s.value / estimates.by_size[each].time_s.value)
        for each in sizes
        if each in estimates.by_size and each in measured.by_size
    }
    if not logs:
        return estimates
    growth, middle = growth_of(logs), median(logs.values())
    levels = logs if growth else dict.fromkeys(logs, middle)
    ratios, places = np.array([*logs.values()]), np.log2([*logs])
    unsure = float(np.mean([measured.by_size[each].log_sd for each in logs]))
    scatter = math.hypot(float(np.std(ratios)), unsure)
    slope = float(np.polyfit(places, ratios, 1)[0]) if len(logs) > 1 else 0.0
    factors = {size: math.exp(level_at(levels, size, growth)) for size in estimates.by_size}
    found = {}
    for size, each in estimates.by_size.items():
        factor = factors[size]
        spread = math.hypot(each.log_sd, scatter, slope * float(np.abs(places - math.log2(size)).min()))
        found[size] = with_time(
            each,
            factor * each.time_s.value,
            spread,
            name=f"{each.name}, scaled to your runs",
            why=f"{each.why}; your runs take {factor:.2f} times as long",
        )
    curves = estimates.curves
    return replace(
        estimates,
        name=f"{estimates.name}, scaled to your runs",
        by_size=found,
        grade=dict.fromkeys(found, grade),
        curves=scaled_curves(curves, factors) if curves is not None and growth else curves,
    )


def ended_at(estimates: Estimates, most: int) -> Estimates:
    """The estimates with their curve cut off at a size, beyond which none is needed."""
    curves = estimates.curves
    if curves is None or curves.domain.largest <= most:
        return estimates
    smallest = curves.domain.smallest
    if smallest >= most:
        return replace(estimates, curves=None)
    ended = replace(curves, domain=Domain(smallest=smallest, largest=float(most)))
    return replace(estimates, curves=ended)


def _best_result_estimate(results: Sequence[PublishedResult], size: int) -> Estimate:
    """The estimate by the best result at a size, with the spread of submissions of one system as error."""
    best = results[0]
    more = f", best of {len(results)}" if len(results) > 1 else ""
    return Estimate(
        estimator="published",
        name="published results",
        time_s=with_log_sd(best.score_s, LEAST_LOG_SD),
        log_sd=LEAST_LOG_SD,
        why=f"the best submitter's time, in {best.round}{more}; submissions of one system differ by "
        f"{format_percent(LEAST_LOG_SD)}",
        sources=tuple(
            EvidenceSource(
                kind="published",
                ref=each.entry_id,
                num_accelerators=size,
                time_s=each.score_s,
                source_uri=each.source_uri,
                source_line=each.source_line,
            )
            for each in results
        ),
    )


def _own_times_s(evidence: PublishedEvidence) -> dict[int, list[float]]:
    """Times of the user's own trainings, by size asked about."""
    curve, own = evidence.curve, evidence.trainings
    if curve is None or own is None:
        return {}
    asked = {each.num_accelerators for each in curve.predictions if each.record}
    timed = zip(map(int, own.num_accelerators.tolist()), own.time_s.tolist(), strict=True)
    return {size: times_s for size, times_s in by_key(timed).items() if size in asked}


def _own_training_fields(times_s: Sequence[float]) -> dict[str, Any]:
    """The fields of an estimate at a size on which the user's own trainings ran."""
    spread = repeated_log_sd(times_s)
    why = f"your training at this size; repetitions differ by {format_percent(spread)}"
    if len(times_s) > 1:
        why = f"the median of {len(times_s)} trainings at this size, uncertain by {format_percent(spread)}"
    return {
        "name": "your trainings",
        "time_s": with_log_sd(median(times_s), spread),
        "log_sd": spread,
        "why": why,
    }


def _asked_domain(known: Domain, most: float) -> Domain:
    """The domain of the curve, extended to the sizes asked about, up to FARTHEST times the largest known.

    most: half of the largest estimated size, since a curve extends to twice its domain.
    """
    largest = max(known.largest, min(most, FARTHEST * known.largest))
    return Domain(smallest=known.smallest, largest=largest)


def _largest_with_result(evidence: PublishedEvidence, curve: TimeCurve) -> float:
    """The largest size with a result of the same group."""
    own = [each.num_accelerators or 0 for each in curve.evidence if each.is_same_group]
    return float(max((*own, *evidence.at_size), default=curve.domain.largest))


def largest_known(evidence: PublishedEvidence) -> float | None:
    """The largest size with a result; None without a curve."""
    return None if evidence.curve is None else _largest_with_result(evidence, evidence.curve)


def known_sizes(evidence: PublishedEvidence) -> tuple[int, ...]:
    """The sizes with a published result or a training of the user, ascending."""
    own = () if evidence.curve is None else evidence.curve.evidence
    timed = (each.num_accelerators for each in own if each.is_same_group)
    return tuple(sorted({*evidence.at_size, *(each for each in timed if each is not None)}))


def _carried_why(each: PredictedTime) -> str:
    record = each.record
    assert record is not None
    error = format_percent(record.median_abs_error)
    return f"the best submitter's time; {record.num_held_out} held out ({record.of}): off by {error} (median)"


def _sources(evidence: PublishedEvidence) -> tuple[EvidenceSource, ...]:
    if evidence.curve is None:
        return tuple(
            source
            for size, found in evidence.at_size.items()
            for source in _best_result_estimate(found, size).sources
        )
    return evidence.curve.evidence

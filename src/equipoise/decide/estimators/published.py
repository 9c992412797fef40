"""The estimator of published results: the best submitted at a size, else carried there from others.

A size with comparable results has the best of them. Sizes without are carried from sizes that have results by
the pooled law, beyond those by the model's ratio; a chip without any, from the nearest chip (`other_chips`).
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

# Beyond so many times the largest size known no number is advised, only times.
# Source: docs/experiments/0017: numbers up to four times the largest size known were right within a
# doubling in 96 %; stopping at what is known loses three times as much.
FARTHEST = 4.0
# How far the model's ratio of the times of two strategies of one training was from the published one.
# Source: docs/experiments/0038: standard deviation of the logarithm, 245 pairs of 7 sources.
_STRATEGY_RATIO_LOG_SD = 0.19
_MOST_RESULTS = 8
_MOST_KEPT = 256


class PublishedEvidence(Struct, frozen=True, kw_only=True):
    """What is published of a workload on one accelerator.

    at_size: the comparable results of each size, the best first. curve: by the pooled law; None where it has
    nothing to go by, and then `missing` names what would do.
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
    """What published results show of the question's workload and accelerator.

    Those of its batch and round, where it states one, are comparable.
    trainings: the user's own whole trainings, as a group of their own next to the published ones.
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
    """The comparable results of each size, the best first; kept, for every system of a question asks.

    Without sizes that others beat (`beaten_sizes`). round_: whose alone; those of all unless given.
    """
    of_round = None if round_ is None else round_name(round_)
    return _results_by_accelerator(scores, workload, of_round).get(accelerator, _NO_RESULTS).counted


class BeatenResult(Struct, frozen=True, kw_only=True):
    """The best result of a size, and that of another size of the chip which beats it (`beaten_sizes`)."""

    result: PublishedResult
    other: PublishedResult
    other_size: int


def beaten_at_size(scores: Scores, workload: str, accelerator: str) -> Mapping[int, BeatenResult]:
    """The results that do not count, by size."""
    return _results_by_accelerator(scores, workload, None).get(accelerator, _NO_RESULTS).beaten


def of_batch(
    known: Mapping[int, tuple[PublishedResult, ...]], global_batch_samples: int | None
) -> dict[int, tuple[PublishedResult, ...]]:
    """The results of one batch; all where it is None."""
    found = {
        size: tuple(each for each in results if global_batch_samples in {None, each.global_batch_samples})
        for size, results in known.items()
    }
    return {size: results for size, results in found.items() if results}


class _Submitted(Struct, frozen=True, kw_only=True):
    """The results of a chip: those that count, and those that do not."""

    counted: dict[int, tuple[PublishedResult, ...]] = field(default_factory=dict)
    beaten: Mapping[int, BeatenResult] = field(default_factory=dict)


_NO_RESULTS: Final = _Submitted()


@lru_cache(maxsize=_MOST_KEPT)
def _results_by_accelerator(scores: Scores, workload: str, round_: str | None) -> dict[str, _Submitted]:
    found: dict[str, dict[int, list[PublishedResult]]] = {}
    entries = (each for each in scores.of(workload) if round_ in {None, each.campaign})
    # Of equal times the newest is the first.
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
    return {accelerator: _submissions(at_size) for accelerator, at_size in found.items()}


def _submissions(at_size: Mapping[int, Sequence[PublishedResult]]) -> _Submitted:
    beaten = beaten_sizes({size: results[0].score_s for size, results in at_size.items()})
    return _Submitted(
        counted={
            size: tuple(results[:_MOST_RESULTS])
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


# Twice what replicates differ by: the user's trainings scale unlike others where they are further off.
_UNLIKE_LOG: Final = 2.0 * LEAST_LOG_SD


def published_estimates(evidence: PublishedEvidence) -> Estimates | None:
    """Estimates from published results; None where there are none.

    Sizes carried by the pooled law are as wrong as its intervals were too narrow on results held out.
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
    # Other sizes are as unsure as the level of those that ran.
    unsure = fmean([beyond_replicates(repeated_log_sd(times_s)) for times_s in own_s.values()] or [0.0])
    if curve is not None:
        largest = _largest(evidence, curve)
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
    longer = _as_users_went(found, {size: median(times_s) for size, times_s in own_s.items()})
    for size, factor in longer.items():
        start = found[size]
        why = f"{start.why}; your trainings go on to take {factor:.2f} times as long as that"
        found[size] = with_time(start, factor * start.time_s.value, start.log_sd, name=start.name, why=why)
    for size, times_s in own_s.items():
        found[size] = replace(found[size], **_of_runs(times_s))
    for size, results in evidence.at_size.items():
        found[size] = _submitted(results, size)
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
        curves=None if curve is None else _drawn(curve, sizes[-1] / 2.0, longer),
    )


def _as_users_went(carried: Mapping[int, Estimate], own_s: Mapping[int, float]) -> dict[int, float]:
    """By size, how many times as long the user's trainings take as those of others scale: as at sizes that
    ran, between them, and beyond as they clearly went on to lose; empty where they are about as others.
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


def _drawn(curve: TimeCurve, most: float, longer: Mapping[int, float]) -> DrawnCurves:
    """The curves of a law, so many times as long by size. most: half of the largest size estimated."""
    drawn = DrawnCurves(time_s=curve.curves_s, domain=_asked_domain(curve.domain, most))
    return scaled_curves(drawn, longer) if longer else drawn


def carried_by_model(published: Estimates, model: Estimates) -> Estimates:
    """The published estimates, with sizes they lack: the nearest time, carried there by the model.

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
    """A restriction that submitters did not have, such as less power.

    by: what restricts, such as "fixed strategy". ratios: by size, how many times as long the model says that
    the training takes for it (`time_ratios`). results: those of trainings that had the restriction too; None
    where results do not state it.
    """

    by: str
    ratios: Mapping[int, float]
    results: Mapping[int, tuple[PublishedResult, ...]] | None = None


def as_restricted(published: Estimates, slowing: Slowing) -> Estimates | None:
    """The published estimates under a restriction that submitters did not have.

    None where no size has both. A restriction that leaves the time as it was changes nothing, but that a
    result of a training without it is carried over; results of trainings that had it count as they are.
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
        found[size], grade[size] = _submitted(results, size), "published"
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
    """By size, how many times as long all restrictions together make a training; of none, nothing."""
    shared = set.intersection(*({*each.ratios} for each in slowings)) if slowings else set()
    return {size: math.prod(each.ratios[size] for each in slowings) for size in sorted(shared)}


def as_slow(restricted: Estimates, free: Estimates, slowings: Sequence[Slowing]) -> Estimates:
    """The model's estimates of a restricted training: those of the free one times the ratios.

    Restrictions then lengthen them as they lengthen published times.
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
    """The published estimates, called those of the accelerator in other nodes: no model compares them."""
    return replace(
        published,
        by_size={
            size: replace(each, name=f"{each.name}, in other nodes")
            for size, each in published.by_size.items()
        },
        grade={size: "carried" if each == "published" else each for size, each in published.grade.items()},
    )


def time_ratios(*, restricted: Estimates, free: Estimates, least: float) -> dict[int, float]:
    """By size, the model's time of a restricted question over that of the free one.

    least: of a ratio: one, for whoever is free may do what is restricted, also where the batch of the best
    published result, which the free one keeps, is not what the model would take; 0 where the free one is
    itself restricted to what ran.
    """
    return {
        size: max(least, restricted.by_size[size].time_s.value / free.by_size[size].time_s.value)
        for size in sorted(set(restricted.by_size) & set(free.by_size))
    }


def as_new_submitter(published: Estimates, spread: SubmitterSpread) -> Estimates:
    """The estimates for a submitter who is new to a size, in place of the best one there.

    As wrong besides as submitters differ. Where returns diminish does not change: the factor is one for all.
    """
    found = {}
    for size, each in published.by_size.items():
        wide = math.hypot(each.log_sd, spread.log_sd)
        found[size] = with_time(
            each,
            spread.factor * each.time_s.value,
            wide,
            name=f"{each.name}, for a new submitter",
            why=f"{each.why}; others take {spread.factor:.2f} times as long as the best of a size, and "
            f"differ by {whole_percent(spread.log_sd)} (standard deviation, {spread.num_results} "
            "results)",
        )
    return replace(published, name=f"{published.name}, for a new submitter", by_size=found)


def at_users_level(
    estimates: Estimates, measured: Estimates, sizes: Sequence[int], *, grade: Grade
) -> Estimates:
    """Estimates of others' trainings as far as they apply to the user's machine: at the level of its runs.

    sizes: that ran. grade: of what is so scaled. As wrong besides as the runs are, and as those sizes differ
    from one level. Where the level clearly grows with the size it is that of each size, and goes on to grow;
    as wrong then as its trend beyond them: where the user's machine scales unlike others, their estimates
    soon have no weight.
    Assumes what holds of all sizes that ran is the machine's and its software's own.
    Source: the median of log(measured / estimated), its scatter, and its growth from the fewest to the most.
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
            name=f"{each.name}, at the level of your runs",
            why=f"{each.why}; your runs take {factor:.2f} times as long",
        )
    curves = estimates.curves
    return replace(
        estimates,
        name=f"{estimates.name}, at the level of your runs",
        by_size=found,
        grade=dict.fromkeys(found, grade),
        curves=scaled_curves(curves, factors) if curves is not None and growth else curves,
    )


def ended_at(estimates: Estimates, most: int) -> Estimates:
    """The estimates, whose curve ends at a size: none beyond it is asked for."""
    curves = estimates.curves
    if curves is None or curves.domain.largest <= most:
        return estimates
    smallest = curves.domain.smallest
    if smallest >= most:
        return replace(estimates, curves=None)
    ended = replace(curves, domain=Domain(smallest=smallest, largest=float(most)))
    return replace(estimates, curves=ended)


def _submitted(results: Sequence[PublishedResult], size: int) -> Estimate:
    """The best result of a size: as wrong as submissions of one system differ."""
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
    """Times of the user's own trainings by size, of sizes asked about."""
    curve, own = evidence.curve, evidence.trainings
    if curve is None or own is None:
        return {}
    asked = {each.num_accelerators for each in curve.predictions if each.record}
    timed = zip(map(int, own.num_accelerators.tolist()), own.time_s.tolist(), strict=True)
    return {size: times_s for size, times_s in by_key(timed).items() if size in asked}


def _of_runs(times_s: Sequence[float]) -> dict[str, Any]:
    """What an estimate of a size states where the user's trainings ran there: they are the evidence."""
    spread = repeated_log_sd(times_s)
    why = f"your training on as many; repetitions differ by {format_percent(spread)}"
    if len(times_s) > 1:
        why = f"the median of {len(times_s)} trainings on as many, unsure by {format_percent(spread)}"
    return {
        "name": "your trainings",
        "time_s": with_log_sd(median(times_s), spread),
        "log_sd": spread,
        "why": why,
    }


def _asked_domain(known: Domain, most: float) -> Domain:
    """The sizes with results and those asked about up to FARTHEST times beyond.

    most: half of the largest size estimated, for a curve goes on to twice its domain.
    """
    largest = max(known.largest, min(most, FARTHEST * known.largest))
    return Domain(smallest=known.smallest, largest=largest)


def _largest(evidence: PublishedEvidence, curve: TimeCurve) -> float:
    """The largest size with a result of the group itself."""
    own = [each.num_accelerators or 0 for each in curve.evidence if each.is_same_group]
    return float(max((*own, *evidence.at_size), default=curve.domain.largest))


def largest_known(evidence: PublishedEvidence) -> float | None:
    """The largest size with a result; None without a curve."""
    return None if evidence.curve is None else _largest(evidence, evidence.curve)


def known_sizes(evidence: PublishedEvidence) -> tuple[int, ...]:
    """The sizes with a result, of submitters or of the user's own trainings, ascending."""
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
            source for size, found in evidence.at_size.items() for source in _submitted(found, size).sources
        )
    return evidence.curve.evidence

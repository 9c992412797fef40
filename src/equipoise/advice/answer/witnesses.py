"""The witnesses of a request: what published results, the model, and the user's own runs say of each size."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from equipoise.advice.answer.evidence import Source, Witness
from equipoise.advice.answer.joined import straight_between
from equipoise.advice.answer.joined_record import joined_record
from equipoise.advice.answer.weighed import log_sd
from equipoise.advice.forecast.answer import LEVEL, Forecast, Foretold
from equipoise.advice.plans.length import DEVIATE
from equipoise.advice.plans.planned import Option, Plan
from equipoise.scaling.law import Domain
from equipoise.stats import Interval
from equipoise.units import format_count, format_percent

# Beyond so many times the largest size known no number is advised, only times.
FARTHEST = 4.0


def with_log_sd(value: float, spread: float) -> Interval:
    """The interval at LEVEL of a log-normal value."""
    half = math.exp(DEVIATE * spread)
    return Interval(value=value, low=value / half, high=value * half, level=LEVEL)


def published_witness(found: Forecast) -> Witness | None:
    """What published results say, by the pooled law; None where no size has a record.

    Its errors are as large as its intervals were too wide on results held out.
    """
    told = [each for each in found.ground.foretold if each.record is not None]
    if not told:
        return None
    ground = found.ground
    largest = _largest(found)
    has_own = any(each.kind == "measured" for each in ground.evidence)
    return Witness(
        kind="measured" if has_own else "published",
        name="your own trainings, beside published ones" if has_own else "published results",
        times={each.num_accelerators: each.time for each in told},
        log_sds={
            each.num_accelerators: joined_record().at(each.num_accelerators / largest).published_scale
            * log_sd(each.time)
            for each in told
        },
        why={each.num_accelerators: _published_why(each) for each in told},
        sources=tuple(
            Source(
                kind=each.kind,
                ref=each.ref,
                share=each.weight,
                num_accelerators=each.num_accelerators,
                time_s=each.time_s,
                source_uri=each.source_uri,
                source_line=each.source_line,
            )
            for each in ground.evidence
        ),
        curves_s=ground.curves_s,
        domain=_asked(ground.domain, told[-1].num_accelerators / 2.0),
    )


def _asked(known: Domain, most: float) -> Domain | None:
    """The sizes with results and those asked about up to four times beyond; None of one size alone.

    most: half of the largest told of, for a curve goes on to twice its domain.
    Source: docs/experiments/0017: numbers up to four times the largest size known were right within a
    doubling in 96 %; stopping at what is known loses three times as much.
    """
    largest = max(known.largest, min(most, FARTHEST * known.largest))
    return Domain(smallest=known.smallest, largest=largest) if known.smallest < known.largest else None


def _largest(found: Forecast) -> float:
    """The largest size with a result of the group itself, of which its points are."""
    own = [each.num_accelerators for each in found.ground.evidence if each.is_own]
    return float(max(own, default=found.ground.domain.largest))


def beside_published(modelled: Witness, found: Forecast) -> Witness:
    """The model's witness where results are published too: as wrong as it was about sizes so far beyond them.

    Source: data/joined.json, by jump; between and below the sizes published as up to twice the largest.
    """
    largest = _largest(found)
    return replace(
        modelled,
        log_sds={size: joined_record().at(size / largest).modelled_log_sd for size in modelled.times},
    )


def _published_why(each: Foretold) -> str:
    record = each.record
    assert record is not None
    return (
        f"{record.num_held_out} held out ({record.of}): off by {format_percent(record.median_abs_error)} "
        "(median)"
    )


def modelled_witness(plan: Plan) -> Witness | None:
    """What the performance model says of the best strategy of each size; None where nothing fits."""
    if not plan.by_size:
        return None
    sizes = [each.num_accelerators for each in plan.by_size]
    record = plan.record
    why = (
        f"{record.num_trainings} plans of published trainings: off by "
        f"{format_percent(round(record.median, 2))} (median)"
    )
    fastest = _ever_faster(plan.by_size)
    places = [plan.by_size.index(each) for each in fastest]
    return Witness(
        kind="modelled",
        name=f"the model ({plan.basis.name})",
        times={each.num_accelerators: each.time for each in plan.by_size},
        log_sds={each.num_accelerators: _modelled_log_sd(plan, each) for each in plan.by_size},
        why=dict.fromkeys(sizes, why),
        sources=(
            Source(
                kind="modelled",
                ref=f"performance model, calibration {plan.basis.name}: {plan.basis.words}",
            ),
        ),
        curves_s=straight_between([each.num_accelerators for each in fastest], plan.drawn_s[:, places]),
        domain=_domain(plan, fastest),
    )


def _modelled_log_sd(plan: Plan, option: Option) -> float:
    """How wrong the model was: of published trainings, whose length it does not know, else as it states."""
    stated = log_sd(option.time)
    if plan.length.batches is None:
        return stated
    return max(stated, joined_record().modelled_log_sd[plan.record.kind])


def carried(published: Witness, modelled: Witness) -> Witness:
    """The published witness, with the sizes it cannot tell: its nearest time, carried there by the model.

    Source: T(N) = T_model(N) T(M) / T_model(M), M the nearest size; errors as in data/joined.json.
    """
    times, log_sds, why = dict(published.times), dict(published.log_sds), dict(published.why)
    shared = sorted(set(published.times) & set(modelled.times))
    for size in sorted(set(modelled.times) - set(published.times)):
        if not shared:
            break
        nearest = min(shared, key=lambda each: abs(math.log2(each / size)))
        doublings = abs(math.log2(nearest / size))
        value = modelled.times[size].value * published.times[nearest].value / modelled.times[nearest].value
        log_sds[size] = math.hypot(published.log_sds[nearest], joined_record().carried(doublings))
        times[size] = with_log_sd(value, log_sds[size])
        why[size] = (
            f"published results at {format_count(nearest)}, carried on by the model: off by "
            f"{format_percent(round(log_sds[size], 2))} (standard deviation)"
        )
    return replace(published, times=times, log_sds=log_sds, why=why)


def at_own_level(published: Witness, measured: Witness, sizes: Sequence[int]) -> Witness:
    """The published witness as far as it can speak of the user's machine: at the level of the user's runs.

    sizes: that ran. As wrong besides as those sizes differ from one level; beyond them, as the trend of the
    difference goes on: where the user's machine scales unlike published ones, those soon say nothing.
    Assumes what holds of all sizes that ran is the machine's and its software's own.
    Source: the median of log(measured / published), its scatter, and the least-squares slope a doubling.
    """
    shared = [each for each in sizes if each in published.times and each in measured.times]
    if not shared or published.kind != "published":
        return published
    ratios = np.array([math.log(measured.times[each].value / published.times[each].value) for each in shared])
    places = np.log2(shared)
    level = float(np.median(ratios))
    scatter = float(np.std(ratios))
    slope = float(np.polyfit(places, ratios, 1)[0]) if len(shared) > 1 else 0.0
    factor = math.exp(level)
    log_sds = {
        size: math.hypot(spread, scatter, slope * float(np.abs(places - math.log2(size)).min()))
        for size, spread in published.log_sds.items()
    }
    curves_s = published.curves_s
    return replace(
        published,
        name="published results (at the level of your runs)",
        times={
            size: with_log_sd(factor * time.value, log_sds[size]) for size, time in published.times.items()
        },
        log_sds=log_sds,
        why={
            size: f"{why}; your runs take {factor:.2f} times as long" for size, why in published.why.items()
        },
        curves_s=None if curves_s is None else lambda at: factor * curves_s(at),
    )


def _ever_faster(best: Sequence[Option]) -> list[Option]:
    """The options, from the smallest size, that are faster than all at smaller ones: the rest stands idle."""
    found: list[Option] = []
    for each in best:
        if not found or each.time.value < found[-1].time.value:
            found.append(each)
    return found


def _domain(plan: Plan, fastest: Sequence[Option]) -> Domain | None:
    """Up to half the largest size tried, for a curve goes on to twice its domain."""
    smallest = float(fastest[0].num_accelerators)
    largest = plan.by_size[-1].num_accelerators / 2.0
    return Domain(smallest=smallest, largest=largest) if largest > smallest else None


def without_beyond(witness: Witness, most: int) -> Witness:
    """The witness, whose curve ends at a size: none beyond it is asked for."""
    domain = witness.domain
    if domain is None or domain.largest <= most:
        return witness
    if domain.smallest >= most:
        return replace(witness, domain=None)
    return replace(witness, domain=Domain(smallest=domain.smallest, largest=float(most)))

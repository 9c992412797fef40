"""Where returns diminish on each accelerator of a round, and why an entry or a curve loses efficiency.

Returns use the curves of `predict`; nothing is fitted here. Each symptom of a loss has a printed rule and
cites its figures; the factors come from scaling.metrics.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from msgspec import Struct

from equipoise import economics
from equipoise.calibration.curves import CurveQuestion, TimeCurve
from equipoise.calibration.forecasts import Results, published_curve, results_of
from equipoise.economics import Bill, Rates
from equipoise.errors import EvidenceError, InputError
from equipoise.intervals import LEVEL
from equipoise.scaling.equilibrium import (
    KINDS,
    TWO_SIZES_NEEDED,
    Equilibrium,
    Kind,
    cheapest,
    default_answer,
    equilibria,
    least_speedup,
    pays,
    words,
)
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.mlperf import Scores, round_key
from equipoise.stats import one_thread
from equipoise.units import HOUR_S, format_count, format_duration, format_percent

# Deadline for the cheapest size, as a multiple of the fastest published time: without a deadline the smallest
# size is always the cheapest.
DEADLINE_FACTOR = 2.0
FEWEST_SIZES = 2
_STEPS_PER_OCTAVE = 3
_MOST_STEPS = 40

RULE = (
    f"cost and energy: the size of least total that takes at most {DEADLINE_FACTOR:g} times the fastest time "
    "published for the accelerator in this round; without such a limit the smallest size is always cheapest"
)


class Balance(Struct, frozen=True, kw_only=True):
    """One accelerator of one workload: its times by size, and its equilibria with the bill of each.

    sizes: published in the round, ascending. curve: as from `predict`, up to one doubling beyond the largest
    size. equilibria: including least cost and energy by RULE. bills, words: one per equilibrium. answer: the
    equilibrium that is the first reason to stop.
    """

    accelerator: str
    sizes: tuple[int, ...]
    curve: TimeCurve
    equilibria: tuple[Equilibrium, ...]
    answer: Equilibrium
    rates: Rates
    bills: tuple[Bill, ...]
    words: tuple[str, ...]


class Unanswered(Struct, frozen=True, kw_only=True):
    """A subject (e.g. an accelerator) without an estimate: the reason, and the missing evidence."""

    subject: str
    reason: str
    missing: tuple[str, ...]


class Balances(Struct, frozen=True, kw_only=True):
    """The accelerators of one workload, with a balance or with the reason why there is none."""

    found: tuple[Balance, ...]
    unanswered: tuple[Unanswered, ...]


def balances(
    scores: Scores,
    curves: Mapping[str, pl.DataFrame],
    *,
    round_: str,
    catalogue: Catalogue,
) -> Mapping[str, Balances]:
    """The balances of each accelerator with enough sizes in the round, by workload.

    scores: published results of all rounds. curves: by workload, as returned by `scaling.metrics.curves` for
    this round; accelerators with only one size are omitted.
    """
    results = results_of(scores)
    with one_thread():
        return {
            workload: _of_workload(workload, best, results, round_, catalogue)
            for workload, best in curves.items()
        }


def _of_workload(
    workload: str, best: pl.DataFrame, results: Results, round_: str, catalogue: Catalogue
) -> Balances:
    """The balances of one workload. best: the curve of each accelerator, from `scaling.metrics.curves`."""
    found: list[Balance] = []
    unanswered: list[Unanswered] = []
    for (accelerator,), curve in best.group_by(["accelerator"], maintain_order=True):
        if len(curve) < FEWEST_SIZES:
            continue
        subject = str(accelerator)
        try:
            round_key(round_)
            rates = economics.rates(catalogue.accelerator(subject))
            question = CurveQuestion(
                workload=workload,
                accelerator=subject,
                sizes=_sizes(curve["num_accelerators"].to_list()),
                round=round_,
                catalogue=catalogue,
            )
            times = published_curve(results, question)
        except InputError as err:  # a name missing from our tables, or a campaign without a date
            unanswered.append(Unanswered(subject=subject, reason=str(err), missing=()))
        except EvidenceError as err:
            unanswered.append(Unanswered(subject=subject, reason=str(err), missing=err.missing))
        else:
            if times.domain.smallest < times.domain.largest:
                found.append(_balance(curve, times, rates))
            else:  # the sizes are beyond the law's curves
                unanswered.append(Unanswered(subject=subject, reason=TWO_SIZES_NEEDED, missing=()))
    return Balances(found=tuple(found), unanswered=tuple(unanswered))


def _sizes(published: Sequence[int]) -> tuple[int, ...]:
    """The published sizes, and evenly spaced log steps between them and to one doubling beyond."""
    smallest, largest = min(published), 2 * max(published)
    num_steps = min(_MOST_STEPS, round(_STEPS_PER_OCTAVE * np.log2(largest / smallest)) + 1)
    steps = np.geomspace(smallest, largest, num_steps).round().astype(int)
    return tuple(sorted({*published[:: max(1, len(published) // 16)], *map(int, steps)}))


def _balance(best: pl.DataFrame, curve: TimeCurve, rates: Rates) -> Balance:
    """The balance of one accelerator. best: the best score at each of its sizes."""
    measured_j = {each.num_accelerators: each.energy_j for each in curve.predictions}
    deadline_s = DEADLINE_FACTOR * float(best["score_s"].to_numpy().min())
    found = equilibria(curve.curves_s, curve.domain, kinds=KINDS, level=LEVEL)
    paid = equilibria(curve.curves_s, curve.domain, kinds=_paid_kinds(rates, deadline_s), level=LEVEL)
    points = (*found, *paid)
    return Balance(
        accelerator=best["accelerator"][0],
        sizes=tuple(best["num_accelerators"].to_list()),
        curve=curve,
        equilibria=points,
        answer=default_answer(found),
        rates=rates,
        bills=tuple(
            economics.bill(
                point.num_accelerators,
                point.time_s,
                rates,
                measured_energy_j=measured_j.get(point.num_accelerators),
            )
            for point in points
        ),
        words=tuple(words(point) for point in points),
    )


def _paid_kinds(rates: Rates, deadline_s: float) -> tuple[Kind, ...]:
    """Least cost and least energy within the deadline, as far as the rates are known."""
    kinds = []
    if rates.price is not None:
        usd_per_s = rates.price.usd_per_accelerator_hour / HOUR_S
        kinds.append(cheapest("cost", per_accelerator=usd_per_s, deadline_s=deadline_s))
    if rates.power_w is not None:
        kinds.append(cheapest("energy", per_accelerator=rates.power_w, deadline_s=deadline_s))
    return tuple(kinds)


Row: TypeAlias = dict[str, Any]

# Above this fraction of the baseline's efficiency, a loss is not explained.
HEALTHY_EFFICIENCY = 0.9
MAIN_SHARE = 0.5
STARVED_THROUGHPUT = 0.8
STARVED_BATCH_FRACTION = 0.5
EVALUATION_FRACTION = 0.25
SET_UP_FRACTION = 0.15
OUTLIER_RATIO = 1.2
NUM_PEERS = 2


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One symptom of one entry or curve. subject: an entry_id, or the slug of an accelerator for a curve."""

    symptom: str
    subject: str
    words: str


class Symptom(Struct, frozen=True, kw_only=True):
    """A symptom of an entry. rule: when it is reported. words: returns the sentence, or None if absent.

    words takes the row of the entry, the row of its like-for-like baseline, and the scores of other entries
    with the same accelerator and size.
    """

    name: str
    title: str
    rule: str
    words: Callable[[Row, Row, list[float]], str | None]


def diagnose(entries: pl.DataFrame) -> tuple[Diagnosis, ...]:
    """Every symptom of every entry, in the order of the entries.

    entries: one round, workload and division, as returned by `scaling.metrics.with_factors`.
    An entry without score, accelerator or baseline has no diagnosis; one without factors has only the
    diagnoses that need none.
    """
    rows = entries.filter(pl.col("like_for_like_efficiency").is_not_null()).to_dicts()
    by_id = {row["entry_id"]: row for row in rows}
    found = []
    for row in rows:
        baseline = by_id[row["like_for_like_baseline_id"]]
        peers = [other["score_s"] for other in rows if _same_configuration(other, row)]
        for symptom in SYMPTOMS:
            words = symptom.words(row, baseline, peers)
            if words is not None:
                found.append(Diagnosis(symptom=symptom.name, subject=row["entry_id"], words=words))
    return tuple(found)


def diagnose_curves(curves: pl.DataFrame) -> tuple[Diagnosis, ...]:
    """The size of each curve from which on no step pays, by `pays` of scaling.equilibrium.

    curves: best score at each size of each accelerator, as returned by `scaling.metrics.curves`.
    A curve with one size, or whose last step still pays, has no diagnosis.
    """
    found = []
    for (accelerator,), curve in curves.group_by(["accelerator"], maintain_order=True):
        points = list(zip(curve["num_accelerators"], curve["score_s"], strict=True))
        onset = None
        for (small, slow_s), (large, fast_s) in pairwise(points):
            if pays(slow_s / fast_s, large / small):
                onset = None
            elif onset is None:
                onset = (small, large, slow_s / fast_s)
        if onset is not None:
            words = (
                f"diminishing returns from {format_count(onset[0])} accelerators: the step to "
                f"{format_count(onset[1])} is {onset[2]:.3g}x as fast, and pays from "
                f"{float(least_speedup(onset[1] / onset[0])):.3g}x on"
            )
            found.append(Diagnosis(symptom="diminishing_returns", subject=str(accelerator), words=words))
    return tuple(found)


def _same_configuration(other: Row, row: Row) -> bool:
    place = ("accelerator", "num_accelerators")
    return bool(other["entry_id"] != row["entry_id"] and all(other[key] == row[key] for key in place))


def _lossy(row: Row) -> bool:
    return bool(row["like_for_like_efficiency"] < HEALTHY_EFFICIENCY and row["statistical"] is not None)


def _share(row: Row, factor: str) -> float:
    """A factor's share of the log loss: losses multiply, so their logarithms add."""
    return math.log(row[factor]) / math.log(row["like_for_like_efficiency"])


def _convergence_bound(row: Row, baseline: Row, _: Iterable[float]) -> str | None:
    if not _lossy(row) or _share(row, "statistical") < MAIN_SHARE:
        return None
    more = row["samples_to_target"] / baseline["samples_to_target"] - 1
    return (
        f"convergence-bound: {format_percent(_share(row, 'statistical'))} of the loss is the "
        f"{format_percent(more)} more samples it needs{_batches(row, baseline)}"
    )


def _batch_starved(row: Row, baseline: Row, _: Iterable[float]) -> str | None:
    batches = [entry["global_batch_samples"] for entry in (row, baseline)]
    if not _lossy(row) or None in batches or row["throughput"] >= STARVED_THROUGHPUT:
        return None
    here, there = (
        batch / entry["num_accelerators"] for batch, entry in zip(batches, (row, baseline), strict=True)
    )
    if here > STARVED_BATCH_FRACTION * there:
        return None
    return (
        f"batch starvation: {here:.3g} samples per accelerator and step against {there:.3g} in its baseline; "
        f"throughput per accelerator is {format_percent(row['throughput'])} of the baseline's"
    )


def _evaluation_bound(row: Row, _: Row, __: Iterable[float]) -> str | None:
    # Evaluation that overlaps training costs no extra time, so only evaluation outside counts.
    outside_s = row["eval_outside_s"]
    if outside_s is None or outside_s < EVALUATION_FRACTION * row["unscaled_s"]:
        return None
    fraction = outside_s / row["unscaled_s"]
    return f"evaluation-bound: {format_percent(fraction)} of the clock is evaluation outside training"


def _set_up_bound(row: Row, _: Row, __: Iterable[float]) -> str | None:
    if row["train_block_s"] is None or row["eval_outside_s"] is None:  # the log does not separate them
        return None
    rest_s = row["unscaled_s"] - row["train_block_s"] - row["eval_outside_s"]
    if rest_s < SET_UP_FRACTION * row["unscaled_s"]:
        return None
    fraction = rest_s / row["unscaled_s"]
    return f"set-up-bound: {format_percent(fraction)} of the clock is neither training nor evaluation"


def _slow_outlier(row: Row, _: Row, peers: list[float]) -> str | None:
    if len(peers) < NUM_PEERS or row["score_s"] < OUTLIER_RATIO * median(peers):
        return None
    return (
        f"slow outlier: {format_duration(row['score_s'])} against {format_duration(median(peers))}, the "
        f"median of {len(peers)} other entries with the same accelerators"
    )


def _batches(row: Row, baseline: Row) -> str:
    here, there = row["global_batch_samples"], baseline["global_batch_samples"]
    if here is None or there is None or here == there:
        return ""
    return f" at a batch of {format_count(here)} instead of {format_count(there)}"


SYMPTOMS = (
    Symptom(
        name="convergence_bound",
        title="convergence-bound",
        rule=f"E below {HEALTHY_EFFICIENCY} and at least {MAIN_SHARE} of its log loss is statistical",
        words=_convergence_bound,
    ),
    Symptom(
        name="batch_starvation",
        title="batch starvation",
        rule=f"E below {HEALTHY_EFFICIENCY}, throughput below {STARVED_THROUGHPUT}, and at most "
        f"{STARVED_BATCH_FRACTION} of the baseline's samples per accelerator and step",
        words=_batch_starved,
    ),
    Symptom(
        name="evaluation_bound",
        title="evaluation-bound",
        rule=f"evaluation outside the training blocks takes at least {EVALUATION_FRACTION} of the clock; "
        "not reported where the log has no blocks",
        words=_evaluation_bound,
    ),
    Symptom(
        name="set_up_bound",
        title="set-up-bound",
        rule=f"at least {SET_UP_FRACTION} of the clock is outside training and evaluation, where the log "
        "separates them",
        words=_set_up_bound,
    ),
    Symptom(
        name="slow_outlier",
        title="slow outlier",
        rule=f"at least {OUTLIER_RATIO} times the median of {NUM_PEERS} or more other entries with the same "
        "accelerator and size",
        words=_slow_outlier,
    ),
)
CURVE_RULE = (
    "diminishing returns: every further step, from N to M accelerators, is less than 1 + 0.5 (M / N - 1) "
    "times as fast, a doubling 1.5 times"
)

"""Where returns diminish on each accelerator of a round, by the curves of `predict`."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import Struct
from threadpoolctl import threadpool_limits

from equipoise.calibration.curves import CurveQuestion, TimeCurve
from equipoise.calibration.forecasts import Results, published_curve, results_of
from equipoise.economics import costs
from equipoise.economics.costs import Bill, Rates
from equipoise.errors import EvidenceError, InputError
from equipoise.intervals import LEVEL
from equipoise.scaling.equilibrium import (
    KINDS,
    Equilibrium,
    Kind,
    cheapest,
    default_answer,
    equilibria,
    words,
)
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.mlperf import Scores, round_key
from equipoise.units import HOUR_S

# Without a reason to hurry the smallest size is always the cheapest: here the hurry is this many times the
# fastest time published.
DEADLINE_FACTOR = 2.0
FEWEST_SIZES = 2
_STEPS_PER_OCTAVE = 3
_MOST_STEPS = 40
_ONE_SIZE = "times of this accelerator at two sizes or more are needed to find where returns diminish"

RULE = (
    f"cost and energy: the size of least total that takes at most {DEADLINE_FACTOR:g} times the fastest time "
    "published for the accelerator in this round; without such a limit the smallest size is always cheapest"
)


class Balance(Struct, frozen=True, kw_only=True):
    """One accelerator of one workload: its times by size, and its equilibria with the bill of each.

    sizes: those published in the round. curve_times: as `predict` finds them. curve: the same as a frame,
    time_s with low_s, high_s and level over num_accelerators, to one doubling beyond the largest size
    (beyond_data). equilibria: also least cost and energy by RULE; bills, words: of each. answer: the first
    reason to stop, one of the equilibria.
    """

    accelerator: str
    sizes: tuple[int, ...]
    curve_times: TimeCurve
    curve: pl.DataFrame
    equilibria: tuple[Equilibrium, ...]
    answer: Equilibrium
    rates: Rates
    bills: tuple[Bill, ...]
    words: tuple[str, ...]


class Unanswered(Struct, frozen=True, kw_only=True):
    """What cannot be estimated for a subject (an accelerator, say), why, and what evidence is missing."""

    subject: str
    reason: str
    missing: tuple[str, ...]


class Balances(Struct, frozen=True, kw_only=True):
    """The accelerators of one workload: those with a balance, and those without and why."""

    found: tuple[Balance, ...]
    unanswered: tuple[Unanswered, ...]


def balances(
    scores: Scores,
    curves: Mapping[str, pl.DataFrame],
    *,
    round_: str,
    catalogue: Catalogue | None = None,
) -> Mapping[str, Balances]:
    """What is known of each accelerator with enough sizes in the round, by workload.

    scores: published results, all rounds. curves: by workload, as `scaling.metrics.curves` returned them, of
    this round; accelerators seen at one size are left out. catalogue: the shipped one unless given.
    """
    known, results = catalogue or shipped(), results_of(scores)
    # Hundreds of small matrices: threads of their own would only wait for each other.
    with threadpool_limits(limits=1, user_api="blas"):
        return {
            workload: _of_workload(workload, best, results, round_, known)
            for workload, best in curves.items()
        }


def _of_workload(
    workload: str, best: pl.DataFrame, results: Results, round_: str, catalogue: Catalogue
) -> Balances:
    """The accelerators of one workload. best: the curve of each, as `scaling.metrics.curves` returned it."""
    found: list[Balance] = []
    unanswered: list[Unanswered] = []
    for (accelerator,), curve in best.group_by(["accelerator"], maintain_order=True):
        if len(curve) < FEWEST_SIZES:
            continue
        subject = str(accelerator)
        try:
            round_key(round_)
            rates = costs.rates(catalogue.accelerator(subject))
            question = CurveQuestion(
                workload=workload,
                accelerator=subject,
                sizes=_sizes(curve["num_accelerators"].to_list()),
                round=round_,
                catalogue=catalogue,
            )
            times = published_curve(results, question)
        except InputError as err:  # a name that no table of ours knows, or a campaign without a place in time
            unanswered.append(Unanswered(subject=subject, reason=str(err), missing=()))
        except EvidenceError as err:
            unanswered.append(Unanswered(subject=subject, reason=str(err), missing=err.missing))
        else:
            if times.domain.smallest < times.domain.largest:
                found.append(_balance(curve, times, rates))
            else:  # its sizes are beyond the law's curves
                unanswered.append(Unanswered(subject=subject, reason=_ONE_SIZE, missing=()))
    return Balances(found=tuple(found), unanswered=tuple(unanswered))


def _sizes(published: Sequence[int]) -> tuple[int, ...]:
    """The published sizes, and even steps on a log scale between them and to one doubling beyond."""
    smallest, largest = min(published), 2 * max(published)
    num_steps = min(_MOST_STEPS, round(_STEPS_PER_OCTAVE * np.log2(largest / smallest)) + 1)
    steps = np.geomspace(smallest, largest, num_steps).round().astype(int)
    return tuple(sorted({*published[:: max(1, len(published) // 16)], *map(int, steps)}))


def _balance(curve: pl.DataFrame, times: TimeCurve, rates: Rates) -> Balance:
    """curve: the best score at each size of one accelerator."""
    sizes = tuple(curve["num_accelerators"].to_list())
    predictions = times.predictions
    measured_j = {each.num_accelerators: each.energy_j for each in predictions}
    deadline_s = DEADLINE_FACTOR * float(curve["score_s"].to_numpy().min())
    found = equilibria(times.curves_s, times.domain, kinds=KINDS, level=LEVEL)
    paid = equilibria(times.curves_s, times.domain, kinds=_paid_kinds(rates, deadline_s), level=LEVEL)
    points = (*found, *paid)
    return Balance(
        accelerator=curve["accelerator"][0],
        sizes=sizes,
        curve_times=times,
        curve=pl.DataFrame(
            {
                "num_accelerators": [each.num_accelerators for each in predictions],
                "time_s": [each.time.value for each in predictions],
                "low_s": [each.time.low for each in predictions],
                "high_s": [each.time.high for each in predictions],
                "level": [each.time.level for each in predictions],
                "in_domain": [each.in_domain for each in predictions],
                "beyond_data": [each.num_accelerators > max(sizes) for each in predictions],
            }
        ),
        equilibria=points,
        answer=default_answer(found),
        rates=rates,
        bills=tuple(
            costs.bill(
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
    """Least money and least energy within the deadline, as far as the rates are known."""
    kinds = []
    if rates.price is not None:
        usd_per_s = rates.price.usd_per_accelerator_hour / HOUR_S
        kinds.append(cheapest("cost", per_accelerator=usd_per_s, deadline_s=deadline_s))
    if rates.accelerator_power_w is not None:
        watts = rates.accelerator_power_w * rates.system_power.factor
        kinds.append(cheapest("energy", per_accelerator=watts, deadline_s=deadline_s))
    return tuple(kinds)

"""Where each accelerator of a round stops paying: the forecast of `predict`, for every curve of a study."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from equipoise import economics
from equipoise.advice.forecast.answer import Forecast, Inquiry
from equipoise.advice.forecast.forecast import forecasts
from equipoise.economics import Bill, Rates
from equipoise.errors import InputError
from equipoise.scaling.equilibrium import Equilibrium, Kind, cheapest, equilibria, words
from equipoise.scaling.points import round_key
from equipoise.spec.hardware import accelerator as known_accelerator
from equipoise.units import HOUR_S

# Without a reason to hurry the smallest size is always the cheapest: here the hurry is this many times the
# fastest time published.
DEADLINE_FACTOR = 2.0
FEWEST_SIZES = 2
_STEPS_PER_OCTAVE = 3
_MOST_STEPS = 40

RULE = (
    f"cost and energy: the size of least total that takes at most {DEADLINE_FACTOR:g} times the fastest time "
    "published for the accelerator in this round; without such a limit the smallest size is always cheapest"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """One accelerator of one workload: its forecast, and its equilibria, each with its bill and its words.

    points: those of the forecast, and least cost and energy by RULE; bills, words: of each. curve: time_s
    with low_s, high_s and level over num_accelerators, to one doubling beyond the largest size
    (beyond_data); in_domain as `predict` says it. sizes: those published in the round.
    """

    accelerator: str
    sizes: tuple[int, ...]
    forecast: Forecast
    curve: pl.DataFrame
    points: tuple[Equilibrium, ...]
    bills: tuple[Bill, ...]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """What could not be told of a subject (an accelerator, say), why, and what would tell it."""

    subject: str
    reason: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Balances:
    """The accelerators of one workload: those with a balance, and those without and why."""

    found: tuple[Balance, ...]
    unanswered: tuple[Unanswered, ...]


def balances(
    scores: pl.DataFrame, curves: Mapping[str, pl.DataFrame], *, round_: str
) -> Mapping[str, Balances]:
    """What is known of each accelerator with enough sizes in the round, by workload.

    scores: the table `scores`, all rounds. curves: by workload, as `scaling.metrics.curves` returned them, of
    this round; accelerators seen at one size are left out.
    """
    asked: list[tuple[str, pl.DataFrame, Inquiry]] = []
    unanswered: dict[str, list[Unanswered]] = {workload: [] for workload in curves}
    for workload, accelerator, curve in _long_enough(curves):
        try:
            round_key(round_)
            known_accelerator(accelerator)
        except InputError as err:  # a name that no table of ours knows, or a campaign without a place in time
            unanswered[workload].append(Unanswered(subject=accelerator, reason=str(err), missing=()))
            continue
        sizes = _sizes(curve["num_accelerators"].to_list())
        inquiry = Inquiry(workload=workload, accelerator=accelerator, sizes=sizes, round=round_)
        asked.append((workload, curve, inquiry))
    found: dict[str, list[Balance]] = {workload: [] for workload in curves}
    # Hundreds of small matrices: threads of their own would only wait for each other.
    with threadpool_limits(limits=1, user_api="blas"):
        answers = forecasts(scores, [inquiry for *_, inquiry in asked])
        for (workload, curve, inquiry), answer in zip(asked, answers, strict=True):
            if isinstance(answer, Forecast):
                found[workload].append(_balance(curve, answer))
            else:
                subject = str(inquiry.accelerator)
                unanswered[workload].append(
                    Unanswered(subject=subject, reason=str(answer), missing=answer.missing)
                )
    return {
        workload: Balances(found=tuple(found[workload]), unanswered=tuple(unanswered[workload]))
        for workload in curves
    }


def _long_enough(curves: Mapping[str, pl.DataFrame]) -> Iterator[tuple[str, str, pl.DataFrame]]:
    """Each curve of enough sizes, with its workload and accelerator."""
    for workload, best in curves.items():
        for (accelerator,), curve in best.group_by(["accelerator"], maintain_order=True):
            if len(curve) >= FEWEST_SIZES:
                yield workload, str(accelerator), curve


def _sizes(published: Sequence[int]) -> tuple[int, ...]:
    """The published sizes, and even steps on a log scale between them and to one doubling beyond."""
    smallest, largest = min(published), 2 * max(published)
    num_steps = min(_MOST_STEPS, round(_STEPS_PER_OCTAVE * np.log2(largest / smallest)) + 1)
    steps = np.geomspace(smallest, largest, num_steps).round().astype(int)
    return tuple(sorted({*published[:: max(1, len(published) // 16)], *map(int, steps)}))


def _balance(curve: pl.DataFrame, answer: Forecast) -> Balance:
    """curve: the best score at each size of one accelerator."""
    sizes = tuple(curve["num_accelerators"].to_list())
    ground = answer.ground
    measured_j = {each.num_accelerators: each.energy_j for each in ground.foretold}
    deadline_s = DEADLINE_FACTOR * float(curve["score_s"].to_numpy().min())
    points = answer.equilibria
    if points:
        points += equilibria(ground.curves_s, ground.domain, kinds=_paid_kinds(answer.rates, deadline_s))
    return Balance(
        accelerator=curve["accelerator"][0],
        sizes=sizes,
        forecast=answer,
        points=points,
        curve=pl.DataFrame(
            {
                "num_accelerators": [each.num_accelerators for each in ground.foretold],
                "time_s": [each.time.value for each in ground.foretold],
                "low_s": [each.time.low for each in ground.foretold],
                "high_s": [each.time.high for each in ground.foretold],
                "level": [each.time.level for each in ground.foretold],
                "in_domain": [each.in_domain for each in ground.foretold],
                "beyond_data": [each.num_accelerators > max(sizes) for each in ground.foretold],
            }
        ),
        bills=tuple(
            economics.bill(
                point.num_accelerators,
                point.time_s,
                answer.rates,
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

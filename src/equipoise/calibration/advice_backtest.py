"""Backtest of the recommended number of accelerators on held-out sizes, and the record of it that ships."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from equipoise.calibration.curves import (
    ADVICE_JUMPS,
    ALL_JUMPS,
    OURS,
    AdviceErrors,
    HeldOutPart,
    Objective,
    Way,
)
from equipoise.calibration.forecasts import SmoothCurves
from equipoise.errors import EvidenceError
from equipoise.scaling.backtest import line_through_logs, past_laws
from equipoise.scaling.equilibrium import (
    BALANCE,
    FLOOR,
    MARGINAL,
    Equilibrium,
    cheapest,
    default_answer,
    discrete_equilibria,
    equilibria,
)
from equipoise.scaling.laws import Domain, FloatArray
from equipoise.scaling.pooled import PooledLaw, Question
from equipoise.spec.mlperf import Entries, ScoredEntry, best_per_size
from equipoise.stats import by_key, one_thread

Curves: TypeAlias = Callable[[FloatArray], FloatArray]
# Makes curves from the pooled law of earlier rounds, the known rows of a group, and the domain of sizes.
CurvesOf: TypeAlias = Callable[[PooledLaw, Entries, Domain], Curves]
SizesOf: TypeAlias = Callable[[Domain], Sequence[int]]

OBJECTIVES: Final[Mapping[Objective, str]] = {
    "answer": "the default answer: the smallest of balance, marginal and floor",
    "balance": BALANCE.title,
    "marginal": MARGINAL.title,
    "floor": FLOOR.title,
    "cost": "least cost within three quarters of the fastest time known",
}
LARGEST_KNOWN: Final = "largest_known"
# The deadline as a fraction of the best known time: a deadline that known sizes meet would need no forecast.
_DEADLINE_FACTOR = 0.75
# Fewest sizes of a group. A curve through the known sizes has two parameters; `half` and `largest` differ
# only from four sizes on.
_FEWEST_SIZES: Mapping[HeldOutPart, int] = {"largest": 3, "half": 4}


class Loss(Struct, frozen=True, kw_only=True):
    """Loss of a number of accelerators, as fractions.

    curve: relative to the number found, on the curve of all sizes: the absolute difference in efficiency
    times speedup; for `cost`, the larger of the excess cost and the excess over the deadline.
    measured: in efficiency times speedup, relative to the best measured size, at the measured size nearest to
    the number; only for `balance`.
    """

    num_accelerators: int
    curve: float
    measured: float | None


class HeldOutAdvice(Struct, frozen=True, kw_only=True):
    """The number advised for one group and objective, and the number found once all its sizes are known.

    largest_known, largest: the group's largest size without and with held-out sizes; both numbers are
    searched up to `largest`. losses: of the advised number (OURS) and of each simple rule.
    """

    round: str
    workload: str
    accelerator: str
    held_out: HeldOutPart
    objective: Objective
    largest_known: int
    largest: int
    advised: Equilibrium
    found: Equilibrium
    losses: Mapping[str, Loss]

    @property
    def jump(self) -> float:
        """The largest size over the largest known size."""
        return self.largest / self.largest_known

    @property
    def is_compared(self) -> bool:
        """Whether both numbers lie inside the range of sizes and can be compared."""
        return self.advised.is_found and self.found.is_found

    @property
    def is_covered(self) -> bool:
        """Whether the interval of the advice contains the number found, or agrees with its known bound."""
        low, high = self.advised.low or 0, self.advised.high or np.inf
        found = self.found.num_accelerators
        if self.found.is_found:
            return low <= found <= high
        return high >= found if self.found.limited_by else low <= found

    def num_doublings(self, way: str = OURS) -> float:
        """Distance in doublings between the number of a method and the number found."""
        return float(abs(np.log2(self.losses[way].num_accelerators / self.found.num_accelerators)))


def pooled_curves(law: PooledLaw, known: Entries, domain: Domain) -> Curves:
    """The curves that a forecast draws from the known rows of a group."""
    question = Question(workload=known[0].workload, accelerator=known[0].accelerator, num_accelerators=1)
    return SmoothCurves(law, known, question, domain)


def held_out_advice(
    entries: Iterable[ScoredEntry],
    *,
    rounds: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
    curves_of: CurvesOf = pooled_curves,
    sizes_of: SizesOf | None = None,
) -> tuple[HeldOutAdvice, ...]:
    """Numbers advised from strictly earlier rounds and a group's smaller sizes, with the numbers found.

    rounds: rounds to test; all by default. progress: called with each round. curves_of: makes the curves on
    which numbers are searched. sizes_of: the allowed sizes; any number by default.
    A group with enough sizes is tested twice: without its largest size, and without its larger half.
    Raises EvidenceError if no group has three sizes.
    """
    best = best_per_size(entries)
    of_groups = (tuple(rows) for _, rows in groupby(best, lambda each: each.group))
    groups = by_key(
        (rows[0].campaign, rows)
        for rows in of_groups
        if len(rows) >= _FEWEST_SIZES["largest"] and (rounds is None or rows[0].campaign in rounds)
    )
    if not groups:
        raise EvidenceError(
            "no group has enough sizes to hold one out",
            missing=(f"a round with a group of {_FEWEST_SIZES['largest']} sizes of one accelerator",),
        )
    found: list[HeldOutAdvice] = []
    with one_thread():
        for campaign, law in past_laws(best, tuple(groups), progress=progress):
            for rows in groups[campaign]:
                found += _of_group(law, rows, curves_of, sizes_of)
    return tuple(found)


def _of_group(
    law: PooledLaw, rows: Entries, curves_of: CurvesOf, sizes_of: SizesOf | None
) -> Iterator[HeldOutAdvice]:
    """The results for one group. rows: its entries in order of size."""
    sizes, times_s = _sizes_and_times(rows)
    domain = Domain(smallest=float(sizes[0]), largest=float(sizes[-1]))
    taken = None if sizes_of is None else sizes_of(domain)
    all_known = curves_of(law, rows, domain)
    for part, fewest in _FEWEST_SIZES.items():
        if len(rows) < fewest:
            continue
        known = rows[: -1 if part == "largest" else len(rows) - len(rows) // 2]
        deadline_s = _DEADLINE_FACTOR * min(each.score_s for each in known)
        found = _equilibria_by_objective(all_known, domain, deadline_s, taken)
        advised = _equilibria_by_objective(curves_of(law, known, domain), domain, deadline_s, taken)
        by_rule = {
            name: _equilibria_by_objective(rule, domain, deadline_s, taken)
            for name, rule in _rules(known).items()
        }
        for objective in OBJECTIVES:
            numbers = {OURS: advised[objective].num_accelerators}
            numbers[LARGEST_KNOWN] = known[-1].num_accelerators
            numbers |= {name: points[objective].num_accelerators for name, points in by_rule.items()}
            loss_function = _LossFunction(
                objective=objective,
                found=found[objective].num_accelerators,
                curves_s=all_known,
                sizes=sizes,
                time_s=times_s,
                deadline_s=deadline_s,
            )
            yield HeldOutAdvice(
                round=rows[0].campaign,
                workload=rows[0].workload,
                accelerator=rows[0].accelerator,
                held_out=part,
                objective=objective,
                largest_known=numbers[LARGEST_KNOWN],
                largest=int(sizes[-1]),
                advised=advised[objective],
                found=found[objective],
                losses={name: loss_function.loss(number) for name, number in numbers.items()},
            )


def _equilibria_by_objective(
    curves_s: Curves, domain: Domain, deadline_s: float, sizes: Sequence[int] | None
) -> dict[Objective, Equilibrium]:
    """The equilibrium of each objective. Cost and energy are proportional to accelerator-hours and share one.

    sizes: the allowed sizes for all objectives except `cost`; any number by default.
    """
    cost = cheapest("cost", per_accelerator=1.0, deadline_s=deadline_s)
    (least,) = equilibria(curves_s, domain, kinds=(cost,))
    if sizes is None:
        balance, marginal, floor = equilibria(curves_s, domain, kinds=(BALANCE, MARGINAL, FLOOR))
    else:
        drawn_s = curves_s(np.array(sizes, dtype=float))
        central_s = np.median(drawn_s, axis=0)
        balance, marginal, floor, _ = discrete_equilibria(
            sizes, drawn_s, central_s=central_s, limited_by="data"
        )
    return {
        "answer": default_answer((balance, marginal, floor)),
        "balance": balance,
        "marginal": marginal,
        "floor": floor,
        "cost": least,
    }


def _sizes_and_times(entries: Entries) -> tuple[FloatArray, FloatArray]:
    sizes = np.array([each.num_accelerators for each in entries], dtype=float)
    return sizes, np.array([each.score_s for each in entries])


def _rules(known: Entries) -> dict[str, Curves]:
    """The curves of simple rules: perfect scaling from the largest known size, and a log-log line."""
    sizes, times_s = _sizes_and_times(known)
    line_s = line_through_logs(sizes, times_s)
    return {
        # Slightly less than perfect; otherwise every size costs the same, and rounding would decide.
        "perfect": lambda at: np.atleast_2d(times_s[-1] * (sizes[-1] / at) ** 0.999999),
        "power_law": lambda at: np.atleast_2d(line_s(at)),
    }


class _LossFunction(Struct, frozen=True, kw_only=True):
    """Computes losses for one objective. curves_s: from all sizes. sizes, time_s: measured."""

    objective: Objective
    found: int
    curves_s: Curves
    sizes: FloatArray
    time_s: FloatArray
    deadline_s: float

    def loss(self, number: int) -> Loss:
        ours_s, found_s = np.median(self.curves_s(np.array([number, self.found], dtype=float)), axis=0)
        if self.objective == "cost":
            # The excess cost or the fraction by which the deadline is missed, whichever is larger.
            excess = float(number * ours_s / (self.found * found_s) - 1.0)
            late = float(ours_s / max(self.deadline_s, found_s) - 1.0)
            return Loss(num_accelerators=number, curve=max(excess, late), measured=None)
        lost = abs(float(1.0 - self.found * found_s**2 / (number * ours_s**2)))
        nearest = int(np.argmin(np.abs(np.log(self.sizes / number))))
        worth = 1.0 / (self.sizes * self.time_s**2)  # efficiency times speedup, up to a constant factor
        return Loss(
            num_accelerators=number,
            curve=lost,
            measured=float(1.0 - worth[nearest] / worth.max()) if self.objective == "balance" else None,
        )


def advice_errors(results: Sequence[HeldOutAdvice]) -> tuple[AdviceErrors, ...]:
    """The errors for every objective and held-out part, overall and by jump; without cases of no group."""
    jumps = ((ALL_JUMPS, 0.0, np.inf), *ADVICE_JUMPS)
    found = []
    for objective in OBJECTIVES:
        for part in _FEWEST_SIZES:
            of_objective = [one for one in results if (one.objective, one.held_out) == (objective, part)]
            for name, above, most in jumps:
                kept = [one for one in of_objective if above < one.jump <= most]
                if kept:
                    found.append(_errors(kept, name))
    return tuple(found)


def _errors(kept: Sequence[HeldOutAdvice], jump: str) -> AdviceErrors:
    beyond = [(one.advised.limited_by is not None, one.found.limited_by is not None) for one in kept]
    return AdviceErrors(
        objective=kept[0].objective,
        held_out=kept[0].held_out,
        jump=jump,
        num_groups=len(kept),
        num_compared=sum(one.is_compared for one in kept),
        num_both_beyond=beyond.count((True, True)),
        num_advised_beyond=beyond.count((True, False)),
        num_found_beyond=beyond.count((False, True)),
        coverage=float(np.mean([one.is_covered for one in kept])),
        methods={name: _accuracy_of(kept, name) for name in kept[0].losses},
    )


def _accuracy_of(kept: Sequence[HeldOutAdvice], name: str) -> Way:
    compared = [one for one in kept if one.is_compared]
    doublings = [one.num_doublings(name) for one in compared]
    regret = [one.losses[name].curve for one in compared]
    measured = [loss for one in kept if (loss := one.losses[name].measured) is not None]
    return Way(
        within_doubling=float(np.mean(np.array(doublings) <= 1.0)) if compared else None,
        median_doublings=float(np.median(doublings)) if compared else None,
        median_regret=float(np.median(regret)) if compared else None,
        p90_regret=float(np.quantile(regret, 0.9)) if compared else None,
        mean_measured_regret=float(np.mean(measured)) if measured else None,
        p90_measured_regret=float(np.quantile(measured, 0.9)) if measured else None,
    )

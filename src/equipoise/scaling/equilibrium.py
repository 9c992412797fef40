"""Where one more accelerator stops paying: each kind of equilibrium, with its interval, located on fitted
curves.

Sees curves only: any function from sizes to equally likely times. Fitting lives in fit.py, prices in
economics.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from equipoise.scaling.law import Domain, FloatArray
from equipoise.units import HOUR_S, format_count, format_duration, format_percent

_SIZES_PER_OCTAVE = 64
_IDEAL_SPEEDUP = 2.0  # of a doubling
_EFFICIENCY_FLOOR = 0.5

Bound = Literal["at", "at_least", "at_most"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Equally likely curves of time, sampled finely over the measured sizes.

    sizes: (n_sizes,) from the smallest to the largest measured. time_s, doubled_s: (n_curves, n_sizes)
    seconds at each size and at twice it.
    """

    sizes: FloatArray
    time_s: FloatArray
    doubled_s: FloatArray

    @property
    def efficiency(self) -> FloatArray:
        """Speedup over the smallest size, over the ideal: (n_curves, n_sizes)."""
        return np.asarray(self.time_s[:, :1] * self.sizes[0] / (self.time_s * self.sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One meaning of 'stops paying'.

    title: as in a sentence. locate: curves -> (n_curves,) sizes; infinite where the point lies beyond the
    largest size, zero where it lies before the smallest.
    """

    name: str
    title: str
    definition: str
    locate: Callable[[Curves], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubling:
    """What twice the accelerators would gain and cost.

    gain_s, gain_fraction: time saved, negative where it takes longer. accelerator_hours_factor: cost after
    over before.
    extrapolated: whether twice the size lies beyond the measured sizes.
    """

    gain_s: float
    gain_fraction: float
    accelerator_hours_factor: float
    extrapolated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Equilibrium:
    """A point where more accelerators stop paying, or how far the data reach without it.

    bound: "at" the number; "at_least" it, the largest measured, where the data end first; "at_most" it, the
    smallest measured, where it comes before them. low, high: bounds that hold it with probability `level`;
    None where that bound lies outside the measured sizes. efficiency: against the smallest measured size.
    All else at num_accelerators.
    """

    kind: str
    title: str
    num_accelerators: int
    low: int | None
    high: int | None
    level: float
    bound: Bound
    time_s: float
    efficiency: float
    next_doubling: Doubling

    @property
    def censored(self) -> bool:
        """Whether the data end before the point: then it is only known to be at least the number."""
        return self.bound == "at_least"

    @property
    def accelerator_hours(self) -> float:
        """What the training takes at this size."""
        return self.num_accelerators * self.time_s / HOUR_S


def _at_extreme(curves: Curves, score: FloatArray) -> FloatArray:
    """The size of the largest score of each curve, outside the data where it is at an end."""
    best = np.argmax(score, axis=1)
    sizes = curves.sizes[best]
    return np.where(best == score.shape[1] - 1, math.inf, np.where(best == 0, 0.0, sizes))


def _balance(curves: Curves) -> FloatArray:
    # The log of efficiency times speedup, but for a constant: 1 / (N T^2).
    return _at_extreme(curves, -np.log(curves.sizes) - 2.0 * np.log(curves.time_s))


def _peak(curves: Curves) -> FloatArray:
    return _at_extreme(curves, -curves.time_s)


def _marginal(curves: Curves) -> FloatArray:
    too_little = curves.time_s / curves.doubled_s < 1.0 + 0.5 * (_IDEAL_SPEEDUP - 1.0)
    first = np.argmax(too_little, axis=1)
    found = np.where(first == 0, 0.0, curves.sizes[first])
    return np.where(too_little.any(axis=1), found, math.inf)


def _floor(curves: Curves) -> FloatArray:
    enough = curves.efficiency >= _EFFICIENCY_FLOOR
    last = enough.shape[1] - 1 - np.argmax(enough[:, ::-1], axis=1)
    return np.where(last == enough.shape[1] - 1, math.inf, curves.sizes[last])


BALANCE = Kind(
    name="balance",
    title="the balance point",
    definition="the interior maximum of efficiency times speedup (Eager, Zahorjan and Lazowska 1989)",
    locate=_balance,
)
MARGINAL = Kind(
    name="marginal",
    title="the last size from which doubling still gains half of ideal, 1.5 times the speed",
    definition="the largest size up to which every doubling makes training at least 1.5 times as fast",
    locate=_marginal,
)
FLOOR = Kind(
    name="floor",
    title="the last size with an efficiency of one half",
    definition="the largest size with an efficiency of at least 0.5 against the smallest measured size",
    locate=_floor,
)
PEAK = Kind(
    name="peak",
    title="the fastest size",
    definition="the size with the least time",
    locate=_peak,
)
KINDS = (BALANCE, MARGINAL, FLOOR, PEAK)
_ANSWERS = (BALANCE.name, MARGINAL.name, FLOOR.name)


def cheapest(name: str, *, per_accelerator: float, fixed: float = 0.0, deadline_s: float = math.inf) -> Kind:
    """The kind that means the least total of something paid by time: money, energy or carbon.

    per_accelerator, fixed: paid in a second for each accelerator, and for the job whatever its size (the
    value of an hour of waiting; the power of the rest of the machine room). deadline_s: longer times are not
    allowed.
    """

    def locate(curves: Curves) -> FloatArray:
        total = curves.time_s * (per_accelerator * curves.sizes + fixed)
        allowed = curves.time_s <= deadline_s
        found = _at_extreme(curves, np.where(allowed, -total, -math.inf))
        return np.where(allowed.any(axis=1), found, math.inf)

    within = "" if math.isinf(deadline_s) else f" within {format_duration(deadline_s)}"
    return Kind(
        name=name,
        title=f"the size of least {name}{within}",
        definition=f"the size with the least {name}{within}: {per_accelerator:g} a second for each "
        f"accelerator and {fixed:g} for the job",
        locate=locate,
    )


def equilibria(
    curves_s: Callable[[FloatArray], FloatArray],
    domain: Domain,
    *,
    kinds: tuple[Kind, ...] = KINDS,
    level: float = 0.9,
) -> tuple[Equilibrium, ...]:
    """Each kind of equilibrium of the curves, in the order of `kinds`.

    curves_s: (n_sizes,) -> (n_curves, n_sizes) equally likely times, as Fit.curves_s. domain: the measured
    sizes; no equilibrium is reported outside them.
    Returns whole accelerators, rounded down: the last size that has not passed the point.
    Assumes the curves go on to hold at twice the largest size, where a doubling is judged.
    Source: Eager, Zahorjan and Lazowska 1989, IEEE Transactions on Computers 38, 408, for balance.
    """
    num_sizes = math.ceil(_SIZES_PER_OCTAVE * math.log2(domain.largest / domain.smallest)) + 1
    sizes = domain.smallest * 2.0 ** (np.arange(num_sizes + _SIZES_PER_OCTAVE) / _SIZES_PER_OCTAVE)
    times_s = curves_s(sizes)
    curves = Curves(
        sizes=sizes[:num_sizes], time_s=times_s[:, :num_sizes], doubled_s=times_s[:, _SIZES_PER_OCTAVE:]
    )
    tail = (1.0 - level) / 2.0
    found = []
    for kind in kinds:
        located = np.quantile(kind.locate(curves), [tail, 0.5, 1.0 - tail], method="inverted_cdf")
        found.append(_equilibrium(kind, located, curves_s, domain, level))
    return tuple(found)


def _equilibrium(
    kind: Kind,
    located: FloatArray,
    curves_s: Callable[[FloatArray], FloatArray],
    domain: Domain,
    level: float,
) -> Equilibrium:
    """The record of one kind; located: (3,) low, middle and high size, zero or infinite outside the data."""
    low, middle, high = (float(size) for size in located)
    bound: Bound = "at_least" if math.isinf(middle) else "at_most" if middle == 0.0 else "at"
    size = math.floor(min(max(middle, domain.smallest), domain.largest))
    reference_s, time_s, doubled_s = np.median(
        curves_s(np.array([domain.smallest, size, 2.0 * size])), axis=0
    )
    return Equilibrium(
        kind=kind.name,
        title=kind.title,
        num_accelerators=size,
        low=None if low == 0.0 else math.floor(min(low, domain.largest)),
        high=None if math.isinf(high) else math.ceil(max(high, domain.smallest)),
        level=level,
        bound=bound,
        time_s=float(time_s),
        efficiency=float(reference_s * domain.smallest / (time_s * size)),
        next_doubling=Doubling(
            gain_s=float(time_s - doubled_s),
            gain_fraction=float(1.0 - doubled_s / time_s),
            accelerator_hours_factor=float(2.0 * doubled_s / time_s),
            extrapolated=2.0 * size > domain.largest,
        ),
    )


def default_answer(found: tuple[Equilibrium, ...]) -> Equilibrium:
    """The smallest of balance, marginal and floor: the first reason to stop.

    At one size, a point that was reached comes before one that may lie beyond.
    """
    answers = (each for each in found if each.kind in _ANSWERS)
    return min(answers, key=lambda each: (each.num_accelerators, each.censored))


def words(point: Equilibrium) -> str:
    """The equilibrium, and what going on would bring, in one sentence."""
    size = format_count(point.num_accelerators)
    here = f"at {size} you are at {point.title}{_range_words(point)}"
    place = here if point.bound == "at" else f"{point.title} lies {place_words(point)}"
    caveat = ", by extrapolation" if point.next_doubling.extrapolated else ""
    return f"{place}; {doubling_words(point)}{caveat}"


def place_words(point: Equilibrium, *, sizes: str = "the data") -> str:
    """Where it is, with its interval. sizes: what ends, or begins, where it may lie further."""
    size = format_count(point.num_accelerators)
    return {
        "at": f"at {size}{_range_words(point)}",
        "at_least": f"at {size} or beyond, where {sizes} end",
        "at_most": f"at {size} or below, where {sizes} begin",
    }[point.bound]


def doubling_words(point: Equilibrium, *, factor: str = ".2g") -> str:
    """What going on to twice the accelerators would bring and cost. factor: how to write that of the cost."""
    after = point.next_doubling
    change = f"{format_duration(abs(after.gain_s))} ({format_percent(abs(round(after.gain_fraction, 2)))})"
    gain = f"saves {change}" if after.gain_s >= 0.0 else f"takes {change} longer"
    return (
        f"going to {format_count(2 * point.num_accelerators)} {gain} and costs "
        f"{after.accelerator_hours_factor:{factor}}x the accelerator-hours"
    )


def _range_words(point: Equilibrium) -> str:
    """The interval as words in brackets; nothing where the data leave both ends open."""
    low, high = (None if size is None else format_count(size) for size in (point.low, point.high))
    if low and high:
        return f" ({low}-{high})"
    return f" ({low} or more)" if low else f" (up to {high})" if high else ""

"""Where one more accelerator stops paying: each kind of equilibrium, with its interval, on fitted curves or
on the sizes that may be taken; and the words for it.

Sees times only: any function from sizes to equally likely times, or such times at given sizes. Fitting lives
in fit.py, prices in economics.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import UsageError
from equipoise.intervals import tails
from equipoise.scaling.laws import Domain, FloatArray
from equipoise.scaling.posterior import IntArray
from equipoise.stats import located_quantiles, medians
from equipoise.units import format_count, format_duration, format_percent

_SIZES_PER_OCTAVE = 64
_IDEAL_SPEEDUP = 2.0  # of a doubling
_EFFICIENCY_FLOOR = 0.5
# Ratios that differ by less are equal: times are products of roundings.
_ROUNDING = 2.0**-30

# Whose limit ends the sizes: those with a time, those that exist, or those that the question allows.
Limit: TypeAlias = Literal["data", "catalogue", "question"]


class Curves(Struct, frozen=True, kw_only=True):
    """Equally likely times at sizes from the smallest to the largest.

    sizes: (n_sizes,). time_s: (n_curves, n_sizes) seconds. doubled_s: likewise, at twice each size, where the
    sizes are samples of a range, _SIZES_PER_OCTAVE of them to a doubling; None where nothing but the sizes
    may be taken. least_s: what every accelerator is paid for in any case, by size or one for all.
    """

    sizes: FloatArray
    time_s: FloatArray
    doubled_s: FloatArray | None = None
    least_s: FloatArray | float = 0.0

    @property
    def paid_sizes(self) -> FloatArray:
        """How many accelerators would use the hours paid, not more than paid: (n_curves, n_sizes).

        What a size costs is these times the time; without a commitment they are the sizes.
        """
        return np.asarray(self.sizes * np.maximum(1.0, self.least_s / self.time_s))

    @property
    def efficiency(self) -> FloatArray:
        """Speedup over the smallest size, over the ideal for the hours paid: (n_curves, n_sizes)."""
        paid = self.paid_sizes
        return np.asarray(self.time_s[:, :1] * paid[:, :1] / (self.time_s * paid))


class Kind(Struct, frozen=True, kw_only=True):
    """One meaning of 'stops paying'.

    title: as in a sentence, {smallest} standing for the smallest size. locate: curves -> (n_curves,) sizes;
    infinite where the point lies at the largest size or beyond, zero where at the smallest or before.
    """

    name: str
    title: str
    definition: str
    locate: Callable[[Curves], FloatArray]


class NextStep(Struct, frozen=True, kw_only=True):
    """What going on to a larger size would gain and cost.

    num_accelerators: that size. gain_s, gain_fraction: time saved, negative where it takes longer.
    accelerator_hours_factor: cost after over before. is_extrapolated: whether that size lies beyond those of
    which times are known.
    """

    num_accelerators: int
    gain_s: float
    gain_fraction: float
    accelerator_hours_factor: float
    is_extrapolated: bool = False


class Equilibrium(Struct, frozen=True, kw_only=True):
    """A point of diminishing returns, or how far the sizes go without it.

    limited_by: None where the point was found; else whose limit ended the search: the point is then at least
    num_accelerators, the largest size there was. is_smallest: the point is at most num_accelerators, the
    smallest size there was. low, high: bounds that hold it with probability `level`; None where that bound
    lies outside the sizes. efficiency: against the smallest size. next_step: to twice the accelerators, or to
    the next larger of given sizes; None where there is none. All else at num_accelerators.
    """

    kind: str
    title: str
    num_accelerators: int
    low: int | None
    high: int | None
    level: float
    limited_by: Limit | None
    is_smallest: bool = False
    time_s: float
    efficiency: float
    next_step: NextStep | None

    @property
    def is_found(self) -> bool:
        """Whether the point lies at the number, and not at an end of the sizes or beyond it."""
        return self.limited_by is None and not self.is_smallest


def _at_extreme(curves: Curves, score: FloatArray) -> FloatArray:
    """The size of the largest score of each curve, outside the data where it is at an end."""
    best = np.argmax(score, axis=1)
    sizes = curves.sizes[best]
    return np.where(best == score.shape[1] - 1, math.inf, np.where(best == 0, 0.0, sizes))


def _balance(curves: Curves) -> FloatArray:
    # The log of efficiency times speedup, but for a constant: 1 / (N T^2).
    return _at_extreme(curves, -np.log(curves.paid_sizes) - 2.0 * np.log(curves.time_s))


def _peak(curves: Curves) -> FloatArray:
    return _at_extreme(curves, -curves.time_s)


def pays(speedup: FloatArray | float, growth: FloatArray | float) -> FloatArray:
    """Whether a step to `growth` times the accelerators that is `speedup` times as fast pays.

    It does where it brings at least half of what ideal scaling would add; a doubling: 1.5 times the speed.
    """
    return np.asarray(speedup >= least_speedup(growth) * (1.0 - _ROUNDING))


def least_speedup(growth: FloatArray | float) -> FloatArray:
    """How many times as fast a step to `growth` times the accelerators must be to pay."""
    return np.asarray(1.0 + 0.5 * (growth - 1.0))


def least_speedup_for(paid: float) -> float:
    """The same for a step to `paid` times the hours paid, however fast it is; infinite where no speed does.

    Source: speedup = 1 + (growth - 1) / 2 with growth = paid x speedup.
    """
    return 1.0 / (_IDEAL_SPEEDUP - paid) if paid < _IDEAL_SPEEDUP else math.inf


def _marginal(curves: Curves) -> FloatArray:
    """The end of the sizes reached from the smallest by steps that each pay.

    On samples of a range the steps are doublings. From every size before the first whose doubling does not
    pay, N*, the doubling is taken, so every size up to 2 N* is reached, and the first that is not lies just
    above. Where N* is the smallest size nothing is reached. N* is interpolated between samples.
    """
    if curves.doubled_s is None:
        return _reached(curves)
    speedup = curves.time_s / curves.doubled_s
    is_enough = pays(speedup, _IDEAL_SPEEDUP)
    num_paying = np.where(is_enough.all(axis=1), is_enough.shape[1], np.argmin(is_enough, axis=1))
    rows, last = np.arange(len(speedup)), np.maximum(num_paying - 1, 0)
    after = speedup[rows, np.minimum(last + 1, speedup.shape[1] - 1)]
    excess, drop = speedup[rows, last] - least_speedup(_IDEAL_SPEEDUP), speedup[rows, last] - after
    share = np.clip(np.divide(excess, drop, out=np.zeros_like(excess), where=drop > 0.0), 0.0, 1.0)
    end = _IDEAL_SPEEDUP * curves.sizes[last] * 2.0 ** (share / _SIZES_PER_OCTAVE)
    return np.where(num_paying == 0, 0.0, np.where(end >= curves.sizes[-1], math.inf, end))


def _reached(curves: Curves) -> FloatArray:
    """The largest of the sizes that steps between any two of them reach, if each pays; as Kind.locate.

    Steps begin at the size of fewest accelerator-hours: smaller ones are slower and dearer (memory is short),
    so that a step from them would pay to sizes that are no better than the next smaller one.
    """
    num_sizes, first, paid = len(curves.sizes), _fewest_hours(curves), curves.paid_sizes
    is_reached = np.arange(num_sizes) == first[:, None]
    is_paying = np.ones(len(first), dtype=bool)
    for at in range(1, num_sizes):
        is_paying = pays(curves.time_s[:, :at] / curves.time_s[:, at, None], paid[:, at, None] / paid[:, :at])
        is_reached[:, at] |= (is_reached[:, :at] & is_paying).any(axis=1)
    last = num_sizes - 1 - np.argmax(is_reached[:, ::-1], axis=1)
    # Reached by a longer step though the last short one does not pay: the curve has turned.
    goes_on = np.ones(len(last), dtype=bool) if num_sizes == 1 else is_paying[:, -1]
    beyond = (last == num_sizes - 1) & goes_on
    return np.where(beyond, math.inf, np.where(last == 0, 0.0, curves.sizes[last]))


def _fewest_hours(curves: Curves) -> IntArray:
    """The place of the smallest of the sizes with the fewest accelerator-hours of each curve."""
    hours = curves.time_s * curves.paid_sizes
    return np.asarray(np.argmax(hours <= hours.min(axis=1, keepdims=True) * (1.0 + _ROUNDING), axis=1))


def paying_step(
    num_accelerators: Sequence[int], time_s: Sequence[float], *, least_s: Sequence[float] = (0.0,)
) -> int | None:
    """The place of the nearest size from which a step to the largest pays; None where from none does.

    num_accelerators: (n_sizes,), ascending. time_s: (n_sizes,). least_s: as of Curves. Steps begin where
    those of `marginal` do.
    """
    curve = _one_curve(num_accelerators, time_s, least_s)
    (sizes,), (times_s,) = curve.paid_sizes, curve.time_s
    found = np.flatnonzero(pays(times_s[:-1] / times_s[-1], sizes[-1] / sizes[:-1]))
    found = found[found >= _fewest_hours(curve)[0]]
    return int(found[-1]) if len(found) else None


def reached_by_paying_steps(
    num_accelerators: Sequence[int], time_s: Sequence[float], *, least_s: Sequence[float] = (0.0,)
) -> int:
    """The largest of these sizes that is reached from that of fewest hours by steps that each pay.

    num_accelerators: (n_sizes,), one or more, ascending. time_s: (n_sizes,). least_s: as of Curves.
    """
    reached = float(_reached(_one_curve(num_accelerators, time_s, least_s))[0])
    return int(min(max(reached, num_accelerators[0]), num_accelerators[-1]))


def _one_curve(num_accelerators: Sequence[int], time_s: Sequence[float], least_s: Sequence[float]) -> Curves:
    return Curves(
        sizes=np.array(num_accelerators, dtype=float),
        time_s=np.array([time_s], dtype=float),
        least_s=np.array(least_s, dtype=float),
    )


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
    title="the largest size reached by steps that pay (a doubling: at least 1.5 times the speed)",
    definition="the largest size reached by steps that each pay: from N to M accelerators at least "
    "1 + (M / N - 1) / 2 times as fast, a doubling 1.5 times; the step that still pays is taken",
    locate=_marginal,
)
FLOOR = Kind(
    name="floor",
    title="the last size with an efficiency of one half against a size of {smallest}",
    definition="the largest size with an efficiency of at least 0.5 against the smallest size",
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


def cheapest(name: str, *, per_accelerator: float, deadline_s: float = math.inf) -> Kind:
    """The kind that means the least total of something paid by time: money, energy or carbon.

    per_accelerator: paid in a second for each. deadline_s: longer times are not allowed.
    """

    def locate(curves: Curves) -> FloatArray:
        total = curves.time_s * per_accelerator * curves.sizes
        allowed = curves.time_s <= deadline_s
        found = _at_extreme(curves, np.where(allowed, -total, -math.inf))
        return np.where(allowed.any(axis=1), found, math.inf)

    within = "" if math.isinf(deadline_s) else f" within {format_duration(deadline_s)}"
    return Kind(
        name=name,
        title=f"the size of least {name}{within}",
        definition=f"the size with the least {name}{within}, {per_accelerator:g} a second per accelerator",
        locate=locate,
    )


def equilibria(
    curves_s: Callable[[FloatArray], FloatArray],
    domain: Domain,
    *,
    kinds: tuple[Kind, ...] = KINDS,
    level: float = 0.9,
    limited_by: Limit = "data",
) -> tuple[Equilibrium, ...]:
    """Each kind of equilibrium of the curves, in the order of `kinds`.

    curves_s: (n_sizes,) -> (n_curves, n_sizes) equally likely times, as Fit.curves_s. domain: the sizes to
    search; no equilibrium is reported outside them. limited_by: whose limit the largest of them is.
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
    has_smaller = domain.smallest > 1.0

    def whole(size: float) -> int:
        return math.floor(min(max(size, domain.smallest), domain.largest) * (1.0 + _ROUNDING))

    found = []
    for kind in kinds:
        located = located_quantiles(kind.locate(curves), _quantiles(level))
        low, middle, high = (float(size) for size in located)
        size = whole(middle)
        reference_s, time_s, doubled_s = medians(curves_s(np.array([domain.smallest, size, 2.0 * size])))
        step = _next_step(2 * size, float(doubled_s), over=(size, float(time_s)))
        found.append(
            Equilibrium(
                kind=kind.name,
                title=kind.title.format(smallest=format_count(domain.smallest)),
                num_accelerators=size,
                low=None if low == 0.0 and has_smaller else whole(low),
                high=None if math.isinf(high) else math.ceil(max(high, domain.smallest)),
                level=level,
                limited_by=limited_by if math.isinf(middle) else None,
                is_smallest=middle == 0.0 and has_smaller,
                time_s=float(time_s),
                efficiency=float(reference_s * domain.smallest / (time_s * size)),
                next_step=replace(step, is_extrapolated=2 * size > domain.largest),
            )
        )
    return tuple(found)


def discrete_equilibria(
    num_accelerators: Sequence[int],
    time_s: FloatArray,
    *,
    central_s: FloatArray,
    start_s: float = 0.0,
    least_s: FloatArray | float = 0.0,
    level: float = 0.9,
    limited_by: Limit = "question",
) -> tuple[Equilibrium, ...]:
    """Each kind of equilibrium among sizes that may be taken, in the order of KINDS.

    num_accelerators: (n_sizes,), ascending. time_s: (n_draws, n_sizes) equally likely times. central_s:
    (n_sizes,) the times that are shown: the number, its time and its efficiency are those of this curve,
    low and high the quantiles over the draws, widened where they leave the number out. start_s: what every
    size takes before the times begin: it counts in where a point lies, not in the times that are returned.
    least_s: as of Curves; it counts likewise.
    limited_by: whose limit the largest size is.
    Returns one of the sizes each. limited_by of a point is set where it is the largest size and the curve
    has not turned there: the last step still served the kind's purpose.
    Raises UsageError where there is no size, or sizes are not in ascending order.
    Assumes that nothing between the sizes may be taken.
    Source: as `equilibria`; marginal over all pairs of sizes, not doublings alone.
    """
    if not num_accelerators or any(b <= a for a, b in pairwise(num_accelerators)):
        raise UsageError(f"sizes {list(num_accelerators)!r}; expected one or more, in ascending order")
    sizes = np.array(num_accelerators, dtype=float)
    shown = Curves(sizes=sizes, time_s=np.asarray(central_s)[None, :])
    central = Curves(sizes=sizes, time_s=shown.time_s + start_s, least_s=least_s)
    draws = Curves(sizes=sizes, time_s=time_s + start_s, least_s=least_s)
    has_smaller = num_accelerators[0] > 1

    def within(size: float) -> int:
        return int(min(max(size, sizes[0]), sizes[-1]))

    found = []
    for kind in KINDS:
        value = float(kind.locate(central)[0])
        size = within(value)
        at = num_accelerators.index(size)
        spread = located_quantiles(kind.locate(draws), _quantiles(level))
        low, high = float(min(spread[0], value)), float(max(spread[-1], value))
        step = None
        if at + 1 < len(sizes):
            after_s = float(central_s[at + 1])
            step = _next_step(num_accelerators[at + 1], after_s, over=(size, float(central_s[at])))
        found.append(
            Equilibrium(
                kind=kind.name,
                title=kind.title.format(smallest=format_count(num_accelerators[0])),
                num_accelerators=size,
                low=None if low == 0.0 and has_smaller else within(low),
                high=None if math.isinf(value) else within(high),
                level=level,
                limited_by=limited_by if math.isinf(value) else None,
                is_smallest=value == 0.0 and has_smaller,
                time_s=float(central_s[at]),
                efficiency=float(shown.efficiency[0, at]),
                next_step=step,
            )
        )
    return tuple(found)


def _quantiles(level: float) -> tuple[float, float, float]:
    """The low, middle and high one of an interval that holds with probability `level`."""
    low, high = tails(level)
    return low, 0.5, high


def _next_step(num_accelerators: int, after_s: float, *, over: tuple[int, float]) -> NextStep:
    """Going on to so many, which takes after_s. over: the size and time that one has."""
    size, time_s = over
    return NextStep(
        num_accelerators=num_accelerators,
        gain_s=time_s - after_s,
        gain_fraction=1.0 - after_s / time_s,
        accelerator_hours_factor=num_accelerators * after_s / (size * time_s),
    )


def default_answer(found: tuple[Equilibrium, ...]) -> Equilibrium:
    """The smallest of balance, marginal and floor: the first reason to stop.

    At one size, a point that was found comes before one that is only known as at least that.
    """
    answers = (each for each in found if each.kind in _ANSWERS)
    return min(answers, key=lambda each: (each.num_accelerators, each.limited_by is not None))


# What the largest size is the most of, by whose limit it is.
_ENDS: Final[Mapping[Limit, str]] = {
    "data": "the most that the data support",
    "catalogue": "the largest tried",
    "question": "the most within your limit",
}
# What is so up to a point, by kind.
_UP_TO: Final[Mapping[str, str]] = {
    BALANCE.name: "efficiency \N{MULTIPLICATION SIGN} speedup grows up to {end}",
    MARGINAL.name: "each larger size pays up to {end}",
    FLOOR.name: "the efficiency is at least one half up to {end}",
    PEAK.name: "time falls up to {end}",
}


# Of a curve of one size.
TWO_SIZES_NEEDED: Final = (
    "times of this accelerator at two sizes or more are needed to find where returns diminish"
)


def deciding_kind(points: tuple[Equilibrium, ...]) -> Kind:
    """The first reason to stop; where that is not reached none is, so that each step pays."""
    point = default_answer(points)
    return next(each for each in KINDS if each.name == point.kind) if point.limited_by is None else MARGINAL


def returns_words(points: tuple[Equilibrium, ...], *, subject: str = "returns") -> str:
    """Where returns diminish by the first reason to stop. subject: what diminishes."""
    if not points:
        return "too few sizes have a known time to find where returns diminish"
    return point_words(default_answer(points), kind=deciding_kind(points).name, subject=subject)


def point_words(point: Equilibrium, *, kind: str | None = None, subject: str = "returns") -> str:
    """One equilibrium, or whose limit ended the search for it.

    kind: as which, unless its own. subject: what diminishes.
    """
    size, name = format_count(point.num_accelerators), kind or point.kind
    spread, end = range_words(point), ""
    span = f" ({spread}, {format_percent(point.level)} range)" if spread and point.is_found else ""
    if point.limited_by is not None:
        hint = " (--accelerators)" if point.limited_by == "catalogue" else ""
        end = f", {_ENDS[point.limited_by]}{hint}"
    if name not in _UP_TO:  # least money or energy
        return f"{point.title} is {size_words(point)}{span}{end}"
    if end:
        return _UP_TO[name].format(end=f"{size}{end}")
    if point.is_smallest and name == MARGINAL.name:
        return f"no larger size pays than the smallest, {size} (a doubling pays from 1.5 times the speed)"
    if point.is_smallest:
        return f"{subject} diminish from the smallest size, {size}, on: {point.title}"
    return f"{subject} diminish beyond {size}{span}: {point.title}"


def stop_words(point: Equilibrium) -> str:
    """What speaks against more accelerators than at an equilibrium."""
    size = format_count(point.num_accelerators)
    if point.limited_by is not None:
        return f"{size} is {_ENDS[point.limited_by]}"
    if point.kind == FLOOR.name:
        return "efficiency is below one half"
    if point.kind == BALANCE.name:
        return f"efficiency \N{MULTIPLICATION SIGN} speedup is highest at {size}"
    return f"returns diminish beyond {size}"


def size_words(point: Equilibrium) -> str:
    """The size of an equilibrium, with `at least` or `at most` where it was not found."""
    bound = "at least " if point.limited_by else "at most " if point.is_smallest else ""
    return f"{bound}{format_count(point.num_accelerators)}"


def range_words(point: Equilibrium) -> str:
    """The interval of the size, an end outside the sizes left open; nothing where it has no width."""
    low, high = (None if size is None else format_count(size) for size in (point.low, point.high))
    if low == high:
        return ""
    return f"{low} to {high}" if low and high else f"{low} or more" if low else f"up to {high}"


def words(point: Equilibrium) -> str:
    """The equilibrium, and what going on would bring, in one sentence."""
    return "; ".join(filter(None, (point_words(point), _step_words(point))))


def _step_words(point: Equilibrium) -> str:
    """What going on to the next size would bring and cost; empty where there is none."""
    after = point.next_step
    if after is None:
        return ""
    change = f"{format_duration(abs(after.gain_s))} ({format_percent(abs(round(after.gain_fraction, 2)))})"
    gain = f"saves {change}" if after.gain_s >= 0.0 else f"takes {change} longer"
    caveat = ", by extrapolation" if after.is_extrapolated else ""
    return (
        f"going to {format_count(after.num_accelerators)} {gain} and costs "
        f"{after.accelerator_hours_factor:.2g}x the accelerator-hours{caveat}"
    )

"""Points of diminishing returns with intervals, on fitted curves or among allowed sizes; and their wording.

Works on times only: a function from sizes to equally likely times, or such times at given sizes. Fits are in
fit.py, prices in economics.
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
# Ratios that differ by less count as equal, because of rounding.
_ROUNDING = 2.0**-30

# What limits the sizes: those with known times, those that exist, or those that the question allows.
Limit: TypeAlias = Literal["data", "catalogue", "question", "strategies"]


class Curves(Struct, frozen=True, kw_only=True):
    """Equally likely times at sizes from the smallest to the largest.

    sizes: (n_sizes,). time_s: seconds, (n_curves, n_sizes). doubled_s: the same at twice each size, where
    sizes are samples of a range, _SIZES_PER_OCTAVE per doubling; None where only these sizes are allowed.
    least_s: minimum paid time per accelerator, by size or one for all.
    """

    sizes: FloatArray
    time_s: FloatArray
    doubled_s: FloatArray | None = None
    least_s: FloatArray | float = 0.0

    @property
    def paid_sizes(self) -> FloatArray:
        """Paid accelerator-seconds divided by the time: (n_curves, n_sizes); the sizes without a minimum."""
        return np.asarray(self.sizes * np.maximum(1.0, self.least_s / self.time_s))

    @property
    def efficiency(self) -> FloatArray:
        """Speedup over the smallest size, relative to the ratio of paid accelerators: (n_curves, n_sizes)."""
        paid = self.paid_sizes
        return np.asarray(self.time_s[:, :1] * paid[:, :1] / (self.time_s * paid))


class Kind(Struct, frozen=True, kw_only=True):
    """A definition of the point of diminishing returns.

    title: for use in a sentence, with {smallest} for the smallest size. locate: curves -> sizes, (n_curves,);
    infinite for a point at or beyond the largest size, zero for one at or before the smallest.
    """

    name: str
    title: str
    definition: str
    locate: Callable[[Curves], FloatArray]


class NextStep(Struct, frozen=True, kw_only=True):
    """Gain and cost of a step to a larger size.

    num_accelerators: the larger size. gain_s, gain_fraction: time saved, negative if it takes longer.
    accelerator_hours_factor: accelerator-hours after over before. is_extrapolated: whether the size is larger
    than those with known times.
    """

    num_accelerators: int
    gain_s: float
    gain_fraction: float
    accelerator_hours_factor: float
    is_extrapolated: bool = False


class Equilibrium(Struct, frozen=True, kw_only=True):
    """A point of diminishing returns, or a bound of it.

    limited_by: None if the point was found; otherwise the limit that ended the search, and the point is at
    least num_accelerators, the largest size. is_smallest: the point is at most num_accelerators, the smallest
    size. low, high: interval with probability `level`; None for a bound outside the sizes. efficiency:
    relative to the smallest size. next_step: to twice the accelerators, or to the next larger allowed size;
    None without one. All other values are at num_accelerators.
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
        """Whether the point is at num_accelerators, rather than at or beyond an end of the sizes."""
        return self.limited_by is None and not self.is_smallest


def _at_extreme(curves: Curves, score: FloatArray) -> FloatArray:
    """The size with the largest score of each curve; 0 or infinity if it is the first or last size."""
    best = np.argmax(score, axis=1)
    sizes = curves.sizes[best]
    return np.where(best == score.shape[1] - 1, math.inf, np.where(best == 0, 0.0, sizes))


def _balance(curves: Curves) -> FloatArray:
    # Log of efficiency times speedup up to a constant: 1 / (N T^2).
    return _at_extreme(curves, -np.log(curves.paid_sizes) - 2.0 * np.log(curves.time_s))


def _peak(curves: Curves) -> FloatArray:
    return _at_extreme(curves, -curves.time_s)


def pays(speedup: FloatArray | float, growth: FloatArray | float) -> FloatArray:
    """Whether a step to `growth` times the accelerators with this speedup pays.

    It does if it gains at least half of what ideal scaling would; a doubling: 1.5 times the speed.
    """
    return np.asarray(speedup >= least_speedup(growth) * (1.0 - _ROUNDING))


def least_speedup(growth: FloatArray | float) -> FloatArray:
    """The least speedup with which a step to `growth` times the accelerators pays."""
    return np.asarray(1.0 + 0.5 * (growth - 1.0))


def least_speedup_for(paid: float) -> float:
    """The least speedup with which a step to `paid` times the paid hours pays; infinite if none does.

    Source: speedup = 1 + (growth - 1) / 2 with growth = paid x speedup.
    """
    return 1.0 / (_IDEAL_SPEEDUP - paid) if paid < _IDEAL_SPEEDUP else math.inf


def _marginal(curves: Curves) -> FloatArray:
    """The largest size reached from the smallest by steps that each pay.

    On samples of a range the steps are doublings. Let N* be the first size whose doubling does not pay: all
    doublings from smaller sizes are taken, so all sizes up to 2 N* are reached, and none above. If N* is the
    smallest size, nothing is reached. N* is interpolated between samples.
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
    """The largest size reached by paying steps between any two of the sizes, as returned by `Kind.locate`.

    Steps start at the size with the fewest accelerator-hours: smaller sizes are slower and more expensive
    (short of memory), so that steps from them would pay even to sizes that are no better than the next
    smaller one.
    """
    num_sizes, first, paid = len(curves.sizes), _fewest_hours(curves), curves.paid_sizes
    is_reached = np.arange(num_sizes) == first[:, None]
    is_paying = np.ones(len(first), dtype=bool)
    for at in range(1, num_sizes):
        is_paying = pays(curves.time_s[:, :at] / curves.time_s[:, at, None], paid[:, at, None] / paid[:, :at])
        is_reached[:, at] |= (is_reached[:, :at] & is_paying).any(axis=1)
    last = num_sizes - 1 - np.argmax(is_reached[:, ::-1], axis=1)
    # The last size may be reached by a longer step although the last short step does not pay: returns
    # diminish.
    goes_on = np.ones(len(last), dtype=bool) if num_sizes == 1 else is_paying[:, -1]
    beyond = (last == num_sizes - 1) & goes_on
    return np.where(beyond, math.inf, np.where(last == 0, 0.0, curves.sizes[last]))


def _fewest_hours(curves: Curves) -> IntArray:
    """Index of the smallest of each curve's sizes with the fewest accelerator-hours."""
    hours = curves.time_s * curves.paid_sizes
    return np.asarray(np.argmax(hours <= hours.min(axis=1, keepdims=True) * (1.0 + _ROUNDING), axis=1))


def paying_step(
    num_accelerators: Sequence[int], time_s: Sequence[float], *, least_s: Sequence[float] = (0.0,)
) -> int | None:
    """Index of the nearest size from which a step to the largest pays; None if there is none.

    num_accelerators: ascending, (n_sizes,). time_s: (n_sizes,). least_s: see `Curves`. Steps start where
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
    """The largest size reached by paying steps from the size with the fewest accelerator-hours.

    num_accelerators: at least one, ascending, (n_sizes,). time_s: (n_sizes,). least_s: see `Curves`.
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
    title="the last size with at least half the efficiency of size {smallest}",
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
    """The kind of the least total of something that accrues with time: money, energy or carbon.

    per_accelerator: amount per second and accelerator. deadline_s: longest time allowed.
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

    curves_s: (n_sizes,) -> equally likely times, (n_curves, n_sizes), as `Fit.curves_s`. domain: the sizes to
    search; no equilibrium is reported outside it. limited_by: kind of limit of the largest size.
    Returns whole accelerators, rounded down: the last size before the point.
    Assumes the curves are valid up to twice the largest size, where its doubling is judged.
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
    """Each kind of equilibrium among allowed sizes, in the order of KINDS.

    num_accelerators: ascending, (n_sizes,). time_s: equally likely times, (n_draws, n_sizes). central_s: the
    displayed times, (n_sizes,): number, time and efficiency are of this curve; low and high are quantiles
    over the draws, widened to include the number. start_s: time from job start to the first step, and least_s
    (see `Curves`): both affect the location of a point, but not the returned times and efficiencies.
    limited_by: kind of limit of the largest size; set in a point at the largest size if its last step still
    served the kind's purpose.
    Raises UsageError for no sizes, or sizes that are not ascending.
    Assumes no sizes between these are allowed.
    Source: as in `equilibria`; marginal over all pairs of sizes, not only doublings.
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
    """Cumulative probabilities of the low end, the median and the high end of an interval at `level`."""
    low, high = tails(level)
    return low, 0.5, high


def _next_step(num_accelerators: int, after_s: float, *, over: tuple[int, float]) -> NextStep:
    """The step to num_accelerators, with time after_s. over: the current size and time."""
    size, time_s = over
    return NextStep(
        num_accelerators=num_accelerators,
        gain_s=time_s - after_s,
        gain_fraction=1.0 - after_s / time_s,
        accelerator_hours_factor=num_accelerators * after_s / (size * time_s),
    )


def default_answer(found: tuple[Equilibrium, ...]) -> Equilibrium:
    """The smallest of balance, marginal and floor: the first reason to stop.

    At equal sizes, a point that was found takes precedence over one that is only bounded from below.
    """
    answers = (each for each in found if each.kind in _ANSWERS)
    return min(answers, key=lambda each: (each.num_accelerators, each.limited_by is not None))


# Description of the largest size, by kind of limit.
_ENDS: Final[Mapping[Limit, str]] = {
    "data": "the most that the data support",
    "catalogue": "the largest tried",
    "question": "the most within your limit",
    "strategies": "the largest on which a strategy runs",
}
# Property that holds up to a point, by kind.
_UP_TO: Final[Mapping[str, str]] = {
    BALANCE.name: "efficiency \N{MULTIPLICATION SIGN} speedup grows up to {end}",
    MARGINAL.name: "larger sizes pay up to {end}",
    FLOOR.name: "the efficiency is at least one half up to {end}",
    PEAK.name: "time falls up to {end}",
}


# Message for a curve with a single size.
TWO_SIZES_NEEDED: Final = (
    "times of this accelerator at two sizes or more are needed to find where returns diminish"
)


def deciding_kind(points: tuple[Equilibrium, ...]) -> Kind:
    """The kind of the first reason to stop; marginal if none was reached, because then each step pays."""
    point = default_answer(points)
    return next(each for each in KINDS if each.name == point.kind) if point.limited_by is None else MARGINAL


def returns_words(points: tuple[Equilibrium, ...], *, subject: str = "returns") -> str:
    """Text on where returns diminish by the first reason to stop. subject: what diminishes."""
    if not points:
        return "too few sizes have a known time to find where returns diminish"
    return point_words(default_answer(points), kind=deciding_kind(points).name, subject=subject)


def point_words(point: Equilibrium, *, kind: str | None = None, subject: str = "returns") -> str:
    """Text on one equilibrium, or on the limit that ended the search for it.

    kind: kind to describe it as; by default its own. subject: what diminishes.
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
    """Text on the reason against more accelerators than at an equilibrium."""
    size = format_count(point.num_accelerators)
    if point.limited_by is not None:
        return f"{size} is {_ENDS[point.limited_by]}"
    if point.kind == FLOOR.name:
        return "efficiency is below one half"
    if point.kind == BALANCE.name:
        return f"efficiency \N{MULTIPLICATION SIGN} speedup is highest at {size}"
    return f"returns diminish beyond {size}"


def size_words(point: Equilibrium) -> str:
    """The size of an equilibrium as text, with `at least` or `at most` if it was not found."""
    bound = "at least " if point.limited_by else "at most " if point.is_smallest else ""
    return f"{bound}{format_count(point.num_accelerators)}"


def range_words(point: Equilibrium) -> str:
    """The interval of the size as text, open where an end is outside the sizes; empty without width."""
    low, high = (None if size is None else format_count(size) for size in (point.low, point.high))
    if low == high:
        return ""
    return f"{low} to {high}" if low and high else f"{low} or more" if low else f"up to {high}"


def words(point: Equilibrium) -> str:
    """The equilibrium and the effect of the next step, in one sentence."""
    return "; ".join(filter(None, (point_words(point), _step_words(point))))


def _step_words(point: Equilibrium) -> str:
    """Text on the gain and cost of the next step; empty without one."""
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

"""Amounts that are known within an interval, what follows from several of them, and which matters most.

Assumes throughout that inputs are independent of each other, and positive ones lie on a logarithmic scale.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.stats import Interval

LEVEL = 0.9
Values: TypeAlias = Mapping[str, NDArray[np.float64]]
Evaluate: TypeAlias = Callable[[Values], NDArray[np.float64]]

# So many that the ends of a 90 % interval lie within 2 % of those of two million draws (tests/economics).
_NUM_DRAWS = 8192
_SEED = 1
# exp(700) is the last that a float holds.
MOST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a calculation: its name, its unit, and what it may be."""

    name: str
    unit: str
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One input moved alone from one end of its interval to the other. at_low, at_high: the result then."""

    name: str
    unit: str
    low: float
    high: float
    at_low: float
    at_high: float

    @property
    def effect(self) -> float:
        """How far the result moves; infinite where one end never comes."""
        if self.at_low == self.at_high:
            return 0.0
        return abs(self.at_high - self.at_low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tornado:
    """A result with its interval, and what moves it: the bars of its inputs, the largest effect first."""

    name: str
    unit: str
    result: Interval
    bars: tuple[Bar, ...]


def num_sd(level: float = LEVEL) -> float:
    """Half the width of a normal interval, in standard deviations."""
    return NormalDist().inv_cdf((1.0 + level) / 2.0)


def exact(value: float, *, level: float = LEVEL) -> Interval:
    """The interval of an amount that is known."""
    return Interval(value=value, low=value, high=value, level=level)


def stated(row: list[float]) -> Interval:
    """The interval of an amount that a table states as lowest, usual and highest."""
    low, value, high = row
    return Interval(value=float(value), low=float(low), high=float(high), level=LEVEL)


def spread(value: float, log_half_width: float, *, level: float = LEVEL) -> Interval:
    """The interval that reaches a factor of exp(log_half_width) to both sides."""
    factor = math.exp(log_half_width)
    return Interval(value=value, low=value / factor, high=value * factor, level=level)


def product(*factors: Interval) -> Interval:
    """The product of positive amounts, with its interval.

    Assumes the factors are independent and each side of each is half a log-normal; widths of logarithms then
    add up as squares, the lower ones and the upper ones apart.
    Source: the variance of a sum of independent logarithms.

    >>> product(spread(2.0, 0.3), spread(3.0, 0.4)) == spread(6.0, 0.5)
    True
    """
    value = math.prod(each.value for each in factors)
    if value == 0.0:
        return exact(0.0, level=factors[0].level)
    below = math.hypot(*(_log_ratio(each.value, each.low) for each in factors))
    above = math.hypot(*(_log_ratio(each.high, each.value) for each in factors))
    return Interval(
        value=value, low=value * math.exp(-below), high=value * math.exp(above), level=factors[0].level
    )


def moved(value: float, ends: Iterable[tuple[float, float]], *, level: float = LEVEL) -> Interval:
    """The interval of a positive result from its values as each input moves alone to either end.

    ends: of each input, the results at its low and its high end, in either order.
    Assumes inputs are independent, and that each moves the logarithm of the result by the same amount
    whatever the others are: widths of logarithms then add up as squares, the lower ones and the upper ones
    apart. Source: JCGM 100:2008, equation 10, on logarithms; `propagated` is the check by Monte Carlo.

    >>> found = moved(6.0, [(6.0 / math.exp(0.3), 6.0 * math.exp(0.3)), (6.0, 6.0 * math.exp(0.4))])
    >>> round(math.log(6.0 / found.low), 6), round(math.log(found.high / 6.0), 6)
    (0.3, 0.5)
    """
    below = above = 0.0
    for one, other in ends:
        below += _log_ratio(value, min(one, other, value)) ** 2
        above += _log_ratio(max(one, other, value), value) ** 2
    upwards = math.sqrt(above)
    high = math.inf if upwards > MOST_EXPONENT else value * math.exp(upwards)
    return Interval(value=value, low=value * math.exp(-math.sqrt(below)), high=high, level=level)


def _log_ratio(one: float, other: float) -> float:
    """The logarithm of a ratio; 0 for equal ones, infinite ones too."""
    return 0.0 if one == other else math.log(one / other)


def propagated(evaluate: Evaluate, inputs: Sequence[Input]) -> Interval:
    """What a calculation gives at the values of its inputs, and the interval as they vary together.

    evaluate: values by name, each of shape (n,), to results of shape (n,). inputs: of one level.
    Assumes inputs are independent; the logarithm of a positive one, else the value itself, is normal on
    either side of its value, with the width of that side.
    Source: JCGM 101:2008, propagation of distributions by Monte Carlo.
    """
    level = inputs[0].interval.level if inputs else LEVEL
    value = float(evaluate({each.name: np.array([each.interval.value]) for each in inputs})[0])
    results = np.sort(drawn(evaluate, inputs))
    tail = (1.0 - level) / 2.0
    low, high = (float(results[round(share * (len(results) - 1))]) for share in (tail, 1.0 - tail))
    return Interval(value=value, low=min(low, value), high=max(high, value), level=level)


def drawn(evaluate: Evaluate, inputs: Sequence[Input]) -> NDArray[np.float64]:
    """Equally likely results of a calculation as its inputs vary together: (n_draws,)."""
    level = inputs[0].interval.level if inputs else LEVEL
    deviates = _deviates(len(inputs)) / num_sd(level)
    return evaluate(
        {each.name: _at(each.interval, deviates[:, column]) for column, each in enumerate(inputs)}
    )


def tornado(name: str, unit: str, evaluate: Evaluate, inputs: Sequence[Input]) -> Tornado:
    """The result, its interval, and its inputs by how far each moves it alone.

    Every bar evaluates anew at both ends of its input, the others at their values; what is exact has none.
    Source: Eschenbach 1992, tornado diagrams.
    """
    bars = [_bar(evaluate, inputs, each) for each in inputs if each.interval.low < each.interval.high]
    return Tornado(
        name=name,
        unit=unit,
        result=propagated(evaluate, inputs),
        bars=tuple(sorted(bars, key=lambda bar: -bar.effect)),
    )


def _bar(evaluate: Evaluate, inputs: Iterable[Input], moved: Input) -> Bar:
    ends = np.array([moved.interval.low, moved.interval.high])
    values = {each.name: np.full(2, each.interval.value) for each in inputs} | {moved.name: ends}
    at_low, at_high = evaluate(values)
    return Bar(
        name=moved.name,
        unit=moved.unit,
        low=moved.interval.low,
        high=moved.interval.high,
        at_low=float(at_low),
        at_high=float(at_high),
    )


def _at(interval: Interval, reaches: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values at so many half widths from the middle: -1 is the low end, 1 the high end."""
    if interval.low > 0.0:
        below = math.log(interval.value / interval.low)
        above = math.log(interval.high / interval.value)
        return np.asarray(interval.value * np.exp(reaches * np.where(reaches < 0, below, above)))
    width = np.where(reaches < 0, interval.value - interval.low, interval.high - interval.value)
    return np.asarray(interval.value + reaches * width)


@cache
def _deviates(num_inputs: int) -> NDArray[np.float64]:
    """Normal deviates, each input's as even as they can be, in an order of its own: (n_draws, n_inputs).

    Source: McKay, Beckman and Conover 1979, Latin hypercube sampling, at the middle of each cell.
    """
    shares = (np.arange(_NUM_DRAWS) + 0.5) / _NUM_DRAWS
    even = np.array([NormalDist().inv_cdf(float(share)) for share in shares])
    rng = np.random.default_rng(_SEED)
    return np.stack([rng.permutation(even) for _ in range(num_inputs)], axis=1)

"""Intervals of uncertain amounts and their algebra; spans of time. Not NumPy, which is slow to import.

No frames, no files, no random numbers.
"""

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

LEVEL: Final = 0.9
# An amount whose interval is wider than this factor counts as unknown.
WIDEST: Final = 20.0
# Larger exponents overflow a float in exp().
MOST_EXPONENT: Final = 700.0


class Interval(Struct, frozen=True, kw_only=True):
    """A value, and two bounds that include the true value with probability `level`."""

    value: float
    low: float
    high: float
    level: float


class Input(Struct, frozen=True, kw_only=True):
    """An input of a calculation: its name, unit and interval."""

    name: str
    unit: str
    interval: Interval


class Bar(Struct, frozen=True, kw_only=True):
    """One input varied alone over its interval. at_low, at_high: the result at its ends."""

    name: str
    unit: str
    low: float
    high: float
    at_low: float
    at_high: float

    @property
    def effect(self) -> float:
        """Absolute change of the result; infinite where the result at one end is."""
        if self.at_low == self.at_high:
            return 0.0
        return abs(self.at_high - self.at_low)


class Tornado(Struct, frozen=True, kw_only=True):
    """A result with its interval, and the bars of its inputs, largest effect first."""

    name: str
    unit: str
    result: Interval
    bars: tuple[Bar, ...]


def num_sd(level: float = LEVEL) -> float:
    """Half width of a normal interval, in standard deviations."""
    return NormalDist().inv_cdf((1.0 + level) / 2.0)


def num_sd_of_mean(num_values: int, level: float = LEVEL) -> float:
    """Half width of an interval for a mean, in standard errors estimated from `num_values` values.

    num_values: from 2 up. Assumes normal values; good to 0.2 % from 5 values at 0.9, exact for 2 and 3.
    Source: Student 1908; his quantile by Abramowitz and Stegun 26.7.5, without loading SciPy.

    >>> round(num_sd_of_mean(2), 2), round(num_sd_of_mean(3), 2), round(num_sd_of_mean(6), 2)
    (6.31, 2.92, 2.01)
    """
    z, free = num_sd(level), float(num_values - 1)
    if free == 1:
        return math.tan(math.pi * level / 2)
    if free == 2:  # noqa: PLR2004 - degrees of freedom
        return level * math.sqrt(2 / (1 - level**2))
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return sum(term / free**order for order, term in enumerate(terms))


def num_sd_of_few(num_values: int) -> float:
    """Half width of an interval for one more value, in sample standard deviations of `num_values` values.

    num_values, assumptions and source: as in `num_sd_of_mean`.

    >>> round(num_sd_of_few(6), 2)
    2.18
    """
    return num_sd_of_mean(num_values) * math.sqrt(1 + 1 / num_values)


def tails(level: float = LEVEL) -> tuple[float, float]:
    """Cumulative probabilities of the low and the high end of an interval.

    >>> tuple(round(each, 9) for each in tails(0.9))
    (0.05, 0.95)
    """
    below = (1.0 - level) / 2.0
    return below, 1.0 - below


def exact(value: float, *, level: float = LEVEL) -> Interval:
    """The interval of an amount known exactly."""
    return Interval(value=value, low=value, high=value, level=level)


def stated(row: list[float]) -> Interval:
    """The interval of an amount stated in a table as [lowest, usual, highest]."""
    low, value, high = row
    return Interval(value=float(value), low=float(low), high=float(high), level=LEVEL)


def spread(value: float, log_half_width: float, *, level: float = LEVEL) -> Interval:
    """The interval from value / exp(log_half_width) to value * exp(log_half_width)."""
    factor = math.exp(log_half_width)
    return Interval(value=value, low=value / factor, high=value * factor, level=level)


DEVIATE: Final = num_sd()


def log_sd(amount: Interval) -> float:
    """The standard deviation of the logarithm of an amount with this interval.

    Assumes a log-normal amount. Source: the interval's ends are quantiles.

    >>> round(log_sd(Interval(value=1.0, low=0.8483, high=1.1788, level=0.9)), 3)
    0.1
    """
    return math.log(amount.high / amount.low) / (2.0 * num_sd(amount.level))


def with_log_sd(value: float, log_sd: float) -> Interval:
    """The interval at LEVEL of a log-normal value."""
    return spread(value, DEVIATE * log_sd)


def scaled(amount: Interval, factor: float) -> Interval:
    """The interval of an amount times a factor."""
    return replace(amount, value=factor * amount.value, low=factor * amount.low, high=factor * amount.high)


def product(*factors: Interval) -> Interval:
    """The product of positive amounts, with its interval.

    Assumes independent factors whose sides are half log-normals; lower and upper widths of logarithms are
    then each added in quadrature.
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
    """The interval of a positive result from its values as each input varies alone.

    ends: for each input, the results at its low and its high end, in either order.
    Assumes independent inputs, whose effects on the logarithm of the result do not depend on each other:
    lower and upper widths of logarithms are then each added in quadrature. Source: JCGM 100:2008, equation
    10, on logarithms; checked by Monte Carlo with `propagated`.

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
    """The logarithm of a ratio; 0 for equal values, including infinite ones."""
    return 0.0 if one == other else math.log(one / other)


def covered_s(
    spans: Iterable[tuple[float, float]], *, within: tuple[float, float] = (-math.inf, math.inf)
) -> float:
    """Seconds of an interval covered by at least one of the spans (begin, end); overlaps count once.

    Source: definition.

    >>> spans = [(0.0, 2.0), (1.0, 3.0), (5.0, 9.0)]
    >>> covered_s(spans), covered_s(spans, within=(1.0, 6.0))
    (7.0, 3.0)
    """
    first_s, last_s = within
    merged: list[tuple[float, float]] = []
    for begun, ended in sorted((max(begun, first_s), min(ended, last_s)) for begun, ended in spans):
        if merged and begun <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        elif ended > begun:
            merged.append((begun, ended))
    return sum(ended - begun for begun, ended in merged)

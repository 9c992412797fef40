"""What an estimate is: the working time of a training on one size, by one estimator, with how wrong it is.

Working time is that of training steps and what belongs to them, without interruptions; economics adds those.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Final, Literal, TypeAlias

from equipoise.scaling.law import Domain, FloatArray
from equipoise.stats import Interval

EstimatorName: TypeAlias = Literal["published", "measured", "model"]
Curves: TypeAlias = Callable[[FloatArray], FloatArray]
Grade: TypeAlias = Literal["measured", "published", "carried", "calibrated", "priors"]
BoundKind: TypeAlias = Literal["at_most", "at_least"]

LEVEL: Final = 0.9
# Nothing is surer than two submissions of one system differ: 3.3 % (median log-sd of replicates).
LEAST_LOG_SD: Final = 0.033
# Half the width of an interval at LEVEL, in standard deviations.
DEVIATE: Final = NormalDist().inv_cdf((1.0 + LEVEL) / 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a number comes from. ref: an entry, a run, a formula. share: of the estimator's weight.

    time_s: the time at num_accelerators that the source states; None where it states none.
    """

    kind: EstimatorName
    ref: str
    share: float | None = None
    num_accelerators: int | None = None
    time_s: float | None = None
    source_uri: str | None = None
    source_line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The working time of one size by one estimator. weight: its share of the combined estimate.

    log_sd: how wrong such estimates were, as the standard deviation of the logarithm. why: what it rests on.
    """

    estimator: EstimatorName
    name: str
    time_s: Interval
    log_sd: float
    why: str
    weight: float = 0.0
    sources: tuple[Source, ...] = field(default=(), metadata={"json": False})  # the evidence has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """All estimates by one estimator of one system: by size, where it has one.

    name: as a sentence names it. curves_s: equally likely curves of working time over `domain`; None where it
    has none. is_reference: shown for comparison, without weight where others estimate the same size, whose
    estimates it is part of. grade: of the evidence behind it; by size where it differs.
    """

    estimator: EstimatorName
    name: str
    by_size: Mapping[int, Estimate]
    grade: Mapping[int, Grade]
    sources: tuple[Source, ...] = ()
    curves_s: Curves | None = None
    domain: Domain | None = None
    is_reference: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
    """A result submitted on this very size of this very accelerator."""

    entry_id: str
    round: str
    score_s: float
    source_uri: str | None = None
    source_line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """How wrong answers of a kind were on what was held out. of: what was held out, in words.

    words: the sentence for people.
    """

    kind: str
    of: str
    num_held_out: int
    median_abs_error: float | None
    p90_abs_error: float | None
    coverage: float | None
    words: str


def log_sd(time: Interval) -> float:
    """The standard deviation of the logarithm that an interval stands for.

    Assumes a log-normal time. Source: the interval's ends are its quantiles.

    >>> round(log_sd(Interval(value=1.0, low=0.8483, high=1.1788, level=0.9)), 3)
    0.1
    """
    deviate = NormalDist().inv_cdf((1.0 + time.level) / 2.0)
    return math.log(time.high / time.low) / (2.0 * deviate)


def with_log_sd(value: float, spread: float) -> Interval:
    """The interval at LEVEL of a log-normal value."""
    factor = math.exp(DEVIATE * spread)
    return Interval(value=value, low=value / factor, high=value * factor, level=LEVEL)


def scaled(time: Interval, factor: float) -> Interval:
    """The interval of so many times the amount."""
    return replace(time, value=factor * time.value, low=factor * time.low, high=factor * time.high)


def probability_within(amount: Interval, limit: float) -> float:
    """The probability that an amount does not exceed a limit.

    Assumes a log-normal amount with the interval's width, at least LEAST_LOG_SD. Source: definition.

    >>> probability_within(Interval(value=100.0, low=50.0, high=200.0, level=0.9), 100.0)
    0.5
    """
    if math.isinf(limit) or amount.value <= 0.0:
        return 1.0
    if limit <= 0.0:
        return 0.0
    spread = max(log_sd(amount), LEAST_LOG_SD)
    return NormalDist().cdf(math.log(limit / amount.value) / spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderBound:
    """What another chip takes on as many, which bounds this one's time (law 5: physics orders).

    kind: `at_most` what a chip takes that is no better in any stated fact, `at_least` what one takes that is
    no worse. grade: of that time.
    """

    kind: BoundKind
    accelerator: str
    time_s: float
    grade: Grade

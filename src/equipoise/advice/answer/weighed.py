"""Several estimates of one time as one: weights by how wrong each kind was, the interval, the disagreement.

Arrays and numbers only. docs/advice.md says it in words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from equipoise.scaling.law import FloatArray
from equipoise.stats import Interval
from equipoise.units import format_percent

# Errors of the kinds of evidence may go together: they share the samples to target, the year's software, the
# submitters. More than was seen on results held out (about 0: data/joined.json), to be safe.
CORRELATION = 0.2
# Nothing is surer than two submissions of one system differ: 3.3 % (median log-sd of replicates).
LEAST_LOG_SD = 0.033
_NEARLY = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """The joint estimate. weights: (n,), which sum to 1, in the order given.

    disagreement: by how much the evidence differs beyond what its own widths explain, 1 where it does not:
    the factor by which the interval was widened.
    """

    time: Interval
    weights: tuple[float, ...]
    disagreement: float


def log_sd(time: Interval) -> float:
    """The standard deviation of the logarithm that an interval stands for.

    Assumes a log-normal time. Source: the interval's ends are its quantiles.

    >>> round(log_sd(Interval(value=1.0, low=0.8483, high=1.1788, level=0.9)), 3)
    0.1
    """
    deviate = NormalDist().inv_cdf((1.0 + time.level) / 2.0)
    return math.log(time.high / time.low) / (2.0 * deviate)


def shares(log_sds: FloatArray) -> FloatArray:
    """The weight of each estimate, along the first axis; they sum to 1 there.

    log_sds: (n_estimates, ...) standard deviations of errors of the logarithm, positive; infinite where an
    estimate does not tell.
    Assumes nothing of the correlation: weights that use it are unstable where it is not well known.
    Source: Bates and Granger 1969: the inverse of the mean squared error of each.

    >>> shares(np.array([0.1, 0.2])).round(3).tolist()
    [0.8, 0.2]
    """
    precisions = 1.0 / np.maximum(log_sds, LEAST_LOG_SD) ** 2
    return np.asarray(precisions / precisions.sum(axis=0))


def weighed(times: Sequence[Interval], log_sds: Sequence[float]) -> Weighed:
    """The joint estimate of the same time by several pieces of evidence.

    times: at least one; positive, all at one level. log_sds: how wrong such evidence was, as the standard
    deviation of the logarithm. A single one is told as it is.
    The interval is that of a weighted mean of errors that go together by CORRELATION, widened where the
    estimates differ by more than their widths explain, and never beyond the widest ends of them all.
    Assumes log-normal errors, each as large as its log_sd says.
    Source: Bates and Granger 1969 for the weights; Birge 1932 for the widening, as the Particle Data Group
    applies it (S^2 = chi^2 / (n - 1), where above 1).
    """
    if len(times) == 1:
        return Weighed(time=times[0], weights=(1.0,), disagreement=1.0)
    level = times[0].level
    logs = np.log([each.value for each in times])
    spreads = np.maximum(np.asarray(log_sds, dtype=float), LEAST_LOG_SD)
    weights = shares(spreads)
    mean = float(weights @ logs)
    together = np.full((len(times), len(times)), CORRELATION)
    np.fill_diagonal(together, 1.0)
    variance = float((weights * spreads) @ together @ (weights * spreads))
    chi_square = float((((logs - mean) / spreads) ** 2).sum())
    widening = max(1.0, math.sqrt(chi_square / (len(times) - 1)))
    half = NormalDist().inv_cdf((1.0 + level) / 2.0) * math.sqrt(variance) * widening
    return Weighed(
        time=Interval(
            value=math.exp(mean),
            low=max(math.exp(mean - half), min(each.low for each in times)),
            high=min(math.exp(mean + half), max(each.high for each in times)),
            level=level,
        ),
        weights=tuple(weights.tolist()),
        disagreement=widening,
    )


def chance_words(chance: float) -> str:
    """A probability for people, who take a whole 100 % for a promise.

    >>> chance_words(0.873), chance_words(0.9999)
    ('87 %', 'more than 99 %')
    """
    if chance > _NEARLY:
        return f"more than {format_percent(_NEARLY)}"
    if chance < 1.0 - _NEARLY:
        return f"less than {format_percent(round(1.0 - _NEARLY, 2))}"
    return format_percent(round(chance, 2))


def chance_within(time: Interval, limit_s: float) -> float:
    """The probability that a time does not exceed a limit.

    Assumes a log-normal time with the interval's width. Source: definition.

    >>> chance_within(Interval(value=100.0, low=50.0, high=200.0, level=0.9), 100.0)
    0.5
    """
    if math.isinf(limit_s):
        return 1.0
    spread = max(log_sd(time), LEAST_LOG_SD)
    return NormalDist().cdf(math.log(limit_s / time.value) / spread)

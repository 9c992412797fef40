"""The records of evidence: estimates of times, their sources and the errors of such estimates."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from equipoise.calibration import EstimatorName, EvidenceSource
from equipoise.intervals import Interval, num_sd, num_sd_of_mean
from equipoise.scaling.equilibrium import Limit
from equipoise.scaling.laws import Domain, FloatArray
from equipoise.spec.hardware import PriceTerms

Group: TypeAlias = tuple[str, PriceTerms]  # name of a system, and terms
Curves: TypeAlias = Callable[[FloatArray], FloatArray]
# Kinds of evidence for a time, the strongest first.
Grade: TypeAlias = Literal["measured", "published", "carried", "calibrated", "priors"]
BoundKind: TypeAlias = Literal["at_most", "at_least"]

# No estimate is more certain than replicate submissions of one system: 3.3 % (median log-sd of replicates).
LEAST_LOG_SD: Final = 0.033
# A slope counts if it exceeds its standard error by this factor.
_CLEAR_NUM_SD: Final = 2.0


class Estimate(Struct, frozen=True, kw_only=True):
    """An estimator's working time for one size. weight: its share of the combined estimate.

    log_sd: error of such estimates, as the standard deviation of the logarithm. why: the evidence, in words.
    strategy_log_sd: error of carrying the estimate over to a strategy that the question fixes. It widens the
    combined interval but does not shift weight to other estimators, whose errors are those for a free
    strategy.
    """

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("sources", "strategy_log_sd")

    estimator: EstimatorName
    name: str
    time_s: Interval
    log_sd: float
    why: str
    strategy_log_sd: float = 0.0
    weight: float = 0.0
    sources: tuple[EvidenceSource, ...] = ()  # the evidence has them


class Shortfall(Struct, frozen=True, kw_only=True):
    """If nothing fits: what the training needs and what is available, in words, and changes that make it fit.

    ways: the first few such changes, as options or numbers of accelerators.
    """

    needs: str
    ways: tuple[str, ...]

    @property
    def ways_words(self) -> str:
        """The changes as a list in words; empty if none is known."""
        return " or ".join(filter(None, (", ".join(self.ways[:-1]), *self.ways[-1:])))

    def __str__(self) -> str:
        """Words that follow the name of a system."""
        return f"{self.needs}: try {self.ways_words}" if self.ways else self.needs


class DrawnCurves(Struct, frozen=True, kw_only=True):
    """Equally likely draws of the curve of working time against size; only their shapes count, not the level.

    time_s: sizes -> (n_draws, n_sizes), over `domain` and up to `reach` times its largest size. by_size: the
    same draws' times at sizes left out of the curves because they are no faster than a smaller one.
    """

    time_s: Curves
    domain: Domain
    reach: float = 2.0
    by_size: Mapping[int, FloatArray] = {}


class Estimates(Struct, frozen=True, kw_only=True):
    """One estimator's estimates for one system, by size.

    name: for use in sentences. curves: None if it has none. references: sizes whose estimate is only shown
    for comparison: it has no weight if there are others, since those already use it. grade: of the evidence,
    by size.
    """

    estimator: EstimatorName
    name: str
    by_size: Mapping[int, Estimate]
    grade: Mapping[int, Grade]
    sources: tuple[EvidenceSource, ...] = ()
    curves: DrawnCurves | None = None
    references: frozenset[int] = frozenset()


class SizeCurve(Struct, frozen=True, kw_only=True):
    """The times by size from which the equilibria of one system follow.

    sizes: (n,) ascending, the eligible ones and smaller ones. central_s: (n,) their times. drawn_s:
    (n_draws, n) equally likely times. limited_by: what limits the largest size. least_s: (n,) time for which
    every accelerator is paid in any case.
    """

    sizes: tuple[int, ...]
    central_s: FloatArray
    drawn_s: FloatArray
    limited_by: Limit
    least_s: FloatArray | float = 0.0


class PublishedResult(Struct, frozen=True, kw_only=True):
    """A published result at exactly this size of exactly this accelerator.

    global_batch_samples: None if unknown.
    """

    entry_id: str
    round: str
    score_s: float
    global_batch_samples: int | None = None
    source_uri: str | None = None
    source_line: int | None = None


class ErrorRecord(Struct, frozen=True, kw_only=True):
    """Errors of answers of one kind on held-out data. of: the held-out data, in words.

    words: the same as a sentence.
    """

    kind: str
    of: str
    num_held_out: int = 0
    median_abs_error: float | None = None
    p90_abs_error: float | None = None
    coverage: float | None = None
    words: str


class OrderBound(Struct, frozen=True, kw_only=True):
    """A bound on a time from another chip at the same size, or the same chip at a smaller size (law 5).

    kind: `at_most`: the time of a chip that is no better in any stated fact; `at_least`: of one that is no
    worse. num_accelerators: the size at which that time holds. grade: of that time.
    """

    kind: BoundKind
    accelerator: str
    num_accelerators: int
    time_s: float
    grade: Grade


class UserRun(Struct, frozen=True, kw_only=True):
    """One set-up measured by the user. samples_per_s: of all ranks, the median over its runs.

    accelerator: None if the runs do not state it. strategy: as `bench` takes it; None on one device or if not
    stated. log_sd: of the median. is_eager: whether layers ran one by one, as under `bench` and `watch`; None
    if not stated, as in files. is_assumed: whether parts of the strategy were not stated and were chosen so
    that it fits.
    """

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("is_eager", "is_assumed")

    run_ids: tuple[str, ...]
    accelerator: str | None
    num_accelerators: int
    global_batch_samples: int
    samples_per_s: float
    log_sd: float
    strategy: str | None
    precision: str | None
    is_eager: bool | None = True
    is_assumed: bool = False


def clear_slope(rise: float, log_sds: tuple[float, float], doublings: float) -> float:
    """The growth of a logarithm per doubling between two sizes; 0.0 if it is not significant.

    rise: total growth. log_sds: standard deviations of the logarithm at each size.
    """
    return rise / doublings if abs(rise) > _CLEAR_NUM_SD * math.hypot(*log_sds) else 0.0


def level_at(logs: Mapping[int, float], size: int, slope: float) -> float:
    """The log level at a size, interpolated over log size between those that ran; the smallest size's level
    below these, and `slope` more per doubling above them.
    """
    sizes = sorted(logs)
    beyond = max(0.0, math.log2(size / sizes[-1]))
    between = float(np.interp(math.log2(size), np.log2(sizes), [logs[each] for each in sizes]))
    return between + slope * beyond


def growth_of(logs: Mapping[int, float]) -> float:
    """The growth of a log level per doubling, if each level is as certain as replicates are; 0.0 if it is not
    significant or negative.
    """
    first, last = min(logs), max(logs)
    if first == last:
        return 0.0
    spreads = (LEAST_LOG_SD, LEAST_LOG_SD)
    return max(0.0, clear_slope(logs[last] - logs[first], spreads, math.log2(last / first)))


# Weight of the prior scatter (that of replicate systems) as a number of runs. With it, two runs that differ
# as replicates do are no less certain than one run; for two, three and five runs that scatter as measured
# ones do (scaling/posterior.py), 96, 97 and 98 % of the intervals at 0.9 cover.
_NUM_PRIOR_RUNS: Final = 3


def repeated_log_sd(amounts: Sequence[float]) -> float:
    """The log standard deviation of the median of repeated times or rates of one size and set-up.

    Source: standard error of a mean of logarithms, with the posterior variance under a scaled inverse
    chi-squared prior (Gelman et al. 2013, section 2.6), times 1.25 for a median of normal values, and times
    the factor by which Student's interval for that many values is wider.
    """
    if len(amounts) == 1:
        return LEAST_LOG_SD
    logs = np.log(amounts)
    squares = float(np.sum((logs - logs.mean()) ** 2)) + _NUM_PRIOR_RUNS * LEAST_LOG_SD**2
    num_in_all = len(amounts) + _NUM_PRIOR_RUNS
    error = 1.25 * math.sqrt(squares / (num_in_all - 1) / len(amounts))
    return error * num_sd_of_mean(num_in_all) / num_sd()


def beyond_replicates(log_sd: float) -> float:
    """The part of a log standard deviation beyond that of replicates, which error records already include."""
    return math.sqrt(max(0.0, log_sd**2 - LEAST_LOG_SD**2))

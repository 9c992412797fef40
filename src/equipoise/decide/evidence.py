"""The records of evidence: what estimators make of a size, where it comes from and how wrong such were."""

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

Group: TypeAlias = tuple[str, PriceTerms]  # a system and the terms it is had on
Curves: TypeAlias = Callable[[FloatArray], FloatArray]
# What a time rests on, the strongest first.
Grade: TypeAlias = Literal["measured", "published", "carried", "calibrated", "priors"]
BoundKind: TypeAlias = Literal["at_most", "at_least"]

# No estimate is more certain than replicate submissions of one system: 3.3 % (median log-sd of replicates).
LEAST_LOG_SD: Final = 0.033
# A slope that exceeds its standard error so many times is one.
_CLEAR: Final = 2.0


class Estimate(Struct, frozen=True, kw_only=True):
    """The working time of one size by one estimator. weight: its share of the combined estimate.

    log_sd: how wrong such estimates were, as the standard deviation of the logarithm. why: what it rests on.
    strategy_log_sd: the same, of carrying it to a strategy that the question fixes: no reason to trust others
    more, which are as wrong of the free strategy as they were.
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
    """Where nothing fits: what the training needs and what there is, in words, and changes that make it fit.

    ways: the first ones alone, as options or numbers of accelerators.
    """

    needs: str
    ways: tuple[str, ...]

    @property
    def ways_words(self) -> str:
        """The changes as a list; empty where none is known."""
        return " or ".join(filter(None, (", ".join(self.ways[:-1]), *self.ways[-1:])))

    def __str__(self) -> str:
        """As what follows the name of a system."""
        return f"{self.needs}: try {self.ways_words}" if self.ways else self.needs


class DrawnCurves(Struct, frozen=True, kw_only=True):
    """Equally likely curves of working time against size, of which only the shape counts, not the level.

    time_s: sizes -> (n_draws, n_sizes), over `domain` and up to `reach` times its largest size. by_size: the
    times of the same draws at sizes that curves pass by, for they are no faster than a smaller one.
    """

    time_s: Curves
    domain: Domain
    reach: float = 2.0
    by_size: Mapping[int, FloatArray] = {}


class Estimates(Struct, frozen=True, kw_only=True):
    """All estimates by one estimator of one system: by size, where it has one.

    name: as a sentence names it. curves: None where it has none. references: sizes whose estimate is shown
    for comparison, without weight where others estimate them, whose estimates it is part of. grade: of the
    evidence behind it, by size.
    """

    estimator: EstimatorName
    name: str
    by_size: Mapping[int, Estimate]
    grade: Mapping[int, Grade]
    sources: tuple[EvidenceSource, ...] = ()
    curves: DrawnCurves | None = None
    references: frozenset[int] = frozenset()


class SizeCurve(Struct, frozen=True, kw_only=True):
    """What the equilibria of one system rest on: times of its sizes, and what ended the sizes.

    sizes: (n,) ascending, those that may be taken and smaller ones. central_s: (n,) their times. drawn_s:
    (n_draws, n) equally likely ones. limited_by: whose limit the largest size is. least_s: (n,) what every
    accelerator is paid for in any case.
    """

    sizes: tuple[int, ...]
    central_s: FloatArray
    drawn_s: FloatArray
    limited_by: Limit
    least_s: FloatArray | float = 0.0


class PublishedResult(Struct, frozen=True, kw_only=True):
    """A result submitted on this very size of this very accelerator.

    global_batch_samples: None is not known.
    """

    entry_id: str
    round: str
    score_s: float
    global_batch_samples: int | None = None
    source_uri: str | None = None
    source_line: int | None = None


class ErrorRecord(Struct, frozen=True, kw_only=True):
    """How wrong answers of a kind were on what was held out. of: what was held out, in words.

    words: the sentence for people.
    """

    kind: str
    of: str
    num_held_out: int = 0
    median_abs_error: float | None = None
    p90_abs_error: float | None = None
    coverage: float | None = None
    words: str


class OrderBound(Struct, frozen=True, kw_only=True):
    """What another chip takes on as many, or the same one on fewer, which bounds a time (law 5).

    kind: `at_most` what a chip takes that is no better in any stated fact, `at_least` what one takes that is
    no worse. num_accelerators: on which it takes that. grade: of that time.
    """

    kind: BoundKind
    accelerator: str
    num_accelerators: int
    time_s: float
    grade: Grade


class UserRun(Struct, frozen=True, kw_only=True):
    """One set-up that the user measured: samples of all ranks per second, the median over its runs.

    accelerator: None where the runs do not state it. strategy: as `bench` takes it; None on one device, or
    where it is not stated. log_sd: of the median. is_eager: whether its layers ran one by one, as under
    `bench` and `watch`; None where that is not stated, as in files. is_assumed: whether parts of the strategy
    are not the user's, but those with which it fits.
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
    """What a logarithm grows by with each doubling between two sizes; 0.0 where that is not clear.

    rise: between them. log_sds: standard deviations of the logarithm at each.
    """
    return rise / doublings if abs(rise) > _CLEAR * math.hypot(*log_sds) else 0.0


def level_at(logs: Mapping[int, float], size: int, slope: float) -> float:
    """The logarithm of a level at a size, by those of sizes that ran: between two by doublings, of smaller
    ones that of the smallest; beyond the largest, `slope` more with each doubling.
    """
    sizes = sorted(logs)
    beyond = max(0.0, math.log2(size / sizes[-1]))
    between = float(np.interp(math.log2(size), np.log2(sizes), [logs[each] for each in sizes]))
    return between + slope * beyond


def growth_of(logs: Mapping[int, float]) -> float:
    """What a level grows by with each doubling, of sizes that ran as surely as replicates do; 0.0 where that
    is not clear, or it falls.
    """
    first, last = min(logs), max(logs)
    if first == last:
        return 0.0
    spreads = (LEAST_LOG_SD, LEAST_LOG_SD)
    return max(0.0, clear_slope(logs[last] - logs[first], spreads, math.log2(last / first)))


# How many runs more the scatter of replicate systems counts as: so many that two runs of a size that differ
# as these do leave no more open than one; of two, three and five whose scatter is spread as that of measured
# runs is (scaling/posterior.py), 96, 97 and 98 of 100 intervals at 0.9 hold.
_NUM_OF_REPLICATES: Final = 3


def repeated_log_sd(amounts: Sequence[float]) -> float:
    """The log standard deviation of the median of times or rates of one size and set-up, by how they scatter.

    Source: the standard error of a mean of logarithms, their variance by Bayes with a scaled inverse
    chi-squared prior (Gelman et al. 2013, section 2.6), times 1.25 for a median of normal values, and times
    what Student's interval of so few is wider.
    """
    if len(amounts) == 1:
        return LEAST_LOG_SD
    logs = np.log(amounts)
    squares = float(np.sum((logs - logs.mean()) ** 2)) + _NUM_OF_REPLICATES * LEAST_LOG_SD**2
    num_in_all = len(amounts) + _NUM_OF_REPLICATES
    error = 1.25 * math.sqrt(squares / (num_in_all - 1) / len(amounts))
    return error * num_sd_of_mean(num_in_all) / num_sd()


def beyond_replicates(log_sd: float) -> float:
    """How far runs are apart beyond what replicates are, with which records of errors were made."""
    return math.sqrt(max(0.0, log_sd**2 - LEAST_LOG_SD**2))

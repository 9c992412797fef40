"""The regression of the pooled law: a Gaussian process over entries, whose curves share their shape.

Where entries lie as points and how similar two are; variance components and Student-t noise, fitted on
earlier entries and conditioned on own ones. Arrays in, records out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.scaling.laws import FloatArray
from equipoise.spec.hardware import peak_log2, shipped_hardware

Codes = NDArray[np.intp]


class Points(Struct, frozen=True, kw_only=True, eq=False):
    """Where entries of one workload lie: arrays of shape (n_points,).

    size_log2: log2 of the number of accelerators. age: the round, counted in rounds. compute_log2: log2 of
    the nominal peak, FLOP/s, of all accelerators; NaN where the chip states none.
    accelerator, family (chip without form factor and memory), vendor: `codes` of their names. lever_log2:
    log2 of the batch (of all or of one accelerator); None when the batch is not an input.
    """

    size_log2: FloatArray
    age: FloatArray
    compute_log2: FloatArray
    accelerator: Codes
    family: Codes
    vendor: Codes
    lever_log2: FloatArray | None = None

    def __post_init__(self) -> None:
        """Check that all columns are as long."""
        columns = (self.age, self.compute_log2, self.accelerator, self.family, self.vendor)
        assert all(len(column) == len(self) for column in columns)

    def __len__(self) -> int:
        """How many points there are."""
        return len(self.size_log2)

    def __eq__(self, other: object) -> bool:
        """Whether the columns hold the same."""
        return isinstance(other, Points) and self._columns() == other._columns()

    def __hash__(self) -> int:
        """By what the columns hold: covariances of equal points are calculated once."""
        return hash(self._columns())

    def _columns(self) -> tuple[bytes | None, ...]:
        columns = (getattr(self, name) for name in self.__struct_fields__)
        return tuple(None if column is None else column.tobytes() for column in columns)

    def followed_by(self, other: "Points") -> "Points":
        """These points, then the others; with levers where both have them."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in self.__struct_fields__}
        if self.lever_log2 is None or other.lever_log2 is None:
            del pairs["lever_log2"]
        return Points(**{name: np.concatenate(pair) for name, pair in pairs.items()})


def points(
    accelerators: Sequence[str],
    num_accelerators: Sequence[float] | FloatArray,
    age: Sequence[float] | FloatArray,
    *,
    lever: FloatArray | None = None,
) -> Points:
    """The points of entries, with the facts of their chips.

    accelerators: slugs; an unknown one is a family of its own without facts. age: see Points.
    lever: samples of a batch, (n_points,), or None.
    """
    sizes = np.log2(np.asarray(num_accelerators, dtype=float))
    facts = chip_facts(set(accelerators))
    peaks = np.array([facts[name][1] for name in accelerators], dtype=float)
    return Points(
        size_log2=sizes,
        age=np.asarray(age, dtype=float),
        compute_log2=sizes + peaks,
        accelerator=codes(accelerators),
        family=codes(name.split("-", 1)[0] for name in accelerators),
        vendor=codes(facts[name][0] for name in accelerators),
        lever_log2=None if lever is None else np.log2(lever),
    )


_CODES: Final[dict[str, int]] = {}


def codes(names: Iterable[str]) -> Codes:
    """A number for each name, the same one wherever it occurs: numbers are compared ten times as fast."""
    return np.array([_CODES.setdefault(name, len(_CODES)) for name in names], dtype=np.intp)


def chip_facts(slugs: Iterable[str]) -> dict[str, tuple[str, float]]:
    """What points take from the table of accelerators, by slug: vendor, and log2 of the peak in FLOP/s."""
    return {slug: _chip(slug) for slug in slugs}


def _chip(slug: str) -> tuple[str, float]:
    """Vendor and log2 of the dense peak at training precision of a chip; slug and NaN if unknown."""
    chip = shipped_hardware().exact(slug)
    return (slug, np.nan) if chip is None else (chip.vendor, peak_log2(chip))


# Sizes count from 32 accelerators, and a curve may bend from 64 on: the middle of the sizes submitted.
CENTRE_LOG2 = 5.0
BEND_LOG2 = 6.0
# Slopes are per three doublings, so that the prior deviations of all shapes are in one unit: log time.
SLOPE_LOG2 = 3.0
# Two years of rounds: the scale on which software and rules drift.
MEMORY_ROUNDS = 4.0

Covariance: TypeAlias = Callable[[Points, Points], FloatArray]


def _same(a: Codes, b: Codes) -> FloatArray:
    same: FloatArray = (a[:, None] == b[None]).astype(float)
    return same


def _distance(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.abs(a[:, None] - b[None])


def _bell(distance: FloatArray, length: float) -> FloatArray:
    return np.exp(-0.5 * (distance / length) ** 2)


def _ones(a: Points, b: Points) -> FloatArray:
    return np.ones((len(a), len(b)))


def _recent(a: Points, b: Points) -> FloatArray:
    recency: FloatArray = np.exp(-_distance(a.age, b.age) / MEMORY_ROUNDS)
    return recency


def _group(a: Points, b: Points) -> FloatArray:
    return _same(a.accelerator, b.accelerator) * np.where(_distance(a.age, b.age) == 0.0, 1.0, 0.0)


def _slope(a: Points, b: Points) -> FloatArray:
    return np.outer((a.size_log2 - CENTRE_LOG2) / SLOPE_LOG2, (b.size_log2 - CENTRE_LOG2) / SLOPE_LOG2)


def bend(size_log2: FloatArray) -> FloatArray:
    """Doublings beyond 64 accelerators."""
    return np.maximum(size_log2 - BEND_LOG2, 0.0)


def _bend(a: Points, b: Points) -> FloatArray:
    return np.outer(bend(a.size_log2) / SLOPE_LOG2, bend(b.size_log2) / SLOPE_LOG2)


def _smooth(a: Points, b: Points) -> FloatArray:
    return _bell(_distance(a.size_log2, b.size_log2), 2.5)


def _rough(a: Points, b: Points) -> FloatArray:
    recency: FloatArray = np.exp(-_distance(a.size_log2, b.size_log2) / 4.0)
    return recency


class SharedDeviation(Struct, frozen=True, kw_only=True):
    """Who has a deviation in common, and the prior median of its size, in log time, by shape."""

    name: str
    covariance: Covariance
    prior_deviations: tuple[float, ...]


# In the order of the columns of prior_deviations.
SHAPES: tuple[Covariance, ...] = (_ones, _slope, _bend, _smooth, _rough)

# Prior medians of the deviations: a workload's level is free, chips differ by tens of percent, curves by ten
# percent over three doublings, those of one accelerator or group by less. Earlier rounds decide.
SHARES: tuple[SharedDeviation, ...] = (
    SharedDeviation(name="workload", covariance=_ones, prior_deviations=(4.0, 0.3, 0.15, 0.2, 0.1)),
    SharedDeviation(name="recent rounds", covariance=_recent, prior_deviations=(0.2, 0.05, 0.05, 0.05, 0.05)),
    SharedDeviation(
        name="accelerator",
        covariance=lambda a, b: _same(a.accelerator, b.accelerator),
        prior_deviations=(0.3, 0.05, 0.03, 0.05, 0.05),
    ),
    SharedDeviation(
        name="chip family",
        covariance=lambda a, b: _same(a.family, b.family),
        prior_deviations=(0.3, 0.05, 0.03, 0.05, 0.05),
    ),
    SharedDeviation(
        name="vendor",
        covariance=lambda a, b: _same(a.vendor, b.vendor),
        prior_deviations=(0.3, 0.1, 0.05, 0.1, 0.05),
    ),
    SharedDeviation(name="group", covariance=_group, prior_deviations=(0.1, 0.03, 0.03, 0.03, 0.1)),
)


class Extra(Struct, frozen=True, kw_only=True):
    """A deviation that is no product of a share and a shape, with the prior median of its size."""

    name: str
    covariance: Covariance
    prior_deviation: float
    is_smooth: bool = True


def _compute(a: Points, b: Points) -> FloatArray:
    return np.nan_to_num(_bell(_distance(a.compute_log2, b.compute_log2), 2.5), nan=0.0)


EXTRAS: tuple[Extra, ...] = (
    # A fast chip runs out of work at fewer accelerators: similar at equal peak FLOP/s of the whole system.
    Extra(name="compute", covariance=_compute, prior_deviation=0.1),
    Extra(
        name="compute, recent", covariance=lambda a, b: _compute(a, b) * _recent(a, b), prior_deviation=0.05
    ),
    Extra(
        name="group, size by size",
        covariance=lambda a, b: _group(a, b) * np.exp(-_distance(a.size_log2, b.size_log2)),
        prior_deviation=0.05,
        is_smooth=False,
    ),
)


def _levers(a: Points, b: Points) -> tuple[FloatArray, FloatArray]:
    assert a.lever_log2 is not None
    assert b.lever_log2 is not None
    return a.lever_log2, b.lever_log2


def _lever_slope(a: Points, b: Points) -> FloatArray:
    lever_a, lever_b = _levers(a, b)
    return np.outer(lever_a / SLOPE_LOG2, lever_b / SLOPE_LOG2)


def _lever_smooth(a: Points, b: Points) -> FloatArray:
    return _bell(_distance(*_levers(a, b)), 2.0)


def _lever_rough(a: Points, b: Points) -> FloatArray:
    return np.exp(-_distance(*_levers(a, b)) / 2.0)


LEVERS: tuple[Extra, ...] = (
    Extra(name="batch slope", covariance=_lever_slope, prior_deviation=0.1),
    Extra(name="batch curve", covariance=_lever_smooth, prior_deviation=0.2),
    Extra(name="batch, rough", covariance=_lever_rough, prior_deviation=0.1, is_smooth=False),
    Extra(
        name="batch curve, recent",
        covariance=lambda a, b: _lever_smooth(a, b) * _recent(a, b),
        prior_deviation=0.05,
    ),
    Extra(
        name="batch curve of the vendor",
        covariance=lambda a, b: _lever_smooth(a, b) * _same(a.vendor, b.vendor),
        prior_deviation=0.1,
    ),
    Extra(
        name="batch, rough, of the group",
        covariance=lambda a, b: _lever_rough(a, b) * _group(a, b),
        prior_deviation=0.05,
        is_smooth=False,
    ),
)


def _extras(*, with_lever: bool) -> tuple[Extra, ...]:
    return (*EXTRAS, *LEVERS) if with_lever else EXTRAS


@lru_cache(maxsize=3)
def covariances(a: Points, b: Points) -> FloatArray:
    """The covariance of every component at deviation 1: (n_components, n_a, n_b).

    The levers are among them where both sets of points have one. Kept: all parts of a prediction ask for
    those of the same sizes, and most for those of the same entries.
    """
    shares = np.stack([share.covariance(a, b) for share in SHARES])
    shapes = np.stack([shape(a, b) for shape in SHAPES])
    products = (shares[:, None] * shapes[None]).reshape(-1, len(a), len(b))
    extras = [extra.covariance(a, b) for extra in _extras(with_lever=a.lever_log2 is not None)]
    return np.concatenate([products, np.stack(extras)])


def prior_deviations(*, with_lever: bool) -> FloatArray:
    """The prior median deviation of every component, in the order of `covariances`."""
    of_shares = [deviation for share in SHARES for deviation in share.prior_deviations]
    return np.array([*of_shares, *(extra.prior_deviation for extra in _extras(with_lever=with_lever))])


def smooth_components(*, with_lever: bool) -> FloatArray:
    """1 for every component that is smooth over size, 0 for the others, in the order of `covariances`."""
    shapes = [shape is not _rough for _ in SHARES for shape in SHAPES]
    return np.array([*shapes, *(extra.is_smooth for extra in _extras(with_lever=with_lever))], dtype=float)


# Results have heavy tails: a first attempt of a new submitter can be twice as slow. Three degrees of freedom
# is the smallest whole number with a variance.
DEGREES_OF_FREEDOM = 3.0
NOISE_PRIOR_DEVIATION = 0.05
# Prior standard deviation of each log deviation: a factor 1.6 up or down.
PRIOR_SPREAD = 0.5
# No search beyond: a noise of zero has no covariance matrix, and e**4 of the prior is no deviation of a time.
MOST_LOG = 4.0
FIT_ROUNDS = 2
REWEIGHTINGS = 4
MAX_ITERATIONS = 25

# Of each block: covariances of the components, values, columns of the trend, looseness.
_System: TypeAlias = list[tuple[FloatArray, FloatArray, FloatArray, FloatArray]]


class Trend(Struct, frozen=True, kw_only=True):
    """Prior of the mean, in log units: per doubling, and more per doubling beyond 64 accelerators."""

    per_doubling: float
    beyond: float


class CurveBlock(Struct, frozen=True, kw_only=True):
    """Points that may share deviations (one workload) and their values, log units, (n_points,)."""

    points: Points
    values: FloatArray


class Predicted(Struct, frozen=True, kw_only=True):
    """What is expected at some points, in log units.

    mean, deviation: (n_at,), with the noise of a new entry. covariance: (n_at, n_at), without it.
    weights: (n_at, n_block + n_own), what each known point adds to each mean.
    """

    mean: FloatArray
    deviation: FloatArray
    covariance: FloatArray
    weights: FloatArray


class Hierarchy(Struct, frozen=True, kw_only=True):
    """The fitted regression: deviations of the components (the noise last), the trend, and its blocks.

    trends: (n_rounds, 3), the trend's coefficients as each round of the fit found them; the last ones hold.
    centre: subtracted from all values; None where no values are known.
    looseness: by block, what each point's noise variance is multiplied by; outliers have large ones.
    """

    log_deviations: FloatArray
    trends: FloatArray
    centre: float | None
    blocks: Mapping[str, CurveBlock]
    looseness: Mapping[str, FloatArray]

    def predict(self, name: str, own: CurveBlock, at: Points, *, smooth: bool = False) -> Predicted:
        """What is expected at the points `at` of a curve, from the block `name` and its own points.

        Without such a block only the trend and the own points count. smooth: leaves out what differs from
        size to size without pattern, so that the mean is the curve and not the next entry.
        """
        past, centre = self.blocks.get(name), self.centre or 0.0
        known, values, looseness = own.points, own.values, np.ones(len(own.values))
        if past is not None:
            known = past.points.followed_by(own.points)
            values = np.concatenate([past.values, own.values])
            looseness = np.concatenate([self.looseness[name], looseness])
        variances, noise = _variances(self.log_deviations)
        wanted = variances * smooth_components(with_lever=at.lever_log2 is not None) if smooth else variances
        mean = centre + _basis(at) @ self.trends[-1]
        covariance = np.tensordot(wanted, covariances(at, at), 1)
        weights = np.zeros((len(at), len(known)))
        if len(known):
            shared = np.tensordot(variances, covariances(known, known), 1)
            residuals = values - centre - _basis(known) @ self.trends[-1]
            looseness = _reweighted(shared, noise, residuals, looseness)
            if len(own.values) == 1:
                # One point alone is the level of its curve: nothing of its own shows it to be an outlier.
                looseness[-1] = 1.0
            between = np.tensordot(wanted, covariances(known, at), 1)
            weights[:] = np.linalg.solve(shared + np.diag(noise * looseness), between).T
            mean = mean + weights @ residuals
            covariance = covariance - weights @ between
        # Rounding may leave a hair less than nothing.
        spread = np.maximum(np.diag(covariance), 0.0)
        tail = DEGREES_OF_FREEDOM / (DEGREES_OF_FREEDOM - 2.0)
        return Predicted(
            mean=mean, deviation=np.sqrt(spread + noise * tail), covariance=covariance, weights=weights
        )


def fit_hierarchy(
    blocks: Mapping[str, CurveBlock],
    trend: Trend,
    *,
    centre: float | None,
    prior: FloatArray,
    start: FloatArray | None,
    search: bool,
    trends: FloatArray | None,
) -> Hierarchy:
    """The regression with the deviations and trend of highest posterior density, outliers weighted down.

    blocks: by name. centre: subtracted from all values; makes the result independent of the unit of time.
    prior: `prior_log_deviations`, the noise last. start: log deviations to begin from, as of an earlier
    fit; the prior by default.
    search: whether to look for better ones; else only the trend and the weights of outliers are found.
    trends: of a fit with the same deviations, of which these are some of the blocks: only the weights of
    their outliers are found.
    Assumes log deviations are normal around their prior medians and noise is Student-t.
    Source: Rasmussen and Williams 2006, equations 5.8 and 5.9; Lange, Little and Taylor 1989 for the weights.
    """
    log_deviations = prior if start is None else start
    components = {name: covariances(block.points, block.points) for name, block in blocks.items()}
    looseness = {name: np.ones(len(block.values)) for name, block in blocks.items()}
    found = []
    for i in range(FIT_ROUNDS if blocks else 0):
        system = [
            (components[name], block.values - (centre or 0.0), _basis(block.points), looseness[name])
            for name, block in blocks.items()
        ]
        if search and trends is None:
            log_deviations = _searched(log_deviations, prior, trend, system)
        found.append(_coefficients(log_deviations, trend, system) if trends is None else trends[i])
        variances, noise = _variances(log_deviations)
        for name, block in blocks.items():
            residuals = block.values - (centre or 0.0) - _basis(block.points) @ found[-1]
            shared = np.tensordot(variances, components[name], 1)
            looseness[name] = _reweighted(shared, noise, residuals, looseness[name])
    return Hierarchy(
        log_deviations=log_deviations,
        trends=np.array(found or [_prior_coefficients(trend)]) if trends is None else trends,
        centre=centre,
        blocks=blocks,
        looseness=looseness,
    )


def prior_log_deviations(*, with_lever: bool) -> FloatArray:
    """The prior medians of the log deviations, the noise last."""
    medians = np.append(prior_deviations(with_lever=with_lever), NOISE_PRIOR_DEVIATION)
    return np.asarray(np.log(medians), dtype=np.float64)


def _searched(start: FloatArray, prior: FloatArray, trend: Trend, system: _System) -> FloatArray:
    """The log deviations of highest posterior density near the start."""
    from scipy.optimize import minimize  # noqa: PLC0415 - loading it takes as long as a plan

    found = minimize(
        _value_and_gradient,
        start,
        args=(prior, trend, system),
        jac=True,
        method="L-BFGS-B",
        bounds=[(middle - MOST_LOG, middle + MOST_LOG) for middle in prior],
        options={"maxiter": MAX_ITERATIONS},
    )
    return np.asarray(found.x, dtype=np.float64)


def _variances(log_deviations: FloatArray) -> tuple[FloatArray, float]:
    """Of the components, and of the noise."""
    return np.exp(2.0 * log_deviations[:-1]), float(np.exp(2.0 * log_deviations[-1]))


def _basis(points: Points) -> FloatArray:
    """Columns of the trend: constant, doublings from the centre, doublings beyond the bend: (n_points, 3)."""
    return np.column_stack([np.ones(len(points)), points.size_log2 - CENTRE_LOG2, bend(points.size_log2)])


# Prior standard deviations of the trend's coefficients: the level is free.
_TREND_SPREAD = np.array([30.0, 0.07, 0.07])


def _prior_coefficients(trend: Trend) -> FloatArray:
    return np.array([0.0, trend.per_doubling, trend.beyond])


def _inverses(log_deviations: FloatArray, system: _System) -> list[tuple[FloatArray, float]]:
    """Of each block the inverse of its covariance matrix, and half the log of the matrix's determinant."""
    variances, noise = _variances(log_deviations)
    found = []
    for components, _, _, looseness in system:
        factor = np.linalg.cholesky(np.tensordot(variances, components, 1) + np.diag(noise * looseness))
        half = np.linalg.inv(factor)
        found.append((half.T @ half, float(np.log(np.diag(factor)).sum())))
    return found


def _coefficients(
    log_deviations: FloatArray,
    trend: Trend,
    system: _System,
    inverses: list[tuple[FloatArray, float]] | None = None,
) -> FloatArray:
    """The trend of highest posterior density, given the deviations."""
    inverses = inverses or _inverses(log_deviations, system)
    left = np.diag(_TREND_SPREAD**-2.0)
    right = left @ _prior_coefficients(trend)
    for (_, values, basis, _), (inverse, _) in zip(system, inverses, strict=True):
        left = left + basis.T @ inverse @ basis
        right = right + basis.T @ inverse @ values
    return np.asarray(np.linalg.solve(left, right), dtype=np.float64)


def _value_and_gradient(
    log_deviations: FloatArray, prior: FloatArray, trend: Trend, system: _System
) -> tuple[float, FloatArray]:
    """Negative log posterior at the best trend, and its gradient."""
    variances, noise = _variances(log_deviations)
    inverses = _inverses(log_deviations, system)
    coefficients = _coefficients(log_deviations, trend, system, inverses)
    away = (coefficients - _prior_coefficients(trend)) / _TREND_SPREAD
    value = 0.5 * float(away @ away)
    gradient = np.zeros_like(log_deviations)
    for (components, values, basis, looseness), (inverse, half_log_determinant) in zip(
        system, inverses, strict=True
    ):
        residuals = values - basis @ coefficients
        solved = inverse @ residuals
        value += half_log_determinant + 0.5 * float(residuals @ solved)
        slack = inverse - np.outer(solved, solved)
        gradient[:-1] += variances * (components.reshape(len(components), -1) @ slack.ravel())
        gradient[-1] += noise * float(np.diag(slack) @ looseness)
    away = (log_deviations - prior) / PRIOR_SPREAD
    return value + 0.5 * float(away @ away), gradient + away / PRIOR_SPREAD


def _reweighted(shared: FloatArray, noise: float, residuals: FloatArray, looseness: FloatArray) -> FloatArray:
    """What the noise variance of each point is multiplied by, under Student-t noise, given the others."""
    for _ in range(REWEIGHTINGS):
        own = noise * looseness
        inverse = np.linalg.inv(shared + np.diag(own))
        error = own * (inverse @ residuals)
        variance = own - own**2 * np.diag(inverse)
        looseness = (DEGREES_OF_FREEDOM + (error**2 + variance) / noise) / (DEGREES_OF_FREEDOM + 1)
    return looseness

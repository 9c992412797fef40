"""The pooled law's regression: a Gaussian process over entries whose curves share their shape.

Inputs, covariance functions, and the fit of variance components and Student-t noise to earlier entries, which
is then conditioned on a group's own entries.
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
    """Inputs of entries of one workload: arrays of shape (n_points,).

    size_log2: log2 of the number of accelerators. age: index of the round. compute_log2: log2 of the nominal
    peak FLOP/s of all accelerators; NaN where unknown. accelerator, family (chip without form factor and
    memory), vendor: `codes` of their names. batch_log2: log2 of the batch (global or per accelerator); None
    if the batch is not an input.
    """

    size_log2: FloatArray
    age: FloatArray
    compute_log2: FloatArray
    accelerator: Codes
    family: Codes
    vendor: Codes
    batch_log2: FloatArray | None = None

    def __post_init__(self) -> None:
        """Check that all columns have the same length."""
        columns = (self.age, self.compute_log2, self.accelerator, self.family, self.vendor)
        assert all(len(column) == len(self) for column in columns)

    def __len__(self) -> int:
        """Number of points."""
        return len(self.size_log2)

    def __eq__(self, other: object) -> bool:
        """Whether all columns are equal."""
        return isinstance(other, Points) and self._columns() == other._columns()

    def __hash__(self) -> int:
        """Hash of the columns, by which covariances of equal points are cached."""
        return hash(self._columns())

    def _columns(self) -> tuple[bytes | None, ...]:
        columns = (getattr(self, name) for name in self.__struct_fields__)
        return tuple(None if column is None else column.tobytes() for column in columns)

    def followed_by(self, other: "Points") -> "Points":
        """These points followed by others; with batches if both have them."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in self.__struct_fields__}
        if self.batch_log2 is None or other.batch_log2 is None:
            del pairs["batch_log2"]
        return Points(**{name: np.concatenate(pair) for name, pair in pairs.items()})


def points(
    accelerators: Sequence[str],
    num_accelerators: Sequence[float] | FloatArray,
    age: Sequence[float] | FloatArray,
    *,
    batch: FloatArray | None = None,
) -> Points:
    """The points of entries, with properties of their chips.

    accelerators: slugs; an unknown one is its own family, without properties. age: see `Points`. batch:
    samples, (n_points,), or None.
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
        batch_log2=None if batch is None else np.log2(batch),
    )


_CODES: Final[dict[str, int]] = {}


def codes(names: Iterable[str]) -> Codes:
    """An integer for each name, the same at every call: integers are compared ten times as fast."""
    return np.array([_CODES.setdefault(name, len(_CODES)) for name in names], dtype=np.intp)


def chip_facts(slugs: Iterable[str]) -> dict[str, tuple[str, float]]:
    """Vendor and log2 of the peak FLOP/s of accelerators, by slug."""
    return {slug: _chip(slug) for slug in slugs}


def _chip(slug: str) -> tuple[str, float]:
    """Vendor and log2 of a chip's dense peak at training precision; slug and NaN if unknown."""
    chip = shipped_hardware().exact(slug)
    return (slug, np.nan) if chip is None else (chip.vendor, peak_log2(chip))


# Sizes are centred at 32 accelerators, and a curve may bend at 64: the middle of the submitted sizes.
CENTRE_LOG2 = 5.0
BEND_LOG2 = 6.0
# Slopes are per three doublings, so that the prior sd of all shapes are in units of log time.
SLOPE_LOG2 = 3.0
# Correlation length in rounds: two years, on which software and rules drift.
MEMORY_ROUNDS = 4.0

Covariance: TypeAlias = Callable[[Points, Points], FloatArray]


def _same(a: Codes, b: Codes) -> FloatArray:
    same: FloatArray = (a[:, None] == b[None]).astype(float)
    return same


def _distance(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.abs(a[:, None] - b[None])


def _squared_exponential(distance: FloatArray, length: float) -> FloatArray:
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
    return _squared_exponential(_distance(a.size_log2, b.size_log2), 2.5)


def _rough(a: Points, b: Points) -> FloatArray:
    recency: FloatArray = np.exp(-_distance(a.size_log2, b.size_log2) / 4.0)
    return recency


class SharedDeviation(Struct, frozen=True, kw_only=True):
    """A covariance between entries that share a property, with prior median sd in log time, by shape."""

    name: str
    covariance: Covariance
    prior_deviations: tuple[float, ...]


# In the order of prior_deviations.
SHAPES: tuple[Covariance, ...] = (_ones, _slope, _bend, _smooth, _rough)

# Prior medians of the sd: a workload's level is free, chips differ by tens of percent, curves by ten percent
# over three doublings, and those of one accelerator or group by less. They are fitted to earlier rounds.
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
    """A component that is not a product of a share and a shape, with the prior median of its sd."""

    name: str
    covariance: Covariance
    prior_deviation: float
    is_smooth: bool = True


def _compute(a: Points, b: Points) -> FloatArray:
    return np.nan_to_num(_squared_exponential(_distance(a.compute_log2, b.compute_log2), 2.5), nan=0.0)


EXTRAS: tuple[Extra, ...] = (
    # A fast chip runs out of work at fewer accelerators: curves are similar at equal peaks of systems.
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


def _batches_log2(a: Points, b: Points) -> tuple[FloatArray, FloatArray]:
    assert a.batch_log2 is not None
    assert b.batch_log2 is not None
    return a.batch_log2, b.batch_log2


def _batch_slope(a: Points, b: Points) -> FloatArray:
    batch_a, batch_b = _batches_log2(a, b)
    return np.outer(batch_a / SLOPE_LOG2, batch_b / SLOPE_LOG2)


def _batch_smooth(a: Points, b: Points) -> FloatArray:
    return _squared_exponential(_distance(*_batches_log2(a, b)), 2.0)


def _batch_rough(a: Points, b: Points) -> FloatArray:
    return np.exp(-_distance(*_batches_log2(a, b)) / 2.0)


BATCH_EXTRAS: tuple[Extra, ...] = (
    Extra(name="batch slope", covariance=_batch_slope, prior_deviation=0.1),
    Extra(name="batch curve", covariance=_batch_smooth, prior_deviation=0.2),
    Extra(name="batch, rough", covariance=_batch_rough, prior_deviation=0.1, is_smooth=False),
    Extra(
        name="batch curve, recent",
        covariance=lambda a, b: _batch_smooth(a, b) * _recent(a, b),
        prior_deviation=0.05,
    ),
    Extra(
        name="batch curve of the vendor",
        covariance=lambda a, b: _batch_smooth(a, b) * _same(a.vendor, b.vendor),
        prior_deviation=0.1,
    ),
    Extra(
        name="batch, rough, of the group",
        covariance=lambda a, b: _batch_rough(a, b) * _group(a, b),
        prior_deviation=0.05,
        is_smooth=False,
    ),
)


def _extras(*, with_batch: bool) -> tuple[Extra, ...]:
    return (*EXTRAS, *BATCH_EXTRAS) if with_batch else EXTRAS


@lru_cache(maxsize=3)
def covariances(a: Points, b: Points) -> FloatArray:
    """The covariance of every component at sd 1: (n_components, n_a, n_b).

    Includes components of the batch if both sets of points have one. Cached, because all parts of a
    prediction use the same sizes, and most the same entries.
    """
    shares = np.stack([share.covariance(a, b) for share in SHARES])
    shapes = np.stack([shape(a, b) for shape in SHAPES])
    products = (shares[:, None] * shapes[None]).reshape(-1, len(a), len(b))
    extras = [extra.covariance(a, b) for extra in _extras(with_batch=a.batch_log2 is not None)]
    return np.concatenate([products, np.stack(extras)])


def prior_deviations(*, with_batch: bool) -> FloatArray:
    """Prior median sd of every component, in the order of `covariances`."""
    of_shares = [deviation for share in SHARES for deviation in share.prior_deviations]
    return np.array([*of_shares, *(extra.prior_deviation for extra in _extras(with_batch=with_batch))])


def smooth_components(*, with_batch: bool) -> FloatArray:
    """1 for components that are smooth over size, else 0, in the order of `covariances`."""
    shapes = [shape is not _rough for _ in SHARES for shape in SHAPES]
    return np.array([*shapes, *(extra.is_smooth for extra in _extras(with_batch=with_batch))], dtype=float)


# Results have heavy tails: a new submitter's first attempt can be twice as slow. Three is the smallest whole
# number of degrees of freedom with a finite variance.
DEGREES_OF_FREEDOM = 3.0
NOISE_PRIOR_DEVIATION = 0.05
# Prior sd of the logarithm of each component's sd: a factor 1.6 up or down.
PRIOR_SPREAD = 0.5
# Bounds of the search around the prior: zero noise makes the covariance singular, and e**4 is implausible.
MAX_LOG = 4.0
FIT_ROUNDS = 2
REWEIGHTINGS = 4
MAX_ITERATIONS = 25

# Per block: covariances of the components, values, columns of the trend, noise factors.
_System: TypeAlias = list[tuple[FloatArray, FloatArray, FloatArray, FloatArray]]


class Trend(Struct, frozen=True, kw_only=True):
    """Prior mean of the slope in log units: per doubling, and added beyond 64 accelerators."""

    per_doubling: float
    beyond: float


class CurveBlock(Struct, frozen=True, kw_only=True):
    """Points of one workload and their values in log units, (n_points,)."""

    points: Points
    values: FloatArray


class Predicted(Struct, frozen=True, kw_only=True):
    """Prediction at some points, in log units.

    mean, deviation: mean and sd including the noise of a new entry, (n_at,). covariance: without that noise,
    (n_at, n_at). weights: of each known point's residual in each mean, (n_at, n_block + n_own).
    """

    mean: FloatArray
    deviation: FloatArray
    covariance: FloatArray
    weights: FloatArray


class Hierarchy(Struct, frozen=True, kw_only=True):
    """The fitted regression: log sd of the components (noise last), the trend, and the data by block.

    trends: the trend's coefficients after each iteration of the fit, (n_iterations, 3); the last are used.
    centre: subtracted from all values; None where no values are known. noise_factor: by block, multiplies
    each point's noise variance; large for outliers.
    """

    log_deviations: FloatArray
    trends: FloatArray
    centre: float | None
    blocks: Mapping[str, CurveBlock]
    noise_factor: Mapping[str, FloatArray]

    def predict(self, name: str, own: CurveBlock, at: Points, *, smooth: bool = False) -> Predicted:
        """Prediction at the points `at` of a curve, from the block `name`, if any, and its own.

        smooth: omit components that vary irregularly from size to size, to predict the curve, not an entry.
        """
        past, centre = self.blocks.get(name), self.centre or 0.0
        known, values, noise_factor = own.points, own.values, np.ones(len(own.values))
        if past is not None:
            known = past.points.followed_by(own.points)
            values = np.concatenate([past.values, own.values])
            noise_factor = np.concatenate([self.noise_factor[name], noise_factor])
        variances, noise = _variances(self.log_deviations)
        wanted = variances * smooth_components(with_batch=at.batch_log2 is not None) if smooth else variances
        mean = centre + _basis(at) @ self.trends[-1]
        covariance = np.tensordot(wanted, covariances(at, at), 1)
        weights = np.zeros((len(at), len(known)))
        if len(known):
            shared = np.tensordot(variances, covariances(known, known), 1)
            residuals = values - centre - _basis(known) @ self.trends[-1]
            noise_factor = _student_t_factors(shared, noise, residuals, noise_factor)
            if len(own.values) == 1:
                # A single point sets the level of its curve: no other can show it to be an outlier.
                noise_factor[-1] = 1.0
            between = np.tensordot(wanted, covariances(known, at), 1)
            weights[:] = np.linalg.solve(shared + np.diag(noise * noise_factor), between).T
            mean = mean + weights @ residuals
            covariance = covariance - weights @ between
        # Rounding may make variances slightly negative.
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
    """The regression with sd and trend of highest posterior density, and outliers down-weighted.

    blocks: by name. centre: subtracted from all values; makes the result independent of the unit of time.
    prior: `prior_log_deviations`. start: initial log sd, e.g. of an earlier fit; by default the prior.
    search: whether to optimise the log sd; if not, only the trend and the noise factors are found. trends: of
    a fit with the same log sd to these and further blocks; with them, only the noise factors are found.
    Assumes log sd are normal around their prior medians, and noise is Student-t.
    Source: Rasmussen and Williams 2006, equations 5.8 and 5.9; Lange, Little and Taylor 1989 for the weights.
    """
    log_deviations = prior if start is None else start
    components = {name: covariances(block.points, block.points) for name, block in blocks.items()}
    noise_factor = {name: np.ones(len(block.values)) for name, block in blocks.items()}
    found = []
    for i in range(FIT_ROUNDS if blocks else 0):
        system = [
            (components[name], block.values - (centre or 0.0), _basis(block.points), noise_factor[name])
            for name, block in blocks.items()
        ]
        if search and trends is None:
            log_deviations = _optimised(log_deviations, prior, trend, system)
        found.append(_coefficients(log_deviations, trend, system) if trends is None else trends[i])
        variances, noise = _variances(log_deviations)
        for name, block in blocks.items():
            residuals = block.values - (centre or 0.0) - _basis(block.points) @ found[-1]
            shared = np.tensordot(variances, components[name], 1)
            noise_factor[name] = _student_t_factors(shared, noise, residuals, noise_factor[name])
    return Hierarchy(
        log_deviations=log_deviations,
        trends=np.array(found or [_prior_coefficients(trend)]) if trends is None else trends,
        centre=centre,
        blocks=blocks,
        noise_factor=noise_factor,
    )


def prior_log_deviations(*, with_batch: bool) -> FloatArray:
    """Prior medians of the log sd of all components, noise last."""
    medians = np.append(prior_deviations(with_batch=with_batch), NOISE_PRIOR_DEVIATION)
    return np.asarray(np.log(medians), dtype=np.float64)


def _optimised(start: FloatArray, prior: FloatArray, trend: Trend, system: _System) -> FloatArray:
    """The log sd of highest posterior density near the start."""
    from scipy.optimize import minimize  # noqa: PLC0415 - loading it takes as long as a plan

    found = minimize(
        _value_and_gradient,
        start,
        args=(prior, trend, system),
        jac=True,
        method="L-BFGS-B",
        bounds=[(middle - MAX_LOG, middle + MAX_LOG) for middle in prior],
        options={"maxiter": MAX_ITERATIONS},
    )
    return np.asarray(found.x, dtype=np.float64)


def _variances(log_deviations: FloatArray) -> tuple[FloatArray, float]:
    """Variances of the components, and the variance of the noise."""
    return np.exp(2.0 * log_deviations[:-1]), float(np.exp(2.0 * log_deviations[-1]))


def _basis(points: Points) -> FloatArray:
    """Columns of the trend: constant, doublings from the centre, doublings beyond the bend: (n_points, 3)."""
    return np.column_stack([np.ones(len(points)), points.size_log2 - CENTRE_LOG2, bend(points.size_log2)])


# Prior sd of the trend's coefficients: the level is free.
_TREND_SPREAD = np.array([30.0, 0.07, 0.07])


def _prior_coefficients(trend: Trend) -> FloatArray:
    return np.array([0.0, trend.per_doubling, trend.beyond])


def _inverses(log_deviations: FloatArray, system: _System) -> list[tuple[FloatArray, float]]:
    """Inverse of the covariance matrix and half of its log determinant, for each block."""
    variances, noise = _variances(log_deviations)
    found = []
    for components, _, _, noise_factor in system:
        factor = np.linalg.cholesky(np.tensordot(variances, components, 1) + np.diag(noise * noise_factor))
        half = np.linalg.inv(factor)
        found.append((half.T @ half, float(np.log(np.diag(factor)).sum())))
    return found


def _coefficients(
    log_deviations: FloatArray,
    trend: Trend,
    system: _System,
    inverses: list[tuple[FloatArray, float]] | None = None,
) -> FloatArray:
    """The trend of highest posterior density, given the log sd."""
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
    for (components, values, basis, noise_factor), (inverse, half_log_determinant) in zip(
        system, inverses, strict=True
    ):
        residuals = values - basis @ coefficients
        solved = inverse @ residuals
        value += half_log_determinant + 0.5 * float(residuals @ solved)
        slack = inverse - np.outer(solved, solved)
        gradient[:-1] += variances * (components.reshape(len(components), -1) @ slack.ravel())
        gradient[-1] += noise * float(np.diag(slack) @ noise_factor)
    away = (log_deviations - prior) / PRIOR_SPREAD
    return value + 0.5 * float(away @ away), gradient + away / PRIOR_SPREAD


def _student_t_factors(
    shared: FloatArray, noise: float, residuals: FloatArray, noise_factor: FloatArray
) -> FloatArray:
    """Factors on each point's noise variance under Student-t noise, by expectation maximisation."""
    for _ in range(REWEIGHTINGS):
        own = noise * noise_factor
        inverse = np.linalg.inv(shared + np.diag(own))
        error = own * (inverse @ residuals)
        variance = own - own**2 * np.diag(inverse)
        noise_factor = (DEGREES_OF_FREEDOM + (error**2 + variance) / noise) / (DEGREES_OF_FREEDOM + 1)
    return noise_factor

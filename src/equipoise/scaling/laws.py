"""Laws of time against size: formulas, parameter ranges, assumptions and sources."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.errors import SpecError

FloatArray: TypeAlias = NDArray[np.float64]


class Domain(Struct, frozen=True, kw_only=True):
    """The range of measured sizes: fewest and most accelerators."""

    smallest: float
    largest: float


class Law(Struct, frozen=True, kw_only=True):
    """A formula for the time of a fixed amount of training by number of accelerators.

    params: names; those ending in `_s` are seconds and scale with the amount of training, others are ratios.
    predict_s: (num_accelerators, *params) -> seconds; arrays broadcast.
    plausible: (unit, domain) -> params for a job of about one second. unit: (n, num_shapes) in 0..1; a
    uniform distribution of it is the prior, and replaces bounds and starting points.
    """

    name: str
    params: tuple[str, ...]
    predict_s: Callable[..., FloatArray]
    plausible: Callable[[FloatArray, Domain], tuple[FloatArray, ...]]
    assumes: str
    source: str

    @property
    def num_shapes(self) -> int:
        """Number of parameters of the curve's shape, without its scale."""
        return len(self.params) - 1

    def at(self, unit: FloatArray, domain: Domain) -> FloatArray:
        """The parameters of curves of a job of about one second: (n, num_shapes) -> (n, num_params).

        unit: in 0..1. Returns seconds where a name ends in `_s`, ratios elsewhere.
        """
        return np.stack(self.plausible(unit, domain), axis=1)

    def scaled(self, values: FloatArray, scale: FloatArray) -> FloatArray:
        """The parameters of the same curve for a job `scale` times as long.

        values: (n, num_params), seconds where a name ends in `_s`. scale: ratio of times, (n,). Returns
        (n, num_params), in the units of values.
        Assumes the other parameters do not depend on the amount of training. Source: definition.
        """
        in_seconds = np.array([name.endswith("_s") for name in self.params])
        return np.where(in_seconds, values * scale[:, None], values)

    def times_s(self, values: FloatArray, num_accelerators: FloatArray) -> FloatArray:
        """Seconds of each curve at each size: (n, num_params) and (n_sizes,) -> (n, n_sizes).

        values: seconds where a name ends in `_s`, ratios elsewhere. Assumes and source: those of the law.
        """
        columns = (column[:, None] for column in values.T)
        return np.broadcast_to(
            self.predict_s(num_accelerators, *columns), (len(values), len(num_accelerators))
        ).astype(np.float64)


# Prior range, log-uniform, of other costs relative to the parallel work, at the size where they matter most:
# less is invisible in noise of 1 %, and more hides the scaling.
_SMALLEST_SHARE, _LARGEST_SHARE = 1e-4, 1e3
# Superlinear scaling (more cache per accelerator) is allowed, and so is a time that grows with size.
_SMALLEST_EXPONENT, _LARGEST_EXPONENT = -0.2, 1.2
_MOST_OVERLAP = 10.0  # Pollux bounds its gamma by 1 and 10


def _share(unit: FloatArray, largest: float = _LARGEST_SHARE) -> FloatArray:
    """A share of the parallel work, log-uniform over its plausible range."""
    return np.asarray(_SMALLEST_SHARE * (largest / _SMALLEST_SHARE) ** unit)


def _one_second(unit: FloatArray, _domain: Domain) -> tuple[FloatArray, ...]:
    return (np.ones(len(unit)),)


def _gustafson_plausible(unit: FloatArray, domain: Domain) -> tuple[FloatArray, ...]:
    serial_to_parallel = _share(unit[:, 0]) * domain.smallest
    return np.ones(len(unit)), serial_to_parallel / (1.0 + serial_to_parallel)


def _usl_s(
    num_accelerators: FloatArray, single_s: FloatArray, contention: FloatArray, coherency: FloatArray
) -> FloatArray:
    others = num_accelerators - 1.0
    return single_s * (1.0 + contention * others + coherency * num_accelerators * others) / num_accelerators


def _usl_plausible(unit: FloatArray, domain: Domain) -> tuple[FloatArray, ...]:
    # Contention is a share of the work on one accelerator and therefore at most 1.
    contention = _share(unit[:, 0], min(_LARGEST_SHARE, domain.largest)) / domain.largest
    return np.ones(len(unit)), contention, _share(unit[:, 1]) / domain.largest**2


def _power_plausible(unit: FloatArray, _domain: Domain) -> tuple[FloatArray, ...]:
    exponent = _SMALLEST_EXPONENT + (_LARGEST_EXPONENT - _SMALLEST_EXPONENT) * unit[:, 0]
    return np.ones(len(unit)), exponent


def _ring_share(num_accelerators: FloatArray) -> FloatArray:
    """Crossings of a link per byte of gradient in a ring all-reduce: 2 (N - 1) / N."""
    return 2.0 * (num_accelerators - 1.0) / num_accelerators


def _alpha_beta_s(
    num_accelerators: FloatArray, compute_s: FloatArray, transfer_s: FloatArray, latency_s: FloatArray
) -> FloatArray:
    hops = 2.0 * (num_accelerators - 1.0)
    return compute_s / num_accelerators + _ring_share(num_accelerators) * transfer_s + hops * latency_s


def _alpha_beta_plausible(unit: FloatArray, domain: Domain) -> tuple[FloatArray, ...]:
    transfer_s = _share(unit[:, 0]) / (2.0 * domain.largest)
    return np.ones(len(unit)), transfer_s, _share(unit[:, 1]) / (2.0 * domain.largest**2)


def _overlap_s(
    num_accelerators: FloatArray, compute_s: FloatArray, transfer_s: FloatArray, overlap: FloatArray
) -> FloatArray:
    computing = compute_s / num_accelerators
    communicating = _ring_share(num_accelerators) * transfer_s
    return (computing**overlap + communicating**overlap) ** (1.0 / overlap)


def _overlap_plausible(unit: FloatArray, domain: Domain) -> tuple[FloatArray, ...]:
    least = 1.0 / _MOST_OVERLAP
    overlap = 1.0 / (least + (1.0 - least) * unit[:, 1])
    return np.ones(len(unit)), _share(unit[:, 0]) / (2.0 * domain.largest), overlap


CONSTANT = Law(
    name="constant",
    params=("time_s",),
    predict_s=lambda num_accelerators, time_s: time_s + 0.0 * num_accelerators,
    plausible=_one_second,
    assumes="the time does not depend on the number of accelerators: the null hypothesis for every other law",
    source="definition",
)

PERFECT = Law(
    name="perfect",
    params=("work_s",),
    predict_s=lambda num_accelerators, work_s: work_s / num_accelerators,
    plausible=_one_second,
    assumes="T = work / N: no cost besides the parallel work",
    source="definition",
)

AMDAHL = Law(
    name="amdahl",
    params=("serial_s", "parallel_s"),
    predict_s=lambda num_accelerators, serial_s, parallel_s: serial_s + parallel_s / num_accelerators,
    plausible=lambda unit, domain: (_share(unit[:, 0]) / domain.largest, np.ones(len(unit))),
    assumes="T = serial + parallel / N: the work is fixed; communication does not grow with size",
    source="Amdahl 1967, AFIPS 30, 483",
)

GUSTAFSON = Law(
    name="gustafson",
    params=("single_s", "serial_fraction"),
    predict_s=lambda num_accelerators, single_s, serial_fraction: (
        single_s / (serial_fraction + (1.0 - serial_fraction) * num_accelerators)
    ),
    plausible=_gustafson_plausible,
    assumes="T = T1 / (s + (1 - s) N): the work of a step grows with N, as a global batch does, besides "
    "a serial part that does not; here the time for fixed samples, at the rate of Gustafson's scaled speedup",
    source="Gustafson 1988, CACM 31, 532",
)

USL = Law(
    name="usl",
    params=("single_s", "contention", "coherency"),
    predict_s=_usl_s,
    plausible=_usl_plausible,
    assumes="T = T1 (1 + sigma (N - 1) + kappa N (N - 1)) / N: contention for a shared resource "
    "(sigma), and communication between every pair (kappa)",
    source="Gunther 1993, CMG; Gunther 2007, Guerrilla Capacity Planning, chapter 4",
)

POWER = Law(
    name="power",
    params=("single_s", "exponent"),
    predict_s=lambda num_accelerators, single_s, exponent: single_s * num_accelerators**-exponent,
    plausible=_power_plausible,
    assumes="T = T1 N^-a: every doubling gains the same factor",
    source="Calotoiu et al. 2013, SC (performance model normal form, one term)",
)

ALPHA_BETA = Law(
    name="alpha_beta",
    params=("compute_s", "transfer_s", "latency_s"),
    predict_s=_alpha_beta_s,
    plausible=_alpha_beta_plausible,
    assumes="T = compute / N + 2 (N - 1) / N transfer + 2 (N - 1) latency: a ring all-reduce after each step "
    "of fixed work, nothing hidden; the same curve as the USL's, with sigma = 2 transfer / compute and "
    "kappa = 2 latency / compute",
    source="Hockney 1994, Parallel Computing 20, 389; Patarasuk and Yuan 2009, JPDC 69, 117",
)

OVERLAP = Law(
    name="overlap",
    params=("compute_s", "transfer_s", "overlap"),
    predict_s=_overlap_s,
    plausible=_overlap_plausible,
    assumes="T = (Tc^g + Tm^g)^(1/g), Tc = compute / N, Tm = 2 (N - 1) / N transfer: communication "
    "overlaps with computation, not at all for g = 1 and fully for large g; Pollux lets its Tm "
    "grow with N instead",
    source="Qiao et al. 2021, OSDI (Pollux), section 3.2",
)

LAWS = (CONSTANT, PERFECT, AMDAHL, GUSTAFSON, USL, POWER, ALPHA_BETA, OVERLAP)
CANDIDATES = tuple(law for law in LAWS if law is not CONSTANT)


def law_named(name: str, *, also: Sequence[str] = ()) -> Law:
    """The law of that name.

    also: further valid names for the message, which are not laws of a single curve.
    Raises SpecError listing all names if there is none.
    """
    for law in LAWS:
        if law.name == name:
            return law
    names = (*(law.name for law in LAWS), *also)
    raise SpecError(f"law={name!r} is unknown; the laws are {', '.join(names)}.")

"""One curve of time against size from several witnesses, joined by their slopes; its equilibria."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from equipoise.advice.answer.evidence import Curves, Witness
from equipoise.advice.answer.weighed import shares
from equipoise.scaling.law import Domain, FloatArray
from equipoise.stats import Interval

_STEPS_PER_OCTAVE = 8
_NUM_CURVES = 200
_ROUNDING = 2.0**-30


def joined_curves(
    witnesses: Sequence[Witness], level: Interval, at: int, *, domain: Domain | None = None
) -> tuple[Curves, Domain] | None:
    """Equally likely curves of time and the sizes they hold for; None where no witness tells a curve.

    level: the joint time at the size `at`, from which the curves are drawn up and down. domain: sizes asked
    about; that of the witness who tells most surely unless given. The curves go on to twice its largest.
    Slopes are joined, not times: witnesses at unlike levels, of whom one falls silent, would leave a step.
    Assumes draws of different witnesses are independent.
    Source: docs/advice.md; weights as `weighed.shares`.
    """
    told = [each for each in witnesses if each.curves_s is not None and each.domain is not None]
    wide = [each for each in told if each.domain is not None and each.domain.largest > each.domain.smallest]
    if not wide:
        return None
    domain = domain or min(wide, key=_mean_log_sd).domain
    assert domain is not None
    grid_log2 = _grid(domain)
    slopes = np.stack([_slopes(each, grid_log2) for each in wide])
    spreads = np.stack([_log_sds(each, grid_log2) for each in wide])
    weights = shares(spreads)[:, None, :]
    climbs = np.cumsum((weights * slopes).sum(axis=0), axis=1)
    logs = np.concatenate([np.zeros((len(climbs), 1)), climbs], axis=1)
    here = np.array([np.interp(math.log2(at), grid_log2, each) for each in logs])
    logs += math.log(level.value) - here[:, None]

    def curves_s(sizes: FloatArray) -> FloatArray:
        wanted = np.log2(np.asarray(sizes, dtype=float))
        return np.exp([np.interp(wanted, grid_log2, each) for each in logs])

    return curves_s, domain


def _mean_log_sd(witness: Witness) -> float:
    return float(np.mean([*witness.log_sds.values()]))


def _grid(domain: Domain) -> FloatArray:
    """Logarithms of sizes, from the smallest to twice the largest."""
    low, high = math.log2(domain.smallest), math.log2(2.0 * domain.largest)
    return np.linspace(low, high, max(2, round((high - low) * _STEPS_PER_OCTAVE) + 1))


def _slopes(witness: Witness, grid_log2: FloatArray) -> FloatArray:
    """Changes of log time from one grid point to the next: (_NUM_CURVES, n - 1); 0 where it is silent."""
    assert witness.curves_s is not None
    logs = np.log(witness.curves_s(2.0**grid_log2))
    rows = np.arange(_NUM_CURVES) % len(logs)
    return np.where(_is_told(witness, grid_log2), np.diff(logs, axis=1)[rows], 0.0)


def _log_sds(witness: Witness, grid_log2: FloatArray) -> FloatArray:
    """How sure the witness is between grid points: (n - 1,); infinite where it is silent."""
    sizes = sorted(witness.times)
    middles = (grid_log2[1:] + grid_log2[:-1]) / 2.0
    known = np.interp(middles, np.log2(sizes), [witness.log_sds[size] for size in sizes])
    return np.where(_is_told(witness, grid_log2), known, np.inf)


def _is_told(witness: Witness, grid_log2: FloatArray) -> FloatArray:
    """Between which grid points a witness has something to say: up to a doubling beyond its domain."""
    domain = witness.domain
    assert domain is not None
    low, high = math.log2(domain.smallest) - _ROUNDING, math.log2(2.0 * domain.largest) + _ROUNDING
    return np.asarray((grid_log2[:-1] >= low) & (grid_log2[1:] <= high))


def straight_between(sizes: Sequence[int], drawn_s: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Curves through drawn times, straight between sizes in both logarithms, flat beyond them.

    drawn_s: (n_draws, n_sizes).
    """
    at, logs = np.log(sizes), np.log(drawn_s)

    def curves_s(wanted: FloatArray) -> FloatArray:
        return np.exp([np.interp(np.log(wanted), at, each) for each in logs])

    return curves_s

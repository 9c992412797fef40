"""Samples to target against batch over all rounds of a workload: the entries that tell it, and the curve.

A frame of scores in, a record out; the law itself and its intervals are convergence.py's.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from equipoise.scaling.convergence import Convergence, fit_convergence
from equipoise.stats import Interval

_NUM_STEPS = 41
_IS_KNOWN = (
    pl.col("samples_to_target").is_finite()
    & (pl.col("samples_to_target") > 0)
    & pl.col("global_batch_samples").is_finite()
    & (pl.col("global_batch_samples") > 0)
).fill_null(value=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGrowth:
    """How many more samples a workload needs at larger batches.

    entries: one row an entry: round, entry_id, submitter, system, accelerator, num_accelerators,
    global_batch_samples, samples_to_target, adjusted_samples (less the offset of its round), weight (about 0
    for an entry far from the curve). curve: global_batch_samples, samples, low, high over the batches seen.
    samples_min, batch_critical: S_min and B_crit, the latter's high infinite where no growth was seen.
    growth: samples at the largest batch over those at the smallest.
    """

    entries: pl.DataFrame
    curve: pl.DataFrame
    samples_min: Interval
    batch_critical: Interval
    growth: Interval

    @property
    def num_rounds(self) -> int:
        """Rounds with an entry."""
        return self.entries["round"].n_unique()


def batch_growth(scores: pl.DataFrame, *, level: float = 0.9) -> BatchGrowth:
    """The law of samples against batch that the entries of one workload follow.

    scores: the comparable rows of the table `scores` (runs.queries), of all rounds, with `campaign` called
    `round`.
    Raises EvidenceError, naming what to add, when the batches differ too little.
    Assumes the entries of a round share its target and rules, hence one offset.
    Source: McCandlish et al. 2018, arXiv 1812.06162; see scaling.convergence.
    """
    known = scores.filter(_IS_KNOWN).sort("round", "global_batch_samples", "entry_id")
    batch = known["global_batch_samples"].to_numpy().astype(float)
    fitted = fit_convergence(batch, known["samples_to_target"].to_numpy(), known["round"].to_numpy())
    return BatchGrowth(
        entries=known.select(
            "round", "entry_id", "submitter", "system", "accelerator", "num_accelerators",
            "global_batch_samples", "samples_to_target",
            adjusted_samples=known["samples_to_target"].to_numpy() / fitted.group_factor[fitted.group],
            weight=pl.Series(fitted.weight),
        ),
        curve=_curve(fitted, batch, level),
        samples_min=fitted.samples_min(level=level),
        batch_critical=fitted.batch_critical(level=level),
        growth=fitted.growth(float(batch.min()), float(batch.max()), level=level),
    )  # fmt: skip


def _curve(
    fitted: Convergence, batch: np.ndarray[tuple[int], np.dtype[np.float64]], level: float
) -> pl.DataFrame:
    steps = np.geomspace(batch.min(), batch.max(), _NUM_STEPS)
    samples = [fitted.samples(float(step), level=level) for step in steps]
    return pl.DataFrame(
        {
            "global_batch_samples": steps,
            "samples": [each.value for each in samples],
            "low": [each.low for each in samples],
            "high": [each.high for each in samples],
        }
    )

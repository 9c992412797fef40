"""The spread of submitters: how much longer one takes than the best of the others on the same chip and size.

The pooled law is of the best at each size; this separates any other submitter from it. Reads no files.
"""

import numpy as np
import polars as pl
from msgspec import Struct

from equipoise.errors import EvidenceError
from equipoise.scaling.points import GROUP, Floats
from equipoise.spec.mlperf import round_key
from equipoise.stats import num_sd

LEVEL = 0.9
# A median and a quantile of fewer results state nothing.
_FEWEST_RESULTS = 20


class SubmitterSpread(Struct, frozen=True, kw_only=True):
    """Time of a submitter over that of the best of the others, log-normal.

    factor: the median. log_sd: 90 % of the results lie within 1.645 of them around it. coverage: how often
    the 90 % interval of strictly earlier rounds held, over num_held_out results; None without any.
    """

    factor: float
    log_sd: float
    num_results: int
    num_held_out: int
    coverage: float | None


def submitter_spread(rows: pl.DataFrame) -> SubmitterSpread:
    """The spread of submitters over all rounds, workloads, accelerators and sizes.

    rows: of the table `scores`, as `runs.store.comparable` returns them.
    Raises EvidenceError with fewer than 20 results at sizes of two submitters or more.
    Assumes the spread is the same everywhere, and a new submitter one of those seen.
    """
    found = log_ratios(rows)
    if len(found) < _FEWEST_RESULTS:
        raise EvidenceError(
            f"{len(found)} results at sizes of two submitters or more; a spread needs {_FEWEST_RESULTS}",
            missing=("more submitters of the same accelerator and size",),
        )
    inside: list[float] = []
    for campaign in found["campaign"].unique():
        earlier = [each for each in found["campaign"].unique() if round_key(each) < round_key(campaign)]
        known = found.filter(pl.col("campaign").is_in(earlier))["log_ratio"].to_numpy()
        if len(known) >= _FEWEST_RESULTS:
            middle, spread = _log_normal(known)
            held_out = found.filter(campaign=campaign)["log_ratio"].to_numpy()
            inside += (np.abs(held_out - middle) <= num_sd(LEVEL) * spread).tolist()
    middle, spread = _log_normal(found["log_ratio"].to_numpy())
    return SubmitterSpread(
        factor=float(np.exp(middle)),
        log_sd=spread,
        num_results=len(found),
        num_held_out=len(inside),
        coverage=float(np.mean(inside)) if inside else None,
    )


def log_ratios(rows: pl.DataFrame) -> pl.DataFrame:
    """Of each submitter at each size of two or more: log time over the best of the others.

    rows: as `submitter_spread` takes them. Returns campaign, submitter, log_ratio; a submitter's best counts,
    however its name is capitalised.
    """
    size = [*GROUP, "num_accelerators"]
    best = (
        rows.filter(pl.col("accelerator").is_not_null() & pl.col("submitter").is_not_null())
        .with_columns(pl.col("submitter").str.to_lowercase())
        .group_by(*size, "submitter")
        .agg(time_s=pl.col("score_s").min())
        .sort(*size, "time_s", "submitter")
        .filter(pl.len().over(size) > 1)
        .with_columns(first_s=pl.col("time_s").first().over(size), next_s=pl.col("time_s").get(1).over(size))
    )
    is_first = pl.col("submitter") == pl.col("submitter").first().over(size)
    others_s = pl.when(is_first).then(pl.col("next_s")).otherwise(pl.col("first_s"))
    return best.select("campaign", "submitter", log_ratio=(pl.col("time_s") / others_s).log())


def _log_normal(log_ratio: Floats) -> tuple[float, float]:
    """The median, and the standard deviation that holds LEVEL of the values around it."""
    middle = float(np.median(log_ratio))
    return middle, float(np.quantile(np.abs(log_ratio - middle), LEVEL)) / num_sd(LEVEL)

"""What was published of the very training a plan recommends: the same workload, accelerator and number."""

import polars as pl

from equipoise.advice.forecast.answer import Evidence
from equipoise.advice.plans.planned import Option
from equipoise.scaling.metrics import COMPARABLE
from equipoise.scaling.points import round_key


def seen(scores: pl.DataFrame, workload: str, option: Option) -> Evidence | None:
    """The fastest published result on as many of the same accelerators, of the newest round that has one.

    scores: the table `scores`. Returns None where nobody published one.
    """
    same = scores.filter(
        COMPARABLE
        & (pl.col("workload") == workload)
        & (pl.col("accelerator") == option.accelerator)
        & (pl.col("num_accelerators") == option.num_accelerators)
        & pl.col("score_s").is_not_null()
    )
    if same.is_empty():
        return None
    last = max(same["campaign"].unique(), key=round_key)
    newest = same.filter(pl.col("campaign") == last).sort("score_s").row(0, named=True)
    return Evidence(
        kind="published",
        ref=newest["entry_id"],
        num_accelerators=newest["num_accelerators"],
        time_s=newest["score_s"],
        weight=None,
        is_own=False,
        source_uri=newest["source_uri"],
        source_line=newest["source_line"],
    )

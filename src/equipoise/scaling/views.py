"""Two views of the entries of a workload: the study's way, over mixed hardware, and like for like."""

from dataclasses import dataclass
from typing import Literal

import polars as pl

from equipoise.scaling.decompose import FACTORS
from equipoise.scaling.metrics import MEASURED
from equipoise.scaling.titles import accelerator_title


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The comparable entries of a workload with one efficiency.

    points: entry_id, submitter, accelerator, num_accelerators, score_s, speedup, efficiency, is_baseline,
    factors.
    """

    way: Literal["their way", "like for like"]
    workload: str
    points: pl.DataFrame

    @property
    def best(self) -> pl.DataFrame:
        """The most efficient entry at each size, smallest first."""
        return self.points.sort(
            "num_accelerators", "efficiency", "entry_id", descending=[False, True, False]
        ).unique("num_accelerators", keep="first", maintain_order=True)

    @property
    def about(self) -> str:
        """What was looked at, for a sentence."""
        if self.way == "their way" or self.points.is_empty():
            return "All systems"
        return f"{accelerator_title(self.points['accelerator'][0])} only"


def their_view(workload: str, entries: pl.DataFrame) -> View:
    """All entries with E', whatever their accelerator.

    entries: a frame with metrics and factors, of one round, workload and division.
    """
    return View(
        way="their way", workload=workload, points=_points(entries, "relative_efficiency", "is_reference")
    )


def like_for_like_view(workload: str, entries: pl.DataFrame) -> View:
    """The entries of the accelerator seen at the most sizes (ties: widest range), with like-for-like E."""
    baseline = pl.col("entry_id") == pl.col("like_for_like_baseline_id")
    points = _points(
        entries.filter(pl.col("like_for_like_efficiency").is_not_null()).with_columns(_is_baseline=baseline),
        "like_for_like_efficiency",
        "_is_baseline",
    )
    chosen = (
        points.group_by("accelerator")
        .agg(
            num_sizes=pl.col("num_accelerators").n_unique(),
            growth=pl.col("num_accelerators").max() / pl.col("num_accelerators").min(),
        )
        .sort("num_sizes", "growth", "accelerator", descending=[True, True, False])
        .head(1)
    )
    return View(
        way="like for like", workload=workload, points=points.join(chosen, on="accelerator", how="semi")
    )


def _points(entries: pl.DataFrame, efficiency: str, baseline: str) -> pl.DataFrame:
    return entries.filter(MEASURED).select(
        "entry_id", "submitter", "accelerator", "num_accelerators", "score_s", "speedup",
        "like_for_like_efficiency", pl.col(efficiency).alias("efficiency"),
        pl.col(baseline).alias("is_baseline"), *FACTORS,
    )  # fmt: skip

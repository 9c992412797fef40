"""Which of two workloads scales more linearly: by slope over mixed hardware, or over the same sizes alike."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from equipoise.scaling.metrics import curves
from equipoise.scaling.readings import MARGIN, Figure, Reading, no_evidence
from equipoise.scaling.shared import families
from equipoise.scaling.titles import accelerator_title, workload_title
from equipoise.scaling.views import View
from equipoise.units import format_count


def slopes(first: View, second: View) -> Reading:
    """How near to 1 the slope of log speedup against log accelerators is, over all systems.

    Source: Theil 1950, Sen 1968: the median of the slopes between all pairs.
    """
    slopes = []
    for view in (first, second):
        slope = _theil_sen_slope(
            np.log(view.points["num_accelerators"].to_numpy().astype(float)),
            np.log(view.points["speedup"].to_numpy()),
        )
        if slope is None:
            return no_evidence(f"{workload_title(view.workload)}: needs two sizes.")
        slopes.append(slope)
    nearer = abs(1 - slopes[1]) - abs(1 - slopes[0])
    return Reading(
        verdict="holds" if nearer > MARGIN else "reverses" if nearer < -MARGIN else "not supported",
        figures=tuple(
            Figure(
                name=f"slope, {workload_title(view.workload)}",
                value=slope,
                unit="",
                entry_ids=tuple(view.points["entry_id"].sort()),
            )
            for view, slope in zip((first, second), slopes, strict=True)
        ),
        words=f"All systems: slope {slopes[0]:.2f} for {workload_title(first.workload)}, {slopes[1]:.2f} for "
        f"{workload_title(second.workload)}.",
    )


def _theil_sen_slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    run = x[:, None] - x[None, :]
    rise = y[:, None] - y[None, :]
    apart = run > 0
    return float(np.median(rise[apart] / run[apart])) if apart.any() else None


def common_sizes(entries_by_workload: Mapping[str, pl.DataFrame]) -> Reading:
    """E of the first workload against the second over the sizes that both have on one accelerator.

    entries_by_workload: two workloads, slug -> the frame `with_metrics` returned. The accelerator is the one
    with the most common sizes (ties: widest range); both curves start from the smallest common size, best
    entry a size.
    """
    first, second = (workload_title(workload) for workload in entries_by_workload)
    sizes = _common_curve(entries_by_workload)
    if sizes.height <= 1:
        return no_evidence("needs two sizes of one accelerator that both workloads have.")
    ratios = (sizes["like_for_like_efficiency"] / sizes["like_for_like_efficiency_second"]).to_numpy()
    ratio = float(np.exp(np.mean(np.log(ratios[1:] / ratios[0]))))
    start, *others = (format_count(size) for size in sizes["num_accelerators"])
    growth = f"{start} to {', '.join(others)} accelerators"
    own = families(entries_by_workload)
    return Reading(
        verdict="holds" if ratio > 1 + MARGIN else "reverses" if ratio < 1 - MARGIN else "not supported",
        figures=(
            Figure(
                name=f"E of {first} / {second}, {growth}",
                value=ratio,
                unit="",
                entry_ids=(*sizes["entry_id"], *sizes["entry_id_second"]),
            ),
            *_family_figures(own),
        ),
        words=f"{accelerator_title(sizes['accelerator'][0])} only, {growth}: {first} keeps {ratio:.2f} of "
        f"what {second} keeps.{_families_words(own, tuple(entries_by_workload))}",
    )


def _common_curve(entries_by_workload: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The sizes that both workloads have on the accelerator with most of them, smallest first."""
    first, second = (curves(entries) for entries in entries_by_workload.values())
    common = first.join(second, on=("accelerator", "num_accelerators"), suffix="_second")
    chosen = (
        common.group_by("accelerator")
        .agg(num_sizes=pl.len(), growth=pl.col("num_accelerators").max() / pl.col("num_accelerators").min())
        .sort("num_sizes", "growth", "accelerator", descending=[True, True, False])
        .head(1)
    )
    return common.join(chosen, on="accelerator", how="semi").sort("num_accelerators")


def _family_figures(own: pl.DataFrame) -> tuple[Figure, ...]:
    return tuple(
        Figure(
            name=f"E of {row['submitter']} {accelerator_title(row['accelerator'])}, "
            f"{row['from_accelerators']} to {row['to_accelerators']}, {workload_title(row['workload'])}",
            value=row["efficiency"],
            unit="",
            entry_ids=(row["from_id"], row["to_id"]),
        )
        for row in own.iter_rows(named=True)
    )


def _families_words(own: pl.DataFrame, workloads: Sequence[str]) -> str:
    """One machine family after the other: a check that does not mix submitters."""
    words = []
    for family in own.partition_by("submitter", "accelerator", maintain_order=True):
        row = family.row(0, named=True)
        efficiency = dict(family.select("workload", "efficiency").iter_rows())
        values = " against ".join(f"{efficiency[workload]:.3f}" for workload in workloads)
        words.append(f"{row['submitter']}, {row['from_accelerators']} to {row['to_accelerators']}: {values}")
    return f" On one submitter's machines: {'; '.join(words)}." if words else ""

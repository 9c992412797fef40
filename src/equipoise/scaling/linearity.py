"""Which of two workloads scales more linearly: by slope over mixed hardware, or over the same sizes alike."""

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from equipoise.scaling.readings import MARGIN, Figure, Reading, View, no_evidence
from equipoise.scaling.shared import families


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
            return no_evidence(f"{view.workload}: needs two sizes.")
        slopes.append(slope)
    nearer = abs(1 - slopes[1]) - abs(1 - slopes[0])
    return Reading(
        verdict="holds" if nearer > MARGIN else "reverses" if nearer < -MARGIN else "not supported",
        figures=tuple(
            Figure(
                name=f"slope, {view.workload}",
                value=slope,
                unit="",
                entry_ids=tuple(view.points["entry_id"].sort()),
            )
            for view, slope in zip((first, second), slopes, strict=True)
        ),
        words=f"all systems: slope {slopes[0]:.2f} for {first.workload}, {slopes[1]:.2f} for "
        f"{second.workload}.",
    )


def _theil_sen_slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    run = x[:, None] - x[None, :]
    rise = y[:, None] - y[None, :]
    apart = run > 0
    return float(np.median(rise[apart] / run[apart])) if apart.any() else None


def common_sizes(entries_by_workload: Mapping[str, pl.DataFrame], views: Mapping[str, View]) -> Reading:
    """E of two workloads over the sizes that both have on the accelerator that both were seen on most."""
    first, second = views.values()
    sizes = first.best.join(second.best, on=("accelerator", "num_accelerators"), suffix="_second")
    if sizes.height <= 1:
        return no_evidence("needs two sizes of one accelerator that both workloads have.")
    ratios = (sizes["efficiency"] / sizes["efficiency_second"]).to_numpy()
    ratio = float(np.exp(np.mean(np.log(ratios[1:] / ratios[0]))))
    start = sizes["num_accelerators"][0]
    growth = f"{start} to {', '.join(str(size) for size in sizes['num_accelerators'][1:])}"
    own = families(entries_by_workload)
    ids = (*sizes["entry_id"], *sizes["entry_id_second"])
    by_family = tuple(
        Figure(
            name=f"E of {row['submitter']} {row['accelerator']}, {row['from_accelerators']} to "
            f"{row['to_accelerators']}, {row['workload']}",
            value=row["efficiency"],
            unit="",
            entry_ids=(row["from_id"], row["to_id"]),
        )
        for row in own.iter_rows(named=True)
    )
    return Reading(
        verdict="holds" if ratio > 1 + MARGIN else "reverses" if ratio < 1 - MARGIN else "not supported",
        figures=(
            Figure(
                name=f"E of {first.workload} / {second.workload}, {growth}",
                value=ratio,
                unit="",
                entry_ids=ids,
            ),
            *by_family,
        ),
        words=f"{first.about}, {growth} accelerators: {first.workload} keeps {ratio:.2f} of what "
        f"{second.workload} keeps. " + _families_words(own, first.workload, second.workload),
    )


def _families_words(own: pl.DataFrame, first: str, second: str) -> str:
    """One machine family after the other: a check that does not mix submitters."""
    words = []
    for family in own.partition_by("submitter", "accelerator", maintain_order=True):
        efficiency = dict(family.select("workload", "efficiency").iter_rows())
        row = family.row(0, named=True)
        words.append(
            f"{row['submitter']} from {row['from_accelerators']} to {row['to_accelerators']}: "
            f"{efficiency[first]:.3f} "
            f"against {efficiency[second]:.3f}"
        )
    return f"On one submitter's machines: {'; '.join(words)}." if words else ""

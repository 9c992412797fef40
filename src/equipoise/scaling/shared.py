"""Systems and machine families that appear in several workloads, compared across them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
import polars as pl

from equipoise.scaling.metrics import MEASURED


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSystems:
    """Systems with a score in every chosen workload, and machine families with the same sizes in every one.

    table: one row a system and workload: submitter, system, accelerator, num_accelerators, workload, score_s,
    relative_efficiency, like_for_like_efficiency, rank (1 = shortest time among the shared systems).
    families: one row a family and workload, as `families` returns.
    num_published: how many systems the study counts; None where it says nothing about this choice of
    workloads.
    """

    num_systems: int
    table: pl.DataFrame
    families: pl.DataFrame
    num_published: int | None
    words: str


def shared_systems(
    entries_by_workload: Mapping[str, pl.DataFrame], *, num_published: int | None = None
) -> SharedSystems:
    """The systems present in all of the workloads.

    entries_by_workload: slug -> the frame `with_metrics` returned for it.
    A system is a submitter and the name of its folder: names that carry the software differ between
    workloads.
    """
    names = ("submitter", "system")
    present = [entries.filter(MEASURED).select(names).unique() for entries in entries_by_workload.values()]
    in_all = reduce(lambda left, right: left.join(right, on=names, how="semi", nulls_equal=True), present)
    systems = (
        pl.concat(
            entries.filter(MEASURED)
            .join(in_all, on=names, how="semi", nulls_equal=True)
            .select(
                *names, "accelerator", "num_accelerators", pl.lit(workload).alias("workload"), "score_s",
                "relative_efficiency", "like_for_like_efficiency",
            )
            for workload, entries in entries_by_workload.items()
        )
        .with_columns(rank=pl.col("score_s").rank("min").over("workload").cast(pl.Int64))
        .sort(*names, "workload")
    )  # fmt: skip
    return SharedSystems(
        num_systems=in_all.height,
        table=systems,
        families=families(entries_by_workload),
        num_published=num_published,
        words=_words(systems, in_all.height, len(entries_by_workload), num_published),
    )


def families(entries_by_workload: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """How each machine family scales over the same range of sizes in every workload.

    A family is one submitter's systems of one accelerator. The range runs from the smallest to the largest
    size that the family has in all workloads; families without two such sizes are left out.
    Returns submitter, accelerator, from_accelerators, to_accelerators, workload, efficiency (best score at
    either end: speedup / growth in accelerators), from_id, to_id; most workload-independent comparison first:
    widest range.
    """
    family = ("submitter", "accelerator")
    sizes = (*family, "num_accelerators")
    best = {workload: _best_by_family(entries) for workload, entries in entries_by_workload.items()}
    common = reduce(lambda left, right: left.join(right.select(sizes), on=sizes, how="semi"), best.values())
    ranges = (
        common.group_by(family)
        .agg(
            from_accelerators=pl.col("num_accelerators").min(),
            to_accelerators=pl.col("num_accelerators").max(),
        )
        .filter(pl.col("from_accelerators") < pl.col("to_accelerators"))
    )
    rows = []
    for workload, frame in best.items():
        start = frame.rename(
            {"num_accelerators": "from_accelerators", "score_s": "_from_s", "entry_id": "from_id"}
        )
        end = frame.rename({"num_accelerators": "to_accelerators", "score_s": "_to_s", "entry_id": "to_id"})
        rows.append(
            ranges.join(start, on=(*family, "from_accelerators"))
            .join(end, on=(*family, "to_accelerators"))
            .with_columns(
                workload=pl.lit(workload),
                efficiency=pl.col("_from_s") * pl.col("from_accelerators")
                / (pl.col("_to_s") * pl.col("to_accelerators")),
            )
            .select(
                *family, "from_accelerators", "to_accelerators", "workload", "efficiency", "from_id", "to_id"
            )
        )  # fmt: skip
    growth = pl.col("to_accelerators") / pl.col("from_accelerators")
    return pl.concat(rows).sort(growth, *family, "workload", descending=[True, False, False, False])


def _best_by_family(entries: pl.DataFrame) -> pl.DataFrame:
    """The best entry of each family at each size."""
    size = ("submitter", "accelerator", "num_accelerators")
    return (
        entries.filter(MEASURED & pl.col("accelerator").is_not_null())
        .sort("score_s", "entry_id")
        .unique(size, keep="first", maintain_order=True)
        .select(*size, "score_s", "entry_id")
    )


def _words(systems: pl.DataFrame, num_systems: int, num_workloads: int, num_published: int | None) -> str:
    if num_workloads == 1:
        return "One workload was chosen: there is nothing to compare across."
    counted = f"{num_systems} systems have a score in all {num_workloads} workloads"
    if num_published is not None and num_published != num_systems:
        counted += f" (the study counts {num_published}, and does not list them)"
    if num_systems <= 1:
        return f"{counted}."
    order = systems.group_by("submitter", "system").agg(
        spread=pl.col("rank").max() - pl.col("rank").min(), first=(pl.col("rank") == 1).sum()
    )
    winner = order.sort("first", "submitter", "system", descending=[True, False, False]).row(0, named=True)
    moves = float(np.median(order["spread"].to_numpy()))
    return (
        f"{counted}; {winner['submitter']}/{winner['system']} is the fastest of them in {winner['first']} of "
        f"{num_workloads}; the median system changes its place by {moves:.3g} between its best and its worst "
        "workload."
    )

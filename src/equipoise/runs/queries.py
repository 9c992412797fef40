"""Which rows of the table `scores` count: the one home of "closed, scored, comparable". Reads no files."""

from typing import Final

import polars as pl

from equipoise.spec.mlperf import is_round, round_order

# Open entries may change the model and the target: they are listed, but never compared or called published.
DIVISION: Final = "closed"

# An official score, and accelerators to divide by (entries of CPUs alone count none).
SCORED: Final = (
    pl.col("score_s").is_finite()
    & (pl.col("score_s") > 0)
    & (pl.col("num_accelerators") > 0)
).fill_null(value=False)  # fmt: skip

_GROUP: Final = ("campaign", "workload", "accelerator")


def closed(scores: pl.DataFrame) -> pl.DataFrame:
    """The rows of the closed division, with and without a score.

    scores: a frame of the table `scores`.
    """
    return scores.filter(pl.col("division") == DIVISION)


def comparable(
    scores: pl.DataFrame, *, workload: str | None = None, accelerator: str | None = None
) -> pl.DataFrame:
    """The rows that can be compared: closed division, with an official score and a number of accelerators.

    scores: a frame of the table `scores`. workload, accelerator: names as it has them; any unless given.
    Returns the rows in their order.
    """
    rows = closed(scores).filter(SCORED)
    for column, wanted in (("workload", workload), ("accelerator", accelerator)):
        if wanted is not None:
            rows = rows.filter(pl.col(column) == wanted)
    return rows


def published_results(scores: pl.DataFrame, workload: str, accelerator: str) -> pl.DataFrame:
    """The comparable results of a workload on an accelerator: newest round first, in it the fastest first.

    scores: a frame of the table `scores`.
    Campaigns that are not MLPerf rounds are left out: their place in time is not known.
    """
    rows = comparable(scores, workload=workload, accelerator=accelerator)
    rounds = sorted(filter(is_round, rows["campaign"].drop_nulls().unique()), key=round_order, reverse=True)
    rows = rows.filter(pl.col("campaign").is_in(rounds))
    newest_first = pl.col("campaign").replace_strict(rounds, range(len(rounds)), return_dtype=pl.Int64)
    return rows.sort(newest_first, "score_s", "entry_id")


def best_per_size(scores: pl.DataFrame) -> pl.DataFrame:
    """The best comparable result of every round, workload and accelerator at every size, in that order.

    scores: a frame of the table `scores`. Rows without a known accelerator are left out. Applied to what it
    returned, it returns the same.
    """
    return (
        comparable(scores)
        .filter(pl.col("accelerator").is_not_null())
        .sort("score_s", "entry_id")
        .unique(subset=[*_GROUP, "num_accelerators"], keep="first", maintain_order=True)
        .sort(*_GROUP, "num_accelerators")
    )

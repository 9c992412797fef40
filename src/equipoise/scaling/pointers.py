"""Where to look next: the entry of a workload for absolute speed, for efficiency, and in between."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import polars as pl

from equipoise.scaling.metrics import MEASURED

Purpose: TypeAlias = Literal["speed", "efficiency", "between"]

RULE = (
    "speed: the shortest time; efficiency: the least accelerator-time (highest E'); between: of the entries "
    "that none beats in both, the one nearest to the best of both, each measured logarithmically from its "
    "best to the value at the other extreme"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """One configuration worth a look, for what purpose; `words` say why."""

    workload: str
    purpose: Purpose
    entry_id: str
    submitter: str
    system: str
    accelerator: str | None
    num_accelerators: int
    score_s: float
    relative_efficiency: float
    like_for_like_efficiency: float | None
    words: str


def pointers(entries: pl.DataFrame, workload: str) -> tuple[Pointer, ...]:
    """The entries to look at, fastest first; fewer than three when one serves several purposes.

    entries: a frame `with_metrics` returned, of one round, workload and division. Ties fall to fewer
    accelerators.
    """
    front = _front(entries)
    if front.is_empty():
        return ()
    fastest, frugal = front.row(0, named=True), front.row(-1, named=True)
    chosen: list[tuple[Purpose, dict[str, Any]]] = [("speed", fastest)]
    if front.height > 2:  # noqa: PLR2004 - an entry in between needs two extremes
        chosen.append(("between", _nearest_to_both(front)))
    if front.height > 1:
        chosen.append(("efficiency", frugal))
    return tuple(_pointer(purpose, row, workload, front=front) for purpose, row in chosen)


def _front(entries: pl.DataFrame) -> pl.DataFrame:
    """The entries that no other beats in both time and accelerator-time, fastest first."""
    return (
        entries.filter(MEASURED)
        .with_columns(_accelerator_s=pl.col("num_accelerators") * pl.col("score_s"))
        .sort("score_s", "_accelerator_s", "entry_id")
        .filter(
            (pl.col("_accelerator_s") < pl.col("_accelerator_s").cum_min().shift(1)).fill_null(value=True)
        )
    )


def _nearest_to_both(front: pl.DataFrame) -> dict[str, Any]:
    """The entry of the front, its ends left out, nearest to the corner of best time and accelerator-time."""

    def lost(column: str) -> pl.Expr:
        value = pl.col(column).log()
        return (value - value.min()) / (value.max() - value.min())

    distance = (lost("score_s") ** 2 + lost("_accelerator_s") ** 2).alias("_distance")
    inner = front.with_columns(distance).slice(1, front.height - 2)
    return inner.sort("_distance", "num_accelerators").row(0, named=True)


def _pointer(purpose: Purpose, row: dict[str, Any], workload: str, *, front: pl.DataFrame) -> Pointer:
    fastest = front.row(0, named=True)
    words = "The shortest time of all" + (", and the least accelerator-time." if front.height == 1 else ".")
    if purpose != "speed":
        slower = row["score_s"] / fastest["score_s"]
        cheaper = row["_accelerator_s"] / fastest["_accelerator_s"]
        least = ", the least of all" if purpose == "efficiency" else ""
        words = f"{slower:.3g} times the shortest time for {cheaper:.2g} of its accelerator-time{least}."
    return Pointer(
        workload=workload,
        purpose=purpose,
        entry_id=row["entry_id"],
        submitter=row["submitter"],
        system=row["system"],
        accelerator=row["accelerator"],
        num_accelerators=row["num_accelerators"],
        score_s=row["score_s"],
        relative_efficiency=row["relative_efficiency"],
        like_for_like_efficiency=row["like_for_like_efficiency"],
        words=words,
    )

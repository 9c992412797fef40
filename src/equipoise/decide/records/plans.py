"""Plans of trainings that were published: planned times against published ones.

`python -m equipoise.decide.records.plans` plans those of the recent rounds and writes data/plans.json.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import polars as pl
from threadpoolctl import threadpool_limits

from equipoise.decide.records.published_training import (
    kind_of,
    published_problem,
    recent_rounds,
    write_record,
)
from equipoise.decide.strategies.plan_record import NAME, Planned, by_workload, records
from equipoise.errors import InputError
from equipoise.runs import embedded
from equipoise.runs.queries import comparable
from equipoise.spec.catalogue import shipped


def planned(scores: pl.DataFrame) -> Iterator[Planned]:
    """The best published training of each round, workload, accelerator and size, with its plan.

    scores: the table `scores`.
    """
    rows = comparable(scores).filter(
        pl.col("global_batch_samples").is_not_null(), pl.col("accelerator").is_not_null()
    )
    rows = rows.filter(pl.col("campaign").is_in(recent_rounds(rows["campaign"].unique())))
    keys = ["campaign", "workload", "accelerator", "num_accelerators"]
    for row in rows.sort("score_s").unique(keys, keep="first").sort(keys).iter_rows(named=True):
        yield Planned(
            entry=row["entry_id"],
            workload=row["workload"],
            kind=kind_of(row["workload"]),
            published_s=row["score_s"],
            planned_s=_planned_s(row, scores),
            group=(row["campaign"], row["workload"], row["accelerator"]),
            num_accelerators=row["num_accelerators"],
        )


def _planned_s(row: dict[str, Any], scores: pl.DataFrame) -> float | None:
    """The planned working time of one published training, at its batch; None where there is no plan.

    Assumes published runs were not interrupted: submitters leave out those that were.
    """
    try:
        posed = published_problem(
            row["workload"],
            row["accelerator"],
            scores,
            global_batch_samples=int(row["global_batch_samples"]),
            precision=_precision(row),
        )
    except InputError:
        return None
    if posed.training.budget.samples is None:
        return None
    best = posed.searched(row["num_accelerators"]).best
    return best[0].worth[0] if best else None


def _precision(row: dict[str, Any]) -> tuple[str, ...]:
    """As submitters do: fp8 for transformers where the chip has it; else what a plan takes unless told."""
    has_fp8 = shipped().accelerator(row["accelerator"]).peak_fp8_flop_per_s is not None
    return ("fp8",) if has_fp8 and kind_of(row["workload"]) == "transformer" else ()


def main() -> int:
    """Plan every training and write the file beside the embedded tables."""
    with threadpool_limits(limits=1):
        found = tuple(planned(embedded.load().scores))
    write_record(
        NAME,
        {
            "records": [asdict(each) for each in records(found)],
            "workloads": [asdict(each) for each in by_workload(found)],
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

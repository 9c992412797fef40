"""Plans of trainings that were published: what the plan says beside what was measured.

`python -m equipoise.advice.plans.replanned` plans every training published lately and writes data/plans.json.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import polars as pl
from threadpoolctl import threadpool_limits

from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.plan_record import NAME, ModelKind, Planned, by_workload, records
from equipoise.advice.plans.planned import Question
from equipoise.advice.plans.setting import setting
from equipoise.errors import InputError
from equipoise.perfmodel.goodput import goodput_fraction
from equipoise.perfmodel.space import Value
from equipoise.runs import embedded
from equipoise.scaling.metrics import COMPARABLE
from equipoise.scaling.points import round_key
from equipoise.spec.hardware import accelerator
from equipoise.spec.workload import workload
from equipoise.units import significant

_NUM_DIGITS = 4
# Rounds from here on: software and hardware that are still in use.
_FIRST_ROUND = "v3.0"


def kind_of(name: str) -> ModelKind:
    """What kind of model a workload of the catalogue is."""
    return "other" if workload(name).transformer is None else "transformer"


def planned(scores: pl.DataFrame) -> Iterator[Planned]:
    """The best published training of each round, workload, accelerator and size, beside what a plan says.

    scores: the table `scores`.
    """
    rows = scores.filter(
        COMPARABLE
        & (pl.col("division") == "closed")
        & pl.col("global_batch_samples").is_not_null()
        & pl.col("accelerator").is_not_null()
    ).filter(
        pl.col("campaign").map_elements(
            lambda name: round_key(name) >= round_key(_FIRST_ROUND), return_dtype=pl.Boolean
        )
    )
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
    """What a plan says of the time of one published training."""
    size = row["num_accelerators"]
    try:
        question = Question(
            workload=row["workload"],
            accelerator=row["accelerator"],
            fewest=size,
            most=size,
            global_batch_samples=int(row["global_batch_samples"]),
            choices=_precisions(row),
            num_best=1,
        )
        best = setting(question, Terms(), scores).searched(size).best
    except InputError:
        return None
    return best[0].worth[0] / float(goodput_fraction(size)) if best else None


def _precisions(row: dict[str, Any]) -> dict[str, tuple[Value, ...]]:
    """As submitters do: fp8 for transformers where the chip has it; else what a plan takes by itself."""
    has_fp8 = accelerator(row["accelerator"]).peak_fp8_flop_per_s is not None
    return {"precision": ("fp8",)} if has_fp8 and kind_of(row["workload"]) == "transformer" else {}


def main() -> int:
    """Plan every training and write the file beside the embedded tables."""
    with threadpool_limits(limits=1):
        found = tuple(planned(embedded.load().scores))
    document = {
        "dataset": embedded.version(),
        "records": [asdict(each) for each in records(found)],
        "workloads": [asdict(each) for each in by_workload(found)],
    }
    path = Path(str(files("equipoise") / "data" / NAME))
    encoded = orjson.dumps(
        significant(document, _NUM_DIGITS), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
    path.write_bytes(encoded)
    return 0


if __name__ == "__main__":
    sys.exit(main())

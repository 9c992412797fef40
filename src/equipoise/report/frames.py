"""Candidates as a table: a row each, in SI units, with the ends of every interval in columns of their own."""

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from equipoise.decide.candidate import Candidate
from equipoise.report.format import usable

_AMOUNTS: Final = ("step_s", "time_s", "goodput", "usd", "energy_j", "carbon_kg", "speedup")
CANDIDATE_COLUMNS: Final[dict[str, Any]] = {
    "id": pl.String,
    "accelerator": pl.String,
    "chip": pl.String,
    "num_accelerators": pl.Int64,
    "num_nodes": pl.Int64,
    "terms": pl.String,
    "strategy": pl.String,
    "global_batch_samples": pl.Int64,
    **{f"{name}{end}": pl.Float64 for name in _AMOUNTS for end in ("", "_low", "_high")},
    "accelerator_hours": pl.Float64,
    "mfu": pl.Float64,
    "tokens_per_s_per_accelerator": pl.Float64,
    "memory_bytes": pl.Float64,
    "published_s": pl.Float64,
    "feasible": pl.Boolean,
    "recommended": pl.Boolean,
    "grade": pl.String,
}


def candidate_frame(candidates: Sequence[Candidate], *, recommended: Candidate | None = None) -> pl.DataFrame:
    """A row per candidate, with the columns of CANDIDATE_COLUMNS; null where a value is not known.

    accelerator: the accelerator or system asked for, as in `id`; chip: its chip. published_s: the fastest
    result that was submitted of the same system and size.
    """
    rows = [_row(each, is_best=recommended is not None and each.id == recommended.id) for each in candidates]
    return pl.DataFrame(rows, schema=CANDIDATE_COLUMNS, orient="row")


def _row(each: Candidate, *, is_best: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: getattr(each, name)
        for name in CANDIDATE_COLUMNS
        if name in {"id", "accelerator_hours", "feasible"} or name in Candidate.__dataclass_fields__
    }
    for name in _AMOUNTS:
        amount = usable(getattr(each, name))
        row[name] = None if amount is None else amount.value
        row[f"{name}_low"] = None if amount is None else amount.low
        row[f"{name}_high"] = None if amount is None else amount.high
    row["accelerator"], row["chip"] = each.system, each.accelerator
    row["strategy"] = each.strategy_text
    row["memory_bytes"] = None if each.memory is None else each.memory.needed_bytes
    row["published_s"] = min((result.score_s for result in each.published), default=None)
    row["recommended"] = is_best
    return row

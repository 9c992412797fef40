"""Every entry with its metrics: what `equipoise scores` lists."""

import polars as pl

from equipoise.errors import UsageError
from equipoise.runs.chosen import Folders, tables
from equipoise.scaling.metrics import SCORE_COLUMNS, with_metrics
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.rounds import round_name, round_order
from equipoise.study.subject import Spelling, named, workload_spelling


def scores(
    *,
    round: str | None = None,  # noqa: A002 - what users call it
    workload: str | None = None,
    accelerator: str | None = None,
    submitter: str | None = None,
    division: str | None = None,
    sort: str | None = None,
    data: Folders | None = None,
    also: Folders = (),
    catalogue: Catalogue | None = None,
) -> pl.DataFrame:
    """Every entry, scored or not, with speedup, E' and like-for-like E: the columns of `SCORE_COLUMNS`.

    Filters take the names of data, in any case, or their aliases (`4.1`, `NVIDIA H100-SXM5-80GB`); reference
    and baseline are found before filtering. sort: a column, `-column` for descending; else by round,
    workload, accelerators and score. catalogue: what names mean; the shipped one unless given.
    Raises SpecError for a name that the data do not hold, naming those they do.
    """
    known = catalogue or shipped()
    rows = with_metrics(tables(data=data, also=also).scores).rename({"campaign": "round"})
    rows = _ordered(rows.sort("num_accelerators", "score_s", "entry_id", nulls_last=True), sort)
    filters: tuple[tuple[str, str | None, Spelling], ...] = (
        ("round", round, round_name),
        ("workload", workload, workload_spelling(round, known)),
        ("accelerator", accelerator, lambda name: known.accelerator(name).slug),
        ("submitter", submitter, str),
        ("division", division, str.lower),
    )
    held = {column: rows[column] for column, wanted, _ in filters if wanted is not None}
    for column, wanted, spelt in filters:
        if wanted is not None:
            value = named(wanted, held[column], spelt)
            rows = rows.filter(pl.col(column).str.to_lowercase() == value.lower())
    return rows.select(SCORE_COLUMNS)


def _ordered(rows: pl.DataFrame, sort: str | None) -> pl.DataFrame:
    if sort is None:
        names = sorted(rows["round"].drop_nulls().unique(), key=round_order)
        position = pl.col("round").replace_strict(
            names, range(len(names)), default=None, return_dtype=pl.Int64
        )
        return rows.sort(position, "workload", nulls_last=True, maintain_order=True)
    column = sort.removeprefix("-")
    if column not in SCORE_COLUMNS:
        raise UsageError(f"cannot sort by {column!r}; expected one of {', '.join(SCORE_COLUMNS)}")
    return rows.sort(column, descending=sort.startswith("-"), nulls_last=True, maintain_order=True)

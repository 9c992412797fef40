"""Claims of a published study, tested on the results of MLPerf rounds: tables in, findings out.

This module returns the entries of the rounds with their metrics, and resolves the names that users give.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

import polars as pl

from equipoise.errors import SpecError, UsageError, hint
from equipoise.files import Folders
from equipoise.runs.embedded import score_table
from equipoise.scaling.metrics import SCORE_COLUMNS, with_metrics
from equipoise.spec import close_names
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.mlperf import round_name, round_order

# Maps a name that a user wrote to its spelling in the catalogue.
Spelling: TypeAlias = Callable[[str], str]

# An example value of each field, for error messages.
_EXAMPLES = {
    "round": "v4.1",
    "workload": "bert",
    "accelerator": "h100-sxm5-80gb",
    "submitter": "NVIDIA",
    "division": "closed",
    "sort": "-num_accelerators",
}


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

    Filters accept names in the data, in any case, or their aliases (`4.1`, `NVIDIA H100-SXM5-80GB`).
    Reference and baseline are found before filtering. sort: a column, `-column` for descending order; by
    default round, workload, accelerators and score. catalogue: for resolving names; by default the shipped
    one.
    Raises SpecError for a name that is not in the remaining entries, listing the names that are; UsageError
    for a value that is not text.
    """
    names = {"round": round, "workload": workload, "accelerator": accelerator, "submitter": submitter}
    for name, wanted in {**names, "division": division, "sort": sort}.items():
        if wanted is not None and not isinstance(wanted, str):
            raise UsageError(f"scores: {name} is {wanted!r}; expected text, as {_EXAMPLES[name]!r}")
    known = catalogue or shipped()
    rows = with_metrics(score_table(data=data, also=also)).rename({"campaign": "round"})
    rows = _ordered(rows.sort("num_accelerators", "score_s", "entry_id", nulls_last=True), sort)
    spelt = spellings(round, known)
    stated: list[str] = []
    for column, wanted in {**names, "division": division}.items():
        if wanted is not None:
            where = f"the entries of {', '.join(stated)}" if stated else "the data"
            value = named(wanted, rows[column], spelt[column], where=where)
            rows = rows.filter(pl.col(column).str.to_lowercase() == value.lower())
            stated.append(value)
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


_MOST_NEAR = 5


def named(wanted: str, held: pl.Series, spelt: Spelling, *, where: str = "the data") -> str:
    """The value in the data that a user's word matches: in any case, or by the catalogue's spelling.

    where: description of the origin of `held`, for the error message.
    """
    values = held.drop_nulls().unique().sort().to_list()
    if wanted in values:
        return wanted
    try:
        value = spelt(wanted)
    except SpecError:
        value = wanted
    for each in (value, *values):
        if each in values and each.lower() == value.lower():
            return str(each)
    begun = [each for each in values if each.startswith(wanted.lower())] if wanted else []
    near = (begun or close_names(wanted, values))[:_MOST_NEAR]
    listed = sorted(values, key=round_order) if held.name == "round" else values
    meant = hint(near, f"they hold {', '.join(listed)}")
    raise SpecError(f"{held.name} {wanted!r} is not in {where}; {meant}")


def spellings(round_: str | None, catalogue: Catalogue | None = None) -> Mapping[str, Spelling]:
    """By kind of name, how it is spelt in the data of a round: `ssd` was a different model before v2.0."""
    known = catalogue or shipped()
    number = re.fullmatch(r"v(\d+(?:\.\d+)?)", round_name(round_)) if round_ else None
    return {
        "round": round_name,
        "workload": lambda name: known.workload_slug(name, float(number[1]) if number else None) or name,
        "accelerator": lambda name: known.accelerator(name).slug,
        "submitter": str,
        "division": str.lower,
    }

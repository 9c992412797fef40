"""The published training steps that ship as one table: loading it, and its rows as a reader sees them.

The first columns are what was read out of a row, the last ones the row as it was published: written as CSV,
the table is a file that `validate` takes. `make profiles` writes it.
"""

from functools import cache
from importlib.resources import files
from typing import Final

import polars as pl

from equipoise.calibration.published import (
    FILE_COLUMNS,
    PublishedRow,
    row_of_cells,
)
from equipoise.errors import DataError
from equipoise.runs.readers.cells import TextRow
from equipoise.runs.store import PUBLISHED_STEPS, read_bytes
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.transformer import Transformer

FILE_NAME: Final = "published_steps.parquet"

# Cells of a row besides those as published, so that a split can leave out whole values of them.
_ALSO_CELLS: Final = ("repository", "trust", "software", "accelerator", "model_kind", "date")


@cache
def published_steps() -> pl.DataFrame:
    """The table that ships. Raises DataError where its file is missing or not what its maker writes."""
    path = files("equipoise") / "data" / FILE_NAME
    try:
        data = path.read_bytes()
    except OSError as err:
        raise DataError(f"{path}: {err.strerror}; `make profiles` writes it") from err
    return read_bytes(data, PUBLISHED_STEPS, FILE_NAME)


def rows_of_table(frame: pl.DataFrame, catalogue: Catalogue | None = None) -> tuple[PublishedRow, ...]:
    """Rows of the table as `read_rows` would read them from their file; `file` is their repository."""
    known = catalogue or shipped()
    names = (*FILE_COLUMNS, *_ALSO_CELLS)
    found = []
    for place, cells in enumerate(frame.select(names).iter_rows(named=True), start=1):
        written = {name: cells[name] or "" for name in names}
        row = TextRow(place=f"published steps: row {place}", cells=written)
        found.append(row_of_cells(row, written["repository"], place, known))
    return tuple(found)


def model_kind_of(transformer: Transformer | None) -> str:
    """What kind of model it is: `dense`, `experts`, or `other` where it is no transformer."""
    if transformer is None:
        return "other"
    return "experts" if transformer.num_expert_blocks > 0 else "dense"

"""The published training steps that ship as one table: its columns, its rows as a reader sees them, loading.

The first columns are what was read out of a row, the last ones the row as it was published: written as CSV,
the table is a file that `validate` takes. `make profiles` writes it.
"""

from functools import cache
from importlib.resources import files
from typing import Final

import polars as pl

from equipoise.calibration.published.rows import (
    FILE_COLUMNS,
    PublishedRow,
    row_of_cells,
)
from equipoise.errors import DataError
from equipoise.runs.readers.cells import TextRow
from equipoise.runs.store import ColumnSchema, TableSchema, read_bytes
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.transformer import Transformer

FILE_NAME: Final = "published_steps.parquet"
# What the columns of a file of measurements hold, in their order.
_MEANINGS: Final = (
    *("the model or workload", "parameters, in billions", "layers", "hidden size", "attention heads"),
    *("accelerators, nodes and network", "accelerators", "framework and parallelism, in words"),
    *("ranks of tensor parallelism", "stages of pipeline parallelism", "ranks of data parallelism"),
    *("ranks of context parallelism", "ranks of expert parallelism", "numeric format"),
    *("samples per step of all ranks", "samples a data-parallel rank takes at a time", "tokens per sample"),
    *("activations computed again", "the figure", "the unit of the figure"),
    "memory of the fullest accelerator, in GiB",
    *("what another tool predicts, in the unit of the figure", "which tool, at which commit"),
    "repository at a commit, file and line; or paper and table",
)
AS_PUBLISHED: Final = tuple(
    ColumnSchema(name=name, kind="str", meaning=f"as published: {meaning}")
    for name, meaning in zip(FILE_COLUMNS, _MEANINGS, strict=True)
)
_AS_READ: Final = (
    ColumnSchema(name="row_id", kind="str", meaning="ten digits of a hash over the row as published"),
    ColumnSchema(
        name="execution",
        kind="str",
        meaning="row_id of the row that counts for this execution: several rows state one in several units",
    ),
    ColumnSchema(name="figure", kind="str", meaning="what is measured: `step`, `throughput` or `efficiency`"),
    ColumnSchema(
        name="repository", kind="str", meaning="the repository or paper: what a split leaves out whole"
    ),
    ColumnSchema(name="url", kind="str", meaning="where the figure can be read"),
    ColumnSchema(
        name="date",
        kind="str",
        meaning="year, or year and month, as far as the row states it: of the software or the paper",
    ),
    ColumnSchema(
        name="trust",
        kind="str",
        meaning="`stated`: read at the url; `second_hand`: as another page quotes it; `noisy`: its source "
        "states a large spread, or an unnamed power limit; `recalled`: written down from memory",
    ),
    ColumnSchema(name="software", kind="str", meaning="framework and its kind, a name of spec/strategy.py"),
    ColumnSchema(name="model", kind="str", meaning="slug of the catalogue, where it knows the model"),
    ColumnSchema(name="model_kind", kind="str", meaning="`dense`, `experts` or `other`: no transformer"),
    ColumnSchema(name="params", kind="int", meaning="parameters of the model"),
    ColumnSchema(name="active_params", kind="int", meaning="parameters that one token passes"),
    ColumnSchema(name="accelerator", kind="str", meaning="slug of the accelerator"),
    ColumnSchema(name="num_accelerators", kind="int", meaning="accelerators of the training"),
    ColumnSchema(name="sequence_tokens", kind="int", meaning="tokens per sample"),
    ColumnSchema(name="global_batch_samples", kind="int", meaning="samples per step of all ranks"),
    ColumnSchema(
        name="microbatch_samples", kind="int", meaning="samples a data-parallel rank takes at a time"
    ),
    ColumnSchema(name="zero_stage", kind="int", meaning="ZeRO stage; 3 is FSDP"),
    ColumnSchema(name="dtype", kind="str", meaning="precision of the matrix products"),
    ColumnSchema(name="trained", kind="str", meaning="`full`: all weights; `lora`, `qlora`: adapters alone"),
    ColumnSchema(name="strategy", kind="str", meaning="how the step was parallelised, in its text form"),
    ColumnSchema(name="step_s", kind="float", meaning="time of one step"),
    ColumnSchema(
        name="tokens_per_s_per_accelerator",
        kind="float",
        meaning="global batch x tokens / step_s / accelerators",
    ),
    ColumnSchema(
        name="mfu",
        kind="float",
        meaning="FLOP of the model over the dense peak in dtype, every query with every key (PaLM, app. B); "
        "null for adapters, and above 1, where the FLOP are not the catalogue's",
    ),
    ColumnSchema(name="memory_bytes", kind="float", meaning="memory of the fullest accelerator"),
    ColumnSchema(name="assumed", kind="str", meaning="what was assumed where the row is silent"),
    ColumnSchema(name="reason", kind="str", meaning="why the performance model does not predict the row"),
)
PUBLISHED_STEPS: Final = TableSchema(
    name="published_steps",
    row="one published figure of a training step",
    columns=(*_AS_READ, *AS_PUBLISHED),
    key=("row_id",),
)
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

"""The published training steps that ship as one table: its columns, its rows as a reader sees them, loading.

The first columns are what was read out of a row, the last ones the row as it was published: written as CSV,
the table is a file that `validate` takes. `make profiles` writes it.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Final

import polars as pl

from equipoise.calibration.published import (
    FILE_COLUMNS,
    PublishedRow,
    nodes_of,
    row_of_cells,
    step_conversion,
)
from equipoise.calibration.published.executions import digest_of, software_of, source_of
from equipoise.calibration.published.quantities import Quantity, number
from equipoise.calibration.published.set_ups import known_workload
from equipoise.errors import DataError
from equipoise.runs.readers.cells import TextRow
from equipoise.runs.store import ColumnSchema, TableSchema, read_bytes
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.strategy import DTYPE_OF
from equipoise.spec.transformer import Transformer
from equipoise.units import SI_PREFIXES

FILE_NAME: Final = "published_steps.parquet"
_MOST_PARAMS_B = 1e6

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

_RECALLED = re.compile(r"\bfrom memory\b|\brecalled\b", re.IGNORECASE)
_NOISY = re.compile(r"\+/-\s*\d+ ?%", re.IGNORECASE)
_LIMITED = re.compile(r"\bpower limited\b", re.IGNORECASE)
_SECOND_HAND = re.compile(r"\s(?:via|quoting|as quoted)\s|\bread from\b", re.IGNORECASE)
_GITHUB = re.compile(
    r"github:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<commit>[0-9a-f]{7,40}))?(?::(?P<path>\S+))?"
)
_ARXIV = re.compile(r"arxiv:(?P<id>(?P<year>\d{2})(?P<month>\d{2})\.\d{4,5})", re.IGNORECASE)
# Of several releases that a row names the first counts.
_DATES = (
    re.compile(r"\b(?:release[ =]v?|ngc pytorch )(?P<year>\d{2})\.(?P<month>\d{2})\b", re.IGNORECASE),
    re.compile(r"_(?P<century>20)(?P<year>\d{2})(?P<month>\d{2})_"),
    _ARXIV,
    re.compile(r"\bMegatron-Core (?P<century>20)(?P<year>\d{2})\b"),
)
_MONTHS = range(1, 13)


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


def table_row(row: PublishedRow, *, execution: str, reason: str | None) -> dict[str, object]:
    """A row of the table. execution, reason: as its columns mean them."""
    strategy, model, software = row.strategy, row.model, software_of(row)
    nodes = nodes_of(row) if row.num_accelerators else None
    known = known_workload(row.workload, row.catalogue) if model is None else model.known
    transformer = None if model is None else model.transformer
    step_s = row.seconds if row.kind == "step" else None
    source = row.cells.get("source", "")
    params = _params(row)
    return {
        "row_id": digest_of(row),
        "execution": execution,
        "figure": row.kind or "throughput",
        "repository": source_of(row),
        "url": url_of(source),
        "date": date_of(row),
        "trust": trust_of(source, row.hardware),
        "software": None if software is None else software.name,
        "model": None if known is None else known.slug,
        "model_kind": None if model is None else model_kind_of(transformer),
        "params": params,
        "active_params": params if transformer is None else transformer.active_params,
        "accelerator": None if nodes is None else nodes.accelerator.slug,
        "num_accelerators": row.num_accelerators or None,
        "sequence_tokens": None if model is None else model.sequence,
        "global_batch_samples": None if strategy is None else strategy.global_batch_samples,
        "microbatch_samples": None if strategy is None else strategy.microbatch_samples,
        "zero_stage": None if strategy is None else strategy.zero_stage,
        "dtype": None if strategy is None else strategy.precision,
        "trained": None if strategy is None else strategy.trained,
        "strategy": None if strategy is None else strategy.text(),
        "step_s": step_s,
        "tokens_per_s_per_accelerator": _tokens_per_s(row, step_s),
        "mfu": _mfu(row, step_s),
        "memory_bytes": row.memory_bytes,
        "assumed": "; ".join(row.notes) or None,
        "reason": reason,
        **{name: row.cells.get(name, "").strip() or None for name in FILE_COLUMNS},
    }


def model_kind_of(transformer: Transformer | None) -> str:
    """What kind of model it is: `dense`, `experts`, or `other` where it is no transformer."""
    if transformer is None:
        return "other"
    return "experts" if transformer.num_expert_blocks > 0 else "dense"


def _params(row: PublishedRow) -> int | None:
    model = row.model
    if model is not None and model.transformer is not None:
        return model.transformer.params
    if model is not None and model.known is not None and model.known.params is not None:
        return round(model.known.params)
    try:
        billions = number(TextRow(place="", cells=row.cells), "params_b", most=_MOST_PARAMS_B)
    except DataError:
        return None
    return None if billions is None else round(billions * SI_PREFIXES["G"])


def _tokens_per_s(row: PublishedRow, step_s: float | None) -> float | None:
    if step_s is None or row.strategy is None or row.model is None or row.model.sequence is None:
        return None
    if row.model.transformer is None:
        return None
    tokens = row.strategy.global_batch_samples * row.model.sequence
    return tokens / step_s / row.num_accelerators


_MFU = Quantity(kind="utilisation", per_accelerator=True, counted="model")


def _mfu(row: PublishedRow, step_s: float | None) -> float | None:
    nodes = nodes_of(row)
    if step_s is None or nodes is None or row.strategy is None or row.model is None:
        return None
    if row.strategy.trained != "full":  # frozen weights have no gradients: the convention does not fit
        return None
    peak = nodes.accelerator.peak_flop_per_s(DTYPE_OF[row.strategy.precision])
    if peak is None:
        return None
    try:
        share = step_conversion(_MFU, row.strategy, row.model, peak_flop_per_s=peak).figure(step_s)
    except DataError:
        return None
    return share if share <= 1.0 else None


def url_of(source: str) -> str | None:
    """Where a source can be read; None where it names no page.

    >>> url_of("github:pytorch/ao@36027d82d:workflows/training.md (median tokens/s)")
    'https://github.com/pytorch/ao/blob/36027d82d/workflows/training.md'
    >>> url_of("arXiv:2205.05198 Table 5 via github:calculon-ai/calculon@caa4b11:x.py")
    'https://arxiv.org/abs/2205.05198'
    """
    text = source.strip()
    paper = _ARXIV.match(text)
    if paper is not None:
        return f"https://arxiv.org/abs/{paper['id']}"
    if text.startswith("https://"):
        return text.split()[0]
    found = _GITHUB.match(text)
    if found is None:
        return None
    page = f"https://github.com/{found['repository']}"
    if found["path"] is None:
        return page
    # What follows `#` is a line where it looks like one, else words.
    path, _, line = found["path"].partition("#")
    anchor = f"#{line}" if re.fullmatch(r"L\d+", line) else ""
    return f"{page}/blob/{found['commit'] or 'HEAD'}/{path}{anchor}"


def trust_of(source: str, hardware: str = "") -> str:
    """How far a figure may be trusted to be what its source measured, by what the row says of it.

    >>> trust_of("arXiv:2407.21783 Table 4 (from memory of the paper)")
    'recalled'
    """
    if _RECALLED.search(source):
        return "recalled"
    if _NOISY.search(source) or _LIMITED.search(hardware):
        return "noisy"
    return "second_hand" if _SECOND_HAND.search(source) else "stated"


def date_of(row: PublishedRow) -> str | None:
    """Year, or year and month, that a row states of its software or paper; None where it states none."""
    text = f"{row.cells.get('parallel_config', '')} {row.cells.get('source', '')}"
    for pattern in _DATES:
        match = pattern.search(text)
        if match is None:
            continue
        month = match.groupdict().get("month")
        year = f"20{match['year']}"
        return f"{year}-{month}" if month is not None and int(month) in _MONTHS else year
    return None

"""Makes the table of published training steps from files of measurements.

Predictions are not in the table; they are computed with the shipped calibrations.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from written import DATA

from equipoise.calibration.published import (
    FILE_COLUMNS,
    FILE_NAME,
    PublishedRow,
    model_kind_of,
    nodes_of,
    read_rows,
    step_conversion,
)
from equipoise.calibration.published.executions import chosen, digest_of, software_of, with_executions
from equipoise.calibration.published.models import known_workload
from equipoise.calibration.published.quantities import Quantity, number
from equipoise.calibration.step_rows import refusal
from equipoise.errors import DataError
from equipoise.runs.readers.cells import TextRow, rows_of
from equipoise.runs.store import PUBLISHED_STEPS, SHIPPED_ZSTD_LEVEL, polars_schema, write_table
from equipoise.spec.strategy import DTYPE_OF
from equipoise.units import SI_PREFIXES

_TRAINING = ("step", "throughput", "efficiency", None)
_MOST_PARAMS_B = 1e6

_RECALLED = re.compile(r"\bfrom memory\b|\brecalled\b", re.IGNORECASE)
_NOISY = re.compile(r"\+/-\s*\d+ ?%", re.IGNORECASE)
_LIMITED = re.compile(r"\bpower limited\b", re.IGNORECASE)
_SECOND_HAND = re.compile(r"\s(?:via|quoting|as quoted)\s|\bread from\b", re.IGNORECASE)
_GITHUB = re.compile(
    r"github:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<commit>[0-9a-f]{7,40}))?(?::(?P<path>\S+))?"
)
_ARXIV = re.compile(r"arxiv:(?P<id>(?P<year>\d{2})(?P<month>\d{2})\.\d{4,5})", re.IGNORECASE)
# If a row names several releases, the first counts.
_DATES = (
    re.compile(r"\b(?:release[ =]v?|ngc pytorch )(?P<year>\d{2})\.(?P<month>\d{2})\b", re.IGNORECASE),
    re.compile(r"_(?P<century>20)(?P<year>\d{2})(?P<month>\d{2})_"),
    _ARXIV,
    re.compile(r"\bMegatron-Core (?P<century>20)(?P<year>\d{2})\b"),
)
_MONTHS = range(1, 13)


# Measurements collected for this project; each row states its source.
COLLECTED: tuple[Path, ...] = tuple(sorted(Path(__file__).with_name("measured").glob("*.csv")))


def steps_document(directory: Path, folder: Path | None = None) -> dict[str, Any]:
    """Write the table from the measurements in a directory and in COLLECTED, and return counts of its rows.

    folder: of the table; by default the package's data.
    """
    paths = [*sorted(directory.glob("*.csv")), *COLLECTED]
    # Files of whole trainings have columns of their own.
    of_steps = [path for path in paths if "measured" in rows_of(path)[0]]
    rows = with_executions(read_rows(of_steps))
    frame, rejected = steps_table(rows)
    for path in set(paths) - set(of_steps):
        rejected["a whole training, not a step"] += sum(1 for _ in rows_of(path)[1])
    path = (folder or DATA) / FILE_NAME
    write_table(frame, path, PUBLISHED_STEPS, zstd_level=SHIPPED_ZSTD_LEVEL)
    return {
        "num_rows": frame.height,
        "num_executions": frame["execution"].n_unique(),
        "num_predicted": int(frame["reason"].is_null().sum()),
        "repositories": dict(sorted(Counter(frame["repository"].to_list()).items())),
        "rejected": dict(sorted(rejected.items())),
        "not_predicted": dict(Counter(frame["reason"].drop_nulls().to_list()).most_common()),
    }


def steps_table(rows: Sequence[PublishedRow]) -> tuple[pl.DataFrame, Counter[str]]:
    """The table of rows from `with_executions`, and the number of rejected rows by reason."""
    rejected: Counter[str] = Counter()
    counted = {row.execution: digest_of(row) for row in chosen(rows)}
    found: dict[str, dict[str, object]] = {}
    for row in rows:
        name = digest_of(row)
        if row.kind not in _TRAINING or (row.kind is None and "busbw" in row.unit):
            rejected[f"a {row.kind or 'collective'}, not a training step"] += 1
        elif name in found:
            rejected["a copy of another row"] += 1
        else:
            found[name] = table_row(row, execution=counted.get(row.execution, name), reason=refusal(row))
    return pl.DataFrame([*found.values()], schema=polars_schema(PUBLISHED_STEPS)), rejected


def table_row(row: PublishedRow, *, execution: str, reason: str | None) -> dict[str, object]:
    """A row of the table. execution, reason: values of these columns."""
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
        "memory_counted": row.memory_counted,
        "assumed": "; ".join(row.notes) or None,
        "reason": reason,
        **{name: row.cells.get(name, "").strip() or None for name in FILE_COLUMNS},
    }


def source_of(row: PublishedRow) -> str:
    """The repository, paper or site of a row: its source without commit, file or page.

    >>> from types import SimpleNamespace
    >>> source_of(SimpleNamespace(cells={"source": "github:pytorch/ao@36027d82d:training/README.md"}))
    'github:pytorch/ao'
    >>> source_of(SimpleNamespace(cells={"source": "arXiv:2205.05198 Table 5 via github"}))
    'arxiv:2205.05198'
    >>> source_of(SimpleNamespace(cells={"source": "https://www.intel.com/gaudi/training.html 1.16"}))
    'https://intel.com'
    """
    text = row.cells.get("source", "").strip()
    text = re.sub(r"^https://github\.com/([^/\s]+/[^/\s]+)(?:/\S*)?", r"github:\1", text)
    text = re.sub(r"^(https://)(?:www\.)?([^/\s]+)(?:/\S*)?", r"\1\2", text)
    match = re.match(r"(?:https?://)?(?:[a-z]+:)?[^@#\s:]+", text, re.IGNORECASE)
    return match[0].rstrip(".,;").lower() if match else ""


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
    """The address of a source; None where it names no page.

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
    # The part after `#` is a line number if it looks like one, else a remark.
    path, _, line = found["path"].partition("#")
    anchor = f"#{line}" if re.fullmatch(r"L\d+", line) else ""
    return f"{page}/blob/{found['commit'] or 'HEAD'}/{path}{anchor}"


def is_limited(hardware: str) -> bool:
    """Whether accelerators ran under a power limit that the row does not state."""
    return _LIMITED.search(hardware) is not None


def trust_of(source: str, hardware: str = "") -> str:
    """How reliably a figure is what its source measured, from remarks in the row.

    >>> trust_of("arXiv:2407.21783 Table 4 (from memory of the paper)")
    'recalled'
    """
    if _RECALLED.search(source):
        return "recalled"
    if _NOISY.search(source) or is_limited(hardware):
        return "noisy"
    return "second_hand" if _SECOND_HAND.search(source) else "stated"


def date_of(row: PublishedRow) -> str | None:
    """Year, or year and month, of the row's software or paper; None where not stated."""
    text = f"{row.cells.get('parallel_config', '')} {row.cells.get('source', '')}"
    for pattern in _DATES:
        match = pattern.search(text)
        if match is None:
            continue
        month = match.groupdict().get("month")
        year = f"20{match['year']}"
        return f"{year}-{month}" if month is not None and int(month) in _MONTHS else year
    return None

"""JSON lines: one object a row, UTF-8, null for what is unknown and for numbers JSON does not have."""

from typing import IO

import polars as pl
import polars.selectors as cs

from equipoise.runs.writers.writer import Writer


def _write(frame: pl.DataFrame, file: IO[bytes]) -> None:
    numbers = cs.float()
    frame.with_columns(pl.when(numbers.is_finite()).then(numbers)).write_ndjson(file)


JSON_LINES = Writer(name="jsonl", suffix=".jsonl", write=_write)

"""Turns a Parquet file of measurements on standard input into CSV, in a process of its own.

A damaged Parquet file can end the process that reads it, and no `except` helps there (see runs/probe.py).
"""

import io
import resource
import sys
from collections.abc import Sequence

import polars as pl

from equipoise.runs.probe import EXIT_REFUSED, MAX_MEMORY_BYTES
from equipoise.runs.readers.cells import (
    MAX_COLUMNS,
    MAX_FILE_BYTES,
    MAX_ROWS,
    MAX_TEXT,
    column_name,
    wanted_column,
)


def csv_text(data: bytes, also: Sequence[str] = ()) -> str:
    """The columns that have a meaning or are in `also`, as CSV.

    One row more than are read is converted, so that too many are noticed.

    Raises what Polars raises for anything that is no Parquet table of plain columns.
    """
    schema = pl.read_parquet_schema(io.BytesIO(data))
    names = [
        name
        for name, dtype in schema.items()
        if (wanted_column(column_name(name)) or column_name(name) in also) and not dtype.is_nested()
    ]
    if not names:
        return f"{','.join(column_name(name) for name in list(schema)[:MAX_TEXT])}\n"
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"{len(names)} columns; at most {MAX_COLUMNS} are read")
    frame = pl.read_parquet(io.BytesIO(data), columns=names, n_rows=MAX_ROWS + 1, hive_partitioning=False)
    texts = frame.select(pl.all().cast(pl.String).str.head(MAX_TEXT + 1).fill_null(""))
    text = texts.write_csv()
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"{len(text)} characters as text; at most {MAX_FILE_BYTES} are read")
    return text


def main() -> int:
    """Convert; the exit code, with the reason on standard output when the file is refused."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    try:
        text = csv_text(sys.stdin.buffer.read(), sys.argv[1:])
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, MemoryError) as err:
        sys.stdout.write(str(err)[:MAX_TEXT])
        return EXIT_REFUSED
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

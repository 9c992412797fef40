"""Tables for other programs: frames as files or bytes on standard output."""

import io
import sys
from pathlib import Path

import polars as pl

from equipoise import errors
from equipoise.files import written
from equipoise.runs.writers import WRITERS, Writer


def handed_out(frame: pl.DataFrame, format_: str | None, out: Path | None, *, as_json: bool) -> bytes:
    """A frame in the format asked for or of the file's name, else CSV: its bytes, or where they were written.

    Raises UsageError when the form is unknown or two answers would share standard output.
    """
    writer = _writer(format_ or (out.suffix.removeprefix(".") if out else "") or "csv")
    if out:
        with written(out) as file:
            writer.write(frame, file)
        return f"{out}: {frame.height} rows\n".encode()
    if as_json:
        raise errors.UsageError(
            "--json and --format both claim standard output; give --out FILE to one of them"
        )
    if writer.name == "parquet" and sys.stdout.isatty():
        raise errors.UsageError("parquet is not text; give --out FILE or send the output to a file")
    buffer = io.BytesIO()
    writer.write(frame, buffer)
    return buffer.getvalue()


def _writer(name: str) -> Writer:
    """The writer of that name or file suffix."""
    for writer in WRITERS:
        if name in {writer.name, writer.suffix.removeprefix(".")}:
            return writer
    known = ", ".join(writer.name for writer in WRITERS)
    raise errors.UsageError(f"format {name!r}: tables are not written in it; expected one of {known}")

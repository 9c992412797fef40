"""Tables for the eye and for other programs.

Entries in columns that fit, frames as files, what `ingest` read.
"""

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl
from msgspec import Struct

from equipoise import errors
from equipoise.cli.output import clipped, counted, printable, table_text, width_columns, written_aside
from equipoise.runs.ingest import IngestReport
from equipoise.runs.reader import UnknownName
from equipoise.runs.writers import WRITERS, Writer
from equipoise.units import MINUTE_S, format_count

_MAX_NAMES = 20  # a round of another kind may know hundreds; the document lists all


def fields(report: IngestReport) -> dict[str, Any]:
    """The document: counts, what was refused with its first example, names nobody knows."""
    return {
        "rounds": list(report.rounds),
        "entries": {"kept": report.num_entries_kept, "unscored": report.num_entries_unscored},
        "runs": {"kept": report.num_runs_kept, "rejected": report.num_runs_rejected},
        "rejected": report.rejected.rows(),
        "unknown_names": [
            {"kind": name.kind, "raw": name.raw, "count": name.count, "edit": name.edit}
            for name in report.unknown_names
        ],
    }


def text(report: IngestReport, into: Path | None) -> str:
    """The same for people."""
    parts = [_counts(report), _refusals(report.rejected.rows()), _names(report.unknown_names)]
    if into is not None and report.num_entries_kept:
        parts.append(f"Tables: {into / 'runs.parquet'}, {into / 'scores.parquet'}\n")
    return "\n".join(part for part in parts if part)


def _counts(report: IngestReport) -> str:
    """How much there is, and how much of it has no score."""
    rounds = ", ".join(report.rounds) or "no round"
    unscored = report.num_entries_unscored
    entries = counted(report.num_entries_kept, "entry", "entries") + (
        f", {unscored} of them without a score" if unscored else ""
    )
    runs = (
        f"{counted(report.num_runs_kept, 'run', 'runs')}; "
        f"{counted(report.num_runs_rejected, 'log', 'logs')} rejected"
    )
    return f"{printable(rounds)}: {entries}; {runs}.\n"


def _refusals(rows: list[dict[str, Any]]) -> str:
    """What was not used or is worth a look, by kind, each with its first example."""
    lines = []
    for row in rows:
        lines += [f"{row['count']:>6}  {row['kind']}: {row['first']}", f"        first in {row['where']}"]
    if not lines:
        return ""
    return "".join(f"{clipped(printable(line))}\n" for line in ("Refused or worth a look, by kind:", *lines))


def _names(unknown: tuple[UnknownName, ...]) -> str:
    """Names that no table has, kept as they stand, and the file that would know them."""
    if not unknown:
        return ""
    head = "Names that are not known, kept as they stand:\n"
    rows = [(name.kind, name.raw, str(name.count), name.edit) for name in unknown[:_MAX_NAMES]]
    more = (
        f"... and {len(unknown) - _MAX_NAMES} more: --json lists all\n" if len(unknown) > _MAX_NAMES else ""
    )
    return head + table_text(("kind", "name", "entries", "add it to"), rows, align="<<><") + more


_WIDE_COLUMNS = 120  # from this width on, the columns that explain an efficiency fit next to it


class _Column(Struct, frozen=True, kw_only=True):
    """One printed column: head, alignment, how an entry fills it, and whether it needs a wide terminal."""

    head: str
    align: str
    cell: Callable[[dict[str, Any]], str]
    wide: bool = False


def _number(key: str, form: str) -> Callable[[dict[str, Any]], str]:
    """A cell that formats a number; a dash where it is unknown."""
    return lambda entry: "-" if entry[key] is None else format(entry[key], form)


def _minutes(entry: dict[str, Any]) -> str:
    """The official score, for people."""
    return "-" if entry["score_s"] is None else f"{entry['score_s'] / MINUTE_S:.2f}"


def _samples(entry: dict[str, Any]) -> str:
    """Samples to target, grouped."""
    return "-" if entry["samples_to_target"] is None else format_count(round(entry["samples_to_target"]))


def _text(key: str) -> Callable[[dict[str, Any]], str]:
    """A cell of text; a dash where it is unknown."""
    return lambda entry: entry[key] or "-"


def _system(entry: dict[str, Any]) -> str:
    """Who and what, and why there is no score where there is none."""
    name = "/".join(each for each in (entry["submitter"], entry["system"]) if each) or "-"
    return name if entry["reason"] is None else f"({entry['reason']}) {name}"


_IDENTITY = (
    _Column(head="round", align="<", cell=_text("round")),
    _Column(head="workload", align="<", cell=_text("workload")),
)
_KIND = _Column(head="accelerator", align="<", cell=_text("accelerator"))
_COLUMNS = (
    _Column(head="N", align=">", cell=_number("num_accelerators", "d")),
    _KIND,
    _Column(head="minutes", align=">", cell=_minutes),
    _Column(head="speedup", align=">", cell=_number("speedup", ".2f")),
    _Column(head="E'", align=">", cell=_number("relative_efficiency", ".3f")),
    _Column(head="E", align=">", cell=_number("like_for_like_efficiency", ".3f")),
    _Column(head="samples", align=">", cell=_samples, wide=True),
    _Column(head="per s and N", align=">", cell=_number("samples_per_s_per_accelerator", ".3g"), wide=True),
    _Column(head="E against", align="<", cell=_text("like_for_like_baseline"), wide=True),
    _Column(head="submitter/system", align="<", cell=_system),
)
_LEGEND = (
    "E' is against one reference a workload, E against the smallest entry of the same",
    "accelerator in the round: `equipoise explain E`.",
)


def entries_text(frame: pl.DataFrame, *, flat: bool) -> str:
    """Entries as a table a workload, or as one table in the frame's own order when `flat`."""
    entries = frame.to_dicts()
    if not entries:
        return "0 entries.\n"
    blocks = [entries] if flat else [list(group) for _, group in groupby(entries, key=_identity)]
    unscored = sum(entry["score_s"] is None for entry in entries)
    entries_counted = counted(len(entries), "entry", "entries")
    counts = f"{entries_counted}{f', {unscored} of them without a score' if unscored else ''}."
    tables = "".join(_block_text(block) for block in blocks)
    return tables + "".join(f"{clipped(line)}\n" for line in (counts, *_LEGEND))


def _identity(entry: dict[str, Any]) -> tuple[str | None, str | None]:
    """What entries of one table share."""
    return entry["round"], entry["workload"]


def _block_text(entries: list[dict[str, Any]]) -> str:
    """One table under a heading of what its entries share; a shared accelerator needs no column."""
    kinds = {entry["accelerator"] or "-" for entry in entries}
    mixed = len({_identity(entry) for entry in entries}) > 1
    shared_kind = kinds.pop() if len(kinds) == 1 and not mixed else None
    columns = [column for column in _fitting() if column is not _KIND or shared_kind is None]
    if mixed:
        return _columns_text([*_IDENTITY, *columns], entries)
    heading = f"{entries[0]['round']} {entries[0]['workload']}" + (
        f" on {shared_kind}" if shared_kind else ""
    )
    return f"{clipped(printable(heading))}\n{_columns_text(columns, entries)}"


def _columns_text(columns: Sequence[_Column], entries: list[dict[str, Any]]) -> str:
    """The entries in these columns."""
    rows = [[column.cell(entry) for column in columns] for entry in entries]
    align = "".join(column.align for column in columns)
    return table_text([column.head for column in columns], rows, align=align) + "\n"


def _fitting() -> Iterator[_Column]:
    """The columns for this width."""
    return (column for column in _COLUMNS if not column.wide or width_columns() >= _WIDE_COLUMNS)


def handed_out(frame: pl.DataFrame, format_: str | None, out: Path | None, *, as_json: bool) -> bytes:
    """A frame in the format asked for or of the file's name, else CSV: its bytes, or where they were written.

    Raises UsageError when the form is unknown or two answers would share standard output.
    """
    writer = _writer(format_ or (out.suffix.removeprefix(".") if out else "") or "csv")
    if out:
        with written_aside(out) as file:
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

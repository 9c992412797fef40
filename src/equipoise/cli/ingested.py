"""What `equipoise ingest` says of what it read: counts, refusals by kind, names to add."""

from pathlib import Path
from typing import Any

from equipoise.cli.output import clipped, counted, printable, table_text
from equipoise.runs.ingest import IngestReport
from equipoise.runs.reader import UnknownName

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

"""One row of the entries table as text: for the hover of its marker and for its cells."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from equipoise.report.words import (
    ABSENT,
    TIMES,
    accelerator_name,
    count,
    entry_name,
    minutes,
    printable,
    ratio,
)

Row: TypeAlias = Mapping[str, Any]  # one row of a frame with the columns of scaling.metrics.ENTRY_COLUMNS


def hardware(row: Row) -> str:
    """Count and kind of accelerators: `64 x H100 SXM5 80 GB`."""
    return f"{count(row['num_accelerators'])} {TIMES} {accelerator_name(row['accelerator'])}"


def source(row: Row) -> str:
    """Where the numbers were read: path in the round's repository and line of its first log's end."""
    if not row["source_uri"]:
        return ABSENT
    line = f":{row['source_line']}" if row["source_line"] is not None else ""
    return f"{printable(row['source_uri'])}{line}"


def efficiencies(row: Row) -> str:
    """E' and, with its baseline named, like-for-like E."""
    text = f"E' {ratio(row['relative_efficiency'])}"
    if row["like_for_like_efficiency"] is None:
        return text
    like_for_like, baseline = row["like_for_like_efficiency"], row["like_for_like_baseline"]
    return f"{text} · E {ratio(like_for_like)} against {printable(baseline)}"


def hover(row: Row, *extra: str) -> tuple[str, ...]:
    """The lines beside an entry's marker: name, hardware, time, efficiency, then `extra`, then the log."""
    return (
        entry_name(row["submitter"], row["system"]),
        hardware(row),
        f"{minutes(row['score_s'])} min",
        efficiencies(row),
        *_causes(row),
        *extra,
        source(row),
    )


def _causes(row: Row) -> tuple[str, ...]:
    """What E is the product of, where the logs tell it."""
    if row["statistical"] is None or row["throughput"] is None:
        return ()
    return (f"of which batch growth {ratio(row['statistical'])}, throughput {ratio(row['throughput'])}",)

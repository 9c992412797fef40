"""The pages of `ingest` and `scores`: what was read, and entries with their efficiency."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import polars as pl

from equipoise.report.blocks import (
    Block,
    Fact,
    Facts,
    Heading,
    Page,
    code,
    named,
    names,
    note,
    numbers,
    short_page,
    table_of,
    words,
)
from equipoise.report.format import count, entry_name, plural, printable, ratio, sentence
from equipoise.runs.store import RUNS, SCORES
from equipoise.units import MINUTE_S

if TYPE_CHECKING:
    from equipoise.runs.ingest import IngestReport

_Entry: TypeAlias = dict[str, Any]

# --- ingest

_MOST_NAMES: Final = 20  # a round of another kind may know hundreds; the document lists all
_REJECTED: Final = (
    names("Refused or worth a look", "kind"),
    numbers("Count", "count"),
    words("The first", lambda row: named(row["first"], detail=f"in {printable(row['where'])}")),
)
_UNKNOWN_NAMES: Final = (
    names("Unknown name, kept", "raw"),
    words("Kind", "kind"),
    numbers("Entries", "count"),
    words("Add it to", "edit"),
)


def ingest_page(into: Path | None) -> "Page[IngestReport]":
    """The page, with the folder that the tables were written to."""
    return short_page(headline=_counts, blocks=lambda found: _ingest_blocks(found, into))


def _counts(found: "IngestReport") -> str:
    """How much there is, and how much of it has no score."""
    rounds = ", ".join(found.rounds) or "no round"
    runs = f"{plural(found.num_runs_kept, 'run')}; {plural(found.num_runs_rejected, 'log')} rejected"
    return sentence(f"{rounds}: {_entries(found.num_entries_kept, found.num_entries_unscored)}; {runs}.")


def _entries(num_entries: int, num_unscored: int) -> str:
    unscored = f", {num_unscored:,} of them without a score" if num_unscored else ""
    return f"{plural(num_entries, 'entry', 'entries')}{unscored}"


def _ingest_blocks(found: "IngestReport", into: Path | None) -> Iterator[Block]:
    yield table_of("rejected", _REJECTED, found.rejected.rows())
    yield table_of("unknown-names", _UNKNOWN_NAMES, found.unknown_names[:_MOST_NAMES])
    more = len(found.unknown_names) - _MOST_NAMES
    yield note(f"And {plural(more, 'more name')}: --json lists all." if more > 0 else "")
    if into is not None and found.num_entries_kept:
        tables = ", ".join(str(into / f"{schema.name}.parquet") for schema in (RUNS, SCORES))
        yield Facts(items=(Fact(label="Tables", spans=(sentence(tables),)),))


# --- scores


def _name(entry: _Entry) -> str:
    """Who and what, and why there is no score where there is none."""
    reason = "" if entry["reason"] is None else f"({entry['reason']}) "
    return f"{reason}{entry_name(entry['submitter'], entry['system'])}"


_ABOUT: Final = names("Workload", lambda entry: " ".join(filter(None, _about(entry))))
_ACCELERATOR: Final = names("Accelerator", "accelerator")
_COLUMNS: Final = (
    numbers("N", "num_accelerators"),
    numbers("Minutes", "score_s", lambda score_s: f"{score_s / MINUTE_S:,.2f}"),
    numbers("E'", "relative_efficiency", ratio),
    numbers("E", "like_for_like_efficiency", ratio),
    words("System", _name, is_cut=True),
)
# Where there is one table: below several, what had no room would be named again and again.
_MORE_COLUMNS: Final = (
    numbers("Speedup", "speedup", ratio),
    numbers("Samples", "samples_to_target", lambda samples: count(round(samples)), is_wide=True),
    numbers("Samples/s per N", "samples_per_s_per_accelerator", ratio, is_wide=True),
    words("E against", "like_for_like_baseline", is_wide=True),
)


def scores_page(*, is_sorted: bool) -> Page[pl.DataFrame]:
    """The page: a table per round and workload; where the user sorted the entries, one in that order."""
    return short_page(
        headline=lambda frame: f"{_entries(frame.height, frame['score_s'].null_count())}.",
        blocks=lambda frame: _scores_blocks(frame.to_dicts(), is_sorted=is_sorted),
    )


def _about(entry: _Entry) -> tuple[str | None, str | None]:
    return entry["round"], entry["workload"]


def _scores_blocks(entries: Sequence[_Entry], *, is_sorted: bool) -> Iterator[Block]:
    groups = [entries] if is_sorted else [list(group) for _, group in groupby(entries, key=_about)]
    for place, group in enumerate(groups if entries else ()):
        kinds = {entry["accelerator"] for entry in group}
        kind = kinds.pop() if len(kinds) == 1 else None
        is_mixed = len(set(map(_about, group))) > 1
        title = (*(() if is_mixed else _about(group[0])), kind and f"on {kind}")
        if any(title):
            yield Heading(name=f"scores-{place}", text=sentence(" ".join(filter(None, title))))
        columns = (
            *((_ABOUT,) if is_mixed else ()),
            *(() if kind else (_ACCELERATOR,)),
            *_COLUMNS,
            *(_MORE_COLUMNS if len(groups) == 1 else ()),
        )
        yield table_of(f"scores-table-{place}", columns, group)
    if entries:
        yield note(
            "E' is against one reference a workload, E against the smallest entry of the same accelerator in "
            "the round: ",
            code("equipoise explain E"),
            ".",
        )

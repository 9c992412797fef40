"""The pages of `ingest` and `scores`: what was read, and entries with their efficiency."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias

import polars as pl

from equipoise.report.blocks import (
    Block,
    Cell,
    Column,
    ColumnOf,
    Fact,
    Facts,
    Heading,
    Page,
    code,
    named,
    note,
    number,
    short_page,
    table_of,
)
from equipoise.report.format import ABSENT, count, entry_name, plural, printable, ratio, sentence
from equipoise.runs.ingest import IngestReport
from equipoise.runs.store import RUNS, SCORES
from equipoise.units import MINUTE_S

_Entry: TypeAlias = dict[str, Any]

# --- ingest

_MOST_NAMES: Final = 20  # a round of another kind may know hundreds; the document lists all
_REJECTED: Final[tuple[ColumnOf, ...]] = (
    (Column(title="Refused or worth a look", is_header=True), lambda row: named(row["kind"])),
    (Column(title="Count", is_number=True), lambda row: number(row["count"])),
    (Column(title="The first"), lambda row: named(row["first"], detail=f"in {printable(row['where'])}")),
)
_UNKNOWN_NAMES: Final[tuple[ColumnOf, ...]] = (
    (Column(title="Unknown name, kept", is_header=True), lambda name: named(name.raw)),
    (Column(title="Kind"), lambda name: named(name.kind)),
    (Column(title="Entries", is_number=True), lambda name: number(name.count)),
    (Column(title="Add it to"), lambda name: named(name.edit)),
)


def ingest_page(into: Path | None) -> Page[IngestReport]:
    """The page, with the folder that the tables were written to."""
    return short_page(headline=_counts, blocks=lambda found: _ingest_blocks(found, into))


def _counts(found: IngestReport) -> str:
    """How much there is, and how much of it has no score."""
    rounds = ", ".join(found.rounds) or "no round"
    runs = f"{plural(found.num_runs_kept, 'run')}; {plural(found.num_runs_rejected, 'log')} rejected"
    return sentence(f"{rounds}: {_entries(found.num_entries_kept, found.num_entries_unscored)}; {runs}.")


def _entries(num_entries: int, num_unscored: int) -> str:
    unscored = f", {num_unscored:,} of them without a score" if num_unscored else ""
    return f"{plural(num_entries, 'entry', 'entries')}{unscored}"


def _ingest_blocks(found: IngestReport, into: Path | None) -> Iterator[Block]:
    yield table_of("rejected", _REJECTED, found.rejected.rows())
    yield table_of("unknown-names", _UNKNOWN_NAMES, found.unknown_names[:_MOST_NAMES])
    more = len(found.unknown_names) - _MOST_NAMES
    yield note(f"And {plural(more, 'more name')}: --json lists all." if more > 0 else "")
    if into is not None and found.num_entries_kept:
        tables = ", ".join(str(into / f"{schema.name}.parquet") for schema in (RUNS, SCORES))
        yield Facts(items=(Fact(label="Tables", spans=(sentence(tables),)),))


# --- scores


def _ratio(title: str, key: str, *, is_wide: bool = False) -> ColumnOf:
    return Column(title=title, is_number=True, is_wide=is_wide), lambda entry: number(entry[key], ratio)


def _name(entry: _Entry) -> Cell:
    """Who and what, and why there is no score where there is none."""
    reason = "" if entry["reason"] is None else f"({entry['reason']}) "
    return named(f"{reason}{entry_name(entry['submitter'], entry['system'])}")


_ABOUT: Final[ColumnOf] = (
    Column(title="Workload", is_header=True),
    lambda entry: named(" ".join(filter(None, _about(entry)))),
)
_ACCELERATOR: Final[ColumnOf] = (
    Column(title="Accelerator", is_header=True),
    lambda entry: named(entry["accelerator"] or ABSENT),
)
_COLUMNS: Final[tuple[ColumnOf, ...]] = (
    (Column(title="N", is_number=True), lambda entry: number(entry["num_accelerators"])),
    (
        Column(title="Minutes", is_number=True),
        lambda entry: number(entry["score_s"], lambda score_s: f"{score_s / MINUTE_S:,.2f}"),
    ),
    _ratio("E'", "relative_efficiency"),
    _ratio("E", "like_for_like_efficiency"),
    (Column(title="System", is_cut=True), _name),
)
# Where there is one table: below several, what had no room would be named again and again.
_MORE_COLUMNS: Final[tuple[ColumnOf, ...]] = (
    _ratio("Speedup", "speedup"),
    (
        Column(title="Samples", is_number=True, is_wide=True),
        lambda entry: number(entry["samples_to_target"], lambda samples: count(round(samples))),
    ),
    _ratio("Samples/s per N", "samples_per_s_per_accelerator", is_wide=True),
    (
        Column(title="E against", is_wide=True),
        lambda entry: named(entry["like_for_like_baseline"] or ABSENT),
    ),
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

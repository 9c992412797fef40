"""The page Compare: entries of one round and workload side by side."""

from typing import Final

import polars as pl

from equipoise.report.entry_text import hardware
from equipoise.report.pages.compared import COMPARED
from equipoise.report.words import entry_name, workload_name
from equipoise.spec.rounds import round_name
from equipoise.study import compared
from equipoise.units import format_duration
from equipoise.web.answer import Answer, shown
from equipoise.web.asked import MOST_SYSTEMS, AskedCompare
from equipoise.web.controls import Checks, Choice, Control, Given, Select, first
from equipoise.web.screen import Screen
from equipoise.web.screens.study import round_choices
from equipoise.web.sources import Sources


def _fields(given: Given, sources: Sources) -> tuple[Control, ...]:
    named = round_name(first(given, "round"))
    chosen = named if named in sources.studied else sources.default_round
    workloads = sources.studied.get(chosen, {})
    named = first(given, "workload")
    workload = named if named in workloads else next(iter(workloads), "")
    return (
        Select(
            name="round",
            label="Round of MLPerf Training",
            choices=round_choices(sources),
            value=chosen,
            clears=("workload", "entry"),
        ),
        Select(
            name="workload",
            label="Workload",
            choices=tuple(Choice(value=slug, label=workload_name(slug)) for slug in workloads),
            value=workload,
            clears=("entry",),
        ),
        Checks(
            name="entry",
            label="Systems",
            choices=_entries(sources, chosen, workload),
            values=frozenset(given.get("entry", ())),
            hint=f"At most {MOST_SYSTEMS}. None chosen: those for speed, for efficiency, and in between.",
        ),
    )


def _entries(sources: Sources, round_: str, workload: str) -> tuple[Choice, ...]:
    rows = sources.scored.filter((pl.col("campaign") == round_) & (pl.col("workload") == workload))
    return tuple(
        Choice(
            value=row["entry_id"],
            label=f"{hardware(row)}, {entry_name(row['submitter'], row['system'])}, "
            f"{format_duration(row['score_s'])}",
        )
        for row in rows.sort("num_accelerators", "score_s", "entry_id").iter_rows(named=True)
    )


def _answer(asked: AskedCompare, sources: Sources) -> Answer:
    usual = sources.studied.get(round_name(asked.round) if asked.round else sources.default_round, {})
    found = compared(
        asked.round,
        asked.workload or next(iter(usual), None),
        asked.entry,
        data=sources.data,
        also=sources.also,
        catalogue=sources.catalogue,
    )
    return shown(COMPARED, found)


SCREEN: Final = Screen(
    path="/compare",
    title="Compare",
    about="systems of a round side by side",
    verb="Compare",
    fields=_fields,
    answer=_answer,
    depends=("workload", "entry"),
)

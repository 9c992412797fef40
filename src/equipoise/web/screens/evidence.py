"""The pages Study, Compare and Accuracy: published results, and the errors of every kind of prediction."""

from typing import Final

import polars as pl

from equipoise.report.format import entry_name, plural, printable, workload_name
from equipoise.report.pages.accuracy import ACCURACY
from equipoise.report.pages.comparison import COMPARED
from equipoise.report.pages.study import STUDY
from equipoise.report.pages.study.entries import hardware
from equipoise.spec.mlperf import round_name
from equipoise.study import accuracy, compared
from equipoise.study import study as studied
from equipoise.units import format_duration
from equipoise.web.answers import PageAnswer, shown
from equipoise.web.controls import Checks, Choice, Control, Given, Select, first
from equipoise.web.screen import (
    MOST_SYSTEMS,
    CompareFields,
    DataSources,
    NoFields,
    Screen,
    StudyFields,
    reader_of,
)
from equipoise.web.screens.runs import ledger_stamp


def _chosen_round(given: Given, sources: DataSources) -> str:
    """The round of an address where it can be studied; else that of a page without an address."""
    named = round_name(first(given, "round"))
    return named if named in sources.studied else sources.default_round


def _round_select(chosen: str, sources: DataSources, *clears: str) -> Select:
    """The rounds that can be studied, each with its workloads."""
    choices = tuple(
        Choice(value=name, label=printable(name), holds=tuple(workloads))
        for name, workloads in sources.studied.items()
    )
    return Select(
        name="round", label="Round of MLPerf Training", choices=choices, value=chosen, clears=clears
    )


def _study_fields(given: Given, sources: DataSources) -> tuple[Control, ...]:
    chosen = _chosen_round(given, sources)
    return (
        _round_select(chosen, sources, "workload"),
        Checks(
            name="workload",
            label="Workloads",
            choices=tuple(
                Choice(value=slug, label=f"{workload_name(slug)}, {plural(number, 'entry', 'entries')}")
                for slug, number in sources.studied.get(chosen, {}).items()
            ),
            values=frozenset(given.get("workload", ())),
            hint="None chosen: those of the published study in its round, else all.",
        ),
    )


def _study_answer(fields: StudyFields, sources: DataSources) -> PageAnswer:
    found = studied(
        fields.round,
        fields.workload,
        data=sources.data,
        also=sources.also,
        catalogue=sources.catalogue,
    )
    return shown(STUDY, found)


STUDY_SCREEN: Final = Screen(
    path="/study",
    title="Study",
    about="how training scales in a round",
    verb="Study",
    read=reader_of(StudyFields),
    fields=_study_fields,
    answer=_study_answer,
    depends=("workload",),
)


def _compare_fields(given: Given, sources: DataSources) -> tuple[Control, ...]:
    chosen = _chosen_round(given, sources)
    workloads = sources.studied.get(chosen, {})
    named = first(given, "workload")
    workload = named if named in workloads else next(iter(workloads), "")
    return (
        _round_select(chosen, sources, "workload", "entry"),
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
            most=MOST_SYSTEMS,
            hint=f"At most {MOST_SYSTEMS}. None chosen: those for speed, for efficiency, and in between.",
        ),
    )


def _entries(sources: DataSources, round_: str, workload: str) -> tuple[Choice, ...]:
    rows = sources.scored.filter((pl.col("campaign") == round_) & (pl.col("workload") == workload))
    return tuple(
        Choice(
            value=row["entry_id"],
            label=f"{hardware(row)}, {entry_name(row['submitter'], row['system'])}, "
            f"{format_duration(row['score_s'])}",
        )
        for row in rows.sort("num_accelerators", "score_s", "entry_id").iter_rows(named=True)
    )


def _compare_answer(fields: CompareFields, sources: DataSources) -> PageAnswer:
    usual = sources.studied.get(round_name(fields.round) if fields.round else sources.default_round, {})
    found = compared(
        fields.round,
        fields.workload or next(iter(usual), None),
        fields.entry,
        data=sources.data,
        also=sources.also,
        catalogue=sources.catalogue,
    )
    return shown(COMPARED, found)


COMPARE_SCREEN: Final = Screen(
    path="/compare",
    title="Compare",
    about="systems of a round side by side",
    verb="Compare",
    read=reader_of(CompareFields),
    fields=_compare_fields,
    answer=_compare_answer,
    depends=("workload", "entry"),
)


ACCURACY_SCREEN: Final = Screen(
    path="/accuracy",
    title="Accuracy",
    about="errors of every kind of prediction on held-out data",
    verb="Show",
    read=reader_of(NoFields),
    fields=lambda _, __: (),
    answer=lambda _, __: shown(ACCURACY, accuracy()),
    stamp=lambda _, __: ledger_stamp(),
)

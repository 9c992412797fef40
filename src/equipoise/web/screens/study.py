"""The page Study: any round and any of its workloads, with the figures of the report."""

from typing import Final

from equipoise.report.pages.study import STUDY
from equipoise.report.words import plural, printable, workload_name
from equipoise.spec.rounds import round_name
from equipoise.study import study as studied
from equipoise.web.answer import Answer, shown
from equipoise.web.asked import AskedStudy
from equipoise.web.controls import Checks, Choice, Control, Given, Select, first
from equipoise.web.screen import Screen
from equipoise.web.sources import Sources


def round_choices(sources: Sources) -> tuple[Choice, ...]:
    """The rounds that can be studied, each with its workloads."""
    return tuple(
        Choice(value=name, label=printable(name), holds=tuple(workloads))
        for name, workloads in sources.studied.items()
    )


def _fields(given: Given, sources: Sources) -> tuple[Control, ...]:
    named = round_name(first(given, "round"))
    chosen = named if named in sources.studied else sources.default_round
    return (
        Select(
            name="round",
            label="Round of MLPerf Training",
            choices=round_choices(sources),
            value=chosen,
            clears=("workload",),
        ),
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


def _answer(asked: AskedStudy, sources: Sources) -> Answer:
    found = studied(
        asked.round,
        asked.workload,
        data=sources.data,
        also=sources.also,
        catalogue=sources.catalogue,
    )
    return shown(STUDY, found)


SCREEN: Final = Screen(
    path="/study",
    title="Study",
    about="how training scales in a round",
    verb="Study",
    fields=_fields,
    answer=_answer,
    depends=("workload",),
)

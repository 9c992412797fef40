"""The pages Advice and Plan: one answer of `decide` each, to the fields that the verb of that name takes."""

from functools import partial
from typing import Final

from equipoise.decide.decision import answer
from equipoise.decide.field import Verb
from equipoise.decide.query import TrainingQuery, changed
from equipoise.decide.solve_for import solve_for
from equipoise.report.pages.answer import ANSWER
from equipoise.report.pages.reach import REACH
from equipoise.runs.embedded import tables
from equipoise.web.address import AskedRuns
from equipoise.web.answers import Answer, shown
from equipoise.web.controls import Control, Given
from equipoise.web.question import AskedQuestion, question, question_controls
from equipoise.web.screen import Screen
from equipoise.web.screens.runs import chosen, own_folders, state
from equipoise.web.sources import Sources


def read(given: Given, verb: Verb, sources: Sources) -> AskedQuestion:
    """The question of an address. Raises InputError for what cannot be asked."""
    return question(given, verb, sources.catalogue, at_first=sources.at_first)


def _fields(given: Given, sources: Sources, *, verb: Verb) -> tuple[Control, ...]:
    runs = tuple(own_folders(sources)) if verb == "advise" else ()
    return question_controls(given, verb, sources.catalogue, at_first=sources.at_first, runs=runs)


def _stamp(asked: AskedQuestion, sources: Sources) -> str:
    """What was measured counts too: the user's runs grow while the dashboard runs."""
    own = "" if asked.runs is None else state(AskedRuns(sweep=asked.runs), sources)
    return f"{sources.stamp()};{own}" if own else sources.stamp()


def _answer(asked: AskedQuestion, sources: Sources) -> Answer:
    found = _with_runs(asked, sources)
    scores = tables(data=sources.data, also=sources.also).scores
    if found.ask is not None:
        return shown(REACH, solve_for(found, scores=scores, catalogue=sources.catalogue))
    return shown(ANSWER, answer(found, scores=scores, catalogue=sources.catalogue))


def _with_runs(asked: AskedQuestion, sources: Sources) -> TrainingQuery:
    """The question with the folder of the runs that it names."""
    if asked.runs is None:
        return asked.query
    return changed(asked.query, runs=chosen(AskedRuns(sweep=asked.runs), sources))


ADVICE: Final = Screen(
    path="/advice",
    title="Advice",
    about="how many accelerators to take, and why",
    verb="Advise",
    fields=partial(_fields, verb="advise"),
    answer=_answer,
    stamp=_stamp,
    depends=("accelerator",),
    is_transient=True,
    reads_disk=True,
)
PLAN: Final = Screen(
    path="/plan",
    title="Plan",
    about="the best strategies for a number of accelerators",
    verb="Plan",
    fields=partial(_fields, verb="plan"),
    answer=_answer,
    depends=("accelerator",),
    is_transient=True,
)

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
from equipoise.web.answers import PageAnswer, shown
from equipoise.web.controls import Control, Given
from equipoise.web.question import QuestionFields, question, question_controls
from equipoise.web.screen import DataSources, RunsFields, Screen
from equipoise.web.screens.runs import chosen, run_folders, state


def read(given: Given, verb: Verb, sources: DataSources) -> QuestionFields:
    """The question of an address. Raises InputError for what cannot be fields."""
    return question(given, verb, sources.catalogue, at_first=sources.at_first)


def _fields(given: Given, sources: DataSources, *, verb: Verb) -> tuple[Control, ...]:
    runs = tuple(run_folders(sources)) if verb == "advise" else ()
    return question_controls(given, verb, sources.catalogue, at_first=sources.at_first, runs=runs)


def _stamp(fields: QuestionFields, sources: DataSources) -> str:
    """What was measured counts too: the user's runs grow while the dashboard runs."""
    runs = "" if fields.runs is None else state(RunsFields(sweep=fields.runs), sources)
    return f"{sources.stamp()};{runs}" if runs else sources.stamp()


def _answer(fields: QuestionFields, sources: DataSources) -> PageAnswer:
    found = _with_runs(fields, sources)
    scores = tables(data=sources.data, also=sources.also).scores
    if found.ask is not None:
        return shown(REACH, solve_for(found, scores=scores, catalogue=sources.catalogue))
    return shown(ANSWER, answer(found, scores=scores, catalogue=sources.catalogue))


def _with_runs(fields: QuestionFields, sources: DataSources) -> TrainingQuery:
    """The question with the folder of the runs that it names."""
    if fields.runs is None:
        return fields.training
    return changed(fields.training, runs=chosen(RunsFields(sweep=fields.runs), sources))


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

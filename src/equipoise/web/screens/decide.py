"""The pages Advice and Plan: one answer of `decide` each, to the fields that the verb of that name takes."""

from functools import partial
from typing import Any, Final

from equipoise.decide.field import Verb
from equipoise.decide.query import TrainingQuery, changed
from equipoise.library.decisions import DecisionVerb, result_of
from equipoise.library.result import Result
from equipoise.runs.embedded import tables
from equipoise.web.answers import PageAnswer, shown
from equipoise.web.controls import Control, Given
from equipoise.web.question import QuestionFields, question, question_controls
from equipoise.web.screen import DataSources, FileKind, RunsFields, Screen
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


def _result(fields: QuestionFields, sources: DataSources, *, verb: DecisionVerb) -> Result[Any]:
    found = _with_runs(fields, sources)
    scores = tables(data=sources.data, also=sources.also).scores
    return result_of(verb, found, scores=scores, known=sources.catalogue)


def _answer(fields: QuestionFields, sources: DataSources, *, verb: DecisionVerb) -> PageAnswer:
    found = _result(fields, sources, verb=verb)
    return shown(found.presentation.page, found.record)


def _file(fields: QuestionFields, sources: DataSources, kind: FileKind, *, verb: DecisionVerb) -> bytes:
    found = _result(fields, sources, verb=verb)
    if kind == "json":
        return found.to_json()
    return (found.to_html() if kind == "html" else found.frame().write_csv()).encode()


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
    answer=partial(_answer, verb="advise"),
    file=partial(_file, verb="advise"),
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
    answer=partial(_answer, verb="plan"),
    file=partial(_file, verb="plan"),
    depends=("accelerator",),
    is_transient=True,
)

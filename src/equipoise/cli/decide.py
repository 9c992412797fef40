"""The verbs that decide.

`advise`, `plan`, `predict` and `allocate`, each a question, its answer and its page.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipoise.cli.output import answering, answers_only
from equipoise.cli.questions import Options, Output, asks
from equipoise.errors import UsageError

if TYPE_CHECKING:
    from equipoise.decide.query import TrainingQuery
    from equipoise.library.decisions import DecisionVerb
    from equipoise.library.result import Result


@asks("advise", argument="workload")
def advise(options: Options, output: Output) -> None:
    """Combine all evidence: how many accelerators, how, and why."""
    _answer("advise", options, output)


@asks("plan", argument="workload")
def plan(options: Options, output: Output) -> None:
    """Find the best parallel strategy, and where returns diminish."""
    _answer("plan", options, output)


@asks("predict")
def predict(options: Options, output: Output) -> None:
    """Predict times and costs at sizes nobody ran."""
    _answer("predict", options, output)


def _answer(verb: "DecisionVerb", options: Options, output: Output) -> None:
    """Answer a question and show it as the options ask."""
    with answering(verb, as_json=output.as_json, json_out=output.json_out, html=output.html) as answer:
        from equipoise.library.decisions import read_question, result_of

        question = read_question(options, verb=verb)
        with answers_only():
            found = result_of(verb, question)
        if output.recorded:
            _record(verb, question, found)
        shown = found.presentation
        answer.give_page(shown.page, found.record, shown.fields, full=output.full)


def _record(verb: "DecisionVerb", query: "TrainingQuery", found: "Result[Any]") -> None:
    """Keep the predictions of a result in the user's ledger."""
    from equipoise.decide.ledger import add_predictions, ledger_path
    from equipoise.decide.ledger_predictions import answer_predictions, time_predictions

    if query.ask is not None:
        raise UsageError("--record keeps predicted times; --ask gives an amount to train on")
    predictions = (
        time_predictions(found.record) if verb == "predict" else answer_predictions(found.record, verb=verb)
    )
    add_predictions(ledger_path(), predictions)


@asks("allocate", outputs=("html", "full", "as_json", "json_out"))
def allocate(
    options: Options,
    output: Output,
    *,
    jobs: Annotated[
        Path,
        typer.Argument(metavar="JOBS.toml", help="The trainings, in the form of docs/decide/allocate.md."),
    ],
    objective: Annotated[
        Literal["time", "makespan", "cost", "energy"],
        typer.Option(help="What to minimise: all jobs' times, the last one's end, money, energy."),
    ] = "time",
    electricity_by_hour: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Prices of electricity: hour (0 to 23), usd_per_kwh."),
    ] = None,
    begin: Annotated[
        str | None, typer.Option(metavar="HH:MM", help="Time of day at which the plan begins; 00:00.")
    ] = None,
) -> None:
    """Share a pool of accelerators between trainings."""
    with answering("allocate", as_json=output.as_json, json_out=output.json_out, html=output.html) as answer:
        from equipoise.library.decisions import allocation_of

        with answers_only():
            found = allocation_of(
                jobs, options, objective=objective, electricity_by_hour=electricity_by_hour, begin=begin
            )
        shown = found.presentation
        answer.give_page(shown.page, found.record, shown.fields, full=output.full)

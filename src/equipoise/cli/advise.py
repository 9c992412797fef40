"""The verb `advise`: how many accelerators, of which kind, with which strategy, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from equipoise.cli.options import (
    Also,
    AsHtml,
    AsJson,
    Budget,
    Collectives,
    Data,
    Deadline,
    GlobalBatch,
    Hardware,
    JsonOut,
    Precisions,
    Price,
    Recorded,
    Samples,
    Tokens,
    Workloads,
    clusters_from,
    extend_catalogue,
    trained_from,
)
from equipoise.cli.output import Answer, answering, answers_only, written_aside
from equipoise.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from equipoise.advice.answer.asked import Request, Sought


def advise(
    *,
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD|MODULE:FUNCTION|CONFIG.toml",
            autocompletion=trained_from,
            help="What to train, or a file that holds it and these options.",
        ),
    ],
    accelerator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            autocompletion=clusters_from,
            help="An accelerator or system to choose from; may be repeated.",
        ),
    ] = None,
    here: Annotated[bool, typer.Option("--here", help="Look this machine over, and advise on it.")] = False,
    max_accelerators: Annotated[
        int | None, typer.Option(metavar="N", help="The most that may be taken; 512, or what is published.")
    ] = None,
    objective: Annotated[
        Literal["time", "cost", "energy", "balance"] | None,
        typer.Option(help="What decides between sizes; balance."),
    ] = None,
    deadline: Deadline = None,
    budget: Budget = None,
    price: Price = None,
    terms: Annotated[
        Literal["on_demand", "reserved", "spot"] | None, typer.Option(help="How it is rented; on_demand.")
    ] = None,
    electricity: Annotated[
        float | None, typer.Option(metavar="USD", help="What a kilowatt-hour of your own costs.")
    ] = None,
    pue: Annotated[
        float | None, typer.Option(help="Power of the building over that of its machines.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="Whose electricity the carbon is of; world.")] = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Your own runs: of `bench --out`, or CSV files.")
    ] = None,
    global_batch: GlobalBatch = None,
    samples: Samples = None,
    tokens: Tokens = None,
    precision: Precisions = None,
    collectives: Collectives = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Traces of your own training by torch.profiler; may be repeated."),
    ] = None,
    traced_as: Annotated[
        str | None,
        typer.Option(
            metavar="KNOB=VALUE ...",
            help='What traces do not tell: "ranks=8 global_batch=64 precision=bf16".',
        ),
    ] = None,
    ask: Annotated[
        Literal["tokens", "model"] | None,
        typer.Option(help="Rather: how many tokens, or how large a model, --budget and --deadline allow."),
    ] = None,
    tokens_per_param: Annotated[
        float | None, typer.Option(help="Tokens a parameter of the model that is asked for; 20.")
    ] = None,
    queue: Annotated[
        float | None, typer.Option(metavar="HOURS", help="Until the accelerators are there.")
    ] = None,
    buy: Annotated[bool, typer.Option("--buy", help="Compare renting with buying.")] = False,
    purchase: Annotated[
        float | None,
        typer.Option(metavar="USD", help="What one accelerator costs with its share of host and network."),
    ] = None,
    utilisation: Annotated[
        float | None, typer.Option(metavar="0..1", help="Share of all hours that an own machine works.")
    ] = None,
    hosting: Annotated[
        float | None,
        typer.Option(
            metavar="USD", help="A month of room for one own accelerator, without power; 0 in your own."
        ),
    ] = None,
    horizon: Annotated[
        float | None, typer.Option(metavar="MONTHS", help="By when owning has to pay; 36.")
    ] = None,
    html: AsHtml = None,
    recorded: Recorded = False,
    data: Data = None,
    also: Also = None,
    hardware: Hardware = None,
    workloads: Workloads = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Weigh all evidence: how many, how, and why."""
    options = locals()
    with answering("advise", as_json=as_json, json_out=json_out) as answer:
        from equipoise.advice.answer.asked import Sought
        from equipoise.cli.asked_advice import asked, given, wanted
        from equipoise.runs.chosen import tables

        found = asked(given(options))
        extend_catalogue(found.hardware, found.workloads)
        about = wanted(found)
        scores = tables(data=found.data, also=found.also or ()).scores
        if isinstance(about, Sought):
            if recorded:
                raise UsageError("--record keeps times of an advice; --ask tells none")
            _tell_reach(answer, about, scores, html=html)
        else:
            _tell_advice(answer, about, scores, html=html, recorded=recorded)


def _tell_advice(
    answer: Answer, request: "Request", scores: "pl.DataFrame", *, html: Path | None, recorded: bool
) -> None:
    """How many to take, and what that takes."""
    from equipoise.advice.answer.advised import advise as best_advice
    from equipoise.cli.advise_fields import fields
    from equipoise.cli.advised import text

    with answers_only():
        found = best_advice(request, scores=scores)
    if recorded:
        from equipoise.advice.ledger.kept import add_predictions, ledger_path
        from equipoise.advice.ledger.made import of_advice

        add_predictions(ledger_path(), of_advice(found))
    if html:
        from equipoise.report.html import render
        from equipoise.report.pages import ADVICE
        from equipoise.study import advice_findings

        with written_aside(html) as file:
            file.write(render(ADVICE, advice_findings(found)).encode())
    answer.give(lambda: fields(found), lambda: text(found))


def _tell_reach(answer: Answer, sought: "Sought", scores: "pl.DataFrame", *, html: Path | None) -> None:
    """What money and time are enough for."""
    from equipoise.advice.answer.reached import reaches
    from equipoise.cli.reached import reaches_fields, reaches_text

    with answers_only():
        found = reaches(sought, scores=scores)
    if html:
        from equipoise.report.html import render
        from equipoise.report.pages import REACH
        from equipoise.study import reach_findings

        with written_aside(html) as file:
            file.write(render(REACH, reach_findings(found)).encode())
    answer.give(lambda: reaches_fields(found), lambda: reaches_text(found))

"""The verb `advise`: how many accelerators, of which kind, with which strategy, and why."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from equipoise.cli.options import (
    Also,
    AsHtml,
    AsJson,
    Budget,
    Data,
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
from equipoise.cli.output import answering, answers_only, written_aside


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
    deadline: Annotated[
        str | None, typer.Option(metavar="HOURS", help="What training may take: 12, 90min, 2d.")
    ] = None,
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
    ask: Annotated[
        Literal["tokens", "model"] | None,
        typer.Option(help="Rather: how many tokens, or how large a model, --budget and --deadline allow."),
    ] = None,
    tokens_per_param: Annotated[
        float, typer.Option(help="Tokens a parameter of the model that is asked for.")
    ] = 20.0,
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
    horizon: Annotated[float, typer.Option(metavar="MONTHS", help="By when owning has to pay.")] = 36.0,
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
    extend_catalogue(hardware, workloads)
    with answering("advise", as_json=as_json, json_out=json_out) as answer:
        from equipoise.advice.answer.about import subject_of
        from equipoise.advice.answer.advised import advise as best_advice
        from equipoise.advice.priced import Wishes, priced, reaches
        from equipoise.cli.advise_fields import fields
        from equipoise.cli.advised import text
        from equipoise.cli.asked_advice import Asked, asked, request
        from equipoise.cli.priced import priced_fields, priced_text
        from equipoise.cli.reached import reaches_fields, reaches_text
        from equipoise.runs.chosen import tables
        from equipoise.units import HOUR_S

        given = Asked(
            workload=workload,
            accelerator=tuple(accelerator) if accelerator else None,
            here=True if here else None,
            max_accelerators=max_accelerators,
            objective=objective,
            deadline=deadline,
            budget=budget,
            price=price,
            terms=terms,
            electricity=electricity,
            pue=pue,
            region=region,
            runs=None if runs is None else str(runs),
            global_batch=global_batch,
            samples=samples,
            tokens=tokens,
            precision=precision,
        )
        with answers_only():
            wanted = request(asked(given))
            scores = tables(data=data, also=also or ()).scores
            if ask is not None:
                reached = reaches(wanted, ask, scores=scores, tokens_per_param=tokens_per_param)
                answer.give(lambda: reaches_fields(reached), lambda: reaches_text(reached))
                return
            found = best_advice(wanted, scores=scores)
        wishes = Wishes(
            queue_s=None if queue is None else queue * HOUR_S,
            buys=buy or purchase is not None or utilisation is not None,
            purchase_usd=purchase,
            utilisation=utilisation,
            horizon_months=horizon,
        )
        if recorded:
            from equipoise.advice.answer.predictions import of_advice
            from equipoise.advice.ledger import add_predictions, ledger_path

            add_predictions(ledger_path(), of_advice(found))
        if html:
            from equipoise.report.html import render
            from equipoise.report.pages import ADVICE
            from equipoise.study import advice_findings

            with written_aside(html) as file:
                file.write(render(ADVICE, advice_findings(found)).encode())
        money = priced(found, subject_of(wanted.workload).workload, wishes)
        answer.give(
            lambda: fields(found) | priced_fields(money), lambda: f"{text(found)}\n{priced_text(money)}"
        )

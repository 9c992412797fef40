"""The verb `advise`: how many accelerators, of which kind, with which strategy, and why."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from equipoise.cli.options import (
    Also,
    AsJson,
    Data,
    Hardware,
    JsonOut,
    Recorded,
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
    budget: Annotated[float | None, typer.Option(metavar="USD", help="What it may cost.")] = None,
    price: Annotated[float | None, typer.Option(help="US dollars an accelerator-hour.")] = None,
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
    global_batch: Annotated[
        int | None, typer.Option(help="Samples a step over all accelerators; chosen unless given.")
    ] = None,
    samples: Annotated[float | None, typer.Option(help="Samples to train on, not to the target.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Tokens to train on, likewise.")] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="P[,P...]", help="Precisions to try, e.g. bf16,fp8; bf16.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write it as one HTML file too.")
    ] = None,
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
        from equipoise.cli.advise_fields import fields
        from equipoise.cli.advised import text
        from equipoise.cli.asked_advice import Asked, asked, request
        from equipoise.study import advice

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
            found = advice(request(asked(given)), data=data, also=also or ())
        if recorded:
            from equipoise.advice.answer.predictions import of_advice
            from equipoise.advice.ledger import add_predictions, ledger_path

            add_predictions(ledger_path(), of_advice(found.advice))
        if html:
            from equipoise.report.html import render
            from equipoise.report.pages import ADVICE

            with written_aside(html) as file:
                file.write(render(ADVICE, found).encode())
        answer.give(lambda: fields(found.advice), lambda: text(found.advice))

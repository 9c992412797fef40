"""The verbs of theory: what the performance model says of steps, and how wrong it is."""

from pathlib import Path
from typing import Annotated, Literal

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
    Region,
    Samples,
    Tokens,
    Workloads,
    clusters_from,
    deadline_s,
    extend_catalogue,
    trained_from,
)
from equipoise.cli.output import answering, answers_only, written_aside


def validate(
    *,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Measurements (CSV, Parquet), one row a figure.")
    ],
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Fit the model to this file's rows first; may be repeated."),
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            metavar="none|leave-COLUMN-out",
            help="Hold out all rows of one value of a column in turn: n_gpus, hidden, strategy, model ...",
        ),
    ] = "none",
    profile: Annotated[
        str,
        typer.Option(
            metavar="auto|priors|NAME", help="Shipped parameters, for rows that nothing is fitted to."
        ),
    ] = "auto",
    worst: Annotated[int, typer.Option(min=0, max=1000, help="How many of the worst rows to print.")] = 8,
    hardware: Hardware = None,
    workloads: Workloads = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Hold the performance model against measured rows."""
    extend_catalogue(hardware, workloads)
    with answering("validate", as_json=as_json, json_out=json_out) as answer:
        from threadpoolctl import threadpool_limits

        from equipoise.advice.validation.shipped import basis_of
        from equipoise.advice.validation.validate import validate as hold_against
        from equipoise.cli.console import progress_bar
        from equipoise.cli.validated import fields, text

        # The matrices are small: threads would only wait for each other.
        with progress_bar() as progress, threadpool_limits(limits=1):
            found = hold_against(
                files,
                calibrate_on=calibrate or (),
                split=split,
                basis_of=basis_of(profile),
                progress=progress,
            )
        answer.give(lambda: fields(found, num_worst=worst), lambda: text(found, num_worst=worst))


def plan(
    *,
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD|MODULE:FUNCTION",
            autocompletion=trained_from,
            help="What to train: of `list workloads`, or a function that returns model and batch.",
        ),
    ],
    accelerator: Annotated[
        list[str],
        typer.Option(
            metavar="[Nx]NAME",
            autocompletion=clusters_from,
            help="An accelerator or system, e.g. dgx-h100; several are compared.",
        ),
    ],
    accelerators: Annotated[
        str | None,
        typer.Option(
            metavar="N|N..M|N,M", help="How many accelerators: a number, a range, a list; one node."
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="How many nodes, instead.")] = None,
    node_size: Annotated[int | None, typer.Option(min=1, help="Accelerators of a node.")] = None,
    global_batch: GlobalBatch = None,
    samples: Samples = None,
    tokens: Tokens = None,
    objective: Annotated[
        Literal["time", "cost", "energy", "balance"], typer.Option(help="What decides between sizes.")
    ] = "balance",
    deadline: Deadline = None,
    budget: Budget = None,
    precision: Precisions = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KNOB=VALUES", help="What a knob may be: tp=8, shard_state=2..3, offload=none,optimizer."
        ),
    ] = None,
    power_cap: Annotated[
        float | None, typer.Option(metavar="W", help="Watts an accelerator may take.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="A calibration, or `priors`; that of the accelerator unless given.")
    ] = None,
    collectives: Collectives = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many layouts to show.")] = 10,
    price: Price = None,
    region: Region = "world",
    html: AsHtml = None,
    recorded: Recorded = False,
    data: Data = None,
    also: Also = None,
    hardware: Hardware = None,
    workloads: Workloads = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Find the best strategy, and where more stop paying."""
    extend_catalogue(hardware, workloads)
    with answering("plan", as_json=as_json, json_out=json_out) as answer:
        from equipoise.advice.forecast.answer import Terms
        from equipoise.advice.plans.compared import comparison
        from equipoise.advice.plans.plan import plan as best_plan
        from equipoise.cli.asked import Asked, questions
        from equipoise.cli.plan_fields import fields
        from equipoise.cli.planned import text
        from equipoise.runs.chosen import tables

        asked = Asked(
            workload=workload,
            accelerators=tuple(accelerator),
            sizes=accelerators,
            nodes=nodes,
            node_size=node_size,
            global_batch=global_batch,
            samples=samples,
            tokens=tokens,
            objective=objective,
            deadline_s=deadline_s(deadline),
            budget_usd=budget,
            precision=precision,
            fixed=tuple(fix or ()),
            power_cap_w=power_cap,
            profile=profile,
            collectives=tuple(collectives or ()),
            top=top,
        )
        terms = Terms(usd_per_accelerator_hour=price, region=region)
        scores = tables(data=data, also=also or ()).scores
        with answers_only():
            found = comparison([best_plan(each, terms=terms, scores=scores) for each in questions(asked)])
        if recorded:
            from equipoise.advice.ledger.kept import add_predictions, ledger_path
            from equipoise.advice.ledger.made import of_plan

            add_predictions(ledger_path(), of_plan(found.plan))
        if html:
            from equipoise.report.html import render
            from equipoise.report.pages import PLAN
            from equipoise.study import plan_findings

            with written_aside(html) as file:
                file.write(render(PLAN, plan_findings(found)).encode())
        answer.give(lambda: fields(found), lambda: text(found))

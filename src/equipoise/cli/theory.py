"""The verbs of theory: what the performance model says of steps, and how wrong it is."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from equipoise.cli.options import Also, AsJson, Data, Hardware, JsonOut, Workloads, extend_catalogue
from equipoise.cli.output import answering


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

        from equipoise.advice.validate import validate as hold_against
        from equipoise.cli.console import progress_bar
        from equipoise.cli.validated import fields, text

        # The matrices are small: threads would only wait for each other.
        with progress_bar() as progress, threadpool_limits(limits=1):
            found = hold_against(files, calibrate_on=calibrate or (), split=split, progress=progress)
        answer.give(lambda: fields(found, num_worst=worst), lambda: text(found, num_worst=worst))


def plan(
    *,
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD|MODULE:FUNCTION", help="What to train.")],
    accelerator: Annotated[
        str, typer.Option(metavar="NAME", help="An accelerator or system, e.g. dgx-h100.")
    ],
    accelerators: Annotated[
        str | None, typer.Option(metavar="N|N..M", help="How many accelerators, or between which numbers.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="How many nodes, instead.")] = None,
    node_size: Annotated[int | None, typer.Option(min=1, help="Accelerators of a node.")] = None,
    global_batch: Annotated[int | None, typer.Option(help="Samples a step over all accelerators.")] = None,
    samples: Annotated[float | None, typer.Option(help="Samples to train on.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Tokens to train on, instead.")] = None,
    objective: Annotated[
        Literal["time", "cost", "energy", "balance"], typer.Option(help="What decides between sizes.")
    ] = "balance",
    deadline: Annotated[
        float | None, typer.Option(metavar="HOURS", help="Hours that training may take.")
    ] = None,
    budget: Annotated[float | None, typer.Option(metavar="USD", help="US dollars that it may cost.")] = None,
    precision: Annotated[
        str | None,
        typer.Option(metavar="P[,P...]", help="Precisions to try: bf16, fp8 ...; bf16 unless given."),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Values of a knob: tp=8, shard_state=2..3, recompute=none,full."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many layouts to show.")] = 10,
    price: Annotated[float | None, typer.Option(help="US dollars an accelerator-hour.")] = None,
    region: Annotated[str, typer.Option(help="Whose electricity the carbon is of.")] = "world",
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
        from equipoise.advice.answer import Terms
        from equipoise.advice.plan import plan as best_plan
        from equipoise.advice.planned import Question
        from equipoise.cli.asked import choices, sizes
        from equipoise.cli.planned import fields, text
        from equipoise.spec.cluster import NodeFacts
        from equipoise.study import tables
        from equipoise.units import HOUR_S

        node: NodeFacts = {} if node_size is None else {"node_size": node_size}
        fewest, most = sizes(accelerators, nodes, accelerator=accelerator, node=node)
        question = Question(
            workload=workload,
            accelerator=accelerator,
            fewest=fewest,
            most=most,
            objective=objective,
            global_batch_samples=global_batch,
            training_samples=samples,
            training_tokens=tokens,
            deadline_s=math.inf if deadline is None else deadline * HOUR_S,
            budget_usd=math.inf if budget is None else budget,
            choices=choices(fix or (), precision=precision),
            node=node,
            num_best=top,
        )
        terms = Terms(usd_per_accelerator_hour=price, region=region)
        found = best_plan(question, terms=terms, scores=tables(data=data, also=also or ()).scores)
        answer.give(lambda: fields(found), lambda: text(found))

"""The verbs of understanding: predict times at sizes nobody ran, and tell how wrong such predictions were."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from equipoise.cli.options import (
    Also,
    AsJson,
    Columns,
    Data,
    Deadline,
    Hardware,
    JsonOut,
    Price,
    Recorded,
    Region,
    Workloads,
    deadline_s,
    extend_catalogue,
)
from equipoise.cli.output import answering
from equipoise.errors import SpecError, UsageError

_MAX_LIST = 1000


def predict(
    *,
    workload: Annotated[str | None, typer.Option(help="A workload, e.g. bert.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="An accelerator, e.g. h100-sxm5-80gb.")] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="N[,N...]", help="Numbers of accelerators; those measured, and twice the most."),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Your own times (CSV, Parquet, exports: docs/interop.md), alone or beside results.",
        ),
    ] = None,
    column: Columns = None,
    global_batch: Annotated[float | None, typer.Option(help="Samples a step over all accelerators.")] = None,
    law: Annotated[str | None, typer.Option(help="One law alone, e.g. amdahl; `pooled` for results.")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Which rows of FILE to take, where it has several, e.g. ddp.")
    ] = None,
    round_: Annotated[
        str | None, typer.Option("--round", help="The round to start from; the accelerator's newest.")
    ] = None,
    price: Price = None,
    region: Region = "world",
    hour_usd: Annotated[float | None, typer.Option(help="What an hour of waiting costs, US dollars.")] = None,
    deadline: Deadline = None,
    recorded: Recorded = False,
    data: Data = None,
    also: Also = None,
    hardware: Hardware = None,
    workloads: Workloads = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Foretell times, costs and where more stop paying."""
    extend_catalogue(hardware, workloads)
    with answering("predict", as_json=as_json, json_out=json_out) as answer:
        from equipoise.advice.forecast.answer import Inquiry, Terms
        from equipoise.advice.forecast.forecast import forecast
        from equipoise.cli.foretold import fields, text
        from equipoise.runs.chosen import tables
        from equipoise.runs.readers.exports import columns_of
        from equipoise.runs.readers.measurements import read_measurements

        inquiry = Inquiry(
            workload=workload,
            accelerator=accelerator,
            sizes=_sizes(at),
            global_batch_samples=global_batch,
            law=law,
            round=round_,
        )
        terms = Terms(
            usd_per_accelerator_hour=price,
            region=region,
            usd_per_hour=hour_usd,
            deadline_s=deadline_s(deadline),
        )
        own = None
        if from_ is not None:
            own = read_measurements(
                from_,
                workload=workload,
                accelerator=accelerator,
                strategy=strategy,
                columns=columns_of(column or ()),
            )
        found = forecast(tables(data=data, also=also or ()).scores, inquiry, own=own, terms=terms)
        if recorded:
            from equipoise.advice.ledger.kept import add_predictions, ledger_path
            from equipoise.advice.ledger.made import of_forecast

            add_predictions(ledger_path(), of_forecast(found, global_batch_samples=global_batch))
        answer.give(lambda: fields(found), lambda: text(found))


def backtest(
    *,
    rounds: Annotated[
        str | None, typer.Option(metavar="R[,R...]", help="Rounds to foretell; all unless given.")
    ] = None,
    given: Annotated[
        Literal["batch"] | None, typer.Option(help="Let the law know the batch of what is held out.")
    ] = None,
    new_round: Annotated[
        bool, typer.Option("--new-round", help="Hold out all sizes but a group's smallest, not the largest.")
    ] = False,
    advice: Annotated[
        bool, typer.Option("--advice", help="Test the advised number of accelerators, not the times.")
    ] = False,
    data: Data = None,
    also: Also = None,
    hardware: Hardware = None,
    workloads: Workloads = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Foretell past results from earlier ones; say how wrong."""
    if advice and (given or new_round):
        raise UsageError(
            f"--advice with {'--given' if given else '--new-round'}: advice knows no batch and holds out "
            "sizes in its own ways; leave one of the two away"
        )
    extend_catalogue(hardware, workloads)
    with answering("backtest", as_json=as_json, json_out=json_out) as answer:
        from threadpoolctl import threadpool_limits

        from equipoise.advice.forecast.held_out_advice import held_out_advice
        from equipoise.cli import backtested, backtested_advice
        from equipoise.cli.console import progress_bar
        from equipoise.runs.chosen import tables
        from equipoise.scaling.backtest import backtest as hold_out

        scores = tables(data=data, also=also or ()).scores
        held = sorted(scores["campaign"].drop_nulls().unique())
        chosen = _rounds(rounds, held)
        # The matrices are small: threads would only wait for each other.
        with progress_bar() as progress, threadpool_limits(limits=1):
            told: list[str] = []

            def show(round_: str) -> None:
                told.append(round_)
                if progress is not None:
                    progress(round_, len(told) - 1, len(chosen or held))

            if advice:
                advised = held_out_advice(scores, rounds=chosen, progress=show)
                answer.give(
                    lambda: backtested_advice.fields(advised), lambda: backtested_advice.text(advised)
                )
                return
            result = hold_out(
                scores,
                protocol="new_round" if new_round else "largest",
                rounds=chosen,
                given_batch=given == "batch",
                progress=show,
            )
        answer.give(lambda: backtested.fields(result), lambda: backtested.text(result))


def _sizes(listed: str | None) -> tuple[int, ...]:
    """Numbers of accelerators from the command line, in the order given, each once."""
    if listed is None:
        return ()
    items = [item.strip() for item in listed.split(",")]
    wrong = next((item for item in items if not re.fullmatch(r"[0-9]{1,12}", item)), None)
    if wrong is not None or len(items) > _MAX_LIST:
        raise UsageError(f"--at {wrong!r}: expected whole numbers such as 8,16,32")
    return tuple(dict.fromkeys(int(item) for item in items))


def _rounds(listed: str | None, held: list[str]) -> list[str] | None:
    """Rounds from the command line as the data name them."""
    if listed is None:
        return None
    wanted = [f"v{item.strip().lower().removeprefix('v')}" for item in listed.split(",")]
    unknown = next((name for name in wanted if name not in held), None)
    if unknown is not None:
        raise SpecError(f"round {unknown!r} is not in the data; they hold {', '.join(held)}")
    return wanted

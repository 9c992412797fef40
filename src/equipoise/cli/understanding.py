"""The verbs of accuracy.

`backtest` on published results, `validate` of the performance model on measured rows.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from equipoise.cli.options import Also, AsHtml, AsJson, Data, Full, Hardware, JsonOut, Workloads, catalogue_of
from equipoise.cli.output import answering, progress_line
from equipoise.errors import SpecError, UsageError


def backtest(
    *,
    rounds: Annotated[
        str | None, typer.Option(metavar="R[,R...]", help="Rounds to predict; default all.")
    ] = None,
    given: Annotated[
        Literal["batch"] | None, typer.Option(help="Give the law the batch of the held-out results.")
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
    html: AsHtml = None,
    full: Full = False,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Predict past results from earlier ones; report how wrong."""
    if advice and (given or new_round):
        raise UsageError(
            f"--advice with {'--given' if given else '--new-round'}: a backtest of advice uses no "
            "batch and chooses the held-out sizes itself; give one of the two"
        )
    catalogue_of(hardware, workloads)  # whether the files can be read: held-out results name no user's chip
    with answering("backtest", as_json=as_json, json_out=json_out, html=html) as answer:
        from threadpoolctl import threadpool_limits

        from equipoise.calibration.advice_backtest import held_out_advice
        from equipoise.report.measured_json import advice_backtest_fields, backtest_fields
        from equipoise.report.pages.backtest import ADVICE_BACKTEST, BACKTEST
        from equipoise.runs.embedded import scores
        from equipoise.runs.results import best_per_size
        from equipoise.scaling.backtest import backtest as hold_out

        entries = scores(data=data, also=also or ()).entries
        held = sorted({each.campaign for each in entries})
        chosen = _rounds(rounds, held)
        # The matrices are small: threads would only wait for each other.
        with progress_line() as line, threadpool_limits(limits=1):
            done: list[str] = []

            def show(round_: str) -> None:
                done.append(round_)
                line.update(round_, len(done) - 1, len(chosen or held))

            if advice:
                advised = held_out_advice(entries, rounds=chosen, progress=show)
                answer.give_page(ADVICE_BACKTEST, advised, advice_backtest_fields, full=full)
                return
            result = hold_out(
                best_per_size(entries),
                protocol="new_round" if new_round else "largest",
                rounds=chosen,
                given_batch=given == "batch",
                progress=show,
            )
        answer.give_page(BACKTEST, result, backtest_fields, full=full)


def _rounds(listed: str | None, held: list[str]) -> list[str] | None:
    """Rounds from the command line as the data name them."""
    if listed is None:
        return None
    wanted = [f"v{item.strip().lower().removeprefix('v')}" for item in listed.split(",")]
    unknown = next((name for name in wanted if name not in held), None)
    if unknown is not None:
        raise SpecError(f"round {unknown!r} is not in the data; it has {', '.join(held)}")
    return wanted


def validate(
    *,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...",
            help="Measurements (CSV, Parquet), one row per figure; default the published steps that ship.",
        ),
    ] = None,
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
            metavar="auto|priors|NAME", help="Shipped calibration for rows without fitted parameters."
        ),
    ] = "auto",
    worst: Annotated[int, typer.Option(min=0, max=1000, help="How many of the worst rows to print.")] = 8,
    hardware: Hardware = None,
    workloads: Workloads = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Compare the performance model with measured rows."""
    catalogue = catalogue_of(hardware, workloads)
    with answering("validate", as_json=as_json, json_out=json_out) as answer:
        from threadpoolctl import threadpool_limits

        from equipoise.calibration.validate import basis_of
        from equipoise.calibration.validate import validate as hold_against
        from equipoise.report.measured_json import validation_fields
        from equipoise.report.pages.backtest import validation_page

        # The matrices are small: threads would only wait for each other.
        with progress_line() as line, threadpool_limits(limits=1):
            found = hold_against(
                files or (),
                calibrate_on=calibrate or (),
                split=split,
                basis_of=basis_of(profile),
                progress=line.update,
                catalogue=catalogue,
            )
        answer.give_page(
            validation_page(worst), found, lambda record: validation_fields(record, num_worst=worst)
        )

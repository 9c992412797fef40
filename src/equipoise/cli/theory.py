"""The verb `validate`: how wrong the performance model is on measured rows."""

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.options import AsJson, Hardware, JsonOut, Workloads, catalogue_of
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
    """Compare the performance model with measured rows."""
    catalogue = catalogue_of(hardware, workloads)
    with answering("validate", as_json=as_json, json_out=json_out) as answer:
        from threadpoolctl import threadpool_limits

        from equipoise.advice.validation.shipped import basis_of
        from equipoise.advice.validation.validate import validate as hold_against
        from equipoise.cli.console import progress_bar
        from equipoise.report.measured_json import validation_fields
        from equipoise.report.pages.validation import validation_page

        # The matrices are small: threads would only wait for each other.
        with progress_bar() as progress, threadpool_limits(limits=1):
            found = hold_against(
                files,
                calibrate_on=calibrate or (),
                split=split,
                basis_of=basis_of(profile),
                progress=progress,
                catalogue=catalogue,
            )
        answer.give_page(
            validation_page(worst), found, lambda record: validation_fields(record, num_worst=worst)
        )

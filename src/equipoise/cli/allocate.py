"""The verb `allocate`: several trainings, one pool of accelerators."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from equipoise.cli.output import answering, answers_only
from equipoise.cli.questions import Asked, Output, asks


@asks("allocate", outputs=("html", "full", "as_json", "json_out"))
def allocate(
    asked: Asked,
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
                jobs, asked, objective=objective, electricity_by_hour=electricity_by_hour, begin=begin
            )
        shown = found.presentation
        answer.give_page(shown.page, found.record, shown.fields, full=output.full)

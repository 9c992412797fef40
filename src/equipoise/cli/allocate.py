"""The verb `allocate`: several trainings, one pool of accelerators."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from equipoise.cli.options import (
    Also,
    AsJson,
    Data,
    Hardware,
    JsonOut,
    Price,
    Region,
    Workloads,
    clusters_from,
    extend_catalogue,
)
from equipoise.cli.output import answering, answers_only


def allocate(
    jobs: Annotated[
        Path, typer.Argument(metavar="JOBS.toml", help="The trainings: docs/allocate.md tells its form.")
    ],
    *,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="[Nx]NAME", autocompletion=clusters_from, help='The pool, e.g. "64x h100-sxm5-80gb".'
        ),
    ],
    objective: Annotated[
        Literal["time", "makespan", "cost", "energy"],
        typer.Option(help="What to make least: all jobs' times, the last one's end, money, energy."),
    ] = "time",
    electricity_by_hour: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Prices of electricity: hour (0 to 23), usd_per_kwh."),
    ] = None,
    begin: Annotated[
        str | None, typer.Option(metavar="HH:MM", help="Time of day at which the plan begins; 00:00.")
    ] = None,
    price: Price = None,
    region: Region = "world",
    data: Data = None,
    also: Also = None,
    hardware: Hardware = None,
    workloads: Workloads = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Share a pool of accelerators between trainings."""
    extend_catalogue(hardware, workloads)
    with answering("allocate", as_json=as_json, json_out=json_out) as answer:
        from equipoise.advice.allocation.allocate import Pool
        from equipoise.advice.allocation.allocate import allocate as shared_out
        from equipoise.advice.allocation.jobs import clock_s, read_jobs, read_prices, tariff_of
        from equipoise.advice.allocation.times import times
        from equipoise.advice.forecast.answer import Terms
        from equipoise.cli.allocated import fields, text
        from equipoise.cli.asked import counted_name, sizes
        from equipoise.economics import rates
        from equipoise.runs.chosen import tables
        from equipoise.spec.cluster import cluster as machines

        file = read_jobs(jobs)
        prices = None if electricity_by_hour is None else read_prices(electricity_by_hour)
        tariff = tariff_of(file, prices, None if begin is None else clock_s(begin, where="--begin"))
        count, name = counted_name(cluster)
        _, most, _ = sizes(count, None, accelerator=name, node={})
        nodes = machines(name, num_accelerators=most)
        scores = tables(data=data, also=also or ()).scores
        with answers_only():
            timed = times(
                file.jobs,
                nodes,
                pool=name,
                scores=scores,
                terms=Terms(usd_per_accelerator_hour=price, region=region),
            )
        pool = Pool(
            cluster=nodes,
            rates=rates(nodes.accelerator, own_price=price, region=region),
            tariff=tariff,
            is_rented=tariff is None or price is not None,
        )
        found = shared_out(file.jobs, timed, pool, objective=objective)
        answer.give(lambda: fields(found), lambda: text(found))

"""The verbs of measurement: links and collectives, traces of training, and training itself."""

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.options import AsJson, Hardware, JsonOut, clusters_from, extend_catalogue
from equipoise.cli.output import answering


def collectives(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Output of nccl-tests or rccl-tests: text or -J JSON."),
    ],
    ops: Annotated[
        str | None, typer.Option(metavar="OP", help="The operation of tables that do not name theirs.")
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=clusters_from,
            help="What was measured, where the files do not say.",
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="The weakest link between ranks: NV#, PIX, PXB, PHB, NODE, SYS."),
    ] = None,
    hardware: Hardware = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Fit latency and bandwidth of collectives; say if they are normal."""
    extend_catalogue(hardware, None)
    with answering("collectives", as_json=as_json, json_out=json_out) as answer:
        from equipoise.advice.collectives import judged
        from equipoise.bench.collectives.files import named_operation, read_files
        from equipoise.cli.measured_links import fields, text

        reading = read_files(files, operation=None if ops is None else named_operation(ops))
        found = judged(reading, accelerator=accelerator, link=link)
        answer.give(lambda: fields(found), lambda: text(found))

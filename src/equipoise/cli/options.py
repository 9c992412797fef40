"""Options that several verbs share, each with its one meaning."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
JsonOut = Annotated[
    Path | None, typer.Option("--json-out", metavar="FILE", help="Write the JSON document to FILE besides.")
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Read what `ingest --into DIR` wrote in place of the embedded data."),
]
Also = Annotated[
    list[Path] | None,
    typer.Option(metavar="DIR", help="Read it beside the other data; may be repeated."),
]
Hardware = Annotated[
    list[Path] | None,
    typer.Option("--hardware", metavar="FILE", help="Add or override accelerators from a TOML file."),
]
Workloads = Annotated[
    list[Path] | None,
    typer.Option("--workloads", metavar="FILE", help="Add or override workloads from a TOML file."),
]


def extend_catalogue(hardware: list[Path] | None, workloads: list[Path] | None) -> None:
    """Let the user's own accelerators and workloads take part, before anything is looked up."""
    if hardware or workloads:
        from equipoise.spec import hardware as accelerators
        from equipoise.spec import workload as catalogue

        for path in hardware or ():
            accelerators.add_file(path)
        for path in workloads or ():
            catalogue.add_file(path)

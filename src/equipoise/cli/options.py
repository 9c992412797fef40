"""Options that several verbs share, each with its one meaning."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from equipoise.errors import UsageError


def _rounds_from(incomplete: str) -> list[str]:
    """Embedded rounds, for a shell that completes a word."""
    from equipoise.runs import embedded

    return [one.name for one in embedded.rounds() if one.name.startswith(incomplete)]


def _workloads_from(incomplete: str) -> list[str]:
    """Workloads that MLPerf publishes results of, for a shell that completes a word."""
    from equipoise.spec.workload import workloads

    published = (one for one in workloads() if one.first_round is not None)
    return [one.slug for one in published if one.slug.startswith(incomplete)]


def _accelerators_from(incomplete: str) -> list[str]:
    """Accelerators of the catalogue, for a shell that completes a word."""
    from equipoise.spec.hardware import accelerators

    return [one.slug for one in accelerators() if one.slug.startswith(incomplete)]


def trained_from(incomplete: str) -> list[str]:
    """Workloads of the catalogue, for a shell that completes a word."""
    from equipoise.spec.workload import workloads

    return [one.slug for one in workloads() if one.slug.startswith(incomplete)]


def clusters_from(incomplete: str) -> list[str]:
    """Accelerators and systems of the catalogue, for a shell that completes a word."""
    from equipoise.spec.cluster import systems

    named = [one.slug for one in systems() if one.slug.startswith(incomplete)]
    return [*_accelerators_from(incomplete), *named]


Round = Annotated[
    str | None, typer.Option("--round", autocompletion=_rounds_from, help="A round, e.g. v4.1.")
]
Workload = Annotated[str | None, typer.Option(autocompletion=_workloads_from, help="A workload, e.g. bert.")]
SeveralWorkloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        autocompletion=_workloads_from,
        help="A workload; may be repeated. Those of the study unless given.",
    ),
]
Accelerator = Annotated[
    str | None,
    typer.Option(autocompletion=_accelerators_from, help="An accelerator, e.g. h100-sxm5-80gb."),
]
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
    typer.Option(
        "--hardware", metavar="FILE", help="Add or override accelerators and clusters from a TOML file."
    ),
]
Workloads = Annotated[
    list[Path] | None,
    typer.Option("--workloads", metavar="FILE", help="Add or override workloads from a TOML file."),
]
Price = Annotated[float | None, typer.Option(help="US dollars an accelerator-hour.")]
Region = Annotated[str, typer.Option(help="Whose electricity the carbon is of.")]
Budget = Annotated[float | None, typer.Option(metavar="USD", help="What it may cost.")]
Deadline = Annotated[str | None, typer.Option(metavar="HOURS", help="What training may take: 12, 90min, 2d.")]
GlobalBatch = Annotated[
    int | None, typer.Option(help="Samples a step over all accelerators; chosen unless given.")
]
Samples = Annotated[float | None, typer.Option(help="Samples to train on, not to the target.")]
Tokens = Annotated[float | None, typer.Option(help="Tokens to train on, likewise.")]
Precisions = Annotated[
    str | None, typer.Option(metavar="P[,P...]", help="Precisions to try, e.g. bf16,fp8; bf16.")
]
AsHtml = Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write it as one HTML file too.")]
Collectives = Annotated[
    list[Path] | None,
    typer.Option(
        "--collectives",
        metavar="FILE",
        help="Your own nccl-tests, or of `collectives --measure`: they replace the catalogue's links.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column", metavar="OURS=THEIRS", help="What a column of FILE is, as num_accelerators=world_size."
    ),
]
Recorded = Annotated[
    bool,
    typer.Option("--record", help="Keep it in your ledger, for `record` to hold against what is measured."),
]


def deadline_s(given: str | float | None) -> float | None:
    """The seconds of `--deadline`: hours, or a time with its unit; None where there is none.

    Raises UsageError for other text.

    >>> deadline_s("2"), deadline_s("90min")
    (7200.0, 5400.0)
    """
    from equipoise.units import HOUR_S, duration_s

    if given is None:
        return None
    try:
        return float(given) * HOUR_S
    except ValueError:
        found = duration_s(str(given))
    if found is None:
        raise UsageError(f"--deadline {given!r}; expected hours, or a time with its unit such as 90min or 2d")
    return found


def extend_catalogue(hardware: Sequence[Path] | None, workloads: Sequence[Path] | None) -> None:
    """Let the user's own accelerators and workloads take part, before anything is looked up."""
    if hardware or workloads:
        from equipoise.spec import cluster as machines
        from equipoise.spec import workload as catalogue

        for path in hardware or ():
            machines.add_file(path)
        for path in workloads or ():
            catalogue.add_file(path)

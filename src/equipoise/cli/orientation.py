"""The verbs of orientation: what there is, what a word means, and what works on this machine (`doctor`)."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from equipoise import spec
from equipoise.cli.options import Also, AsJson, Data, Hardware, JsonOut, Workloads, catalogue_of
from equipoise.cli.output import VerbOutput, answering, handed_out, write
from equipoise.errors import UsageError

if TYPE_CHECKING:
    from equipoise.spec.catalogue import Catalogue

_KINDS: Final = (
    *("rounds", "workloads", "accelerators", "clusters", "strategies", "software"),
    *("methods", "models", "laws", "prices", "regions", "interruptions", "steps"),
)
# Files of the package that show how an entry of one's own is written.
_EXAMPLES: Final = {
    "accelerators": "example_hardware.toml",
    "clusters": "example_hardware.toml",
    "workloads": "example_workloads.toml",
}


def _kinds_from(incomplete: str) -> list[str]:
    """What can be listed, for a shell that completes a word."""
    return [kind for kind in _KINDS if kind.startswith(incomplete)]


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", autocompletion=_kinds_from, help=f"What to list: {', '.join(_KINDS)}."
        ),
    ],
    *,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of steps: part of the model's name, e.g. llama.")
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            "--accelerator",
            "--chip",
            metavar="NAME",
            help="Of steps: an accelerator, or a chip in all forms: h100.",
        ),
    ] = None,
    software: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of steps: as of --software, or a word: nemo.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of steps: part of the repository or paper.")
    ] = None,
    format_: Annotated[
        Literal["table", "csv", "parquet", "jsonl"] | None,
        typer.Option("--format", help="Of steps: output format; default a table."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of steps: write there instead of printing.")
    ] = None,
    data: Data = None,
    also: Also = None,
    hardware: Hardware = None,
    workloads: Workloads = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print instead a file with an entry of your own, to edit.")
    ] = False,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """List rounds, workloads, accelerators, prices and other things that there are."""
    if kind not in _KINDS:
        raise UsageError(f"list {kind[:40]!r}: expected one of {', '.join(_KINDS)}")
    if example:
        if kind not in _EXAMPLES:
            raise UsageError(f"--example: {kind} have none; expected {', '.join(sorted(_EXAMPLES))}")
        write((Path(spec.__file__).parent / _EXAMPLES[kind]).read_text(encoding="utf-8"))
        return
    catalogue = catalogue_of(hardware, workloads)
    of_steps = {"model": model, "accelerator": accelerator, "software": software, "source": source}
    with answering("list", as_json=as_json, json_out=json_out) as answer:
        if kind == "steps":
            if data or also:
                raise UsageError("list steps: --data and --also are of results; leave them out")
            _list_steps(answer, of_steps, format_, out, catalogue)
            return
        given = [f"--{name}" for name, value in {**of_steps, "format": format_, "out": out}.items() if value]
        if given:
            raise UsageError(f"list {kind}: {given[0]} is of steps; leave it out, or `list steps`")
        from equipoise.cli.listing import LISTED
        from equipoise.report.pages.orientation import LISTING, Listing
        from equipoise.runs import embedded

        rows = LISTED[kind](embedded.tables(data=data, also=also or ()), catalogue)
        first = f"embedded dataset {embedded.version()}" if data is None else str(data)
        found = Listing(kind=kind, rows=rows, sources=", ".join([first, *map(str, also or ())]))
        answer.give_page(LISTING, found, lambda found: {kind: found.rows}, full=False)


def _list_steps(
    answer: VerbOutput,
    wanted: dict[str, str | None],
    format_: str | None,
    out: Path | None,
    catalogue: "Catalogue",
) -> None:
    """The published training steps, with what the model predicts of each."""
    from equipoise.calibration.published_steps import StepFilter, listed_steps
    from equipoise.report.json import plain
    from equipoise.report.pages.published_steps import STEPS, StepListing
    from equipoise.units import significant

    step_filter = StepFilter(**wanted)
    frame = listed_steps(step_filter, catalogue)
    if format_ == "table" or (format_ is None and out is None):
        found = StepListing(rows=frame.to_dicts(), filters=step_filter.words)
        answer.give_page(STEPS, found, lambda found: {"steps": significant(plain(found.rows))}, full=False)
    else:
        handed = handed_out(frame, format_, out, as_json=answer.as_json)
        answer.give(lambda: {"steps": significant(plain(frame.to_dicts()))}, lambda: handed)


def _terms_from(incomplete: str) -> list[str]:
    """Words of the glossary, for a shell that completes a word."""
    from equipoise import glossary

    return [term.name for term in glossary.terms() if term.name.startswith(incomplete)]


def explain(
    term: Annotated[
        str | None, typer.Argument(autocompletion=_terms_from, help="A word of the glossary.")
    ] = None,
    *,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Explain a word in two sentences with its formula."""
    with answering("explain", as_json=as_json, json_out=json_out) as answer:
        from equipoise import glossary
        from equipoise.report.pages.orientation import TERM, TERMS, Explanation

        terms = glossary.terms() if term is None else (glossary.explain(term),)
        answer.give_page(TERMS if term is None else TERM, Explanation(terms=terms), full=False)


def doctor(*, as_json: AsJson = False, json_out: JsonOut = None) -> None:
    """Say what works here and what to install for the rest."""
    with answering("doctor", as_json=as_json, json_out=json_out) as answer:
        from equipoise.bench.equipment import installation
        from equipoise.report.pages.orientation import DOCTOR

        answer.give_page(DOCTOR, installation(), full=False)

"""The verbs of orientation: what there is, what a word means, and what works on this machine (`doctor`)."""

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from equipoise import spec
from equipoise.cli.options import Also, AsJson, Data, Hardware, JsonOut, Workloads, catalogue_of
from equipoise.cli.output import answering, write
from equipoise.errors import UsageError

_Kind = Literal["rounds", "workloads", "accelerators", "clusters", "strategies", "methods", "models", "laws"]
# Files of the package that show how an entry of one's own is written.
_EXAMPLES: Final = {
    "accelerators": "example_hardware.toml",
    "clusters": "example_hardware.toml",
    "workloads": "example_workloads.toml",
}


def list_(
    kind: Annotated[_Kind, typer.Argument(help="What to list.")],
    *,
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
    """List rounds, workloads, accelerators, clusters, strategies, ways to train, models or laws."""
    if example:
        if kind not in _EXAMPLES:
            raise UsageError(f"--example: {kind} have none; expected {', '.join(sorted(_EXAMPLES))}")
        write((Path(spec.__file__).parent / _EXAMPLES[kind]).read_text(encoding="utf-8"))
        return
    catalogue = catalogue_of(hardware, workloads)
    with answering("list", as_json=as_json, json_out=json_out) as answer:
        from equipoise.cli.listing import LISTED
        from equipoise.report.pages.orientation import LISTING, Listing
        from equipoise.runs import embedded

        rows = LISTED[kind](embedded.tables(data=data, also=also or ()), catalogue)
        first = f"embedded dataset {embedded.version()}" if data is None else str(data)
        found = Listing(kind=kind, rows=rows, sources=", ".join([first, *map(str, also or ())]))
        answer.give_page(LISTING, found, lambda found: {kind: found.rows}, full=False)


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

"""The verbs of orientation: what there is, what a word means, what works on this machine."""

from typing import Annotated, Literal

import typer

from equipoise.cli.options import Also, AsJson, Data, Hardware, JsonOut, Workloads, catalogue_of
from equipoise.cli.output import answering

_Kind = Literal["rounds", "workloads", "accelerators", "clusters", "strategies", "methods", "models", "laws"]


def list_(
    kind: Annotated[_Kind, typer.Argument(help="What to list.")],
    *,
    data: Data = None,
    also: Also = None,
    hardware: Hardware = None,
    workloads: Workloads = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """List rounds, workloads, accelerators, clusters, strategies, ways to train, models or laws."""
    catalogue = catalogue_of(hardware, workloads)
    with answering("list", as_json=as_json, json_out=json_out) as answer:
        from equipoise.cli.listing import LISTINGS
        from equipoise.runs import embedded
        from equipoise.runs.chosen import tables

        listing = next(listing for listing in LISTINGS if listing.kind == kind)
        rows = listing.rows(tables(data=data, also=also or ()), catalogue)
        first = [f"embedded dataset {embedded.version()}" if data is None else str(data)]
        sources = ", ".join([*first, *(str(folder) for folder in also or ())])
        answer.give(lambda: {kind: rows}, lambda: listing.text(rows) + listing.count(rows, sources))


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
    from equipoise import glossary

    with answering("explain", as_json=as_json, json_out=json_out) as answer:
        terms = glossary.terms() if term is None else (glossary.explain(term),)
        answer.give(
            lambda: {"terms": [glossary.fields(one) for one in terms]},
            lambda: "".join(f"{one.name}\n" for one in terms) if term is None else glossary.text(terms[0]),
        )


def doctor(*, as_json: AsJson = False, json_out: JsonOut = None) -> None:
    """Say what works here and what to install for the rest."""
    with answering("doctor", as_json=as_json, json_out=json_out) as answer:
        from equipoise.cli.checkup import checks, text
        from equipoise.cli.equipment import equipment

        found, measuring = checks(), equipment()
        answer.give(lambda: {"checks": found, "measuring": measuring}, lambda: text(found, measuring))

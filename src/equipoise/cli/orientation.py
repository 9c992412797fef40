"""The verbs for orientation: known names (`list`), terms (`explain`), and this machine (`doctor`)."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from equipoise import spec
from equipoise.cli.app import write
from equipoise.cli.options import choices_from
from equipoise.cli.output import RESULTS, InputFiles, Output, verb
from equipoise.errors import UsageError

if TYPE_CHECKING:
    from equipoise.spec.catalogue import Catalogue

_KINDS: Final = (
    *("rounds", "workloads", "accelerators", "systems", "strategies", "software"),
    *("methods", "models", "laws", "prices", "regions", "interruptions", "steps"),
)
_BY_ACCELERATOR: Final = ("prices", "accelerators", "systems")
# Files of the package that show how to write a user's own entry.
_EXAMPLES: Final = {
    "accelerators": "example_hardware.toml",
    "systems": "example_hardware.toml",
    "workloads": "example_workloads.toml",
}


@verb(reads=RESULTS)
def list_(
    inputs: InputFiles,
    output: Output,
    *,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", autocompletion=choices_from(_KINDS), help=f"What to list: {', '.join(_KINDS)}."
        ),
    ],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="For steps: part of the model's name, e.g. llama.")
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            "--accelerator",
            "--chip",
            metavar="NAME",
            help="For steps, prices, accelerators and systems: an accelerator, or a chip in all forms: h100.",
        ),
    ] = None,
    software: Annotated[
        str | None, typer.Option(metavar="NAME", help="For steps: a name as in --software, or a word: nemo.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="For steps: part of the repository or paper.")
    ] = None,
    format_: Annotated[
        Literal["table", "csv", "parquet", "jsonl"] | None,
        typer.Option("--format", help="For steps: output format; default a table."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For steps: write there instead of printing.")
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print an example file to edit, with an entry of your own.")
    ] = False,
) -> None:
    """List rounds, workloads, accelerators, prices and other known names."""
    if kind not in _KINDS:
        raise UsageError(f"KIND is {kind[:40]!r}; expected one of {', '.join(_KINDS)}")
    if example:
        if kind not in _EXAMPLES:
            raise UsageError(f"--example: {kind} have none; expected {', '.join(sorted(_EXAMPLES))}")
        write((Path(spec.__file__).parent / _EXAMPLES[kind]).read_text(encoding="utf-8"))
        return
    of_steps = {"model": model, "accelerator": accelerator, "software": software, "source": source}
    with output.answering():
        if kind == "steps":
            if inputs.data or inputs.also:
                raise UsageError("list steps: --data and --also select results, not steps; leave them out")
            _list_steps(output, of_steps, format_, out, inputs.catalogue)
            return
        options = {**of_steps, "format": format_, "out": out}
        given = [name for name, value in options.items() if value]
        if kind in _BY_ACCELERATOR:
            given = [name for name in given if name != "accelerator"]
        if given:
            kinds = ("steps", *_BY_ACCELERATOR) if given[0] == "accelerator" else ("steps",)
            raise UsageError(
                f"list {kind}: --{given[0]} applies to {', '.join(kinds)}; leave it out, or ask `list steps`"
            )
        from equipoise.cli.listing import LISTED, has_any
        from equipoise.report.pages.orientation import LISTING, Listing
        from equipoise.runs import embedded

        rows = LISTED[kind](embedded.tables(data=inputs.data, also=inputs.also), inputs.catalogue)
        if accelerator is not None:
            forms = inputs.catalogue.forms(accelerator)
            rows = [each for each in rows if has_any(each, forms)]
            if not rows:
                raise UsageError(f"--accelerator {accelerator!r}: no {kind} are known for it")
        first = f"embedded dataset {embedded.version()}" if inputs.data is None else str(inputs.data)
        found = Listing(kind=kind, rows=rows, sources=", ".join([first, *map(str, inputs.also)]))
        output.give_page(LISTING, found, lambda found: {kind: found.rows})


def _list_steps(
    output: Output,
    wanted: dict[str, str | None],
    format_: str | None,
    out: Path | None,
    catalogue: "Catalogue",
) -> None:
    """Output the published training steps, with the model's prediction for each."""
    from equipoise.calibration.validate import StepFilter, listed_steps
    from equipoise.report.json import plain
    from equipoise.report.pages.published_steps import STEPS, StepListing
    from equipoise.units import significant

    step_filter = StepFilter(**wanted)
    frame = listed_steps(step_filter, catalogue)
    if format_ == "table" or (format_ is None and out is None):
        found = StepListing(rows=frame.to_dicts(), filters=step_filter.words)
        output.give_page(STEPS, found, lambda found: {"steps": significant(plain(found.rows))})
    else:
        output.give_table(frame, format_, out, lambda kept: {"steps": significant(plain(kept.to_dicts()))})


def _terms_from(incomplete: str) -> list[str]:
    """Terms of the glossary, for shell completion."""
    from equipoise import glossary

    return [term.name for term in glossary.terms() if term.name.startswith(incomplete)]


@verb()
def explain(
    output: Output,
    *,
    term: Annotated[
        list[str] | None, typer.Argument(autocompletion=_terms_from, help="A term; default: all of them.")
    ] = None,
) -> None:
    """Explain a term of the glossary, with its formula."""
    with output.answering():
        from equipoise import glossary
        from equipoise.report.pages.orientation import TERM, TERMS, Explanation

        terms = (glossary.explain(" ".join(term)),) if term else glossary.terms()
        output.give_page(TERM if term else TERMS, Explanation(terms=terms))


@verb()
def doctor(output: Output) -> None:
    """Report what works here and what to install for the rest."""
    with output.answering():
        from equipoise.bench.equipment import installation
        from equipoise.report.pages.orientation import DOCTOR

        output.give_page(DOCTOR, installation())

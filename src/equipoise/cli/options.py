"""Options that several verbs share, each with its one meaning."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer
from typer.core import TyperCommand

from equipoise.decide.question.field import GROUPS, Kind
from equipoise.decide.question.query import FIELDS, default_words

if TYPE_CHECKING:
    from equipoise.spec.catalogue import Catalogue


# The heading of options that say where an answer goes and how much of it is printed.
OUTPUT: Final = "Output"
_OPTIONS: Final = "Options"
_METAVARS: Final[Mapping[Kind, str]] = {"text": "NAME", "count": "N", "amount": "N", "number": "X"}


def rounds_from(incomplete: str) -> list[str]:
    """Embedded rounds, for a shell that completes a word."""
    from equipoise.runs import embedded

    return [one.name for one in embedded.rounds() if one.name.startswith(incomplete)]


def _workloads_from(incomplete: str) -> list[str]:
    """Workloads that MLPerf publishes results of, for a shell that completes a word."""
    from equipoise.spec.workload import shipped_workloads

    known = shipped_workloads().workloads
    return [slug for slug in trained_from(incomplete) if known[slug].first_round is not None]


def _accelerators_from(incomplete: str) -> list[str]:
    """Accelerators of the catalogue, for a shell that completes a word."""
    from equipoise.spec.hardware import shipped_hardware

    return [slug for slug in shipped_hardware().accelerators if slug.startswith(incomplete)]


def trained_from(incomplete: str) -> list[str]:
    """Workloads of the catalogue, for a shell that completes a word."""
    from equipoise.spec.workload import shipped_workloads

    return [slug for slug in shipped_workloads().workloads if slug.startswith(incomplete)]


def clusters_from(incomplete: str) -> list[str]:
    """Accelerators and systems of the catalogue, for a shell that completes a word."""
    from equipoise.spec.cluster import shipped_systems

    named = [slug for slug in shipped_systems().systems if slug.startswith(incomplete)]
    return [*_accelerators_from(incomplete), *named]


def option_of(name: str, *, completion: Callable[[str], list[str]] | None = None) -> Any:  # noqa: ANN401 - typer.Option's
    """The option of a field of the question, by attribute."""
    field = FIELDS[name]
    default = default_words(name)
    metavar = "|".join(field.choices) if field.kind == "choice" else _METAVARS.get(field.kind, "VALUE")
    return typer.Option(
        *(f"--{each}" for each in (field.option, *field.also)),
        metavar=None if field.kind == "flag" else field.metavar or metavar,
        help=f"{field.help} [default: {default}]" if default else field.help,
        autocompletion=completion or (_choices_from(field.choices) if field.kind == "choice" else None),
        rich_help_panel=GROUPS[field.group],
        show_default=False,
    )


def _choices_from(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """One of a few words, for a shell that completes it."""
    return lambda incomplete: [each for each in choices if each.startswith(incomplete)]


Round = Annotated[str | None, typer.Option("--round", autocompletion=rounds_from, help="A round, e.g. v4.1.")]
Workload = Annotated[str | None, typer.Option(autocompletion=_workloads_from, help="A workload, e.g. bert.")]
SeveralWorkloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        autocompletion=_workloads_from,
        help="A workload; may be repeated. Default: those of the study.",
    ),
]
Accelerator = Annotated[
    str | None,
    typer.Option(autocompletion=_accelerators_from, help="An accelerator, e.g. h100-sxm5-80gb."),
]
AsJson = Annotated[
    bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Print one JSON document and nothing else.")
]
JsonOut = Annotated[
    Path | None,
    typer.Option(
        "--json-out",
        metavar="FILE",
        rich_help_panel=OUTPUT,
        help="Write the JSON document to FILE as well.",
    ),
]
Data = Annotated[Path | None, option_of("data")]
Also = Annotated[list[Path] | None, option_of("also")]
Hardware = Annotated[list[Path] | None, option_of("hardware")]
Workloads = Annotated[list[Path] | None, option_of("workloads")]
Columns = Annotated[list[str] | None, option_of("columns")]
AsHtml = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE.html",
        rich_help_panel=OUTPUT,
        help="Write the result as one HTML file as well.",
    ),
]
Full = Annotated[
    bool, typer.Option("--full", rich_help_panel=OUTPUT, help="Print everything, not one screen.")
]
Recorded = Annotated[
    bool,
    typer.Option(
        "--record",
        rich_help_panel=OUTPUT,
        help="Store the prediction in your ledger, for `record` to compare with measurements.",
    ),
]

LaunchFolder = Annotated[
    Path | None,
    typer.Option(
        "--launch",
        metavar="DIR",
        rich_help_panel=OUTPUT,
        help="Write files that run it to DIR (torchrun, Slurm, Ray, Kubernetes, SkyPilot, trainers); keep "
        "its prediction as --record does.",
    ),
]

AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Import and run the module:function that a file of data names; trust it as you would its code.",
    ),
]


def catalogue_of(
    hardware: Sequence[Path] | None = None, workloads: Sequence[Path] | None = None
) -> "Catalogue":
    """The catalogue of `--hardware` and `--workloads`: the shipped one where neither is given."""
    from equipoise.spec.catalogue import catalogue

    return catalogue(hardware or (), workloads or ())


class _OptionFormatter(Protocol):
    """The part of a help formatter that lists options."""

    def section(self, name: str, /) -> AbstractContextManager[None]:
        """A titled block."""

    def write_dl(self, rows: list[tuple[str, str]], /) -> None:
        """Names and their meanings, in two columns."""


class QuestionCommand(TyperCommand):
    """Lists options by group, in plain text: docs/decisions/0002-plain-help.md."""

    def format_options(self, ctx: Any, formatter: _OptionFormatter) -> None:  # noqa: ANN401 - typer's own
        """Write one block per group."""
        blocks: dict[str, list[tuple[str, str]]] = {
            title: [] for title in (_OPTIONS, *GROUPS.values(), OUTPUT)
        }
        arguments: list[tuple[str, str]] = []
        for each in self.get_params(ctx):
            row = each.get_help_record(ctx)
            if row is None:
                continue
            if each.param_type_name == "argument":
                arguments.append(row)
            else:
                title = OUTPUT if each.name == "help" else getattr(each, "rich_help_panel", None)
                blocks[title or _OPTIONS].append(row)
        for title, rows in ("Arguments", arguments), *blocks.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

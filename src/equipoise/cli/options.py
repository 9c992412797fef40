"""Options shared by several verbs, each with one meaning."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from equipoise.decide.question.field import GROUPS, Field, Kind
from equipoise.decide.question.query import FIELDS, default_words

# The heading of options for the destination and amount of output.
_OUTPUT: Final = "Output"
_OPTIONS: Final = "Options"
_METAVARS: Final[Mapping[Kind, str]] = {"text": "NAME", "count": "N", "amount": "N", "number": "X"}


def rounds_from(incomplete: str) -> list[str]:
    """Embedded rounds, for shell completion."""
    from equipoise.runs import embedded

    return [one.name for one in embedded.rounds() if one.name.startswith(incomplete)]


def _workloads_from(incomplete: str) -> list[str]:
    """Workloads with published MLPerf results, for shell completion."""
    from equipoise.spec.workload import shipped_workloads

    known = shipped_workloads().workloads
    return [slug for slug in trained_from(incomplete) if known[slug].first_round is not None]


def _accelerators_from(incomplete: str) -> list[str]:
    """Accelerators of the catalogue, for shell completion."""
    from equipoise.spec.hardware import shipped_hardware

    return [slug for slug in shipped_hardware().accelerators if slug.startswith(incomplete)]


def trained_from(incomplete: str) -> list[str]:
    """Workloads of the catalogue, for shell completion."""
    from equipoise.spec.workload import shipped_workloads

    return [slug for slug in shipped_workloads().workloads if slug.startswith(incomplete)]


def clusters_from(incomplete: str) -> list[str]:
    """Accelerators and systems of the catalogue, for shell completion."""
    from equipoise.spec.cluster import shipped_systems

    named = [slug for slug in shipped_systems().by_slug if slug.startswith(incomplete)]
    return [*_accelerators_from(incomplete), *named]


def option_of(name: str, *, completion: Callable[[str], list[str]] | None = None) -> Any:  # noqa: ANN401 - typer.Option's
    """The option of a field of the question, given its attribute."""
    field = FIELDS[name]
    default = default_words(name)
    metavar = "|".join(field.choices) if field.kind == "choice" else _METAVARS.get(field.kind, "VALUE")
    return typer.Option(
        *(f"--{each}" for each in (field.option, *field.also)),
        metavar=None if field.kind == "flag" else field.metavar or metavar,
        help=f"{field.help} [default: {default}]" if default else field.help,
        autocompletion=completion or (choices_from(field.choices) if field.kind == "choice" else None),
        rich_help_panel=GROUPS[field.group],
        show_default=False,
    )


def choices_from(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """A completion function for a few words."""
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
Columns = Annotated[list[str] | None, option_of("columns")]
Currency = Annotated[str | None, option_of("currency")]


COMPLETIONS: Final[Mapping[str, Callable[[str], list[str]]]] = {
    "workload": trained_from,
    "systems": clusters_from,
    "round": rounds_from,
}


def _parameter(name: str, annotation: object, *, default: object = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_PATHS: Final = list[Path] | None
INPUTS: Final[Mapping[str, inspect.Parameter]] = {
    name: _parameter(name, Annotated[kind, option_of(name)])
    for name, kind in (
        ("data", Path | None),
        ("also", _PATHS),
        ("hardware", _PATHS),
        ("workloads", _PATHS),
    )
}


def _file(name: str, option: str, metavar: str, meaning: str) -> inspect.Parameter:
    """The parameter of an option for an output path."""
    declared = typer.Option(option, metavar=metavar, rich_help_panel=_OUTPUT, help=meaning)
    return _parameter(name, Annotated[Path | None, declared])


def _flag(name: str, option: str, meaning: str, *, group: str | None = _OUTPUT) -> inspect.Parameter:
    """The parameter of a flag."""
    declared = typer.Option(option, rich_help_panel=group, help=meaning)
    return _parameter(name, Annotated[bool, declared], default=False)


OUTPUTS: Final[Mapping[str, inspect.Parameter]] = {
    each.name: each
    for each in (
        _file("html", "--html", "FILE.html", "Write the result as one HTML file as well."),
        _flag("full", "--full", "Print everything instead of one screen."),
        _flag(
            "recorded",
            "--record",
            "Store the prediction in your ledger, for `record` to compare with measurements.",
        ),
        _file(
            "launch",
            "--launch",
            "DIR",
            "Write files that run the strategy to DIR (torchrun, Slurm, Ray, Kubernetes, SkyPilot, "
            "trainers), and store the prediction as --record does.",
        ),
        _flag("as_json", "--json", "Print one JSON document and nothing else."),
        _file("json_out", "--json-out", "FILE", "Write the JSON document to FILE as well."),
        _flag(
            "allow_code",
            "--allow-code",
            "Import and run the module:function that a data file names; trust the file as you would code.",
            group=None,
        ),
    )
}


def asked_parameter(name: str, field: Field) -> inspect.Parameter:
    """A field as a typer parameter. Its value is text, which the field parses."""
    kind: Any = bool if field.kind == "flag" else list[str] | None if field.is_repeated else str | None
    annotation = Annotated[kind, option_of(name, completion=COMPLETIONS.get(name))]
    return _parameter(name, annotation, default=False if field.kind == "flag" else None)


# The Python type, which typer shows for a value without a name.
_TYPE: Final = re.compile(r" <(?:list\[)?(\w+)(?: range)?\]?>$")
_TYPE_WORDS: Final = {"str": "NAME", "Path": "FILE", "int": "N", "float": "X"}


class QuestionCommand(TyperCommand):
    """Lists options by group, in plain text: docs/decisions/0002-plain-help.md."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's own
        """Write one block per group."""
        blocks: dict[str, list[tuple[str, str]]] = {
            title: [] for title in (_OPTIONS, *GROUPS.values(), _OUTPUT)
        }
        arguments: list[tuple[str, str]] = []
        for each in self.get_params(ctx):
            row = each.get_help_record(ctx)
            if row is None:
                continue
            name, meaning = row
            if each.param_type_name == "argument":
                arguments.append((_TYPE.sub("", name), meaning))
            else:
                title = _OUTPUT if each.name == "help" else getattr(each, "rich_help_panel", None)
                named = _TYPE.sub(lambda found: f" {_TYPE_WORDS.get(found[1], 'VALUE')}", name)
                blocks[title or _OPTIONS].append((named, meaning))
        for title, rows in ("Arguments", arguments), *blocks.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

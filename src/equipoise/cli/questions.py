"""Options of the verbs that ask a question, made from the declarations of its fields: decide/query.py."""

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeAlias

import typer
from typer.core import TyperCommand

from equipoise.cli.options import (
    OUTPUT,
    AsHtml,
    AsJson,
    Full,
    JsonOut,
    Recorded,
    clusters_from,
    option_of,
    rounds_from,
    trained_from,
)
from equipoise.decide.field import GROUPS, Field, Verb
from equipoise.decide.query import FIELDS, fields_of

_OPTIONS: Final = "Options"
_COMPLETIONS: Final[Mapping[str, Callable[[str], list[str]]]] = {
    "workload": trained_from,
    "systems": clusters_from,
    "round": rounds_from,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where an answer goes and how much of it is printed: the same options for every question.

    html: a page of it is written there too. full: all of it is printed, not one screen. recorded: its
    predictions are kept in the user's ledger.
    """

    html: Path | None = None
    as_json: bool = False
    json_out: Path | None = None
    full: bool = False
    recorded: bool = False


Options: TypeAlias = Mapping[str, object]  # by option, as typed; None, False and empty: not given


def asks(
    verb: Verb, *, argument: str | None = None, outputs: Collection[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a function `(asked, output, *, own options)` the options of a verb.

    argument: the attribute that is given by position. outputs: of _OUTPUTS, those that the verb has.
    """

    def with_options(answer: Callable[..., None]) -> Callable[..., None]:
        declared = [*inspect.signature(answer, eval_str=True).parameters.values()][2:]
        shown = {name: each for name, each in _OUTPUTS.items() if outputs is None or name in outputs}
        declared_fields = fields_of(verb)

        def run(**options: Any) -> None:  # noqa: ANN401 - each option has its own type
            output = Output(**{name: options.pop(name) for name in shown})
            given = {FIELDS[name].key: options.pop(name) for name in declared_fields}
            answer(given, output, **options)

        parameters = [
            *declared,
            *(_parameter(name, each, is_argument=name == argument) for name, each in declared_fields.items()),
            *shown.values(),
        ]
        parameters.sort(key=lambda each: each.default is not inspect.Parameter.empty)
        run.__name__ = run.__qualname__ = answer.__name__
        run.__doc__, run.__module__ = answer.__doc__, answer.__module__
        run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as inspect reads it
        return run

    return with_options


def _output(name: str, annotation: object, *, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_OUTPUTS: Final[Mapping[str, inspect.Parameter]] = {
    "html": _output("html", AsHtml, default=None),
    "full": _output("full", Full, default=False),
    "recorded": _output("recorded", Recorded, default=False),
    "as_json": _output("as_json", AsJson, default=False),
    "json_out": _output("json_out", JsonOut, default=None),
}


def _parameter(name: str, field: Field, *, is_argument: bool) -> inspect.Parameter:
    """A field as a parameter that typer reads; its value is text, which the field reads."""
    if is_argument:
        argument = typer.Argument(
            metavar=f"{field.metavar}|CONFIG.toml",
            autocompletion=_COMPLETIONS.get(name),
            help="What to train, or a file that holds it and these options.",
        )
        annotation: Any = Annotated[str, argument]
        default: Any = inspect.Parameter.empty
    else:
        kind: Any = bool if field.kind == "flag" else list[str] | None if field.is_repeated else str | None
        annotation = Annotated[kind, option_of(name, completion=_COMPLETIONS.get(name))]
        default = False if field.kind == "flag" else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class _OptionFormatter(Protocol):
    """The part of a help formatter that lists options."""

    def section(self, name: str, /) -> AbstractContextManager[None]:
        """A titled block."""

    def write_dl(self, rows: list[tuple[str, str]], /) -> None:
        """Names and their meanings, in two columns."""


class QuestionCommand(TyperCommand):
    """Lists options by group, in plain text: docs/decisions/0002-plain-help.md."""

    def format_options(self, ctx: Any, formatter: _OptionFormatter) -> None:  # noqa: ANN401 - typer's own
        """Write one block a group."""
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

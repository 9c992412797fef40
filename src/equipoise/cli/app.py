"""The app: its verbs by group, and the one boundary where an error becomes a sentence and an exit code."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Annotated, Any, NoReturn, Protocol

import typer
from typer.core import TyperGroup

from equipoise import __version__, errors
from equipoise.cli import bench, decide, evidence, measurement, orientation, record, understanding
from equipoise.cli.decide import QuestionCommand
from equipoise.cli.output import printable, write

_NEW_OBJECTS = 100_000  # made before the youngest are looked through

# The help groups verbs as DESIGN groups the folders; a verb is one line here.
_VERBS: tuple[tuple[str, tuple[Callable[..., None], ...]], ...] = (
    ("Evidence", (evidence.ingest, evidence.scores, evidence.report, evidence.export)),
    ("Understanding", (decide.predict, understanding.backtest)),
    ("Theory", (decide.plan, understanding.validate)),
    ("Measurement", (measurement.topology, measurement.collectives, measurement.trace, bench.bench)),
    ("Decision", (decide.advise, decide.allocate, record.record, decide.serve)),
    ("Orientation", (orientation.list_, orientation.explain, orientation.doctor)),
)


class _Formatter(Protocol):
    """The part of a help formatter that lists verbs."""

    def section(self, name: str, /) -> AbstractContextManager[None]:
        """A titled block."""

    def write_dl(self, rows: Sequence[tuple[str, str]], /) -> None:
        """Names and their meanings, in two columns."""


class _GroupedHelp(TyperGroup):
    """Lists the verbs under their groups, in plain text: docs/decisions/0002-plain-help.md."""

    def format_commands(self, ctx: object, formatter: _Formatter) -> None:  # noqa: ARG002 - typer passes it
        """Write one block per group."""
        for title, group in _VERBS:
            names = [_verb_name(verb) for verb in group]
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(200)) for name in names])


def _verb_name(verb: Callable[..., None]) -> str:
    """The name on the command line; a trailing underscore keeps Python's own word free."""
    return verb.__name__.rstrip("_")


def verbs() -> tuple[str, ...]:
    """The name of every verb, in the order of the help."""
    return tuple(_verb_name(verb) for _, group in _VERBS for verb in group)


def _app() -> typer.Typer:
    """The app with every verb registered."""
    app = typer.Typer(
        cls=_GroupedHelp,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        subcommand_metavar="VERB ...",
        epilog="`equipoise VERB --help` lists the options of a verb.",
    )
    app.callback(invoke_without_command=True)(_root)
    for title, group in _VERBS:
        for verb in group:
            app.command(name=_verb_name(verb), cls=QuestionCommand, rich_help_panel=title)(verb)
    return app


def _root(
    ctx: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """How many accelerators, which, and with what strategy, before one more stops paying."""
    if version:
        write(f"equipoise {__version__}\n")
    elif ctx.invoked_subcommand is None:
        write(f"{ctx.get_help()}\n")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code: 0, 2 input, 3 evidence, 130 interrupted."""
    # Loading modules and reading tables makes hundreds of thousands of lasting objects: looking through them
    # for garbage every 700 takes a tenth of an answer's time.
    gc.set_threshold(_NEW_OBJECTS, 50, 50)
    has_output = _open_closed_streams()
    if has_output:
        code = _exit_code(sys.argv[1:] if arguments is None else arguments)
    else:
        _complain("standard output is closed; send it to a file, a pipe or /dev/null")
        code = errors.EXIT_INPUT
    if code == errors.EXIT_INTERRUPTED:
        # CPython ends with the signal's own code where an interrupt passed through an exec of text, as
        # dataclasses are made, even if it was handled; workers and files are closed by now.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _open_closed_streams() -> bool:
    """Give /dev/null to standard streams that are closed, whose numbers the next files would get.

    Returns whether standard output is open.
    """
    has_output = sys.stdout is not None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))
    return has_output


def _exit_code(arguments: Sequence[str]) -> int:
    """Run one verb; say in one sentence on standard error why it could not answer."""
    try:
        stopped: Any = _app()(list(arguments), prog_name="equipoise", standalone_mode=False)
    except KeyboardInterrupt:
        stopped = errors.EXIT_INTERRUPTED
    except (typer.TyperException, errors.EquipoiseError, OSError) as err:
        _complain(_sentence(err))
        return errors.EXIT_EVIDENCE if isinstance(err, errors.EvidenceError) else errors.EXIT_INPUT
    if stopped == errors.EXIT_INTERRUPTED:
        _complain("interrupted")
    return stopped if isinstance(stopped, int) else 0


def _sentence(err: typer.TyperException | errors.EquipoiseError | OSError) -> str:
    """What went wrong, in one sentence."""
    if isinstance(err, typer.TyperException):
        return err.format_message().replace("Value error, ", "")  # typer begins some messages with it
    if isinstance(err, OSError):
        return f"{err.filename or 'output'}: {err.strerror or err}"
    if isinstance(err, errors.EvidenceError) and err.missing:
        return f"{err} (missing: {'; '.join(err.missing)})"
    return str(err)


def _complain(sentence: str) -> None:
    """Say it on standard error, on one line and without control characters."""
    try:
        sys.stderr.write(f"equipoise: {printable(' '.join(sentence.split()))}\n")
        sys.stderr.flush()
    except OSError:  # nobody reads it, or its disk is full: the exit code remains
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

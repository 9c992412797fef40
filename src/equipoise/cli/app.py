"""The app: its verbs by group, and the one boundary where an error becomes a sentence and an exit code.

Errors in a command line state both the words found and what was expected, of which typer's own messages omit
one. typer's exceptions have no public classes, so they are distinguished by their attributes.
"""

import atexit
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, NoReturn, TypeAlias, get_args

import typer
from typer.core import TyperGroup

from equipoise import __version__, errors
from equipoise.errors import UsageError

# Verbs by group of the help: the module of the verb's function, which is only imported for that verb, and the
# first line of the function's docstring.
_VERBS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Evidence": {
        "ingest": ("evidence", "Read MLPerf Training results, or runs exported by trackers."),
        "scores": ("evidence", "List entries with score, speedup and efficiency."),
        "report": ("evidence", "Study how training scales in a round."),
        "export": ("evidence", "Export a table as CSV, Parquet, JSON lines, Extra-P or Prometheus."),
    },
    "Understanding": {
        "predict": ("decide", "Predict times and costs at sizes nobody ran."),
        "backtest": ("evidence", "Predict past results from earlier ones; report the errors."),
    },
    "Theory": {
        "plan": ("decide", "Find the best parallel strategy, and where returns diminish."),
        "validate": ("evidence", "Compare the performance model with measured steps."),
    },
    "Measurement": {
        "topology": ("measurement", "Show how accelerators are connected, and what it means for training."),
        "collectives": (
            "measurement",
            "Fit latency and bandwidth of collectives; report whether they are as expected.",
        ),
        "trace": (
            "measurement",
            "Split traced steps into computation, communication and idle time; find stragglers.",
        ),
        "bench": ("bench", "Time steps or train on your devices, by size, batch and strategy."),
    },
    "Decision": {
        "advise": ("decide", "Recommend how many accelerators, which strategy, and why, from all evidence."),
        "allocate": ("decide", "Share a pool of accelerators between trainings."),
        "record": ("decide", "Compare your own predictions with what was measured."),
        "serve": ("decide", "Serve the dashboard to browsers on this machine."),
    },
    "Orientation": {
        "list": (
            "orientation",
            "List rounds, workloads, accelerators, prices and other known names.",
        ),
        "explain": ("orientation", "Explain a term of the glossary, with its formula."),
        "doctor": ("orientation", "Report what works here and what to install for the rest."),
    },
}
_NO_VERB = frozenset({"-h", "--help", "--version"})
_Failure: TypeAlias = typer.TyperException | errors.EquipoiseError | OSError
# Words longer than any name are truncated; file paths are shown whole.
_LONG_WORD: Final = re.compile(r"(\S{1000})\S+")
_COMPLETING = "_EQUIPOISE_COMPLETE"  # set by a shell that completes a word


class _PlainWords:
    """Mixin for typer commands that takes words, paths, choices and omitted parameters without conversion.

    typer would import pydantic for them, which takes as long as reading the tables of accelerators.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own
        """Parse as typer does, but convert a parameter only if its value needs conversion."""
        for each in self.get_params(ctx):  # type: ignore[attr-defined]
            if "process_value" not in vars(each):
                each.process_value = _reading_of(each)
        try:
            *_, given = self.make_parser(ctx).parse_args(list(args))  # type: ignore[attr-defined]
            rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except typer.TyperException as err:
            raise _wrong_words(err, self, ctx) from err
        # The parser would keep only the last value; a repeated flag is harmless.
        for each, num_times in Counter(given).items():
            if num_times > 1 and each.param_type_name == "option" and not (each.multiple or each.is_flag):
                raise _repeated(each, num_times)
        return rest


def _reading_of(param: Any) -> Callable[[Any, Any], Any]:  # noqa: ANN401 - typer's own
    """A replacement of `param.process_value` that calls it only for values that need conversion."""
    read = param.process_value
    is_many = getattr(param, "multiple", False) or param.nargs == -1
    described = param.type_descriptor
    kind = next(iter(get_args(described.annotation)), None) if described.is_list else described.annotation
    choices = described.choices or ()

    def value_of(ctx: Any, value: Any) -> Any:  # noqa: ANN401 - typer's own
        found: Any
        if param.required and not value:
            return read(ctx, value)  # raises the error for a missing parameter
        if value is None:
            found = () if is_many else None
        elif ctx.get_parameter_source(param.name).name == "DEFAULT":
            found = value
        else:
            words = value if is_many else (value,)
            if kind is Path and "" in words:  # pathlib would take it for the working folder
                raise UsageError(f"{_name(param)} is empty; expected the path of a file or folder")
            plain = all(isinstance(each, str) and each.isascii() for each in words)
            if not plain or not (kind in {str, Path} or (choices and set(words) <= set(choices))):
                try:
                    return read(ctx, value)
                except typer.TyperException as err:
                    raise _wrong_value(param, value) from err
            read_words = [Path(each) if kind is Path else each for each in words]
            found = read_words if is_many else read_words[0]
        return found if param.callback is None else param.callback(ctx, param, found)

    return value_of


class _GroupedHelp(_PlainWords, TyperGroup):
    """Lists the verbs under their groups, in plain text: docs/decisions/0002-plain-help.md."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's own
        """Resolve the verb that the first word names."""
        if not ctx.resilient_parsing and args[0] not in verbs():
            raise _unknown("there is no verb", args[0], verbs(), f"verbs: {', '.join(verbs())}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: object, formatter: Any) -> None:  # noqa: ARG002, ANN401 - typer's own
        """Write one block per group."""
        for title, group in _VERBS.items():
            with formatter.section(title):
                formatter.write_dl([(name, meaning) for name, (_, meaning) in group.items()])


def verbs() -> tuple[str, ...]:
    """The names of all verbs, in the order of the help."""
    return tuple(name for group in _VERBS.values() for name in group)


def _asked_verbs(arguments: Sequence[str]) -> tuple[str, ...]:
    """The verbs needed for these arguments: one, none for the help, all to complete or correct a word."""
    if arguments and arguments[0] in verbs():
        return (arguments[0],)
    return () if _NO_VERB.issuperset(arguments) and _COMPLETING not in os.environ else verbs()


def app(names: Sequence[str] | None = None) -> typer.Typer:
    """The app with the named verbs registered; by default all verbs."""
    made = typer.Typer(
        cls=_GroupedHelp,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        subcommand_metavar="VERB ...",
        epilog="`equipoise VERB --help` lists the options of a verb.",
    )
    made.callback(invoke_without_command=True)(_root)
    for name, (module, _) in (each for group in _VERBS.values() for each in group.items()):
        if names is None or name in names:
            loaded = import_module(f"equipoise.cli.{module}")
            # Functions named like Python keywords or built-ins have a trailing underscore.
            function = getattr(loaded, name, None) or getattr(loaded, f"{name}_")
            question = import_module("equipoise.cli.options").QuestionCommand
            made.command(name=name, cls=type("_Command", (_PlainWords, question), {}))(function)
    return made


def _root(
    ctx: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Recommend how many accelerators to train a model on, which, and with what strategy."""
    if version:
        write(f"equipoise {__version__}\n")
    elif ctx.invoked_subcommand is None:
        write(f"{ctx.get_help()}\n")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0, 2 for input, 3 for evidence, or 128 plus the number of a signal."""
    # Except signals that the shell set to be ignored, e.g. through nohup.
    usual = (signal.SIG_DFL, signal.default_int_handler)
    count_interrupts(*(each for each in _ENDING if signal.getsignal(each) in usual))
    has_output = _open_closed_streams()
    code = None
    try:
        if has_output:
            code = _exit_code(sys.argv[1:] if arguments is None else arguments)
        else:
            _complain("standard output is closed; send it to a file, a pipe or /dev/null")
            code = errors.EXIT_INPUT
    finally:
        # Compiled libraries turn a Ctrl-C into other errors, e.g. pydantic's schema builder.
        if code == errors.EXIT_INTERRUPTED or (code is None and was_interrupted()):
            _leave_interrupted()
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Exit without freeing memory, which would take a fifteenth of an answer's time.

    If this process is traced or profiled, exit through the interpreter.
    """
    if sys.gettrace() is None and sys.getprofile() is None:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - what waits for other threads
        atexit._run_exitfuncs()  # noqa: SLF001
        with suppress(OSError):  # the interpreter will run into it again and report it
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


def _leave_interrupted() -> NoReturn:
    """Report the interrupt and exit at once, with the exit code that shells use for the signal.

    CPython would exit with the signal's own code if an interrupt passed through an exec of text, as when
    dataclasses are created, even if it was handled. Workers and files are closed at this point.
    """
    number = _received[0] if _received else signal.SIGINT
    _complain("interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}")
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(_KILLED_BY + number)


def _open_closed_streams() -> bool:
    """Open /dev/null for closed standard streams, because the next files would get their descriptors.

    Returns whether standard output was open.
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
    """Run one verb and return the exit code; an error is reported in one sentence on standard error."""
    try:
        asked = app(_asked_verbs(arguments))
        stopped: Any = asked(list(arguments), prog_name="equipoise", standalone_mode=False)
    except KeyboardInterrupt:
        stopped = errors.EXIT_INTERRUPTED
    except (typer.TyperException, errors.EquipoiseError, OSError) as err:
        _complain(with_takers(_sentence(_told(err, arguments)), arguments))
        return errors.EXIT_EVIDENCE if isinstance(err, errors.EvidenceError) else errors.EXIT_INPUT
    return stopped if isinstance(stopped, int) else 0


def _sentence(err: _Failure) -> str:
    """The error message in one sentence."""
    if isinstance(err, typer.TyperException):
        return err.format_message()
    if isinstance(err, OSError):
        return f"{err.filename or 'output'}: {err.strerror or err}"
    if isinstance(err, errors.EvidenceError) and err.missing:
        return f"{err} (missing: {'; '.join(err.missing)})"
    return str(err)


def write(content: str | bytes) -> None:
    """Write to standard output; exit silently if its reader has closed the pipe, as `head` does.

    On a terminal, invisible characters in documents and tables, which contain raw text, become escapes.
    """
    if isinstance(content, bytes) and sys.stdout.isatty():
        from equipoise.report.format import visible

        content = visible(content.decode(errors="replace").replace("\r", r"\r"))
    if isinstance(content, str):
        content = content.encode(sys.stdout.encoding or "utf-8", errors="replace")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError as err:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from err


def printable(text: str) -> str:
    """Text from data, made safe for a terminal: control characters are escaped, long words truncated."""
    text = _LONG_WORD.sub(r"\1…", text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _complain(sentence: str) -> None:
    """Print a message on standard error without control characters: one line, wrapped only on a terminal."""
    line = f"equipoise: {printable(' '.join(sentence.split()))}"
    try:
        if sys.stderr.isatty():
            width = shutil.get_terminal_size((80, 24)).columns
            line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:  # nobody reads it, or the disk is full; the exit code is unaffected
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


# Signals that ask a program to end: Ctrl-C, a batch system or `kill`, a closed terminal. Each raises
# KeyboardInterrupt, so that files are completed or removed. They are also recorded, because other libraries
# swallow the KeyboardInterrupt or replace it.
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KILLED_BY: Final = 128  # plus the signal: the exit code
_received: list[int] = []  # signal numbers, since the process began
_raised: list[int] = []  # those that raised KeyboardInterrupt
_AGAIN_S = 0.01  # delay after which a lost Ctrl-C is raised again


def count_interrupts(*numbers: int) -> None:
    """Record these signals from now on and raise KeyboardInterrupt. Only has an effect in the main thread."""
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            signal.signal(number, _remembered)


def was_interrupted() -> bool:
    """Whether a signal of `count_interrupts`, such as Ctrl-C, has been received since then."""
    return bool(_received)


def _remembered(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    # Suppress warnings about unfinished work, e.g. of coroutines and callbacks that lose the exception.
    warnings.simplefilter("ignore")
    sys.unraisablehook = _raised_again
    while frame is not None:
        if frame.f_code is _raised_again.__code__:  # which would lose it, too: it is sent again
            return
        frame = frame.f_back
    _raised.append(number)
    raise KeyboardInterrupt


def _raised_again(lost: "sys.UnraisableHookArgs") -> None:
    """Hook for uncatchable exceptions: stay silent, but interrupt once more if it was a Ctrl-C.

    Finalizers and weak-reference callbacks, which the import system runs for each module, swallow exceptions.
    A moment later the surrounding code runs, which can be interrupted.
    """
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Thread(target=_send_until_raised, args=(len(_raised),), daemon=True).start()


def _send_until_raised(num_raised: int) -> None:
    """Send the last signal until more KeyboardInterrupts are raised, or something else handles it."""
    number = _received[-1]
    while len(_raised) == num_raised and signal.getsignal(number) is _remembered:
        time.sleep(_AGAIN_S)
        os.kill(os.getpid(), number)


_NEAR: Final = 0.7  # similarity cutoff: --help does not suggest --html
# Options for the output file of a page or table: for one that a verb lacks, its first one is suggested.
_WRITING: Final = (
    "--html",
    "--out",
    "--into",
    "--json-out",
    "--output",
    "--output-dir",
    "--page",
    "--save",
    "-o",
)
_MOST_LISTED: Final = 16
_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_NUMBERS: Final = {int: "a whole number", float: "a number"}


def _wrong_value(param: Any, value: object) -> UsageError:  # noqa: ANN401 - typer's own
    """The error for an invalid value of a parameter, as typed."""
    items = value if isinstance(value, (list, tuple)) else (value,)
    shown = " ".join(repr(str(each)) for each in items)
    return UsageError(f"{_name(param)} is {shown}; expected {_expected(param)}")


def _wrong_words(err: typer.TyperException, command: Any, ctx: Any) -> UsageError:  # noqa: ANN401 - typer's own
    """The error for an unknown option, or a missing value or argument."""
    param = getattr(err, "param", None)
    option = getattr(err, "option_name", None)
    if param is not None:
        return UsageError(f"{_name(param)} is missing; expected {_meaning(param)}")
    if option is None:
        found, lists = err.format_message().rstrip("."), f"`{ctx.command_path} --help` lists what it takes"
        # "unexpected extra argument(s) (days)": from "--deadline 7 days", whose value the shell split.
        extra = re.search(r" extra argument\S* \((.*)\)$", found)
        if extra is None:
            return UsageError(f"{found}; {lists}")
        return UsageError(
            f"{extra[1]!r} belongs to no option; quote a value that has blanks, '7 days' or '50k EUR', join "
            f"several with commas, h100,b200; {lists}"
        )
    options = [each for each in command.get_params(ctx) if each.param_type_name == "option"]
    # Sorted, because the names of --help have no defined order.
    declared = {name: each for each in options for name in sorted((*each.opts, *each.secondary_opts))}
    if option in declared:
        each = declared[option]
        if each.is_flag:
            return UsageError(f"{option} has a value; expected {option} alone")
        return UsageError(f"{option} has no value; expected {each.metavar or _expected(each)}")
    return _unknown_option(option, command, ctx, list(declared))


def _repeated(param: Any, num_times: int) -> UsageError:  # noqa: ANN401 - typer's own
    """The error for a repeated option that takes one value."""
    meaning = _meaning(param).partition(" [default")[0].rstrip(".")
    return UsageError(f"{_name(param)} is given {num_times} times; expected one value: {meaning}")


def _unknown_option(option: str, command: Any, ctx: Any, declared: Sequence[str]) -> UsageError:  # noqa: ANN401
    """The error for an unknown option, with suggestions."""
    what = f"`{ctx.command_path}` has no option"
    from equipoise.decide.question.query import guessed, verbs_of  # loads what a verb without it may not need

    arguments = {each.name: each for each in command.get_params(ctx) if each.param_type_name == "argument"}
    names = (option.lstrip("-").replace("-", "_"), *guessed(option))
    argument = next((arguments[each] for each in names if each in arguments), None)
    if argument is not None:
        return UsageError(f"{what} {option!r}: it is an argument; `{ctx.command_path} {_name(argument)}`")
    others = verbs_of(option.lstrip("-"))
    if others:
        return UsageError(f"{option} is not an option of {ctx.info_name}, but of {', '.join(others)}")
    meant = [f"--{each}" for each in guessed(option) if f"--{each.partition(' ')[0]}" in declared]
    if option in _WRITING:
        meant = [each for each in _WRITING if each in declared][:1]
    if meant:
        return UsageError(f"{what} {option!r}; {errors.hint(map(repr, meant), '')}")
    all_of_them = f"options: {', '.join(declared)}"
    if len(declared) > _MOST_LISTED:
        all_of_them = f"`{ctx.command_path} --help` lists its options"
    return _unknown(what, option, declared, all_of_them)


def _unknown(what: str, found: str, known: Sequence[str], all_of_them: str) -> UsageError:
    """The error for an unknown name, suggesting the nearest ones, else `all_of_them`."""
    near = get_close_matches(found, known, n=3, cutoff=_NEAR)
    return UsageError(f"{what} {found!r}; {errors.hint(map(repr, near), all_of_them)}")


def _told(err: _Failure, arguments: Sequence[str]) -> _Failure:
    """An error in terms of the requested verb; options that it lacks are named with a verb that has them.

    arguments: of the command line.
    """
    from equipoise.decide.question.query import ALL, verbs_of, way_of

    verb = next((each for each in ALL if each in arguments[:1]), None)
    if verb is None or not isinstance(err, errors.InputError | errors.EvidenceError):
        return err
    if isinstance(err, errors.InputError) and err.give and verb != "allocate":
        takers = verbs_of(next(iter(err.give[0])))
        typed = [each.partition("=")[0] for each in arguments if each.startswith("--")]
        if verb not in takers and all(takers[0] in (verbs_of(each) or takers) for each in typed):
            given = [word for option, value in err.give[0].items() for word in (f"--{option}", value)]
            command = shlex.join([takers[0], *arguments[1:], *given])
            return UsageError(f"{err.message}: ask `equipoise {command}`")
    return way_of(verb).worded(err)


def with_takers(sentence: str, arguments: Sequence[str]) -> str:
    """An error message, with a verb that has the mentioned options if the requested verb lacks them.

    Needed because verbs share estimates and their error messages. arguments: of the command line; options
    that were typed are what the message is about.
    """
    verb = next(iter(arguments), "")
    if verb not in {"plan", "predict", "allocate"}:
        return sentence
    from equipoise.decide.question.query import verbs_of

    typed = {each.partition("=")[0] for each in arguments}
    named = dict.fromkeys(_OPTION.findall("".join(sentence.split("`")[::2])))
    takers = {
        each: found for each in named if each not in typed and (found := verbs_of(each)) and verb not in found
    }
    if not takers:
        return sentence
    (taker, *_), words = next(iter(takers.values())), " and ".join(takers)
    what = "options" if len(takers) > 1 else "an option"
    return f"{sentence} ({words}: {what} of {taker}, not of {verb})"


def _name(param: Any) -> str:  # noqa: ANN401 - typer's own
    """The name of a parameter: the longest name of an option, or the name of an argument in the help."""
    is_argument = param.param_type_name == "argument"
    return str(param.metavar or param.name) if is_argument else str(max(param.opts, key=len))


def _meaning(param: Any) -> str:  # noqa: ANN401 - typer's own
    choices = param.type_descriptor.choices
    if choices:
        return f"one of {', '.join(choices)}"
    words = param.help or _name(param)
    return f"{words[0].lower()}{words[1:].rstrip('.')}"


def _expected(param: Any) -> str:  # noqa: ANN401 - typer's own
    described = param.type_descriptor
    kind = next(iter(get_args(described.annotation)), None) if described.is_list else described.annotation
    if kind not in _NUMBERS:
        return _meaning(param)
    ends = []
    if param.min is not None:
        ends.append(f"from {param.min:,.10g}" if param.max is not None else f"of at least {param.min:,.10g}")
    if param.max is not None:
        ends.append(f"to {param.max:,.10g}" if param.min is not None else f"of at most {param.max:,.10g}")
    return " ".join([_NUMBERS[kind], *ends])

"""The app: its verbs by group, and the one boundary where an error becomes a sentence and an exit code.

What is wrong with a command line is said with the words found, and what was expected in their place: typer's
own sentences leave out one or the other. Its exceptions have no public classes: their attributes tell them
apart.
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

# A verb is one entry here, under the group of the help that it is in: the module of its function, which is
# loaded when the verb is asked for, and the first line of the function's docstring.
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
# A word that no name is as long as: a path of a file is shown whole.
_LONG_WORD: Final = re.compile(r"(\S{1000})\S+")
_COMPLETING = "_EQUIPOISE_COMPLETE"  # set by a shell that completes a word


class _PlainWords:
    """For a command of typer: words, paths, choices and what nobody typed are taken as they are.

    typer would load pydantic for them, which takes as long as reading the tables of accelerators.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own
        """As typer does; each parameter asks its own reader only where there is something to read."""
        for each in self.get_params(ctx):  # type: ignore[attr-defined]
            if "process_value" not in vars(each):
                each.process_value = _reading_of(each)
        try:
            *_, given = self.make_parser(ctx).parse_args(list(args))  # type: ignore[attr-defined]
            rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except typer.TyperException as err:
            raise _wrong_words(err, self, ctx) from err
        # The parser would keep the last value alone; a flag says the same again.
        for each, num_times in Counter(given).items():
            if num_times > 1 and each.param_type_name == "option" and not (each.multiple or each.is_flag):
                raise _repeated(each, num_times)
        return rest


def _reading_of(param: Any) -> Callable[[Any, Any], Any]:  # noqa: ANN401 - typer's own
    """What `param.process_value` returns, which is asked only for what is no plain word."""
    read = param.process_value
    is_many = getattr(param, "multiple", False) or param.nargs == -1
    described = param.type_descriptor
    kind = next(iter(get_args(described.annotation)), None) if described.is_list else described.annotation
    choices = described.choices or ()

    def value_of(ctx: Any, value: Any) -> Any:  # noqa: ANN401 - typer's own
        found: Any
        if param.required and not value:
            return read(ctx, value)  # it says what is missing
        if value is None:
            found = () if is_many else None
        elif ctx.get_parameter_source(param.name).name == "DEFAULT":
            found = value
        else:
            words = value if is_many else (value,)
            if kind is Path and "" in words:  # which pathlib takes for the working folder
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
        """The verb that the first word names."""
        if not ctx.resilient_parsing and args[0] not in verbs():
            raise _unknown("there is no verb", args[0], verbs(), f"verbs: {', '.join(verbs())}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: object, formatter: Any) -> None:  # noqa: ARG002, ANN401 - typer's own
        """Write one block per group."""
        for title, group in _VERBS.items():
            with formatter.section(title):
                formatter.write_dl([(name, meaning) for name, (_, meaning) in group.items()])


def verbs() -> tuple[str, ...]:
    """The name of every verb, in the order of the help."""
    return tuple(name for group in _VERBS.values() for name in group)


def _asked_verbs(arguments: Sequence[str]) -> tuple[str, ...]:
    """The verbs that these arguments need: one, none for the help, all to complete or to correct a word."""
    if arguments and arguments[0] in verbs():
        return (arguments[0],)
    return () if _NO_VERB.issuperset(arguments) and _COMPLETING not in os.environ else verbs()


def app(names: Sequence[str] | None = None) -> typer.Typer:
    """The app with the named verbs registered; with every verb unless names are given."""
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
            # A trailing underscore keeps Python's own word free.
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
    """Run the command line and leave with its exit code: 0, 2 input, 3 evidence, 128 and a signal."""
    # Not those that the shell has ignored, as nohup does.
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
        # Compiled libraries that a Ctrl-C meets raise errors of their own, as pydantic's schema builder does.
        if code == errors.EXIT_INTERRUPTED or (code is None and was_interrupted()):
            _leave_interrupted()
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End as the interpreter would, but leave what was loaded to the system: a fifteenth of an answer's time.

    Where somebody traces or profiles this process, the interpreter ends it.
    """
    if sys.gettrace() is None and sys.getprofile() is None:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - what waits for other threads
        atexit._run_exitfuncs()  # noqa: SLF001
        with suppress(OSError):  # which the interpreter meets again, and reports
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


def _leave_interrupted() -> NoReturn:
    """Say what interrupted it, and leave at once, with the exit code that shells give to the signal.

    CPython ends with the signal's own code where an interrupt passed through an exec of text, as dataclasses
    are made, even if it was handled; workers and files are closed by now.
    """
    number = _received[0] if _received else signal.SIGINT
    _complain("interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}")
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(_KILLED_BY + number)


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
        asked = app(_asked_verbs(arguments))
        stopped: Any = asked(list(arguments), prog_name="equipoise", standalone_mode=False)
    except KeyboardInterrupt:
        stopped = errors.EXIT_INTERRUPTED
    except (typer.TyperException, errors.EquipoiseError, OSError) as err:
        _complain(with_takers(_sentence(_told(err, arguments)), arguments))
        return errors.EXIT_EVIDENCE if isinstance(err, errors.EvidenceError) else errors.EXIT_INPUT
    return stopped if isinstance(stopped, int) else 0


def _sentence(err: _Failure) -> str:
    """What went wrong, in one sentence."""
    if isinstance(err, typer.TyperException):
        return err.format_message()
    if isinstance(err, OSError):
        return f"{err.filename or 'output'}: {err.strerror or err}"
    if isinstance(err, errors.EvidenceError) and err.missing:
        return f"{err} (missing: {'; '.join(err.missing)})"
    return str(err)


def write(content: str | bytes) -> None:
    """Put it on standard output; when its reader has left, as `head` does, stop without a word.

    Of documents and tables, which hold texts as they are, a terminal gets what cannot be seen as escapes.
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
    """Text from data, safe on a terminal: control characters become visible escapes, long words are cut."""
    text = _LONG_WORD.sub(r"\1…", text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _complain(sentence: str) -> None:
    """Say it on standard error without control characters: on one line, but of a terminal at words."""
    line = f"equipoise: {printable(' '.join(sentence.split()))}"
    try:
        if sys.stderr.isatty():
            width = shutil.get_terminal_size((80, 24)).columns
            line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:  # nobody reads it, or its disk is full: the exit code remains
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


# What asks a program to end: Ctrl-C, a batch system or `kill`, a terminal that is closed. Each interrupts, so
# that files are finished or taken away; remembered, because other libraries lose the KeyboardInterrupt or
# raise something else in its place.
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KILLED_BY: Final = 128  # plus the signal: the exit code
_received: list[int] = []  # signal numbers, since the process began
_AGAIN_S = 0.01  # after which a Ctrl-C that was lost is raised again


def count_interrupts(*numbers: int) -> None:
    """From now on, remember these signals and raise KeyboardInterrupt. Only the main thread can ask."""
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            signal.signal(number, _remembered)


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed, or another signal of `count_interrupts` came, since then."""
    return bool(_received)


def _remembered(number: int, _frame: FrameType | None) -> None:
    _received.append(number)
    # What is left half-done would say so, as coroutines and callbacks do that lose the exception.
    warnings.simplefilter("ignore")
    sys.unraisablehook = _raised_again
    raise KeyboardInterrupt


def _raised_again(lost: "sys.UnraisableHookArgs") -> None:
    """Say nothing of an exception that nobody can catch, but interrupt once more if it was a Ctrl-C.

    Finalizers and callbacks of weak references lose it, as those do that the import system runs at each
    module. A moment later the code around them runs, which can be interrupted.
    """
    if issubclass(lost.exc_type, KeyboardInterrupt):
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), _received[-1]))
        again.daemon = True
        again.start()


_NEAR: Final = 0.7  # --html is not meant by --help
# Names of the place that a page or table is written to: the first that a verb has is meant by the others.
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
    """For a value that a parameter cannot be, as it was typed."""
    items = value if isinstance(value, (list, tuple)) else (value,)
    shown = " ".join(repr(str(each)) for each in items)
    return UsageError(f"{_name(param)} is {shown}; expected {_expected(param)}")


def _wrong_words(err: typer.TyperException, command: Any, ctx: Any) -> UsageError:  # noqa: ANN401 - typer's own
    """For words that do not make a command: an option that it has not, a value or an argument left out."""
    param = getattr(err, "param", None)
    option = getattr(err, "option_name", None)
    if param is not None:
        return UsageError(f"{_name(param)} is missing; expected {_meaning(param)}")
    if option is None:
        found, lists = err.format_message().rstrip("."), f"`{ctx.command_path} --help` lists what it takes"
        # "unexpected extra argument(s) (days)": of "--deadline 7 days", whose value the shell cut in two.
        extra = re.search(r" extra argument\S* \((.*)\)$", found)
        if extra is None:
            return UsageError(f"{found}; {lists}")
        return UsageError(
            f"{extra[1]!r} belongs to no option; quote a value that has blanks, '7 days' or '50k EUR', join "
            f"several with commas, h100,b200; {lists}"
        )
    options = [each for each in command.get_params(ctx) if each.param_type_name == "option"]
    # Sorted, as the names of --help come in no order of their own.
    declared = {name: each for each in options for name in sorted((*each.opts, *each.secondary_opts))}
    if option in declared:
        each = declared[option]
        if each.is_flag:
            return UsageError(f"{option} has a value; expected {option} alone")
        return UsageError(f"{option} has no value; expected {each.metavar or _expected(each)}")
    return _unknown_option(option, command, ctx, list(declared))


def _repeated(param: Any, num_times: int) -> UsageError:  # noqa: ANN401 - typer's own
    """For an option of one value that was typed several times."""
    meaning = _meaning(param).partition(" [default")[0].rstrip(".")
    return UsageError(f"{_name(param)} is given {num_times} times; expected one value: {meaning}")


def _unknown_option(option: str, command: Any, ctx: Any, declared: Sequence[str]) -> UsageError:  # noqa: ANN401
    """For an option that a verb has not, with what may be meant."""
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
    """For a name that is none of those there are: the nearest, else what is said of all of them."""
    near = get_close_matches(found, known, n=3, cutoff=_NEAR)
    return UsageError(f"{what} {found!r}; {errors.hint(map(repr, near), all_of_them)}")


def _told(err: _Failure, arguments: Sequence[str]) -> _Failure:
    """An error in the words of the verb asked; of what that does not take, the command of the verb that does.

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
    """A complaint, with the verb that takes the options which it names and the verb asked does not.

    Estimates are shared by verbs, and so is what their errors name. arguments: of the command line; what was
    typed itself is what the complaint is about.
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
    return f"{sentence} ({words}: of {taker}, not of {verb})"


def _name(param: Any) -> str:  # noqa: ANN401 - typer's own
    """As it is typed: an option by its longest name, an argument as the help calls it."""
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

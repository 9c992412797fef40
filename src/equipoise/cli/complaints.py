"""What is wrong with a command line, in one sentence: the words found, and what was expected in their place.

typer's own sentences leave out one or the other. Its exceptions have no public classes: their attributes tell
them apart. Nor has what it passes to those that write its help: the part of it that is used is stated here.
"""

import re
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from typing import Any, Final, Protocol, get_args

import typer

from equipoise.errors import UsageError

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
_EXAMPLE: Final = re.compile(r"such as (--[a-z-]+ [\w.]+)")
_NUMBERS: Final = {int: "a whole number", float: "a number"}


class HelpFormatter(Protocol):
    """The part of a help formatter that lists verbs and options."""

    def section(self, name: str, /) -> AbstractContextManager[None]:
        """A titled block."""

    def write_dl(self, rows: list[tuple[str, str]], /) -> None:
        """Names and their meanings, in two columns."""


def wrong_value(param: Any, value: object) -> UsageError:  # noqa: ANN401 - typer's own
    """For a value that a parameter cannot be, as it was typed."""
    items = value if isinstance(value, (list, tuple)) else (value,)
    shown = " ".join(repr(str(each)) for each in items)
    return UsageError(f"{_name(param)} is {shown}; expected {_expected(param)}")


def wrong_words(err: typer.TyperException, command: Any, ctx: Any) -> UsageError:  # noqa: ANN401 - typer's own
    """For words that do not make a command: an option that it has not, a value or an argument left out."""
    param = getattr(err, "param", None)
    option = getattr(err, "option_name", None)
    if param is not None:
        return UsageError(f"{_name(param)} is missing; expected {_meaning(param)}")
    if option is None:
        return UsageError(
            f"{err.format_message().rstrip('.')}; `{ctx.command_path} --help` lists what it takes"
        )
    options = [each for each in command.get_params(ctx) if each.param_type_name == "option"]
    declared = {name: each for each in options for name in (*each.opts, *each.secondary_opts)}
    if option in declared:
        each = declared[option]
        if each.is_flag:
            return UsageError(f"{option} has a value; expected {option} alone")
        return UsageError(f"{option} has no value; expected {each.metavar or _expected(each)}")
    return _unknown_option(option, command, ctx, list(declared))


def repeated(param: Any, num_times: int) -> UsageError:  # noqa: ANN401 - typer's own
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
        return UsageError(f"{what} {option!r}; did you mean {' or '.join(map(repr, meant))}?")
    all_of_them = f"options: {', '.join(declared)}"
    if len(declared) > _MOST_LISTED:
        all_of_them = f"`{ctx.command_path} --help` lists its options"
    return unknown(what, option, declared, all_of_them)


def unknown(what: str, found: str, known: Sequence[str], all_of_them: str) -> UsageError:
    """For a name that is none of those there are: the nearest, else what is said of all of them."""
    near = get_close_matches(found, known, n=3, cutoff=_NEAR)
    if near:
        return UsageError(f"{what} {found!r}; did you mean {' or '.join(map(repr, near))}?")
    return UsageError(f"{what} {found!r}; {all_of_them}")


def with_takers(sentence: str, arguments: Sequence[str]) -> str:
    """A complaint, with the verb that takes the options which it names and the verb asked does not.

    Estimates are shared by verbs, and so are the remedies in their errors. arguments: of the command line;
    what was typed itself is what the complaint is about. The jobs of `allocate` have keys of their own.
    """
    verb = next(iter(arguments), "")
    if verb not in {"plan", "predict"}:
        return sentence
    from equipoise.decide.question.query import verbs_of

    typed = {each.partition("=")[0] for each in arguments}
    named = dict.fromkeys(each for each in _OPTION.findall(sentence) if each not in typed)
    takers = {each: found for each in named if (found := verbs_of(each[2:])) and verb not in found}
    if not takers:
        return sentence
    (taker, *_), words = next(iter(takers.values())), " and ".join(takers)
    stated, _, remedy = sentence.rpartition(": give ")
    example = _EXAMPLE.search(remedy)
    are_taken = all(taker in (verbs_of(each[2:]) or {taker}) for each in typed if each.startswith("--"))
    if stated and example is not None and are_taken:
        # What is missing cannot be given here: the command that takes it.
        return f"{stated}: ask `equipoise {shlex.join([taker, *arguments[1:], *example[1].split()])}`"
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

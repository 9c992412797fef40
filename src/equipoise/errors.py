"""The tree of errors that a user, a file or too little evidence can cause.

EquipoiseError            every error this package raises on purpose
|- InputError             what was given cannot be used: exit code 2
|  |- DataError           a file or row: where, what was found, what was expected, what to do
|  |- SpecError           an accelerator, workload, system or strategy that is unknown or impossible
|  |  `- UnknownNameError a name that no table has, with the nearest names and the file to add it to
|  `- UsageError          options that do not fit together
`- EvidenceError          the question is fair, the evidence too thin: exit code 3, with what is missing
   `- FitError            a law could not be fitted to the points given
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import index
from typing import Self, SupportsIndex

EXIT_INPUT = 2
EXIT_EVIDENCE = 3
EXIT_INTERRUPTED = 130


class EquipoiseError(Exception):
    """Every error this package raises on purpose."""


def as_option(option: str, value: str | None) -> str:
    """A value of a field, as a command line states it; a flag has none."""
    return f"--{option} {value}" if value else f"--{option}"


def hint(near: Iterable[str], otherwise: str) -> str:
    """What a message says after a name that is not known: the names that may be meant, else what is expected.

    >>> hint(["h100", "h200"], "expected an accelerator"), hint([], "expected an accelerator")
    ('did you mean h100 or h200?', 'expected an accelerator')
    """
    names = " or ".join(near)
    return f"did you mean {names}?" if names else otherwise


def first_line(err: BaseException) -> str:
    r"""The first line of a message; the kind of the error where it has none.

    >>> first_line(ValueError("no rank\nat work")), first_line(ValueError())
    ('no rank', 'ValueError')
    """
    return (str(err).strip().splitlines() or [type(err).__name__])[0]


class InputError(EquipoiseError):
    """What was given cannot be used.

    message: what was found and what was expected. give: what to state instead or besides: values of fields by
    option, any one of these. remedy: what else to do, by files and verbs of a command line, which no browser
    has. The text of the error is all three, with fields as options; `WayToAsk` words it for others.
    """

    def __init__(
        self,
        message: str,
        *,
        give: Sequence[Mapping[str, str]] = (),
        remedy: str = "",
        state: Callable[[str, str], str] = as_option,
    ) -> None:
        """remedy: with its own punctuation, for it goes on after the message. state: words of a value."""
        ways = ", or ".join(" and ".join(state(*each) for each in way.items()) for way in give)
        super().__init__(f"{message}{ways and f': give {ways}'}{remedy}")
        self.message, self.give, self.remedy = message, give, remedy

    def within(self, where: str) -> Self:
        """The same error of a part of what was given, which its message names first."""
        return self.reworded(lambda message: f"{where}: {message}")

    def reworded(self, say: Callable[[str], str]) -> Self:
        """The same error with another message, made from this one's."""
        return type(self)(say(self.message), give=self.give, remedy=self.remedy)


class DataError(InputError):
    """A file or row cannot be used; the message names where, what was found and what was expected."""


class SpecError(InputError):
    """An accelerator, workload, system or strategy is unknown or impossible."""


class UnknownNameError(SpecError):
    """A name that no table has; the message has the nearest, the remedy the file to add it to."""


class UsageError(InputError):
    """Options that do not fit together."""


class EvidenceError(EquipoiseError):
    """The evidence is too thin for a number; `missing` lists what would be enough, as a note does."""

    def __init__(self, message: str, *, missing: tuple[str, ...] = ()) -> None:
        """message: one sentence. missing: each item names one thing to measure or add."""
        super().__init__(message)
        self.missing = missing
        if missing:
            self.add_note(f"missing: {'; '.join(missing)}")

    def reworded(self, say: Callable[[str], str]) -> Self:
        """The same error with other words, each text made from this one's."""
        return type(self)(say(str(self)), missing=tuple(map(say, self.missing)))


class FitError(EvidenceError):
    """A law could not be fitted to the points given."""


def in_a_line(value: object) -> str:
    """A value as a message of one line shows it: cut short; of several lines, as a model, its type."""
    text = str(value)
    return f"a {type(value).__name__}" if "\n" in text else text[:40]


def expect_whole(name: str, given: object, *, least: int = 1, most: int) -> int:
    """A whole number of a caller in Python, also one of NumPy. Raises UsageError for anything else."""
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        with suppress(TypeError):  # arrays and tensors say for themselves whether they are one
            if least <= (number := index(given)) <= most:
                return number
    raise UsageError(f"{name}={in_a_line(given)}; expected a whole number from {least} to {most:,}")

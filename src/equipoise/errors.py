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
    """A field and its value as a command-line option; a flag has no value."""
    return f"--{option} {value}" if value else f"--{option}"


def hint(near: Iterable[str], otherwise: str) -> str:
    """The end of a message about an unknown name: similar names, or else what is expected.

    >>> hint(["h100", "h200"], "expected an accelerator"), hint([], "expected an accelerator")
    ('did you mean h100 or h200?', 'expected an accelerator')
    """
    names = " or ".join(near)
    return f"did you mean {names}?" if names else otherwise


def first_line(err: BaseException) -> str:
    r"""The first line of a message, or the type of the error if the message is empty.

    >>> first_line(ValueError("no rank\nat work")), first_line(ValueError())
    ('no rank', 'ValueError')
    """
    return (str(err).strip().splitlines() or [type(err).__name__])[0]


class InputError(EquipoiseError):
    """Input that cannot be used.

    message: what was found and what was expected. give: alternatives to state, each as values by option.
    remedy: other things to do, in terms of files and the command line, which do not apply in a browser. The
    text of the error is all three, with fields as options; `WayToAsk` words it for other interfaces.
    """

    def __init__(
        self,
        message: str,
        *,
        give: Sequence[Mapping[str, str]] = (),
        remedy: str = "",
        state: Callable[[str, str], str] = as_option,
    ) -> None:
        """remedy: appended to the message, with its own punctuation. state: formats a field and its value."""
        ways = ", or ".join(" and ".join(state(*each) for each in way.items()) for way in give)
        super().__init__(f"{message}{ways and f': give {ways}'}{remedy}")
        self.message, self.give, self.remedy = message, give, remedy

    def within(self, where: str) -> Self:
        """A copy whose message starts with the place where the error is."""
        return self.reworded(lambda message: f"{where}: {message}")

    def reworded(self, say: Callable[[str], str]) -> Self:
        """A copy with a message made from this one's."""
        return type(self)(say(self.message), give=self.give, remedy=self.remedy)


class DataError(InputError):
    """A file or row cannot be used; the message names where, what was found and what was expected."""


class SpecError(InputError):
    """An accelerator, workload, system or strategy is unknown or impossible."""


class UnknownNameError(SpecError):
    """An unknown name; the message has similar names, the remedy the file to which to add it."""


class UsageError(InputError):
    """Options that do not fit together."""


class EvidenceError(EquipoiseError):
    """The evidence is insufficient; `missing` lists what would be enough, as does a note of the exception."""

    def __init__(self, message: str, *, missing: tuple[str, ...] = ()) -> None:
        """message: one sentence. missing: each item names one thing to measure or add."""
        super().__init__(message)
        self.missing = missing
        if missing:
            self.add_note(f"missing: {'; '.join(missing)}")

    def reworded(self, say: Callable[[str], str]) -> Self:
        """A copy whose texts are made from this one's."""
        return type(self)(say(str(self)), missing=tuple(map(say, self.missing)))


class FitError(EvidenceError):
    """A law could not be fitted to the points given."""


def in_a_line(value: object) -> str:
    """A value for a one-line message: truncated text, or the type of a value whose text has several lines."""
    text = str(value)
    return f"a {type(value).__name__}" if "\n" in text else text[:40]


def expect_whole(name: str, given: object, *, least: int = 1, most: int) -> int:
    """The value as an int, if it is a whole number, also of NumPy. Raises UsageError otherwise."""
    if isinstance(given, SupportsIndex) and not isinstance(given, bool):
        with suppress(TypeError):  # arrays and tensors raise unless they hold one whole number
            if least <= (number := index(given)) <= most:
                return number
    raise UsageError(f"{name}={in_a_line(given)}; expected a whole number from {least} to {most:,}")

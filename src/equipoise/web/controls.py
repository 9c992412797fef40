"""The controls of a page's form, with what they hold now. templates/form.html draws each kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

Given: TypeAlias = Mapping[str, Sequence[str]]


def first(given: Given, name: str) -> str:
    """The one value of a field, empty where there is none."""
    return next(iter(given.get(name, ())), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One thing to choose. value: as in the address. label: for people.

    holds: what may stay chosen in the fields that the choice clears.
    """

    value: str
    label: str
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Choices under a title; those without one come first."""

    title: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """One of a few, or of many in groups. clears: names of the fields that depend on it.

    identifier: of the element, where several selects share a name. meaning: shown where a mouse rests on it.
    """

    kind: ClassVar[str] = "select"
    name: str
    label: str
    choices: tuple[Choice, ...]
    value: str
    groups: tuple[Group, ...] = ()
    clears: tuple[str, ...] = ()
    hint: str = ""
    meaning: str = ""
    identifier: str = ""

    @property
    def id(self) -> str:
        """Of the element."""
        return self.identifier or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """Selects of one name, each of which adds one to what is asked about."""

    kind: ClassVar[str] = "several"
    name: str
    selects: tuple[Select, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Any of a few. meaning: as of Select."""

    kind: ClassVar[str] = "checks"
    name: str
    label: str
    choices: tuple[Choice, ...]
    values: frozenset[str]
    hint: str = ""
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """The ends of a slider beside a number; a log one moves by doublings. rest: where it is when unset."""

    low: float
    high: float
    step: float
    rest: float | None = None
    scale: Literal["linear", "doublings"] = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number. unset: what an empty field means, in words. meaning: as of Select."""

    kind: ClassVar[str] = "number"
    name: str
    label: str
    value: str
    least: float | None = None
    most: float | None = None
    unset: str = ""
    slider: Slider | None = None
    hint: str = ""
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A short text, such as an amount with its unit. suggestions: some of what it may be."""

    kind: ClassVar[str] = "text"
    name: str
    label: str
    value: str
    unset: str = ""
    slider: Slider | None = None
    suggestions: tuple[Choice, ...] = ()
    hint: str = ""
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class More:
    """Fields that most questions do without, behind their label. is_open: as the page comes."""

    kind: ClassVar[str] = "more"
    name: str
    label: str
    fields: "tuple[Control, ...]"
    is_open: bool = True


Control: TypeAlias = Select | Several | Checks | Number | Text | More

"""The fields of a page's form, with what they hold now. templates/form.html draws each kind."""

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
    """One of a few, or of many in groups. clears: names of the fields that hang on it."""

    kind: ClassVar[str] = "select"
    name: str
    label: str
    choices: tuple[Choice, ...]
    value: str
    groups: tuple[Group, ...] = ()
    clears: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Any of a few."""

    kind: ClassVar[str] = "checks"
    name: str
    label: str
    choices: tuple[Choice, ...]
    values: frozenset[str]
    hint: str = ""


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
    """A number. unset: what an empty field means, in words."""

    kind: ClassVar[str] = "number"
    name: str
    label: str
    value: str
    least: float
    most: float
    step: str = "any"
    unset: str = ""
    slider: Slider | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class More:
    """Fields that most questions do without, behind their label. is_open: as the page comes."""

    kind: ClassVar[str] = "more"
    name: str
    label: str
    fields: "tuple[Field, ...]"
    is_open: bool = True


Field: TypeAlias = Select | Checks | Number | More

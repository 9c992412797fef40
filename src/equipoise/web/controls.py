"""The controls of a page's form, what they hold now, and the names that they offer to choose from."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from equipoise.calibration.profiles import profiles
from equipoise.economics.costs import DEFAULT_GRID, table
from equipoise.spec.catalogue import Catalogue

Given: TypeAlias = Mapping[str, Sequence[str]]


def first(given: Given, name: str) -> str:
    """The one value of a field, empty where there is none."""
    return next(iter(given.get(name, ())), "")


class Choice(Struct, frozen=True, kw_only=True):
    """One thing to choose. value: as in the address. label: for people.

    holds: what may stay chosen in the fields that the choice clears.
    """

    value: str
    label: str
    holds: tuple[str, ...] = ()


class Select(Struct, frozen=True, kw_only=True):
    """One of a few. clears: names of the fields that depend on it. meaning: shown on demand."""

    kind: ClassVar[str] = "select"
    name: str
    label: str
    choices: tuple[Choice, ...]
    value: str
    clears: tuple[str, ...] = ()
    meaning: str = ""


class Checks(Struct, frozen=True, kw_only=True):
    """Any of a few, at most so many. meaning: as of Select."""

    kind: ClassVar[str] = "checks"
    name: str
    label: str
    choices: tuple[Choice, ...]
    values: frozenset[str]
    most: int | None = None
    hint: str = ""
    meaning: str = ""


class Slider(Struct, frozen=True, kw_only=True):
    """The ends of a slider next to a number; a log one moves by doublings. rest: where it is when unset."""

    low: float
    high: float
    step: float
    rest: float | None = None
    scale: Literal["linear", "doublings"] = "linear"


class Number(Struct, frozen=True, kw_only=True):
    """A number. unset: what an empty field means, in words. meaning: as of Select."""

    kind: ClassVar[str] = "number"
    name: str
    label: str
    value: str
    least: float | None = None
    most: float | None = None
    unset: str = ""
    slider: Slider | None = None
    meaning: str = ""


class Text(Struct, frozen=True, kw_only=True):
    """A short text, such as an amount with its unit. suggestions: some of what it may be, found by typing.

    identifier: of the element, where several texts share a name and the suggestions of the first. listed: the
    field whose suggestions these are, where it is another.
    """

    kind: ClassVar[str] = "text"
    name: str
    label: str
    value: str
    unset: str = ""
    slider: Slider | None = None
    suggestions: tuple[Choice, ...] = ()
    meaning: str = ""
    identifier: str = ""
    listed: str = ""

    @property
    def id(self) -> str:
        """Of the element."""
        return self.identifier or self.name


class Area(Struct, frozen=True, kw_only=True):
    """A text of several lines, at most so many characters."""

    kind: ClassVar[str] = "area"
    name: str
    label: str
    value: str
    most: int
    hint: str = ""


class Rows(Struct, frozen=True, kw_only=True):
    """Rows of texts below one heading each: a table to fill in. of: what a row is, for screen readers."""

    kind: ClassVar[str] = "rows"
    name: str
    label: str
    of: str
    rows: "tuple[tuple[Text, ...], ...]"


class Several(Struct, frozen=True, kw_only=True):
    """Texts of one name, each of which adds one system."""

    kind: ClassVar[str] = "several"
    name: str
    texts: tuple[Text, ...]


class More(Struct, frozen=True, kw_only=True):
    """Fields that most questions do without, behind their label. is_open: as the page comes."""

    kind: ClassVar[str] = "more"
    name: str
    label: str
    fields: "tuple[Control, ...]"
    is_open: bool = True


Control: TypeAlias = Select | Several | Checks | Number | Text | Area | Rows | More

_MOST_CATALOGUES = 8


@lru_cache(maxsize=_MOST_CATALOGUES)
def workload_choices(catalogue: Catalogue) -> tuple[Choice, ...]:
    """Workloads whose work is known, those of MLPerf first."""
    counted = [each for each in catalogue.workloads() if each.train_flop_per_sample is not None]
    ordered = sorted(counted, key=lambda each: each.first_round is None)
    return tuple(Choice(value=each.slug, label=each.title) for each in ordered)


@lru_cache(maxsize=_MOST_CATALOGUES)
def system_choices(catalogue: Catalogue) -> tuple[Choice, ...]:
    """Accelerators, which sit in their usual node, then systems by name."""
    return (
        *(Choice(value=each.slug, label=each.title) for each in catalogue.accelerators()),
        *(Choice(value=each.slug, label=each.title) for each in catalogue.systems()),
    )


@cache
def regions() -> tuple[Choice, ...]:
    """Regions whose electricity is known, the world first."""
    known = sorted(table("grids.toml")["kg_co2_per_kwh"], key=lambda name: (name != DEFAULT_GRID, name))
    return tuple(Choice(value=name, label=name.replace("_", " ").capitalize()) for name in known)


@cache
def calibrations() -> tuple[Choice, ...]:
    """Calibrations of the performance model."""
    names = (*(each.name for each in profiles()), "priors")
    return tuple(Choice(value=name, label=name) for name in names)

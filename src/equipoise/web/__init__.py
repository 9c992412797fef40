"""The dashboard: frames, forms and routing around the pages that report draws. Needs the extra `web`.

Here is what a page of it is: its address with every value bounded, its data, its form, how it answers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias

import polars as pl
from msgspec import Struct, field

from equipoise.economics import table
from equipoise.errors import UsageError
from equipoise.report.format import LONGEST_NAME, printable
from equipoise.report.html import Html
from equipoise.runs.embedded import tables
from equipoise.runs.store import Tables, comparable
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.hardware import DEFAULT_GRID
from equipoise.spec.mlperf import round_order
from equipoise.study.rounds import MIN_ENTRIES, default_round
from equipoise.web.answers import FileKind, PageAnswer

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


class Text(Struct, frozen=True, kw_only=True):
    """A short text, such as an amount with its unit. unset: what an empty field means, in words.

    bounds: the least and the most of a number, None for no bound; None where it is no plain number.
    suggestions: some of what it may be, found by typing. meaning: as of Select.
    identifier: of the element, where several texts share a name and the suggestions of the first. listed: the
    field whose suggestions these are, where it is another.
    """

    kind: ClassVar[str] = "text"
    name: str
    label: str
    value: str
    unset: str = ""
    bounds: tuple[float | None, float | None] | None = None
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


Control: TypeAlias = Select | Several | Checks | Text | Area | Rows | More

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


MOST_NAMES = 24
MOST_FORM_ACCELERATORS = 16_384
MOST_SYSTEMS = 6
# Paths of the server, what reads or describes them, and what would look the server over. `runs` is named from
# the folders that the dashboard was given; a workload is a name of the catalogue, never a MODULE:FUNCTION.
NOT_FROM_BROWSERS: Final = frozenset(
    {
        "here",
        "config",
        "topology",
        "quotes",
        "collectives",
        "traces",
        "traced_as",
        "times_from",
        "columns",
        "rows",
        "data",
        "also",
        "hardware",
        "workloads",
    }
)


class PageQuery(Struct, frozen=True, kw_only=True):
    """The query in the address of a page: of one without a form none, of others their fields."""

    @property
    def key(self) -> str:
        """Equal for equal questions."""
        return repr(self)


class WrongFieldsError(UsageError):
    """What is wrong with the fields of an address, a sentence each."""

    def __init__(self, reasons: Iterable[str]) -> None:
        """reasons: in the words of the form."""
        self.reasons = tuple(reasons)
        super().__init__("; ".join(self.reasons))


def checked(given: Given, names: Iterable[str], *, most: int = MOST_NAMES) -> dict[str, list[str]]:
    """The fields of an address that hold something. names: of all fields of the page. most: values of one.

    Raises WrongFieldsError for what is no field of it, and for more, or longer, than a browser may send.
    """
    known = frozenset(names)
    wrong = []
    for name, texts in given.items():
        shown = f"{printable(name)}={printable(texts[-1])!r}"
        if name not in known:
            wrong.append(f"{shown} is not a field of this page")
        elif len(texts) > most:
            wrong.append(f"{shown} has too many values; expected at most {most}")
        elif any(len(text) > LONGEST_NAME for text in texts):
            wrong.append(f"{shown} is longer than {LONGEST_NAME} characters")
    if wrong:
        raise WrongFieldsError(wrong)
    found = {name: [text for text in texts if text] for name, texts in given.items()}
    return {name: texts for name, texts in found.items() if texts}


def reader_of(
    kind: type[PageQuery], *, most: int = MOST_NAMES
) -> "Callable[[Given, DataSources], PageQuery]":
    """What reads a query of this kind from an address. It raises WrongFieldsError as `checked` does."""
    defaults = dict(zip(kind.__struct_fields__, kind.__struct_defaults__, strict=True))

    def read(given: Given, _: DataSources) -> PageQuery:
        found = checked(given, defaults, most=most)
        return kind(
            **{name: tuple(texts) if defaults[name] == () else texts[-1] for name, texts in found.items()}
        )

    return read


class StudyFields(PageQuery, frozen=True, kw_only=True):
    """Any round, any of its workloads; the published study's unless given."""

    round: str | None = None
    workload: tuple[str, ...] = ()


class CompareFields(PageQuery, frozen=True, kw_only=True):
    """Entries of one round and workload, side by side; a few of the widest accelerator's unless given."""

    round: str | None = None
    workload: str | None = None
    entry: tuple[str, ...] = ()


class RunsFields(PageQuery, frozen=True, kw_only=True):
    """One of the sweeps that the dashboard was given, by its name."""

    sweep: str | None = None


AT_FIRST: Final = {"workload": "llama2_70b_lora", "accelerator": "dgx-h100"}


class DataSources(Struct, frozen=True, kw_only=True, dict=True):
    """Folders, as `report --data DIR --also DIR` takes them, and folders of sweeps.

    catalogue: what names mean, and what the forms offer.
    """

    data: Path | None = None
    also: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = ()
    catalogue: Catalogue = field(default_factory=shipped)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process has the tables that folders held when this one read them."""
        held = vars(self) if self.data or self.also else {}
        return (*super().__reduce__(), held)

    @cached_property
    def tables(self) -> Tables:
        """The tables as they were when first needed."""
        return tables(data=self.data, also=self.also)

    @cached_property
    def default_round(self) -> str:
        """The round that a study is of unless another is named."""
        return default_round(self.tables.scores.rename({"campaign": "round"}))

    @cached_property
    def scored(self) -> pl.DataFrame:
        """The closed entries with a score, as the table `scores` has them."""
        named = pl.col("campaign").is_not_null() & pl.col("workload").is_not_null()
        return comparable(self.tables.scores).filter(named)

    @cached_property
    def studied(self) -> dict[str, dict[str, int]]:
        """Rounds, the latest first, and in each the workloads of enough scored entries with their number."""
        counts = (
            self.scored.group_by("campaign", "workload")
            .agg(num=pl.len())
            .filter(pl.col("num") >= MIN_ENTRIES)
            .sort("workload")
        )
        rounds = sorted(counts["campaign"].unique(), key=round_order, reverse=True)
        return {
            name: dict(counts.filter(campaign=name).select("workload", "num").iter_rows()) for name in rounds
        }

    @cached_property
    def at_first(self) -> dict[str, str]:
        """The question of a page before anything is chosen: its workload is one that these data have."""
        known = [each.slug for each in self.catalogue.workloads() if each.train_flop_per_sample is not None]
        held = set(self.scored["workload"])
        usual = AT_FIRST["workload"]
        workload = usual if usual in held else next((each for each in known if each in held), usual)
        return {**AT_FIRST, "workload": workload}

    def stamp(self) -> str:
        """What changes when a file below the folders of data does: answers made before are then stale."""
        seen = "".join(_stamps(self.data, *self.also))
        return sha256(seen.encode()).hexdigest()[:16] if seen else ""


def _stamps(*folders: Path | None) -> Iterator[str]:
    for folder in folders:
        for path in sorted(folder.glob("*.parquet")) if folder is not None else ():
            with suppress(OSError):  # it is being replaced: its next state has another stamp
                found = path.stat()
                yield f"{path}:{found.st_mtime_ns}:{found.st_size};"


class Live(Struct, frozen=True, kw_only=True):
    """What changes by itself. html: as it is now. every_s: how soon to ask again."""

    html: Html
    every_s: int


class Screen(Struct, frozen=True, kw_only=True):
    """One page. path: its address. title: in the navigation. about: what it answers, in words.

    verb: of the button. read: its query from an address; raises InputError for what cannot be fields.
    fields: of the form, as the address fills them. answer: from a query that was checked; raises the errors
    of input and evidence. stamp: changes when what it read has. depends: names of fields whose choices
    depend on other fields. live: what changes by itself; None where nothing does. file: the answer as a file
    to keep; None where there is none. is_transient: its state changes too often for the history.
    reads_disk: fields, stamp and live look at folders, which may be slow. labels: of fields by their option,
    where this page calls them otherwise than that of a question.
    """

    path: str
    title: str
    about: str
    verb: str
    read: Callable[[Given, DataSources], PageQuery]
    fields: Callable[[Given, DataSources], tuple[Control, ...]]
    answer: Callable[[Any, DataSources], PageAnswer]
    stamp: Callable[[Any, DataSources], str] = lambda _, sources: sources.stamp()
    depends: tuple[str, ...] = ()
    live: Callable[[Any, DataSources], Live | None] | None = None
    file: Callable[[Any, DataSources, FileKind], bytes] | None = None
    is_transient: bool = False
    reads_disk: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

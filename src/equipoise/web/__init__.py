"""The dashboard: frames, forms and routing around the pages of report. Needs the extra `web`.

This module defines its pages: their addresses with bounded values, data, forms, and answers.
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
    """The first value of a field; empty if there is none."""
    return next(iter(given.get(name, ())), "")


class Choice(Struct, frozen=True, kw_only=True):
    """One option to choose. value: as in the address. label: as displayed.

    holds: values that may stay selected in the fields that this choice clears.
    """

    value: str
    label: str
    holds: tuple[str, ...] = ()


class Select(Struct, frozen=True, kw_only=True):
    """A selection of one choice. clears: names of dependent fields. meaning: explanation, shown on demand."""

    kind: ClassVar[str] = "select"
    name: str
    label: str
    choices: tuple[Choice, ...]
    value: str
    clears: tuple[str, ...] = ()
    meaning: str = ""


class Checks(Struct, frozen=True, kw_only=True):
    """Check boxes, of which at most `most` may be selected. meaning: as in Select."""

    kind: ClassVar[str] = "checks"
    name: str
    label: str
    choices: tuple[Choice, ...]
    values: frozenset[str]
    most: int | None = None
    hint: str = ""
    meaning: str = ""


class Slider(Struct, frozen=True, kw_only=True):
    """The range of a slider next to a number. rest: its position if unset. scale: linear, or by doublings."""

    low: float
    high: float
    step: float
    rest: float | None = None
    scale: Literal["linear", "doublings"] = "linear"


class Text(Struct, frozen=True, kw_only=True):
    """A text input, e.g. for an amount with its unit. unset: what an empty field means.

    bounds: lower and upper bound of a number (None: unbounded); None if it is not a plain number.
    suggestions: completions while typing. meaning: as in Select. identifier: id of the element, if several
    texts share a name. listed: the field whose suggestions are reused, if any.
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
        """The id of the element."""
        return self.identifier or self.name


class Area(Struct, frozen=True, kw_only=True):
    """A multi-line text of at most `most` characters."""

    kind: ClassVar[str] = "area"
    name: str
    label: str
    value: str
    most: int
    hint: str = ""


class Rows(Struct, frozen=True, kw_only=True):
    """A table of text inputs. of: what a row is, for screen readers."""

    kind: ClassVar[str] = "rows"
    name: str
    label: str
    of: str
    rows: "tuple[tuple[Text, ...], ...]"


class Several(Struct, frozen=True, kw_only=True):
    """Text inputs with one name, each of which adds one system."""

    kind: ClassVar[str] = "several"
    name: str
    texts: tuple[Text, ...]


class More(Struct, frozen=True, kw_only=True):
    """Collapsible group of fields that most questions do not need. is_open: initially expanded."""

    kind: ClassVar[str] = "more"
    name: str
    label: str
    fields: "tuple[Control, ...]"
    is_open: bool = True


Control: TypeAlias = Select | Several | Checks | Text | Area | Rows | More

_MOST_CATALOGUES = 8


@lru_cache(maxsize=_MOST_CATALOGUES)
def workload_choices(catalogue: Catalogue) -> tuple[Choice, ...]:
    """Workloads with a known amount of work, those of MLPerf first."""
    counted = [each for each in catalogue.workloads() if each.train_flop_per_sample is not None]
    ordered = sorted(counted, key=lambda each: each.first_round is None)
    return tuple(Choice(value=each.slug, label=each.title) for each in ordered)


@lru_cache(maxsize=_MOST_CATALOGUES)
def system_choices(catalogue: Catalogue) -> tuple[Choice, ...]:
    """Accelerators, each in its usual node, followed by named systems."""
    return (
        *(Choice(value=each.slug, label=each.title) for each in catalogue.accelerators()),
        *(Choice(value=each.slug, label=each.title) for each in catalogue.systems()),
    )


@cache
def regions() -> tuple[Choice, ...]:
    """Regions with known electricity data, the world first."""
    known = sorted(table("grids.toml")["kg_co2_per_kwh"], key=lambda name: (name != DEFAULT_GRID, name))
    return tuple(Choice(value=name, label=name.replace("_", " ").capitalize()) for name in known)


MOST_NAMES = 24
MOST_FORM_ACCELERATORS = 16_384
MOST_SYSTEMS = 6
# Fields that browsers may not set: paths on the server, fields that refer to them, and inspection of the
# server. `runs` is the name of a folder that the dashboard was given; a workload is a catalogue name, never a
# MODULE:FUNCTION.
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
    """The query in the address of a page, with the fields of its form; empty for a page without a form."""

    @property
    def key(self) -> str:
        """A key that is equal for equal queries."""
        return repr(self)


class WrongFieldsError(UsageError):
    """Errors in the fields of an address, one sentence each."""

    def __init__(self, reasons: Iterable[str]) -> None:
        """reasons: sentences that use the labels of the form."""
        self.reasons = tuple(reasons)
        super().__init__("; ".join(self.reasons))


def checked(given: Given, names: Iterable[str], *, most: int = MOST_NAMES) -> dict[str, list[str]]:
    """The non-empty fields of an address. names: all fields of the page. most: maximum values per field.

    Raises WrongFieldsError for unknown fields, and for more or longer values than a browser may send.
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
    """A function that parses a query of this kind from an address, raising WrongFieldsError as `checked`."""
    defaults = dict(zip(kind.__struct_fields__, kind.__struct_defaults__, strict=True))

    def read(given: Given, _: DataSources) -> PageQuery:
        found = checked(given, defaults, most=most)
        return kind(
            **{name: tuple(texts) if defaults[name] == () else texts[-1] for name, texts in found.items()}
        )

    return read


class StudyFields(PageQuery, frozen=True, kw_only=True):
    """A round and some of its workloads; by default those of the published study."""

    round: str | None = None
    workload: tuple[str, ...] = ()


class CompareFields(PageQuery, frozen=True, kw_only=True):
    """Entries of one round and workload to compare; by default some of the widest accelerator's."""

    round: str | None = None
    workload: str | None = None
    entry: tuple[str, ...] = ()


class RunsFields(PageQuery, frozen=True, kw_only=True):
    """The name of one of the sweeps that the dashboard was given."""

    sweep: str | None = None


AT_FIRST: Final = {"workload": "llama2_70b_lora", "accelerator": "dgx-h100"}


class DataSources(Struct, frozen=True, kw_only=True, dict=True):
    """Folders of data, as for `report --data DIR --also DIR`, and folders of sweeps.

    catalogue: for resolving names, and for the choices in forms.
    """

    data: Path | None = None
    also: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = ()
    catalogue: Catalogue = field(default_factory=shipped)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the cached tables, so that other processes see the same data as this one."""
        held = vars(self) if self.data or self.also else {}
        return (*super().__reduce__(), held)

    @cached_property
    def tables(self) -> Tables:
        """The tables, read on first use."""
        return tables(data=self.data, also=self.also)

    @cached_property
    def default_round(self) -> str:
        """The default round of a study."""
        return default_round(self.tables.scores.rename({"campaign": "round"}))

    @cached_property
    def scored(self) -> pl.DataFrame:
        """The closed entries with a score, with the columns of the table `scores`."""
        named = pl.col("campaign").is_not_null() & pl.col("workload").is_not_null()
        return comparable(self.tables.scores).filter(named)

    @cached_property
    def studied(self) -> dict[str, dict[str, int]]:
        """By round, latest first: the workloads with enough scored entries, and their number of entries."""
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
        """The initial question of a page, with a workload that is in the data if there is one."""
        known = [each.slug for each in self.catalogue.workloads() if each.train_flop_per_sample is not None]
        held = set(self.scored["workload"])
        usual = AT_FIRST["workload"]
        workload = usual if usual in held else next((each for each in known if each in held), usual)
        return {**AT_FIRST, "workload": workload}

    def stamp(self) -> str:
        """A stamp that changes with any file below the folders of data, which makes cached answers stale."""
        seen = "".join(_stamps(self.data, *self.also))
        return sha256(seen.encode()).hexdigest()[:16] if seen else ""


def _stamps(*folders: Path | None) -> Iterator[str]:
    for folder in folders:
        for path in sorted(folder.glob("*.parquet")) if folder is not None else ():
            with suppress(OSError):  # the file is being replaced, and its next state has another stamp
                found = path.stat()
                yield f"{path}:{found.st_mtime_ns}:{found.st_size};"


class Live(Struct, frozen=True, kw_only=True):
    """A part of a page that is polled. html: its current content. every_s: polling interval in seconds."""

    html: Html
    every_s: int


class Screen(Struct, frozen=True, kw_only=True):
    """One page. path: its address. title: in the navigation. about: description of what it answers.

    verb: label of the button. read: parses the query from an address; raises InputError for invalid fields.
    fields: the form, filled from the address. answer: answers a valid query; raises errors of input and
    evidence. stamp: changes with the data behind an answer. depends: names of fields whose choices depend on
    other fields. live: the polled part of the page; None if there is none. file: the answer as a downloadable
    file; None if there is none. is_transient: its state changes too often for the browser history.
    reads_disk: fields, stamp and live read folders, which may be slow. labels: labels of fields by option, if
    they differ from those of a question.
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

"""The parts of a page: sections of blocks such as prose, tables, tiles and figures.

html.py and terminal.py render every block.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, Literal, TypeAlias, TypedDict, TypeVar, Unpack

from msgspec import Struct
from msgspec.structs import replace

from equipoise.intervals import Interval
from equipoise.report.charts import BarChart, Chart
from equipoise.report.format import ABSENT, count, listed, sentence, usable
from equipoise.units import plural

Tone: TypeAlias = Literal["good", "bad", "plain", "quiet"]


class Strong(Struct, frozen=True):
    """Emphasised words."""

    text: str


class Code(Struct, frozen=True):
    """A command to type, or a path."""

    text: str


Span: TypeAlias = str | Strong | Code
Spans: TypeAlias = Span | tuple[Span, ...]
Labelled: TypeAlias = tuple[str, Spans]


def _spans(words: Spans) -> tuple[Span, ...]:
    return words if isinstance(words, tuple) else (words,)


class Prose(Struct, frozen=True, kw_only=True):
    """One paragraph; a note is in smaller type."""

    spans: tuple[Span, ...]
    is_note: bool = False


def prose(*spans: Span) -> Prose:
    """One paragraph."""
    return Prose(spans=spans)


def note(*spans: Span) -> Prose:
    """A note without its empty spans; a note without spans is not shown."""
    return Prose(spans=tuple(each for each in spans if each), is_note=True)


def more_note(*parts: str | tuple[int, str]) -> Prose:
    """A note on what the short form of a page leaves out: words, or numbers with a noun, unless zero."""
    counted = (part if isinstance(part, str) else plural(*part) if part[0] > 0 else "" for part in parts)
    kept = ", ".join(filter(None, counted))
    return note(f"More with --full: {kept}." if kept else "More with --full.")


class Heading(Struct, frozen=True, kw_only=True):
    """A title inside a section; `name` is its anchor, unique in the report. is_minor: of the level below."""

    name: str
    text: str
    is_minor: bool = False


class Bullets(Struct, frozen=True, kw_only=True):
    """A list of short paragraphs."""

    items: tuple[tuple[Span, ...], ...]


def bullets(items: Iterable[Spans]) -> Bullets:
    """A list of short paragraphs."""
    return Bullets(items=tuple(map(_spans, items)))


class Badge(Struct, frozen=True, kw_only=True):
    """A word that rates something, and its tone, which is not shown by colour alone. detail: second line."""

    text: str
    tone: Tone
    detail: str = ""


class Tile(Struct, frozen=True, kw_only=True):
    """One important configuration or number: its label, its value, and the reason in a sentence."""

    label: str
    value: str
    detail: str = ""
    words: str = ""


class Tiles(Struct, frozen=True, kw_only=True):
    """A few tiles side by side."""

    items: tuple[Tile, ...]


class Facts(Struct, frozen=True, kw_only=True):
    """Lines below each other, each with a label in a separate column."""

    items: tuple[tuple[str, tuple[Span, ...]], ...]


def tiles(items: Iterable[Tile]) -> Tiles:
    """A few tiles side by side."""
    return Tiles(items=tuple(items))


def facts(items: Iterable[Labelled]) -> Facts:
    """Lines below each other, each a label and its text."""
    return Facts(items=tuple((label, _spans(words)) for label, words in items))


class Column(Struct, frozen=True, kw_only=True):
    """One column of a table. is_wide: omitted in terminals below 120 columns. meaning: shown on demand.

    is_header: its cells name the rows; by default those of the first column of words do. is_kept: essential,
    so that a terminal omits other columns first. is_cut: a terminal truncates its cells, to keep a row on one
    line.
    """

    title: str
    is_number: bool = False
    is_header: bool = False
    is_wide: bool = False
    is_kept: bool = False
    is_cut: bool = False
    meaning: str | None = None


class Cell(Struct, frozen=True, kw_only=True):
    """One cell. key: the value to sort by; None without a value. detail: a second line, less prominent."""

    text: str
    key: float | str | None = None
    detail: str | None = None
    badge: Badge | None = None
    is_code: bool = False


def named(text: str, *, detail: str | None = None, badge: Badge | None = None) -> Cell:
    """A cell with a name or words, by which it sorts."""
    shown = sentence(text)
    return Cell(text=shown, key=shown, detail=detail, badge=badge)


def number(value: float | None, form: Callable[[float], str] = count, *, detail: str | None = None) -> Cell:
    """A cell with a number; a dash if it is unknown."""
    return Cell(text=ABSENT) if value is None else Cell(text=form(value), key=value, detail=detail)


def amount(
    found: Interval | None, form: Callable[[float], str], *, ends: Callable[[Interval], str] | None = None
) -> Cell:
    """A cell with the value of an interval; a dash if it is too wide. ends: formats the bounds below it."""
    found = usable(found)
    if found is None:
        return Cell(text=ABSENT)
    return number(found.value, form, detail=None if ends is None else ends(found))


class Table(Struct, frozen=True, kw_only=True):
    """Rows that can be sorted by each column. marked: index of the row to emphasise, or None."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: int | None = None

    def __post_init__(self) -> None:
        """Expect a cell per column in every row."""
        assert all(len(row) == len(self.columns) for row in self.rows), self.name


ColumnOf: TypeAlias = tuple[Column, Callable[[Any], Cell]]
# The source of a column's cells: the (dotted) name of a field of an item, or a function of the item.
Of: TypeAlias = str | Callable[[Any], Any]


class ColumnOptions(TypedDict, total=False):
    """Options of a column besides its title, as `Column` has them."""

    is_header: bool
    is_wide: bool
    is_kept: bool
    is_cut: bool
    meaning: str | None


def words(title: str, of: Of, **options: Unpack[ColumnOptions]) -> ColumnOf:
    """A column of words or of ready cells; a dash for empty values."""
    return Column(title=title, **options), lambda item: _cell(_value(item, of), count)


def names(title: str, of: Of, **options: Unpack[ColumnOptions]) -> ColumnOf:
    """The column of words that names the rows."""
    options["is_header"] = True
    return words(title, of, **options)


def numbers(
    title: str, of: Of, form: Callable[[float], str] = count, **options: Unpack[ColumnOptions]
) -> ColumnOf:
    """A column of numbers or values of intervals, formatted by `form`; a dash for unknown values."""
    return Column(title=title, is_number=True, **options), lambda item: _cell(_value(item, of), form)


def _value(item: Any, of: Of) -> Any:  # noqa: ANN401 - an item of any kind
    """The value of a column for an item; None if any part of a dotted name is None."""
    if callable(of):
        return of(item)
    for part in of.split("."):
        if item is not None:
            item = item[part] if isinstance(item, Mapping) else getattr(item, part)
    return item


def _cell(value: Any, form: Callable[[float], str]) -> Cell:  # noqa: ANN401 - a value of any kind
    if isinstance(value, Cell):
        return value
    if isinstance(value, str):
        return named(value) if value else number(None)
    return amount(value, form) if isinstance(value, Interval) else number(value, form)


def table_of(
    name: str,
    columns: Iterable[ColumnOf],
    items: Iterable[Any],
    *,
    caption: str = "",
    marked: int | None = None,
) -> Table:
    """A row per item; each column has the function that makes its cells."""
    heads, cells = zip(*columns, strict=True)
    rows = tuple(tuple(cell(each) for cell in cells) for each in items)
    return Table(name=name, caption=caption, columns=heads, rows=rows, marked=marked)


def by_name(items: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of a mapping as items for `table_of`, with fields `name` and `of`."""
    return [{"name": name, "of": each} for name, each in items.items()]


class PairMatrix(Struct, frozen=True, kw_only=True):
    """A compact table with a badge per pair, on the colour of its tone; None for a pair that does not exist.

    rows: name, tooltip, and one badge per column head. legend: badges with their meanings.
    """

    name: str
    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, str | None, tuple[Badge | None, ...]], ...]
    legend: tuple[tuple[Badge, str], ...]

    def __post_init__(self) -> None:
        """Expect a badge per column head in every row."""
        assert all(len(words) == len(self.heads) for _, _, words in self.rows), self.name


class Panels(Struct, frozen=True, kw_only=True):
    """Figures side by side that share their series and legend.

    is_drawn: as SVG, which needs no script; for charts of numbers only.
    """

    charts: tuple[Chart | BarChart, ...]
    legend: str
    is_drawn: bool = False


class SideBySide(Struct, frozen=True, kw_only=True):
    """Groups of blocks, next to each other on wide screens and below each other on narrow ones."""

    groups: "tuple[tuple[Block, ...], ...]"


class Fold(Struct, frozen=True, kw_only=True):
    """Blocks that are shown when their title is clicked. is_long: a terminal only says where to find them.

    is_aside: details for verification, omitted in a terminal and on paper.
    """

    name: str
    title: str
    blocks: "tuple[Block, ...]"
    badges: tuple[Badge, ...] = ()
    is_long: bool = False
    is_aside: bool = False


class CodeListing(Struct, frozen=True, kw_only=True):
    """Lines of code to run or paste."""

    code: str


Block: TypeAlias = (
    Prose | Heading | Bullets | CodeListing | Tiles | Facts | Table | PairMatrix | Panels | SideBySide | Fold
)


def filled(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """The blocks without empty ones, such as a list without items or a table without rows."""
    contents = ("spans", "items", "rows", "charts", "blocks")
    return tuple(each for each in blocks if all(getattr(each, name, True) for name in contents))


Shown = TypeVar("Shown")


class Section(Struct, Generic[Shown], frozen=True):
    """One section of a page that shows findings of one kind, e.g. `Section[Findings]`.

    name: its anchor. needs: fields of the findings without which it is left out. blocks: makes the content
    from the findings without computing anything; empty blocks are not shown. lists_headings: whether the
    table of contents lists its headings. is_extra: not mentioned if left out. is_folded: shown in HTML when
    its title is clicked, and on paper.
    """

    name: str
    title: str
    blocks: Callable[[Shown], Iterable[Block]]
    needs: tuple[str, ...] = ()
    lists_headings: bool = False
    is_extra: bool = False
    is_folded: bool = False

    def applies(self, findings: Shown) -> bool:
        """Whether no field that the section needs is None or empty."""
        return all(getattr(findings, need) not in (None, (), "") for need in self.needs)


# The most rows in a table of the short form, which has fewer if other blocks need the lines.
SCREEN_ROWS: Final = 16
LEAST_ROWS: Final = 2  # with fewer, a short form omits other lines instead


class Page(Struct, Generic[Shown], frozen=True, kw_only=True):
    """One kind of page, for findings of one kind.

    title: of the window. about: the subject, above the headline. headline: the main finding in one sentence.
    summary: a few further sentences. sections: in reading order. closing: the basis and limits of the
    findings, at the end. absence: why sections are left out. brief: makes the blocks of the short form from
    the findings and the most rows that its tables may have; None for a page without a short form.
    """

    title: Callable[[Shown], str]
    about: Callable[[Shown], str]
    headline: Callable[[Shown], str]
    sections: tuple[Section[Shown], ...]
    summary: Callable[[Shown], tuple[str, ...]] = lambda _: ()
    closing: Callable[[Shown], tuple[str, ...]] = lambda _: ()
    absence: Callable[[Shown], str] = lambda _: "for lack of data"
    brief: Callable[[Shown, int], Iterable[Block]] | None = None

    def content(self, findings: Shown) -> list[tuple[Section[Shown], tuple[Block, ...]]]:
        """The sections that apply, with their blocks."""
        applying = (section for section in self.sections if section.applies(findings))
        return [(section, filled(section.blocks(findings))) for section in applying]

    def screen(self, findings: Shown, num_rows: int = SCREEN_ROWS) -> tuple[Block, ...]:
        """The blocks of the short form; empty if the page has none."""
        return () if self.brief is None else filled(self.brief(findings, num_rows))

    def left_out(self, findings: Shown) -> list[str]:
        """Titles of the sections for which there are no data."""
        wanted = [each for each in self.sections if not each.is_extra]
        return [section.title for section in wanted if not section.applies(findings)]

    def left_out_words(self, findings: Shown) -> str:
        """The sections left out and the reason, as a sentence; empty if there are none."""
        titles = self.left_out(findings)
        return f"Left out {self.absence(findings)}: {listed(titles)}." if titles else ""


def page_within(page: Page[Shown], context: Callable[[Shown], AbstractContextManager[None]]) -> Page[Shown]:
    """The page, with each part made inside a context that depends on the findings, such as a currency."""

    def within(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(findings: Shown, *further: int) -> Any:  # noqa: ANN401 - what the part is made of
            with context(findings):
                found = make(findings, *further)
                return found if isinstance(found, str) else tuple(found)

        return made

    return replace(
        page,
        title=within(page.title),
        about=within(page.about),
        headline=within(page.headline),
        sections=tuple(replace(each, blocks=within(each.blocks)) for each in page.sections),
        brief=None if page.brief is None else within(page.brief),
    )


def short_page(
    *,
    headline: Callable[[Shown], str],
    blocks: Callable[[Shown], Iterable[Block]],
    about: Callable[[Shown], str] = lambda _: "",
    brief: Callable[[Shown, int], Iterable[Block]] | None = None,
) -> Page[Shown]:
    """A page of one section, which is also its short form unless `brief` makes a shorter one."""
    return Page(
        title=headline,
        about=about,
        headline=headline,
        sections=(Section("answer", "Answer", blocks),),
        brief=brief or (lambda found, _: blocks(found)),
    )

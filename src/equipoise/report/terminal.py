"""Pages in a terminal: blocks within the available columns, and charts as text."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from equipoise import __version__
from equipoise.report.blocks import (
    LEAST_ROWS,
    SCREEN_ROWS,
    Badge,
    Block,
    Bullets,
    Cell,
    Code,
    CodeListing,
    Facts,
    Fold,
    Heading,
    Page,
    PairMatrix,
    Panels,
    Prose,
    Shown,
    SideBySide,
    Span,
    Strong,
    Table,
    Tiles,
    filled,
)
from equipoise.report.charts import BarChart, Chart
from equipoise.report.format import DASH, STAR, TIMES, breakable

# Replacements for this package's own characters where only ASCII can be shown.
ASCII: Final = str.maketrans(
    {TIMES: "x", DASH: "-", "…": "...", "·": "-", "≤": "<=", "≥": ">=", "→": "->", STAR: "*"}
)
SCREEN_LINES: Final = 25
COLUMN_GAP: Final = 3
READABLE_COLUMNS: Final = 14
KEPT_COLUMNS: Final = 16  # "misses deadline,": two reasons take one line each
WIDE_COLUMNS: Final = 120
LONGEST_WORD: Final = 28
# A column narrower than this is hard to read if its longest cell takes more lines than this.
PROSE_COLUMNS: Final = 28
MOST_CELL_LINES: Final = 4
_WORD: Final = re.compile(r"\S+")
# Lines are not broken between a number and its unit: a private character replaces the blank meanwhile.
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|[µm]?s|min|h|days|USD|[GMT]B(?:/s)?|[kMG]?Wh)(?!\w))")
_KEPT: Final = "\ue000"
TONES: Final = {"good": "bold green", "bad": "bold red", "plain": "bold", "quiet": "italic"}


def render(page: Page[Shown], findings: Shown, console: Console, *, full: bool = True) -> None:
    """Print a page on `console` within its width, with colour and Unicode if it supports them.

    full: the whole page instead of its short form.
    """
    is_screen = not full and page.brief is not None
    for line in (_screen if is_screen else _whole)(page, findings, console):
        # Only lines of code listings may exceed the width of the console.
        console.print(line, highlight=False, no_wrap=True, overflow="ignore", crop=False)


def _whole(page: Page[Shown], findings: Shown, console: Console) -> Iterator[Text]:
    yield from _top(page, findings, console, maker=f"Equipoise {__version__} · ")
    for section, blocks in page.content(findings):
        yield Text()
        yield from _paragraph(_rule(section.title, console), console)
        for block in blocks:
            yield from _block(block, console)
    yield Text()
    last = filter(None, (*page.closing(findings), page.left_out_words(findings)))
    yield from _paragraph(Text(" ".join(last), "dim"), console)


def _top(page: Page[Shown], findings: Shown, console: Console, *, maker: str = "") -> Iterator[Text]:
    """The subject of a page, its headline and summary."""
    about = f"{maker}{page.about(findings)}"
    if about:
        yield from _paragraph(Text(about, "dim"), console)
        yield Text()
    yield from _paragraph(Text(page.headline(findings), "bold"), console)
    for each in page.summary(findings):
        yield from _item(Text(each), console)


def _screen(page: Page[Shown], findings: Shown, console: Console) -> Iterator[Text]:
    """The short form, with rows, then lines, then the last blank lines omitted until it fits SCREEN_LINES."""
    top = list(_top(page, findings, console))
    blocks = page.screen(findings, SCREEN_ROWS)
    # Without a table to shorten, nothing is omitted but blank lines.
    most = LEAST_ROWS if blocks == page.screen(findings, LEAST_ROWS) else SCREEN_ROWS
    drawn: list[tuple[Block, list[Text]]] = []
    for num_rows in range(most, LEAST_ROWS - 2, -1):
        # Blocks that do not change with the number of rows are rendered once.
        known = drawn
        drawn = [
            (
                block,
                next((lines for same, lines in known if same == block), []) or [*_block(block, console)],
            )
            for block in page.screen(findings, num_rows)
        ]
        if len(top) + sum(len(lines) for _, lines in drawn) <= SCREEN_LINES:
            break
    shown = [*top, *(line for _, lines in drawn for line in lines)]
    blank = [place for place, line in enumerate(shown) if not line.plain.strip()]
    over = max(0, len(shown) - SCREEN_LINES)
    # A form that cannot fit keeps its blank lines.
    closed = blank[len(blank) - over :] if over <= len(blank) else []
    yield from (line for place, line in enumerate(shown) if place not in closed)


def _paragraph(text: Text, console: Console) -> Iterable[Text]:
    """A text in lines, in ASCII if the console has no Unicode."""
    return _wrapped(_shown(text, console), console, console.width)


def _hanging(text: Text, console: Console, *, first: Text, indent: int) -> Iterator[Text]:
    """A text in lines, the first after `first`, further ones indented."""
    for place, line in enumerate(_wrapped(_shown(text, console), console, console.width - indent)):
        line.rstrip()
        yield (first if place == 0 else Text(" " * indent)) + line


def _wrapped(text: Text, console: Console, width: int) -> Iterable[Text]:
    """A text in lines, not broken between number and unit; long names are broken after their signs."""
    kept = text.copy()
    kept.plain = _BEFORE_UNIT.sub(_KEPT, text.plain)
    for line in _with_breaks(kept, width).wrap(console, width):
        line.plain = line.plain.replace(_KEPT, " ")
        yield line


def _with_breaks(text: Text, width: int) -> Text:
    """The text with line breaks in names that are longer than a line."""
    spots = []
    for name in _WORD.finditer(text.plain):
        line, at = "", name.start()
        for piece in breakable(name[0]):
            if line and cell_len(line + piece) > width:
                spots.append(at)
                line = ""
            line += piece
            at += len(piece)
    return Text("\n").join(text.divide(spots)) if spots else text


def _shown(text: Text, console: Console) -> Text:
    return _as_ascii(text) if _is_ascii(console) else text


def _is_ascii(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


def _as_ascii(text: Text) -> Text:
    """The text in ASCII, with its styles; characters without a replacement become `?`."""
    shown = Text(end=text.end)
    for piece in text.split("\n", include_separator=True, allow_blank=True):
        position = 0
        for offset in sorted(
            {0, len(piece), *(edge for span in piece.spans for edge in (span.start, span.end))}
        ):
            part = piece[position:offset]
            plain = part.plain.translate(ASCII).encode("ascii", "replace").decode()
            shown.append(plain, part.spans[-1].style if part.spans else piece.style)
            position = offset
    return shown


def _rule(title: str, console: Console) -> Text:
    line = "-" if _is_ascii(console) else "─"
    return Text(f"{title} ".ljust(console.width, line), "bold")


def _block(block: Block, console: Console) -> Iterable[Text]:
    return RENDERERS[type(block)](block, console)


def _spans(spans: tuple[Span, ...]) -> Text:
    text = Text()
    for span in spans:
        if isinstance(span, Strong):
            text.append(span.text, "bold")
        elif isinstance(span, Code):
            text.append(span.text, "cyan")
        else:
            text.append(span)
    return text


def _prose(block: Prose, console: Console) -> Iterable[Text]:
    text = _spans(block.spans)
    if block.is_note:
        text.stylize("dim")
    return _paragraph(text, console)


def _heading(block: Heading, console: Console) -> Iterator[Text]:
    yield Text()
    yield from _paragraph(Text(block.text, "underline" if block.is_minor else "bold underline"), console)


def _bullets(block: Bullets, console: Console) -> Iterator[Text]:
    for item in block.items:
        yield from _item(_spans(item), console)


def _item(text: Text, console: Console) -> Iterator[Text]:
    return _hanging(text, console, first=Text("- "), indent=2)


def _listing(block: CodeListing, _: Console) -> Iterator[Text]:
    for line in block.code.splitlines():
        yield Text(f"  {line}", "cyan")


def _tiles(block: Tiles, console: Console) -> Iterator[Text]:
    for tile in block.items:
        detail = f" ({tile.detail})" if tile.detail else ""
        words = f" {tile.words}" if tile.words else ""
        text = Text.assemble(f"{tile.label}: ", (tile.value, "bold"), f"{detail}.{words}")
        yield from _item(text, console)


def _facts(block: Facts, console: Console) -> Iterator[Text]:
    """Labels in a separate column, or above their text if the console is too narrow."""
    indent = max((cell_len(label) for label, _ in block.items), default=0) + 2
    are_above = console.width - indent < READABLE_COLUMNS
    for label, spans in block.items:
        text = _spans(spans)
        if are_above:
            yield from _paragraph(Text(label, "bold"), console)
            yield from _hanging(text, console, first=Text("  "), indent=2)
        else:
            yield from _hanging(text, console, first=Text(label.ljust(indent), "bold"), indent=indent)


def _fold(block: Fold, console: Console) -> Iterator[Text]:
    if block.is_aside:
        return
    if block.is_long:
        yield from _item(Text(f"{block.title}: in the HTML report, and with --json."), console)
        return
    yield Text()
    title = Text(block.title, "bold")
    if block.badges:
        badges = Text(", ").join(Text(badge.text, TONES[badge.tone]) for badge in block.badges)
        title.append(" [", "bold").append_text(badges).append("]", "bold")
    yield from _paragraph(title, console)
    for inner in block.blocks:
        yield from _block(inner, console)


def _table(block: Table, console: Console) -> Iterator[Text]:
    """A table of the columns that fit, in order of priority, and the names of the others.

    If a column of prose would be too narrow, a paragraph per row with all columns instead.
    """
    block, widths = _with_star(block, console.width)
    if _is_squeezed(block, widths):
        yield from _paragraphs(block, console)
        return
    rule, crossing = ("-", "-+-") if _is_ascii(console) else ("─", "───")
    yield Text()
    titles = [Text(each.title, "bold") for each in block.columns]
    yield from _grid_row(titles, block, widths, console, is_head=True)
    yield Text(crossing.join(rule * width for width in widths.values()))
    for row in block.rows:
        yield from _grid_row([_cell(each) for each in row], block, widths, console)
    hidden = _hidden(block, widths)
    if hidden:
        yield from _paragraph(hidden, console)


def _grid_row(
    texts: Sequence[Text], block: Table, widths: Mapping[int, int], console: Console, *, is_head: bool = False
) -> Iterator[Text]:
    """The lines of a row; longer cells are wrapped, or truncated if their column is_cut."""
    is_ascii = _is_ascii(console)
    cells = []
    for place, width in widths.items():
        column, text = block.columns[place], _shown(texts[place], console)
        cells.append(
            (text if column.is_cut else _with_breaks(text, width)).wrap(
                console,
                width,
                justify="right" if column.is_number else "left",
                overflow=("crop" if is_ascii else "ellipsis") if column.is_cut else "fold",
                no_wrap=column.is_cut,
            )
        )
    height = max(map(len, cells))
    for line in range(height):
        parts = []
        for lines, width in zip(cells, widths.values(), strict=True):
            at = line - (height - len(lines) if is_head else 0)  # titles are aligned to the bottom
            parts.append(lines[at] if 0 <= at < len(lines) else Text(" " * width))
        yield Text(" | " if is_ascii else "   ").join(parts)


def _with_star(block: Table, width: int) -> tuple[Table, dict[int, int]]:
    """The table, and the width of each column that fits.

    If the column with the marked row's badge does not fit, the row begins with a star instead.
    """
    widths = _column_widths(block, width)
    place = _place_of_badge(block)
    if block.marked is None or place is None or place in widths or not widths:
        return block, widths
    row, first = list(block.rows[block.marked]), min(widths)
    row[first] = replace(row[first], text=f"{STAR} {row[first].text}")
    rows = (*block.rows[: block.marked], tuple(row), *block.rows[block.marked + 1 :])
    starred = replace(block, rows=rows)
    return starred, _column_widths(starred, width)


def _place_of_badge(block: Table) -> int | None:
    """The column with the badge of the marked row; None if there is none."""
    row = () if block.marked is None else block.rows[block.marked]
    return next((place for place, cell in enumerate(row) if cell.badge), None)


def _is_squeezed(block: Table, widths: Mapping[int, int]) -> bool:
    """Whether a column is too narrow for its text."""
    return any(
        not (block.columns[place].is_number or block.columns[place].is_cut)
        and width < PROSE_COLUMNS
        and _natural_width(block, place) > MOST_CELL_LINES * width
        for place, width in widths.items()
    )


def _paragraphs(block: Table, console: Console) -> Iterator[Text]:
    """Each row as its name, followed by its values in the other columns."""
    first = next((place for place, column in enumerate(block.columns) if column.is_header), 0)
    yield Text()
    for row in block.rows:
        yield from _paragraph(Text(_cell(row[first]).plain, "bold"), console)
        for place, column in enumerate(block.columns):
            held = _cell(row[place])
            if place != first and held.plain not in ("", DASH):
                text = Text.assemble((f"{column.title}: ", "dim"), held)
                yield from _hanging(text, console, first=Text("  "), indent=4)


def _hidden(block: Table, widths: Mapping[int, int]) -> Text | None:
    """A note on the columns that do not fit."""
    badged = _place_of_badge(block)
    titles = []
    for place, column in enumerate(block.columns):
        if place in widths or not column.title:
            continue
        badge = (
            block.rows[block.marked][place].badge if place == badged and block.marked is not None else None
        )
        titles.append(column.title if badge is None else f"{column.title} ({STAR}: {badge.text})")
    return Text(f"No room for: {', '.join(titles)}; --json has them.", "dim") if titles else None


def _column_widths(block: Table, width: int) -> dict[int, int]:
    """The width of each column that fits; names are broken if an essential column does not fit otherwise."""
    kept = {place for place, column in enumerate(block.columns) if column.is_kept}
    widths = _widths_within(block, width)
    if kept <= widths.keys():
        return widths
    broken = _widths_within(block, width, breaks_names=True)
    return broken if kept <= broken.keys() else widths


def _widths_within(block: Table, width: int, *, breaks_names: bool = False) -> dict[int, int]:
    """The width of each column that fits: its least width, and a share of the remaining columns."""
    widths: dict[int, int] = {}
    room = width + COLUMN_GAP
    for place in sorted(range(len(block.columns)), key=partial(_rank_of, block)):
        if block.columns[place].is_wide and width < WIDE_COLUMNS:
            continue
        least = _least_width(block, place, breaks_names=breaks_names)
        if least + COLUMN_GAP > room:
            break
        widths[place] = least
        room -= least + COLUMN_GAP
    wanted = {place: _natural_width(block, place) - least for place, least in widths.items()}
    while room > 0 and any(more > 0 for more in wanted.values()):
        for place in [place for place, more in wanted.items() if more > 0][:room]:
            widths[place] += 1
            wanted[place] -= 1
            room -= 1
    return dict(sorted(widths.items()))


def _rank_of(block: Table, place: int) -> tuple[bool, bool, bool]:
    """Sorting key of columns by priority: badges without a title, essential columns and the names of rows.

    Then other columns, empty ones, and wide ones; columns of equal priority stay in order.
    """
    column, cells = block.columns[place], [row[place] for row in block.rows]
    is_empty = all(not each.badge and each.text in ("", DASH) for each in cells)
    is_named = column.is_header and any(each.is_kept for each in block.columns)
    is_first = not column.title or column.is_kept or is_named
    return column.is_wide, is_empty, is_empty or not is_first


def _least_width(block: Table, place: int, *, breaks_names: bool) -> int:
    """The least width of a column, which fits the words of its title, whole numbers and whole words."""
    title = max((cell_len(word) for word in block.columns[place].title.split()), default=1)
    lines = _lines(block, place)
    longest = max(map(cell_len, lines), default=1)
    if block.columns[place].is_number:
        return max(title, longest)
    if block.columns[place].is_header and not breaks_names:
        return max(title, min(longest, LONGEST_WORD))
    if block.columns[place].is_cut:
        return max(title, min(longest, READABLE_COLUMNS))
    word = max((cell_len(each) for line in lines for each in line.split()), default=1)
    readable = KEPT_COLUMNS if block.columns[place].is_kept else READABLE_COLUMNS
    return max(title, min(longest, max(readable, min(word, LONGEST_WORD))))


def _natural_width(block: Table, place: int) -> int:
    """The width of a column without wrapped lines."""
    return max(map(cell_len, (block.columns[place].title, *_lines(block, place))))


def _lines(block: Table, place: int) -> list[str]:
    return [line for row in block.rows for line in _cell(row[place]).plain.splitlines()]


def _cell(cell: Cell) -> Text:
    text = Text(cell.text)
    if cell.badge:
        text.append(" " if cell.text else "").append(cell.badge.text, TONES[cell.badge.tone])
    if cell.detail:
        text.append(f"\n{cell.detail}", "dim" if cell.text else "")
    return text


def _matrix(block: PairMatrix, console: Console) -> Iterator[Text]:
    """Badges in columns of equal width; columns that do not fit next to the names follow below."""
    first = max(cell_len(name) for name, _, _ in block.rows)
    texts = [_badge_words(badge) for _, _, words in block.rows for badge in words if badge]
    width = max(map(cell_len, (*block.heads, *texts))) + 2
    step = max(1, (console.width - first) // width)
    yield Text()
    yield from _paragraph(Text(block.caption, "bold"), console)
    for start in range(0, len(block.heads), step):
        shown = slice(start, start + step)
        heads = "".join(f"{head:>{width}}" for head in block.heads[shown])
        yield from _paragraph(Text(" " * first + heads, "bold"), console)
        for name, _, words in block.rows:
            line = Text(f"{name:<{first}}", "bold")
            for badge in words[shown]:
                text, tone = (_badge_words(badge), TONES[badge.tone]) if badge else ("", "")
                line.append(f"{text:>{width}}", tone)
            yield from _paragraph(line, console)
    for badge, meaning in block.legend:
        yield from _item(Text.assemble((badge.text, TONES[badge.tone]), f": {meaning}"), console)


def _badge_words(badge: Badge) -> str:
    """The text of a badge, followed by its second line."""
    return f"{badge.text}, {badge.detail}" if badge.detail else badge.text


def _panels(block: Panels, console: Console) -> Iterator[Text]:
    from equipoise.report.textplot import Canvas, legend_signs, style, text_plot  # noqa: PLC0415 - only for plots

    canvas = Canvas(columns=console.width, is_unicode=not _is_ascii(console))
    signs = legend_signs(block.charts, canvas)
    for chart in block.charts:
        yield Text()
        yield from _paragraph(_chart_title(chart), console)
        yield from _paragraph(text_plot(chart, canvas, signs), console)
    legend = Text(f"{block.legend}: ", "dim")
    for place, ((name, mark, _), sign) in enumerate(signs.items()):
        legend.append(", " if place else "").append(sign, style(mark)).append(f" {name}")
    yield from _paragraph(legend, console)


def _side_by_side(block: SideBySide, console: Console) -> Iterator[Text]:
    for group in block.groups:
        for each in filled(group):
            yield from _block(each, console)


def _chart_title(chart: Chart | BarChart) -> Text:
    if isinstance(chart, BarChart) and chart.is_across:
        return Text.assemble((chart.title, "bold"), (f": {chart.x_title}", "dim"))
    if isinstance(chart, BarChart):
        return Text.assemble((chart.title, "bold"), (f": {chart.y_title} by {chart.x_title}", "dim"))
    x, y = (f"{axis.title} (log)" if axis.is_log else axis.title for axis in (chart.x, chart.y))
    axes = f"{y} against {x}" if y else f"by {x}"
    return Text.assemble((chart.title, "bold"), (f": {axes}", "dim"))


# The renderer of each kind of block; `Any` because each takes a different kind.
RENDERERS: Final[Mapping[type, Callable[[Any, Console], Iterable[Text]]]] = {
    Prose: _prose,
    Heading: _heading,
    Bullets: _bullets,
    CodeListing: _listing,
    Tiles: _tiles,
    Facts: _facts,
    Table: _table,
    PairMatrix: _matrix,
    Panels: _panels,
    SideBySide: _side_by_side,
    Fold: _fold,
}

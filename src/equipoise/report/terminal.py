"""A page in a terminal: its blocks in the columns there are, with plots of characters."""

import io
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from equipoise import __version__
from equipoise.report.blocks import (
    SCREEN_ROWS,
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
from equipoise.report.format import DASH, STAR, TIMES, listed

# What stands for the characters this package itself writes where only ASCII can be shown.
ASCII: Final = str.maketrans(
    {TIMES: "x", DASH: "-", "…": "...", "·": "-", "≤": "<=", "≥": ">=", "→": "->", STAR: "*"}
)
SCREEN_LINES: Final = 25
LEAST_ROWS: Final = 2
COLUMN_GAP: Final = 3
READABLE_COLUMNS: Final = 14
WIDE_COLUMNS: Final = 120
LONGEST_WORD: Final = 28
# A column narrower than one line of prose whose longest cell takes more lines than these is hard to read.
PROSE_COLUMNS: Final = 28
MOST_CELL_LINES: Final = 4
TONES: Final = {"good": "bold green", "bad": "bold red", "plain": "bold", "quiet": "italic"}


def render(page: Page[Shown], findings: Shown, console: Console, *, full: bool = True) -> None:
    """Print a page on `console`, no line longer than it is wide; colour and Unicode where it has them.

    full: all of it; else one screen, where the page has a short form.
    """
    if not full and page.brief is not None:
        _screen(page, findings, console)
        return
    _top(page, findings, console, maker=f"Equipoise {__version__} · ")
    for section, blocks in page.content(findings):
        console.print()
        _print(console, _rule(section.title, console))
        for block in blocks:
            _block(block, console)
    console.print()
    left_out = page.left_out(findings)
    absent = f" Left out for lack of data: {listed(left_out)}." if left_out else ""
    _print(console, Text(" ".join(page.closing(findings)) + absent, "dim"))


def _top(page: Page[Shown], findings: Shown, console: Console, *, maker: str = "") -> None:
    """What a page is about, and what was found."""
    about = f"{maker}{page.about(findings)}"
    if about:
        _print(console, Text(about, "dim"))
        console.print()
    _print(console, Text(page.headline(findings), "bold"))
    for each in page.summary(findings):
        _item(console, Text(each))


def _screen(page: Page[Shown], findings: Shown, console: Console) -> None:
    """The short form, its tables with as many rows as leave it within SCREEN_LINES."""
    blocks = page.screen(findings, SCREEN_ROWS)
    # What is the same with fewer rows is shown whole.
    most = LEAST_ROWS - 1 if blocks == page.screen(findings, LEAST_ROWS) else SCREEN_ROWS
    top = _num_lines(lambda trial: _top(page, findings, trial), console)
    measured: list[tuple[Block, int]] = []
    for num_rows in range(most, LEAST_ROWS - 1, -1):
        blocks = page.screen(findings, num_rows)
        # Most blocks are the same with fewer rows: they are measured once.
        known = [next((lines for same, lines in measured if same == block), None) for block in blocks]
        lines = [
            _height(block, console) if each is None else each
            for block, each in zip(blocks, known, strict=True)
        ]
        measured = list(zip(blocks, lines, strict=True))
        if top + sum(lines) <= SCREEN_LINES:
            break
    _top(page, findings, console)
    for block in blocks:
        _block(block, console)


def _height(block: Block, console: Console) -> int:
    """How many lines a block takes."""
    if isinstance(block, Table):
        return _table_height(block, console)
    return _num_lines(lambda trial: _block(block, trial), console)


def _num_lines(show: Callable[[Console], None], console: Console) -> int:
    """How many lines are printed on a console of the same width and encoding."""
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=console.encoding, errors="replace") as file:
        show(Console(file=file, width=console.width, color_system=None, legacy_windows=False))
        file.flush()
        return raw.getvalue().count(b"\n")


def _print(console: Console, text: Text) -> None:
    """Text as far as the console can show it: without Unicode, what stands for it."""
    console.print(_shown(text, console), highlight=False)


def _shown(text: Text, console: Console) -> Text:
    """The text in the characters that the console has."""
    return _as_ascii(text) if _is_ascii(console) else text


def _is_ascii(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


def _as_ascii(text: Text) -> Text:
    """The same text in ASCII, styles kept piece by piece; what has no stand-in becomes `?`."""
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


def _block(block: Block, console: Console) -> None:
    for kind, renderer in RENDERERS:
        if isinstance(block, kind):
            renderer(block, console)
            return
    raise TypeError(f"no renderer for a block of type {type(block).__name__}; add it to RENDERERS")


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


def _prose(block: Prose, console: Console) -> None:
    text = _spans(block.spans)
    if block.is_note:
        text.stylize("dim")
    _print(console, text)


def _heading(block: Heading, console: Console) -> None:
    console.print()
    _print(console, Text(block.text, "underline" if block.is_minor else "bold underline"))


def _bullets(block: Bullets, console: Console) -> None:
    for item in block.items:
        _item(console, _spans(item))


def _item(console: Console, text: Text) -> None:
    """One item of a list, its further lines under its first."""
    for place, line in enumerate(_shown(text, console).wrap(console, console.width - 2)):
        line.rstrip()
        console.print(Text("- " if place == 0 else "  ") + line, highlight=False)


def _listing(block: CodeListing, console: Console) -> None:
    for line in block.code.splitlines():
        console.print(Text(f"  {line}", "cyan"), no_wrap=True, overflow="ignore")


def _tiles(block: Tiles, console: Console) -> None:
    for tile in block.items:
        detail = f" ({tile.detail})" if tile.detail else ""
        words = f" {tile.words}" if tile.words else ""
        _item(console, Text.assemble(f"{tile.label}: ", (tile.value, "bold"), f"{detail}.{words}"))


def _facts(block: Facts, console: Console) -> None:
    """Labels in a separate column, further lines under the first; labels above where there is no room."""
    first = max((cell_len(each.label) for each in block.items), default=0) + 2
    are_above = console.width - first < READABLE_COLUMNS
    if are_above:
        first = 2
    for each in block.items:
        if are_above:
            _print(console, Text(each.label, "bold"))
        text = _spans(each.spans)
        for place, line in enumerate(_shown(text, console).wrap(console, console.width - first)):
            line.rstrip()
            label = f"{each.label:<{first}}" if place == 0 and not are_above else " " * first
            console.print(Text.assemble((label, "bold"), line), highlight=False)


def _fold(block: Fold, console: Console) -> None:
    if block.is_aside:
        return
    if block.is_long:
        _item(console, Text(f"{block.title}: in the HTML report, and with --json."))
        return
    console.print()
    title = Text(block.title, "bold")
    if block.badges:
        badges = Text(", ").join(Text(badge.text, TONES[badge.tone]) for badge in block.badges)
        title.append(" [", "bold").append_text(badges).append("]", "bold")
    _print(console, title)
    for inner in block.blocks:
        _block(inner, console)


def _table(block: Table, console: Console) -> None:
    """The columns for which there is room, first come first served; what is left out is named.

    Where prose would be squeezed, a paragraph a row with all columns in place of a grid.
    """
    plain = _is_ascii(console)
    block, widths = _with_star(block, console.width)
    if _is_squeezed(block, widths):
        _paragraphs(block, console)
        return
    table = RichTable(box=box.ASCII2 if plain else box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, width in widths.items():
        column = block.columns[place]
        table.add_column(
            _shown(Text(column.title), console),
            justify="right" if column.is_number else "left",
            overflow=("crop" if plain else "ellipsis") if column.is_cut else "fold",
            no_wrap=column.is_cut
            or _natural_width(block, place) <= width,  # else each cell is broken into words
            width=width,
        )
    for row in block.rows:
        table.add_row(*(_shown(_cell(row[place]), console) for place in widths))
    console.print(Padding(table, (1, 0, 0, 0)), highlight=False)
    hidden = _hidden(block, widths)
    if hidden:
        _print(console, hidden)


def _with_star(block: Table, width: int) -> tuple[Table, dict[int, int]]:
    """The table, and the width of each column shown.

    Where the badge of its marked row is in a column for which there is no room, a star leads the row.
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
    """The column in which the marked row has its badge; None of a table without either."""
    row = () if block.marked is None else block.rows[block.marked]
    return next((place for place, cell in enumerate(row) if cell.badge), None)


def _is_squeezed(block: Table, widths: Mapping[int, int]) -> bool:
    """Whether a column is so narrow that its words would stand one below the other."""
    return any(
        not (block.columns[place].is_number or block.columns[place].is_cut)
        and width < PROSE_COLUMNS
        and _natural_width(block, place) > MOST_CELL_LINES * width
        for place, width in widths.items()
    )


def _paragraphs(block: Table, console: Console) -> None:
    """Each row as its name, and below it what the other columns hold of it."""
    first = next((place for place, column in enumerate(block.columns) if column.is_header), 0)
    console.print()
    for row in block.rows:
        _print(console, Text(_cell(row[first]).plain, "bold"))
        for place, column in enumerate(block.columns):
            held = _cell(row[place])
            if place != first and held.plain not in ("", DASH):
                text = Text.assemble((f"{column.title}: ", "dim"), held)
                for at, line in enumerate(_shown(text, console).wrap(console, console.width - 4)):
                    line.rstrip()
                    console.print(Text("  " if at == 0 else "    ") + line, highlight=False)


def _hidden(block: Table, widths: Mapping[int, int]) -> Text | None:
    """The columns for which there is no room."""
    badged = _place_of_badge(block)
    titles = []
    for place, column in enumerate(block.columns):
        if place in widths or not column.title:  # what has no title is said beside the table too
            continue
        badge = (
            block.rows[block.marked][place].badge if place == badged and block.marked is not None else None
        )
        titles.append(column.title if badge is None else f"{column.title} ({STAR}: {badge.text})")
    return Text(f"No room for: {', '.join(titles)}; --json has them.", "dim") if titles else None


def _table_height(block: Table, console: Console) -> int:
    """How many lines `_table` prints; measured in a hundredth of the time that printing takes."""
    block, widths = _with_star(block, console.width)
    if _is_squeezed(block, widths):
        return _num_lines(lambda trial: _paragraphs(block, trial), console)
    head = max(
        _cell_height(Text(block.columns[place].title), block, place, widths, console) for place in widths
    )
    rows = sum(
        max(_cell_height(_cell(row[place]), block, place, widths, console) for place in widths)
        for row in block.rows
    )
    hidden = _hidden(block, widths)
    below = 0 if hidden is None else len(_shown(hidden, console).wrap(console, console.width))
    return 1 + head + 1 + rows + below


def _cell_height(text: Text, block: Table, place: int, widths: Mapping[int, int], console: Console) -> int:
    """Lines of a cell: wrapped where they are longer than the column is wide, unless it cuts them."""
    shown = _shown(text, console)
    lines = shown.plain.split("\n")
    if block.columns[place].is_cut or all(cell_len(line) <= widths[place] for line in lines):
        return len(lines)
    return len(shown.wrap(console, widths[place], overflow="fold"))


def _column_widths(block: Table, width: int) -> dict[int, int]:
    """The width of each column shown: first what each needs at least, then the rest to those that want it."""
    widths: dict[int, int] = {}
    room = width + COLUMN_GAP
    for place in sorted(range(len(block.columns)), key=lambda place: block.columns[place].is_wide):
        if block.columns[place].is_wide and width < WIDE_COLUMNS:
            continue
        least = _least_width(block, place)
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


def _least_width(block: Table, place: int) -> int:
    """What a column needs: the longest word of its title; a number whole, words unbroken."""
    title = max((cell_len(word) for word in block.columns[place].title.split()), default=1)
    lines = _lines(block, place)
    longest = max(map(cell_len, lines), default=1)
    if block.columns[place].is_number:
        return max(title, longest)
    if block.columns[place].is_header:
        return max(title, min(longest, LONGEST_WORD))
    if block.columns[place].is_cut:
        return max(title, min(longest, READABLE_COLUMNS))
    word = max((cell_len(each) for line in lines for each in line.split()), default=1)
    return max(title, min(longest, max(READABLE_COLUMNS, min(word, LONGEST_WORD))))


def _natural_width(block: Table, place: int) -> int:
    """What a column would take if nothing were wrapped."""
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


def _matrix(block: PairMatrix, console: Console) -> None:
    """The words in columns of one width; those that do not fit next to the names follow below."""
    first = max(cell_len(name) for name, _, _ in block.rows)
    texts = [badge.text for _, _, words in block.rows for badge in words if badge]
    width = max(map(cell_len, (*block.heads, *texts))) + 2
    step = max(1, (console.width - first) // width)
    console.print()
    _print(console, Text(block.caption, "bold"))
    for start in range(0, len(block.heads), step):
        shown = slice(start, start + step)
        _print(
            console, Text(" " * first + "".join(f"{head:>{width}}" for head in block.heads[shown]), "bold")
        )
        for name, _, words in block.rows:
            line = Text(f"{name:<{first}}", "bold")
            for badge in words[shown]:
                text, tone = (badge.text, TONES[badge.tone]) if badge else ("", "")
                line.append(f"{text:>{width}}", tone)
            _print(console, line)
    for badge, meaning in block.legend:
        _item(console, Text.assemble((badge.text, TONES[badge.tone]), f": {meaning}"))


def _panels(block: Panels, console: Console) -> None:
    from equipoise.report.textplot import Canvas, style, symbol, text_plot  # noqa: PLC0415 - only for plots

    canvas = Canvas(columns=console.width, is_unicode=not _is_ascii(console))
    for chart in block.charts:
        console.print()
        _print(console, _chart_title(chart))
        _print(console, text_plot(chart, canvas))
    marks = {series.name: series.mark for chart in block.charts for series in chart.series}
    legend = Text(f"{block.legend}: ", "dim")
    for place, (name, mark) in enumerate(marks.items()):
        legend.append(", " if place else "").append(symbol(mark, canvas), style(mark)).append(f" {name}")
    _print(console, legend)


def _side_by_side(block: SideBySide, console: Console) -> None:
    """One group below the other."""
    for group in block.groups:
        for each in filled(group):
            _block(each, console)


def _chart_title(chart: Chart | BarChart) -> Text:
    if isinstance(chart, BarChart) and chart.is_across:
        return Text.assemble((chart.title, "bold"), (f": {chart.x_title}", "dim"))
    if isinstance(chart, BarChart):
        return Text.assemble((chart.title, "bold"), (f": {chart.y_title} by {chart.x_title}", "dim"))
    x, y = (f"{axis.title} (log)" if axis.is_log else axis.title for axis in (chart.x, chart.y))
    axes = f"{y} against {x}" if y else f"by {x}"
    return Text.assemble((chart.title, "bold"), (f": {axes}", "dim"))


# Which function prints which kind of block; `Any` because each takes its own kind.
RENDERERS: Final[tuple[tuple[type, Callable[[Any, Console], None]], ...]] = (
    (Prose, _prose),
    (Heading, _heading),
    (Bullets, _bullets),
    (CodeListing, _listing),
    (Tiles, _tiles),
    (Facts, _facts),
    (Table, _table),
    (PairMatrix, _matrix),
    (Panels, _panels),
    (SideBySide, _side_by_side),
    (Fold, _fold),
)

"""The terminal: 80 columns, with and without colour and Unicode, and no name that commands it."""

import io

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from equipoise.report import terminal
from equipoise.report.blocks import (
    Badge,
    Cell,
    CodeListing,
    Column,
    Facts,
    Fold,
    Page,
    Panels,
    Section,
    Table,
    prose,
)
from equipoise.report.charts import SYMBOLS as MARKS
from equipoise.report.charts import Axis, BarChart, BarPart, Chart, Level, Mark, Series, series_mark
from equipoise.report.pages.study import STUDY
from equipoise.report.pages.study.entries import NOT_VERIFIED
from equipoise.report.textplot import Canvas, text_plot

HOSTILE = "\x1b[2J\x1b]0;pwned\x07[bold red]x[/] " + "very-long-name-" * 20


LONG_NAMES = (
    "github:ai-hypercomputer/gpu-recipes",
    "measurements_of_the_cluster_2026.csv",
    "https://dev.example.com/some-results",
)


def printed(show, *, width=80, encoding="utf-8", color_system=None):
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, newline="\n") as file:
        console = Console(
            file=file, width=width, color_system=color_system, force_terminal=color_system is not None,
            legacy_windows=False,
        )  # fmt: skip
        show(console)
        file.flush()
        return raw.getvalue().decode(encoding)


def show(block, console):
    """Print one block."""
    for line in terminal._block(block, console):
        console.print(line, highlight=False, no_wrap=True, overflow="ignore", crop=False)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("width", [40, 80, 132])
def test_no_line_is_longer_than_the_terminal(findings, width, encoding):
    text = printed(lambda console: terminal.render(STUDY, findings, console), width=width, encoding=encoding)
    assert max(map(cell_len, text.splitlines())) <= width


UNITS = ("%", "h", "USD", "GB", "TB/s", "ms", "kWh")


@pytest.mark.parametrize("width", range(20, 60))
def test_no_line_ends_between_a_number_and_its_unit(width):
    words = " ".join(f"{number} {unit}" for number in (9.3, 41.6, 125) for unit in UNITS)
    lines = printed(lambda console: show(prose(words), console), width=width).splitlines()
    assert " ".join(each.strip() for each in lines) == words
    assert max(map(cell_len, lines)) <= width
    assert not set(UNITS) & {each.split()[0] for each in lines}


def test_it_says_what_the_page_says(findings):
    text = " ".join(printed(lambda console: terminal.render(STUDY, findings, console)).split())
    part = findings.claims[0].parts[0]
    for words in (
        findings.headline,
        *(section.title for section, _ in STUDY.content(findings)),
        "64 \N{MULTIPLICATION SIGN} H100 SXM5 80 GB",
        f"study: {part.study_method.verdict}, ",
        f": {part.like_for_like.verdict}",
        part.rule,
        "10.000",
        "2 of 10 logs missing",
        "1.5 MJ",
        NOT_VERIFIED,
    ):
        assert words in text


def test_without_unicode_it_is_plain_ascii_with_stand_ins(findings):
    text = printed(lambda console: terminal.render(STUDY, findings, console), encoding="ascii")
    assert "64 x H100" in text
    assert "?" not in text


def test_without_colour_no_escape_is_written(findings):
    assert "\x1b" not in printed(lambda console: terminal.render(STUDY, findings, console))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_neither_command_the_terminal_nor_break_its_columns(findings_of, encoding):
    hostile = findings_of(submitter=HOSTILE, system=HOSTILE, accelerator=HOSTILE)
    text = printed(lambda console: terminal.render(STUDY, hostile, console), encoding=encoding)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold red]" in text.replace("\n", "")
    assert max(map(cell_len, text.splitlines())) <= 80


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_name_longer_than_its_column_is_broken_behind_a_sign(encoding):
    columns = (Column(title="File"), *(Column(title=str(each), is_number=True) for each in range(6)))
    numbers = (Cell(text="1,234,567"),) * 6
    rows = tuple((Cell(text=name, detail="Training/Models/net_v1 x 8"), *numbers) for name in LONG_NAMES)
    text = printed(
        lambda console: show(Table(name="t", caption="T", columns=columns, rows=rows), console),
        width=100,
        encoding=encoding,
    )
    first = [line[:28].rstrip(" |") for line in text.splitlines()]
    for name in LONG_NAMES:
        assert name not in text
        at = next(place for place, line in enumerate(first) if line and name.startswith(line))
        assert first[at][-1] in "/_:-"
        assert f"{first[at]}{first[at + 1]}" == name


def test_columns_that_do_not_fit_are_named_below_the_table():
    columns = tuple(Column(title=f"number {place}", is_number=True) for place in range(12))
    row = tuple(Cell(text="1,234,567", key=1) for _ in columns)
    table = Table(name="t", caption="T", columns=columns, rows=(row,))
    text = printed(lambda console: show(table, console))
    assert "number 0" in " ".join(text.split("──")[0].split())
    assert "number 11;" in text
    assert max(map(cell_len, text.splitlines())) <= 80


def test_a_badge_without_a_title_keeps_its_room_and_an_empty_column_gives_way():
    columns = [Column(title=name, is_number=True) for name in ("N", "Time", "USD", "Hours")]
    texts = ("16", "8.94 ms", "\N{EN DASH}", "3.98")
    row = (
        *(Cell(text=each) for each in texts),
        Cell(text="", badge=Badge(text="extrapolated", tone="quiet")),
    )
    table = Table(name="t", caption="T", columns=(*columns, Column(title="")), rows=(row,))
    wide, narrow = (printed(lambda console: show(table, console), width=width) for width in (60, 38))
    assert "No room" not in wide
    assert {"extrapolated", "3.98"} <= set(narrow.split())
    assert "USD;" in narrow


@pytest.mark.parametrize(("encoding", "star"), [("utf-8", "★"), ("ascii", "*")])
def test_the_marked_row_has_a_star_where_its_badge_has_no_room(encoding, star):
    columns = (Column(title="N", is_number=True), Column(title="Name"), Column(title="Status"))
    badges = (None, Badge(text="recommended", tone="good"))
    rows = tuple(
        (Cell(text=str(size)), Cell(text="x" * 28), Cell(text="", badge=badge))
        for size, badge in zip((8, 1024), badges, strict=True)
    )
    table = Table(name="t", caption="", columns=columns, rows=rows, marked=1)

    def shown(width):
        text = printed(lambda console: show(table, console), width=width, encoding=encoding)
        return [line.split()[:2] for line in text.splitlines() if "xx" in line], text

    found, text = shown(80)
    assert [each[0] for each in found] == ["8", "1024"]
    assert star not in text
    found, text = shown(40)
    assert [each[0] for each in found] == ["8", star]
    assert found[1][1] == "1024"
    assert f"Status ({star}: recommended)" in text


@pytest.mark.parametrize("width", [80, 66])
def test_what_a_table_is_there_for_is_kept_before_what_else_it_shows(width):
    heads = ("System", "N", "Time", "90 % range", "USD", "Status")
    columns = tuple(
        Column(
            title=title,
            is_number=title not in {"System", "Status"},
            is_header=title == "System",
            is_kept=title in {"N", "Time", "USD", "Status"},
        )
        for title in heads
    )
    texts = ("TPU v6e Trillium (chip)", "4,096", "246 days", "17.9-60.9", "16,600,000", "misses deadline")
    table = Table(name="t", caption="", columns=columns, rows=(tuple(Cell(text=each) for each in texts),))
    text = printed(lambda console: show(table, console), width=width)
    assert max(map(cell_len, text.splitlines())) <= width
    # Whole: 23 + 5 + 8 + 9 + 10 + 15 and 5 gaps of 3, 85 columns; 73 without the range.
    words = set(text.replace(";", "").split())
    assert {"Trillium", "4,096", "246", "16,600,000", "misses", "deadline"} <= words
    assert "17.9-60.9" not in words
    assert "Status" in text.split("──")[0]
    assert ("TPU v6e Trillium (chip)" in text) == (width == 80)


def test_a_column_that_may_be_cut_keeps_its_row_on_one_line_and_wide_ones_need_120_columns():
    columns = (Column(title="N", is_number=True, is_wide=True), Column(title="System", is_cut=True))
    table = Table(name="t", caption="", columns=columns, rows=((Cell(text="8"), Cell(text="x" * 200)),))
    narrow = printed(lambda console: show(table, console)).splitlines()
    wide = printed(lambda console: show(table, console), width=120).splitlines()
    assert [cell_len(line.rstrip()) for line in narrow if "x" in line] == [80]
    assert [line.split()[0] for line in wide if "x" in line] == ["8"]
    # A name that could be broken behind its signs is cut all the same.
    signs = replace(table, rows=((Cell(text="8"), Cell(text="x_" * 100)),))
    lines = printed(lambda console: show(signs, console)).splitlines()
    assert len([line for line in lines if "x_" in line]) == 1


def test_prose_that_columns_would_squeeze_stands_in_paragraphs_with_every_column():
    columns = (
        Column(title="Setting", is_header=True),
        Column(title="Value"),
        Column(title="Why"),
        Column(title="Source", is_wide=True),
    )
    row = (Cell(text="n" * 28), Cell(text="v" * 28), Cell(text="reason " * 12), Cell(text="manual"))
    table = Table(name="t", caption="", columns=columns, rows=(row, row))
    text = printed(lambda console: show(table, console))
    assert text.split().count("reason") == 24
    assert text.split().count("manual") == 2
    assert max(map(cell_len, text.splitlines())) <= 80
    assert len(text.strip().splitlines()) <= 2 * (1 + 1 + 2 + 1)


def test_facts_put_labels_above_where_the_terminal_is_too_narrow():
    facts = Facts(items=(("a long label", ("words " * 5,)),))
    assert printed(lambda console: show(facts, console)).startswith("a long label  words words")
    lines = printed(lambda console: show(facts, console), width=20).splitlines()
    assert lines[0].rstrip() == "a long label"
    assert max(map(cell_len, lines)) <= 20
    assert sum(line.count("words") for line in lines) == 5


def test_a_long_fold_says_where_it_is_shown_and_an_aside_says_nothing():
    fold = Fold(name="f", title="29 entries", badges=(), blocks=(), is_long=True)
    aside = Fold(name="f", title="29 entries", badges=(), blocks=(), is_aside=True)
    assert "29 entries: " in printed(lambda console: show(fold, console))
    assert printed(lambda console: show(aside, console)) == ""


CIRCLE, SQUARE = Mark(colour=1, symbol="circle"), Mark(colour=2, symbol="square")


@pytest.mark.parametrize(("num_lines", "num_shown"), [(22, 24), (23, 25), (24, 25), (25, 25), (27, 29)])
def test_a_screen_of_25_lines_gives_up_blank_lines_before_words(num_lines, num_shown):
    # Each line of words is kept; two blank lines, below the title and above the second half, go where that is enough.
    texts = [f"line {place}" for place in range(num_lines)]
    page = Page(
        title=str,
        about=lambda lines: lines[0],
        headline=lambda lines: lines[1],
        sections=(),
        brief=lambda lines, _: map(prose, (*lines[2:9], "", *lines[9:])),
    )
    shown = printed(lambda console: terminal.render(page, texts, console, full=False)).splitlines()
    assert [line.strip() for line in shown if line.strip()] == texts
    assert len(shown) == num_shown


def series(mark, x, y, weights=()):
    return Series(name="s", mark=mark, x=x, y=y, hovers=((),) * len(x), weights=weights)


def plot(chart, *, is_unicode=True, columns=40):
    return text_plot(chart, Canvas(columns=columns, is_unicode=is_unicode)).plain.splitlines()


def scatter(*all_series, level=None):
    return Chart(
        name="c", title="t", subtitle="", alternative="", series=all_series, level=level,
        x=Axis(title="n", is_log=True), y=Axis(title="E", starts_at_zero=True),
    )  # fmt: skip


def test_points_stand_at_the_corners_of_their_ranges():
    lines = plot(scatter(series(CIRCLE, (2.0, 32.0), (1.0, 0.0)), level=Level(y=1.0, text="")))
    assert lines[0].startswith("       1 │●┄")
    assert lines[12].endswith("●")
    assert lines[12].startswith("       0 │")
    assert lines[14].split() == ["2", "4", "8", "16", "32"]


def test_half_way_on_a_log_axis_is_the_geometric_mean():
    lines = plot(scatter(series(CIRCLE, (1.0, 16.0, 256.0), (1.0, 1.0, 1.0))))
    (line,) = [line for line in lines if "●" in line]
    first, middle, last = (place for place, character in enumerate(line) if character == "●")
    assert abs((first + last) / 2 - middle) <= 1


def test_the_first_series_stays_on_top():
    lines = plot(scatter(series(CIRCLE, (8.0,), (1.0,)), series(SQUARE, (8.0,), (1.0,))), is_unicode=False)
    assert "o" in "".join(lines)
    assert "#" not in "".join(lines)


def test_what_the_reader_looks_for_stays_on_top():
    star = replace(series(Mark(colour=3, symbol="star"), (8.0,), (1.0,)), is_main=True)
    lines = plot(scatter(series(CIRCLE, (8.0, 16.0), (1.0, 0.0)), star))
    assert sum(line.count("*") for line in lines) == 1


def legend_of(text):
    """Sign by name of the legend below a plot."""
    entries = " ".join(text.split("Legend: ")[1].split()).split(", ")
    return {name: sign for sign, name in (each.split(" ", 1) for each in entries)}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_sign_of_a_legend_has_two_meanings_and_each_is_drawn(encoding):
    places = range(len(MARKS) + 2)
    points = [
        replace(series(series_mark(at), (2.0**at,), (float(at),)), name=f"system {at}") for at in places
    ]
    top, last = float(places[-1]), 2.0 ** places[-1]
    lines = {
        "deadline": ((8.0, 8.0), (0.5, top)),
        "budget": ((1.0, last), (0.5, 0.5)),
        "break-even": ((64.0, 128.0), (1.0, 2.5)),
    }
    curves = [
        replace(series(Mark(colour=None, symbol="x"), *ends), name=name, is_curve=True)
        for name, ends in lines.items()
    ]
    star = replace(series(Mark(colour=5, symbol="star"), (32.0,), (1.0,)), name="recommended", is_main=True)
    panels = Panels(charts=(scatter(*points, star, *curves),), legend="Legend")
    text = printed(lambda console: show(panels, console), encoding=encoding)
    signs = legend_of(text)
    assert signs.keys() == {"recommended", *lines, *(each.name for each in points)}
    assert len({*signs.values()}) == len(signs)
    assert signs["recommended"] == "*"
    drawn = [line[10:] for line in text.splitlines() if line[9:10] in ("│", "|")]
    assert len(drawn) == 13
    assert {*signs.values()} <= {*"".join(drawn)}
    assert max(line.count(signs["budget"]) for line in drawn) > 50
    assert sum(signs["deadline"] in line for line in drawn) > 8


def test_a_line_fitted_to_points_has_the_entry_of_its_points():
    points = replace(series(CIRCLE, (2.0, 32.0), (1.0, 0.0)), name="H100")
    fitted = replace(points, x=(2.0, 8.0, 32.0), y=(0.9, 0.5, 0.1), is_curve=True)
    text = printed(lambda console: show(Panels(charts=(scatter(points, fitted),), legend="Legend"), console))
    assert legend_of(text) == {"H100": "●"}


def test_a_grid_counts_what_shares_a_spot():
    chart = Chart(
        name="c", title="t", subtitle="", alternative="", x=Axis(title="n", is_log=True),
        y=Axis(title="", categories=("H100", "a very long name of an accelerator")),
        series=(series(CIRCLE, (8.0, 64.0), ("H100", "a very long name of an accelerator"), weights=(7, 1)),),
    )  # fmt: skip
    top, bottom, sizes = plot(chart, columns=60)
    assert top.split() == ["H100", "●7", "·"]
    assert bottom.split()[-2:] == ["·", "●"]
    assert sizes.split() == ["8", "64"]


def test_sizes_that_do_not_fit_share_a_column_with_the_nearest():
    sizes = (8.0, 9.0, 64.0, 512.0, 4096.0)
    chart = Chart(
        name="c", title="t", subtitle="", alternative="", x=Axis(title="n", is_log=True),
        y=Axis(title="", categories=("a",)), series=(series(CIRCLE, sizes, ("a",) * 5),),
    )  # fmt: skip
    assert plot(chart, columns=27)[-1].split() == ["8+", "64", "512", "4096"]


def test_a_chart_without_points_says_so():
    assert plot(scatter()) == ["no points"]


def test_bars_are_as_long_as_what_they_stand_for():
    circle, square = Mark(colour=1, symbol="circle"), Mark(colour=2, symbol="square")
    chart = BarChart(
        name="b", title="T", subtitle="", alternative="", x_title="x", y_title="y",
        categories=("8", "64"), labels=("1.0", "0.2"), limits=(0.0, 4.0),
        series=(
            BarPart(name="p", mark=circle, heights=(1.0, 1.0), hovers=((), ())),
            BarPart(name="q", mark=square, heights=(-1.0, 3.0), hovers=((), ())),
        ),
    )  # fmt: skip
    short, long = text_plot(chart, Canvas(columns=49, is_unicode=False)).plain.splitlines()
    # 49 columns: 3 for the size, 4 for the label, 2 for the frame: 40 for 4 doublings.
    assert short == " 8 |" + "o" * 10 + " 1.0"
    assert long == "64 |" + "o" * 10 + "#" * 30 + " 0.2"


def test_a_line_to_run_is_whole_however_long_it_is():
    command = "torchrun " + "--option=value " * 12
    listing = Section[str]("run", "Run", lambda code: [CodeListing(code=code)])
    page = Page[str](title=str, about=str, headline=str, sections=(listing,))
    text = printed(lambda console: terminal.render(page, command, console), width=40)
    assert command.rstrip() in text

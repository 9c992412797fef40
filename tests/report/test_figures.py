"""A chart's numbers reach Plotly unchanged, and no text in it is read as markup."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.report.charts import Axis, Chart, Level, Mark, Note, Series
from equipoise.report.figures import height_px, plotly_figure, ticks

MARK = Mark(colour=2, symbol="square")


def chart(**changes):
    series = Series(
        name="A & <b>",
        mark=MARK,
        x=(8.0, 64.0),
        y=(1.0, 0.4),
        hovers=(("<i>x</i>", "two"), ("y",)),
        is_line=True,
    )
    parts = {
        "name": "c",
        "title": "T",
        "subtitle": "s",
        "alternative": "a",
        "x": Axis(title="accelerators", is_log=True),
        "y": Axis(title="E", starts_at_zero=True),
        "series": (series,),
    }
    return Chart(**(parts | changes))


def test_points_and_hovers_are_those_of_the_chart():
    (trace,) = plotly_figure(chart())["data"]
    assert (trace["x"], trace["y"]) == ([8.0, 64.0], [1.0, 0.4])
    assert trace["name"] == "A &amp; &lt;b&gt;"
    assert trace["hovertext"] == ["&lt;i&gt;x&lt;/i&gt;<br>two", "y"]
    assert trace["mode"] == "lines+markers"
    assert trace["marker"]["color"] == "var(--series-2)"


def test_a_markers_area_is_its_weight():
    heavy = Series(name="w", mark=MARK, x=(8.0, 8.0), y=("a", "b"), hovers=((), ()), weights=(1, 4))
    figure = plotly_figure(chart(series=(heavy,), y=Axis(title="", categories=("a", "b"))))
    small, large = figure["data"][0]["marker"]["size"]
    assert large == pytest.approx(2 * small)


def test_large_markers_are_drawn_before_small_ones():
    light, heavy = (
        Series(name=name, mark=MARK, x=(8.0,), y=("a",), hovers=((),), weights=(weight,))
        for name, weight in (("light", 1), ("heavy", 9))
    )
    figure = plotly_figure(chart(series=(light, heavy), y=Axis(title="", categories=("a",))))
    assert [trace["name"] for trace in figure["data"]] == ["heavy", "light"]


def test_a_level_spans_the_axis_and_a_note_stands_at_its_point():
    figure = plotly_figure(chart(level=Level(y=1.0, text="ideal"), notes=(Note(x=64.0, y=0.4, text="0.4"),)))
    level, _, note = figure["data"]
    assert level["y"] == [1.0, 1.0]
    left, right = level["x"]
    assert left < 8
    assert right > 64
    assert (note["x"], note["y"]) == ([64.0], [0.4])


def test_categories_read_from_top_to_bottom_and_make_the_figure_higher():
    few, many = (chart(y=Axis(title="", categories=tuple("abcdefgh"[:n])), series=()) for n in (2, 8))
    assert plotly_figure(few)["layout"]["yaxis"]["categoryarray"] == ["b", "a"]
    assert height_px(many) > height_px(few)


def test_one_point_and_no_point_still_make_an_axis():
    single = Series(name="one", mark=MARK, x=(8.0,), y=(1.0,), hovers=((),))
    low, high = plotly_figure(chart(series=(single,)))["layout"]["xaxis"]["range"]
    assert low < math.log10(8) < high
    assert plotly_figure(chart(series=()))["data"] == []


@given(st.floats(0.001, 1e6), st.floats(1.1, 1e9))
def test_ticks_are_few_powers_of_two_inside(low, factor):
    values = ticks(low, low * factor)
    assert len(values) <= 7
    assert all(low <= value <= low * factor for value in values)
    if factor >= 8:  # three powers of two lie between, whatever low is
        assert all(math.log2(value).is_integer() for value in values)
    else:
        assert values == sorted(set(values))

"""A chart's numbers reach Plotly unchanged, and no text in it is read as markup."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.report.charts import (
    Annotation,
    Axis,
    Band,
    BarChart,
    BarPart,
    Chart,
    Level,
    Mark,
    Series,
    series_mark,
)
from equipoise.report.figures import height_px, plotly_figure, ticks
from equipoise.report.svg import svg_chart

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


def test_what_the_reader_looks_for_is_drawn_on_top():
    main, other = (
        replace(chart().series[0], name="main", is_main=True),
        replace(chart().series[0], name="other"),
    )
    drawn = plotly_figure(chart(series=(main, other)))["data"]
    assert [each["name"] for each in drawn if "name" in each] == ["other", "main"]


@pytest.mark.parametrize(("is_minor", "first"), [(False, "note"), (True, "512")])
def test_minor_notes_are_written_where_labels_of_points_leave_room(is_minor, first):
    points = replace(chart().series[0], labels=("512", "64"), is_line=False)
    note = Annotation(x=8.0, y=1.0, text="note", is_minor=is_minor)
    drawn = svg_chart(chart(series=(points,), y=Axis(title="E", is_log=True), notes=(note,)))
    texts = [each for each in re.findall(r">([^<>]+)</text>", drawn) if each in {"note", "512"}]
    assert sorted(texts) == ["512", "note"]
    assert texts[0] == first


def test_a_level_spans_the_axis_and_a_note_stands_at_its_point():
    figure = plotly_figure(
        chart(level=Level(y=1.0, text="ideal"), notes=(Annotation(x=64.0, y=0.4, text="0.4"),))
    )
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


def bars(**changes):
    gained = BarPart(name="<rules>", mark=MARK, heights=(None, -0.5), hovers=((), ("<b>r</b>",)))
    lost = BarPart(
        name="batch", mark=Mark(colour=1, symbol="circle"), heights=(1.0, 2.0), hovers=(("b",), ("c",))
    )
    parts = {
        "name": "b",
        "title": "T",
        "subtitle": "s",
        "alternative": "a",
        "x_title": "accelerators",
        "y_title": "doublings",
        "categories": ("8", "64"),
        "labels": ("0.5", "0.35"),
        "limits": (-0.5, 2.0),
        "series": (gained, lost),
    }
    return BarChart(**(parts | changes))


def test_bars_are_stacked_with_gains_below_zero():
    figure = plotly_figure(bars())
    rules, batch, labels = figure["data"]
    assert figure["layout"]["barmode"] == "relative"
    assert (rules["y"], batch["y"]) == ([None, -0.5], [1.0, 2.0])
    assert rules["name"] == "&lt;rules&gt;"
    assert rules["hovertext"] == ["", "&lt;b&gt;r&lt;/b&gt;"]
    assert labels["y"] == [1.0, 2.0]  # above what was lost, whatever was gained
    low, high = figure["layout"]["yaxis"]["range"]
    assert low < -0.5
    assert high > 2.0


def test_bars_side_by_side_share_the_scale_they_are_given():
    small = bars(series=(BarPart(name="p", mark=MARK, heights=(0.01, 0.02), hovers=((), ())),))
    assert (
        plotly_figure(small)["layout"]["yaxis"]["range"] == plotly_figure(bars())["layout"]["yaxis"]["range"]
    )


def test_bars_that_lie_reach_from_the_result_to_their_ends():
    figure = plotly_figure(bars(is_across=True, origin=1.0, limits=(-0.5, 3.0)))
    rules, batch = figure["data"]
    assert rules["orientation"] == "h"
    assert [start + length for start, length in zip(batch["base"], batch["x"], strict=True)] == [2.0, 3.0]
    assert figure["layout"]["yaxis"]["categoryarray"] == ["64", "8"]  # from below: the first is on top
    low, high = figure["layout"]["xaxis"]["range"]
    assert low < -0.5
    assert high > 3.0
    assert figure["layout"]["xaxis"]["zeroline"]


def test_a_band_is_closed_and_inside_the_axis():
    band = Band(name="A", mark=MARK, x=(8.0, 64.0), low=(0.5, 0.2), high=(2.0, 0.9))
    figure = plotly_figure(chart(bands=(band,)))
    outline = figure["data"][0]
    assert outline["x"] == [8.0, 64.0, 64.0, 8.0]
    assert outline["y"] == [2.0, 0.9, 0.2, 0.5]
    assert outline["fill"] == "toself"
    assert figure["layout"]["yaxis"]["range"][1] > 2.0


@pytest.mark.parametrize(("is_extrapolated", "dash"), [(False, "solid"), (True, "dot")])
def test_a_curve_has_no_markers_and_is_dotted_beyond_the_data(is_extrapolated, dash):
    curve = Series(
        name="law", mark=MARK, x=(8.0, 16.0), y=(2.0, 1.0), hovers=((), ()),
        is_curve=True, is_extrapolated=is_extrapolated,
    )  # fmt: skip
    (trace,) = plotly_figure(chart(series=(curve,)))["data"]
    assert (trace["mode"], trace["line"]["dash"]) == ("lines", dash)


def test_a_label_as_near_to_another_line_is_left_out():
    # Two lines on top of each other: whose a number is cannot be seen. The third is alone.
    x = (1.0, 2.0, 4.0)
    made = [
        Series(
            name=name,
            mark=series_mark(place),
            x=x,
            y=(high,) * 3,
            hovers=((),) * 3,
            is_line=True,
            labels=labels,
        )
        for place, (name, high, labels) in enumerate(
            [("a", 5.0, ("11", "12", "13")), ("b", 5.0, ("21", "22", "23")), ("c", 1.0, ("31", "32", "33"))]
        )
    ]
    drawn = svg_chart(chart(series=tuple(made), y=Axis(title="E", is_log=True)))
    found = re.findall(r'class="point">(\d+)<', drawn)
    assert sorted(found) == ["31", "32", "33"]

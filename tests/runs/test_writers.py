"""Exports: nothing a spreadsheet would run, nothing JSON does not know, and the same bytes each time."""

import csv
import io
import json
import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.runs.store import WRITERS

BY_NAME = {writer.name: writer for writer in WRITERS}


def written(name: str, frame: pl.DataFrame) -> bytes:
    file = io.BytesIO()
    BY_NAME[name].write(frame, file)
    return file.getvalue()


def csv_rows(frame: pl.DataFrame) -> list[list[str]]:
    return list(csv.reader(io.StringIO(written("csv", frame).decode(), newline="")))


def test_each_format_has_a_name_and_a_suffix_of_its_own():
    assert [(writer.name, writer.suffix) for writer in WRITERS] == [
        ("csv", ".csv"),
        ("parquet", ".parquet"),
        ("jsonl", ".jsonl"),
        ("extra-p", ".extra-p"),
        ("prometheus", ".prom"),
    ]


@pytest.mark.parametrize(
    "cell",
    [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        " =1",
        "\uff1d1",
        '=HYPERLINK("http://x")',
        "-",
        "=cmd|' /C calc'!A0",
    ],
)
def test_cells_that_a_spreadsheet_would_run_are_made_text(cell):
    assert csv_rows(pl.DataFrame({"system": [cell]})) == [["system"], ["'" + cell]]


@pytest.mark.parametrize(
    "cell", ["dgx-h100", "a=b", "8x+8y", "it's", "a,b", 'say "so"', "two\nlines", "zürich"]
)
def test_other_cells_stay_as_they_are(cell):
    assert csv_rows(pl.DataFrame({"system": [cell]})) == [["system"], [cell]]


def test_a_hostile_column_name_is_made_text():
    assert csv_rows(pl.DataFrame({"=1": ["a"], "b": [1]}))[0] == ["'=1", "b"]


def test_numbers_are_untouched_and_unknown_is_empty():
    frame = pl.DataFrame({"n": [-1, None], "x": [-1234567.890123456, 1e-300], "s": [None, "b"]})
    assert csv_rows(frame) == [["n", "x", "s"], ["-1", "-1234567.890123456", ""], ["", "1e-300", "b"]]


def test_json_lines_hold_null_for_what_json_lacks():
    frame = pl.DataFrame(
        {"x": [1.5, math.nan, math.inf, -math.inf, None], "s": ["=1", 'q"', "ü", None, "\x00"]}
    )
    rows = [json.loads(line) for line in written("jsonl", frame).decode().splitlines()]
    assert [row["x"] for row in rows] == [1.5, None, None, None, None]
    assert [row["s"] for row in rows] == ["=1", 'q"', "ü", None, "\x00"]


def test_parquet_gives_the_frame_back_and_equal_bytes():
    frame = pl.DataFrame({"s": ["=1", None], "n": [1, None], "x": [0.1, None]})
    data = written("parquet", frame)
    assert pl.read_parquet(io.BytesIO(data)).equals(frame)
    assert written("parquet", pl.concat([frame[:1], frame[1:]])) == data


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_a_table_without_rows_is_written(writer):
    file = io.BytesIO()
    writer.write(pl.DataFrame(schema={"num_accelerators": pl.Int64, "x": pl.Float64}), file)
    assert (file.getvalue() == b"") == (writer.name in {"jsonl", "extra-p", "prometheus"})


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)


@pytest.mark.law
@given(st.lists(TEXT, min_size=1, max_size=5))
def test_no_cell_begins_as_a_formula_and_none_is_lost(cells):
    rows = csv_rows(pl.DataFrame({"s": pl.Series(cells, dtype=pl.String), "n": range(len(cells))}))
    assert len(rows) == len(cells) + 1
    for (text, _), cell in zip(rows[1:], cells, strict=True):
        assert text[:1] not in set("=+-@\t\r\n")
        assert text in {cell, "'" + cell}

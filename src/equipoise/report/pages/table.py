"""A page of one table, for records that have no other: what was found, and a frame as it is."""

from collections.abc import Callable
from typing import Any, TypeVar

import polars as pl

from equipoise.report.blocks import Block, Cell, Column, Table
from equipoise.report.page import Page
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, capital, printable

Record = TypeVar("Record")


def table_page(
    name: str,
    *,
    about: Callable[[Record], str],
    headline: Callable[[Record], str],
    frame: Callable[[Record], pl.DataFrame],
) -> Page[Record]:
    """The page of a record whose rows say it all. name: of the table. Every record has the section."""

    def blocks(found: Record) -> tuple[Block, ...]:
        return (_table(name, about(found), frame(found)),)

    return Page(
        title=headline,
        about=about,
        headline=headline,
        summary=lambda _: (),
        sections=(Section(name=name, title=capital(name), needs=(), blocks=blocks),),
        closing=lambda _: (),
        brief=lambda found, num_rows: (_table(name, about(found), frame(found).head(num_rows)),),
    )


def _table(name: str, caption: str, rows: pl.DataFrame) -> Table:
    columns = tuple(
        Column(title=title, is_number=kind.is_numeric(), is_header=place == 0)
        for place, (title, kind) in enumerate(rows.schema.items())
    )
    return Table(
        name=name,
        caption=caption,
        columns=columns,
        rows=tuple(tuple(_cell(value) for value in row) for row in rows.iter_rows()),
    )


def _cell(value: Any) -> Cell:  # noqa: ANN401 - a value of a frame
    if value is None:
        return Cell(text=ABSENT)
    if isinstance(value, float):
        return Cell(text=f"{value:.4g}", key=value)
    return Cell(text=printable(str(value)), key=value if isinstance(value, int) else str(value))

"""The chosen entries among the best of their accelerators at every size: time and efficiency."""

from typing import Final

import polars as pl

from equipoise.report.blocks import Block, Panels, prose
from equipoise.report.charts import NUM_COLOURS, SYMBOLS, Axis, Chart, Level, Mark, Series
from equipoise.report.entry_text import Row, hardware, hover
from equipoise.report.section import Section
from equipoise.report.words import accelerator_name, entry_name, minutes, printable, ratio, sentence
from equipoise.study.findings import ComparedFindings
from equipoise.units import MINUTE_S

CHOSEN: Final = "side by side"


def _blocks(findings: ComparedFindings) -> tuple[Block, ...]:
    intro = prose(
        "Lines join the best entry of each size of an accelerator; the large markers are the entries that "
        "are side by side. Left, lower is faster; right, 1 means that nothing was lost to size."
    )
    panels = Panels(
        charts=(
            _chart(findings, "score_s", MINUTE_S, name="compared-times", title="Time"),
            _chart(
                findings,
                "like_for_like_efficiency",
                1.0,
                name="compared-efficiency",
                title="Like-for-like efficiency",
            ),
        ),
        legend="Accelerator",
    )
    return (intro, panels)


def _chart(findings: ComparedFindings, column: str, scale: float, *, name: str, title: str) -> Chart:
    is_time = column == "score_s"
    chosen: list[Row] = list(findings.chosen.iter_rows(named=True))
    words = "; ".join(f"{hardware(row)}: {_value(row, column)}" for row in chosen)
    kinds = findings.curves["accelerator"].unique(maintain_order=True).to_list()
    lines = [_line(findings.curves, kind, column, scale, place) for place, kind in enumerate(kinds)]
    return Chart(
        name=name,
        title=title,
        subtitle="official score" if is_time else "against the smallest entry of the same accelerator",
        alternative=sentence(f"{printable(findings.name)}. {words}."),
        x=Axis(title="accelerators", is_log=True),
        y=Axis(title="minutes", is_log=True) if is_time else Axis(title="E", starts_at_zero=True),
        series=(*lines, _chosen(chosen, column, scale)),
        level=None if is_time else Level(y=1.0, text="nothing lost"),
    )


def _value(row: Row, column: str) -> str:
    return f"{minutes(row[column])} minutes" if column == "score_s" else f"E {ratio(row[column])}"


def _line(curves: pl.DataFrame, kind: str, column: str, scale: float, place: int) -> Series:
    rows: list[Row] = list(curves.filter(accelerator=kind).iter_rows(named=True))
    return Series(
        name=accelerator_name(kind),
        mark=Mark(
            colour=place + 1 if place < NUM_COLOURS - 1 else None, symbol=SYMBOLS[place % len(SYMBOLS)]
        ),
        x=tuple(float(row["num_accelerators"]) for row in rows),
        y=tuple(row[column] / scale for row in rows),
        hovers=tuple(
            (entry_name(row["submitter"], row["system"]), hardware(row), _value(row, column)) for row in rows
        ),
        is_line=True,
    )


def _chosen(rows: list[Row], column: str, scale: float) -> Series:
    known = [row for row in rows if row[column] is not None]
    return Series(
        name=CHOSEN,
        mark=Mark(colour=NUM_COLOURS, symbol="star"),
        x=tuple(float(row["num_accelerators"]) for row in known),
        y=tuple(row[column] / scale for row in known),
        hovers=tuple(hover(row) for row in known),
        is_main=True,
    )


SECTION: Final[Section[ComparedFindings]] = Section(
    name="curves", title="Among their like", needs=("workload",), blocks=_blocks
)

"""The page of entries of one round and workload side by side."""

from collections.abc import Iterator
from typing import Final

import polars as pl
from msgspec.structs import replace

from equipoise.economics import Bill
from equipoise.report.blocks import (
    Block,
    Page,
    Panels,
    Section,
    Span,
    Strong,
    Tile,
    bullets,
    note,
    prose,
    table_of,
    tiles,
)
from equipoise.report.charts import NUM_COLOURS, SYMBOLS, Axis, Chart, Level, Mark, Series, series_of
from equipoise.report.format import (
    TIMES,
    accelerator_name,
    count,
    digits,
    energy,
    entry_name,
    minutes,
    money,
    printable,
    ratio,
    sentence,
)
from equipoise.report.pages.study import entries
from equipoise.report.pages.study.losses import lost_chart
from equipoise.scaling.metrics import LOSSES
from equipoise.study.findings import ComparedFindings
from equipoise.units import MINUTE_S, format_duration, plural, tenths

CHOSEN: Final = "side by side"


def _curves_blocks(findings: ComparedFindings) -> tuple[Block, ...]:
    intro = prose(
        "Lines join the best entry of each size of an accelerator; the large markers are the entries that "
        "are side by side. Left, lower is faster; right, 1 means that nothing was lost to size."
    )
    panels = Panels(
        charts=(
            _curves_chart(findings, "score_s", MINUTE_S, name="compared-times", title="Time"),
            _curves_chart(
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


def _curves_chart(findings: ComparedFindings, column: str, scale: float, *, name: str, title: str) -> Chart:
    is_time = column == "score_s"
    chosen = _rows(findings)
    words = "; ".join(f"{entries.hardware(row)}: {_value(row, column)}" for row in chosen)
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


def _value(row: entries.Row, column: str) -> str:
    return f"{minutes(row[column])} minutes" if column == "score_s" else f"E {ratio(row[column])}"


def _line(curves: pl.DataFrame, kind: str, column: str, scale: float, place: int) -> Series:
    colour = place + 1 if place < NUM_COLOURS - 1 else None
    points = (
        (
            float(row["num_accelerators"]),
            row[column] / scale,
            (entry_name(row["submitter"], row["system"]), entries.hardware(row), _value(row, column)),
        )
        for row in curves.filter(accelerator=kind).iter_rows(named=True)
    )
    mark = Mark(colour=colour, symbol=SYMBOLS[place % len(SYMBOLS)])
    return series_of(accelerator_name(kind), mark, points, is_line=True)


def _chosen(rows: list[entries.Row], column: str, scale: float) -> Series:
    points = (
        (float(row["num_accelerators"]), row[column] / scale, entries.hover(row))
        for row in rows
        if row[column] is not None
    )
    return series_of(CHOSEN, Mark(colour=NUM_COLOURS, symbol="star"), points, is_main=True)


def _figures_blocks(findings: ComparedFindings) -> tuple[Block, ...]:
    caption = "The entries as MLPerf published them; sources are paths in the repository of the round"
    return (table_of("compared-entries", entries.COLUMNS, _rows(findings), caption=caption),)


def _lost_blocks(findings: ComparedFindings) -> tuple[Block, ...]:
    rows: list[entries.Row] = list(findings.losses.iter_rows(named=True))
    if not rows:
        return (prose("No entry has a smaller one of the same accelerator to be compared with."),)
    causes = [cause for cause in LOSSES if any(row[cause] for row in rows)]
    intro = prose(
        "Each bar is -log2 E: one doubling lost means that half of the accelerators do nothing; what is "
        "below zero was gained. An entry that is the smallest of its accelerator has lost nothing."
    )
    missing = sorted({row["factors_missing"] for row in rows if row["factors_missing"]})
    if not causes:
        return (prose("Each is the smallest entry of its accelerator: no efficiency was lost to size."),)
    chart = lost_chart("compared-losses", rows, causes, title="Doublings lost, by cause")
    return (
        intro,
        Panels(charts=(replace(chart, categories=_names(rows)),), legend="Lost to"),
        bullets(sentence(f"Not separable: {each}.") for each in missing),
    )


def _names(rows: list[entries.Row]) -> tuple[str, ...]:
    """Names by size and accelerator, numbered where they repeat."""
    named: list[str] = []
    for row in rows:
        name = f"{count(row['num_accelerators'])} {printable(row['accelerator'] or '').partition('-')[0]}"
        repeated = sum(each.partition(" (")[0] == name for each in named)
        named.append(f"{name} ({repeated + 1})" if repeated else name)
    return tuple(named)


SAME_TIME: Final = 0.005  # smaller relative differences of times are not mentioned


def _about(findings: ComparedFindings) -> str:
    return (
        f"{printable(findings.name)} in MLPerf Training {printable(findings.round)}, "
        f"{printable(findings.division)} division"
    )


def _headline(findings: ComparedFindings) -> str:
    rows = _rows(findings)
    fastest = min(rows, key=lambda row: row["score_s"])
    frugal = min(rows, key=_accelerator_s)
    name = printable(findings.name)
    first = f"{name}: {entries.hardware(fastest)} in {format_duration(fastest['score_s'])}"
    if frugal is fastest:
        return first if len(rows) == 1 else f"{first}, the fastest and the least accelerator-time"
    faster = frugal["score_s"] / fastest["score_s"]
    more = _accelerator_s(fastest) / _accelerator_s(frugal)
    return (
        f"{first}, {ratio(faster)}{TIMES} as fast as {entries.hardware(frugal)} "
        f"for {ratio(more)}{TIMES} the accelerator-time"
    )


def _summary(findings: ComparedFindings) -> tuple[str, ...]:
    chosen = plural(len(findings.chosen), "entry", "entries")
    of = f"of the {len(findings.entries)} with an official score"
    if findings.are_given:
        return (f"{chosen} {of}.",)
    return (f"{chosen} {of}: those for speed, for efficiency, and in between.",)


def _rows(findings: ComparedFindings) -> list[entries.Row]:
    return list(findings.chosen.iter_rows(named=True))


def _accelerator_s(row: entries.Row) -> float:
    return float(row["num_accelerators"] * row["score_s"])


def _side_blocks(findings: ComparedFindings) -> tuple[Block, ...]:
    rows = _rows(findings)
    return (
        tiles(_tile(row, bill) for row, bill in zip(rows, findings.bills, strict=True)),
        bullets(_against(rows[0], row) for row in rows[1:]),
        note(
            "Money is the time of one run at the price table's rate on demand; energy is measured where an "
            "entry was metered, else rated power times the factor of the system. Carbon: the world's average."
        ),
    )


def _tile(row: entries.Row, bill: Bill) -> Tile:
    return Tile(
        label=entry_name(row["submitter"], row["system"]),
        value=f"{entries.hardware(row)}: {format_duration(row['score_s'])}",
        detail=" · ".join(_paid(bill)),
        words=entries.efficiencies(row),
    )


def _paid(bill: Bill) -> Iterator[str]:
    yield f"{digits(bill.accelerator_hours.value)} accelerator-hours"
    if bill.usd is not None:
        yield money(bill.usd.value)
    if bill.energy_j is not None:
        yield f"{energy(bill.energy_j.value)}{' measured' if bill.energy_basis == 'measured' else ''}"


def _against(first: entries.Row, row: entries.Row) -> tuple[Span, ...]:
    """One entry compared with the first: speed, accelerators, and the fraction of ideal scaling."""
    speed = first["score_s"] / row["score_s"]
    more = row["num_accelerators"] / first["num_accelerators"]
    name = f"{entry_name(row['submitter'], row['system'])} ({entries.hardware(row)})"
    pace = "as fast as" if abs(speed - 1.0) < SAME_TIME else f"{ratio(speed)}{TIMES} as fast as"
    found = f" is {pace} the first with {ratio(more)}{TIMES} the accelerators"
    if row["accelerator"] is None or row["accelerator"] != first["accelerator"]:
        return (Strong(name), f"{found}, which are of another kind.")
    kept = tenths(speed / more)
    return (Strong(name), f"{found} of the same kind: {kept} of perfect scaling.")


COMPARED: Final[Page[ComparedFindings]] = Page(
    title=lambda findings: f"Side by side: {printable(findings.name)}",
    about=_about,
    headline=_headline,
    summary=_summary,
    sections=(
        Section("side", "Side by side", _side_blocks, needs=("bills",)),
        Section("curves", "All sizes of the same accelerators", _curves_blocks),
        Section("lost", "Efficiency lost to size", _lost_blocks),
        Section("figures", "Every figure", _figures_blocks),
    ),
    closing=lambda findings: (
        entries.NOT_VERIFIED,
        entries.dataset_words(findings),
    ),
)

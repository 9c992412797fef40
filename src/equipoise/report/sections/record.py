"""How wrong predictions of the kind above were, on results held out, beside simpler ways to predict."""

from collections.abc import Iterator
from typing import Final

from equipoise.advice.forecast.record import Shipped, Summary
from equipoise.report.blocks import Block, Cell, Column, Span, Table, code, note, prose, strong
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, TIMES, count, printable
from equipoise.scaling.backtest import Errors, Record
from equipoise.study.findings import Findings
from equipoise.units import format_percent

HELD_OUT: Final = {"largest": "the largest size of a group", "new_round": "all sizes but the smallest"}
BASELINES: Final = {"perfect": "Perfect scaling", "power_law": "Power law"}
ALL: Final = "all"


def _blocks(findings: Findings) -> tuple[Block, ...]:
    assert findings.record is not None
    curves = "The curves above come from one law that shares its shape across accelerators and rounds. "
    return record_blocks(findings.record, curves)


def record_blocks(record: Shipped, of: str) -> tuple[Block, ...]:
    """How wrong forecasts were, in words and by jump. of: what they are, a sentence with its space."""
    rows = tuple(row for summary in record.summaries for row in _rows(summary))
    return (
        prose(
            of,
            strong("Each result was held out and foretold from strictly earlier rounds"),
            " plus the smaller sizes of the same accelerator in the same round; nothing later entered. "
            "Errors are |predicted / actual - 1|.",
        ),
        *(prose(*_words(summary)) for summary in record.summaries[:1]),
        Table(
            name="record",
            caption="Errors on results held out, by how far the size lies beyond the largest one known",
            columns=(
                Column(title="Held out"),
                Column(title="Jump", meaning="the held-out size over the largest size known"),
                Column(title="Results", is_number=True),
                Column(title="Median", is_number=True, meaning="median error"),
                *(
                    Column(title=title, is_number=True, meaning="its median error")
                    for title in BASELINES.values()
                ),
                Column(title="90 % below", is_number=True, meaning="nine of ten errors were smaller"),
                Column(title="In range", is_number=True, meaning="share of results in the 90 % interval"),
            ),
            rows=rows,
        ),
        note(
            f"Of dataset {printable(record.dataset)}. Every held-out result: ",
            code("equipoise backtest"),
            ".",
        ),
    )


def _words(summary: Summary) -> tuple[Span, ...]:
    ours = summary.ours
    others = [
        f"{title.lower()} {format_percent(summary.baselines[name].median_abs_error)}"
        for name, title in BASELINES.items()
        if name in summary.baselines
    ]
    coverage = (
        "" if ours.coverage is None else f" The 90 % interval held {format_percent(ours.coverage)} of them."
    )
    return (
        f"Over {count(ours.num_groups)} results, {HELD_OUT[summary.protocol]} held out: median error ",
        strong(format_percent(ours.median_abs_error)),
        f" ({', '.join(others)}), nine of ten below {format_percent(ours.p90_abs_error)}.{coverage}",
    )


def _rows(summary: Summary) -> Iterator[tuple[Cell, ...]]:
    """All held-out results of one protocol, then by jump."""
    ours = summary.ours
    held_out = HELD_OUT[summary.protocol] + (", its batch given" if summary.given_batch else "")
    yield _row(held_out, ALL, ours, summary)
    for jump, errors in ours.by_jump.items():
        yield _row(held_out, jump, errors, summary)


def _row(held_out: str, jump: str, errors: Record | Errors, summary: Summary) -> tuple[Cell, ...]:
    baselines = [_of(summary.baselines.get(name), jump) for name in BASELINES]
    return (
        Cell(text=held_out, key=held_out),
        Cell(text=jump.replace("x", TIMES) if jump != ALL else ALL, key=jump),
        Cell(text=count(errors.num_groups), key=errors.num_groups),
        _fraction(errors.median_abs_error),
        *map(_fraction, baselines),
        _fraction(errors.p90_abs_error),
        _fraction(errors.coverage),
    )


def _of(baseline: Record | None, jump: str) -> float | None:
    """The median error of a baseline at a jump; None where it has none."""
    if baseline is None:
        return None
    if jump == ALL:
        return baseline.median_abs_error
    found = baseline.by_jump.get(jump)
    return None if found is None else found.median_abs_error


def _fraction(value: float | None) -> Cell:
    return Cell(text=ABSENT) if value is None else Cell(text=format_percent(value), key=value)


SECTION: Final[Section[Findings]] = Section(
    name="record", title="How wrong such predictions were", needs=("record",), blocks=_blocks
)

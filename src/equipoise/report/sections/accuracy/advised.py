"""How right the advised numbers of accelerators were on sizes held out, beside simple rules."""

from collections.abc import Sequence
from typing import Final

from equipoise.advice.forecast.advice_record import ALL_JUMPS, AdviceErrors
from equipoise.advice.forecast.held_out_advice import OURS
from equipoise.report.blocks import Block, Cell, Column, Table, code, note, prose, strong
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, count
from equipoise.study.findings import AccuracyFindings
from equipoise.units import format_percent

HELD_OUT: Final = {"largest": "the largest size of a group", "half": "the larger half of the sizes"}
RULES: Final = {
    "largest_known": "Largest known",
    "perfect": "Perfect scaling",
    "power_law": "Power law",
}
COLUMNS: Final = (
    Column(title="Objective", is_header=True),
    Column(title="Held out"),
    Column(title="Groups", is_number=True),
    Column(title="Compared", is_number=True, meaning="both numbers lie inside the sizes"),
    Column(title="Right", is_number=True, meaning="within one doubling of the number found with all data"),
    *(
        Column(title=title, is_number=True, meaning="how often this rule was right instead")
        for title in RULES.values()
    ),
    Column(title="Regret", is_number=True, meaning="median loss in the objective against the number found"),
    Column(title="90 % below", is_number=True, meaning="nine of ten regrets were smaller"),
)


def _blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "The number of accelerators was advised ",
            strong("without the larger sizes of a group"),
            ", then held against the number that all its sizes give. Where either lies beyond what was "
            "measured, they are not compared.",
        ),
        _table(
            "advised", "Advised by published results, against those found with all data", findings.advised
        ),
        _table(
            "advised_jointly",
            "Advised by published results and the model together, as advise does",
            findings.advised_jointly,
        ),
        note("Every group: ", code("equipoise backtest --advice"), "."),
    )


def _table(name: str, caption: str, found: Sequence[AdviceErrors]) -> Table:
    rows = tuple(_row(errors) for errors in found if errors.jump == ALL_JUMPS)
    return Table(name=name, caption=caption, columns=COLUMNS, rows=rows)


def _row(errors: AdviceErrors) -> tuple[Cell, ...]:
    held_out, ours = HELD_OUT[errors.held_out], errors.ways[OURS]
    rules = (errors.ways[name].within_doubling if name in errors.ways else None for name in RULES)
    return (
        Cell(text=errors.objective, key=errors.objective),
        Cell(text=held_out, key=held_out),
        Cell(text=count(errors.num_groups), key=errors.num_groups),
        Cell(text=count(errors.num_compared), key=errors.num_compared),
        *(_share(value) for value in (ours.within_doubling, *rules, ours.median_regret, ours.p90_regret)),
    )


def _share(value: float | None) -> Cell:
    return Cell(text=ABSENT) if value is None else Cell(text=format_percent(round(value, 4)), key=value)


SECTION: Final[Section[AccuracyFindings]] = Section(
    name="advised", title="Advised numbers of accelerators", needs=("advised",), blocks=_blocks
)

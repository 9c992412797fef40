"""What each entry lost against the smallest of its accelerator, by cause."""

from typing import Final

from equipoise.report.blocks import Block, Bullets, Panels, prose
from equipoise.report.charts import BarChart, Part
from equipoise.report.entry_text import Row, hardware
from equipoise.report.section import Section
from equipoise.report.sections.losses import CAUSES, SMALLEST_SCALE
from equipoise.report.words import count, printable, ratio, sentence
from equipoise.scaling.decompose import LOSSES
from equipoise.study.findings import ComparedFindings


def _blocks(findings: ComparedFindings) -> tuple[Block, ...]:
    rows: list[Row] = list(findings.losses.iter_rows(named=True))
    if not rows:
        return (prose("No entry has a smaller one of the same accelerator to be held against."),)
    causes = [cause for cause in LOSSES if any(row[cause] for row in rows)]
    intro = prose(
        "Each bar is -log2 E: one doubling lost means that half of the accelerators do nothing; what hangs "
        "below zero was gained. An entry that is the smallest of its accelerator has lost nothing."
    )
    untold = sorted({row["factors_missing"] for row in rows if row["factors_missing"]})
    told = (
        (Bullets(items=tuple((sentence(f"Not told apart: {each}."),) for each in untold)),) if untold else ()
    )
    if not causes:
        return (prose("Each of them is the smallest of its accelerator: nothing was lost to size."),)
    return (intro, Panels(charts=(_chart(findings, rows, causes),), legend="Lost to"), *told)


def _chart(findings: ComparedFindings, rows: list[Row], causes: list[str]) -> BarChart:
    parts = [[row[cause] or 0.0 for cause in causes] for row in rows]
    words = "; ".join(
        f"{hardware(row)}: E {ratio(row['efficiency'])}, "
        + ", ".join(f"{CAUSES[cause][0]} {row[cause]:.2f} doublings" for cause in causes if row[cause])
        for row in rows
    )
    return BarChart(
        name="compared-losses",
        title="Doublings lost, by cause",
        subtitle="above each bar, its E",
        alternative=sentence(f"{printable(findings.name)}. {words}."),
        x_title="accelerators",
        y_title="doublings lost (-log2 E)",
        categories=_names(rows),
        labels=tuple(ratio(row["efficiency"]) for row in rows),
        limits=(
            min(sum(min(part, 0.0) for part in each) for each in parts),
            max(SMALLEST_SCALE, *(sum(max(part, 0.0) for part in each) for each in parts)),
        ),
        series=tuple(
            Part(
                name=CAUSES[cause][0],
                mark=CAUSES[cause][1],
                heights=tuple(row[cause] for row in rows),
                hovers=tuple(
                    (hardware(row), f"{CAUSES[cause][0]}: {row[cause] or 0.0:.2f} doublings") for row in rows
                ),
            )
            for cause in causes
        ),
    )


def _names(rows: list[Row]) -> tuple[str, ...]:
    """Sizes, with a number where two are alike."""
    named: list[str] = []
    for row in rows:
        name = f"{count(row['num_accelerators'])} {printable(row['accelerator'] or '').partition('-')[0]}"
        repeated = sum(each.partition(" (")[0] == name for each in named)
        named.append(f"{name} ({repeated + 1})" if repeated else name)
    return tuple(named)


SECTION: Final[Section[ComparedFindings]] = Section(
    name="lost", title="What was lost to size", needs=("workload",), blocks=_blocks
)

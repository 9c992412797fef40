"""Why efficiency is lost: the causes of loss along the best curves, and the symptoms in words."""

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl
from msgspec.structs import replace

from equipoise.report.blocks import (
    Block,
    Cell,
    Fold,
    Heading,
    Panels,
    Span,
    Strong,
    bullets,
    named,
    note,
    numbers,
    prose,
    table_of,
    words,
)
from equipoise.report.charts import BarChart, BarPart, Mark
from equipoise.report.format import accelerator_name, count, listed, printable, ratio, sentence
from equipoise.report.pages.study.entries import Row, entry_cell, hardware
from equipoise.scaling.metrics import LOSSES
from equipoise.study.diminishing_returns import CURVE_RULE, SYMPTOMS
from equipoise.study.findings import Findings, WorkloadFindings
from equipoise.units import whole_percent

MOST_CHARTS: Final = 2
FEWEST_SIZES: Final = 2
SMALLEST_SCALE: Final = 0.1  # doublings
SMALL_SHARE: Final = 0.01  # causes of a smaller share of the loss are not mentioned
CAUSES: Final = {
    "statistical": ("batch growth", Mark(colour=1, symbol="circle")),
    "training": ("slower training", Mark(colour=2, symbol="square")),
    "overhead": ("evaluation and set-up", Mark(colour=3, symbol="triangle-up")),
    "throughput": ("throughput", Mark(colour=4, symbol="diamond")),
    "rules": ("rules", Mark(colour=5, symbol="cross")),
    "unattributed": ("unknown", Mark(colour=None, symbol="x")),
}
CURVE_SYMPTOM: Final = "diminishing returns"
TITLES: Final = {symptom.name: symptom.title for symptom in SYMPTOMS}


def losses_blocks(findings: Findings) -> tuple[Block, ...]:
    """The causes of lost efficiency for each workload."""
    intro = prose(
        "E is a product: ",
        Strong("batch growth"),
        " (larger batches need more samples to the target), ",
        Strong("throughput"),
        " (samples per second per accelerator), and the ",
        Strong("rules"),
        "' convergence scaling. Losses multiply, so their logarithms add: each bar is -log2 E of the fastest "
        "entry of its size. One doubling lost means that half of the accelerators do nothing; what is below "
        "zero was gained. Throughput is split into training, and evaluation with set-up, only where "
        "the logs separate them.",
    )
    of_workloads = (block for each in findings.workloads for block in _of_workload(each))
    return (intro, *of_workloads, *_all(findings), _rules())


def _of_workload(workload: WorkloadFindings) -> tuple[Block, ...]:
    heading = Heading(name=f"why-{workload.workload}", text=printable(workload.name))
    curves = _curves(workload)
    if not curves:
        return (heading, prose("No accelerator was entered at two sizes: nothing can be lost to size."))
    lossy = [rows for rows in curves if any(abs(row["lost_doublings"]) >= SMALLEST_SCALE for row in rows)]
    shown = (lossy or curves)[:MOST_CHARTS]
    causes = [cause for cause in LOSSES if any(_counts(row, cause) for rows in shown for row in rows)]
    limits = _limits([row for rows in shown for row in rows], causes)
    panels = Panels(charts=tuple(_chart(workload, rows, causes, limits) for rows in shown), legend="Lost to")
    largest = tuple(_largest_words(rows[-1]) for rows in shown)
    return (
        heading,
        *(prose(*words) for words in largest),
        *((panels,) if causes else ()),
        bullets(_symptoms(workload, shown)),
        *_not_separable(shown),
    )


def _curves(workload: WorkloadFindings) -> list[list[Row]]:
    """The losses along the best curve of each accelerator with two or more sizes, the longest first."""
    best = workload.losses.filter(pl.col("entry_id").is_in(workload.curves["entry_id"].to_list()))
    by_kind: list[list[Row]] = [
        list(rows.sort("num_accelerators").iter_rows(named=True))
        for _, rows in best.group_by("accelerator", maintain_order=True)
        if len(rows) >= FEWEST_SIZES
    ]
    return sorted(by_kind, key=lambda rows: (-len(rows), -rows[-1]["num_accelerators"]))


def _counts(row: Row, cause: str) -> bool:
    """Whether a cause is large enough to be drawn."""
    return row[cause] is not None and abs(row[cause]) >= SMALL_SHARE * max(abs(row["lost_doublings"]), 0.1)


def _limits(rows: Sequence[Row], causes: Sequence[str]) -> tuple[float, float]:
    """The lowest and highest end of any bar; the highest at least SMALLEST_SCALE, to stay visible."""
    parts = [[row[cause] or 0.0 for cause in causes] for row in rows]
    low = min((sum(min(part, 0.0) for part in each) for each in parts), default=0.0)
    high = max((sum(max(part, 0.0) for part in each) for each in parts), default=0.0)
    return low, max(high, SMALLEST_SCALE)


def _chart(
    workload: WorkloadFindings, rows: Sequence[Row], causes: Sequence[str], ends: tuple[float, float]
) -> BarChart:
    kind = rows[0]["accelerator"]
    return replace(
        lost_chart(f"{workload.workload}-losses-{kind}", rows, causes, title=accelerator_name(kind)),
        subtitle="losses of the fastest entry of each size; above the bar, its E",
        alternative=f"{printable(workload.name)}. {' '.join(map(_plain_words, rows))}",
        limits=ends,
    )


def lost_chart(name: str, rows: Sequence[Row], causes: Sequence[str], *, title: str) -> BarChart:
    """A chart of the doublings that each entry lost, by cause."""
    return BarChart(
        name=name,
        title=title,
        subtitle="above each bar, its E",
        alternative=" ".join(map(_plain_words, rows)),
        x_title="accelerators",
        y_title="doublings lost (-log2 E)",
        categories=tuple(count(row["num_accelerators"]) for row in rows),
        labels=tuple(ratio(row["efficiency"]) for row in rows),
        limits=_limits(rows, causes),
        series=tuple(
            BarPart(
                name=CAUSES[cause][0],
                mark=CAUSES[cause][1],
                heights=tuple(row[cause] for row in rows),
                hovers=tuple(_hover(row, cause) for row in rows),
            )
            for cause in causes
        ),
    )


def _hover(row: Row, cause: str) -> tuple[str, ...]:
    if row[cause] is None:
        return ()
    lines = [hardware(row), f"{CAUSES[cause][0]}: a factor of {ratio(2 ** -row[cause])}"]
    if row["lost_doublings"] > 0:
        lines.append(f"{whole_percent(row[cause] / row['lost_doublings'])} of the loss")
    return (*lines, f"E {ratio(row['efficiency'])} in all", printable(row["entry_id"]))


def _largest_words(row: Row) -> tuple[Span, ...]:
    lost = row["lost_doublings"]
    start = f": E is {ratio(row['efficiency'])}"
    if lost <= 0:
        return (Strong(hardware(row)), f"{start}; nothing was lost.")
    parts = sorted(
        ((row[cause] / lost, CAUSES[cause][0]) for cause in LOSSES if row[cause] is not None), reverse=True
    )
    took = [f"{whole_percent(share)} {name}" for share, name in parts if share >= SMALL_SHARE]
    gave = [f"{whole_percent(-share)} {name}" for share, name in parts if share <= -SMALL_SHARE]
    back = f"; {listed(gave)} gained" if gave else ""
    return (
        Strong(hardware(row)),
        f"{start}, {lost:.2f} doublings lost. Of these ",
        Strong(listed(took)),
        f"{back}.",
    )


def _plain_words(row: Row) -> str:
    return "".join(span if isinstance(span, str) else span.text for span in _largest_words(row))


def _symptoms(workload: WorkloadFindings, shown: Sequence[Sequence[Row]]) -> list[str]:
    """Symptoms of the curves, and of the largest entry of each curve shown."""
    largest = {rows[-1]["entry_id"]: rows[-1] for rows in shown}
    of_curves = [
        f"{accelerator_name(each.subject)}: {sentence(each.words)}." for each in workload.curve_diagnoses
    ]
    of_entries = [
        f"{hardware(largest[each.subject])}: {sentence(each.words)}."
        for each in workload.diagnoses
        if each.subject in largest
    ]
    return of_curves + of_entries


def _not_separable(shown: Sequence[Sequence[Row]]) -> tuple[Block, ...]:
    """Which causes the logs of the shown entries do not separate, and at which sizes."""
    found: dict[str, list[str]] = {}
    for rows in shown:
        sizes: dict[str, list[str]] = {}
        for row in rows[1:]:
            if row["factors_missing"]:
                sizes.setdefault(row["factors_missing"], []).append(count(row["num_accelerators"]))
        for reason, at in sizes.items():
            found.setdefault(reason, []).append(f"{accelerator_name(rows[0]['accelerator'])} at {listed(at)}")
    return tuple(note(f"Not separable, {'; '.join(at)}: {sentence(reason)}.") for reason, at in found.items())


_SYMPTOM_COLUMNS: Final = (
    words("Workload", "workload"),
    words("Entry or curve", "subject"),
    numbers("Accelerators", "size"),
    words("Symptom", "symptom"),
    words("In words", "words", is_wide=True),
)


def _all(findings: Findings) -> tuple[Block, ...]:
    """Every symptom of every entry and curve, to be searched."""
    rows = [row for workload in findings.workloads for row in _symptom_rows(workload)]
    table = table_of("diagnoses", _SYMPTOM_COLUMNS, rows, caption="Every symptom found")
    title = f"All {len(rows)} symptoms of entries and curves"
    return (Fold(name="all-diagnoses", title=title, blocks=(table,) if rows else (), is_long=True),)


def _symptom_rows(workload: WorkloadFindings) -> Iterator[dict[str, object]]:
    """The symptoms of the curves, then those of the entries."""
    by_id = {row["entry_id"]: row for row in workload.entries.iter_rows(named=True)}
    for each in (*workload.curve_diagnoses, *workload.diagnoses):
        title, row = TITLES.get(each.symptom, CURVE_SYMPTOM), by_id.get(each.subject)
        curve = named(accelerator_name(each.subject), detail="the curve")
        yield {
            "workload": workload.name,
            "subject": curve if row is None else entry_cell(row),
            "size": Cell(text="") if row is None else row["num_accelerators"],
            "symptom": title,
            # The symptom has its own column.
            "words": each.words.removeprefix(title).lstrip(": "),
        }


def _rules() -> Block:
    of_curves, _, rule = CURVE_RULE.partition(": ")
    rules = [*((symptom.title, symptom.rule) for symptom in SYMPTOMS), (of_curves, rule)]
    items = bullets((Strong(title), f": {rule}.") for title, rule in rules)
    return Fold(name="symptom-rules", title="When each symptom is reported", blocks=(items,))

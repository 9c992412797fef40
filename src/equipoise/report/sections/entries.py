"""Every entry with its numbers and its source, a table a workload; those without a score with the reason."""

from typing import Final

from equipoise.report.blocks import Block, Cell, Column, Fold, Table, prose
from equipoise.report.entry_text import Row, source
from equipoise.report.section import Section
from equipoise.report.words import (
    ABSENT,
    accelerator_name,
    count,
    entry_name,
    minutes,
    plural,
    printable,
    ratio,
    sentence,
)
from equipoise.study.findings import Findings, WorkloadFindings
from equipoise.study.published import Unscored

COLUMNS = (
    Column(title="System"),
    Column(title="Accelerators", is_number=True),
    Column(title="Minutes", is_number=True, meaning="official score"),
    Column(title="Speedup", is_number=True, meaning="reference time / this time"),
    Column(title="E'", is_number=True, meaning="speedup / (accelerators / accelerators of the reference)"),
    Column(title="E", is_number=True, meaning="like for like: against the smallest of the same accelerator"),
    Column(title="Baseline of E", meaning="the entry that E is counted from"),
    Column(title="Batch", is_number=True, meaning="global batch, samples"),
    Column(
        title="Samples to target", is_number=True, meaning="training samples until the target was reached"
    ),
    Column(
        title="Samples/s each",
        is_number=True,
        meaning="samples per second per accelerator, evaluation included",
    ),
    Column(title="Source", meaning="file and line in the round's repository"),
)


def _blocks(findings: Findings) -> tuple[Block, ...]:
    intro = prose(
        "Every number above is counted from these rows. The source is the path of the entry's log in the "
        "repository of its round, and the line on which the clock stops."
    )
    return (intro, *(_fold(workload) for workload in findings.workloads), *_unscored(findings))


def _fold(workload: WorkloadFindings) -> Fold:
    name = printable(workload.name)
    entries = workload.entries.iter_rows(named=True)
    rows = tuple(entry_row(row) for row in entries if row["score_s"] is not None)
    table = Table(
        name=f"{workload.workload}-entries", caption=f"{name}: scored entries", columns=COLUMNS, rows=rows
    )
    title = f"{name}: {plural(len(rows), 'scored entry', 'scored entries')}"
    return Fold(name=f"entries-{workload.workload}", title=title, badges=(), blocks=(table,), is_long=True)


def entry_row(row: Row) -> tuple[Cell, ...]:
    """The cells of one entry, a column of COLUMNS each."""
    name = entry_name(row["submitter"], row["system"])
    baseline = row["like_for_like_baseline"]
    each = row["samples_per_s_per_accelerator"]
    return (
        Cell(text=name, key=name, detail=accelerator_name(row["accelerator"])),
        Cell(text=count(row["num_accelerators"]), key=row["num_accelerators"]),
        Cell(text=minutes(row["score_s"]), key=row["score_s"]),
        Cell(text=ratio(row["speedup"]), key=row["speedup"]),
        Cell(text=ratio(row["relative_efficiency"]), key=row["relative_efficiency"]),
        Cell(text=ratio(row["like_for_like_efficiency"]), key=row["like_for_like_efficiency"]),
        Cell(text=printable(baseline or ABSENT), key=baseline),
        Cell(text=count(row["global_batch_samples"]), key=row["global_batch_samples"]),
        Cell(text=count(_whole(row["samples_to_target"])), key=row["samples_to_target"]),
        Cell(text=ratio(each), key=each),
        Cell(text=source(row), key=row["source_uri"], is_code=True),
    )


def _whole(samples: float | None) -> float | None:
    return None if samples is None else round(samples)


def _unscored(findings: Findings) -> tuple[Block, ...]:
    rows = [(workload, entry) for workload in findings.workloads for entry in workload.table.unscored]
    if not rows:
        return (prose("Every entry of these workloads has a score."),)
    table = Table(
        name="unscored-entries",
        caption="Entries without an official score",
        columns=(
            Column(title="Workload"),
            Column(title="System"),
            Column(title="Accelerators", is_number=True),
            Column(title="Why it has none"),
        ),
        rows=tuple(_unscored_row(printable(workload.name), entry) for workload, entry in rows),
    )
    has = "has" if len(rows) == 1 else "have"
    return (prose(f"{plural(len(rows), 'entry', 'entries')} {has} no official score:"), table)


def _unscored_row(workload: str, entry: Unscored) -> tuple[Cell, ...]:
    name = entry_name(entry.submitter, entry.system)
    return (
        Cell(text=workload, key=workload),
        Cell(text=name, key=name, detail=accelerator_name(entry.accelerator)),
        Cell(text=count(entry.num_accelerators), key=entry.num_accelerators),
        Cell(text=sentence(entry.reason), key=entry.reason),
    )


SECTION: Final[Section[Findings]] = Section(
    name="entries", title="Every entry", needs=("workloads",), blocks=_blocks
)

"""Every entry with its numbers and its source, where to look next, and what the terms mean."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from equipoise.report.blocks import (
    Block,
    Bullets,
    Cell,
    Column,
    Fold,
    Heading,
    Table,
    Tile,
    Tiles,
    code,
    named,
    note,
    number,
    prose,
    strong,
)
from equipoise.report.format import (
    ABSENT,
    TIMES,
    accelerator_name,
    capital,
    count,
    entry_name,
    minutes,
    plural,
    printable,
    ratio,
    sentence,
)
from equipoise.scaling.metrics import RULE, Pointer
from equipoise.study.findings import Findings, WorkloadFindings
from equipoise.study.published import Unscored
from equipoise.units import format_duration

Row: TypeAlias = Mapping[str, Any]  # one row of a frame with the columns of scaling.metrics.ENTRY_COLUMNS


def hardware(row: Row) -> str:
    """Count and kind of accelerators: `64 x H100 SXM5 80 GB`."""
    return f"{count(row['num_accelerators'])} {TIMES} {accelerator_name(row['accelerator'])}"


def source(row: Row) -> str:
    """Where the numbers were read: path in the round's repository and line of its first log's end."""
    if not row["source_uri"]:
        return ABSENT
    line = f":{row['source_line']}" if row["source_line"] is not None else ""
    return f"{printable(row['source_uri'])}{line}"


def efficiencies(row: Row) -> str:
    """E' and, with its baseline named, like-for-like E."""
    text = f"E' {ratio(row['relative_efficiency'])}"
    if row["like_for_like_efficiency"] is None:
        return text
    like_for_like, baseline = row["like_for_like_efficiency"], row["like_for_like_baseline"]
    return f"{text} · E {ratio(like_for_like)} against {printable(baseline)}"


def entry_cell(submitter: str | None, system: str | None, accelerator: str | None) -> Cell:
    """The cell that names an entry, its accelerator below."""
    return named(entry_name(submitter, system), detail=accelerator_name(accelerator))


def hover(row: Row, *extra: str) -> tuple[str, ...]:
    """The lines shown at an entry's marker: name, hardware, time, efficiency, then `extra`, then the log."""
    return (
        entry_name(row["submitter"], row["system"]),
        hardware(row),
        f"{minutes(row['score_s'])} min",
        efficiencies(row),
        *_causes(row),
        *extra,
        source(row),
    )


def _causes(row: Row) -> tuple[str, ...]:
    """The factors of E, where the logs have them."""
    if row["statistical"] is None or row["throughput"] is None:
        return ()
    return (f"of which batch growth {ratio(row['statistical'])}, throughput {ratio(row['throughput'])}",)


COLUMNS = (
    Column(title="System"),
    Column(title="Accelerators", is_number=True),
    Column(title="Minutes", is_number=True, meaning="official score"),
    Column(title="Speedup", is_number=True, meaning="reference time / this time"),
    Column(title="E'", is_number=True, meaning="speedup / (accelerators / accelerators of the reference)"),
    Column(title="E", is_number=True, meaning="like for like: against the smallest of the same accelerator"),
    Column(title="Baseline of E", meaning="the entry that E is relative to"),
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


def entries_blocks(findings: Findings) -> tuple[Block, ...]:
    """Every scored entry with its source, and those without a score."""
    intro = prose(
        "Every number above is computed from these rows. The source is the path of the entry's log in the "
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
    return Fold(name=f"entries-{workload.workload}", title=title, blocks=(table,), is_long=True)


def entry_row(row: Row) -> tuple[Cell, ...]:
    """The cells of one entry, a column of COLUMNS each."""
    baseline = row["like_for_like_baseline"]
    return (
        entry_cell(row["submitter"], row["system"], row["accelerator"]),
        number(row["num_accelerators"]),
        number(row["score_s"], minutes),
        number(row["speedup"], ratio),
        number(row["relative_efficiency"], ratio),
        number(row["like_for_like_efficiency"], ratio),
        Cell(text=printable(baseline or ABSENT), key=baseline),
        number(row["global_batch_samples"]),
        number(row["samples_to_target"], lambda samples: count(round(samples))),
        number(row["samples_per_s_per_accelerator"], ratio),
        Cell(text=source(row), key=row["source_uri"], is_code=True),
    )


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
    return (
        named(workload),
        entry_cell(entry.submitter, entry.system, entry.accelerator),
        number(entry.num_accelerators),
        named(entry.reason),
    )


LABELS: Final = {"speed": "For speed", "between": "In between", "efficiency": "For efficiency"}


def pointers_blocks(findings: Findings) -> tuple[Block, ...]:
    """The entries to look at for speed, for efficiency, and in between."""
    intro = prose(
        "Three purposes, three configurations, each an entry that was measured: the shortest time, the least "
        "accelerator-time, and the one nearest to both. E' is against the workload's reference, "
        "E against the smallest system of the same accelerator."
    )
    rule = note(f"Rule: {sentence(RULE)}.")
    return (intro, *(block for workload in findings.workloads for block in _of_workload(workload)), rule)


def _of_workload(workload: WorkloadFindings) -> tuple[Block, ...]:
    if not workload.pointers:
        return (prose(f"{printable(workload.name)}: no entry has a score."),)
    tiles = Tiles(items=tuple(_tile(pointer) for pointer in workload.pointers))
    return (Heading(name=f"next-{workload.workload}", text=printable(workload.name)), tiles)


def _tile(pointer: Pointer) -> Tile:
    shown = f"E' {ratio(pointer.relative_efficiency)}"
    if pointer.like_for_like_efficiency is not None:
        shown += f" · E {ratio(pointer.like_for_like_efficiency)}"
    name = entry_name(pointer.submitter, pointer.system)
    words = sentence(pointer.words).removesuffix(".")
    return Tile(
        label=LABELS[pointer.purpose],
        value=f"{count(pointer.num_accelerators)} {TIMES} {accelerator_name(pointer.accelerator)}",
        detail=f"{format_duration(pointer.score_s)} · {shown} · {name}",
        words=f"{capital(words)}.",
    )


NOT_VERIFIED = (
    "Results derived from MLPerf Training result logs; the derived numbers are not verified by the MLCommons "
    "Association. The MLPerf name and logo are trademarks of the MLCommons Association."
)
SCORE = (
    "The official time to train: the olympic mean of the runs, times the convergence scaling of the rules. "
    "Entries that miss the rules have no score and are listed with the reason."
)
RELATIVE = (
    "= speedup / (accelerators / accelerators of the reference). One reference per workload: fewest "
    "accelerators, then slowest."
)
LIKE_FOR_LIKE = (
    "= the same quotient, with the smallest entry of the same accelerator, form factor and memory as the "
    "reference; among equals, the one with the lowest score."
)
FOLLOW = (
    "Hover over a marker or open the table of entries for the log it comes from: path and line in the "
    "repository of the round. "
)
CAUTION = (
    "Efficiency is what submitters reached, each with different software, batch and purpose; "
    "entries are tuned for time, seldom for efficiency. Sizes without an entry are not in these figures."
)


def method_blocks(findings: Findings) -> tuple[Block, ...]:
    """What the terms mean and where the data come from."""
    division = f"Only entries of the {printable(findings.division)} division are compared."
    data = f"{sentence(findings.sources)} Embedded dataset: version {printable(findings.dataset)}."
    terms = Bullets(
        items=(
            (strong("Score. "), SCORE),
            (strong("Speedup "), "= reference time / time. ", strong("E' "), RELATIVE),
            (strong("Like-for-like E "), LIKE_FOR_LIKE),
            (strong("Division. "), division),
            (strong("Data. "), data),
            (strong("Follow a number. "), FOLLOW, code("equipoise scores --json"),
             " prints the same rows for programs, ", code("equipoise explain TERM"), " each term."),
        )
    )  # fmt: skip
    return (terms, prose(CAUTION))

"""Every entry with its numbers and its source, where to look next, and what the words mean."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from equipoise.report.blocks import (
    Block,
    Bullets,
    Cell,
    Column,
    Fold,
    Heading,
    Section,
    Table,
    Tile,
    Tiles,
    code,
    note,
    prose,
    strong,
)
from equipoise.report.format import (
    ABSENT,
    TIMES,
    accelerator_name,
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


def hover(row: Row, *extra: str) -> tuple[str, ...]:
    """The lines beside an entry's marker: name, hardware, time, efficiency, then `extra`, then the log."""
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
    """What E is the product of, where the logs tell it."""
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


def _entries_blocks(findings: Findings) -> tuple[Block, ...]:
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


ENTRIES_SECTION: Final[Section[Findings]] = Section(
    name="entries", title="Every entry", needs=("workloads",), blocks=_entries_blocks
)

LABELS: Final = {"speed": "For speed", "between": "In between", "efficiency": "For efficiency"}


def _pointers_blocks(findings: Findings) -> tuple[Block, ...]:
    intro = prose(
        "Three purposes, three configurations, each an entry that was measured: the shortest time, the least "
        "accelerator-time, and the one nearest to both. E' is against the workload's reference, "
        "E against the smallest system of the same accelerator."
    )
    rule = note(f"Rule: {sentence(RULE)}.")
    return (intro, *(block for workload in findings.workloads for block in _of_workload(workload)), rule)


def _of_workload(workload: WorkloadFindings) -> tuple[Block, ...]:
    if not workload.pointers:
        return (prose(f"{printable(workload.name)}: no entry with a score, hence nothing to point at."),)
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
        words=f"{words[:1].upper()}{words[1:]}.",
    )


POINTERS_SECTION: Final[Section[Findings]] = Section(
    name="next", title="Where to look next", needs=("workloads",), blocks=_pointers_blocks
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
    "= speedup / (accelerators / accelerators of the reference). One reference a workload: fewest "
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
    "Efficiency says what was reached by those who entered, each with their own software, batch and purpose; "
    "entries are tuned for time, seldom for efficiency. A size nobody entered is not in these figures."
)


def _method_blocks(findings: Findings) -> tuple[Block, ...]:
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


METHOD_SECTION: Final[Section[Findings]] = Section(
    name="method", title="Data and method", needs=(), blocks=_method_blocks
)

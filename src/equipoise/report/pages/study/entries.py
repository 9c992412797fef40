"""Every entry with its numbers and source, entries worth a look, and the definitions of terms."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from msgspec import to_builtins

from equipoise.report.blocks import (
    Block,
    Cell,
    Code,
    Fold,
    Heading,
    Strong,
    Tile,
    bullets,
    named,
    note,
    numbers,
    prose,
    table_of,
    tiles,
    words,
)
from equipoise.report.charts import Mark, series_mark
from equipoise.report.format import (
    ABSENT,
    TIMES,
    accelerator_name,
    capital,
    count,
    entry_name,
    minutes,
    printable,
    ratio,
    sentence,
)
from equipoise.scaling.metrics import RULE, Pointer
from equipoise.study.findings import ComparedFindings, Findings, WorkloadFindings
from equipoise.units import format_duration, plural

Row: TypeAlias = Mapping[str, Any]  # one row of a frame with the columns of scaling.metrics.ENTRY_COLUMNS


def hardware(row: Row) -> str:
    """Count and kind of accelerators: `64 x H100 SXM5 80 GB`."""
    return f"{count(row['num_accelerators'])} {TIMES} {accelerator_name(row['accelerator'])}"


def source(row: Row) -> str:
    """Source of the numbers: path in the round's repository and line of the first log's end."""
    if not row["source_uri"]:
        return ABSENT
    line = f":{row['source_line']}" if row["source_line"] is not None else ""
    return f"{printable(row['source_uri'])}{line}"


def efficiencies(row: Row) -> str:
    """E' and the like-for-like E with its baseline."""
    text = f"E' {ratio(row['relative_efficiency'])}"
    if row["like_for_like_efficiency"] is None:
        return text
    like_for_like, baseline = row["like_for_like_efficiency"], row["like_for_like_baseline"]
    return f"{text} · E {ratio(like_for_like)} against {printable(baseline)}"


def entry_cell(entry: Any) -> Cell:  # noqa: ANN401 - a row of a frame, or a record
    """The cell that names an entry, with its accelerator below."""
    of = entry if isinstance(entry, Mapping) else to_builtins(entry)
    return named(entry_name(of["submitter"], of["system"]), detail=accelerator_name(of["accelerator"]))


def hover(row: Row, *extra: str) -> tuple[str, ...]:
    """The tooltip of an entry's marker: name, hardware, time, efficiency, `extra`, and the log."""
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
    """The factors of E, if the logs have them."""
    if row["statistical"] is None or row["throughput"] is None:
        return ()
    return (f"of which batch growth {ratio(row['statistical'])}, throughput {ratio(row['throughput'])}",)


def accelerator_marks(findings: Findings) -> dict[str | None, Mark]:
    """A mark for each accelerator: colours for those with the most entries, grey for the rest.

    Each colour has its own symbol, so that series are distinguishable without colour.
    """
    entries = Counter[str | None]()
    for workload in findings.workloads:
        entries.update(workload.entries["accelerator"].to_list())
    ranked = sorted(entries, key=lambda slug: (-entries[slug], slug or ""))
    return {slug: series_mark(place) for place, slug in enumerate(ranked)}


def source_cell(row: Row) -> Cell:
    """The cell that names the log of an entry."""
    return Cell(text=source(row), key=row["source_uri"], is_code=True)


COLUMNS: Final = (
    words("System", entry_cell),
    numbers("Accelerators", "num_accelerators"),
    numbers("Minutes", "score_s", minutes, meaning="official score"),
    numbers("Speedup", "speedup", ratio, meaning="reference time / this time"),
    numbers(
        "E'",
        "relative_efficiency",
        ratio,
        meaning="speedup / (accelerators / accelerators of the reference)",
    ),
    numbers(
        "E",
        "like_for_like_efficiency",
        ratio,
        meaning="like for like: against the smallest of the same accelerator",
    ),
    words("Baseline of E", "like_for_like_baseline", meaning="the entry that E is relative to"),
    numbers("Batch", "global_batch_samples", meaning="global batch, samples"),
    numbers(
        "Samples to target",
        "samples_to_target",
        lambda samples: count(round(samples)),
        meaning="training samples until the target was reached",
    ),
    numbers(
        "Samples/s each",
        "samples_per_s_per_accelerator",
        ratio,
        meaning="samples per second per accelerator, evaluation included",
    ),
    words("Source", source_cell, meaning="file and line in the round's repository"),
)
_UNSCORED_COLUMNS: Final = (
    words("Workload", "workload"),
    words("System", lambda row: entry_cell(row["entry"])),
    numbers("Accelerators", "entry.num_accelerators"),
    words("Why it has none", "entry.reason"),
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
    rows = [row for row in workload.entries.iter_rows(named=True) if row["score_s"] is not None]
    table = table_of(f"{workload.workload}-entries", COLUMNS, rows, caption=f"{name}: scored entries")
    title = f"{name}: {plural(len(rows), 'scored entry', 'scored entries')}"
    return Fold(name=f"entries-{workload.workload}", title=title, blocks=(table,), is_long=True)


def _unscored(findings: Findings) -> tuple[Block, ...]:
    rows = [
        {"workload": workload.name, "entry": entry}
        for workload in findings.workloads
        for entry in workload.table.unscored
    ]
    if not rows:
        return (prose("Every entry of these workloads has a score."),)
    has = "has" if len(rows) == 1 else "have"
    caption = "Entries without an official score"
    return (
        prose(f"{plural(len(rows), 'entry', 'entries')} {has} no official score:"),
        table_of("unscored-entries", _UNSCORED_COLUMNS, rows, caption=caption),
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
    heading = Heading(name=f"next-{workload.workload}", text=printable(workload.name))
    return (heading, tiles(map(_tile, workload.pointers)))


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
    "Markers of charts, in a browser, and the table of entries name the log that a number comes from: path "
    "and line in the repository of the round. "
)
CAUTION = (
    "Efficiency is what submitters reached, each with different software, batch and purpose; "
    "entries are tuned for time, seldom for efficiency. Sizes without an entry are not in these figures."
)


def dataset_words(findings: Findings | ComparedFindings) -> str:
    """The dataset behind the figures."""
    return f"Dataset {printable(findings.dataset)}: {sentence(findings.sources)}."


def method_blocks(findings: Findings) -> tuple[Block, ...]:
    """The definitions of terms and the sources of the data."""
    division = f"Only entries of the {printable(findings.division)} division are compared."
    terms = (
        (Strong("Score. "), SCORE),
        (Strong("Speedup "), "= reference time / time. ", Strong("E' "), RELATIVE),
        (Strong("Like-for-like E "), LIKE_FOR_LIKE),
        (Strong("Division. "), division),
        (Strong("Data. "), dataset_words(findings)),
        (Strong("Follow a number. "), FOLLOW, Code("equipoise scores --json"),
         " prints the same rows for programs, ", Code("equipoise explain TERM"), " each term."),
    )  # fmt: skip
    return (bullets(terms), prose(CAUTION))

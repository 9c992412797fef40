"""Each workload: its systems by accelerator and size; machine families with results in every workload."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import polars as pl

from equipoise.report.blocks import (
    Block,
    Cell,
    Heading,
    Of,
    Panels,
    Strong,
    note,
    number,
    numbers,
    prose,
    table_of,
    words,
)
from equipoise.report.charts import (
    Annotation,
    Axis,
    Chart,
    Level,
    Mark,
    Series,
    series_mark,
    series_of,
)
from equipoise.report.format import DASH, accelerator_name, count, listed, printable, ratio, sentence
from equipoise.report.pages.study.entries import Row, accelerator_marks, entry_cell, hardware, hover
from equipoise.scaling.groups import Grouping, SystemGroup
from equipoise.study.findings import Findings, WorkloadFindings
from equipoise.units import format_duration, format_percent, plural

SIZE_AXIS: Final = Axis(title="accelerators", is_log=True)
MOST_NAMED: Final = 6  # systems that a tooltip names before it counts the rest
RELATIVE: Final = "relative_efficiency"
LIKE_FOR_LIKE: Final = "like_for_like_efficiency"
SEE_TABLE: Final = "the table of entries has every point."


def workloads_blocks(findings: Findings) -> tuple[Block, ...]:
    """The systems, groups and efficiencies of each workload."""
    marks = accelerator_marks(findings)
    intro = prose(
        "For each workload: the systems entered, then the efficiency of the same entries by two measures. ",
        Strong("E'"),
        " is the study's relative efficiency, against one reference system regardless of hardware; "
        "a newer chip raises it. ",
        Strong("E"),
        " is like for like: against the smallest system of the same accelerator, form factor and memory, "
        "so that 1 means that nothing was lost to size.",
    )
    return (intro, *(block for each in findings.workloads for block in _of_workload(each, marks)))


def _of_workload(workload: WorkloadFindings, marks: dict[str | None, Mark]) -> tuple[Block, ...]:
    entries = workload.entries.iter_rows(named=True)
    scored: list[Row] = [row for row in entries if row["score_s"] is not None]
    rows = [row for row in scored if row["num_accelerators"]]
    heading = Heading(name=f"workload-{workload.workload}", text=printable(workload.name))
    if not rows:
        return (heading, prose("No entry of this workload has a score on accelerators."))
    panels = Panels(
        charts=(_relative_chart(workload, rows, marks), _like_for_like_chart(workload, rows, marks)),
        legend="Accelerator",
    )
    left_out = plural(len(scored) - len(rows), "scored entry", "scored entries")
    without = f"{left_out} without accelerators (processors alone) cannot be placed in the figures."
    return (
        heading,
        _range_sentence(rows),
        note(without if len(scored) > len(rows) else ""),
        _systems_panel(workload),
        *_groups(workload),
        panels,
    )


def _range_sentence(rows: list[Row]) -> Block:
    largest = _largest(rows)
    kinds = plural(len({row["accelerator"] for row in rows}), "kind")
    efficiency = f"E' {ratio(largest[RELATIVE])} by the study's method"
    if largest[LIKE_FOR_LIKE] is not None:
        baseline = printable(largest["like_for_like_baseline"])
        efficiency += f", E {ratio(largest[LIKE_FOR_LIKE])} like for like (against {baseline})"
    return prose(
        f"{plural(len(rows), 'scored entry', 'scored entries')} on {kinds} of accelerator. The largest, ",
        Strong(hardware(largest)),
        f", trains in {format_duration(largest['score_s'])}: {efficiency}.",
    )


def _largest(rows: Sequence[Row]) -> Row:
    """The fastest of the entries with the most accelerators."""
    return max(rows, key=lambda row: (row["num_accelerators"], -row["score_s"]))


def _systems_panel(workload: WorkloadFindings) -> Panels:
    """Figure (a) of the study: one marker per position and group, sized by the number of systems there."""
    rows: list[Row] = [row for row in workload.spots.iter_rows(named=True) if row["num_accelerators"]]
    names = sorted({accelerator_name(row["accelerator"]) for row in rows}, key=str.casefold)
    sizes = [row["num_accelerators"] for row in rows]
    systems = plural(sum(row["num_systems"] for row in rows), "system")
    clusters = sorted({row["cluster"] for row in rows}, key=lambda cluster: (cluster is None, cluster))
    chart = Chart(
        name=f"{workload.workload}-systems",
        title="Systems by accelerator and size",
        subtitle="a marker's area is the number of systems that share the spot",
        alternative=f"{printable(workload.name)}: {systems} on {listed(names)}, from {count(min(sizes))} to "
        f"{count(max(sizes))} accelerators; {SEE_TABLE}",
        x=SIZE_AXIS,
        y=Axis(title="", categories=tuple(names)),
        series=tuple(_group_series(cluster, rows) for cluster in clusters),
    )
    return Panels(charts=(chart,), legend="K-means group")


def _group_series(cluster: int | None, rows: list[Row]) -> Series:
    mine = [row for row in rows if row["cluster"] == cluster]
    return Series(
        name="in no group" if cluster is None else f"group {cluster}",
        mark=_group_mark(cluster),
        x=tuple(float(row["num_accelerators"]) for row in mine),
        y=tuple(accelerator_name(row["accelerator"]) for row in mine),
        hovers=tuple(_spot_hover(row) for row in mine),
        weights=tuple(row["num_systems"] for row in mine),
    )


def _group_mark(cluster: int | None) -> Mark:
    """The mark of a K-means group, counted from 1; grey for entries without a group."""
    if cluster is None:
        return Mark(colour=None, symbol="circle")
    return series_mark(cluster - 1)


def _spot_hover(spot: Row) -> tuple[str, ...]:
    named = [printable(name) for name in spot["systems"][:MOST_NAMED]]
    rest = len(spot["systems"]) - len(named)
    return (
        f"{plural(spot['num_systems'], 'system')}: {hardware(spot)}",
        *named,
        *((f"and {rest} more",) if rest > 0 else ()),
    )


def _relative_chart(workload: WorkloadFindings, rows: list[Row], marks: dict[str | None, Mark]) -> Chart:
    """Figure (b) of the study: E' of every entry."""
    known = [row for row in rows if row[RELATIVE] is not None]
    return Chart(
        name=f"{workload.workload}-relative",
        title="The study's method",
        subtitle="one reference for all, regardless of hardware",
        alternative=_alternative(workload, known, RELATIVE, "E'"),
        x=SIZE_AXIS,
        y=Axis(title="E'", is_log=True),
        series=tuple(
            _series(name, mark, members, RELATIVE) for name, mark, members in _by_kind(known, marks)
        ),
        level=Level(y=1.0, text="the reference"),
        notes=_largest_note(known, RELATIVE),
    )


def _like_for_like_chart(workload: WorkloadFindings, rows: list[Row], marks: dict[str | None, Mark]) -> Chart:
    """E of every entry, with a line per accelerator through its best entry of each size."""
    known = [row for row in rows if row[LIKE_FOR_LIKE] is not None]
    on_curve = set(workload.curves["entry_id"])
    series: list[Series] = []
    for name, mark, members in _by_kind(known, marks):
        best = [row for row in members if row["entry_id"] in on_curve]
        others = [row for row in members if row["entry_id"] not in on_curve]
        series.append(_series(name, mark, best, LIKE_FOR_LIKE, is_line=True))
        if others:
            series.append(_series(name, mark, others, LIKE_FOR_LIKE))
    return Chart(
        name=f"{workload.workload}-like-for-like",
        title="Like for like",
        subtitle="against the smallest of its kind; lines connect the fastest",
        alternative=_alternative(workload, known, LIKE_FOR_LIKE, "Like-for-like E"),
        x=SIZE_AXIS,
        y=Axis(title="E", starts_at_zero=True),
        series=tuple(series),
        level=Level(y=1.0, text="ideal scaling"),
        notes=_largest_note(known, LIKE_FOR_LIKE),
    )


def _by_kind(rows: list[Row], marks: dict[str | None, Mark]) -> list[tuple[str, Mark, list[Row]]]:
    """The rows of each accelerator with its mark, in the order of the marks."""
    return [
        (accelerator_name(kind), mark, members)
        for kind, mark in marks.items()
        if (members := [row for row in rows if row["accelerator"] == kind])
    ]


def _series(name: str, mark: Mark, rows: Sequence[Row], column: str, *, is_line: bool = False) -> Series:
    points = ((float(row["num_accelerators"]), float(row[column]), hover(row)) for row in rows)
    return series_of(name, mark, points, is_line=is_line and len(rows) > 1)


def _largest_note(rows: list[Row], column: str) -> tuple[Annotation, ...]:
    if not rows:
        return ()
    largest = _largest(rows)
    value = float(largest[column])
    return (Annotation(x=float(largest["num_accelerators"]), y=value, text=ratio(value)),)


def _alternative(workload: WorkloadFindings, rows: list[Row], column: str, symbol: str) -> str:
    """The text alternative of the figure, for screen readers: its two ends."""
    what = (
        f"{symbol} of {plural(len(rows), 'entry', 'entries')} of {printable(workload.name)} by accelerators"
    )
    if not rows:
        return f"{what}."
    first = min(rows, key=lambda row: (row["num_accelerators"], row["score_s"]))
    last = _largest(rows)
    return (
        f"{what}: {ratio(first[column])} at {count(first['num_accelerators'])}, {ratio(last[column])} at "
        f"{count(last['num_accelerators'])}; {SEE_TABLE}"
    )


def _group_sizes(group: SystemGroup) -> Cell:
    low, high = group.min_accelerators, group.max_accelerators
    return Cell(text=count(low) if low == high else f"{count(low)}{DASH}{count(high)}", key=low)


def _group_times(group: SystemGroup) -> Cell:
    ends = dict.fromkeys((format_duration(group.min_s), format_duration(group.max_s)))
    return Cell(text=f" {DASH} ".join(ends), key=group.min_s)


_GROUP_COLUMNS: Final = (
    numbers("Group", "cluster"),
    words("Description", "words"),
    numbers("Entries", "num_entries"),
    numbers("Accelerators", _group_sizes),
    numbers("Time", _group_times, is_wide=True),
    numbers("Median E'", "median_relative_efficiency", ratio),
)


def _groups(workload: WorkloadFindings) -> tuple[Block, ...]:
    grouping = workload.grouping
    if grouping is None:
        return (note("No K-means groups: ", sentence(workload.grouping_missing or "too few systems"), "."),)
    name, caption = f"{workload.workload}-groups", f"{printable(workload.name)}: K-means groups"
    return (table_of(name, _GROUP_COLUMNS, grouping.groups, caption=caption), _how_grouped(grouping))


def _how_grouped(grouping: Grouping) -> Block:
    features = listed([sentence(feature) for feature in grouping.features])
    tried = ", ".join(f"{k}: {ratio(value)}" for k, value in grouping.silhouettes)
    return note(
        f"K-means on {features}; {sentence(grouping.scaling)}. ",
        f"k = {grouping.k}, {sentence(grouping.chosen_by)}",
        f" (mean silhouette by k: {tried}). " if tried else ". ",
        sentence(grouping.words),
        f" The index compares these groups with those of {count(grouping.num_resamples)} bootstrap "
        "resamples; 1 means the same groups every time, and "
        f"{format_percent(grouping.stability.level)} of the resamples lie in that range.",
    )


def shared_blocks(findings: Findings) -> tuple[Block, ...]:
    """The systems with a score in every workload."""
    shared = findings.shared
    names = {workload.workload: printable(workload.name) for workload in findings.workloads}
    return (prose(sentence(shared.words)), *_systems(shared.table, names), *_families(shared.families, names))


def _systems(systems: pl.DataFrame, names: dict[str, str]) -> tuple[Block, ...]:
    if systems.is_empty():
        return ()

    def efficiency(workload: str) -> Callable[[dict[str, Row]], Cell | None]:
        def cell(rows: dict[str, Row]) -> Cell | None:
            row = rows.get(workload)
            return (
                None if row is None else number(row["relative_efficiency"], ratio, detail=f"#{row['rank']}")
            )

        return cell

    columns = (
        words("System", lambda rows: entry_cell(_first(rows))),
        numbers("Size", lambda rows: _first(rows)["num_accelerators"], meaning="accelerators"),
        *(
            numbers(name, efficiency(workload), meaning="E', and the rank by time")
            for workload, name in names.items()
        ),
    )
    rows = _by_workload(systems.iter_rows(named=True), ("submitter", "system"))
    caption = "E' of the systems entered in every workload, and their rank by time"
    return (table_of("shared-systems", columns, rows, caption=caption),)


def _first(rows: dict[str, Row]) -> Row:
    return next(iter(rows.values()))


def _families(families: pl.DataFrame, names: dict[str, str]) -> tuple[Block, ...]:
    """Machine families: one submitter's machines of one kind, over the same sizes in every workload."""
    if families.is_empty():
        return ()
    keys = ("submitter", "accelerator", "from_accelerators", "to_accelerators")
    kept = "efficiency at the largest size over that at the smallest"
    columns = (
        words("Submitter", lambda rows: _first(rows)["submitter"]),
        words("Accelerator", lambda rows: accelerator_name(_first(rows)["accelerator"])),
        numbers(f"From {DASH} to", _from_to, meaning="accelerators"),
        *(numbers(name, _efficiency_kept(workload), ratio, meaning=kept) for workload, name in names.items()),
    )
    return (
        prose(
            "Same submitter, same accelerator, same sizes: only the workload differs. 1 means that no "
            "efficiency was lost."
        ),
        table_of(
            "shared-families",
            columns,
            _by_workload(families.iter_rows(named=True), keys),
            caption="Efficiency kept when one submitter scales one kind of machine",
        ),
    )


def _efficiency_kept(workload: str) -> Of:
    return lambda rows: rows[workload]["efficiency"] if workload in rows else None


def _from_to(rows: dict[str, Row]) -> Cell:
    low, high = _first(rows)["from_accelerators"], _first(rows)["to_accelerators"]
    return Cell(text=f"{count(low)} {DASH} {count(high)}", key=high)


def _by_workload(rows: Iterable[Row], keys: tuple[str, ...]) -> list[dict[str, Row]]:
    found: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), {})[row["workload"]] = row
    return list(found.values())

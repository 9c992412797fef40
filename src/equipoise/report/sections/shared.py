"""Systems and machine families that are present in every chosen workload, compared across them."""

from collections.abc import Iterable
from typing import Final

import polars as pl

from equipoise.report.blocks import Block, Cell, Column, Table, prose
from equipoise.report.entry_text import Row
from equipoise.report.section import Section
from equipoise.report.words import (
    ABSENT,
    DASH,
    accelerator_name,
    count,
    entry_name,
    printable,
    ratio,
    sentence,
)
from equipoise.study.findings import Findings


def _blocks(findings: Findings) -> tuple[Block, ...]:
    shared = findings.shared
    said = prose(sentence(shared.words))
    names = {workload.workload: printable(workload.name) for workload in findings.workloads}
    return (said, *_systems(shared.table, names), *_families(shared.families, names))


def _systems(systems: pl.DataFrame, names: dict[str, str]) -> tuple[Block, ...]:
    if systems.is_empty():
        return ()
    rows = _by_workload(systems.iter_rows(named=True), ("submitter", "system"))
    columns = (
        Column(title="System"),
        Column(title="Size", is_number=True, meaning="accelerators"),
        *(Column(title=name, is_number=True, meaning="E', and the rank by time") for name in names.values()),
    )
    table = Table(
        name="shared-systems",
        caption="E' of the systems in every workload, and their rank among each other by time",
        columns=columns,
        rows=tuple(_system_row(row, list(names)) for row in rows),
    )
    return (table,)


def _families(families: pl.DataFrame, names: dict[str, str]) -> tuple[Block, ...]:
    """One submitter's machines of one kind, over the same sizes in every workload."""
    if families.is_empty():
        return ()
    rows = _by_workload(
        families.iter_rows(named=True), ("submitter", "accelerator", "from_accelerators", "to_accelerators")
    )
    columns = (
        Column(title="Submitter"),
        Column(title="Accelerator"),
        Column(title=f"From {DASH} to", is_number=True, meaning="accelerators"),
        *(Column(title=name, is_number=True, meaning="efficiency kept") for name in names.values()),
    )
    table = Table(
        name="shared-families",
        caption="Efficiency kept when one submitter's machines of one kind grow",
        columns=columns,
        rows=tuple(_family_row(row, list(names)) for row in rows),
    )
    said = prose(
        "Same submitter, same accelerator, same sizes: what is left differs by workload alone. "
        "1 means that nothing was lost on the way."
    )
    return (said, table)


def _by_workload(rows: Iterable[Row], keys: tuple[str, ...]) -> list[dict[str, Row]]:
    """The rows of each combination of keys, by workload."""
    found: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), {})[row["workload"]] = row
    return list(found.values())


def _system_row(rows: dict[str, Row], workloads: list[str]) -> tuple[Cell, ...]:
    first = next(iter(rows.values()))
    name = entry_name(first["submitter"], first["system"])
    return (
        Cell(text=name, key=name, detail=accelerator_name(first["accelerator"])),
        Cell(text=count(first["num_accelerators"]), key=first["num_accelerators"]),
        *(_system_cell(rows.get(workload)) for workload in workloads),
    )


def _system_cell(row: Row | None) -> Cell:
    if row is None:
        return Cell(text=ABSENT)
    return Cell(
        text=ratio(row["relative_efficiency"]), key=row["relative_efficiency"], detail=f"#{row['rank']}"
    )


def _family_row(rows: dict[str, Row], workloads: list[str]) -> tuple[Cell, ...]:
    first = next(iter(rows.values()))
    low, high = first["from_accelerators"], first["to_accelerators"]
    values = [rows[workload]["efficiency"] if workload in rows else None for workload in workloads]
    return (
        Cell(text=printable(first["submitter"]), key=first["submitter"]),
        Cell(text=accelerator_name(first["accelerator"]), key=first["accelerator"]),
        Cell(text=f"{count(low)} {DASH} {count(high)}", key=high),
        *(Cell(text=ratio(value), key=value) for value in values),
    )


SECTION: Final[Section[Findings]] = Section(
    name="shared", title="The systems present everywhere", needs=("workloads", "shared"), blocks=_blocks
)

"""Table I of the study beside the same figures from the data, each difference named."""

from typing import Final

from equipoise.report.blocks import Block, Bullets, Cell, Column, Table, note, prose, strong
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, accelerator_name, count, entry_name, minutes, printable, sentence
from equipoise.study.findings import Findings
from equipoise.study.published import Published, TableRow


def _blocks(findings: Findings) -> tuple[Block, ...]:
    rows = [(workload.name, workload.table) for workload in findings.workloads]
    published = sorted({row.published.source for _, row in rows if row.published})
    differences = tuple(
        (strong(f"{printable(name)}: "), "; ".join(sentence(difference) for difference in row.differences))
        for name, row in rows
        if row.differences
    )
    opening = prose(
        "Speedup and E' need one reference system a workload: the one with the fewest accelerators and, "
        "among those, the slowest. Everything the study's way is counted from these rows."
    )
    if not published:
        no_table = note(
            f"The study prints no such table for {printable(findings.round)}; the data stand alone."
        )
        return (opening, _table(rows, with_published=False), no_table)
    beside = prose(
        "Beside them, the figures as printed in ", *(sentence(source) for source in published), "."
    )
    found: tuple[Block, ...] = (
        (prose("Where the two differ:"), Bullets(items=differences))
        if differences
        else (prose("They do not differ."),)
    )
    return (opening, beside, _table(rows, with_published=True), *found)


def _table(rows: list[tuple[str, TableRow]], *, with_published: bool) -> Table:
    """The data's figures, each with the study's beside it where the study has any."""
    pairs = (
        (
            Column(title="Entries", is_number=True, meaning="entries of the division, scored or not"),
            "its entries",
        ),
        (
            Column(title="Accelerators", is_number=True, meaning="of the reference system"),
            "accelerators of its reference",
        ),
        (
            Column(title="Minutes", is_number=True, meaning="official score of the reference"),
            "minutes of its reference",
        ),
    )
    columns = [Column(title="Workload"), Column(title="Reference system", is_wide=True)]
    for own, published in pairs:
        columns += [own, Column(title="Study", is_number=True, meaning=f"the study: {published}")][
            : 1 + with_published
        ]
    return Table(
        name="table-one",
        caption="Table I: reference systems",
        columns=tuple(columns),
        rows=tuple(_row(name, row, with_published=with_published) for name, row in rows),
    )


def _row(name: str, row: TableRow, *, with_published: bool) -> tuple[Cell, ...]:
    unscored = row.num_entries - row.num_scored
    entries = Cell(
        text=count(row.num_entries),
        key=row.num_entries,
        detail=f"{count(unscored)} unscored" if unscored else None,
    )
    reference = row.reference
    if reference is None:
        system = accelerators = time = Cell(text=ABSENT)
    else:
        system = Cell(
            text=entry_name(reference.submitter, reference.system),
            key=reference.system,
            detail=accelerator_name(reference.accelerator),
        )
        accelerators = Cell(text=count(reference.num_accelerators), key=reference.num_accelerators)
        time = Cell(text=minutes(reference.score_s), key=reference.score_s)
    first = (Cell(text=printable(name), key=name), system)
    if not with_published:
        return (*first, entries, accelerators, time)
    its_entries, its_accelerators, its_minutes = _published(row.published)
    return (*first, entries, its_entries, accelerators, its_accelerators, time, its_minutes)


def _published(published: Published | None) -> tuple[Cell, Cell, Cell]:
    """What the study prints, with as many digits as it prints."""
    if published is None:
        return (Cell(text=ABSENT), Cell(text=ABSENT), Cell(text=ABSENT))
    return (
        Cell(text=count(published.num_entries), key=published.num_entries),
        Cell(text=count(published.num_accelerators), key=published.num_accelerators),
        Cell(text=f"{published.score_minutes:,.{published.num_decimals}f}", key=published.score_minutes),
    )


SECTION: Final[Section[Findings]] = Section(
    name="table-one", title="Table I: the reference systems", needs=("workloads",), blocks=_blocks
)

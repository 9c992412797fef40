"""Table I and the claims of the study next to the same figures from the data."""

from itertools import groupby
from typing import Final

from equipoise.report.blocks import (
    Badge,
    Block,
    Bullets,
    Cell,
    Column,
    Fold,
    Heading,
    Table,
    Tone,
    named,
    note,
    number,
    prose,
    strong,
)
from equipoise.report.format import (
    ABSENT,
    count,
    listed,
    minutes,
    plural,
    printable,
    ratio,
    sentence,
    workload_name,
)
from equipoise.report.pages.study.entries import entry_cell
from equipoise.study.claims import RULE, Claim, ClaimPart, ClaimReading, Verdict
from equipoise.study.findings import Findings
from equipoise.study.published import Attributed, Published, TableRow
from equipoise.study.quantities import Figure
from equipoise.units import format_duration


def table_one_blocks(findings: Findings) -> tuple[Block, ...]:
    """The reference systems, next to those that the study prints."""
    rows = [(workload.name, workload.table) for workload in findings.workloads]
    published = sorted({row.published.source for _, row in rows if row.published})
    differences = tuple(
        (strong(f"{printable(name)}: "), "; ".join(sentence(difference) for difference in row.differences))
        for name, row in rows
        if row.differences
    )
    opening = prose(
        "Speedup and E' need one reference system per workload: the one with the fewest accelerators and, "
        "among those, the slowest. All figures by the study's method are relative to these rows."
    )
    if not published:
        no_table = note(f"The study has no such table for {printable(findings.round)}.")
        return (opening, _table(rows, with_published=False), no_table)
    sources = prose(
        "Next to them, the figures as printed in ", *(sentence(source) for source in published), "."
    )
    result = prose("The two differ:" if differences else "They do not differ.")
    return (opening, sources, _table(rows, with_published=True), result, Bullets(items=differences))


def _table(rows: list[tuple[str, TableRow]], *, with_published: bool) -> Table:
    """The data's figures, each followed by the study's where the study has any."""
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
    for measured, published in pairs:
        columns += [measured, Column(title="Study", is_number=True, meaning=f"the study: {published}")][
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
    entries = number(row.num_entries, detail=f"{count(unscored)} unscored" if unscored else None)
    reference = row.reference
    if reference is None:
        system = accelerators = time = Cell(text=ABSENT)
    else:
        system = entry_cell(reference.submitter, reference.system, reference.accelerator)
        accelerators = number(reference.num_accelerators)
        time = number(reference.score_s, minutes)
    first = (named(name), system)
    if not with_published:
        return (*first, entries, accelerators, time)
    its_entries, its_accelerators, its_minutes = _published(row.published)
    return (*first, entries, its_entries, accelerators, its_accelerators, time, its_minutes)


def _published(published: Published | None) -> tuple[Cell, Cell, Cell]:
    """What the study prints, with as many digits as it prints."""
    if published is None:
        return (number(None), number(None), number(None))
    return (
        number(published.num_entries),
        number(published.num_accelerators),
        number(published.score_minutes, f"{{:,.{published.num_decimals}f}}".format),
    )


TONES: Final[dict[Verdict, Tone]] = {
    "holds": "good", "reverses": "bad", "not supported": "plain", "not enough evidence": "quiet",
}  # fmt: skip
MOST_NAMED: Final = 3  # entries named for a figure before the rest is counted
ACROSS: Final = "across workloads"


def claims_blocks(findings: Findings) -> tuple[Block, ...]:
    """Every claim with its verdicts and readings."""
    stated = [claim for claim in findings.claims if claim.is_of_study]
    others = [claim for claim in findings.claims if not claim.is_of_study]
    intro = prose(
        strong(plural(len(stated), "claim")),
        " of the study, each tested twice on this data: ",
        strong("study's method"),
        ", with E' over mixed hardware, and ",
        strong("like for like"),
        ", with E against the smallest system of the same accelerator. "
        "Open a claim for its rules, the readings, and the figures behind them.",
    )
    names = {workload.workload: printable(workload.name) for workload in findings.workloads}
    places = {id(claim): place for place, claim in enumerate(findings.claims, start=1)}
    more = (prose("Claims that the study makes for one workload, tested on the others:"),) if others else ()
    return (
        intro,
        note(sentence(RULE)),
        *(_claim(claim, places[id(claim)], names) for claim in stated),
        *more,
        *(_claim(claim, places[id(claim)], names) for claim in others),
        *_attributed(findings.attributed),
    )


def _attributed(attributed: tuple[Attributed, ...]) -> tuple[Block, ...]:
    """Figures that others attribute to the study, next to what it contains."""
    if not attributed:
        return ()
    rows = tuple(
        (
            named(each.claim),
            named(each.found),
            named(each.source),
        )
        for each in attributed
    )
    columns = (
        Column(title="Attributed to the study"),
        Column(title="Found in it"),
        Column(title="Looked up in"),
    )
    return (
        prose("Figures that others attribute to the study:"),
        Table(
            name="attributed",
            caption="Figures attributed to the study, and what it contains",
            columns=columns,
            rows=rows,
        ),
    )


def _claim(claim: Claim, place: int, names: dict[str, str]) -> Fold:
    tested = listed([names.get(slug) or workload_name(slug) for slug in claim.workloads]) or "no workload"
    blocks: list[Block] = [note(f"Stated in {printable(claim.source)}. Tested on {tested}.")]
    if not claim.parts:
        blocks.append(prose(sentence(claim.like_for_like.words)))
    for at, (_, parts) in enumerate(groupby(claim.parts, key=lambda part: part.statement), 1):
        blocks.extend(_statement(f"claim-{place}-{at}", tuple(parts), names))
    verdicts = (
        _badge(claim.study_method.verdict, "study: "),
        _badge(claim.like_for_like.verdict, "like for like: "),
    )
    title = f"{claim.number}. {sentence(claim.claim)}"
    return Fold(name=f"claim-{place}", title=title, badges=verdicts, blocks=tuple(blocks))


def _badge(verdict: Verdict, before: str = "") -> Badge:
    return Badge(text=f"{before}{verdict}", tone=TONES[verdict])


def _statement(name: str, parts: tuple[ClaimPart, ...], names: dict[str, str]) -> tuple[Block, ...]:
    """One testable statement: its rule once, then the readings of each workload."""
    statement = sentence(parts[0].statement)
    rows = tuple(
        (
            *_workload_cells(part, names, is_alone=len(parts) == 1),
            _reading(part.study_method),
            _reading(part.like_for_like),
        )
        for part in parts
    )
    columns = (*_workload_columns(parts), Column(title="Study's method"), Column(title="Like for like"))
    return (
        Heading(name=name, text=statement[:1].upper() + statement[1:], is_minor=True),
        note(f"Rule: {sentence(parts[0].rule)}."),
        Table(name=f"{name}-readings", caption="Readings", columns=columns, rows=rows),
        *_figures(name, parts, names),
    )


def _workload_columns(parts: tuple[ClaimPart, ...]) -> tuple[Column, ...]:
    """A column for the workload where there is more than one."""
    return () if len(parts) == 1 else (Column(title="Workload"),)


def _workload_cells(part: ClaimPart, names: dict[str, str], *, is_alone: bool) -> tuple[Cell, ...]:
    if is_alone:
        return ()
    name = ACROSS if part.workload is None else names.get(part.workload) or workload_name(part.workload)
    return (named(name),)


def _reading(reading: ClaimReading) -> Cell:
    return Cell(text="", key=reading.verdict, badge=_badge(reading.verdict), detail=sentence(reading.words))


def _figures(name: str, parts: tuple[ClaimPart, ...], names: dict[str, str]) -> tuple[Block, ...]:
    """The numbers the verdicts rest on, with the entries they come from; none where there is no evidence."""
    rows = tuple(
        (
            *_workload_cells(part, names, is_alone=len(parts) == 1),
            named(way),
            *_figure_cells(figure),
        )
        for part in parts
        for way, reading in (("study's method", part.study_method), ("like for like", part.like_for_like))
        for figure in reading.figures
    )
    if not rows:
        return ()
    columns = (
        *_workload_columns(parts),
        Column(title="Method"),
        Column(title="Figure"),
        Column(title="Value", is_number=True),
        Column(title="Computed from"),
    )
    table = Table(name=f"{name}-figures", caption="Each figure and its entries", columns=columns, rows=rows)
    return (Fold(name=f"{name}-behind", title="The figures behind it", blocks=(table,), is_aside=True),)


def _figure_cells(figure: Figure) -> tuple[Cell, ...]:
    value = (
        format_duration(figure.value)
        if figure.unit == "s"
        else f"{ratio(figure.value)} {figure.unit}".rstrip()
    )
    return (
        named(figure.name),
        Cell(text=value, key=figure.value),
        Cell(text=_entries_text(figure.entry_ids), key=len(figure.entry_ids)),
    )


def _entries_text(entry_ids: tuple[str, ...]) -> str:
    named = ", ".join(printable(entry_id) for entry_id in entry_ids[:MOST_NAMED])
    rest = len(entry_ids) - MOST_NAMED
    return named if rest <= 0 else f"{named} and {count(rest)} more"

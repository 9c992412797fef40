"""Table I and the claims of the study, next to the same figures computed from the data."""

from itertools import groupby
from typing import Any, Final

from equipoise.report.blocks import (
    Badge,
    Block,
    Cell,
    ColumnOf,
    Fold,
    Heading,
    Strong,
    Table,
    Tone,
    bullets,
    note,
    number,
    numbers,
    prose,
    table_of,
    words,
)
from equipoise.report.format import capital, count, listed, minutes, printable, ratio, sentence, workload_name
from equipoise.report.pages.study.entries import entry_cell
from equipoise.study.claims import RULE, Attributed, Claim, ClaimPart, ClaimReading, TableRow, Verdict
from equipoise.study.findings import Findings
from equipoise.units import format_duration, plural


def table_one_blocks(findings: Findings) -> tuple[Block, ...]:
    """The reference systems, next to those published in the study."""
    rows = [(workload.name, workload.table) for workload in findings.workloads]
    published = sorted({row.published.source for _, row in rows if row.published})
    differences = tuple(
        (Strong(f"{printable(name)}: "), "; ".join(sentence(difference) for difference in row.differences))
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
    return (opening, sources, _table(rows, with_published=True), result, bullets(differences))


def _table(rows: list[tuple[str, TableRow]], *, with_published: bool) -> Table:
    """The figures from the data, each followed by the study's figure if there is one."""
    pairs = (
        (
            numbers("Entries", _entries, meaning="entries of the division, scored or not"),
            _study("its entries", "num_entries"),
        ),
        (
            numbers("Accelerators", "reference.num_accelerators", meaning="of the reference system"),
            _study("accelerators of its reference", "num_accelerators"),
        ),
        (
            numbers("Minutes", "reference.score_s", minutes, meaning="official score of the reference"),
            _study("minutes of its reference", "score_minutes"),
        ),
    )
    titles = {id(row): name for name, row in rows}
    columns = (
        words("Workload", lambda row: titles[id(row)]),
        words("Reference system", lambda row: row.reference and entry_cell(row.reference), is_wide=True),
        *(column for pair in pairs for column in (pair if with_published else pair[:1])),
    )
    return table_of("table-one", columns, [row for _, row in rows], caption="Table I: reference systems")


def _entries(row: TableRow) -> Cell:
    unscored = row.num_entries - row.num_scored
    return number(row.num_entries, detail=f"{count(unscored)} unscored" if unscored else None)


def _study(meaning: str, field: str) -> ColumnOf:
    """A column with the study's figure, with as many digits as published."""

    def cell(row: TableRow) -> Cell | None:
        if row.published is None:
            return None
        decimals = row.published.num_decimals if field == "score_minutes" else 0
        return number(getattr(row.published, field), f"{{:,.{decimals}f}}".format)

    return numbers("Study", cell, meaning=f"the study: {meaning}")


TONES: Final[dict[Verdict, Tone]] = {
    "holds": "good", "reverses": "bad", "not supported": "plain", "not enough evidence": "quiet",
}  # fmt: skip
MOST_NAMED: Final = 3  # entries named for a figure before the rest is counted
ACROSS: Final = "across workloads"


def claims_blocks(findings: Findings) -> tuple[Block, ...]:
    """Every claim with its verdicts and interpretations."""
    stated = [claim for claim in findings.claims if claim.is_of_study]
    others = [claim for claim in findings.claims if not claim.is_of_study]
    intro = prose(
        Strong(plural(len(stated), "claim")),
        " of the study, each tested twice on this data: ",
        Strong("study's method"),
        ", with E' over mixed hardware, and ",
        Strong("like for like"),
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


_ATTRIBUTED_COLUMNS: Final = (
    words("Attributed to the study", "claim"),
    words("Found in it", "found"),
    words("Looked up in", "source"),
)


def _attributed(attributed: tuple[Attributed, ...]) -> tuple[Block, ...]:
    if not attributed:
        return ()
    caption = "Figures attributed to the study, and what it contains"
    return (
        prose("Figures that others attribute to the study:"),
        table_of("attributed", _ATTRIBUTED_COLUMNS, attributed, caption=caption),
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
    """One testable statement: its rule, then the interpretations for each workload."""

    def workload(part: ClaimPart) -> str:
        if part.workload is None:
            return ACROSS
        return names.get(part.workload) or workload_name(part.workload)

    of_workload = (words("Workload", lambda row: workload(row["part"])),) if len(parts) > 1 else ()
    readings = (
        *of_workload,
        words("Study's method", lambda row: _reading(row["part"].study_method)),
        words("Like for like", lambda row: _reading(row["part"].like_for_like)),
    )
    rows = [{"part": part} for part in parts]
    # The numbers behind the verdicts, with the entries that they come from.
    figures = [
        {"part": part, "way": way, "figure": figure}
        for part in parts
        for way, reading in (("study's method", part.study_method), ("like for like", part.like_for_like))
        for figure in reading.figures
    ]
    caption = "Each figure and its entries"
    behind = table_of(f"{name}-figures", (*of_workload, *_FIGURE_COLUMNS), figures, caption=caption)
    return (
        Heading(name=name, text=capital(sentence(parts[0].statement)), is_minor=True),
        note(f"Rule: {sentence(parts[0].rule)}."),
        table_of(f"{name}-readings", readings, rows, caption="Readings"),
        Fold(
            name=f"{name}-behind",
            title="The figures behind it",
            blocks=(behind,) if figures else (),
            is_aside=True,
        ),
    )


def _reading(reading: ClaimReading) -> Cell:
    return Cell(text="", key=reading.verdict, badge=_badge(reading.verdict), detail=sentence(reading.words))


def _figure(row: dict[str, Any]) -> Cell:
    found = row["figure"]
    text = (
        format_duration(found.value) if found.unit == "s" else f"{ratio(found.value)} {found.unit}".rstrip()
    )
    return Cell(text=text, key=found.value)


def _computed_from(row: dict[str, Any]) -> Cell:
    ids = row["figure"].entry_ids
    return Cell(text=listed(map(printable, ids), MOST_NAMED), key=len(ids))


_FIGURE_COLUMNS: Final = (
    words("Method", "way"),
    words("Figure", "figure.name"),
    numbers("Value", _figure),
    words("Computed from", _computed_from),
)

"""Why: every reason with what it rests on, and every source with its weight."""

from collections.abc import Iterator
from typing import Final

from equipoise.advice.answer.advice import Reason
from equipoise.advice.answer.evidence import Evidence
from equipoise.findings import AdviceFindings
from equipoise.report.blocks import Block, Bullets, Cell, Column, Span, Table, code, prose
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, count, printable, sentence
from equipoise.units import format_duration, format_percent

MOST_REFS: Final = 3


def _blocks(findings: AdviceFindings) -> tuple[Block, ...]:
    advice, best = findings.advice, findings.advice.recommended
    rows = [] if best is None else [row for each in best.evidence for row in _rows(each)]
    table = Table(
        name="advice-evidence",
        caption="Every source of the time, with its weight in the answer",
        columns=(
            Column(title="Source", is_header=True),
            Column(title="Kind"),
            Column(title="Number", is_number=True),
            Column(title="Time there", is_number=True),
            Column(title="Weight", is_number=True),
        ),
        rows=tuple(rows),
    )
    reasons = tuple(_reason(each) for each in advice.reasons)
    return (
        *((Bullets(items=reasons),) if reasons else (prose("There is no choice to give reasons for."),)),
        *((table,) if rows else ()),
    )


def _reason(each: Reason) -> tuple[Span, ...]:
    refs = list(dict.fromkeys(source.ref for source in each.sources if source.time_s is not None))
    more = f" and {len(refs) - MOST_REFS} more" if len(refs) > MOST_REFS else ""
    told: list[Span] = [f"{sentence(each.words)} "]
    if refs:
        told.append(f"From {', '.join(map(printable, refs[:MOST_REFS]))}{more}. ")
    if each.formula is not None:
        told.append(code(sentence(each.formula)))
    return tuple(told)


def _rows(each: Evidence) -> Iterator[tuple[Cell, ...]]:
    """The sources of one kind of evidence; its weight is shared out by their own."""
    shares = [1.0 if source.share is None else source.share for source in each.sources]
    whole = sum(shares) or 1.0
    for source, share in zip(each.sources, shares, strict=True):
        weight = each.weight * share / whole
        size, time_s = source.num_accelerators, source.time_s
        line = "" if source.source_line is None else f", line {source.source_line}"
        log = None if source.source_uri is None else printable(f"{source.source_uri}{line}")
        yield (
            Cell(text=printable(source.ref), key=source.ref, detail=log),
            Cell(text=source.kind, key=source.kind),
            Cell(text=ABSENT if size is None else count(size), key=size),
            Cell(text=ABSENT if time_s is None else format_duration(time_s), key=time_s),
            Cell(text=format_percent(round(weight, 3)), key=weight),
        )


SECTION: Final[Section[AdviceFindings]] = Section(name="why", title="Why", needs=("advice",), blocks=_blocks)

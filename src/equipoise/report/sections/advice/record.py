"""How right such answers were: the record of every kind of evidence in the answer."""

from typing import Final

from equipoise.findings import AdviceFindings
from equipoise.report.blocks import Block, Bullets, note, prose
from equipoise.report.section import Section
from equipoise.report.words import sentence


def _blocks(findings: AdviceFindings) -> tuple[Block, ...]:
    records = findings.advice.records
    if not records:
        return (prose("No such answer was ever held against a result."),)
    return (
        Bullets(items=tuple((sentence(each.words),) for each in records)),
        note("Everything held out was unknown to what foretold it. How: docs/advice.md."),
    )


SECTION: Final[Section[AdviceFindings]] = Section(
    name="record", title="How right such answers were", needs=("advice",), blocks=_blocks
)

"""What the answer rests on."""

from typing import Final

from equipoise.findings import ReachFindings
from equipoise.report.blocks import Block, Bullets, note
from equipoise.report.reach_text import ground
from equipoise.report.section import Section
from equipoise.report.words import capital, sentence


def _blocks(findings: ReachFindings) -> tuple[Block, ...]:
    best = findings.reaches.best
    price = best.option.bill.money
    told = [f"{capital(sentence(each))}." for each in ground(best)]
    told += [] if price is None else ["Money is rent of the accelerators; failures take what is usual."]
    return (
        Bullets(items=tuple((each,) for each in told)),
        note("How: docs/economics.md."),
    )


SECTION: Final[Section[ReachFindings]] = Section(
    name="ground", title="What it rests on", needs=("reaches",), blocks=_blocks
)

"""How to run it: commands, code, and settings, each with its reason."""

from typing import Final

from equipoise.findings import AdviceFindings
from equipoise.report.blocks import Block, Cell, Column, Fold, Listing, Table, prose
from equipoise.report.section import Section
from equipoise.report.words import ABSENT, sentence


def _blocks(findings: AdviceFindings) -> tuple[Block, ...]:
    advice = findings.advice
    if not advice.snippets:
        return (prose("No strategy to run: nothing is known of how such machines are started."),)
    first, *rest = advice.snippets
    return (
        prose(sentence(f"{first.title}. {first.why}")),
        Listing(code=first.code),
        *(
            Fold(
                name=f"run-{place}",
                title=sentence(each.title),
                badges=(),
                blocks=(prose(sentence(each.why)), Listing(code=each.code)),
                is_long=True,
            )
            for place, each in enumerate(rest)
        ),
        *((_settings(findings),) if advice.settings else ()),
    )


def _settings(findings: AdviceFindings) -> Table:
    return Table(
        name="advice-settings",
        caption="Settings of the runtime that have a ground on this machine; all others are best left alone",
        columns=(
            Column(title="Setting", is_header=True),
            Column(title="Value"),
            Column(title="Why"),
            Column(title="How to check"),
        ),
        rows=tuple(
            (
                Cell(text=sentence(each.name), key=each.name, is_code=True),
                Cell(
                    text=ABSENT if each.value is None else sentence(each.value),
                    is_code=each.value is not None,
                ),
                Cell(text=sentence(each.reason), detail=sentence(each.evidence)),
                Cell(text=sentence(each.how_to_check)),
            )
            for each in findings.advice.settings
        ),
    )


SECTION: Final[Section[AdviceFindings]] = Section(
    name="run", title="How to run it", needs=("advice",), blocks=_blocks
)

"""What else could be taken and when it would win, and what to measure to be surer."""

from typing import Final

from equipoise.findings import AdviceFindings
from equipoise.report.blocks import Block, Bullets, Span, code, prose, strong
from equipoise.report.section import Section
from equipoise.report.words import sentence


def _blocks(findings: AdviceFindings) -> tuple[Block, ...]:
    advice = findings.advice
    blocks: list[Block] = []
    if advice.alternatives:
        blocks += [
            prose("The closest alternatives, and when they would win:"),
            Bullets(
                items=tuple(
                    (strong(sentence(each.words)), sentence(f"; {each.wins_when}."))
                    for each in advice.alternatives
                )
            ),
        ]
    if advice.to_measure:
        blocks += [
            prose("To be surer:"),
            Bullets(items=tuple(_measured(each.words, each.command) for each in advice.to_measure)),
        ]
    return tuple(blocks) or (prose("Nothing else is known to come close."),)


def _measured(words: str, command: str | None) -> tuple[Span, ...]:
    told = sentence(words)
    return (told,) if command is None else (f"{told} ", code(sentence(command)))


SECTION: Final[Section[AdviceFindings]] = Section(
    name="close", title="What comes close, and what would make it surer", needs=("advice",), blocks=_blocks
)

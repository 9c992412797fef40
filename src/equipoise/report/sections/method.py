"""Data and method: what the words mean, where the numbers come from, what they are not."""

from typing import Final

from equipoise.report.blocks import Block, Bullets, code, prose, strong
from equipoise.report.section import Section
from equipoise.report.words import printable, sentence
from equipoise.study.findings import Findings

NOT_VERIFIED = (
    "Results derived from MLPerf Training result logs; the derived numbers are not verified by the MLCommons "
    "Association. The MLPerf name and logo are trademarks of the MLCommons Association."
)
SCORE = (
    "The official time to train: the olympic mean of the runs, times the convergence scaling of the rules. "
    "Entries that miss the rules have no score and are listed with the reason."
)
RELATIVE = (
    "= speedup / (accelerators / accelerators of the reference). One reference a workload: fewest "
    "accelerators, then slowest."
)
LIKE_FOR_LIKE = (
    "= the same quotient, with the smallest entry of the same accelerator, form factor and memory as the "
    "reference; among equals, the one with the lowest score."
)
FOLLOW = (
    "Hover over a marker or open the table of entries for the log it comes from: path and line in the "
    "repository of the round. "
)
CAUTION = (
    "Efficiency says what was reached by those who entered, each with their own software, batch and purpose; "
    "entries are tuned for time, seldom for efficiency. A size nobody entered is not in these figures."
)


def _blocks(findings: Findings) -> tuple[Block, ...]:
    division = f"Only entries of the {printable(findings.division)} division are compared."
    data = f"{sentence(findings.sources)} Embedded dataset: version {printable(findings.dataset)}."
    terms = Bullets(
        items=(
            (strong("Score. "), SCORE),
            (strong("Speedup "), "= reference time / time. ", strong("E' "), RELATIVE),
            (strong("Like-for-like E "), LIKE_FOR_LIKE),
            (strong("Division. "), division),
            (strong("Data. "), data),
            (strong("Follow a number. "), FOLLOW, code("equipoise scores --json"),
             " prints the same rows for programs, ", code("equipoise explain TERM"), " each term."),
        )
    )  # fmt: skip
    return (terms, prose(CAUTION))


SECTION: Final[Section[Findings]] = Section(name="method", title="Data and method", needs=(), blocks=_blocks)

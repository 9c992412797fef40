"""The page of a round of MLPerf in the terms of the published study: its sections in reading order."""

from pathlib import Path
from typing import Final

from equipoise.report.blocks import Page, Section, code, note
from equipoise.report.format import printable, sentence
from equipoise.report.pages import accuracy
from equipoise.report.pages.study import balance, batches, claims, entries, losses, workloads
from equipoise.report.pages.study.entries import NOT_VERIFIED
from equipoise.study.findings import Findings

SECTIONS: Final[tuple[Section[Findings], ...]] = (
    Section(name="next", title="Where to look next", needs=("workloads",), blocks=entries.pointers_blocks),
    Section(
        name="claims", title="The study's claims, tested", needs=("claims",), blocks=claims.claims_blocks
    ),
    Section(
        name="table-one",
        title="Table I: the reference systems",
        needs=("workloads",),
        blocks=claims.table_one_blocks,
    ),
    Section(
        name="workloads",
        title="How each workload scales",
        needs=("workloads",),
        blocks=workloads.workloads_blocks,
        lists_headings=True,
    ),
    Section(name="why", title="Why efficiency is lost", needs=("workloads",), blocks=losses.losses_blocks),
    Section(
        name="batches",
        title="Samples to target against batch",
        needs=("workloads",),
        blocks=batches.batches_blocks,
    ),
    Section(
        name="balance", title="Where returns diminish", needs=("workloads",), blocks=balance.balance_blocks
    ),
    Section(
        name="record",
        title="Accuracy of such predictions on held-out data",
        needs=("record",),
        blocks=lambda findings: accuracy.record_blocks(findings.record),
    ),
    Section(
        name="shared",
        title="The systems present in every workload",
        needs=("workloads", "shared"),
        blocks=workloads.shared_blocks,
    ),
    Section(name="energy", title="Energy to train", needs=("workloads",), blocks=batches.energy_blocks),
    Section(name="entries", title="Every entry", needs=("workloads",), blocks=entries.entries_blocks),
    Section(name="method", title="Data and method", blocks=entries.method_blocks),
)


def _about_round(findings: Findings) -> str:
    return f"MLPerf Training {printable(findings.round)}, {printable(findings.division)} division"


def study_page(out: Path | None = None) -> Page[Findings]:
    """The page. out: the file that has it whole, which its short form names."""
    return Page(
        title=lambda findings: f"Training at scale: MLPerf {printable(findings.round)}",
        about=_about_round,
        headline=lambda findings: sentence(findings.headline),
        summary=lambda findings: tuple(map(sentence, findings.summary)),
        sections=SECTIONS,
        closing=lambda findings: (
            NOT_VERIFIED,
            f"Dataset {printable(findings.dataset)}. {sentence(findings.sources)}",
        ),
        brief=None
        if out is None
        else lambda *_: (note("The whole study: ", code(printable(str(out))), "."),),
    )


STUDY: Final = study_page()

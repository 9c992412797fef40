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
    Section("next", "Where to look next", entries.pointers_blocks, needs=("workloads",)),
    Section("claims", "The study's claims, tested", claims.claims_blocks, needs=("claims",)),
    Section("table-one", "Table I: the reference systems", claims.table_one_blocks, needs=("workloads",)),
    Section(
        "workloads",
        "How each workload scales",
        workloads.workloads_blocks,
        needs=("workloads",),
        lists_headings=True,
    ),
    Section("why", "Why efficiency is lost", losses.losses_blocks, needs=("workloads",)),
    Section("batches", "Samples to target against batch", batches.batches_blocks, needs=("workloads",)),
    Section("balance", "Where returns diminish", balance.balance_blocks, needs=("workloads",)),
    Section(
        "record",
        "Accuracy of such predictions on held-out data",
        lambda findings: accuracy.record_blocks(findings.record),
        needs=("record",),
    ),
    Section(
        "shared",
        "The systems present in every workload",
        workloads.shared_blocks,
        needs=("workloads", "shared"),
    ),
    Section("energy", "Energy to train", batches.energy_blocks, needs=("workloads",)),
    Section("entries", "Every entry", entries.entries_blocks, needs=("workloads",)),
    Section("method", "Data and method", entries.method_blocks),
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

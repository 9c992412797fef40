"""The page of a round of MLPerf, as the study reads it: its sections in reading order."""

from typing import Final

from equipoise.report.blocks import Page, Section
from equipoise.report.format import printable, sentence
from equipoise.report.pages import accuracy
from equipoise.report.pages.study import balance, batches, claims, entries, losses, workloads
from equipoise.report.pages.study.entries import NOT_VERIFIED
from equipoise.study.findings import Findings

SECTIONS: Final[tuple[Section[Findings], ...]] = (
    entries.POINTERS_SECTION,
    claims.CLAIMS_SECTION,
    claims.TABLE_ONE_SECTION,
    workloads.WORKLOADS_SECTION,
    losses.SECTION,
    batches.BATCHES_SECTION,
    balance.SECTION,
    accuracy.RECORD_SECTION,
    workloads.SHARED_SECTION,
    batches.ENERGY_SECTION,
    entries.ENTRIES_SECTION,
    entries.METHOD_SECTION,
)


def _about_round(findings: Findings) -> str:
    return f"MLPerf Training {printable(findings.round)}, {printable(findings.division)} division"


STUDY: Final[Page[Findings]] = Page(
    title=lambda findings: f"Training at scale: MLPerf {printable(findings.round)}",
    about=_about_round,
    headline=lambda findings: sentence(findings.headline),
    summary=lambda findings: tuple(map(sentence, findings.summary)),
    sections=SECTIONS,
    closing=lambda findings: (
        NOT_VERIFIED,
        f"Dataset {printable(findings.dataset)}. {sentence(findings.sources)}",
    ),
)

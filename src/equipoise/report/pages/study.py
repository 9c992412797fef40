"""The page: a round of MLPerf, as the study reads it."""

from typing import Final

from equipoise.report.page import Page
from equipoise.report.sections import SECTIONS
from equipoise.report.sections.method import NOT_VERIFIED
from equipoise.report.words import printable, sentence
from equipoise.study.findings import Findings


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

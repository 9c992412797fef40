"""The page: entries of one round and workload side by side."""

from typing import Final

from equipoise.report.page import Page
from equipoise.report.sections.compare import SECTIONS, side
from equipoise.report.sections.method import NOT_VERIFIED
from equipoise.report.words import printable, sentence
from equipoise.study.findings import ComparedFindings

COMPARED: Final[Page[ComparedFindings]] = Page(
    title=lambda findings: f"Side by side: {printable(findings.name)}",
    about=side.about,
    headline=side.headline,
    summary=side.summary,
    sections=SECTIONS,
    closing=lambda findings: (
        NOT_VERIFIED,
        f"Dataset {printable(findings.dataset)}. {sentence(findings.sources)}",
    ),
)

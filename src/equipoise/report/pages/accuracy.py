"""The page: how wrong every kind of answer was on what was held out."""

from typing import Final

from equipoise.report.page import Page
from equipoise.report.sections.accuracy import SECTIONS
from equipoise.report.sections.accuracy import head as accuracy
from equipoise.report.words import printable
from equipoise.study.findings import AccuracyFindings

ACCURACY: Final[Page[AccuracyFindings]] = Page(
    title=lambda _: "How wrong answers were",
    about=lambda _: "The record of every kind of answer",
    headline=accuracy.headline,
    summary=accuracy.summary,
    sections=SECTIONS,
    closing=lambda findings: (f"Dataset {printable(findings.dataset)}.",),
)

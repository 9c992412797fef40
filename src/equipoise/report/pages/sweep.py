"""The page: a sweep of one's own."""

from typing import Final

from equipoise.advice.measured.sweep_now import SweepNow
from equipoise.report.page import Page
from equipoise.report.sections.sweep import SECTIONS
from equipoise.report.sections.sweep import head as sweep
from equipoise.report.words import printable

SWEEP: Final[Page[SweepNow]] = Page(
    title=lambda now: f"Sweep: {printable(now.swept.name)}",
    about=sweep.about,
    headline=sweep.headline,
    summary=sweep.summary,
    sections=SECTIONS,
    closing=sweep.closing,
)

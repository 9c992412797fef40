"""The sections of the page of watched loops, in reading order."""

from typing import Final

from equipoise.advice.measured.watched_now import WatchedNow
from equipoise.report.section import Section
from equipoise.report.sections.watched import course, phases, ranks, runs

SECTIONS: Final[tuple[Section[WatchedNow], ...]] = (
    runs.SECTION,
    phases.SECTION,
    course.SECTION,
    ranks.SECTION,
)

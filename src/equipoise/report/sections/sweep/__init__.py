"""The sections of a sweep's page, in reading order. A new one is a file here and a line in SECTIONS."""

from typing import Final

from equipoise.advice.measured.sweep_now import SweepNow
from equipoise.report.section import Section
from equipoise.report.sections.sweep import failures, phases, steps, trainings

SECTIONS: Final[tuple[Section[SweepNow], ...]] = (
    steps.SECTION,
    phases.SECTION,
    trainings.SECTION,
    failures.SECTION,
)

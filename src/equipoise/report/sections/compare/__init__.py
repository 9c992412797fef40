"""The sections of entries side by side, in reading order. A new one is a file here and a line in SECTIONS."""

from typing import Final

from equipoise.report.section import Section
from equipoise.report.sections.compare import curves, figures, lost, side
from equipoise.study.findings import ComparedFindings

SECTIONS: Final[tuple[Section[ComparedFindings], ...]] = (
    side.SECTION,
    curves.SECTION,
    lost.SECTION,
    figures.SECTION,
)

"""The sections of a page on what money and time are enough for. A new one is a file here and a line below."""

from typing import Final

from equipoise.findings import ReachFindings
from equipoise.report.section import Section
from equipoise.report.sections.reach import answer, ground, sizes

SECTIONS: Final[tuple[Section[ReachFindings], ...]] = (answer.SECTION, sizes.SECTION, ground.SECTION)

"""The sections of a topology's page, in reading order. A new one is a file here and a line in SECTIONS."""

from typing import Final

from equipoise.advice.links.links import Meaning
from equipoise.report.section import Section
from equipoise.report.sections.topology import gains, groups, matrix, rates

SECTIONS: Final[tuple[Section[Meaning], ...]] = (
    matrix.SECTION,
    rates.SECTION,
    gains.SECTION,
    groups.SECTION,
)

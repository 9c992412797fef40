"""The sections of a report, in reading order. A new one is a file here and a line in SECTIONS."""

from typing import Final

from equipoise.report.section import Section
from equipoise.report.sections import (
    claims,
    energy,
    entries,
    method,
    pointers,
    shared,
    table_one,
    workloads,
)

SECTIONS: Final[tuple[Section, ...]] = (
    pointers.SECTION,
    claims.SECTION,
    table_one.SECTION,
    workloads.SECTION,
    shared.SECTION,
    energy.SECTION,
    entries.SECTION,
    method.SECTION,
)

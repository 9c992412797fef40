"""The sections of the study, in reading order. A new one is a file here and a line in SECTIONS."""

from typing import Final

from equipoise.report.section import Section
from equipoise.report.sections import (
    balance,
    batches,
    claims,
    energy,
    entries,
    losses,
    method,
    pointers,
    record,
    shared,
    table_one,
    workloads,
)
from equipoise.study.findings import Findings

SECTIONS: Final[tuple[Section[Findings], ...]] = (
    pointers.SECTION,
    claims.SECTION,
    table_one.SECTION,
    workloads.SECTION,
    losses.SECTION,
    batches.SECTION,
    balance.SECTION,
    record.SECTION,
    shared.SECTION,
    energy.SECTION,
    entries.SECTION,
    method.SECTION,
)

"""How wrong every kind of answer was: a section a kind. A new one is a file here and a line in SECTIONS."""

from typing import Final

from equipoise.report.section import Section
from equipoise.report.sections.accuracy import advised, forecasts, own, plans, steps
from equipoise.study.findings import AccuracyFindings

SECTIONS: Final[tuple[Section[AccuracyFindings], ...]] = (
    forecasts.SECTION,
    steps.SECTION,
    plans.SECTION,
    advised.SECTION,
    own.SECTION,
)

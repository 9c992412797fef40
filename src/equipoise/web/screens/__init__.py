"""Every page of the dashboard, in the order of the navigation. A new one is a record and a line below."""

from typing import Final

from equipoise.web import Screen
from equipoise.web.screens import decide, evidence

SCREENS: Final[tuple[Screen, ...]] = (
    decide.ADVICE,
    decide.PLAN,
    decide.ALLOCATE,
    evidence.COMPARE_SCREEN,
    evidence.RUNS_SCREEN,
    evidence.STUDY_SCREEN,
    evidence.ACCURACY_SCREEN,
)

"""Every page of the dashboard, in the order of the navigation. A new one is a file here and a line below."""

from typing import Final

from equipoise.web.screen import Screen
from equipoise.web.screens import decide, evidence, runs

SCREENS: Final[tuple[Screen, ...]] = (
    evidence.STUDY_SCREEN,
    evidence.COMPARE_SCREEN,
    decide.PLAN,
    runs.SCREEN,
    decide.ADVICE,
    evidence.ACCURACY_SCREEN,
)

"""Every page of the dashboard, in the order of the navigation. A new one is a file here and a line below."""

from typing import Final

from equipoise.web.screen import Screen
from equipoise.web.screens import accuracy, compare, decide, runs, study

SCREENS: Final[tuple[Screen, ...]] = (
    study.SCREEN,
    compare.SCREEN,
    decide.PLAN,
    runs.SCREEN,
    decide.ADVICE,
    accuracy.SCREEN,
)

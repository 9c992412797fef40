"""The page Accuracy: how wrong every kind of answer was."""

from contextlib import suppress
from typing import Final

from equipoise.decide.ledger import ledger_path
from equipoise.report.pages.accuracy import ACCURACY
from equipoise.study import accuracy
from equipoise.web.answer import Answer, shown
from equipoise.web.asked import AskedNothing
from equipoise.web.screen import Screen
from equipoise.web.sources import Sources


def _stamp(_: AskedNothing, __: Sources) -> str:
    """The ledger grows while the dashboard runs."""
    with suppress(OSError):
        found = ledger_path().stat()
        return f"{found.st_mtime_ns}:{found.st_size}"
    return ""


def _answer(_: AskedNothing, __: Sources) -> Answer:
    return shown(ACCURACY, accuracy())


SCREEN: Final = Screen(
    path="/accuracy",
    title="Accuracy",
    about="how wrong answers were",
    verb="Show",
    fields=lambda _, __: (),
    answer=_answer,
    stamp=_stamp,
)

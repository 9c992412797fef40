"""The page: a training loop that is watched."""

from typing import Final

from equipoise.advice.measured.watched_now import WatchedNow
from equipoise.report.page import Page
from equipoise.report.sections.watched import SECTIONS
from equipoise.report.sections.watched import head as watched
from equipoise.report.words import printable

WATCHED: Final[Page[WatchedNow]] = Page(
    title=lambda now: f"Watched: {printable(now.name)}",
    about=watched.about,
    headline=watched.headline,
    summary=watched.summary,
    sections=SECTIONS,
    closing=watched.closing,
)

"""The page: what joins the accelerators of a machine, and what that means."""

from typing import Final

from equipoise.advice.links.links import Meaning
from equipoise.report.page import Page
from equipoise.report.sections.topology import SECTIONS, matrix
from equipoise.report.words import printable

TOPOLOGY: Final[Page[Meaning]] = Page(
    title=lambda found: f"Topology: {matrix.headline(found)}",
    about=matrix.about,
    headline=matrix.headline,
    summary=matrix.summary,
    sections=SECTIONS,
    closing=lambda found: (
        "Read from what tools say; rates are those of like machines, not measured here.",
        f"Origin: {printable(found.topology.origin)}.",
    ),
)

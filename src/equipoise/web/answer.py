"""What a page answers: its content as HTML, and the same in one sentence for who listens."""

from dataclasses import dataclass

from equipoise.report.html import fragment
from equipoise.report.page import Page
from equipoise.report.section import Shown

OK = 200
REFUSED = 422
BUSY = 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer. title: of the window. said: its headline. body: HTML in UTF-8. status: of HTTP.

    is_waiting: whether it only says that the answer will come.
    """

    title: str
    said: str
    body: bytes
    status: int = OK
    is_waiting: bool = False


def shown(page: Page[Shown], findings: Shown, *, status: int = OK) -> Answer:
    """The answer that shows findings as the report does."""
    return Answer(
        title=page.title(findings),
        said=page.headline(findings),
        body=fragment(page, findings).encode(),
        status=status,
    )

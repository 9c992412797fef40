"""Pages that say why there is no answer: what was asked cannot be, or the evidence is too thin."""

from dataclasses import dataclass, replace
from typing import Final

from equipoise.errors import EvidenceError, InputError
from equipoise.report.blocks import Block, Bullets
from equipoise.report.page import Page
from equipoise.report.section import Section
from equipoise.report.words import capital, sentence
from equipoise.web.answer import OK, REFUSED, Answer, shown
from equipoise.web.labels import in_form
from equipoise.web.question import WrongFieldsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why there is no answer. about: what the page is of. missing: what would be enough."""

    about: str
    headline: str
    reasons: tuple[str, ...]
    missing: tuple[str, ...] = ()


def _missing(trouble: Trouble) -> tuple[Block, ...]:
    return (Bullets(items=tuple((sentence(each),) for each in trouble.missing)),)


PAGE: Final[Page[Trouble]] = Page(
    title=lambda trouble: trouble.headline,
    about=lambda trouble: trouble.about,
    headline=lambda trouble: trouble.headline,
    summary=lambda trouble: tuple(f"{sentence(each).rstrip('.')}." for each in trouble.reasons),
    sections=(Section(name="missing", title="What is missing", needs=("missing",), blocks=_missing),),
    closing=lambda _: (),
)


def refused(about: str, *reasons: str, status: int = REFUSED) -> Answer:
    """The page for what cannot be asked."""
    return _told(Trouble(about=about, headline="That cannot be answered", reasons=reasons), status)


def unanswered(about: str, err: InputError | EvidenceError) -> Answer:
    """The page for an error of what was given, or for evidence that is too thin."""
    if isinstance(err, WrongFieldsError):
        return refused(about, *err.reasons)
    if isinstance(err, InputError):
        return refused(about, in_form(str(err)))
    found = Trouble(
        about=about,
        headline="Not enough evidence",
        reasons=(capital(in_form(str(err))),),
        missing=tuple(map(in_form, err.missing)),
    )
    return _told(found, OK)


def _told(found: Trouble, status: int) -> Answer:
    # Without it, the page would say that the section of what is missing is missing.
    page = PAGE if found.missing else replace(PAGE, sections=())
    return shown(page, found, status=status)

"""Pages that say why there is no answer: what was asked cannot be, or the evidence is too thin."""

import re
from dataclasses import dataclass, replace
from typing import Final

from equipoise.errors import EvidenceError, InputError
from equipoise.report.blocks import Block, Bullets
from equipoise.report.page import Page
from equipoise.report.section import Section
from equipoise.report.words import capital, sentence
from equipoise.web.answer import OK, REFUSED, Answer, shown


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


# What complaints call by the options of the command line, by the label of its field.
FIELDS: Final = {
    "accelerator": "On",
    "accelerators": "Accelerators, at most",
    "max-accelerators": "Accelerators, at most",
    "most": "Accelerators, at most",
    "global-batch": "Global batch",
    "deadline": "Deadline",
    "budget": "Budget",
    "price": "USD an accelerator-hour",
    "tokens": "Tokens to train on",
    "precision": "Precision",
    "terms": "Rented",
    "region": "Electricity of",
    "electricity": "Electricity, USD a kWh",
    "pue": "Building over machines (PUE)",
    "queue": "Queue, hours",
    "ask": "How many",
    "tokens-per-param": "Tokens a parameter",
    "buy": "Buying",
    "purchase": "To buy one, USD",
    "hosting": "Room, USD a month",
    "utilisation": "Use, 0 to 1 of hours",
    "horizon": "Horizon, months",
}
_OPTION: Final = re.compile(rf"--({'|'.join(sorted(FIELDS, key=len, reverse=True))})(?![\w-])(?: [A-Z]+\b)?")


def _in_form(text: str) -> str:
    """A complaint in the words of the form.

    >>> _in_form("give --price or --global-batch N")
    'give “USD an accelerator-hour” or “Global batch”'
    """
    return _OPTION.sub(lambda found: f"“{FIELDS[found[1]]}”", text)


def refused(about: str, *reasons: str, status: int = REFUSED) -> Answer:
    """The page for what cannot be asked."""
    return _told(Trouble(about=about, headline="That cannot be answered", reasons=reasons), status)


def unanswered(about: str, err: InputError | EvidenceError) -> Answer:
    """The page for an error of what was given, or for evidence that is too thin."""
    if isinstance(err, InputError):
        return refused(about, _in_form(str(err)))
    found = Trouble(
        about=about,
        headline="Not enough evidence",
        reasons=(capital(_in_form(str(err))),),
        missing=tuple(map(_in_form, err.missing)),
    )
    return _told(found, OK)


def _told(found: Trouble, status: int) -> Answer:
    # Without it, the page would say that the section of what is missing is missing.
    page = PAGE if found.missing else replace(PAGE, sections=())
    return shown(page, found, status=status)

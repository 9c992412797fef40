"""What a kind of page is: how it names itself, its sections, its last words. pages.py has them all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic

from equipoise.report.blocks import Block
from equipoise.report.section import Section, Shown

# Rows that a table of one screen may have where nothing else needs their lines.
SCREEN_ROWS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Shown]):
    """One kind of page, for findings of one kind.

    title: of the window. about: what the page is about, above the headline. headline: one sentence that says
    what was found. summary: a few sentences more. sections: in reading order. closing: what it rests on and
    what it is not, at its end. brief: the blocks of one screen, from the findings and how many
    rows its tables may have at most; None where a page has no short form.
    """

    title: Callable[[Shown], str]
    about: Callable[[Shown], str]
    headline: Callable[[Shown], str]
    summary: Callable[[Shown], tuple[str, ...]]
    sections: tuple[Section[Shown], ...]
    closing: Callable[[Shown], tuple[str, ...]]
    brief: Callable[[Shown, int], tuple[Block, ...]] | None = None

    def content(self, findings: Shown) -> list[tuple[Section[Shown], tuple[Block, ...]]]:
        """The sections that have something to say, with what they say."""
        return [(section, section.blocks(findings)) for section in self.sections if section.applies(findings)]

    def left_out(self, findings: Shown) -> list[str]:
        """Titles of the sections for which there are no data."""
        wanted = [each for each in self.sections if not each.is_extra]
        return [section.title for section in wanted if not section.applies(findings)]

"""The seam of a page: a section is a title, the findings it needs, and its blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from equipoise.report.blocks import Block

Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section(Generic[Shown]):
    """One section of a page that shows findings of one kind, e.g. `Section[Findings]`.

    name: its anchor. needs: fields of the findings without which it has nothing to say. blocks: the content
    from the findings; it lays out and words, it computes nothing. lists_headings: whether the contents lead
    to its headings too. is_extra: left out without a word where nobody asked for it.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    blocks: Callable[[Shown], tuple[Block, ...]]
    lists_headings: bool = False
    is_extra: bool = False

    def applies(self, findings: Shown) -> bool:
        """Whether everything the section needs was found: neither None nor empty."""
        return all(getattr(findings, need) not in (None, (), "") for need in self.needs)

"""The seam of a report: a section is a title, the findings it needs, and its blocks."""

from collections.abc import Callable
from dataclasses import dataclass

from equipoise.findings import Findings
from equipoise.report.blocks import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section. name: its anchor. needs: fields of Findings without which it has nothing to say.

    blocks: the section's content from the findings; it lays out and words, it computes nothing.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    blocks: Callable[[Findings], tuple[Block, ...]]

    def applies(self, findings: Findings) -> bool:
        """Whether everything the section needs was found: neither None nor empty."""
        return all(getattr(findings, need) not in (None, (), "") for need in self.needs)

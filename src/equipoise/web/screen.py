"""What a page of the dashboard is: its place, the fields of its form, how it answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from equipoise.report.markup import Html
from equipoise.web.answers import PageAnswer
from equipoise.web.controls import Control, Given
from equipoise.web.sources import DataSources


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What changes by itself. html: as it is now. every_s: how soon to ask again."""

    html: Html
    every_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """One page. path: its address. title: in the navigation. about: what it answers, in words.

    fields: of the form, as the address fills them. answer: from a query that was checked; raises the errors
    of input and evidence. stamp: changes when what it read has. depends: names of fields whose choices
    depend on other fields. verb: of the button. live: what changes by itself; None where nothing does.
    is_transient: its state changes too often for the history. reads_disk: fields, stamp and live look at
    folders, which may be slow.
    """

    path: str
    title: str
    about: str
    verb: str
    fields: Callable[[Given, DataSources], tuple[Control, ...]]
    answer: Callable[[Any, DataSources], PageAnswer]
    stamp: Callable[[Any, DataSources], str] = lambda _, sources: sources.stamp()
    depends: tuple[str, ...] = ()
    live: Callable[[Any, DataSources], Live | None] | None = None
    is_transient: bool = False
    reads_disk: bool = False

    @property
    def form_label(self) -> str:
        """The form's name for screen readers."""
        return f"{self.title}: {self.about}"

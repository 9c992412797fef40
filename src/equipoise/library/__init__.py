"""The Python functions: a question in, a result out that shows itself. `equipoise/__init__.py` names them.

A result is the record of an answer, and the forms in which it is shown.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import orjson
from msgspec import Struct

from equipoise.errors import UsageError
from equipoise.report.blocks import Page
from equipoise.report.json import document, encode

if TYPE_CHECKING:
    import polars as pl


Record = TypeVar("Record")


class Presentation(Struct, Generic[Record], frozen=True, kw_only=True):
    """How the records of one verb are shown. fields: of its document; columns, rows: of its table.

    made_by: what makes it, by which a copy in another process finds it: it is made of functions.
    """

    verb: str
    fields: Callable[[Record], Mapping[str, Any]]
    columns: Mapping[str, type]
    rows: Callable[[Record], list[dict[str, Any]]]
    page: Page[Record]
    made_by: "Callable[[], Presentation[Record]]"

    def __reduce__(self) -> "tuple[Callable[[], Presentation[Record]], tuple[()]]":
        """The function that makes it."""
        return self.made_by, ()


class Result(Struct, Generic[Record], frozen=True, kw_only=True):
    """A record, and how it is shown: as text, in a notebook, as a table, a figure, a document or a page."""

    record: Record
    presentation: Presentation[Record]

    def __eq__(self, other: object) -> bool:
        """Whether both have the same document: records hold arrays, which have no truth value."""
        if not isinstance(other, Result):
            return NotImplemented
        same_verb = self.presentation.verb == other.presentation.verb
        return self is other or (same_verb and self.to_json() == other.to_json())

    def __hash__(self) -> int:
        """Of the document, as equality is."""
        return hash(self.to_json())

    def __repr__(self) -> str:
        """What was asked, and what to do: two lines."""
        page = self.presentation.page
        return f"{self.presentation.verb}: {page.about(self.record)}\n{page.headline(self.record)}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer on one screen."""
        from equipoise.report import html  # noqa: PLC0415 - only for a page

        return str(html.notebook_html(self.presentation.page, self.record))

    def frame(self) -> "pl.DataFrame":
        """A table, a row per candidate; with `ask` per system, of `validate` per measured row, of `topology`
        per link and model.
        """
        import polars as pl  # noqa: PLC0415 - only for a table

        return pl.DataFrame(self.presentation.rows(self.record), schema=self.presentation.columns)

    def figure(self, name: str | None = None) -> Any:  # noqa: ANN401 - Figure
        """The first figure of the page, or the one of that name, as a `plotly.graph_objects.Figure`.

        Plotly comes with `equipoise[notebook]`. Raises UsageError where the page has no such figure, or
        Plotly is not installed.
        """
        from equipoise.report.figures import charts, python_figure  # noqa: PLC0415 - only for a figure

        found = charts(self.presentation.page, self.record)
        chart = next(iter(found.values()), None) if name is None else found.get(name)
        if chart is None:
            names = ", ".join(found) or "no figures"
            raise UsageError(f"no figure{'' if name is None else f' {name!r}'}: there are {names}")
        return python_figure(chart)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document that the verb prints with `--json`."""
        found: dict[str, Any] = orjson.loads(self.to_json())
        return found

    def fields(self) -> Mapping[str, Any]:
        """The fields of the document after its head."""
        return self.presentation.fields(self.record)

    def to_json(self) -> bytes:
        """The same as the bytes of a file."""
        return encode(document(self.presentation.verb, self.fields()))

    def to_html(self) -> str:
        """The whole page as the text of one HTML file that opens offline."""
        from equipoise.report import html  # noqa: PLC0415 - as above

        return html.render(self.presentation.page, self.record)

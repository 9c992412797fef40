"""The Python functions of `equipoise/__init__.py`: each takes a question and returns a result.

A result holds the record of an answer and can present it in several forms.
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
    """How the records of one verb are presented. fields: of its document. columns, rows: of its table.

    made_by: the function that creates it, which is pickled in its place, because it contains functions.
    """

    verb: str
    fields: Callable[[Record], Mapping[str, Any]]
    columns: Mapping[str, type]
    rows: Callable[[Record], list[dict[str, Any]]]
    page: Page[Record]
    made_by: "Callable[[], Presentation[Record]]"

    def __reduce__(self) -> "tuple[Callable[[], Presentation[Record]], tuple[()]]":
        """Pickle the function that creates it."""
        return self.made_by, ()


class Result(Struct, Generic[Record], frozen=True, kw_only=True):
    """A record that can be shown as text, in a notebook, as a table, a figure, a document or a page."""

    record: Record
    presentation: Presentation[Record]

    def __eq__(self, other: object) -> bool:
        """Whether both have the same document. Records contain arrays, which cannot be compared by `==`."""
        if not isinstance(other, Result):
            return NotImplemented
        same_verb = self.presentation.verb == other.presentation.verb
        return self is other or (same_verb and self.to_json() == other.to_json())

    def __hash__(self) -> int:
        """Hash of the document, consistent with equality."""
        return hash(self.to_json())

    def __repr__(self) -> str:
        """The question and the headline, on two lines."""
        page = self.presentation.page
        return f"{self.presentation.verb}: {page.about(self.record)}\n{page.headline(self.record)}"

    def _repr_html_(self) -> str:
        """The short form of the answer, for a notebook."""
        from equipoise.report import html  # noqa: PLC0415 - only for a page

        return str(html.notebook_html(self.presentation.page, self.record))

    def frame(self) -> "pl.DataFrame":
        """A table with one row per candidate; with `ask` one per system, for `validate` one per measured row,
        for `topology` one per link class and model.
        """
        import polars as pl  # noqa: PLC0415 - only for a table

        return pl.DataFrame(self.presentation.rows(self.record), schema=self.presentation.columns)

    def figure(self, name: str | None = None) -> Any:  # noqa: ANN401 - Figure
        """The first figure of the page, or the one called `name`, as a `plotly.graph_objects.Figure`.

        Plotly comes with `equipoise[notebook]`. Raises UsageError if the page has no such figure, or if
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
        """The JSON document as the bytes of a file."""
        return encode(document(self.presentation.verb, self.fields()))

    def to_html(self) -> str:
        """The whole page as the text of one HTML file that works offline."""
        from equipoise.report import html  # noqa: PLC0415 - as above

        return html.render(self.presentation.page, self.record)

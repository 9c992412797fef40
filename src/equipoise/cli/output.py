"""How a verb answers.

One JSON document or text, files, progress on standard error.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from msgspec import Struct

from equipoise import errors
from equipoise.files import expect_place, written

if TYPE_CHECKING:
    from equipoise.report.blocks import Page, Shown

_STDOUT, _STDERR = 1, 2
_STYLE: Final = re.compile(r"(\x1b\[[0-9;]*m)")


class VerbOutput(Struct, frozen=True, kw_only=True):
    """Where the answer of one verb goes.

    as_json: the document goes to standard output instead of text. json_out: it goes to this file besides.
    html: the file of the page, where there is one.
    """

    verb: str
    as_json: bool
    json_out: Path | None
    html: Path | None = None

    def give_page(
        self,
        page: "Page[Shown]",
        record: "Shown",
        fields: Callable[["Shown"], Mapping[str, Any]] | None = None,
        *,
        full: bool = True,
    ) -> None:
        """Write a record in the forms asked for: its page as HTML and as text, and its document.

        fields: of the document; those of the record unless given. full: the whole page as text; else one
        screen, where it has a short form.
        """
        if self.html is not None:
            from equipoise.report.html import render

            with written(self.html) as file:
                file.write(render(page, record).encode())
        self.give(lambda: (fields or _fields_of)(record), lambda: page_text(page, record, full=full))

    def give(self, fields: Callable[[], Mapping[str, Any]], show: Callable[[], str | bytes]) -> None:
        """Write the answer; `fields` and `show` are only called where their form is wanted.

        fields: of the document, after its head. show: the text for people, or the bytes of a table.
        """
        if self.as_json or self.json_out:
            self.write_document(fields())
        if not self.as_json:
            write(show())

    def write_document(self, fields: Mapping[str, Any]) -> None:
        """Put the document of these fields where it was asked for."""
        from equipoise.report.document import document, encode

        encoded = encode(document(self.verb, fields))
        if self.json_out:
            with written(self.json_out) as file:
                file.write(encoded)
        if self.as_json:
            write(encoded)


def _fields_of(record: object) -> Mapping[str, Any]:
    from equipoise.report.json import fields_of

    return fields_of(record)


def page_text(page: "Page[Shown]", record: "Shown", *, full: bool = True) -> str:
    """A page as text: with colour only on a terminal that wants it, at 80 columns when piped.

    full: all of it; else one screen, where the page has a short form.
    """
    from rich.console import Console

    from equipoise.report.terminal import render

    console = Console(width=width_columns(), highlight=False, markup=False)
    with console.capture() as capture:
        render(page, record, console, full=full)

    lines = capture.get().rstrip("\n").split("\n")
    return "".join(f"{_shown_line(line)}\n" for line in lines)


def _shown_line(line: str) -> str:
    """A line in which only this program's own styles cannot be seen, whatever names are in it."""
    from equipoise.report.format import visible

    parts = _STYLE.split(line.rstrip())
    return "".join(part if place % 2 else visible(part) for place, part in enumerate(parts))


@contextmanager
def answering(
    verb: str, *, as_json: bool, json_out: Path | None, html: Path | None = None
) -> Iterator[VerbOutput]:
    """The answer of a verb; too little evidence is written to its document too, with what is missing."""
    answer = VerbOutput(verb=verb, as_json=as_json, json_out=json_out, html=html)
    for path in filter(None, (json_out, html)):
        expect_place(path)
    try:
        yield answer
    except errors.EvidenceError as err:
        if as_json or json_out:
            missing = {"status": "not_enough_evidence", "reason": str(err), "missing": list(err.missing)}
            answer.write_document(missing)
        raise


def write(content: str | bytes) -> None:
    """Put it on standard output; when its reader has left, as `head` does, stop without a word."""
    if isinstance(content, str):
        content = content.encode(sys.stdout.encoding or "utf-8", errors="replace")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError as err:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from err


@contextmanager
def answers_only() -> Iterator[None]:
    """Standard output for the answer alone: what a user's own code prints meanwhile goes to standard
    error.
    """
    sys.stdout.flush()
    own = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(own, _STDOUT)
        os.close(own)


def printable(text: str) -> str:
    """Text from data, safe on a terminal: control characters become visible escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def width_columns() -> int:
    """How wide text may be: COLUMNS, else the terminal, else 80."""
    return shutil.get_terminal_size((80, 24)).columns


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """A callback (what, done, total) that draws one bar on standard error; None when that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=escape(printable(what)), completed=done, total=total)

        yield show

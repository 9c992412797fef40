"""How a verb answers.

One JSON document or text, tables for other programs, files, progress on standard error.
"""

import io
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

import typer
from msgspec import Struct

from equipoise import errors
from equipoise.files import expect_place, written
from equipoise.units import format_duration

if TYPE_CHECKING:
    import polars as pl

    from equipoise.report.blocks import Page, Shown
    from equipoise.runs.store import Writer

_STDOUT, _STDERR = 1, 2
_SCREEN_LINES: Final = 25
# A word that no name is as long as: a path of a file is shown whole.
_LONG_WORD: Final = re.compile(r"(\S{1000})\S+")
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
        from equipoise.report.json import document, encode

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

    # On a dumb terminal rich takes 80 columns unless it is given both.
    console = Console(width=width_columns(), height=_SCREEN_LINES, highlight=False, markup=False)
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
    if json_out is not None and html is not None and json_out.resolve() == html.resolve():
        raise errors.UsageError(f"--json-out and --html both name {html}: give each a file of its own")
    try:
        yield answer
    except errors.EvidenceError as err:
        if as_json or json_out:
            missing = {"status": "not_enough_evidence", "reason": str(err), "missing": list(err.missing)}
            answer.write_document(missing)
        raise


def write(content: str | bytes) -> None:
    """Put it on standard output; when its reader has left, as `head` does, stop without a word.

    Of documents and tables, which hold texts as they are, a terminal gets what cannot be seen as escapes.
    """
    if isinstance(content, bytes) and sys.stdout.isatty():
        from equipoise.report.format import visible

        content = visible(content.decode(errors="replace").replace("\r", r"\r"))
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
    """Text from data, safe on a terminal: control characters become visible escapes, long words are cut."""
    text = _LONG_WORD.sub(r"\1…", text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def width_columns() -> int:
    """How wide text may be: COLUMNS, else the terminal, else 80."""
    return shutil.get_terminal_size((80, 24)).columns


# A log gains a line so often; on a terminal the line is drawn again so often.
LOG_EVERY_S: Final = 30.0
DRAW_EVERY_S: Final = 0.5
_BAR_COLUMNS = 12
# Larger totals are bytes or shares, of which a percentage says more.
_MOST_COUNTED = 999
_CLEARED = "\r\x1b[K"


class ProgressLine:
    """How far a verb is and how long the rest takes, as one line of text."""

    def __init__(self) -> None:
        """Nothing is known before the first update."""
        self._begun_s = self._updated_s = time.monotonic()
        self._what, self._done, self._total, self._first_done = "", 0, 0, 0
        self._left_s: float | None = None

    def update(self, what: str, done: int, total: int, *, left_s: float | None = None) -> None:
        """Note what is under way and how much of the total is done; 0 where the total is not known.

        left_s: seconds that the rest takes; unless given, at the pace since the first update.
        """
        now_s = time.monotonic()
        if not self._total:
            self._begun_s, self._first_done = now_s, done
        if left_s is None and done > self._first_done:
            left_s = (now_s - self._begun_s) * (total - done) / (done - self._first_done)
        # Between two parts that end, what is under way may change: the time that was left goes on running.
        if left_s is not None and (left_s, done) != (self._left_s, self._done):
            self._left_s, self._updated_s = left_s, now_s
        self._what, self._done, self._total = what, done, total

    def text(self, *, bar_columns: int = 0) -> str:
        """The line; empty before the first update. bar_columns: of the bar before it."""
        if not self._what and not self._total:
            return ""
        parts = []
        if self._total:
            share = min(1.0, self._done / self._total)
            is_counted = self._total <= _MOST_COUNTED
            parts = [f"{self._done}/{self._total}" if is_counted else f"{share:.0%}"]
            filled = round(share * bar_columns)
            if bar_columns:
                parts[0] = f"[{'#' * filled}{'-' * (bar_columns - filled)}] {parts[0]}"
        left_s = None if self._left_s is None else self._left_s - (time.monotonic() - self._updated_s)
        if left_s is not None and left_s >= 1.0:
            parts.append(f"{format_duration(float(round(left_s)))} left")
        else:
            parts.append(f"{format_duration(float(round(time.monotonic() - self._begun_s)))} so far")
        return f"{', '.join(parts)}; {printable(self._what)}" if self._what else ", ".join(parts)


@contextmanager
def progress_line() -> Iterator[ProgressLine]:
    """A line on standard error for as long as the block runs: drawn again and again on a terminal, which is
    left as it was; elsewhere, as in a log, a plain line every half a minute.
    """
    line, over = ProgressLine(), Event()
    is_drawn = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def show() -> None:
        while not over.wait(DRAW_EVERY_S if is_drawn else LOG_EVERY_S):
            text = line.text(bar_columns=_BAR_COLUMNS if is_drawn else 0)
            if text and is_drawn:
                say(f"{_CLEARED}{text[: width_columns() - 1]}")
            elif text:
                say(f"equipoise: {text}\n")

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield line
    finally:
        over.set()
        thread.join()
        if is_drawn:
            say(_CLEARED)


def say(text: str) -> None:
    """Put it on standard error, where somebody reads it."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def handed_out(frame: "pl.DataFrame", format_: str | None, out: Path | None, *, as_json: bool) -> bytes:
    """A frame in the format asked for or of the file's name, else CSV: its bytes, or where they were written.

    Raises UsageError when the form is unknown or two answers would share standard output.
    """
    writer = _writer(format_ or (out.suffix.removeprefix(".") if out else "") or "csv")
    if out:
        with written(out) as file:
            writer.write(frame, file)
        return f"{out}: {frame.height} rows\n".encode()
    if as_json:
        raise errors.UsageError(
            "--json and --format both claim standard output; give --out FILE to one of them"
        )
    if writer.name == "parquet" and sys.stdout.isatty():
        raise errors.UsageError("parquet is not text; give --out FILE or send the output to a file")
    buffer = io.BytesIO()
    writer.write(frame, buffer)
    return buffer.getvalue()


def _writer(name: str) -> "Writer":
    """The writer of that name or file suffix."""
    from equipoise.runs.store import WRITERS

    for writer in WRITERS:
        if name in {writer.name, writer.suffix.removeprefix(".")}:
            return writer
    known = ", ".join(writer.name for writer in WRITERS)
    raise errors.UsageError(f"format {name!r}: tables are not written in it; expected one of {known}")

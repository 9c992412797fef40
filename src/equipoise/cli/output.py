"""Input and output of verbs.

Output: one JSON document or text, tables for other programs, files, and progress on standard error. Input:
the options that verbs share, generated from their declarations.
"""

import inspect
import io
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from equipoise import errors
from equipoise.cli.app import printable, was_interrupted, write
from equipoise.cli.options import INPUTS, OUTPUTS, asked_parameter
from equipoise.decide.question.field import Verb
from equipoise.decide.question.query import FIELDS, fields_of
from equipoise.files import expect_place, resolved, written
from equipoise.units import format_duration, plural, whole_percent

if TYPE_CHECKING:
    import polars as pl

    from equipoise.report.blocks import Page, Shown
    from equipoise.runs.store import Writer
    from equipoise.spec.catalogue import Catalogue

_STDOUT, _STDERR = 1, 2
_SCREEN_LINES: Final = 25
_STYLE: Final = re.compile(r"(\x1b\[[0-9;]*m)")


class Output(Struct, frozen=True, kw_only=True):
    """Where the answer of a verb is written, and how much of it is printed.

    as_json: print the document instead of text. json_out: also write the document to this file. html: write
    the page to this file. full: print the whole page instead of the short form. recorded: store its
    predictions in the user's ledger. launch: the folder for files that run the recommended strategy.
    allow_code: files may name code, which is run.
    """

    verb: str
    html: Path | None = None
    as_json: bool = False
    json_out: Path | None = None
    full: bool = False
    recorded: bool = False
    launch: Path | None = None
    allow_code: bool = False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Context in which an answer is made and written; insufficient evidence is also written as document.

        Raises UsageError at the start if a file cannot be written.
        """
        for path in filter(None, (self.json_out, self.html)):
            expect_place(path)
        try:
            yield
        except errors.EvidenceError as err:
            if self.as_json or self.json_out:
                from equipoise.report.json import missing_fields

                self._write_document(missing_fields(err))
            raise

    def give_page(
        self,
        page: "Page[Shown]",
        record: "Shown",
        fields: Callable[["Shown"], Mapping[str, Any]] | None = None,
    ) -> None:
        """Write a record in the requested forms: its page as HTML and as text, and its document.

        fields: makes the fields of the document; by default those of the record.
        """
        if self.html is not None:
            from equipoise.report.html import render

            with written(self.html) as file:
                file.write(render(page, record).encode())
        self._give(lambda: (fields or _fields_of)(record), lambda: page_text(page, record, full=self.full))

    def give_table(
        self,
        frame: "pl.DataFrame",
        format_: str | None,
        out: Path | None,
        fields: Callable[["pl.DataFrame"], Mapping[str, Any]],
    ) -> None:
        """Write a frame in the requested format, else by the file's suffix, else CSV; and its document.

        Raises UsageError if the format is unknown or if two outputs would share standard output.
        """
        is_document_alone = self.as_json and not (format_ or out)
        table = b"" if is_document_alone else _handed_out(frame, format_, out, as_json=self.as_json)
        self._give(lambda: fields(frame), lambda: table)

    def _give(self, fields: Callable[[], Mapping[str, Any]], show: Callable[[], str | bytes]) -> None:
        """Write the answer; `fields` and `show` are only called if their form is requested.

        fields: makes the fields of the document after its head. show: makes the text or the bytes of a table.
        """
        if self.as_json or self.json_out:
            self._write_document(fields())
        if not self.as_json:
            write(show())

    def _write_document(self, fields: Mapping[str, Any]) -> None:
        """Write the document with these fields to the requested places."""
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
    """A page as text: with colour only on a terminal that supports it, at 80 columns when piped.

    full: the whole page; otherwise its short form, if it has one.
    """
    from rich.console import Console

    from equipoise.report.terminal import render

    # On a dumb terminal, rich assumes 80 columns unless both width and height are given.
    console = Console(
        width=max(width_columns(), _LEAST_COLUMNS), height=_SCREEN_LINES, highlight=False, markup=False
    )
    with console.capture() as capture:
        render(page, record, console, full=full)

    lines = capture.get().rstrip("\n").split("\n")
    return "".join(f"{_shown_line(line)}\n" for line in lines)


def _shown_line(line: str) -> str:
    """A line whose only invisible characters are this program's own styles, whatever names it contains."""
    from equipoise.report.format import visible

    parts = _STYLE.split(line.rstrip())
    return "".join(part if place % 2 else visible(part) for place, part in enumerate(parts))


@contextmanager
def answers_only() -> Iterator[None]:
    """Context in which output of the user's own code goes to standard error, so that standard output only has
    the answer.
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


# Narrower tables have no room for a name and a number, so text is at least this wide and may overflow.
_LEAST_COLUMNS: Final = 40


def width_columns() -> int:
    """The width of text in columns: COLUMNS, else that of the terminal, else 80."""
    return shutil.get_terminal_size((80, 24)).columns


# Interval between progress lines in a log, and between updates of the line on a terminal.
LOG_EVERY_S: Final = 30.0
DRAW_EVERY_S: Final = 0.5
_BAR_COLUMNS = 12
# Larger totals are bytes or shares and shown as a percentage.
_MOST_COUNTED = 999
_CLEARED = "\r\x1b[K"


class ProgressLine:
    """The progress of a verb and the remaining time, as one line of text."""

    def __init__(self) -> None:
        """Create a line without progress."""
        self._begun_s = self._updated_s = time.monotonic()
        self._what, self._done, self._total, self._first_done = "", 0, 0, 0
        self._left_s: float | None = None

    def update(self, what: str, done: int, total: int, *, left_s: float | None = None) -> None:
        """Update the current activity and the amount done. total: 0 if unknown.

        left_s: remaining seconds; by default extrapolated from the pace since the first update.
        Raises KeyboardInterrupt if a Ctrl-C was pressed and compiled code swallowed it.
        """
        if was_interrupted() and current_thread() is main_thread():
            raise KeyboardInterrupt
        now_s = time.monotonic()
        if not self._total:
            self._begun_s, self._first_done = now_s, done
        if left_s is None and done > self._first_done:
            left_s = (now_s - self._begun_s) * (total - done) / (done - self._first_done)
        # Between completed parts only the activity may change; the remaining time then keeps counting down.
        if left_s is not None and (left_s, done) != (self._left_s, self._done):
            self._left_s, self._updated_s = left_s, now_s
        self._what, self._done, self._total = what, done, total

    def text(self, *, bar_columns: int = 0) -> str:
        """The line; empty before the first update. bar_columns: width of the bar before it."""
        if not self._what and not self._total:
            return ""
        parts = []
        if self._total:
            share = min(1.0, self._done / self._total)
            is_counted = self._total <= _MOST_COUNTED
            parts = [f"{self._done}/{self._total}" if is_counted else whole_percent(share)]
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
    """Context with a progress line on standard error: redrawn and finally erased on a terminal; elsewhere, as
    in a log, one plain line every half a minute.
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
    """Write to standard error, ignoring errors if nobody reads it."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _handed_out(frame: "pl.DataFrame", format_: str | None, out: Path | None, *, as_json: bool) -> bytes:
    """The bytes of a frame in a format, or a line that says where they were written."""
    writer = _writer(format_ or (out.suffix.removeprefix(".") if out else "") or "csv")
    if out:
        with written(out) as file:
            writer.write(frame, file)
        return f"{printable(str(out))}: {plural(frame.height, 'row')}\n".encode()
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
    """The writer with a name or file suffix."""
    from equipoise.runs.store import WRITERS

    for writer in WRITERS:
        if name in {writer.name, writer.suffix.removeprefix(".")}:
            return writer
    known = ", ".join(writer.name for writer in WRITERS)
    raise errors.UsageError(f"format {name!r}: tables are not written in it; expected one of {known}")


Options: TypeAlias = Mapping[str, object]  # by option, as typed; None, False and empty mean not given


class InputFiles(Struct, frozen=True, kw_only=True):
    """The inputs of a verb: data of `--data` and `--also`, catalogue of `--hardware` and `--workloads`.

    own_catalogue: None for the shipped one.
    """

    data: Path | None = None
    also: tuple[Path, ...] = ()
    own_catalogue: "Catalogue | None" = None

    @property
    def catalogue(self) -> "Catalogue":
        """The catalogue for resolving names."""
        from equipoise.spec.catalogue import shipped

        return self.own_catalogue or shipped()


JSON: Final = ("as_json", "json_out")
PAGE: Final = ("html", "full", *JSON)
NAMES: Final = ("hardware", "workloads")
RESULTS: Final = ("data", "also", *NAMES)


def stated(**options: Any) -> dict[str, Any]:  # noqa: ANN401 - each option has its own type
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def verb(
    *,
    asks: Verb | None = None,
    reads: Sequence[str] = (),
    outputs: Sequence[str] = JSON,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that adds shared options to a function, which receives them as records.

    asks: the verb whose question's fields are received as Options. reads: the options of INPUTS, received as
    InputFiles. outputs: the options of OUTPUTS, received as Output. These records are positional arguments,
    in this order; the function's own options are keyword arguments.
    """

    def with_options(answer: Callable[..., None]) -> Callable[..., None]:
        asked = {} if asks is None else fields_of(asks)
        own = [*inspect.signature(answer, eval_str=True).parameters.values()]

        def run(**options: Any) -> None:  # noqa: ANN401 - each option has its own type
            _expect_inputs_kept(options)
            given: list[object] = []
            if asked:
                given.append({FIELDS[name].key: options.pop(name) for name in asked})
            if reads:
                given.append(_inputs({name: options.pop(name) for name in reads}))
            if outputs:
                shown = {name: options.pop(name) for name in outputs}
                given.append(Output(verb=answer.__name__.rstrip("_"), **shown))
            answer(*given, **options)

        parameters = [
            *own[sum(map(bool, (asked, reads, outputs))) :],
            *(asked_parameter(name, each) for name, each in asked.items()),
            *(INPUTS[name] for name in reads),
            *(OUTPUTS[name] for name in outputs),
        ]
        parameters.sort(key=lambda each: each.default is not inspect.Parameter.empty)
        run.__name__ = run.__qualname__ = answer.__name__
        run.__doc__, run.__module__ = answer.__doc__, answer.__module__
        run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as inspect reads it
        return run

    return with_options


# Options that name an output file, and suffixes of data files in an input folder.
_WRITTEN: Final = ("html", "json_out", "out")
_OF_DATA: Final = (".parquet", ".csv", ".tsv")


def _expect_inputs_kept(options: Mapping[str, Any]) -> None:
    """Raise UsageError if an output file would overwrite the input or output of another option."""
    outputs = {name: Path(options[name]) for name in _WRITTEN if options.get(name)}
    taken: dict[Path, str] = {}
    for name, path in outputs.items():
        option = f"--{name.replace('_', '-')}"
        other = taken.setdefault(resolved(path), option)
        if other != option:
            raise errors.UsageError(f"{other} and {option} both name {path}: give each a file of its own")
    inputs = [
        Path(each)
        for name, value in options.items()
        if name not in outputs
        for each in (value if isinstance(value, list | tuple) else (value,))
        if isinstance(each, str | Path)
    ]
    if outputs and (options.get("recorded") or "ledger" in options):
        from equipoise.decide.ledger import ledger_path

        inputs.append(ledger_path())
    for name, path in outputs.items():
        read = next((each for each in inputs if _is_part(path, each)), None)
        if read is not None:
            option = f"--{name.replace('_', '-')}"
            raise errors.UsageError(
                f"{option} {path}: would replace what is read from {read}; give {option} a file of its own"
            )


def _is_part(path: Path, read: Path) -> bool:
    """Whether a file is an input, or data in an input folder."""
    try:
        if not path.is_file():
            return False
        if read.is_dir():
            return path.suffix.lower() in _OF_DATA and resolved(read) in resolved(path).parents
        return read.is_file() and path.samefile(read)
    except (OSError, ValueError):  # not a valid path
        return False


def _inputs(given: Mapping[str, Any]) -> InputFiles:
    """The named inputs. Reads the files of `--hardware` and `--workloads`; raises SpecError for these."""
    own = None
    files = [tuple(given.get(name) or ()) for name in NAMES]
    if any(files):
        from equipoise.spec.catalogue import catalogue

        own = catalogue(*files)
    return InputFiles(data=given.get("data"), also=tuple(given.get("also") or ()), own_catalogue=own)

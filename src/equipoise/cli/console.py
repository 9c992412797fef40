"""Drawing with rich: the report as text, and progress on standard error. Loaded only by verbs that draw."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from equipoise.cli.output import printable, width_columns

if TYPE_CHECKING:
    from equipoise.study.findings import Findings


def headline(findings: "Findings", path: Path) -> str:
    """What was found in a few lines, and the file that holds the rest."""
    paragraphs = (findings.headline, *findings.summary, f"The whole study: {path}")
    width = width_columns()
    return "".join(f"{fill(printable(text), width, subsequent_indent='  ')}\n" for text in paragraphs)


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

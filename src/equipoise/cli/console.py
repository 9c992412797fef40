"""Drawing with rich: the report as text, and progress on standard error. Loaded only by verbs that draw."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from equipoise.cli.output import width_columns


def drawn(draw: Callable[[Console], None]) -> str:
    """What is drawn, as text: with colour only on a terminal that wants it, at 80 columns when piped."""
    console = Console(width=width_columns(), highlight=False, markup=False)
    with console.capture() as capture:
        draw(console)
    return capture.get()


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A callback (what, done, total) that draws a bar on standard error, on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        tasks = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        yield show

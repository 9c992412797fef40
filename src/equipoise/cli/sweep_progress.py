"""How far a sweep is, on standard error: runs done, time left; and what is kept when it is stopped."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import fmean

from equipoise.bench.cell import Cell
from equipoise.bench.store import Store
from equipoise.bench.sweep import Progress
from equipoise.cli.output import counted, printable
from equipoise.errors import DataError, EquipoiseError
from equipoise.spec.catalogue import Catalogue
from equipoise.units import format_duration


@dataclass(slots=True)
class Pace:
    """What runs took, by number of ranks, and what the rest may take."""

    took_s: dict[int, list[float]] = field(default_factory=dict)

    def add(self, cell: Cell, seconds: float) -> None:
        """Remember what one run took."""
        self.took_s.setdefault(cell.num_ranks, []).append(seconds)

    def left_s(self, rest: Sequence[Cell]) -> float | None:
        """Seconds that the rest may take, each as the mean of its like; None before any has ended.

        Assumes runs of as many ranks take alike; others as the mean of all.
        Source: definition.
        """
        everything = [seconds for each in self.took_s.values() for seconds in each]
        if not everything:
            return None
        return sum(fmean(self.took_s.get(cell.num_ranks, everything)) for cell in rest)


def words(cell: Cell) -> str:
    """A run in words."""
    return (
        f"{cell.workload}, {cell.method} on {cell.num_ranks} at batch {cell.batch_samples}, "
        f"repetition {cell.repetition}"
    )


@contextmanager
def shown(cells: Sequence[Cell], store: Store) -> Iterator[Progress | None]:
    """A bar on standard error, fed by what it gives; None when that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    named = {cell.cell_id: cell for cell in cells}
    pace, running = Pace(), _Running()
    columns = (
        BarColumn(bar_width=12),
        TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task("", total=len(cells), left="")

        def show(what: str, done: int, total: int) -> None:
            cell = named.get(what)
            if cell is not None or done == total:
                running.next(cell, pace)
            left_s = pace.left_s([each for each in cells if not store.has(each)])
            left = "" if left_s is None else f"{format_duration(left_s)} left"
            said = words(cell) if cell else what
            bar.update(task, description=escape(printable(said)), completed=done, total=total, left=left)

        yield show


@dataclass(slots=True)
class _Running:
    """The run that is under way, and since when."""

    cell: Cell | None = None
    since_s: float = 0.0

    def next(self, cell: Cell | None, pace: Pace) -> None:
        """One has ended, if one ran; another begins, if it is not None."""
        now_s = time.monotonic()
        if self.cell is not None:
            pace.add(self.cell, now_s - self.since_s)
        self.cell, self.since_s = cell, now_s


@contextmanager
def kept(store: Store, *, num_cells: int, catalogue: Catalogue | None = None) -> Iterator[None]:
    """Where a sweep is interrupted or cannot go on: its tables written, and how to go on said."""
    try:
        yield
    except (KeyboardInterrupt, DataError, OSError):
        _say_what_is_kept(store, num_cells, catalogue)
        raise


def _say_what_is_kept(store: Store, num_cells: int, catalogue: Catalogue | None) -> None:
    from equipoise.bench.tables import write_sweep_tables

    # The reason why the sweep stopped is shown; a second one of the same kind would hide it.
    with suppress(EquipoiseError, OSError):
        if store.finished():
            write_sweep_tables(store.folder, catalogue)
    num_kept = store.num_finished()
    if not num_kept:
        return
    runs = counted(num_cells, "run", "runs")
    folder = printable(str(store.folder))
    sys.stderr.write(f"{num_kept} of {runs} are kept in {folder}; the same command with --resume goes on\n")
    sys.stderr.flush()

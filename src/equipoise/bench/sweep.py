"""A sweep: its cells in random order, each run and on disk before the next begins. No torch."""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path

from equipoise.bench.cell import Cell
from equipoise.bench.environment import conditions, core_sets, refuse_unlike
from equipoise.bench.launchers.launcher import Job, Launcher, Outcome
from equipoise.bench.store import FAILED, SUCCESS, Finished, Store

Progress = Callable[[str, int, int], None]


def planned(
    *,
    workloads: Sequence[str],
    methods: Sequence[str],
    sizes: Sequence[int],
    batches: Sequence[int],
    num_repetitions: int,
    precision: str = "fp32",
    num_steps: int = 20,
    seed: int = 0,
) -> tuple[Cell, ...]:
    """Every combination, once a repetition; one rank is trained without any method, once.

    Raises UsageError for a combination that cannot be run.
    """
    cells = {}
    for workload, text, size, batch, repetition in product(
        workloads, methods, sizes, batches, range(1, num_repetitions + 1)
    ):
        cell = Cell(
            workload=workload,
            method="single" if size == 1 else text,
            num_ranks=size,
            batch_samples=batch,
            repetition=repetition,
            precision=precision,
            num_steps=num_steps,
            seed=seed,
        )
        cells[cell.cell_id] = cell
    return tuple(cells.values())


def in_random_order(cells: Iterable[Cell], *, seed: int) -> tuple[Cell, ...]:
    """The cells of every repetition shuffled, repetitions one after the other.

    Slow drifts of the machine then fall on all configurations alike.
    """
    rng = random.Random(seed)  # noqa: S311 - an order, no secret
    shuffled = sorted(cells, key=lambda cell: cell.cell_id)
    rng.shuffle(shuffled)
    return tuple(sorted(shuffled, key=lambda cell: cell.repetition))


def run_sweep(
    cells: Sequence[Cell],
    folder: Path,
    launch_with: Launcher,
    *,
    limit_s: float,
    resume: bool = False,
    progress: Progress | None = None,
) -> tuple[Finished, ...]:
    """Every cell finished, failed ones with their reasons; those on disk already are not run again.

    limit_s: how long a cell may take. Raises DataError when a cell cannot be put on disk, or when a sweep
    is resumed under other conditions.
    """
    store = Store(folder)
    most_ranks = max(cell.num_ranks for cell in cells)
    with store.opened(in_random_order(cells, seed=0), resume=resume):
        for leftover in folder.glob("running-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        order = store.plan()
        _refuse_other_machine(store, launch_with)
        for number, cell in enumerate(order):
            if progress:
                progress(cell.cell_id, number, len(order))
            if not store.has(cell):
                sets = core_sets(cell.num_ranks, most_ranks=most_ranks)
                found = conditions(core_sets=sets, launcher=launch_with.name)
                outcome = _outcome(cell, folder, sets, launch_with, limit_s=limit_s)
                store.add(
                    Finished(
                        cell=cell,
                        status=FAILED if outcome.result is None else SUCCESS,
                        reason=outcome.reason,
                        conditions=found,
                        result=outcome.result or {},
                    )
                )
        return store.finished()


def _refuse_other_machine(store: Store, launch_with: Launcher) -> None:
    """Refuse to go on where cells on disk were measured under other conditions."""
    before = [one.conditions for one in store.finished()][:1]
    if before:
        now = conditions(core_sets=(), launcher=launch_with.name)
        # Core sets are those of a cell: cells of other sizes have others.
        both = [{**each, "core_sets": None} for each in (before[0], now)]
        refuse_unlike(both, str(store.folder))


def _outcome(
    cell: Cell, folder: Path, sets: tuple[tuple[int, ...], ...], launch_with: Launcher, *, limit_s: float
) -> Outcome:
    """What came of one cell, in a folder of its own that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="running-", dir=folder, ignore_cleanup_errors=True) as own:
        job = Job(cell=cell, folder=Path(own), core_sets=sets, limit_s=limit_s)
        return launch_with.launch(job)

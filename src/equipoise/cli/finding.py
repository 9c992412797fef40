"""`equipoise bench --find`: what was asked for becomes a space of ways to train, which is searched."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.advice.measured.tune import Found
from equipoise.advice.measured.tuned import tuned
from equipoise.advice.measured.ways import EXACT, Space, default_methods, effect
from equipoise.bench.cell import Cell
from equipoise.bench.devices import device
from equipoise.bench.launchers.launcher import Launcher
from equipoise.bench.trials import Trials
from equipoise.cli.output import printable
from equipoise.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """How to look: runs on several ranks, repetitions of the best few, whether only for what is exact."""

    num_trials: int
    num_repetitions: int
    exact_only: bool


def strategies(given: str | None, *, exact_only: bool) -> str:
    """The ways to train that are searched: those named, or those searched by default.

    Raises UsageError where none of those named is exact and only such are wanted.
    """
    if given is None:
        return ",".join(default_methods(exact_only=exact_only))
    named = [item.strip() for item in given.split(",") if item.strip()]
    kept = [item for item in named if not exact_only or effect(item) == EXACT]
    if not kept:
        raise UsageError(f"--exact: none of {given} is exact; such as ddp, static_graph and fsdp are")
    return ",".join(kept)


def found(
    cells: Sequence[Cell],
    folder: Path,
    launch_with: Launcher,
    looked: Looked,
    *,
    limit_s: float,
    resume: bool,
) -> Found:
    """The fastest way that was found among the cells of a sweep, and one device alone.

    Raises UsageError for what is no one search, and as `tuned`.
    """
    if len({(cell.workload, cell.precision) for cell in cells}) != 1:
        raise UsageError("--find: expected one workload and one precision; each is a search of its own")
    if any(cell.train_samples is not None or cell.arm > 1 for cell in cells):
        raise UsageError("--find times steps: it goes with neither --train nor --aa")
    first = cells[0]
    space = Space(
        workload=first.workload,
        methods=tuple(dict.fromkeys(cell.method for cell in cells if cell.num_ranks > 1)),
        sizes=tuple(sorted({1, *(cell.num_ranks for cell in cells)})),
        batches=tuple(sorted({cell.batch_samples for cell in cells})),
        precision=first.precision,
        device=first.device,
        backend=device(first.device).backend,
        num_steps=first.num_steps,
    )
    trials = Trials(
        folder=folder,
        launch_with=launch_with,
        limit_s=limit_s,
        most_ranks=max(space.sizes),
        progress=_show if sys.stderr.isatty() else None,
    )
    return tuned(
        space,
        trials,
        num_trials=looked.num_trials,
        num_repetitions=looked.num_repetitions,
        resume=resume,
    )


def _show(what: str, done: int, total: int) -> None:
    """Say on standard error what is being run."""
    if what and done < total:
        sys.stderr.write(f"{printable(what)}\n")

"""Runs chosen one after another, each kept as a sweep of its own: none on disk is run again. No torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.bench.cell import Cell
from equipoise.bench.interference import Rivals, interference
from equipoise.bench.launchers.launcher import Launcher
from equipoise.bench.store import Finished, encoded, write_whole
from equipoise.bench.sweep import Progress, run_sweep
from equipoise.errors import DataError, UsageError

_PLAN_SCHEMA = "equipoise.trials/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """A folder of runs that are chosen on the way. most_ranks: by which cores are shared out."""

    folder: Path
    launch_with: Launcher
    limit_s: float
    most_ranks: int
    progress: Progress | None = None

    def begin(self, asked: dict[str, Any], *, resume: bool) -> None:
        """Keep what is asked for, or check that it is what was asked for before.

        Raises UsageError when the folder holds trials and `resume` is not given, or others.
        """
        path = self.folder / "trials.json"
        document = {"schema": _PLAN_SCHEMA, **asked}
        if not path.exists():
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as err:
                raise DataError(f"{self.folder}: cannot be written: {err.strerror or err}") from err
            write_whole(path, encoded(document))
            return
        if not resume:
            raise UsageError(f"{self.folder}: holds trials; take another --out or go on with --resume")
        if _read(path) != json.loads(encoded(document)):
            raise UsageError(
                f"{self.folder}: holds trials of other options; resume with those, or take another --out"
            )

    def measured(self, cells: Sequence[Cell]) -> tuple[Finished, ...]:
        """Every cell, run or found on disk. Raises DataError as `run_sweep`."""
        return tuple(
            finished
            for cell in cells
            for finished in run_sweep(
                [cell],
                self.folder / "runs" / cell.cell_id,
                self.launch_with,
                limit_s=self.limit_s,
                resume=True,
                progress=self.progress,
                most_ranks=self.most_ranks,
            )
        )

    def costs(self, asked: Rivals) -> dict[str, Any]:
        """The document of what messages between so many ranks cost, measured or found on disk."""
        num_ranks = asked.num_ranks
        path = self.folder / f"interference-{num_ranks}.json"
        if not path.exists():
            if self.progress:
                self.progress(f"messages between {num_ranks} ranks", 0, 1)
            write_whole(path, encoded(interference(asked, self.launch_with)))
        return _read(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as err:
        raise DataError(f"{path}: cannot be read ({err}); delete it to measure again") from err
    return found

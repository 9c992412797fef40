"""How far a sweep is, told from its folder by who does not run it: cells done, pace, time left. No torch."""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from equipoise.bench.store import Store
from equipoise.errors import DataError

_SWEEP = "sweep.json"
# Between two cells none is under way for a moment.
_PAUSE_S = 5.0
# The pace of the latest cells tells the time left: a machine may have become slower.
_MOST_PACED = 20
_MOST_SWEEPS = 200
_DEEPEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """One sweep as its folder tells it now.

    is_running: whether a process holds it. left_s: seconds that the rest takes at the pace of the latest
    cells; None before two have ended, or where nothing runs.
    """

    folder: Path
    num_planned: int
    num_finished: int
    is_running: bool
    left_s: float | None

    @property
    def is_whole(self) -> bool:
        """Whether every cell has ended."""
        return self.num_finished >= self.num_planned


def sweeps_below(folder: Path) -> tuple[Path, ...]:
    """The folder itself if a sweep is in it, and those one or two levels below; at most 200, by name."""
    return tuple(sorted(_sweeps(folder, _DEEPEST)))[:_MOST_SWEEPS]


def _sweeps(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / _SWEEP).is_file():
        yield folder
        return
    if depth == 0:
        return
    with suppress(OSError), os.scandir(folder) as found:
        for each in found:
            if each.is_dir(follow_symlinks=False):
                yield from _sweeps(Path(each.path), depth - 1)


def under_way(folder: Path) -> UnderWay:
    """How far the sweep in a folder is. Raises DataError where its plan cannot be read."""
    cells = Store(folder).plan()
    ended_s = _ended_s(folder)
    num_finished = min(len(ended_s), len(cells))
    is_running = num_finished < len(cells) and _is_running(folder, ended_s)
    left_s = None
    if is_running and len(ended_s) > 1:
        paces = [later - earlier for earlier, later in pairwise(ended_s[-_MOST_PACED:])]
        left_s = median(paces) * (len(cells) - num_finished)
    return UnderWay(
        folder=folder,
        num_planned=len(cells),
        num_finished=num_finished,
        is_running=is_running,
        left_s=left_s,
    )


def _ended_s(folder: Path) -> list[float]:
    """When each finished cell was put on disk, in order."""
    try:
        return sorted(each.stat().st_mtime for each in (folder / "cells").glob("*.json"))
    except OSError as err:
        raise DataError(f"{folder}: {err.strerror or err}; expected the cells of a sweep") from err


def _is_running(folder: Path, ended_s: Sequence[float]) -> bool:
    """Whether a process holds the sweep.

    A cell under way has a folder, which a killed sweep leaves behind: only then is the lock tried, for a
    moment, so that no sweep that begins finds it taken.
    """
    if any(folder.glob("running-*")):
        return _is_held(folder / "lock")
    return bool(ended_s) and 0.0 <= time.time() - ended_s[-1] < _PAUSE_S


def _is_held(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False

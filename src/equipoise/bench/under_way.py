"""How far a sweep is, told from its folder by who does not run it: cells done, pace, time left. No torch.

And where sweeps and watched loops are, below a folder.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from statistics import median

from equipoise.bench.store import WATCHED, Store
from equipoise.errors import DataError

_SWEEP = "sweep.json"
# Between two cells none is under way for a moment.
_PAUSE_S = 5.0
# The pace of the latest cells tells the time left: a machine may have become slower.
_MOST_PACED = 20
_MOST_FOLDERS = 200
_DEEPEST = 2
# Of one folder so many are looked at: somebody may name his home.
_MOST_ENTRIES = 2000
_MOST_PLANS = 256


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


def folders_below(folder: Path) -> tuple[Path, ...]:
    """The folder itself if runs are in it, and those one or two levels below; at most 200, by name."""
    return tuple(sorted(islice(_folders(folder, _DEEPEST), _MOST_FOLDERS)))


def is_watched(folder: Path) -> bool:
    """Whether a folder holds loops that were watched, and no sweep."""
    return not (folder / _SWEEP).is_file() and (folder / WATCHED).is_dir()


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / _SWEEP).is_file() or is_watched(folder):
        yield folder
        return
    if depth == 0:
        return
    with suppress(OSError), os.scandir(folder) as found:
        for each in islice(found, _MOST_ENTRIES):
            if each.is_dir(follow_symlinks=False):
                yield from _folders(Path(each.path), depth - 1)


def under_way(folder: Path) -> UnderWay:
    """How far the sweep in a folder is. Raises DataError where its plan cannot be read."""
    num_planned = _num_planned(folder)
    ended_s = _ended_s(folder)
    num_finished = min(len(ended_s), num_planned)
    is_running = num_finished < num_planned and _is_running(folder, ended_s)
    left_s = None
    if is_running and len(ended_s) > 1:
        paces = [later - earlier for earlier, later in pairwise(ended_s[-_MOST_PACED:])]
        left_s = median(paces) * (num_planned - num_finished)
    return UnderWay(
        folder=folder,
        num_planned=num_planned,
        num_finished=num_finished,
        is_running=is_running,
        left_s=left_s,
    )


def _num_planned(folder: Path) -> int:
    """How many cells are planned; a plan that did not change is not read again."""
    try:
        found = (folder / _SWEEP).stat()
    except OSError:
        return len(Store(folder).plan())  # says what is wrong
    return _num_in_plan(folder, found.st_mtime_ns, found.st_size)


@lru_cache(_MOST_PLANS)
def _num_in_plan(folder: Path, _changed_ns: int, _size: int) -> int:
    return len(Store(folder).plan())


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
        return is_held(folder / "lock")
    return bool(ended_s) and 0.0 <= time.time() - ended_s[-1] < _PAUSE_S


def is_held(lock: Path) -> bool:
    """Whether a process holds a lock; the lock is tried for a moment."""
    if not lock.is_file():  # opening anything else may wait forever
        return False
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False

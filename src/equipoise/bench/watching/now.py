"""Watched runs as their files tell now, by who does not train: which still train, what they saw. No torch.

What is read is bounded: the newest runs of a folder, some ranks of a run, the latest steps of a rank.
"""

import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from equipoise.bench.store import WATCHED
from equipoise.bench.under_way import is_held
from equipoise.bench.watching.joined import Watched, joined
from equipoise.bench.watching.record import RankRecord, rank_record
from equipoise.bench.watching.rows import status_of
from equipoise.errors import DataError
from equipoise.units import MIB

TRAINING = "training"
MOST_RUNS = 20
MOST_RANKS = 64
_MOST_BYTES = 4 * MIB
_LIVE_BYTES = 8192
# A rank writes every five seconds or once a step, whichever is longer; where disks have no locks, that tells.
_SILENT_S = 15.0
_MOST_ENTRIES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The files of one run as they lie: rank-N.jsonl, by number; at most MOST_RANKS of `num_files`.

    changed_s: when one was last written. is_alive: whether a process holds one, or wrote a moment ago.
    """

    folder: Path
    ranks: tuple[Path, ...]
    num_files: int
    num_bytes: int
    changed_s: float
    is_alive: bool

    @property
    def stamp(self) -> str:
        """What changes when the run does."""
        return f"{self.folder.name}:{self.num_files}:{self.num_bytes}:{self.changed_s}:{self.is_alive}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """What one run saw so far.

    status: `success`, `training`, or what went wrong. is_whole: whether every rank and every step was read.
    """

    files: RunFiles
    records: tuple[RankRecord, ...]
    watched: Watched
    status: str
    is_whole: bool

    @property
    def is_running(self) -> bool:
        """Whether it still trains."""
        return self.status == TRAINING


def runs_files(out: Path) -> tuple[tuple[RunFiles, ...], int]:
    """The runs that were watched into a folder, the newest first, at most MOST_RUNS; and how many more."""
    names: list[str] = []
    with suppress(OSError), os.scandir(out / WATCHED) as found:
        names = sorted(
            (each.name for each in islice(found, _MOST_ENTRIES) if each.is_dir(follow_symlinks=False)),
            reverse=True,
        )
    files = tuple(run_files(out / WATCHED / name) for name in names[:MOST_RUNS])
    return files, len(names) - len(files)


def run_files(folder: Path) -> RunFiles:
    """The files of the run in a folder."""
    found: list[tuple[int, Path, os.stat_result]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for each in islice(entries, _MOST_ENTRIES):
            number = each.name.removeprefix("rank-").removesuffix(".jsonl")
            if each.name == f"rank-{number}.jsonl" and number.isascii() and number.isdecimal():
                with suppress(OSError):
                    status = each.stat()
                    if stat.S_ISREG(status.st_mode):  # opening anything else may wait forever
                        found.append((int(number[:9]), Path(each.path), status))
    found.sort(key=lambda each: each[:2])
    changed_s = max((status.st_mtime for _, _, status in found), default=0.0)
    ranks = tuple(path for _, path, _ in found[:MOST_RANKS])
    return RunFiles(
        folder=folder,
        ranks=ranks,
        num_files=len(found),
        num_bytes=sum(status.st_size for _, _, status in found),
        changed_s=changed_s,
        is_alive=any(_lives(path, status) for _, path, status in found[:MOST_RANKS]),
    )


def _lives(path: Path, status: os.stat_result) -> bool:
    """Whether a process holds the file; or wrote a moment ago, and not that it ends."""
    if is_held(path):
        return True
    if not 0.0 <= time.time() - status.st_mtime < _SILENT_S:
        return False
    try:
        with path.open("rb") as file:
            file.seek(max(0, status.st_size - _LIVE_BYTES))
            return not file.read(_LIVE_BYTES).rstrip(b"\n").rpartition(b"\n")[2].startswith(b'{"end"')
    except OSError:
        return False


def run_now(files: RunFiles) -> RunNow:
    """What a run saw so far. Raises DataError where a file is damaged, or no rank left one."""
    if not files.ranks:
        raise DataError(f"{files.folder}: no rank left a file; expected rank-0.jsonl")
    each_bytes = _MOST_BYTES // len(files.ranks)
    records = tuple(rank_record(path, most_bytes=each_bytes) for path in files.ranks)
    if len({record.rank for record in records}) < len(records):
        raise DataError(f"{files.folder}: two files of one rank; delete the run's folder")
    watched = joined(records)
    return RunNow(
        files=files,
        records=records,
        watched=watched,
        status=_status(files, watched, records),
        is_whole=files.num_files == len(files.ranks) and all(record.is_whole for record in records),
    )


def _status(files: RunFiles, watched: Watched, records: Sequence[RankRecord]) -> str:
    if files.is_alive and not all(record.end for record in records):
        return TRAINING
    return status_of(watched, records)


def latest_step(files: RunFiles) -> int | None:
    """The number of the step that the first rank wrote last; None before there is one."""
    try:
        record = rank_record(files.ranks[0], most_bytes=_LIVE_BYTES) if files.ranks else None
    except DataError:
        return None
    return None if record is None or not record.steps else int(record.steps[-1]["step"])

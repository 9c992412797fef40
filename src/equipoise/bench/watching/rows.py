"""Watched runs from their files: as the tables `runs`, `scores`, `steps`, and while they train."""

import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl
from msgspec import Struct

from equipoise.bench.phases import STEP
from equipoise.bench.summary import accelerator_of, run_row, step_rows, write
from equipoise.bench.trial import SUCCESS, WATCHED, is_held
from equipoise.bench.watching.ranks import CombinedRun, combine_ranks
from equipoise.bench.watching.record import RankRecord, rank_record, rank_records, run_folder, runs_in
from equipoise.errors import DataError
from equipoise.runs.store import RUNS, STEPS
from equipoise.units import MIB

# Ranks end at about the same time; one that died has nothing more to say.
_END_S = 10.0
_POLL_S = 0.02


class WatchedTables(Struct, frozen=True, kw_only=True):
    """The tables `runs` and `steps` of a folder."""

    runs: pl.DataFrame
    steps: pl.DataFrame


def write_tables(out: Path, run: str, *, wait: bool) -> CombinedRun:
    """The run as all its ranks saw it, once the tables of every run in the folder are written.

    wait: for ranks that have not written their end, for a while. Raises DataError as `summary.write`.
    """
    folder = run_folder(out, run)
    deadline = time.monotonic() + (_END_S if wait else 0.0)
    records = rank_records(folder)
    while not all(record.end for record in records) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        records = rank_records(folder)
    write_all(out)
    return combine_ranks(records)


def watched(out: str | Path) -> WatchedTables:
    """The tables of every run that was watched into a folder, made anew from what its ranks left.

    Also of runs that were killed. Raises DataError where there is none.
    """
    folder = Path(out)
    if not runs_in(folder):
        raise DataError(f"{folder}: no run was watched into it; expected a folder `watched`")
    write_all(folder)
    runs, steps = (pl.read_parquet(folder / f"{table.name}.parquet") for table in (RUNS, STEPS))
    return WatchedTables(runs=runs, steps=steps)


def write_all(out: Path) -> None:
    """Write the tables of every run that was watched into a folder. Raises DataError as `summary.write`."""
    runs: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    for folder in runs_in(out):
        records = rank_records(folder)
        watched = combine_ranks(records)
        row = _run(watched, records, folder)
        runs.append(row)
        steps += step_rows(row["run_id"], watched.steps)
    write(out, runs, steps)


def _run(watched: CombinedRun, records: Sequence[RankRecord], folder: Path) -> dict[str, Any]:
    """The row of a run."""
    about = watched.about
    campaign = folder.parent.parent.resolve().name
    batch_samples = watched.batch_samples
    step_s = fmean(step[STEP] for step in watched.steps) if watched.steps else None
    return run_row(
        {
            "run_id": f"{campaign}/{folder.name}",
            "campaign": campaign,
            "system": about["conditions"].get("host"),
            "workload": about["workload"],
            "accelerator": accelerator_of(about["device"], about["conditions"]),
            "num_accelerators": watched.num_ranks,
            "num_nodes": watched.num_nodes,
            "framework": "pytorch",
            "precision": about.get("precision"),
            "strategy": watched.strategy,
            "global_batch_samples": batch_samples,
            "status": _status(watched, records),
            "samples_per_s": batch_samples / step_s if batch_samples and step_s else None,
            "source_uri": f"{folder.parent.name}/{folder.name}/rank-0.jsonl",
        }
    )


TRAINING = "training"


def _status(watched: CombinedRun, records: Sequence[RankRecord], *, is_alive: bool = False) -> str:
    """`success`, `training` or what went wrong; steps that were seen before it stand."""
    if is_alive and not all(record.end for record in records):
        return TRAINING
    for record in records:
        if not record.end:
            return f"failed: rank {record.rank} did not finish"
        if record.end.reason:
            return f"failed: rank {record.rank} {record.end.reason}"
    if not watched.steps:
        return "failed: no step was seen after warm-up"
    return SUCCESS


MOST_RUNS = 20
MOST_RANKS = 64
_MOST_BYTES = 4 * MIB
_LIVE_BYTES = 8192
# A rank writes every five seconds or once a step, whichever is longer; where disks have no locks, that shows.
_SILENT_S = 15.0
_MOST_ENTRIES = 4096


class RunFiles(Struct, frozen=True, kw_only=True):
    """The files of one run: rank-N.jsonl, by number; at most MOST_RANKS of `num_files`.

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


class RunNow(Struct, frozen=True, kw_only=True):
    """What one run saw so far.

    status: `success`, `training`, or what went wrong. is_whole: whether every rank and every step was read.
    """

    files: RunFiles
    records: tuple[RankRecord, ...]
    watched: CombinedRun
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
        raise DataError(f"{files.folder}: no rank wrote a file; expected rank-0.jsonl")
    each_bytes = _MOST_BYTES // len(files.ranks)
    records = tuple(rank_record(path, most_bytes=each_bytes) for path in files.ranks)
    if len({record.rank for record in records}) < len(records):
        raise DataError(f"{files.folder}: two files of one rank; delete the run's folder")
    watched = combine_ranks(records)
    return RunNow(
        files=files,
        records=records,
        watched=watched,
        status=_status(watched, records, is_alive=files.is_alive),
        is_whole=files.num_files == len(files.ranks) and all(record.is_whole for record in records),
    )


def row_now(now: RunNow) -> dict[str, Any]:
    """The row of `runs` of what a run saw so far: that of one that trains is as if it ended now."""
    row = _run(now.watched, now.records, now.files.folder)
    return {**row, "status": SUCCESS} if now.is_running and now.watched.steps else row


def latest_step(files: RunFiles) -> tuple[int, bool] | None:
    """The number of the step that the first rank wrote last, and whether it was the last; None before it."""
    try:
        record = rank_record(files.ranks[0], most_bytes=_LIVE_BYTES) if files.ranks else None
    except DataError:
        return None
    if record is None or not record.steps:
        return None
    latest = record.steps[-1].step
    return latest, latest == record.about["num_steps"]

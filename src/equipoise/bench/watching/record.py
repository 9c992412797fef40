"""What one rank saw, in a file that grows: each line whole or absent, whatever happens. No torch."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from equipoise.bench.phases import STEP
from equipoise.bench.store import write_whole
from equipoise.errors import DataError

_SCHEMA = "equipoise.watched/1"
_MOST_RANKS = 1_000_000
_MOST = 1e300
_ECHO = 40
_FOLDER = "watched"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What one rank left of one run.

    about: what it ran on and with. steps: as `written_step` gave them, in order; warm-up is among them.
    end: what it said at its end; empty where it never came to it.
    """

    about: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    end: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Its number."""
        return int(self.about["rank"])

    @property
    def num_ranks(self) -> int:
        """How many ranks the run had."""
        return int(self.about["num_ranks"])


def run_folder(out: Path, run: str) -> Path:
    """Where the ranks of a run leave their files."""
    return out / _FOLDER / run


def runs_in(out: Path) -> list[Path]:
    """The folders of all runs that were watched into a folder, oldest first."""
    return sorted(path for path in (out / _FOLDER).glob("*") if path.is_dir())


class RankFile:
    """The file of one rank of one run, to which lines are added."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Raises DataError when it cannot be made."""
        self.path = folder / f"rank-{about['rank']}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise DataError(f"{folder}: cannot be made: {err.strerror or err}") from err
        write_whole(self.path, _line({"schema": _SCHEMA, **about}))

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Put lines on disk; when this returns they stay. Raises DataError when they cannot be written."""
        if not lines:
            return
        try:
            with self.path.open("ab") as file:
                _write_whole_lines(file, b"".join(map(_line, lines)))
        except OSError as err:
            raise DataError(f"{self.path}: cannot be written: {err.strerror or err}") from err


def _write_whole_lines(file: BinaryIO, content: bytes) -> None:
    """All of the content, synced; nothing of it where the disk is full."""
    before = file.seek(0, os.SEEK_END)
    try:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    except OSError:
        file.truncate(before)
        raise


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False).encode() + b"\n"


def rank_record(path: Path) -> RankRecord:
    """What a rank left; a last line that was cut by a kill or a crash is dropped.

    Raises DataError for what is no such file.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as err:
        raise DataError(f"{path}: {err.strerror or err}; expected a file of a watched run") from err
    # What follows the last end of line is empty, or was cut.
    found = [_parsed(path, number, line) for number, line in enumerate(lines[:-1], 1)]
    if not found or found[0].get("schema") != _SCHEMA:
        raise DataError(f"{path}: not a file of schema {_SCHEMA!r}; delete the run's folder")
    for number, line in enumerate(found, 1):
        _check(path, number, line)
    _check_rank(path, found[0])
    end: Mapping[str, Any] = next((line["end"] for line in found if "end" in line), {})
    about = {"conditions": {}, **found[0]}
    for line in found:
        about |= line.get("told", {})
    return RankRecord(about=about, steps=[line for line in found if "seconds" in line], end=end)


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise DataError(f"{path}:{number}: no JSON ({err}); delete the run's folder") from err
    if not isinstance(found, dict):
        raise DataError(f"{path}:{number}: {type(found).__name__}; expected an object")
    return found


def _check_rank(path: Path, first: Mapping[str, Any]) -> None:
    """Refuse a file that does not say which rank of how many it is of, or under what conditions."""
    rank, num_ranks = first.get("rank"), first.get("num_ranks")
    if type(rank) is not int or type(num_ranks) is not int or not 0 <= rank < num_ranks <= _MOST_RANKS:
        raise DataError(
            f"{path}:1: rank={str(rank)[:_ECHO]!r}; expected a rank of so many; delete the run's folder"
        )
    if not isinstance(first.get("conditions", {}), dict):
        raise DataError(f"{path}:1: conditions are no table; delete the run's folder")


def _check(path: Path, number: int, line: Mapping[str, Any]) -> None:
    """Refuse a line whose parts are not what this file's writer puts there."""
    seconds = line.get("seconds")
    right = all(isinstance(line.get(name, {}), dict) for name in ("told", "end"))
    if seconds is not None:
        right = right and isinstance(seconds, dict) and STEP in seconds
        right = right and all(_is_finite(each) for each in seconds.values())
        right = right and all(type(line.get(name)) is int for name in ("step", "batches", "samples"))
        right = right and isinstance(line.get("profiled"), bool)
    end = line.get("end", {})
    if right and end:
        exchanged = end.get("exchanged") or {}
        right = isinstance(exchanged, dict) and all(map(_is_finite, exchanged.values()))
        right = right and all(
            end.get(name) is None or _is_finite(end[name]) for name in ("memory_bytes", "cpu_fraction")
        )
    if not right:
        raise DataError(f"{path}:{number}: no line of a watched run; delete the run's folder")


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST


def rank_records(folder: Path) -> list[RankRecord]:
    """What the ranks of a run left, by rank. Raises DataError where none did."""
    found = [rank_record(path) for path in folder.glob("rank-*.jsonl")]
    if not found:
        raise DataError(f"{folder}: no rank left a file; expected rank-0.jsonl")
    return sorted(found, key=lambda record: record.rank)


def written_step(
    split: Mapping[str, float], *, number: int, num_batches: int, num_samples: int, profiled: bool
) -> dict[str, Any]:
    """A step as it stands in a rank's file. number: of the update, from 1, the same on every rank."""
    return {
        "step": number,
        "batches": num_batches,
        "samples": num_samples,
        "profiled": profiled,
        "seconds": dict(split),
    }

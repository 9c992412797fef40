"""What one rank saw, in a file that grows: each line whole or absent, whatever happens. No torch."""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct, field

from equipoise.bench.phases import STEP
from equipoise.bench.store import WATCHED, content, write_whole
from equipoise.errors import DataError
from equipoise.files import parsed_json
from equipoise.units import MIB, MILLISECOND_S, NANOSECOND_S

_SCHEMA = "equipoise.watched/1"
_MOST_RANKS = 1_000_000
_MOST = 1e300
_MOST_COUNT = 2**53
# A step shorter than a nanosecond or longer than thirty years is none.
_SHORTEST_S, _LONGEST_S = NANOSECOND_S, 1 / NANOSECOND_S
# Of a file: a hundred thousand steps, the most that are watched, take less than half of it.
_MOST_BYTES = 64 * MIB
_ECHO = 40
_NAMED = ("workload", "device", "precision", "strategy")


class RankRecord(Struct, frozen=True, kw_only=True):
    """What one rank left of one run.

    about: what it ran on and with. steps: as `written_step` gave them, in order; warm-up is among them.
    end: what it wrote at its end; empty before it. is_whole: whether all of its file was read.
    """

    about: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    end: Mapping[str, Any] = field(default_factory=dict)
    is_whole: bool = True

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
    return out / WATCHED / run


def runs_in(out: Path) -> list[Path]:
    """The folders of all runs that were watched into a folder, oldest first."""
    return sorted(path for path in (out / WATCHED).glob("*") if path.is_dir())


class RankFile:
    """The file of one rank of one run, to which lines are added; held while the process lives."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Raises DataError when it cannot be made."""
        self.path = folder / f"rank-{about['rank']}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise DataError(f"{folder}: cannot be created: {err.strerror or err}") from err
        write_whole(self.path, _line({"schema": _SCHEMA, **about}))
        self._held: int | None = None
        self._hold()

    def _hold(self) -> None:
        """Lock the file, so that who looks knows that this process lives: the kernel unlocks when it ends.

        Where that fails, somebody looks just now, or the disk has no locks: it is tried again.
        """
        with suppress(OSError):
            descriptor = os.open(self.path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                raise
            self._held = descriptor

    def close(self) -> None:
        """Hold it no longer."""
        if self._held is not None:
            with suppress(OSError):
                fcntl.flock(self._held, fcntl.LOCK_UN)
            os.close(self._held)
            self._held = None

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Put lines on disk; when this returns they stay. Raises DataError when they cannot be written."""
        if not lines:
            return
        if self._held is None:
            self._hold()
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


def rank_record(path: Path, *, most_bytes: int | None = None) -> RankRecord:
    """What a rank left; a last line that was cut by a kill or a crash is dropped.

    most_bytes: of a longer file its first line and its latest ones are read, so many bytes.
    Raises DataError for what is no such file.
    """
    head, tail = _lines(path, most_bytes)
    # Of lines between the two parts the number is not known: they are counted as if none were left out.
    found = [_parsed(path, number, line) for number, line in enumerate([*head, *tail], 1)]
    if not found or found[0].get("schema") != _SCHEMA:
        raise DataError(f"{path}: not a file of schema {_SCHEMA!r}; delete the run's folder")
    for number, line in enumerate(found, 1):
        _check(path, number, line)
    _check_rank(path, found[0])
    end: Mapping[str, Any] = next((line["end"] for line in found if "end" in line), {})
    about = {"conditions": {}, "batch_samples": None, **dict.fromkeys(_NAMED), **found[0]}
    for line in found:
        about |= line.get("told", {})
    steps = [line for line in found if "seconds" in line]
    return RankRecord(about=about, steps=steps, end=end, is_whole=not head)


def _lines(path: Path, most_bytes: int | None) -> tuple[list[bytes], list[bytes]]:
    """The whole lines of a file: the first alone where some behind it are left out, and the rest."""
    if most_bytes is None or (size := _size(path)) <= most_bytes:
        # What follows the last end of line is empty, or was cut.
        return [], content(path, _MOST_BYTES, what="a file of a watched run").split(b"\n")[:-1]
    try:
        with path.open("rb") as file:
            first = file.readline(most_bytes)
            file.seek(size - most_bytes)
            return [first.rstrip(b"\n")], file.read(most_bytes).split(b"\n")[1:-1]
    except OSError as err:
        raise DataError(f"{path}: {err.strerror or err}; expected a file of a watched run") from err


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as err:
        raise DataError(f"{path}: {err.strerror or err}; expected a file of a watched run") from err


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = parsed_json(line)
    except (ValueError, RecursionError) as err:
        raise DataError(f"{path}:{number}: not valid JSON ({err}); delete the run's folder") from err
    if not isinstance(found, dict):
        raise DataError(f"{path}:{number}: {type(found).__name__}; expected an object")
    return found


def _check_rank(path: Path, first: Mapping[str, Any]) -> None:
    """Refuse a file that does not say which rank of how many it is of, or under what conditions."""
    rank, num_ranks = first.get("rank"), first.get("num_ranks")
    if type(rank) is not int or type(num_ranks) is not int or not 0 <= rank < num_ranks <= _MOST_RANKS:
        raise DataError(
            f"{path}:1: rank={str(rank)[:_ECHO]!r}; expected one of its ranks; delete the run's folder"
        )
    conditions = first.get("conditions", {})
    if not isinstance(conditions, dict) or not isinstance(conditions.get("core_sets", []), list):
        raise DataError(f"{path}:1: conditions are not a table; delete the run's folder")
    batch = first.get("batch_samples")
    if not (_are_named(first) and (batch is None or _is_count(batch))):
        raise DataError(f"{path}:1: workload, device or batch are damaged; delete the run's folder")


def _check(path: Path, number: int, line: Mapping[str, Any]) -> None:
    """Refuse a line whose parts are not what this file's writer puts there."""
    seconds = line.get("seconds")
    right = all(isinstance(line.get(name, {}), dict) for name in ("told", "end"))
    right = right and _are_named(line.get("told", {}))
    if "seconds" in line:
        right = right and isinstance(seconds, dict) and _is_split(seconds)
        right = right and all(_is_count(line.get(name)) for name in ("step", "batches", "samples"))
        right = right and isinstance(line.get("profiled"), bool)
    end = line.get("end", {})
    if right and end:
        right = _is_exchanged(end.get("exchanged") or {})
        right = right and all(
            end.get(name) is None or _is_finite(end[name]) for name in ("memory_bytes", "cpu_fraction")
        )
    if not right:
        raise DataError(f"{path}:{number}: not a line of a watched run; delete the run's folder")


def _are_named(facts: Mapping[str, Any]) -> bool:
    return all(facts.get(name) is None or isinstance(facts[name], str) for name in _NAMED)


def _is_split(seconds: Mapping[str, Any]) -> bool:
    """Whether these are a step's seconds by phase."""
    if STEP not in seconds or not all(map(_is_finite, seconds.values())):
        return False
    # Differences of moments may miss zero by what clocks of devices do not resolve.
    return seconds[STEP] >= _SHORTEST_S and all(
        -MILLISECOND_S <= each <= _LONGEST_S for each in seconds.values()
    )


def _is_exchanged(found: object) -> bool:
    """Whether these are seconds of communication in so many seconds of steps, and of passes; or nothing."""
    if not isinstance(found, dict) or not all(_is_finite(each) and each >= 0 for each in found.values()):
        return False
    needed = {"communication_s", "step_s"} | ({"exposed_s"} if "passes_s" in found else set())
    return not found or needed <= set(found)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_COUNT


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST


def rank_records(folder: Path) -> list[RankRecord]:
    """What the ranks of a run left, by rank. Raises DataError where none did."""
    found = [rank_record(path) for path in folder.glob("rank-*.jsonl")]
    if not found:
        raise DataError(f"{folder}: no rank wrote a file; expected rank-0.jsonl")
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

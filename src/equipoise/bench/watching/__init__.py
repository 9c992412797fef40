"""Records of watched training loops: the append-only file of one rank, and its reader.

The phases of steps are recorded as in a sweep. Each line of the file is written completely or not at all.
"""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins

from equipoise.bench.counters import CoreUse
from equipoise.bench.phases import LONGEST_S, SHORTEST_S, STEP
from equipoise.bench.trial import WATCHED, write_whole
from equipoise.errors import DataError
from equipoise.files import parsed_json, read_input
from equipoise.units import MIB, MILLISECOND_S

_SCHEMA = "equipoise.watched/1"
# The size limit of a file; a hundred thousand steps, the most that are watched, take less than half of it.
_MOST_BYTES = 64 * MIB

Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e300)]


class RecordedStep(Struct, frozen=True, kw_only=True):
    """One step in a rank's file. step: number of the update, from 1, the same on every rank."""

    step: Count
    batches: Count
    samples: Count
    profiled: bool
    seconds: dict[str, float]


class RankEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last record of a rank.

    exchanged: seconds of communication (`communication_s`, `exposed_s`) in the profiled steps (`step_s`) and
    in their passes (`passes_s`); empty if nothing was profiled. reason: of a failure. use: of this rank's
    cores.
    """

    memory_bytes: Count | None = None
    cpu_fraction: Amount | None = None
    exchanged: dict[str, Amount] = field(default_factory=dict)
    reason: str | None = None
    use: CoreUse | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for values from which no shares can be computed."""
        used = self.use
        if used is not None and not (
            used.cores and 0 < used.wall_s < LONGEST_S and abs(used.taken_s) + abs(used.own_s) < LONGEST_S
        ):
            raise ValueError("use of no cores, or of no time")
        needed = {"communication_s", "step_s", *(("exposed_s",) if "passes_s" in self.exchanged else ())}
        if self.exchanged and not needed <= set(self.exchanged):
            raise ValueError(f"exchanged lacks {', '.join(sorted(needed - set(self.exchanged)))}")


class _Facts(Struct, kw_only=True):
    """Facts about a run other than its conditions, from its first lines."""

    workload: str | None = None
    device: str | None = None
    precision: str | None = None
    strategy: str | None = None


class _FirstLine(_Facts, kw_only=True):
    """The first line of a rank's file."""

    schema: Literal["equipoise.watched/1"]
    rank: Annotated[int, Meta(ge=0)]
    num_ranks: Annotated[int, Meta(ge=1, le=1_000_000)]
    conditions: dict[str, Any] = field(default_factory=dict)
    batch_samples: Count | None = None
    num_steps: Count | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for an impossible rank or conditions."""
        is_run = self.rank < self.num_ranks and isinstance(self.conditions.get("core_sets", []), list)
        if not is_run or not isinstance(self.conditions.get("host", ""), str | None):
            raise ValueError("rank or conditions of no run")


class RankRecord(Struct, frozen=True, kw_only=True):
    """The record of one rank of one run.

    about: facts and conditions of the run. steps: in order, including warm-up. end: None while it runs.
    is_whole: whether its file was read completely.
    """

    about: Mapping[str, Any]
    steps: Sequence[RecordedStep]
    end: RankEnd | None = None
    is_whole: bool = True

    @property
    def rank(self) -> int:
        """Number of the rank."""
        return int(self.about["rank"])

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the run."""
        return int(self.about["num_ranks"])

    @property
    def host(self) -> str:
        """Host that the rank ran on."""
        return str(self.about["conditions"].get("host") or "unknown")


def run_folder(out: Path, run: str) -> Path:
    """Return the folder of a run's files."""
    return out / WATCHED / run


def runs_in(out: Path) -> list[Path]:
    """Return the folders of all watched runs in a folder, oldest first."""
    return sorted(path for path in (out / WATCHED).glob("*") if path.is_dir())


class RankFile:
    """The append-only file of one rank of one run; locked while the process is alive."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Create the file. Raises DataError if that fails."""
        self.path = folder / f"rank-{about['rank']}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise DataError(f"{folder}: cannot be created: {err.strerror or err}") from err
        write_whole(self.path, _line({"schema": _SCHEMA, **about}))
        self._lock: int | None = None
        self._try_lock()

    def _try_lock(self) -> None:
        """Lock the file to show that this process is alive; the kernel unlocks it when the process ends.

        Locking fails while another process tests the lock, and on file systems without locks; it is retried.
        """
        with suppress(OSError):
            descriptor = os.open(self.path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                raise
            self._lock = descriptor

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            with suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def add(self, lines: Sequence[RecordedStep | Mapping[str, Any]]) -> None:
        """Append lines durably to the file. Raises DataError if they cannot be written."""
        if not lines:
            return
        if self._lock is None:
            self._try_lock()
        try:
            with self.path.open("ab") as file:
                _write_whole_lines(file, b"".join(map(_line, lines)))
        except OSError as err:
            raise DataError(f"{self.path}: cannot be written: {err.strerror or err}") from err


def _write_whole_lines(file: BinaryIO, content: bytes) -> None:
    """Append and sync all of the content, or nothing if the disk is full."""
    before = file.seek(0, os.SEEK_END)
    try:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    except OSError:
        file.truncate(before)
        raise


def _line(content: RecordedStep | Mapping[str, Any]) -> bytes:
    return json.dumps(to_builtins(content), allow_nan=False).encode() + b"\n"


def rank_record(path: Path, *, most_bytes: int | None = None) -> RankRecord:
    """Return the record of a rank; an incomplete last line, due to a kill or a crash, is dropped.

    most_bytes: of a longer file, only the first line and the last most_bytes are read.
    Raises DataError for another kind of file.
    """
    first, tail = _lines(path, most_bytes)
    # Line numbers in messages ignore lines that were skipped, because their number is not known.
    found = [_parsed(path, number, line) for number, line in enumerate([*first, *tail], 1)]
    if not found:
        raise DataError(f"{path}: empty; expected a file of a watched run; delete the run's folder")
    about: dict[str, Any] = {}
    steps: list[RecordedStep] = []
    end: RankEnd | None = None
    for number, line in enumerate(found, 1):
        try:
            if number == 1:
                about = {**line, **to_builtins(convert(line, _FirstLine))}
            about |= {name: value for name, value in line.get("stated", {}).items() if value is not None}
            convert(about, _Facts)
            if "seconds" in line:
                steps.append(_step(line))
            if end is None and "end" in line:
                end = convert(line["end"], RankEnd)
        except (ValidationError, AttributeError) as err:
            raise DataError(
                f"{path}:{number}: not a line of a watched run ({err}); delete the run's folder"
            ) from err
    return RankRecord(about=about, steps=steps, end=end, is_whole=not first)


def _step(line: Mapping[str, Any]) -> RecordedStep:
    """Return the step of a line. Raises ValidationError if it is invalid."""
    step = convert(line, RecordedStep)
    # Differences of timestamps may be slightly negative, because device clocks have a limited resolution.
    is_valid = all(-MILLISECOND_S <= each <= LONGEST_S for each in step.seconds.values())
    if not is_valid or step.seconds.get(STEP, 0.0) < SHORTEST_S:
        raise ValidationError("seconds of no step")
    return step


def _lines(path: Path, most_bytes: int | None) -> tuple[list[bytes], list[bytes]]:
    """Return a file's complete lines: its first line if lines after it are skipped, and the others."""
    try:
        size = path.stat().st_size
        if most_bytes is not None and size > most_bytes:
            with path.open("rb") as file:
                first = file.readline(most_bytes)
                file.seek(size - most_bytes)
                return [first.rstrip(b"\n")], file.read(most_bytes).split(b"\n")[1:-1]
    except OSError as err:
        raise DataError(f"{path}: {err.strerror or err}; expected a file of a watched run") from err
    content = read_input(path, _MOST_BYTES, expected="a file of a watched run", may_be_pipe=False)
    return [], content.split(b"\n")[:-1]  # the last part is empty or an incomplete line


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = parsed_json(line)
    except (ValueError, RecursionError) as err:
        raise DataError(f"{path}:{number}: not valid JSON ({err}); delete the run's folder") from err
    if not isinstance(found, dict):
        raise DataError(f"{path}:{number}: {type(found).__name__}; expected an object")
    return found


def rank_records(folder: Path) -> list[RankRecord]:
    """Return the records of a run by rank. Raises DataError if there are none."""
    found = [rank_record(path) for path in folder.glob("rank-*.jsonl")]
    if not found:
        raise DataError(f"{folder}: no rank wrote a file; expected rank-0.jsonl")
    return sorted(found, key=lambda record: record.rank)

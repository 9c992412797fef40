"""The ledger: predictions kept in a file of JSON lines, what was measured of each, and the errors so far.

Nothing is written unless somebody asks for it. docs/decide/ledger.md has the form of the lines.
"""

import fcntl
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Any, Final

from equipoise import __version__
from equipoise.advice.forecast.curve import Record
from equipoise.decide.ledger_entry import Entry, Measured, RecordedPrediction, is_text, measured_value
from equipoise.errors import DataError, UsageError
from equipoise.units import MIB

SCHEMA: Final = "equipoise.ledger/2"
_READ_SCHEMAS: Final = ("equipoise.ledger/1", SCHEMA)
# What schema 1 called an estimator.
_KINDS: Final[Mapping[str, str]] = {"modelled": "model"}
MAX_FILE_BYTES: Final = 64 * MIB
_MAX_LINE_BYTES: Final = 64 * 1024
_P90: Final = 0.9
_MOST_NAMES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a ledger has. num_damaged: lines that are not its own, such as one that a kill cut short."""

    path: Path
    entries: tuple[Entry, ...]
    num_damaged: int

    def entry(self, id_: str) -> Entry:
        """The entry of an id or of its beginning. Raises UsageError where none or several have it."""
        found = [each for each in self.entries if each.id.startswith(id_)] if id_ else []
        if len(found) != 1:
            number = "no prediction" if not found else f"{len(found)} predictions"
            raise UsageError(
                f"--for {id_!r}: {number} of {self.path} have that id; `equipoise record` lists them"
            )
        return found[0]

    def current(self) -> tuple[Entry, ...]:
        """The last prediction of each set-up by each verb: those that a new run is compared with."""
        return tuple({each.prediction.set_up: each for each in self.entries}.values())


def ledger_path() -> Path:
    """Where the ledger is: $EQUIPOISE_LEDGER, else in the folder for data of the XDG specification."""
    named = os.environ.get("EQUIPOISE_LEDGER")
    if named:
        return Path(named)
    data = os.environ.get("XDG_DATA_HOME", "")
    # The specification has relative paths ignored.
    home = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return home / "equipoise" / "ledger.jsonl"


def add_predictions(path: Path, predictions: Sequence[RecordedPrediction]) -> tuple[str, ...]:
    """Add predictions to a ledger; returns their ids. When this returns they are on disk.

    Raises DataError where the file cannot be written; then none of them counts.
    """
    ids = tuple(token_hex(4) for _ in predictions)
    append(
        path,
        [
            {**_head("prediction"), "id": id_, **asdict(each)}
            for id_, each in zip(ids, predictions, strict=True)
        ],
    )
    return ids


def add_measured(path: Path, found: Sequence[tuple[str, Measured]]) -> None:
    """Add what was measured of predictions, by their ids, to a ledger. Raises DataError likewise."""
    append(path, [{**_head("measurement"), "prediction": id_, **asdict(each)} for id_, each in found])


def read_ledger(path: Path) -> Ledger:
    """What the ledger has; nothing where there is no file. Raises DataError where it cannot be read."""
    found: dict[str, tuple[str, RecordedPrediction, dict[object, Measured]]] = {}
    num_damaged = 0
    for number, line in enumerate(lines(path)):
        try:
            document = _document(line)
            if document["line"] == "prediction":
                document["kind"] = _KINDS.get(document["kind"], document["kind"])
                prediction = RecordedPrediction(
                    **{each.name: document[each.name] for each in fields(RecordedPrediction)}
                )
                found.setdefault(_text(document["id"]), (_text(document["made"]), prediction, {}))
            else:
                one = Measured(**{each.name: document[each.name] for each in fields(Measured)})
                _, prediction, measured = found[_text(document["prediction"])]
                _check_same_quantity(one, prediction)
                measured.setdefault(number if one.source is None else one.source, one)
        except (ValueError, KeyError, TypeError, RecursionError, UsageError):
            num_damaged += 1
    entries = tuple(
        Entry(id=id_, made=made, prediction=prediction, measured=tuple(measured.values()))
        for id_, (made, prediction, measured) in found.items()
    )
    return Ledger(path=path, entries=entries, num_damaged=num_damaged)


def _check_same_quantity(one: Measured, prediction: RecordedPrediction) -> None:
    if one.quantity != prediction.quantity:
        raise UsageError(f"a measurement of {one.quantity}; expected {prediction.quantity}")


def _head(line: str) -> dict[str, str]:
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return {"schema": SCHEMA, "line": line, "made": made, "equipoise": __version__}


def _document(line: bytes) -> dict[str, Any]:
    """One line as a document of this schema. Raises ValueError or TypeError for any other."""
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError("a line longer than any of a ledger")
    found = json.loads(line)
    if not isinstance(found, dict) or found.get("schema") not in _READ_SCHEMAS:
        raise ValueError("another schema")
    if found.get("line") not in {"prediction", "measurement"}:
        raise ValueError("another kind of line")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str) or not is_text(value) or not value:
        raise TypeError("no text")
    return value


def append(path: Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Add whole lines at the end, safely on disk, one writer at a time; nothing is added where it fails.

    A line that a killed writer left unfinished is ended first, so that it spoils no other.
    """
    content = b"".join(json.dumps(each, allow_nan=False).encode() + b"\n" for each in documents)
    if not content:
        return
    try:
        is_new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _check_regular(os.fstat(descriptor), path)
            # The kernel lets go of it when the process ends, however it ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _write_end(descriptor, content)
        finally:
            os.close(descriptor)
        if is_new:
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise DataError(
            f"{path}: the ledger cannot be written: {reason}; EQUIPOISE_LEDGER names another"
        ) from err


def _write_end(descriptor: int, content: bytes) -> None:
    """Append to an open, locked file: all of it or nothing."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        content = b"\n" + content
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def lines(path: Path) -> list[bytes]:
    """The lines of the file that are not blank."""
    try:
        status = path.stat()
        _check_regular(status, path)
        if status.st_size > MAX_FILE_BYTES:
            raise DataError(
                f"{path}: {status.st_size} bytes; a ledger has at most {MAX_FILE_BYTES}: begin another"
            )
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise DataError(
            f"{path}: the ledger cannot be read: {reason}; EQUIPOISE_LEDGER names another"
        ) from err
    return [line for line in data.split(b"\n") if line.strip()]


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: not a regular file; expected a ledger, lines of JSON")


def matches(ledger: Ledger, runs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Measured]]:
    """What rows of the table `runs` measured of the ledger's current predictions, new ones alone.

    A row belongs to a prediction where workload, accelerator and number are the same, and strategy and batch
    where both state them. A row of several quantities belongs to each.
    """
    known = {each.id: {one.source for one in each.measured} for each in ledger.entries}
    by_size = sorted(ledger.current(), key=lambda each: each.prediction.num_accelerators)
    sized = {
        size: list(some) for size, some in groupby(by_size, key=lambda each: each.prediction.num_accelerators)
    }
    for row in runs:
        if row["status"] != "success":
            continue
        for entry in sized.get(row["num_accelerators"], ()):
            value = measured_value(row, entry.prediction)
            if value is not None and row["run_id"] not in known[entry.id]:
                known[entry.id].add(row["run_id"])
                yield (
                    entry.id,
                    Measured(quantity=entry.prediction.quantity, value=value, source=row["run_id"]),
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How wrong the predictions of a ledger were.

    record: their errors; bias: median of predicted over measured time. num_predictions: in the ledger;
    num_measured: those of which something was measured. level: of the intervals.
    """

    path: Path
    num_predictions: int
    num_measured: int
    record: Record
    bias: float
    level: float


def running(
    path: Path | None = None, *, workload: str | None = None, accelerator: str | None = None
) -> Running | None:
    """How wrong the ledger's predictions were; None where nothing was measured of any.

    path: `ledger_path()` unless given. workload, accelerator: of these alone.
    """
    ledger = read_ledger(path or ledger_path())
    chosen = [
        each
        for each in ledger.entries
        if workload in {None, each.prediction.workload} and accelerator in {None, each.prediction.accelerator}
    ]
    return running_of(ledger.path, chosen)


def running_of(path: Path, entries: Sequence[Entry]) -> Running | None:
    """The running error of entries; None where nothing was measured of any.

    Assumes each measured prediction counts once, however many repetitions it has.
    """
    errors = [each.error for each in entries if each.error is not None]
    if not errors:
        return None
    measured = [each for each in entries if each.error is not None]
    sizes = sorted(abs(error) for error in errors)
    names = sorted({each.prediction.workload or "your own model" for each in measured})
    more = " and others" if len(names) > _MOST_NAMES else ""
    return Running(
        path=path,
        num_predictions=len(entries),
        num_measured=len(errors),
        record=Record(
            of=f"your own ledger, {', '.join(names[:_MOST_NAMES])}{more}",
            num_held_out=len(errors),
            median_abs_error=median(sizes),
            p90_abs_error=_quantile(sizes, _P90) if len(errors) > 1 else None,
            coverage=sum(bool(each.is_covered) for each in measured) / len(measured),
        ),
        bias=median(1.0 + error for error in errors),
        level=min(each.prediction.level for each in measured),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted values, (n_values,), on the straight line between neighbours.

    Assumes at least one value. Source: Hyndman and Fan 1996, definition 7.
    """
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])

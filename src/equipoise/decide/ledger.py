"""The ledger: a file of JSON lines with predictions, later measurements of them, and the errors so far."""

import fcntl
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from equipoise import __version__
from equipoise.calibration import EstimatorName, HeldOutErrors
from equipoise.decide.question.field import MAX_ACCELERATORS
from equipoise.errors import DataError, SpecError, UsageError
from equipoise.files import encodable, parsed_json, read_input, sync_folder, user_file
from equipoise.intervals import LEVEL
from equipoise.spec.strategy import PRECISIONS, without_ranks
from equipoise.spec.strategy import strategy as strategy_of
from equipoise.stats import by_key, quantiles
from equipoise.units import MIB, listed

Quantity: TypeAlias = Literal["time_to_train_s", "step_s", "samples_per_s"]
_MAX_TEXT: Final = 1000
_MAX_SAMPLES: Final = 10**12
# ZeRO stages of a strategy that match a training method of `bench`.
_ZERO_STAGES: Final[Mapping[str, tuple[int, ...]]] = {"ddp": (0,), "static_graph": (0,), "fsdp": (2, 3)}


class RecordedPrediction(Struct, frozen=True, kw_only=True):
    """One predicted number: the verb, the set-up, and the interval at `level`.

    strategy, global_batch_samples: None if the prediction is for any. kind, ref: the estimator with the most
    weight, and its name. from_runs: ids of the user's runs that it was made from, which therefore do not test
    it.
    Raises UsageError for invalid values.
    """

    verb: str
    workload: str | None
    accelerator: str | None
    num_accelerators: int
    quantity: Quantity
    value: float
    low: float
    high: float
    kind: EstimatorName
    strategy: str | None = None
    global_batch_samples: int | None = None
    level: float = LEVEL
    ref: str = ""
    from_runs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values with which no later run can be compared."""
        for name, value, most in (
            ("num_accelerators", self.num_accelerators, MAX_ACCELERATORS),
            ("batch", self.global_batch_samples, _MAX_SAMPLES),
        ):
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (is_whole and 1 <= value <= most):
                raise UsageError(
                    f"a prediction has {name}={value!r}; expected a whole number, at most {most:,}"
                )
        ends = (self.low, self.value, self.high)
        if not all(is_amount(each) for each in ends) or not self.low <= self.value <= self.high:
            raise UsageError(f"a prediction is {ends}; expected low <= value <= high, finite and above 0")
        if not is_amount(self.level) or not self.level < 1.0:
            raise UsageError(f"a prediction has level={self.level!r}; expected a fraction")
        known = self.quantity in get_args(Quantity) and self.kind in get_args(EstimatorName)
        texts = [text for text in (self.workload, self.accelerator, self.strategy) if text is not None]
        if not known or not all(is_text(text) for text in (*texts, self.verb, self.ref, *self.from_runs)):
            raise UsageError(
                f"a prediction has quantity={self.quantity!r}, kind={self.kind!r}: see docs/decide/ledger.md"
            )

    @property
    def set_up(self) -> tuple[object, ...]:
        """The key by which a later prediction replaces an earlier one."""
        return (
            self.verb,
            self.workload,
            self.accelerator,
            self.num_accelerators,
            self.strategy,
            self.global_batch_samples,
            self.quantity,
        )


class MeasuredResult(Struct, frozen=True, kw_only=True):
    """A measured amount of a run. source: name of the run, which counts only once; None if it has none."""

    quantity: Quantity
    value: float
    source: str | None = None

    def __post_init__(self) -> None:
        """Refuse invalid quantities, values and sources."""
        if self.quantity not in get_args(Quantity) or not is_amount(self.value):
            raise UsageError(f"measured {self.quantity}={self.value!r}; expected a finite number above 0")
        if self.source is not None and not is_text(self.source):
            raise UsageError(f"source={self.source!r}; expected the name of a run")


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """A recorded prediction and its later measurements. made: when, ISO 8601 in UTC."""

    id: str
    made: str
    prediction: RecordedPrediction
    measured: tuple[MeasuredResult, ...]

    @property
    def outcome(self) -> float | None:
        """The median of the measurements; None without any."""
        return median(each.value for each in self.measured) if self.measured else None

    @property
    def error(self) -> float | None:
        """Predicted over measured time, minus 1; the inverse ratio for rates. None without measurements."""
        if self.outcome is None:
            return None
        ratio = self.prediction.value / self.outcome
        return (1.0 / ratio if self.prediction.quantity == "samples_per_s" else ratio) - 1.0

    @property
    def in_steps(self) -> "LedgerEntry":
        """The entry as step times if it is a rate at a stated batch; the ends of its interval swap."""
        about, batch = self.prediction, self.prediction.global_batch_samples
        if about.quantity != "samples_per_s" or batch is None:
            return self
        value, low, high = (batch / each for each in (about.value, about.high, about.low))
        return replace(
            self,
            prediction=replace(about, quantity="step_s", value=value, low=low, high=high),
            measured=tuple(
                replace(each, quantity="step_s", value=batch / each.value) for each in self.measured
            ),
        )

    @property
    def is_covered(self) -> bool | None:
        """Whether the interval covers the median of the measurements; None without any."""
        if self.outcome is None:
            return None
        return self.prediction.low <= self.outcome <= self.prediction.high


def measured_value(row: Mapping[str, Any], prediction: RecordedPrediction) -> float | None:
    """The predicted quantity as measured by a row of `runs`; None if the row is of another set-up."""
    if differences(row, prediction):
        return None
    return _amount(row, prediction.quantity)


def _amount(row: Mapping[str, Any], quantity: Quantity) -> float | None:
    """A quantity of a row of the table `runs`; None if the row does not state it."""
    if quantity == "step_s":
        batch, rate = row["global_batch_samples"], row["samples_per_s"]
        value = batch / rate if batch and rate else None
    else:
        value = row[quantity]
    return value if value is not None and is_amount(value) else None


def differences(row: Mapping[str, Any], prediction: RecordedPrediction) -> tuple[str, ...]:
    """The facts in which the set-ups of a row of the table `runs` and a prediction differ, in words."""
    about: Sequence[tuple[str, str]] = (
        ("workload", "workload"),
        ("accelerator", "accelerator"),
        ("number of accelerators", "num_accelerators"),
        ("batch", "global_batch_samples"),
    )
    pairs = [(words, row[name], getattr(prediction, name)) for words, name in about]
    found = [
        f"{words} ({ran} ran, {predicted} was predicted)"
        for words, ran, predicted in pairs
        if ran != predicted and not (words == "batch" and None in {ran, predicted})
    ]
    if not _is_same_strategy(row, prediction.strategy):
        ran = " in ".join(str(row[name]) for name in ("strategy", "precision") if row.get(name))
        found.append(f"strategy ({ran} ran, {prediction.strategy} was predicted)")
    return tuple(found)


def _is_same_strategy(row: Mapping[str, Any], predicted: str | None) -> bool:
    """Whether strategy and precision of a run are as predicted, as far as both are stated.

    row: its strategy is the text of a strategy, or a training method of `bench`.
    """
    ran = row["strategy"]
    if predicted is None or ran == predicted:
        return True
    try:
        stated = strategy_of(predicted)
    except SpecError:
        return ran is None or without_ranks(ran) == without_ranks(predicted)
    if row.get("precision") in PRECISIONS and row["precision"] != stated.precision:
        return False
    from equipoise.launch import bench_method  # noqa: PLC0415 - only where runs are compared

    if ran is None or ran == bench_method(stated):
        return True
    is_data_parallel = stated.dp == stated.num_accelerators and stated.compression == "none"
    return is_data_parallel and stated.zero_stage in _ZERO_STAGES.get(ran, ())


def is_text(value: object) -> bool:
    """Whether a value is text short enough for a line."""
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def is_amount(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return 0.0 < float(value) < math.inf
    except OverflowError:
        return False


SCHEMA: Final = "equipoise.ledger/2"
_READ_SCHEMAS: Final = ("equipoise.ledger/1", SCHEMA)
# Names of estimators in schema 1.
_KINDS: Final[Mapping[str, str]] = {"modelled": "model"}
MAX_FILE_BYTES: Final = 64 * MIB
_MAX_LINE_BYTES: Final = 64 * 1024
_EXPECTED: Final = "a ledger, lines of JSON, or another file by EQUIPOISE_LEDGER"
_P90: Final = 0.9
_MOST_NAMES: Final = 3


class Ledger(Struct, frozen=True, kw_only=True):
    """The contents of a ledger. num_damaged: unreadable lines, such as one cut short by a killed writer."""

    path: Path
    entries: tuple[LedgerEntry, ...]
    num_damaged: int

    def entry(self, id_: str) -> LedgerEntry:
        """The entry whose id starts with a text. Raises UsageError if there is none, or several."""
        found = [each for each in self.entries if each.id.startswith(id_)] if id_ else []
        if len(found) != 1:
            number = "0 predictions" if not found else f"{len(found)} predictions"
            raise UsageError(
                f"--for {id_!r}: {number} in {self.path} have that id; `equipoise record` lists them"
            )
        return found[0]

    def current(self) -> tuple[LedgerEntry, ...]:
        """The last prediction of each verb for each set-up, with which new runs are compared."""
        return tuple({each.prediction.set_up: each for each in self.entries}.values())


LEDGER: Final = ("ledger.jsonl", "EQUIPOISE_LEDGER")  # file name, and the variable that overrides the path


def ledger_path() -> Path:
    """The path of the ledger: $EQUIPOISE_LEDGER, else in the data folder of the XDG specification."""
    return user_file(*LEDGER)


def add_predictions(path: Path, predictions: Sequence[RecordedPrediction]) -> tuple[str, ...]:
    """Appends predictions to a ledger, durably, and returns their ids.

    Raises DataError if the file cannot be written; then none of them is added.
    """
    ids = tuple(os.urandom(4).hex() for _ in predictions)
    append(
        path,
        [
            {**_line_header("prediction"), "id": id_, **to_builtins(each)}
            for id_, each in zip(ids, predictions, strict=True)
        ],
    )
    return ids


def add_measured(path: Path, found: Sequence[tuple[str, MeasuredResult]]) -> None:
    """Appends measurements of predictions, given by id. Raises DataError as `add_predictions` does."""
    append(
        path, [{**_line_header("measurement"), "prediction": id_, **to_builtins(each)} for id_, each in found]
    )


def read_ledger(path: Path) -> Ledger:
    """The contents of a ledger; empty if there is no file. Raises DataError if it cannot be read.

    Cached until the file changes, since an answer reads it once per system.
    """
    try:
        state = path.stat()
    except OSError:  # no file, or one for which `lines` reports the reason
        return _parsed(path)
    return _parsed_unless_changed(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _parsed_unless_changed(path: Path, _mtime_ns: int, _num_bytes: int) -> Ledger:
    return _parsed(path)


def _parsed(path: Path) -> Ledger:
    found: dict[str, tuple[str, RecordedPrediction, dict[object, MeasuredResult]]] = {}
    num_damaged = 0
    for number, line in enumerate(lines(path)):
        try:
            document = _document(line)
            if document["line"] == "prediction":
                document["kind"] = _KINDS.get(document["kind"], document["kind"])
                document["from_runs"] = tuple(document.get("from_runs", ()))
                prediction = RecordedPrediction(
                    **{name: document[name] for name in RecordedPrediction.__struct_fields__}
                )
                found.setdefault(_text(document["id"]), (_text(document["made"]), prediction, {}))
            else:
                one = MeasuredResult(**{name: document[name] for name in MeasuredResult.__struct_fields__})
                _, prediction, measured = found[_text(document["prediction"])]
                _check_same_quantity(one, prediction)
                measured.setdefault(number if one.source is None else one.source, one)
        except (ValueError, KeyError, TypeError, RecursionError, UsageError):
            num_damaged += 1
    entries = tuple(
        LedgerEntry(id=id_, made=made, prediction=prediction, measured=tuple(measured.values()))
        for id_, (made, prediction, measured) in found.items()
    )
    return Ledger(path=path, entries=entries, num_damaged=num_damaged)


def _check_same_quantity(one: MeasuredResult, prediction: RecordedPrediction) -> None:
    if one.quantity != prediction.quantity:
        raise UsageError(f"a measurement of {one.quantity}; expected {prediction.quantity}")


def _line_header(line: str) -> dict[str, str]:
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return {"schema": SCHEMA, "line": line, "made": made, "equipoise": __version__}


def _document(line: bytes) -> dict[str, Any]:
    """The document in one line. Raises ValueError or TypeError if it is not of a known schema."""
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError("a line too long for a ledger")
    found = parsed_json(line)
    if not isinstance(found, dict) or found.get("schema") not in _READ_SCHEMAS:
        raise ValueError("an unknown schema")
    if found.get("line") not in {"prediction", "measurement"}:
        raise ValueError("an unknown kind of line")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str) or not is_text(value) or not value:
        raise TypeError("not text")
    return value


def append(path: Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Appends whole lines durably, with one writer at a time; adds nothing if it fails.

    A line left unfinished by a killed writer is terminated first, so that it damages no other line.
    """
    content = b"".join(json.dumps(encodable(each), allow_nan=False).encode() + b"\n" for each in documents)
    if not content:
        return
    try:
        is_new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DataError(f"{path}: not a regular file; expected {_EXPECTED}")
            # The kernel releases the lock when the process ends, for whatever reason.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _write_end(descriptor, content)
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(path.parent)
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise DataError(
            f"{path}: the ledger cannot be written: {reason}; set EQUIPOISE_LEDGER to use another file"
        ) from err


def _write_end(descriptor: int, content: bytes) -> None:
    """Appends all of the content to an open, locked file, or nothing."""
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
    """The non-blank lines of a file; empty if there is no file."""
    try:
        data = read_input(path, MAX_FILE_BYTES, expected=_EXPECTED, may_be_pipe=False)
    except DataError as err:
        if isinstance(err.__cause__, FileNotFoundError):
            return []
        raise
    return [line for line in data.split(b"\n") if line.strip()]


def matches(ledger: Ledger, runs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, MeasuredResult]]:
    """New measurements of the ledger's current predictions by rows of the table `runs`, with entry ids.

    A row matches a prediction if workload, accelerator and size are equal, and strategy and batch where both
    state them, unless the prediction was made from it. A row with several quantities matches each.
    """
    known = {
        each.id: {*(one.source for one in each.measured), *each.prediction.from_runs}
        for each in ledger.entries
    }
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
                    MeasuredResult(quantity=entry.prediction.quantity, value=value, source=row["run_id"]),
                )


def nearest_differences(ledger: Ledger, runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The differences that prevent the closest pair of run and current prediction from being compared; empty
    if there are none, as for a run that counts already.
    """
    found = (
        (*differences(row, each.prediction), *_unmeasured(row, each.prediction))
        for row in runs
        for each in ledger.current()
    )
    return min(found, key=len, default=())


def _unmeasured(row: Mapping[str, Any], prediction: RecordedPrediction) -> Iterator[str]:
    """Why a row of the table `runs` is no measurement of a prediction for its set-up, in words."""
    if row["status"] != "success":
        yield f"status ({row['status'] or 'none'} stated, success counts)"
    if _amount(row, prediction.quantity) is None:
        stated = [each for each in get_args(Quantity) if _amount(row, each) is not None]
        yield f"quantity ({listed(stated) or 'none'} measured, {prediction.quantity} was predicted)"


def beside_predictions(ledger: Ledger, runs: Iterable[Mapping[str, Any]]) -> tuple[LedgerEntry, ...]:
    """The current predictions that rows of the table `runs` match, each with only their measurements."""
    unmeasured = tuple(replace(each, measured=()) for each in ledger.current())
    found = by_key(matches(replace(ledger, entries=unmeasured), runs))
    return tuple(replace(each, measured=tuple(found[each.id])) for each in unmeasured if each.id in found)


class Running(Struct, frozen=True, kw_only=True):
    """The errors of a ledger's predictions so far.

    record: their errors; bias: median of predicted over measured time. num_predictions: in the ledger;
    num_measured: those with measurements. level: of the intervals.
    """

    num_predictions: int
    num_measured: int
    record: HeldOutErrors
    bias: float
    level: float


class LedgerReport(Struct, frozen=True, kw_only=True):
    """Entries of a ledger. num_added: measurements added by this call; None if it was not asked to add any.

    differing: how the given runs differ from the closest prediction.
    """

    ledger: Ledger
    entries: tuple[LedgerEntry, ...]
    num_added: int | None
    differing: tuple[str, ...] = ()

    @property
    def running(self) -> Running | None:
        """The errors of the entries; None without measurements."""
        return running_of(self.entries)


def running(path: Path | None = None, *, accelerator: str | None = None) -> Running | None:
    """The errors of the ledger's predictions; None without measurements.

    path: `ledger_path()` unless given. accelerator: only predictions for this one.
    """
    ledger = read_ledger(path or ledger_path())
    chosen = [each for each in ledger.entries if accelerator in {None, each.prediction.accelerator}]
    return running_of(chosen)


def running_of(entries: Sequence[LedgerEntry]) -> Running | None:
    """The errors of entries; None without measurements.

    Assumes each measured prediction counts once, however many measurements it has.
    """
    measured = [each for each in entries if each.error is not None]
    if not measured:
        return None
    errors = [each.error for each in measured if each.error is not None]
    sizes = sorted(abs(error) for error in errors)
    workloads, systems = (
        listed(sorted(names), _MOST_NAMES)
        for names in (
            {each.prediction.workload or "your model" for each in measured},
            {each.prediction.accelerator or "an unknown accelerator" for each in measured},
        )
    )
    return Running(
        num_predictions=len(entries),
        num_measured=len(errors),
        record=HeldOutErrors(
            of=f"your ledger, {workloads} on {systems}",
            num_held_out=len(errors),
            median_abs_error=median(sizes),
            p90_abs_error=float(quantiles(sizes, (_P90,))[0]) if len(errors) > 1 else None,
            coverage=sum(bool(each.is_covered) for each in measured) / len(measured),
        ),
        bias=median(1.0 + error for error in errors),
        level=min(each.prediction.level for each in measured),
    )

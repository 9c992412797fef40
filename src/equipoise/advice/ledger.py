"""Predictions that were made, what was measured later, and how wrong they were.

Nothing is written unless somebody asks for it. docs/ledger.md tells the form of the lines.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Any, Literal, TypeAlias, get_args

from equipoise import __version__
from equipoise.advice.forecast.answer import LEVEL, MAX_ACCELERATORS, Record
from equipoise.advice.ledger_file import append, lines
from equipoise.errors import UsageError

Quantity: TypeAlias = Literal["time_to_train_s", "step_s", "samples_per_s"]
PredictionKind: TypeAlias = Literal["published", "measured", "modelled"]
SCHEMA = "equipoise.ledger/1"
_MAX_TEXT = 1000
_MAX_SAMPLES = 10**12
_MAX_LINE_BYTES = 64 * 1024
_P90 = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One number that was foretold: by which verb, of which set-up, with its interval at `level`.

    strategy, global_batch_samples: None where the prediction is of any. kind, ref: what it rests on.
    Raises UsageError for a number that is none.
    """

    verb: str
    workload: str | None
    accelerator: str | None
    num_accelerators: int
    quantity: Quantity
    value: float
    low: float
    high: float
    kind: PredictionKind
    strategy: str | None = None
    global_batch_samples: int | None = None
    level: float = LEVEL
    ref: str = ""

    def __post_init__(self) -> None:
        """Refuse what no later run could be held against."""
        for name, value in (
            ("num_accelerators", self.num_accelerators),
            ("batch", self.global_batch_samples),
        ):
            most = MAX_ACCELERATORS if name == "num_accelerators" else _MAX_SAMPLES
            if value is not None and not (_is_whole(value) and 1 <= value <= most):
                raise UsageError(
                    f"a prediction has {name}={value!r}; expected a whole number, at most {most:,}"
                )
        ends = (self.low, self.value, self.high)
        if not all(is_amount(each) for each in ends) or not self.low <= self.value <= self.high:
            raise UsageError(f"a prediction is {ends}; expected low <= value <= high, finite and above 0")
        if not is_amount(self.level) or not self.level < 1.0:
            raise UsageError(f"a prediction has level={self.level!r}; expected a fraction")
        known = self.quantity in get_args(Quantity) and self.kind in get_args(PredictionKind)
        texts = [text for text in (self.workload, self.accelerator, self.strategy) if text is not None]
        if not known or not all(_is_text(text) for text in (*texts, self.verb, self.ref)):
            raise UsageError(
                f"a prediction has quantity={self.quantity!r}, kind={self.kind!r}: see docs/ledger.md"
            )

    @property
    def set_up(self) -> tuple[object, ...]:
        """What two predictions share where the later one takes the place of the earlier."""
        return (
            self.verb,
            self.workload,
            self.accelerator,
            self.num_accelerators,
            self.strategy,
            self.global_batch_samples,
            self.quantity,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run took. source: its name, by which it counts once; None where it has none."""

    quantity: Quantity
    value: float
    source: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is no amount."""
        if self.quantity not in get_args(Quantity) or not is_amount(self.value):
            raise UsageError(f"measured {self.quantity}={self.value!r}; expected a finite number above 0")
        if self.source is not None and not _is_text(self.source):
            raise UsageError(f"source={self.source!r}; expected the name of a run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A prediction of the ledger with what was measured of it since. made: when, ISO 8601 in UTC."""

    id: str
    made: str
    prediction: Prediction
    measured: tuple[Measured, ...]

    @property
    def outcome(self) -> float | None:
        """The median of what was measured; None where nothing was."""
        return median(each.value for each in self.measured) if self.measured else None

    @property
    def error(self) -> float | None:
        """Predicted time over the measured one, minus 1; of rates the inverse. None where nothing was."""
        if self.outcome is None:
            return None
        ratio = self.prediction.value / self.outcome
        return (1.0 / ratio if self.prediction.quantity == "samples_per_s" else ratio) - 1.0

    @property
    def is_held(self) -> bool | None:
        """Whether the interval held what was measured."""
        if self.outcome is None:
            return None
        return self.prediction.low <= self.outcome <= self.prediction.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a ledger holds. num_damaged: lines that are none of its own, as one a kill cut short."""

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
        """The last prediction of each set-up by each verb: those that a new run is held against."""
        return tuple({each.prediction.set_up: each for each in self.entries}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How wrong one's own predictions were.

    record: their errors; bias: median of predicted over measured time. num_predictions: in the ledger;
    num_measured: those of which something was measured. level: of the intervals.
    """

    path: Path
    num_predictions: int
    num_measured: int
    record: Record
    bias: float
    level: float


def ledger_path() -> Path:
    """Where the ledger is: $EQUIPOISE_LEDGER, else in the folder for data of the XDG specification."""
    named = os.environ.get("EQUIPOISE_LEDGER")
    if named:
        return Path(named)
    data = os.environ.get("XDG_DATA_HOME", "")
    # The specification has relative paths ignored.
    home = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return home / "equipoise" / "ledger.jsonl"


def add_predictions(path: Path, predictions: Sequence[Prediction]) -> tuple[str, ...]:
    """Put predictions into a ledger; their ids. When this returns they are on disk.

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
    """Put what was measured of predictions, by their ids, into a ledger. Raises DataError likewise."""
    append(path, [{**_head("measurement"), "prediction": id_, **asdict(each)} for id_, each in found])


def read_ledger(path: Path) -> Ledger:
    """What the ledger holds; nothing where there is no file. Raises DataError where it cannot be read."""
    found: dict[str, tuple[str, Prediction, dict[object, Measured]]] = {}
    num_damaged = 0
    for number, line in enumerate(lines(path)):
        try:
            document = _document(line)
            if document["line"] == "prediction":
                prediction = Prediction(**{each.name: document[each.name] for each in fields(Prediction)})
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
    told = [each for each in entries if each.error is not None]
    sizes = sorted(abs(error) for error in errors)
    names = sorted({each.prediction.workload or "your own model" for each in told})
    return Running(
        path=path,
        num_predictions=len(entries),
        num_measured=len(errors),
        record=Record(
            of=f"your own ledger, {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}",  # noqa: PLR2004 - as many as a line holds
            num_held_out=len(errors),
            median_abs_error=median(sizes),
            p90_abs_error=_quantile(sizes, _P90) if len(errors) > 1 else None,
            coverage=sum(bool(each.is_held) for each in told) / len(told),
        ),
        bias=median(1.0 + error for error in errors),
        level=min(each.prediction.level for each in told),
    )


def _check_same_quantity(one: Measured, prediction: Prediction) -> None:
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
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError("another schema")
    if found.get("line") not in {"prediction", "measurement"}:
        raise ValueError("another kind of line")
    return found


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted values, (n_values,), on the straight line between neighbours.

    Assumes at least one value. Source: Hyndman and Fan 1996, definition 7.
    """
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _text(value: object) -> str:
    if not isinstance(value, str) or not _is_text(value) or not value:
        raise TypeError("no text")
    return value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_amount(value: object) -> bool:
    """Whether it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return 0.0 < float(value) < math.inf
    except OverflowError:
        return False

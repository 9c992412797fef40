"""The ledger: predictions put into a file of lines and read from it, with what was measured of each.

Nothing is written unless somebody asks for it. docs/ledger.md tells the form of the lines.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from equipoise import __version__
from equipoise.advice.ledger.file import append, lines
from equipoise.advice.ledger.prediction import Entry, Measured, Prediction, is_text
from equipoise.errors import UsageError

SCHEMA = "equipoise.ledger/1"
_MAX_LINE_BYTES = 64 * 1024


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


def _text(value: object) -> str:
    if not isinstance(value, str) or not is_text(value) or not value:
        raise TypeError("no text")
    return value

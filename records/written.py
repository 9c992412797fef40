"""What the records share: how errors on rows held out are stated, and files of equipoise/data written."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from msgspec import convert, to_builtins

from equipoise.calibration.accuracy import TimeErrors
from equipoise.calibration.profiles import ProfileRecord
from equipoise.intervals import LEVEL
from equipoise.runs import embedded
from equipoise.units import significant

DATA = Path(str(files("equipoise") / "data"))


def write_record(name: str, document: Mapping[str, Any], *, num_digits: int = 5) -> None:
    """Write a record of equipoise/data, by its name, its numbers rounded.

    num_digits: as many as are the same whatever the order of sums inside a library: the file is then the same
    bytes.
    """
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    (DATA / name).write_bytes(orjson.dumps(significant(document, num_digits), option=option))


def write_of_dataset(name: str, found: Mapping[str, object]) -> None:
    """Write a record with the version of the dataset that it is of, four digits a number."""
    write_record(name, {"dataset": embedded.version(), **found}, num_digits=4)


def profile_record(errors: TimeErrors, *, split: str, log_half_width: float) -> ProfileRecord:
    """The record of errors on rows held out by a split."""
    of_record = {"split": split, "level": LEVEL, "log_half_width": log_half_width}
    return convert({**to_builtins(errors), **of_record}, ProfileRecord)

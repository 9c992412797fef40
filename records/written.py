"""Writes records to files of equipoise/data."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from equipoise.runs import embedded
from equipoise.units import significant

DATA = Path(str(files("equipoise") / "data"))


def write_record(name: str, document: Mapping[str, Any], *, num_digits: int = 5) -> None:
    """Write a file of equipoise/data, with numbers rounded.

    num_digits: few enough that the order of sums inside libraries does not matter, so that files are
    reproducible.
    """
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    (DATA / name).write_bytes(orjson.dumps(significant(document, num_digits), option=option))


def write_of_dataset(name: str, found: Mapping[str, object]) -> None:
    """Write a record with the version of its dataset, and four digits per number."""
    write_record(name, {"dataset": embedded.version(), **found}, num_digits=4)

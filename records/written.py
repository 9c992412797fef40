"""What the records share: how files of equipoise/data are written."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

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

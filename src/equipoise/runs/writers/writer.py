"""The seam of exports: what a writer is. Each lives in its own file; the tuple of all is in `__init__`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TypeAlias

import polars as pl

Write: TypeAlias = Callable[[pl.DataFrame, IO[bytes]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A format for any table: its name, the suffix of its files, and what writes a frame to an open file."""

    name: str
    suffix: str
    write: Write

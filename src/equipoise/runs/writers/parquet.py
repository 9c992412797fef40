"""Parquet with fixed options, so that equal frames give equal bytes."""

from typing import IO

import polars as pl

from equipoise.runs.writers.writer import Writer

# 19 of 22: the last levels cost seconds and save less than 1 % of the embedded dataset.
_ZSTD_LEVEL = 19
# One row group for any table of this project: its bytes then depend on nothing but the rows.
_ROW_GROUP_ROWS = 2**20


def write(frame: pl.DataFrame, file: IO[bytes]) -> None:
    """The frame as Parquet, compressed with zstd, without statistics."""
    frame.rechunk().write_parquet(
        file,
        compression="zstd",
        compression_level=_ZSTD_LEVEL,
        statistics=False,
        row_group_size=_ROW_GROUP_ROWS,
    )


PARQUET = Writer(name="parquet", suffix=".parquet", write=write)

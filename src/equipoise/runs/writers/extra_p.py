"""Extra-P's JSON lines: one measured value a line, against the number of accelerators.

Source: Extra-P 4.2, File format documentation, JSON Lines format.
"""

from typing import IO

import orjson
import polars as pl

from equipoise.errors import UsageError
from equipoise.runs.writers.writer import Writer

_SIZE = "num_accelerators"
_METRICS = ("score_s", "time_to_train_s", "samples_per_s", "samples_to_target", "energy_j")
# What parts the levels of a call path; a name that holds it would make two of one.
_ARROW = "->"


def _write(frame: pl.DataFrame, file: IO[bytes]) -> None:
    if _SIZE not in frame.columns:
        raise UsageError(f"extra-p: a table without {_SIZE} has no measurements against size; export runs")
    metrics = [name for name in _METRICS if name in frame.columns]
    for row in frame.filter(pl.col(_SIZE) > 0).iter_rows(named=True):
        who = row["submitter"] or row["system"]
        entry = row["campaign"] if who is None else f"{row['campaign']}/{who}"
        levels = (row["workload"], row["accelerator"], entry)
        for metric in metrics:
            value = row[metric]
            if value is not None and 0.0 < value < float("inf"):
                line = {
                    "params": {_SIZE: row[_SIZE]},
                    "callpath": _ARROW.join(str(each or "unknown").replace(_ARROW, "-") for each in levels),
                    "metric": metric,
                    "value": value,
                }
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


EXTRA_P = Writer(name="extra-p", suffix=".extra-p", write=_write)

"""Extra-P's JSON lines: one measured value a line, against the number of accelerators.

Source: Extra-P 4.2, File format documentation, JSON Lines format. Beyond it, Extra-P refuses a file of which
one call path has other points than another.
"""

from typing import IO, Any

import orjson
import polars as pl

from equipoise.errors import UsageError
from equipoise.runs.writers.writer import Writer

_SIZE = "num_accelerators"
_METRICS = ("score_s", "time_to_train_s", "samples_per_s", "samples_to_target", "energy_j")
_LEVELS = ("workload", "accelerator", "campaign")
# What parts the levels of a call path; a name that holds it would make two of one.
_ARROW = "->"


def _write(frame: pl.DataFrame, file: IO[bytes]) -> None:
    if _SIZE not in frame.columns:
        raise UsageError(f"extra-p: a table without {_SIZE} has no measurements against size; export runs")
    paths: dict[str, list[dict[str, Any]]] = {}
    for row in frame.filter(pl.col(_SIZE) > 0).iter_rows(named=True):
        levels = (str(row[name] or "unknown").replace(_ARROW, "-") for name in _LEVELS)
        paths.setdefault(_ARROW.join(levels), []).append(row)
    sizes = {path: {row[_SIZE] for row in rows} for path, rows in paths.items()}
    if len(set(map(frozenset, sizes.values()))) > 1:
        raise UsageError(
            f"extra-p: {len(paths)} groups of workload, accelerator and round, at different sizes; Extra-P "
            "reads a file only where all share theirs: choose with --workload, --accelerator and --round"
        )
    metrics = [name for name in _METRICS if name in frame.columns]
    for path, rows in paths.items():
        for metric in metrics:
            told = [row for row in rows if row[metric] is not None and 0.0 < row[metric] < float("inf")]
            if {row[_SIZE] for row in told} < sizes[path]:
                continue  # energy that few metered, say: Extra-P would refuse the whole file
            for row in told:
                line = {
                    "params": {_SIZE: row[_SIZE]},
                    "callpath": path,
                    "metric": metric,
                    "value": row[metric],
                }
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


EXTRA_P = Writer(name="extra-p", suffix=".extra-p", write=_write)

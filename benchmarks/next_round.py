"""Times of a round that is not embedded, predicted from those that are: MLPerf Training v6.0.

    python benchmarks/next_round.py

docs/experiments/data/0083-round-v6.csv has what was read of the round, written down before any was
predicted; docs/experiments/0083-an-unseen-round.md what came of it. Each entry is asked at its accelerator
and size: batch, strategy and precision are chosen as for anybody. An answer rests on a
published result of the size, on results of other sizes, rounds or chips, or on the model alone.
"""

import math
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl

import equipoise
from equipoise.errors import EquipoiseError

ROUND = Path(__file__).parents[1] / "docs/experiments/data/0083-round-v6.csv"
_P90 = 0.9
# A range that is no wider is that of a published result, repeated.
_REPEATED = 1.2


def predicted(entry: dict[str, object], submitter: str) -> tuple[float, float, float] | None:
    """Minutes of an entry and the ends of their range; None where nothing is known of it."""
    try:
        found = equipoise.advise(
            str(entry["workload"]),
            accelerator=str(entry["accelerator"]),
            accelerators=str(entry["accelerators"]),
            submitter=submitter,
        ).record
    except EquipoiseError:
        return None
    times = [each.time_s for each in found.candidates if each.num_accelerators == entry["accelerators"]]
    known = [each for each in times if each is not None]
    best = min(known, key=lambda each: each.value, default=None)
    return None if best is None else (best.value / 60, best.low / 60, best.high / 60)


def row(name: str, entries: list[dict[str, object]], found: list[tuple[float, float, float]]) -> str:
    """Median, 90 % and bias of the errors, and the share inside the ranges, as a row of a table."""
    actual = [float(str(each["minutes"])) for each in entries]
    logs = [math.log(each[0] / minutes) for each, minutes in zip(found, actual, strict=True)]
    errors = [abs(math.expm1(each)) for each in logs]
    inside = [low <= minutes <= high for (_, low, high), minutes in zip(found, actual, strict=True)]
    return (
        f"| {name} | {len(found)} | {median(errors):.1%} | {np.quantile(errors, _P90):.1%} | "
        f"{math.exp(median(logs)):.2f} | {np.mean(inside):.0%} |"
    )


def main() -> None:
    """Ask for every entry, as the best and as a new submitter, and print the table in Markdown."""
    entries = pl.read_csv(ROUND, comment_prefix="#").to_dicts()
    print("| entries | number | median error | 90 % | predicted / measured | inside 90 % |")
    print("|---|---|---|---|---|---|")
    answers = {name: [(each, predicted(each, name)) for each in entries] for name in ("best", "new")}
    known = [(each, found) for each, found in answers["best"] if found is not None]
    parts = {f"all but {len(entries) - len(known)} without an answer": known}
    for each in known:
        is_repeated = each[1][2] / each[1][1] < _REPEATED
        for name in ("at a published size" if is_repeated else "at others", str(each[0]["workload"])):
            parts.setdefault(name, []).append(each)
    parts["all, as a new submitter"] = [(each, found) for each, found in answers["new"] if found is not None]
    for name, some in parts.items():
        print(row(name, [each for each, _ in some], [found for _, found in some]))


if __name__ == "__main__":
    main()

"""Watched runs as the tables `runs`, `scores`, `steps`, made from what ranks left; made again, the same."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from equipoise.bench.phases import STEP
from equipoise.bench.store import SUCCESS
from equipoise.bench.tables import accelerator_of, run_row, step_rows, write
from equipoise.bench.watching.joined import Watched, joined
from equipoise.bench.watching.record import RankRecord, rank_records, run_folder, runs_in
from equipoise.errors import DataError
from equipoise.runs.schema import RUNS, STEPS

# Ranks end at about the same time; one that died has nothing more to say.
_END_S = 10.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTables:
    """The tables `runs` and `steps` of a folder."""

    runs: pl.DataFrame
    steps: pl.DataFrame


def write_tables(out: Path, run: str, *, wait: bool) -> Watched:
    """The run as all its ranks saw it, once the tables of every run in the folder are written.

    wait: for ranks that have not said that they ended, for a while. Raises DataError as `tables.write`.
    """
    folder = run_folder(out, run)
    deadline = time.monotonic() + (_END_S if wait else 0.0)
    records = rank_records(folder)
    while not all(record.end for record in records) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        records = rank_records(folder)
    write_all(out)
    return joined(records)


def watched(out: str | Path) -> SeenTables:
    """The tables of every run that was watched into a folder, made anew from what its ranks left.

    Also of runs that were killed. Raises DataError where there is none.
    """
    folder = Path(out)
    if not runs_in(folder):
        raise DataError(f"{folder}: no run was watched into it; expected a folder `watched`")
    write_all(folder)
    runs, steps = (pl.read_parquet(folder / f"{table.name}.parquet") for table in (RUNS, STEPS))
    return SeenTables(runs=runs, steps=steps)


def write_all(out: Path) -> None:
    """Write the tables of every run that was watched into a folder. Raises DataError as `tables.write`."""
    runs: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    for folder in runs_in(out):
        records = rank_records(folder)
        watched = joined(records)
        row = _run(watched, records, folder)
        runs.append(row)
        steps += step_rows(row["run_id"], watched.steps)
    write(out, runs, steps)


def _run(watched: Watched, records: Sequence[RankRecord], folder: Path) -> dict[str, Any]:
    """The row of a run."""
    about = watched.about
    campaign = folder.parent.parent.resolve().name
    batch_samples = about["batch_samples"] or watched.num_samples
    step_s = median(step[STEP] for step in watched.steps) if watched.steps else None
    strategy = about.get("strategy")
    if strategy == "ddp" and watched.num_batches > 1:
        strategy = f"accumulate:{watched.num_batches}"
    return run_row(
        {
            "run_id": f"{campaign}/{folder.name}",
            "campaign": campaign,
            "system": about["conditions"].get("host"),
            "workload": about["workload"],
            "accelerator": accelerator_of(about["device"], about["conditions"]),
            "num_accelerators": watched.num_ranks,
            "num_nodes": len(watched.nodes),
            "framework": "pytorch",
            "precision": about.get("precision"),
            "strategy": strategy if watched.num_ranks > 1 else None,
            "global_batch_samples": batch_samples,
            "status": status_of(watched, records),
            "samples_per_s": batch_samples / step_s if batch_samples and step_s else None,
            "source_uri": f"{folder.parent.name}/{folder.name}/rank-0.jsonl",
        }
    )


def status_of(watched: Watched, records: Sequence[RankRecord]) -> str:
    """`success`, or what went wrong; steps that were seen before it stand."""
    for record in records:
        if not record.end:
            return f"failed: rank {record.rank} did not come to its end"
        if record.end.get("reason"):
            return f"failed: rank {record.rank} {record.end['reason']}"
    if not watched.steps:
        return "failed: no step was seen after warm-up"
    return SUCCESS

"""The tables `runs`, `scores` and `steps` of a sweep, made from its finished trials, as often as wanted.

Other measurements write the same tables from rows of their own: `run_row`, `step_rows`, `write`. No torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from equipoise.bench.methods import method
from equipoise.bench.store import SUCCESS, FinishedTrial, Store
from equipoise.bench.summary import timed_run, trained_run
from equipoise.errors import DataError
from equipoise.runs.store import (
    RUNS,
    SCORES,
    STEPS,
    Tables,
    TableSchema,
    polars_schema,
    write_table,
    write_tables,
)
from equipoise.spec.catalogue import Catalogue, shipped

ORIGIN = "measured"
# A score is the time to a stated target; steps and trainings of a stated length have none.
NO_SCORE = "measured steps; no training to a target"

# Runs with the same values here are repetitions of one configuration.
_CONFIGURATION = (
    "campaign",
    "system",
    "workload",
    "accelerator",
    "num_accelerators",
    "num_nodes",
    "precision",
    "strategy",
    "global_batch_samples",
)
_OF_ENTRY = tuple(name for name in RUNS.names if name in SCORES.names)


def run_row(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `runs`: every column, null where the facts do not say. Unknown facts raise DataError."""
    return _row(RUNS, {"origin": ORIGIN, **facts})


def step_rows(run_id: str, steps: Iterable[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Rows of `steps`: one a phase of each timed step, in order."""
    return [
        {"run_id": run_id, "repetition": number, "phase": phase, "seconds": seconds}
        for number, step in enumerate(steps, 1)
        for phase, seconds in step.items()
    ]


def write(folder: Path, runs: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> None:
    """Write the three tables into a folder, each atomically; `scores` has an entry per configuration.

    Raises DataError when rows break the schema, share a name, or cannot be written.
    """
    tables = Tables(runs=_frame(RUNS, runs), scores=_frame(SCORES, _entries(runs)))
    write_table(_frame(STEPS, steps), folder / f"{STEPS.name}.parquet", STEPS)
    write_tables(tables, folder)


def write_sweep_tables(folder: Path, catalogue: Catalogue | None = None) -> None:
    """Write the tables of the trials that are finished in a sweep's folder. Raises DataError, as `write`.

    catalogue: what names of devices mean; the shipped one unless given.
    """
    campaign = folder.resolve().name
    finished = Store(folder).finished()
    known = catalogue or shipped()
    runs = [_run(one, campaign, known) for one in finished]
    steps = [
        row
        for run, one in zip(runs, finished, strict=True)
        for row in step_rows(run["run_id"], one.result.get("steps") or ())
    ]
    write(folder, runs, steps)


def run_id(campaign: str, finished: FinishedTrial) -> str:
    """The name of a trial's run in the tables."""
    return f"{campaign}/{finished.trial.trial_id}"


def _run(finished: FinishedTrial, campaign: str, catalogue: Catalogue) -> dict[str, Any]:
    trial, result = finished.trial, finished.result
    timed, trained = timed_run(finished), trained_run(finished)
    rate = None
    if timed is not None:
        rate = trial.batch_samples / timed.step_s
    elif trained is not None and trained.seconds > 0:
        rate = trained.num_samples / trained.seconds
    machine = next(iter(result.get("nodes") or ()), finished.conditions)
    return run_row(
        {
            "run_id": run_id(campaign, finished),
            "campaign": campaign,
            "system": machine.get("host"),
            "workload": trial.workload,
            "accelerator": accelerator_of(trial.device, machine, catalogue),
            "num_accelerators": trial.num_ranks,
            "num_nodes": len(result.get("nodes") or ()) or 1,
            "framework": "pytorch",
            "precision": trial.precision,
            "strategy": None if trial.num_ranks == 1 else trial.method,
            "global_batch_samples": trial.batch_samples * _num_accumulated(trial.method),
            "status": finished.status if finished.status == SUCCESS else f"failed: {finished.reason}",
            "samples_per_s": rate,
            "energy_j": (result.get("energy") or {}).get("energy_j"),
            "source_uri": finished.file,
        }
    )


def _num_accumulated(text: str) -> int:
    """How many batches an update sums."""
    found, argument = method(text)
    return int(argument) if found.name == "accumulate" and argument else 1


def accelerator_of(device: str, machine: Mapping[str, Any], catalogue: Catalogue | None = None) -> str | None:
    """The slug of what the ranks computed on; its raw name where the catalogue does not have it."""
    raw = machine.get("processor") if device == "cpu" else machine.get("accelerator")
    return None if not raw else (catalogue or shipped()).accelerator_slug(str(raw)) or str(raw)


def _entries(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row of `scores` for each configuration: none has a score, with the reason."""

    def configuration(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in _CONFIGURATION)

    return [_entry(list(group)) for _, group in groupby(sorted(runs, key=configuration), configuration)]


def _entry(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = runs[0]
    rates = [row["samples_per_s"] for row in runs if row["samples_per_s"] is not None]
    energies = [row["energy_j"] for row in runs if row["energy_j"] is not None]
    words = [first[name] for name in ("workload", "strategy", "precision") if first[name] is not None]
    size = f"{first['num_accelerators']}x{first['global_batch_samples']}"
    where = "/".join(map(str, (first["campaign"], first["system"], "-".join([*words, size]))))
    num_failed = sum(row["status"] != SUCCESS for row in runs)
    kept = {name: first[name] for name in _OF_ENTRY if name in (*_CONFIGURATION, "origin", "framework")}
    return _row(
        SCORES,
        {
            **kept,
            "entry_id": where,
            "reason": NO_SCORE,
            "num_runs": len(runs),
            "num_failed": num_failed,
            "num_missing": 0,
            "samples_per_s": median(rates) if rates else None,
            "energy_j": median(energies) if energies else None,
            "source_uri": first["source_uri"],
        },
    )


def _row(table: TableSchema, facts: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(facts) - set(table.names))
    if unknown:
        raise DataError(f"table {table.name}: no column {', '.join(unknown)}; see docs/reference/tables.md")
    return {name: facts.get(name) for name in table.names}


def _frame(table: TableSchema, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([dict(row) for row in rows], schema=polars_schema(table), orient="row")

"""The tables `runs`, `scores` and `steps` of a sweep, made from its finished trials.

Other measurements write the same tables from rows of their own: `run_row`, `step_rows`, `write`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.bench.methods import method
from equipoise.bench.store import SUCCESS, FinishedTrial, Store
from equipoise.bench.summary import timed_run, trained_run
from equipoise.runs.store import (
    RUNS,
    SCORES,
    STEPS,
    Tables,
    frame_of,
    unscored_entries,
    write_table,
    write_tables,
)
from equipoise.spec.catalogue import Catalogue, shipped

ORIGIN = "measured"
# A score is the time to a stated target; steps and trainings of a stated length have none.
NO_SCORE = "measured steps; no training to a target"


def run_row(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `runs`: every column, null where the facts do not say."""
    return {**dict.fromkeys(RUNS.names), "origin": ORIGIN, **facts}


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
    entries = [{**entry, "entry_id": _entry_id(entry)} for entry in unscored_entries(runs, NO_SCORE)]
    write_table(frame_of(steps, STEPS), folder / f"{STEPS.name}.parquet", STEPS)
    write_tables(Tables(runs=frame_of(runs, RUNS), scores=frame_of(entries, SCORES)), folder)


def _entry_id(entry: Mapping[str, Any]) -> str:
    words = [entry[name] for name in ("workload", "strategy", "precision") if entry[name] is not None]
    size = f"{entry['num_accelerators']}x{entry['global_batch_samples']}"
    return "/".join(map(str, (entry["campaign"], entry["system"], "-".join([*words, size]))))


def write_sweep_tables(folder: Path, catalogue: Catalogue | None = None) -> None:
    """Write the tables of the trials that are finished in a sweep's folder. Raises DataError, as `write`.

    catalogue: what names of devices mean; the shipped one unless given.
    """
    finished = Store(folder).finished()
    runs = sweep_rows(folder, finished, catalogue)
    steps = [
        row
        for run, one in zip(runs, finished, strict=True)
        for row in step_rows(run["run_id"], one.result.get("steps") or ())
    ]
    write(folder, runs, steps)


def sweep_rows(
    folder: Path, finished: Sequence[FinishedTrial], catalogue: Catalogue | None = None
) -> list[dict[str, Any]]:
    """The rows of `runs` of a sweep's finished trials; nothing is written. catalogue: as above."""
    campaign, known = folder.resolve().name, catalogue or shipped()
    return [_run(one, campaign, known) for one in finished]


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

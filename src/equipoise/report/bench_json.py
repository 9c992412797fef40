"""The document of `bench`: a record per configuration with its repetitions; of `--find`, what was tried."""

from math import sqrt
from statistics import mean, stdev
from typing import Any, Final

from equipoise.bench.phases import PARTS
from equipoise.bench.summary import (
    LEVEL,
    ConfigurationSummary,
    Spread,
    interval_method,
    run_id,
    timed_run,
)
from equipoise.bench.trial import FAILED, SUCCESS, FinishedTrial
from equipoise.diagnose.method_search import FoundMethod, MethodCandidate
from equipoise.diagnose.sweeps import FalseDifferences, Judgement, Swept
from equipoise.errors import EvidenceError
from equipoise.intervals import LEVEL as USUAL_LEVEL
from equipoise.intervals import Interval
from equipoise.report.json import fields_of, missing_fields, picked, plain
from equipoise.units import significant

PARTLY = "partly_failed"


def sweep_fields(found: Swept) -> dict[str, Any]:
    """The document of a sweep."""
    refusal = {}
    if found.refusal:
        refusal = missing_fields(EvidenceError(found.refusal, missing=("a run that succeeds",)))
    return {
        **refusal,
        "sweep": found.name,
        "folder": str(found.folder),
        "num_trials": found.num_planned,
        "num_finished": len(found.finished),
        "num_failed": len(found.failed),
        **found.settings,
        "level": LEVEL,
        "configurations": [significant(_configuration(each, found.name)) for each in found.judgements],
        "false_differences": _false(found.false_differences),
        "meaning": list(found.meanings),
    }


# How a trial trains, and what documents call that.
_WAY_NAMES: Final = {"method": "strategy", "num_ranks": "num_accelerators", "batch_samples": "batch"}
_RATE_NAMES: Final = {
    "value": "samples_per_s",
    "low": "samples_per_s_low",
    "high": "samples_per_s_high",
}


def _configuration(judgement: Judgement, sweep: str) -> dict[str, Any]:
    summary = judgement.summary
    trial = summary.trial
    rate, reasons = summary.samples_per_s, [one.reason for one in summary.failed]
    return {
        "run_id": f"{sweep}/{trial.configuration_id}",
        "status": status(summary),
        "reason": reasons[0] if reasons else None,
        **picked(trial, "workload", *_WAY_NAMES, "precision", "device", **_WAY_NAMES),
        "num_repetitions": len(summary.finished),
        "num_failed": len(summary.failed),
        "step_s": _step(summary),
        "phases": summary.phases,
        **picked(rate, "value", "low", "high", **_RATE_NAMES),
        "speedup": plain(judgement.speedup),
        "efficiency": judgement.efficiency,
        "over_ddp": plain(judgement.over_plain),
        "lost_s": judgement.lost,
        "steady": summary.is_steady if summary.timed else None,
        "phases_sum": summary.parts_sum if summary.timed else None,
        "num_outlying_steps": sum(run.num_outliers for run in summary.timed),
        "num_outlying_repetitions": sum(summary.outlying),
        "num_disturbed": summary.num_disturbed,
        "memory_bytes": summary.median_of("memory_bytes"),
        "utilisation": {name: summary.median_of(name) for name in _UTILISATION},
        "energy_j": summary.median_of("energy_j"),
        "energy_reason": energy_reason(summary),
        "training": training(summary),
        "repetitions": [_repetition(one, sweep) for one in summary.finished],
    }


_UTILISATION: Final = (
    "cpu_fraction",
    "accelerator_fraction",
    "network_byte_per_s",
    "others_cpu_fraction",
    "others_accelerator_fraction",
    "num_others_on_accelerators",
)


def status(summary: ConfigurationSummary) -> str:
    """`success`, `failed`, or that only some repetitions failed."""
    if not summary.failed:
        return SUCCESS
    return FAILED if len(summary.failed) == len(summary.finished) else PARTLY


def energy_reason(summary: ConfigurationSummary) -> str | None:
    """Why no energy was measured; None where it was."""
    if not summary.timed or summary.median_of("energy_j") is not None:
        return None
    return next((run.energy_reason for run in summary.timed if run.energy_reason), "not measured")


def _step(summary: ConfigurationSummary) -> dict[str, Any] | None:
    found: Spread | None = summary.step_s
    if found is None:
        return None
    method = interval_method(len(summary.timed))
    return {**picked(found, "value", "low", "high", value="median"), "method": method}


def training(summary: ConfigurationSummary) -> dict[str, Any] | None:
    """The ends of the trainings, one per seed: means with standard errors; None where nothing was trained."""
    runs = summary.trained
    if not runs:
        return None
    ends = {
        "loss": [run.loss for run in runs],
        "accuracy": [run.accuracy for run in runs if run.accuracy is not None],
        "seconds": [run.seconds for run in runs],
    }
    return {
        "num_seeds": len(runs),
        "num_samples": runs[0].num_samples,
        **{name: _mean(values) for name, values in ends.items()},
    }


def _mean(values: list[float]) -> dict[str, float | None] | None:
    """A mean and its standard error, which one value has not."""
    if not values:
        return None
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else None
    return {"mean": mean(values), "standard_error": error}


_RUN_NAMES: Final = {"is_steady": "steady", "num_outliers": "num_outlying_steps"}


def _repetition(finished: FinishedTrial, sweep: str) -> dict[str, Any]:
    run = timed_run(finished)
    phases = {name: run.shares[name] * run.step_s for name in PARTS if name in run.shares} if run else {}
    return {
        "run_id": run_id(sweep, finished),
        **picked(finished, "status", "reason"),
        **picked(finished.trial, "repetition", "arm", "seed"),
        "file": finished.file,
        **picked(run, "step_s", "num_steps", "num_warm_up", "is_steady", "num_outliers", **_RUN_NAMES),
        "phases": phases,
    }


def _false(found: FalseDifferences | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "arms": "own" if found.are_arms else "odd and even repetitions",
        **picked(found, "num_compared", "num_different"),
        **picked(found.rate, "value", "low", "high", value="rate"),
    }


def find_fields(found: FoundMethod) -> dict[str, Any]:
    """The document of a search."""
    found_fields: dict[str, Any] = significant(
        {
            "find": {
                "folder": str(found.folder),
                **picked(found.space, "workload", "precision", "device"),
                "best": _candidate(found.best),
                "one_device": _candidate(found.alone),
                "plain_ddp": None if found.plain is None else _candidate(found.plain),
                "gain_over_one_device": _gain(found, found.alone, found.over_alone),
                "gain_over_plain_ddp": _gain(found, found.plain, found.over_plain),
                "num_candidates": len(found.tried),
                "num_trials": found.num_trials,
                "stopped": found.stopped,
                "predicted_median_error_fraction": found.median_error_fraction,
                "candidates": [_candidate(each) for each in found.tried],
                "refused": [fields_of(each, **_WAY_NAMES) for each in found.refused],
            }
        }
    )
    return found_fields


def _candidate(each: MethodCandidate) -> dict[str, Any]:
    step = each.predicted_step
    return {
        **picked(each.trial, *_WAY_NAMES, **_WAY_NAMES),
        **picked(each, "effect", "samples_per_s"),
        "num_runs": len(each.runs),
        "failed": each.failed,
        "predicted": None
        if step is None
        else {
            "samples_per_s": step.samples_per_s,
            **fields_of(step, method=None, num_ranks=None, batch_samples=None),
            "step_s": fields_of(step.step_s, level=None),
            "level": USUAL_LEVEL,
        },
        "not_predicted": each.not_predicted,
    }


def _gain(
    found: FoundMethod, other: MethodCandidate | None, interval: Interval | None
) -> dict[str, Any] | None:
    best = found.best.samples_per_s
    if other is None or other.samples_per_s is None or best is None:
        return None
    return {
        "value": best / other.samples_per_s,
        **picked(interval, "low", "high"),
        "level": USUAL_LEVEL,
    }

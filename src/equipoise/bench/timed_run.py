"""What one finished cell says, as numbers: its step, where the step went, memory, use, energy. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, inf
from statistics import median
from typing import Any

from equipoise.bench.phases import OVERLAPPED, PARTS, STEP, TOTAL
from equipoise.bench.steady import outliers
from equipoise.bench.store import SUCCESS, Finished
from equipoise.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """One run of timed steps; None is not measured.

    step_s: the median over cycles of a cycle's mean step. shares: each phase's fraction of the time of all
    marked steps; the parts sum to 1. parts_sum: whether they do so in each of them, within 5 %.
    memory_bytes: of the rank that took most. energy_j: of one step, on all nodes.
    """

    step_s: float
    shares: Mapping[str, float]
    num_steps: int
    num_outliers: int
    num_warm_up: int | None
    is_steady: bool
    parts_sum: bool
    memory_bytes: int | None
    cpu_fraction: float | None
    accelerator_fraction: float | None
    network_byte_per_s: float | None
    energy_j: float | None
    energy_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """One training: held-out loss and accuracy at its end, and the seconds spent on training."""

    num_samples: int
    seconds: float
    loss: float
    accuracy: float | None


def timed_run(finished: Finished) -> TimedRun | None:
    """The timed steps of a cell; None where it failed or trained.

    Raises DataError for a result that no worker leaves.
    Source: definitions in docs/measure/bench.md.
    """
    steps: Sequence[Mapping[str, float]] = finished.result.get("steps") or ()
    if finished.status != SUCCESS or not steps:
        return None
    if not isinstance(steps, list) or not all(map(_is_split, steps)):
        raise DataError(
            f"cells/{finished.cell.cell_id}.json: steps that are no positive seconds by phase; "
            "delete it to measure the cell again"
        )
    period: int = finished.result.get("period") or 1
    cycles = [steps[first : first + period] for first in range(0, len(steps) - period + 1, period)]
    cycle_s = [fsum(step[STEP] for step in cycle) / len(cycle) for cycle in cycles or [steps]]
    marked = [step for step in steps if len(step) > 1]  # the others were timed as a whole
    whole_s = fsum(step[STEP] for step in marked)
    named = [name for name in (*PARTS, TOTAL, OVERLAPPED) if all(name in step for step in marked)]
    use: Mapping[str, Any] = finished.result.get("utilisation") or {}
    energy: Mapping[str, Any] = finished.result.get("energy") or {}
    energy_j = energy.get("energy_j")
    return TimedRun(
        step_s=median(cycle_s),
        shares={name: fsum(step[name] for step in marked) / whole_s for name in named if marked},
        num_steps=len(steps),
        num_outliers=sum(outliers(cycle_s)),
        num_warm_up=finished.result.get("num_warm_up"),
        is_steady=bool(finished.result.get("steady")),
        parts_sum=(finished.result.get("sums") or {}).get("hold") is not False,
        memory_bytes=max(finished.result.get("memory_bytes") or (), default=None),
        cpu_fraction=use.get("cpu_fraction"),
        accelerator_fraction=use.get("accelerator_fraction"),
        network_byte_per_s=use.get("network_byte_per_s"),
        energy_j=None if energy_j is None else energy_j / len(steps),
        energy_reason=energy.get("reason"),
    )


def _is_split(step: object) -> bool:
    """Whether it is the seconds of a step by phase."""
    if not isinstance(step, dict) or STEP not in step:
        return False
    seconds = step.values()
    return all(type(each) in {int, float} and 0 <= each < inf for each in seconds) and step[STEP] > 0


def trained_run(finished: Finished) -> TrainedRun | None:
    """The end of a cell's training; None where it failed or only timed steps."""
    curve: Sequence[Mapping[str, Any]] = finished.result.get("curve") or ()
    if finished.status != SUCCESS or not curve:
        return None
    last = curve[-1]
    return TrainedRun(
        num_samples=last["samples"],
        seconds=last["seconds"],
        loss=last["loss"],
        accuracy=last.get("accuracy"),
    )

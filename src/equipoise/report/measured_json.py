"""Documents of measurement: topologies, collectives, traces, rows that a model predicts, and backtests."""

import math
from collections.abc import Sequence
from typing import Any, Final

from equipoise.bench.collectives import CollectiveRun
from equipoise.bench.topology.topology import Nic, Topology
from equipoise.bench.trace import RankTrace, Traces
from equipoise.calibration.advice_backtest import HeldOutAdvice, advice_errors
from equipoise.calibration.collective_verdicts import CollectiveFit, Links
from equipoise.calibration.validate import ValidatedRow, Validation
from equipoise.diagnose.link_findings import basis, gaps, sentences
from equipoise.diagnose.links import FAMILY, Meaning
from equipoise.diagnose.stragglers import Lateness, TraceSteps
from equipoise.intervals import LEVEL
from equipoise.report.json import fields_of, picked, plain
from equipoise.scaling.backtest import Backtest
from equipoise.spec.links import rank
from equipoise.units import significant

MOST_WORST: Final = 8
_PARTS: Final = ("compute_s", "communication_s", "exposed_s", "idle_s", "copy_s")


def topology_fields(found: Meaning) -> dict[str, Any]:
    """The document of `topology`."""
    topology = found.topology
    fields = {
        "origin": topology.origin,
        "devices": [
            {"accelerator": found.catalogue.accelerator_slug(each.title or ""), **fields_of(each)}
            for each in topology.devices
        ],
        "links": [fields_of(each, link_class="class") for each in topology.links],
        "islands": plain(found.islands.members),
        "unplaced": plain(found.islands.unplaced),
        "groups": [fields_of(each, link_class="class") for each in found.groups],
        "nics": [{**fields_of(each), "nearest": _nearest(each, topology)} for each in topology.nics],
        "missing_rows": [row.name for row in topology.missing_rows],
        "cut_rows": [fields_of(row) for row in topology.missing_rows if row.num_cells],
        "meaning": list(sentences(found)),
        "notes": list(gaps(topology)),
        "rates": [
            {"class": each.link_class, "num_pairs": each.num_pairs, **fields_of(each.reach)}
            for each in found.reached
        ],
        "predictions": {
            "batch": found.batch,
            "level": LEVEL,
            "basis": basis(found),
            "accelerators": [chip.slug for chip in found.candidates],
            "gains": [
                {**fields_of(each, link_class="class", title=None), "verdict": each.verdict}
                for each in found.gains
            ],
            "crossovers": [
                {**fields_of(each, link_class="class"), "family": FAMILY} for each in found.crossovers
            ],
            "parts": [fields_of(each, link_class="class", title=None) for each in found.parts],
        },
    }
    return {name: significant(value) for name, value in fields.items()}


def _nearest(nic: Nic, topology: Topology) -> dict[str, Any] | None:
    """The best class of link between a card and a device, and the devices that have it."""
    known = topology.classes
    near = {
        device.name: known[pair]
        for device in topology.devices
        if (pair := frozenset((device.name, nic.name))) in known
    }
    best = min(near.values(), key=rank, default=None)
    if best is None:
        return None
    return {"class": best, "devices": [name for name, link_class in near.items() if link_class == best]}


def collectives_fields(found: Links) -> dict[str, Any]:
    """The document of `collectives`."""
    return {
        "level": LEVEL,
        "num_rows": found.reading.num_rows,
        "fits": [significant(_fit(each)) for each in found.fits],
        "verdicts": [
            significant({**_run_fields(each.run), **fields_of(each, run=None)}) for each in found.verdicts
        ],
        "unfitted": [{**_run_fields(run), "reason": reason} for run, reason in found.unfitted],
        "rejected": found.reading.rejected.rows(),
        "notes": list(found.reading.notes),
    }


def _run_fields(run: CollectiveRun) -> dict[str, Any]:
    """What identifies a run."""
    return fields_of(run, number="run", timings=None, num_copies=None, link=None)


_LATENCY_NAMES: Final = {"value": "latency_s", "low": "latency_low_s", "high": "latency_high_s"}


def _fit(fit: CollectiveFit) -> dict[str, Any]:
    ends = ("value", "low", "high")
    return {
        **_run_fields(fit.run),
        **picked(fit.curve.latency_s, *ends, **_LATENCY_NAMES),
        **picked(fit.curve.byte_per_s, *ends, value="byte_per_s"),
        "bus_byte_per_s": fit.bus_byte_per_s,
        **picked(fit.curve, "num_points", "log_sd", "regimes"),
        "cpu_fractions": [
            {"payload_bytes": size, "cpu_fraction": share} for size, share in fit.cpu_fractions
        ],
    }


def trace_fields(found: TraceSteps) -> dict[str, Any]:
    """The document of `trace`. Seconds are exact to the nanosecond, so that parts sum to steps."""
    late = {id(each.trace): each for each in found.lateness}
    return {
        "ranks": [_traced_rank(each, late.get(id(each))) for each in found.traces.ranks],
        "stragglers": [_straggler(each) for each in stragglers(found.lateness)],
        "rejected": found.traces.rejected.rows(),
        "unread": [fields_of(each) for each in found.traces.unread],
        "notes": [{"note": note, "files": files} for note, files in trace_notes(found.traces).items()],
    }


def _traced_rank(trace: RankTrace, late: Lateness | None) -> dict[str, Any]:
    return {
        **picked(trace, "rank", "device", "world_size", "where", where="file"),
        "num_steps": len(trace.steps),
        "total_s": total_s(trace, "step_s"),
        **{part: total_s(trace, part) for part in _PARTS},
        "late_s": None if late is None else _nanoseconds(late.late_s),
        "steps": [fields_of(each, number="step") for each in trace.steps],
    }


def total_s(trace: RankTrace, part: str) -> float | None:
    """A part's sum over the steps; None where the trace lacks it."""
    values = [getattr(step, part) for step in trace.steps]
    return None if any(value is None for value in values) else _nanoseconds(math.fsum(values))


def _nanoseconds(seconds: float) -> float:
    """Seconds to the nanosecond, which is what traces resolve."""
    return round(seconds, 9)


def stragglers(lateness: Sequence[Lateness]) -> list[Lateness]:
    """The ranks that are late, the latest first."""
    return sorted((each for each in lateness if each.is_late), key=lambda each: -each.late_s)


def _straggler(each: Lateness) -> dict[str, Any]:
    step_s = median_step_s(each.trace)
    return {
        **picked(each.trace, "rank", "device", "where", where="file"),
        "late_s": _nanoseconds(each.late_s),
        "late_fraction": each.late_s / step_s if step_s else None,
        **picked(each, "share_of_steps", "cause", "by"),
    }


def median_step_s(trace: RankTrace) -> float:
    """The median step of a rank."""
    ordered = sorted(step.step_s for step in trace.steps)
    return ordered[len(ordered) // 2]


def trace_notes(found: Traces) -> dict[str, list[str]]:
    """Each note once, with the files it is of."""
    notes: dict[str, list[str]] = {}
    for trace in found.ranks:
        for note in trace.notes:
            if trace.where not in notes.setdefault(note, []):
                notes[note].append(trace.where)
    return notes


def backtest_fields(result: Backtest) -> dict[str, Any]:
    """The document of `backtest`."""
    found: dict[str, Any] = significant(fields_of(result))
    return found


def advice_backtest_fields(results: Sequence[HeldOutAdvice]) -> dict[str, Any]:
    """The document of `backtest --advice`."""
    return {
        "protocol": "advice",
        "errors": significant(plain(advice_errors(results))),
        "groups": [_held_out(one) for one in results],
    }


def _held_out(one: HeldOutAdvice) -> dict[str, Any]:
    where = ("num_accelerators", "limited_by", "is_smallest", "low", "high")  # not what it costs
    points = {"advised": picked(one.advised, *where), "found": picked(one.found, *where)}
    return {**fields_of(one, losses=None), **points, "losses": significant(plain(one.losses))}


def validation_fields(found: Validation, *, num_worst: int = MOST_WORST) -> dict[str, Any]:
    """The document of `validate`."""
    return {
        "summary": significant(_summary(found)),
        "files": significant(plain(found.by_file)),
        "folds": significant(plain(found.by_fold)),
        "reasons": [{"reason": reason, "count": count} for reason, count in found.reasons],
        "worst": [
            {**picked(each.row, "file", "row"), "error": significant(each.error)}
            for each in worst(found, num_worst)
        ],
        "rows": [_row(each) for each in found.verdicts],
    }


def _summary(found: Validation) -> dict[str, Any]:
    num_predicted = len(found.verdicts) - found.num_given
    whole = {"verdicts": None, "by_file": None, "by_fold": None, "reasons": None, "errors": None}
    return {
        **fields_of(found.errors),
        **fields_of(found, **whole),
        "num_rows": len(found.verdicts),
        "modelled_fraction": found.num_modelled / num_predicted if num_predicted else None,
        "calibrations": [*dict.fromkeys(each.calibration for each in found.verdicts if each.calibration)],
    }


def _row(verdict: ValidatedRow) -> dict[str, Any]:
    row = verdict.row
    return {
        **picked(row, "file", "row", "measured"),
        **significant(picked(verdict, "predicted", "low", "high")),
        "unit": row.unit,
        "reason": verdict.reason,
        "error": significant(verdict.error),
        "measured_s": significant(row.seconds),
        "execution": row.execution if row.execution >= 0 else None,
        "cluster": row.cluster if row.cluster >= 0 else None,
        **picked(verdict, "fold", "by", "calibration", by="predictor"),
        "memory_bytes": significant(row.memory_bytes),
        "predicted_memory_bytes": significant(verdict.memory_bytes),
        **picked(row, "strategy", "notes"),
    }


def worst(found: Validation, num_worst: int) -> list[ValidatedRow]:
    """The rows with the largest errors, one per execution."""
    seen: set[int] = set()
    worst = []
    for each in sorted(
        (each for each in found.verdicts if each.error is not None), key=lambda each: -(each.error or 0.0)
    ):
        if each.row.execution not in seen:
            seen.add(each.row.execution)
            worst.append(each)
    return worst[:num_worst]

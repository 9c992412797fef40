"""Documents of measurement: topologies, collectives, traces, rows that a model predicts, and backtests."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from equipoise.bench.collectives.records import CollectiveRun
from equipoise.bench.topology.topology import Device, Nic, Topology
from equipoise.bench.trace.rank import RankTrace, Traces, TraceStep
from equipoise.calibration.advice_backtest import HeldOutAdvice, advice_errors
from equipoise.calibration.collectives import LEVEL as CURVE_LEVEL
from equipoise.calibration.collectives import Fit, Links
from equipoise.calibration.collectives import Verdict as LinkVerdict
from equipoise.calibration.validate import Validation, Verdict
from equipoise.diagnose.link_findings import basis, gaps, sentences
from equipoise.diagnose.links import FAMILY, Meaning
from equipoise.diagnose.pairs import LEVEL
from equipoise.diagnose.stragglers import Lateness, TraceSteps
from equipoise.scaling.backtest import Backtest
from equipoise.scaling.equilibrium import Equilibrium
from equipoise.spec.links import rank
from equipoise.units import significant

MOST_WORST: Final = 8


def topology_fields(found: Meaning) -> dict[str, Any]:
    """The document of `topology`."""
    topology = found.topology
    said = {
        "origin": topology.origin,
        "devices": [_device(device, found) for device in topology.devices],
        "links": [
            {
                "a": link.a,
                "b": link.b,
                "class": link.link_class,
                "peers": link.peers,
                "weight": link.weight,
                "hops": link.hops,
                "conflict": None if link.conflict is None else list(link.conflict),
            }
            for link in topology.links
        ],
        "islands": [list(group) for group in found.islands.members],
        "unplaced": list(found.islands.unplaced),
        "groups": [
            {
                "num_devices": group.num_devices,
                "class": group.link_class,
                "devices": list(group.devices),
                "worst_class": group.worst_class,
            }
            for group in found.groups
        ],
        "nics": [_nic(nic, topology) for nic in topology.nics],
        "missing_rows": [row.name for row in topology.missing_rows],
        "cut_rows": [asdict(row) for row in topology.missing_rows if row.num_cells],
        "meaning": list(sentences(found)),
        "notes": list(gaps(topology)),
        "rates": [_rates(found, place) for place in range(len(found.reached))],
        "predictions": _predictions(found),
    }
    return {name: significant(value) for name, value in said.items()}


def _device(device: Device, found: Meaning) -> dict[str, Any]:
    return {
        "name": device.name,
        "kind": device.kind,
        "accelerator": found.catalogue.accelerator_slug(device.title or ""),
        "title": device.title,
        "cpu_affinity": device.cpu_affinity,
        "numa_affinity": device.numa_affinity,
        "numa_id": device.numa_id,
        "slices": list(device.slices),
        "slot_byte_per_s": device.slot_byte_per_s,
        "num_cores": device.num_cores,
    }


def _nic(nic: Nic, topology: Topology) -> dict[str, Any]:
    known = topology.classes
    near = {
        device.name: known[pair]
        for device in topology.devices
        if (pair := frozenset((device.name, nic.name))) in known
    }
    best = min(near.values(), key=rank, default=None)
    nearest = None
    if best is not None:
        nearest = {"class": best, "devices": [name for name, said in near.items() if said == best]}
    return {"name": nic.name, "title": nic.title, "byte_per_s": nic.byte_per_s, "nearest": nearest}


def _rates(found: Meaning, place: int) -> dict[str, Any]:
    each = found.reached[place]
    return {
        "class": each.link_class,
        "num_pairs": each.num_pairs,
        "path": each.reach.path,
        "byte_per_s": each.reach.byte_per_s,
        "low": each.reach.low,
        "high": each.reach.high,
        "stated_byte_per_s": list(each.reach.stated_byte_per_s),
        "latency_s": each.reach.latency_s,
        "source": each.reach.source,
    }


def _predictions(found: Meaning) -> dict[str, Any]:
    return {
        "batch": found.batch,
        "level": LEVEL,
        "basis": basis(found),
        "accelerators": [chip.slug for chip in found.candidates],
        "gains": [
            {
                "class": gain.link_class,
                "workload": gain.workload,
                "params": gain.params,
                "speedup": gain.speedup,
                "low": gain.low,
                "high": gain.high,
                "verdict": gain.verdict,
            }
            for gain in found.gains
        ],
        "crossovers": [
            {
                "class": each.link_class,
                "family": FAMILY,
                "params": each.params,
                "low": each.low,
                "high": each.high,
                "least": each.least,
                "most": each.most,
            }
            for each in found.crossovers
        ],
        "parts": [
            {
                "class": each.link_class,
                "workload": each.workload,
                "one_s": each.one_s,
                "share_s": each.share_s,
                "launching_s": each.launching_s,
                "exchange_s": each.exchange_s,
            }
            for each in found.parts
        ],
    }


def collectives_fields(found: Links) -> dict[str, Any]:
    """The document of `collectives`."""
    return {
        "level": CURVE_LEVEL,
        "num_rows": found.reading.num_rows,
        "fits": [significant(_fit(each)) for each in found.fits],
        "verdicts": [significant(_link_verdict(each)) for each in found.verdicts],
        "unfitted": [{**_named(run), "reason": reason} for run, reason in found.unfitted],
        "rejected": found.reading.rejected.rows(),
        "notes": list(found.reading.notes),
    }


def _named(run: CollectiveRun) -> dict[str, Any]:
    """What identifies a run."""
    return {
        "operation": run.operation,
        "num_ranks": run.num_ranks,
        "num_nodes": run.num_nodes,
        "device": run.device,
        "backend": run.backend,
        "file": run.file,
        "run": run.number,
    }


def _fit(fit: Fit) -> dict[str, Any]:
    latency, rate = fit.curve.latency_s, fit.curve.byte_per_s
    return {
        **_named(fit.run),
        "latency_s": latency and latency.value,
        "latency_low_s": latency and latency.low,
        "latency_high_s": latency and latency.high,
        "byte_per_s": rate and rate.value,
        "low": rate and rate.low,
        "high": rate and rate.high,
        "bus_byte_per_s": fit.bus_byte_per_s,
        "num_points": fit.curve.num_points,
        "log_sd": fit.curve.log_sd,
        "regimes": [asdict(each) for each in fit.curve.regimes],
        "cpu_fractions": [
            {"payload_bytes": size, "cpu_fraction": share} for size, share in fit.cpu_fractions
        ],
    }


def _link_verdict(verdict: LinkVerdict) -> dict[str, Any]:
    plain: Mapping[str, Any] = {
        name: getattr(verdict, name)
        for name in ("quantity", "payload_bytes", "measured", "low", "expected", "high", "verdict", "because")
    }
    return {
        **_named(verdict.run),
        **plain,
        "link": verdict.link,
        "link_byte_per_s": verdict.link_byte_per_s,
        "evidence": list(verdict.evidence),
    }


def trace_fields(found: TraceSteps) -> dict[str, Any]:
    """The document of `trace`. Seconds are exact to the nanosecond, so that parts sum to steps."""
    late = {id(each.trace): each for each in found.lateness}
    return {
        "ranks": [_traced_rank(each, late.get(id(each))) for each in found.traces.ranks],
        "stragglers": [_straggler(each) for each in stragglers(found.lateness)],
        "rejected": found.traces.rejected.rows(),
        "notes": [{"note": note, "files": files} for note, files in trace_notes(found.traces).items()],
    }


def _traced_rank(trace: RankTrace, late: Lateness | None) -> dict[str, Any]:
    return {
        "rank": trace.rank,
        "device": trace.device,
        "world_size": trace.world_size,
        "file": trace.where,
        "num_steps": len(trace.steps),
        "total_s": total_s(trace, "step_s"),
        "compute_s": total_s(trace, "compute_s"),
        "communication_s": total_s(trace, "communication_s"),
        "exposed_s": total_s(trace, "exposed_s"),
        "idle_s": total_s(trace, "idle_s"),
        "copy_s": total_s(trace, "copy_s"),
        "late_s": None if late is None else _nanoseconds(late.late_s),
        "steps": [_step(each) for each in trace.steps],
    }


def _step(step: TraceStep) -> dict[str, Any]:
    whole = asdict(step)
    return {"step": whole.pop("number"), **whole}


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
        "rank": each.trace.rank,
        "device": each.trace.device,
        "file": each.trace.where,
        "late_s": _nanoseconds(each.late_s),
        "late_fraction": each.late_s / step_s if step_s else None,
        "share_of_steps": each.share_of_steps,
        "cause": each.cause,
        "by": each.by,
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
    return {
        "protocol": result.protocol,
        "given_batch": result.given_batch,
        "ours": significant(asdict(result.ours)),
        "baselines": {name: significant(asdict(record)) for name, record in result.baselines.items()},
        "groups": [significant(asdict(one)) for one in result.groups],
    }


def advice_backtest_fields(results: Sequence[HeldOutAdvice]) -> dict[str, Any]:
    """The document of `backtest --advice`."""
    return {
        "protocol": "advice",
        "errors": [significant(asdict(each)) for each in advice_errors(results)],
        "groups": [_held_out(one) for one in results],
    }


def _held_out(one: HeldOutAdvice) -> dict[str, Any]:
    return {
        "round": one.round,
        "workload": one.workload,
        "accelerator": one.accelerator,
        "held_out": one.held_out,
        "objective": one.objective,
        "largest_known": one.largest_known,
        "largest": one.largest,
        "advised": _advised(one.advised),
        "found": _advised(one.found),
        "losses": {name: significant(asdict(each)) for name, each in one.losses.items()},
    }


def _advised(point: Equilibrium) -> dict[str, Any]:
    return {
        "num_accelerators": point.num_accelerators,
        "limited_by": point.limited_by,
        "is_smallest": point.is_smallest,
        "low": point.low,
        "high": point.high,
    }


def validation_fields(found: Validation, *, num_worst: int = MOST_WORST) -> dict[str, Any]:
    """The document of `validate`."""
    return {
        "summary": significant(_summary(found)),
        "files": {name: significant(asdict(errors)) for name, errors in found.by_file.items()},
        "folds": {name: significant(asdict(errors)) for name, errors in found.by_fold.items()},
        "reasons": [{"reason": reason, "count": count} for reason, count in found.reasons],
        "worst": [_place(each) for each in worst(found, num_worst)],
        "rows": [_row(each) for each in found.verdicts],
    }


def _summary(found: Validation) -> dict[str, Any]:
    errors = found.errors
    num_asked = len(found.verdicts) - found.num_given
    return {
        "num_rows": len(found.verdicts),
        "num_expressed": found.num_expressed,
        "num_executions": found.num_executions,
        "num_clusters": errors.num_clusters,
        "mape": errors.mape,
        "median": errors.median,
        "p90": errors.p90,
        "coverage": errors.coverage,
        "split": found.split,
        "level": found.level,
        "num_given": found.num_given,
        "expressed_fraction": found.num_expressed / num_asked if num_asked else None,
        "mape_by_execution": errors.mape_by_execution,
        "median_by_execution": errors.median_by_execution,
        "calibrated_on": list(found.calibrated_on),
        "profiles": [*dict.fromkeys(each.profile for each in found.verdicts if each.profile)],
        "in_sample": found.in_sample,
        "memory": None if found.memory is None else asdict(found.memory),
        "regret": None if found.regret is None else asdict(found.regret),
    }


def _place(verdict: Verdict) -> dict[str, Any]:
    return {"file": verdict.row.file, "row": verdict.row.row, "error": significant(verdict.error)}


def _row(verdict: Verdict) -> dict[str, Any]:
    row = verdict.row
    return {
        "file": row.file,
        "row": row.row,
        "measured": row.measured,
        "predicted": significant(verdict.predicted),
        "low": significant(verdict.low),
        "high": significant(verdict.high),
        "unit": row.unit,
        "reason": verdict.reason,
        "error": significant(verdict.error),
        "measured_s": significant(row.seconds),
        "execution": row.execution if row.execution >= 0 else None,
        "cluster": row.cluster if row.cluster >= 0 else None,
        "fold": verdict.fold,
        "predictor": verdict.by,
        "profile": verdict.profile,
        "memory_bytes": significant(row.memory_bytes),
        "predicted_memory_bytes": significant(verdict.memory_bytes),
        "strategy": row.strategy.text() if row.strategy else None,
        "notes": list(row.notes),
    }


def worst(found: Validation, num_worst: int) -> list[Verdict]:
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

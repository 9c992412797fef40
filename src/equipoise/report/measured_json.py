"""Records of measurement as plain values for JSON: a topology and its meaning, rows that a model predicts."""

from dataclasses import asdict
from typing import Any, Final

from equipoise.advice.links.gain_words import basis
from equipoise.advice.links.link_words import gaps, sentences
from equipoise.advice.links.links import FAMILY, Meaning
from equipoise.advice.links.pair import LEVEL
from equipoise.advice.validation.validate import Validation, Verdict
from equipoise.bench.topology.topology import Device, Nic, Topology
from equipoise.spec.link_class import rank
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
                "said": None if link.said is None else list(link.said),
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

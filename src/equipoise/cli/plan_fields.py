"""What `equipoise plan` says to scripts: the fields of its document."""

from dataclasses import asdict
from typing import Any

from equipoise.advice.plans.planned import Comparison, Option, Plan
from equipoise.cli.foretold import equilibrium_fields
from equipoise.economics import bill_fields
from equipoise.units import significant


def fields(found: Comparison) -> dict[str, Any]:
    """The fields of the document: those of the plan to take, and all plans where several were compared."""
    whole = _plan(found.plan)
    if len(found.plans) > 1:
        whole["compared"] = [_plan(each) for each in found.plans]
    return {name: significant(value) for name, value in whole.items()}


def _plan(found: Plan) -> dict[str, Any]:
    return {
        "workload": found.workload.slug,
        "cluster": _cluster(found),
        "objective": found.question.objective,
        "recommended": None if found.recommended is None else _option(found.recommended),
        "alternatives": [_option(each) for each in found.alternatives],
        "pareto": [_option(each) for each in found.pareto],
        "sizes": [_option(each) for each in found.by_size],
        "equilibria": [equilibrium_fields(each) for each in found.points],
        "answer": None if found.answer is None else found.answer.kind,
        "rejected": [asdict(each) for each in found.rejected],
        "remedy": found.remedy,
        "evidence": [
            asdict(each) for each in (*((found.seen,) if found.seen else ()), *found.length.evidence)
        ],
        "record": {**asdict(found.basis), "plans": asdict(found.record)},
        "length": {
            "words": found.length.words,
            "whole": found.length.is_whole,
            "missing": list(found.length.missing),
        },
        "links": links_fields(found),
        "rates": asdict(found.rates),
        "notes": list(found.notes),
        "num_considered": found.num_considered,
        "num_fitting": found.num_fitting,
        "search_s": found.search_s,
    }


def links_fields(plan: Plan | None) -> dict[str, Any] | None:
    """What own timed collectives said of the links; None where none were given."""
    if plan is None or plan.links is None:
        return None
    found = plan.links
    return {
        "timed": [asdict(each) for each in found.figures],
        "by_law": list(found.by_law),
        "timed_inside": found.inside,
        "timed_between": found.between,
        "step_doubt": None if plan.link_doubt is None else asdict(plan.link_doubt),
        "notes": list(found.notes),
    }


def _cluster(found: Plan) -> dict[str, Any]:
    nodes = found.cluster
    return {
        "name": nodes.name,
        "accelerator": nodes.accelerator.slug,
        "memory_bytes": nodes.accelerator.memory_bytes,
        "node_size": nodes.node_size,
        "topology": nodes.topology,
        "intra_byte_per_s": nodes.intra.byte_per_s,
        "inter_byte_per_s": nodes.inter.byte_per_s,
    }


def _option(each: Option) -> dict[str, Any]:
    return {
        "accelerator": each.accelerator,
        "num_accelerators": each.num_accelerators,
        "strategy": each.strategy.text(),
        "time_s": asdict(each.time),
        **bill_fields(each.bill),
        "memory_bytes": each.memory_bytes,
        "step_s": each.step_s,
        "samples": each.samples,
        "goodput": each.goodput,
        "flop_share": each.flop_share,
        "memory": dict(each.memory),
        "seconds": dict(each.seconds),
    }

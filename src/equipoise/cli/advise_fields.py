"""What `equipoise advise` says to scripts: the fields of its document."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from equipoise.advice.answer.advice import Advice, Choice, Standing
from equipoise.advice.answer.checked_traces import TraceCheck
from equipoise.cli.foretold import equilibrium_fields
from equipoise.cli.plan_fields import links_fields
from equipoise.cli.priced import ownership_fields, risk_fields
from equipoise.economics import bill_fields
from equipoise.scaling.equilibrium import words
from equipoise.units import significant


def fields(found: Advice) -> dict[str, Any]:
    """The fields of the document."""
    best, standing = found.recommended, found.standing
    whole: dict[str, Any] = {
        "workload": found.workload,
        "cluster": _cluster(standing),
        "objective": found.request.objective,
        "recommended": None if best is None else _choice(best),
        "obstacle": standing.obstacle,
        "alternatives": [
            {**_choice(each.choice), "words": each.words, "wins_when": each.wins_when}
            for each in found.alternatives
        ],
        "pareto": [_choice(each) for each in _front(standing.choices)],
        "sizes": [_choice(each) for each in (*standing.choices, *standing.beyond.values())],
        "compared": [
            {
                "cluster": _cluster(each),
                "recommended": None if each.recommended is None else _choice(each.recommended),
                "obstacle": each.obstacle,
            }
            for each in found.others
        ],
        "equilibria": [{**equilibrium_fields(each), "words": words(each)} for each in standing.points],
        "answer": None if standing.answer is None else standing.answer.kind,
        "next_doubling": None if found.next_doubling is None else asdict(found.next_doubling),
        "reasons": [asdict(each) for each in found.reasons],
        "to_measure": [asdict(each) for each in found.to_measure],
        "swing": None if found.swing is None else asdict(found.swing),
        "risks": [risk_fields(each) for each in found.risks],
        "ownership": None if found.ownership is None else ownership_fields(found.ownership),
        "snippets": [asdict(each) for each in found.snippets],
        "settings": [asdict(each) for each in found.settings],
        "rejected": [] if standing.plan is None else [asdict(each) for each in standing.plan.rejected],
        "evidence": [] if best is None else [*_evidence(best)],
        "record": {each.kind: asdict(each) for each in found.records},
        "length": {
            "words": standing.length.words,
            "whole": standing.length.is_whole,
            "missing": list(standing.length.missing),
        },
        "links": links_fields(standing.plan),
        "traces": [_trace(each) for each in standing.traces],
        "rates": asdict(standing.rates),
        "notes": list(found.notes),
        "num_considered": None if standing.plan is None else standing.plan.num_considered,
        "search_s": None if standing.plan is None else standing.plan.search_s,
    }
    return {name: significant(value) for name, value in whole.items()}


def _cluster(standing: Standing) -> dict[str, Any]:
    nodes = standing.cluster
    return {
        "accelerator": standing.accelerator,
        "title": standing.title,
        "name": None if nodes is None else nodes.name,
        "node_size": None if nodes is None else nodes.node_size,
        "memory_bytes": None if nodes is None else nodes.accelerator.memory_bytes,
    }


def _trace(each: TraceCheck) -> dict[str, Any]:
    """A traced run beside the model."""
    trace = each.trace
    return {
        "files": list(trace.files),
        "num_traced": trace.num_traced,
        "num_accelerators": trace.num_ranks,
        "device": trace.device,
        "num_steps": trace.num_steps,
        "step_s": trace.step_s,
        "log_sd": trace.log_sd,
        "compute_share": trace.compute_share,
        "exposed_share": trace.exposed_share,
        "idle_share": trace.idle_share,
        "strategy": None if trace.strategy is None else trace.strategy.text(),
        "modelled_step_s": each.modelled_step_s,
        "modelled_exposed_share": each.modelled_exposed_share,
        "missing": list(trace.missing),
        "notes": list(trace.notes),
    }


def _choice(each: Choice) -> dict[str, Any]:
    option = each.option
    return {
        "accelerator": each.accelerator,
        "num_accelerators": each.num_accelerators,
        "strategy": None if option is None else option.strategy.text(),
        "global_batch_samples": None if option is None else option.strategy.global_batch_samples,
        "time_s": asdict(each.time),
        **bill_fields(each.bill),
        "memory_bytes": None if option is None else option.memory_bytes,
        "step_s": None if option is None else option.step_s,
        "chance_in_time": each.chance_in_time,
        "disagreement": each.disagreement,
        "witnesses": [
            {
                "kind": one.kind,
                "name": one.name,
                "weight": one.weight,
                "time_s": asdict(one.time),
                "why": one.why,
            }
            for one in each.evidence
        ],
    }


def _evidence(best: Choice) -> Iterator[dict[str, Any]]:
    """Every source with its weight in the answer: that of its kind, by its share there."""
    for each in best.evidence:
        shares = [1.0 if source.share is None else source.share for source in each.sources]
        whole = sum(shares) or 1.0
        for source, share in zip(each.sources, shares, strict=True):
            yield {**asdict(source), "weight": each.weight * share / whole}


def _front(choices: tuple[Choice, ...]) -> Iterator[Choice]:
    """The sizes that no other beats in time and accelerator-hours, money and energy going with those."""
    for each in choices:
        beaten = any(
            other.time.value <= each.time.value
            and other.accelerator_hours <= each.accelerator_hours
            and other is not each
            for other in choices
        )
        if not beaten:
            yield each

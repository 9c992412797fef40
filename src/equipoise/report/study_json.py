"""The documents of `scores` and `report` as plain values: SI units, fractions, null where unknown."""

import math
from dataclasses import asdict
from typing import Any

import polars as pl

from equipoise.advice.forecast.balance import RULE as PAID_RULE
from equipoise.advice.forecast.balance import Balance, Unanswered
from equipoise.advice.forecast.diagnose import CURVE_RULE, SYMPTOMS
from equipoise.advice.forecast.record import Shipped
from equipoise.economics import bill_fields
from equipoise.scaling.decompose import FACTORS
from equipoise.scaling.equilibrium import KINDS
from equipoise.scaling.metrics import SCORE_COLUMNS
from equipoise.stats import Interval
from equipoise.study.claims import RULE, Claim, Part
from equipoise.study.findings import Findings, WorkloadFindings


def score_fields(frame: pl.DataFrame) -> dict[str, Any]:
    """What `equipoise scores --json` says: every entry of the frame that `study.scores` returned."""
    return {"entries": _rows(frame)}


def report_fields(findings: Findings) -> dict[str, Any]:
    """What `equipoise report --json` says: all findings."""
    shared = findings.shared
    return {
        "round": findings.round,
        "division": findings.division,
        "sources": findings.sources,
        "headline": findings.headline,
        "summary": list(findings.summary),
        "workloads": [_workload(each, findings.claims) for each in findings.workloads],
        "claims": [_claim(claim, claim.parts) for claim in findings.claims],
        "verdict_rule": RULE,
        "diagnosis_rules": {symptom.name: symptom.rule for symptom in SYMPTOMS} | {"curve": CURVE_RULE},
        "equilibrium_rules": {kind.name: kind.definition for kind in KINDS} | {"cost, energy": PAID_RULE},
        "record": None if findings.record is None else _record(findings.record),
        "attributed": [_plain_dict(asdict(each)) for each in findings.attributed],
        "shared_systems": {
            "num_systems": shared.num_systems,
            "num_published": shared.num_published,
            "words": shared.words,
            "systems": _rows(shared.table),
            "families": _rows(shared.families),
        },
    }


def _record(record: Shipped) -> dict[str, Any]:
    """How wrong predictions were on results held out, as `backtest` says it, without the groups."""
    return _plain_dict({"dataset": record.dataset, "backtests": [asdict(each) for each in record.summaries]})


def _workload(found: WorkloadFindings, claims: tuple[Claim, ...]) -> dict[str, Any]:
    reference = found.table.reference
    return {
        "workload": found.workload,
        "name": found.name,
        "num_entries": found.table.num_entries,
        "num_scored": found.table.num_scored,
        "reference": None if reference is None else _plain(asdict(reference)),
        "published": None if found.table.published is None else _plain(asdict(found.table.published)),
        "differences": list(found.table.differences),
        "unscored": [_plain(asdict(each)) for each in found.table.unscored],
        "entries": [_entry(row) for row in found.entries.iter_rows(named=True)],
        "grouping": None if found.grouping is None else _plain(asdict(found.grouping)),
        "grouping_missing": found.grouping_missing,
        "curves": _rows(found.curves),
        "pointers": [_plain(asdict(pointer)) for pointer in found.pointers],
        "energy": _rows(
            found.energy.select(
                "entry_id", "num_accelerators", "accelerator", "energy_j", "energy_j_per_sample"
            )
        ),
        "losses": _rows(found.losses),
        "diagnoses": [_plain(asdict(each)) for each in (*found.curve_diagnoses, *found.diagnoses)],
        "fit": _fit(found),
        "equilibria": [
            _equilibrium(each, place)
            for each in found.balances.found
            for place in range(len(each.equilibria))
        ],
        "claims": [
            _claim(claim, [part for part in claim.parts if part.workload in (found.workload, None)])
            for claim in claims
            if found.workload in claim.workloads
        ],
    }


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    """One entry as in `scores`, with its group and the factors of its efficiency."""
    return _plain_dict(
        {column: row[column] for column in SCORE_COLUMNS}
        | {
            "entry_id": row["entry_id"],
            "cluster": row["cluster"],
            "energy_j_per_sample": row["energy_j_per_sample"],
            "factors": {factor: row[factor] for factor in FACTORS},
            "factors_missing": row["factors_missing"],
        }
    )


def _fit(found: WorkloadFindings) -> dict[str, Any]:
    """The laws behind a workload: samples against batch, and time against size of each accelerator."""
    growth = found.batches
    samples = (
        {"missing": _plain(asdict(growth))}
        if isinstance(growth, Unanswered)
        else {
            "samples_min": _interval(growth.samples_min),
            "batch_critical_samples": _interval(growth.batch_critical),
            "growth": _interval(growth.growth),
            "num_entries": len(growth.entries),
            "num_rounds": growth.num_rounds,
            "curve": _rows(growth.curve),
        }
    )
    return {
        "samples_to_target": samples,
        "curves": [_curve(each) for each in found.balances.found],
        "missing": [_plain(asdict(each)) for each in found.balances.unanswered],
    }


def _curve(each: Balance) -> dict[str, Any]:
    """The law of one accelerator, and its predictions as `predict` gives them."""
    times = each.curve_times
    return _plain_dict(
        {
            "accelerator": each.accelerator,
            "law": asdict(times.law),
            "domain": asdict(times.domain),
            "sizes": each.sizes,
            "predictions": each.curve.to_dicts(),
            "evidence": [asdict(one) for one in times.evidence],
        }
    )


def _equilibrium(each: Balance, place: int) -> dict[str, Any]:
    """One point with its bill; is_answer marks the smallest of balance, marginal and floor."""
    point, bill = each.equilibria[place], each.bills[place]
    return _plain_dict(
        {
            "accelerator": each.accelerator,
            **asdict(point),
            "is_answer": point is each.answer,
            **bill_fields(bill),
            "words": each.words[place],
        }
    )


def _interval(interval: Interval) -> dict[str, Any]:
    """The interval; null where the data set no upper bound."""
    return _plain_dict(asdict(interval))


def _claim(claim: Claim, parts: list[Part] | tuple[Part, ...]) -> dict[str, Any]:
    return _plain_dict(
        {
            "number": claim.number,
            "claim": claim.claim,
            "source": claim.source,
            "workloads": claim.workloads,
            "stated_for": claim.stated_for,
            "their_way": asdict(claim.their_way),
            "like_for_like": asdict(claim.like_for_like),
            "verdict": claim.verdict,
            "parts": [asdict(part) for part in parts],
        }
    )


def _rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [_plain_dict(row) for row in frame.iter_rows(named=True)]


def _plain_dict(value: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain(each) for key, each in value.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The value with tuples as lists and null for every number that is not finite."""
    if isinstance(value, dict):
        return _plain_dict(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

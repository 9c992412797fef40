"""The documents of `scores` and `report` as plain values: SI units, fractions, null where unknown."""

import math
from dataclasses import asdict
from typing import Any

import polars as pl

from equipoise.findings import Findings, WorkloadFindings
from equipoise.scaling.claims import RULE, Claim, Part
from equipoise.scaling.decompose import FACTORS
from equipoise.scaling.metrics import SCORE_COLUMNS


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
        "attributed": [_plain_dict(asdict(each)) for each in findings.attributed],
        "shared_systems": {
            "num_systems": shared.num_systems,
            "num_published": shared.num_published,
            "words": shared.words,
            "systems": _rows(shared.table),
            "families": _rows(shared.families),
        },
    }


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


def _claim(claim: Claim, parts: list[Part] | tuple[Part, ...]) -> dict[str, Any]:
    return _plain_dict(
        {
            "number": claim.number,
            "claim": claim.claim,
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

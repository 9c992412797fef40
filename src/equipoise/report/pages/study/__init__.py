"""The page of `report` and its document: a round of MLPerf, analysed with the methods of the published study.

The document has SI units, fractions, and null where a value is unknown.
"""

from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from equipoise.report.blocks import Code, Page, Section, note, page_within
from equipoise.report.format import printable, sentence, written_in
from equipoise.report.json import bill_fields, fields_of, picked, plain
from equipoise.report.pages import accuracy
from equipoise.report.pages.study import balance, batches, claims, entries, losses, workloads
from equipoise.report.pages.study.entries import NOT_VERIFIED, dataset_words
from equipoise.scaling.equilibrium import KINDS
from equipoise.scaling.metrics import FACTORS, SCORE_COLUMNS
from equipoise.study.claims import RULE, Claim
from equipoise.study.diminishing_returns import CURVE_RULE, SYMPTOMS, Balance, Unanswered
from equipoise.study.diminishing_returns import RULE as PAID_RULE
from equipoise.study.findings import Findings, WorkloadFindings

SECTIONS: Final[tuple[Section[Findings], ...]] = (
    Section("next", "Where to look next", entries.pointers_blocks, needs=("workloads",)),
    Section("claims", "The study's claims, tested", claims.claims_blocks, needs=("claims",)),
    Section("table-one", "Table I: the reference systems", claims.table_one_blocks, needs=("workloads",)),
    Section(
        "workloads",
        "How each workload scales",
        workloads.workloads_blocks,
        needs=("workloads",),
        lists_headings=True,
    ),
    Section("why", "Why efficiency is lost", losses.losses_blocks, needs=("workloads",)),
    Section("batches", "Samples to target against batch", batches.batches_blocks, needs=("workloads",)),
    Section("balance", "Where returns diminish", balance.balance_blocks, needs=("workloads",)),
    Section(
        "record",
        "Accuracy of such predictions on held-out data",
        lambda findings: accuracy.record_blocks(findings.record),
        needs=("record",),
    ),
    Section(
        "shared",
        "The systems present in every workload",
        workloads.shared_blocks,
        needs=("workloads", "shared"),
    ),
    Section("energy", "Energy to train", batches.energy_blocks, needs=("workloads",)),
    Section("entries", "Every entry", entries.entries_blocks, needs=("workloads",)),
    Section("method", "Data and method", entries.method_blocks),
)


def study_page(out: Path | None = None, own: tuple[str, float] | None = None) -> Page[Findings]:
    """The page. out: the file with the full page, for its short form. own: the user's currency and rate."""
    page: Page[Findings] = Page(
        title=lambda findings: f"Training at scale: MLPerf {printable(findings.round)}",
        about=lambda findings: (
            f"MLPerf Training {printable(findings.round)}, {printable(findings.division)} division"
        ),
        headline=lambda findings: sentence(findings.headline),
        summary=lambda findings: tuple(map(sentence, findings.summary)),
        sections=SECTIONS,
        closing=lambda findings: (
            NOT_VERIFIED,
            dataset_words(findings),
        ),
        brief=None
        if out is None
        else lambda *_: (note("The whole study: ", Code(printable(str(out))), "."),),
    )
    return page_within(page, lambda _: written_in(own))


STUDY: Final = study_page()


def report_fields(findings: Findings) -> dict[str, Any]:
    """The document of `report`: all findings."""
    shared, record = findings.shared, findings.record
    found: dict[str, Any] = plain(
        {
            **picked(findings, "round", "division", "sources", "headline", "summary"),
            "workloads": [_workload(each, findings.claims) for each in findings.workloads],
            "claims": findings.claims,
            "verdict_rule": RULE,
            "diagnosis_rules": {symptom.name: symptom.rule for symptom in SYMPTOMS} | {"curve": CURVE_RULE},
            "equilibrium_rules": {kind.name: kind.definition for kind in KINDS} | {"cost, energy": PAID_RULE},
            # As in the document of `backtest`, without the groups.
            "record": record and {"dataset": record.dataset, "backtests": record.summaries},
            "attributed": findings.attributed,
            "shared_systems": {
                **picked(shared, "num_systems", "num_published", "words"),
                "systems": shared.table.to_dicts(),
                "families": shared.families.to_dicts(),
            },
        }
    )
    return found


def _workload(found: WorkloadFindings, claims: tuple[Claim, ...]) -> dict[str, Any]:
    grouping = found.grouping
    return {
        **picked(found, "workload", "name"),
        **picked(
            found.table, "num_entries", "num_scored", "reference", "published", "differences", "unscored"
        ),
        "entries": [_entry(row) for row in found.entries.iter_rows(named=True)],
        "grouping": grouping and fields_of(grouping) | {"stability": fields_of(grouping.stability)},
        "grouping_missing": found.grouping_missing,
        "curves": found.curves.to_dicts(),
        "pointers": found.pointers,
        "energy": found.energy.select(
            "entry_id", "num_accelerators", "accelerator", "energy_j", "energy_j_per_sample"
        ).to_dicts(),
        "losses": found.losses.to_dicts(),
        "diagnoses": (*found.curve_diagnoses, *found.diagnoses),
        "fit": _fit(found),
        "equilibria": [
            _equilibrium(each, place)
            for each in found.balances.found
            for place in range(len(each.equilibria))
        ],
        "claims": [
            replace(
                claim, parts=tuple(part for part in claim.parts if part.workload in {found.workload, None})
            )
            for claim in claims
            if found.workload in claim.workloads
        ],
    }


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    """One entry as in `scores`, with its group and the factors of its efficiency."""
    return {column: row[column] for column in SCORE_COLUMNS} | {
        "entry_id": row["entry_id"],
        "cluster": row["cluster"],
        "energy_j_per_sample": row["energy_j_per_sample"],
        "factors": {factor: row[factor] for factor in FACTORS},
        "factors_missing": row["factors_missing"],
    }


def _fit(found: WorkloadFindings) -> dict[str, Any]:
    """The laws behind a workload: samples against batch, and time against size of each accelerator."""
    growth = found.batches
    samples = (
        {"missing": growth}
        if isinstance(growth, Unanswered)
        else {
            # Not nulled however wide; an upper bound that the data do not determine is null.
            "samples_min": fields_of(growth.samples_min),
            "batch_critical_samples": fields_of(growth.batch_critical),
            "growth": fields_of(growth.growth),
            "num_entries": len(growth.entries),
            "num_rounds": growth.num_rounds,
            "curve": growth.curve,
        }
    )
    return {
        "samples_to_target": samples,
        "curves": [_curve(each) for each in found.balances.found],
        "missing": found.balances.unanswered,
    }


def _curve(each: Balance) -> dict[str, Any]:
    """The law of one accelerator, and its predictions as in `predict`."""
    return {
        "accelerator": each.accelerator,
        **picked(each.curve, "law", "domain"),
        "sizes": each.sizes,
        "predictions": [
            {
                "num_accelerators": one.num_accelerators,
                **picked(
                    one.time, "value", "low", "high", "level", value="time_s", low="low_s", high="high_s"
                ),
                "in_domain": one.in_domain,
                "beyond_data": one.num_accelerators > each.sizes[-1],
            }
            for one in each.curve.predictions
        ],
        "evidence": [
            fields_of(one, share="weight") | {"is_same_group": one.is_same_group}
            for one in each.curve.evidence
        ],
    }


def _equilibrium(each: Balance, place: int) -> dict[str, Any]:
    """One point with its bill; is_answer marks the smallest of balance, marginal and floor."""
    point = each.equilibria[place]
    return {
        "accelerator": each.accelerator,
        **fields_of(point),
        "is_answer": point is each.answer,
        **bill_fields(each.bills[place]),
        "words": each.words[place],
    }

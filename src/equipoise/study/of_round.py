"""One round on one page: tables in; metrics, factors, groups and claims; findings out."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from equipoise.advice.forecast.balance import Balances, Unanswered, balances
from equipoise.advice.forecast.diagnose import diagnose, diagnose_curves
from equipoise.economics import SYSTEM_POWER, Bill, Rates, bill, grid
from equipoise.economics import rates as rates_of
from equipoise.errors import EvidenceError, SpecError
from equipoise.findings import ComparedFindings, Findings, WorkloadFindings
from equipoise.runs import embedded
from equipoise.runs.chosen import Folders, paths, tables
from equipoise.runs.queries import DIVISION, closed, comparable
from equipoise.scaling.batches import BatchGrowth, batch_growth
from equipoise.scaling.claims import claims_about
from equipoise.scaling.decompose import losses, with_factors
from equipoise.scaling.groups import Grouping, grouped
from equipoise.scaling.metrics import ENTRY_COLUMNS, curves, spots, with_metrics
from equipoise.scaling.pointers import pointers
from equipoise.scaling.reference import Published, table_row
from equipoise.scaling.shared import shared_systems
from equipoise.scaling.summary import headline, summary
from equipoise.scaling.titles import workload_title
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.study.answers import recorded
from equipoise.study.published import attributed, num_systems_in_all, published
from equipoise.study.subject import chosen_round, chosen_workloads


def study(
    round: str | None = None,  # noqa: A002 - what users call it
    workloads: Sequence[str] | None = None,
    *,
    k: int | None = None,
    data: Folders | None = None,
    also: Folders = (),
    catalogue: Catalogue | None = None,
) -> Findings:
    """What the closed entries of one round say about scaling.

    round: the published study's (v4.1) unless given; the latest one where the data lack that. workloads: the
    study's in its round, else every workload with at least three scored entries. k: number of groups; by
    silhouette unless given. catalogue: what names mean; the shipped one unless given.
    Raises EvidenceError when a workload has fewer than three scored entries, SpecError for unknown names.
    """
    everything = tables(data=data, also=also).scores.rename({"campaign": "round"})
    round_ = chosen_round(round, everything)
    entries = closed(everything).filter(pl.col("round") == round_)
    own = {row.workload: row for row in published() if row.round == round_}
    chosen = chosen_workloads(workloads, entries, default=tuple(own), round_=round_, catalogue=catalogue)
    measured = with_factors(with_metrics(entries.rename({"round": "campaign"}))).rename({"campaign": "round"})
    of_round = {workload: measured.filter(pl.col("workload") == workload) for workload in chosen}
    stops = balances(
        everything.rename({"round": "campaign"}),
        {workload: curves(rows) for workload, rows in of_round.items()},
        round_=round_,
        catalogue=catalogue,
    )
    each = tuple(
        _workload_findings(rows, own.get(workload), stops[workload], _batches(everything, workload), k=k)
        for workload, rows in of_round.items()
    )
    by_workload = {found.workload: found.entries for found in each}
    claims = claims_about(by_workload, label=f"{round_}, {DIVISION}")
    names = {found.workload: found.name for found in each}
    return Findings(
        round=round_,
        division=DIVISION,
        dataset=embedded.version(),
        sources=_sources(data, also),
        headline=headline(f"MLPerf Training {round_}", by_workload, claims),
        summary=summary(names, by_workload, [pointer for found in each for pointer in found.pointers]),
        workloads=each,
        claims=claims,
        shared=shared_systems(
            by_workload, num_published=num_systems_in_all() if own.keys() == by_workload.keys() else None
        ),
        attributed=attributed(round_),
        record=recorded(),
    )


def compared(
    round: str | None = None,  # noqa: A002 - what users call it
    workload: str | None = None,
    entries: Sequence[str] = (),
    *,
    data: Folders | None = None,
    also: Folders = (),
    catalogue: Catalogue | None = None,
) -> ComparedFindings:
    """Closed entries of one round and workload side by side.

    round: as for `study`. workload: the first that a study of the round takes unless given. entries: their
    entry_id; those that `scaling.pointers` points to unless given.
    Raises EvidenceError where too few entries have a score, SpecError for unknown names.
    """
    everything = tables(data=data, also=also).scores.rename({"campaign": "round"})
    round_ = chosen_round(round, everything)
    of_round = closed(everything).filter(pl.col("round") == round_)
    wanted = None if workload is None else (workload,)
    usual = tuple(row.workload for row in published() if row.round == round_)
    slug = chosen_workloads(wanted, of_round, default=usual, round_=round_, catalogue=catalogue)[0]
    measured = with_factors(
        with_metrics(of_round.filter(pl.col("workload") == slug).rename({"round": "campaign"}))
    ).rename({"campaign": "round"})
    scored = comparable(measured).sort("num_accelerators", "score_s", "entry_id")
    ids = tuple(dict.fromkeys(entries)) or tuple(each.entry_id for each in pointers(scored, slug))
    unknown = next((each for each in ids if each not in scored["entry_id"]), None)
    if unknown is not None:
        raise SpecError(f"entry {unknown!r} has no score for {slug} in {round_}, {DIVISION}")
    chosen = scored.filter(pl.col("entry_id").is_in(ids))
    kinds = chosen["accelerator"].drop_nulls().unique().to_list()
    return ComparedFindings(
        round=round_,
        division=DIVISION,
        dataset=embedded.version(),
        sources=_sources(data, also),
        workload=slug,
        name=workload_title(slug),
        entries=scored,
        chosen=chosen,
        bills=tuple(_bill_of(row, catalogue or shipped()) for row in chosen.iter_rows(named=True)),
        losses=losses(chosen),
        curves=curves(scored.filter(pl.col("accelerator").is_in(kinds))),
        are_given=bool(entries),
    )


def _bill_of(entry: Mapping[str, Any], catalogue: Catalogue) -> Bill:
    """What one run of an entry costs, its energy as measured where it was."""
    known = None
    if entry["accelerator"] is not None:
        known = catalogue.hardware.exact(entry["accelerator"])
    rates = Rates(price=None, grid=grid(), accelerator_power_w=None, system_power=SYSTEM_POWER)
    return bill(
        entry["num_accelerators"],
        entry["score_s"],
        rates if known is None else rates_of(known),
        measured_energy_j=entry["energy_j"],
    )


def _workload_findings(
    entries: pl.DataFrame,
    published: Published | None,
    stops: Balances,
    batches: BatchGrowth | Unanswered,
    *,
    k: int | None,
) -> WorkloadFindings:
    workload = entries["workload"][0]
    ordered = entries.sort("num_accelerators", "score_s", "entry_id", nulls_last=True)
    grouping: Grouping | None = None
    grouping_missing = None
    try:
        grouping, marked = grouped(ordered, k=k)
    except EvidenceError as err:
        grouping_missing = str(err)
        marked = ordered.with_columns(cluster=pl.lit(None, pl.Int64))
    best = curves(marked)
    return WorkloadFindings(
        workload=workload,
        name=published.name if published else workload_title(workload),
        table=table_row(ordered, workload, published),
        entries=marked.select(ENTRY_COLUMNS),
        spots=spots(marked),
        curves=best,
        grouping=grouping,
        grouping_missing=grouping_missing,
        pointers=pointers(marked, workload),
        energy=marked.select(ENTRY_COLUMNS).filter(pl.col("energy_j").is_not_null()),
        losses=losses(marked),
        diagnoses=diagnose(marked),
        curve_diagnoses=diagnose_curves(best),
        batches=batches,
        balances=stops,
    )


def _batches(everything: pl.DataFrame, workload: str) -> BatchGrowth | Unanswered:
    """Samples against batch over all rounds of a workload, or why they tell nothing."""
    entries = comparable(everything, workload=workload)
    try:
        return batch_growth(entries)
    except EvidenceError as err:
        return Unanswered(subject=workload, reason=str(err), missing=err.missing)


def _sources(data: Folders | None, also: Folders) -> str:
    first = "the embedded dataset" if not data else ", ".join(str(each) for each in paths(data))
    beside = ", ".join(str(each) for each in paths(also))
    return f"{first}, and beside it {beside}" if beside else first

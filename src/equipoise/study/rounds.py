"""Studies of rounds of results: from tables to entries with metrics, factors, groups, and tested claims."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from equipoise.calibration.curves import COMBINED, Shipped, shipped_advice, shipped_forecasts
from equipoise.calibration.forecasts import published_growth
from equipoise.calibration.profiles import profiles
from equipoise.decide.combine import plan_records
from equipoise.decide.ledger import running
from equipoise.economics import SYSTEM_POWER, Bill, Rates, bill, grid
from equipoise.economics import rates as rates_of
from equipoise.errors import DataError, EvidenceError, SpecError
from equipoise.files import Folders, paths
from equipoise.runs import embedded
from equipoise.runs.embedded import score_table
from equipoise.runs.store import DIVISION, SCORED, closed, comparable, scores_of
from equipoise.scaling.convergence import BatchGrowth
from equipoise.scaling.groups import Grouping, grouped, shared_systems
from equipoise.scaling.metrics import (
    ENTRY_COLUMNS,
    curves,
    losses,
    pointers,
    spots,
    with_factors,
    with_metrics,
)
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.mlperf import Entries, is_round, round_name, round_order
from equipoise.spec.workload import workload_title
from equipoise.study import named, spellings
from equipoise.study.claims import (
    Published,
    attributed,
    claims_about,
    published,
    studies,
    table_row,
)
from equipoise.study.diminishing_returns import Balances, Unanswered, balances, diagnose, diagnose_curves
from equipoise.study.findings import (
    AccuracyFindings,
    ComparedFindings,
    Findings,
    WorkloadFindings,
    headline,
    summary,
)

MIN_ENTRIES = 3


def study(
    round: str | None = None,  # noqa: A002 - what users call it
    workloads: Sequence[str] | None = None,
    *,
    k: int | None = None,
    data: Folders | None = None,
    also: Folders = (),
    catalogue: Catalogue | None = None,
) -> Findings:
    """Findings on scaling from the closed entries of one round.

    round: by default that of the published study (v4.1), or the latest one if the data lack it. workloads: by
    default the study's in its round, else every workload with at least three scored entries. k: number of
    groups; by default chosen by silhouette. catalogue: for resolving names; the shipped one by default.
    Raises EvidenceError if a workload has fewer than three scored entries, SpecError for unknown names.
    """
    table = score_table(data=data, also=also)
    everything, scored = table.rename({"campaign": "round"}), scores_of(table)
    round_ = chosen_round(round, everything)
    entries = closed(everything).filter(pl.col("round") == round_)
    own = {row.workload: row for row in published() if row.round == round_}
    chosen = chosen_workloads(workloads, entries, default=tuple(own), round_=round_, catalogue=catalogue)
    measured = _measured(entries)
    of_round = {workload: measured.filter(pl.col("workload") == workload) for workload in chosen}
    stops = balances(
        scored,
        {workload: curves(rows) for workload, rows in of_round.items()},
        round_=round_,
        catalogue=catalogue or shipped(),
    )
    each = tuple(
        _workload_findings(
            rows, own.get(workload), stops[workload], _batches(scored.of(workload), workload), k=k
        )
        for workload, rows in of_round.items()
    )
    by_workload = {found.workload: found.entries for found in each}
    claims = claims_about(by_workload, label=f"{round_}, {DIVISION}")
    names = {found.workload: found.name for found in each}
    is_whole = own.keys() == by_workload.keys()
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
            by_workload, num_published=studies()[0].get("num_systems_in_all") if is_whole else None
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
    """A comparison of closed entries of one round and workload.

    round: as in `study`. workload: by default the first that a study of the round uses. entries: their
    entry_id; by default those that `scaling.metrics.pointers` selects.
    Raises EvidenceError if too few entries have a score, SpecError for unknown names.
    """
    everything = score_table(data=data, also=also).rename({"campaign": "round"})
    round_ = chosen_round(round, everything)
    of_round = closed(everything).filter(pl.col("round") == round_)
    wanted = None if workload is None else (workload,)
    usual = tuple(row.workload for row in published() if row.round == round_)
    slug = chosen_workloads(wanted, of_round, default=usual, round_=round_, catalogue=catalogue)[0]
    measured = _measured(of_round.filter(pl.col("workload") == slug))
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


def _measured(entries: pl.DataFrame) -> pl.DataFrame:
    """Entries of a round with metrics and factors."""
    return with_factors(with_metrics(entries.rename({"round": "campaign"}))).rename({"campaign": "round"})


def _bill_of(entry: Mapping[str, Any], catalogue: Catalogue) -> Bill:
    """The cost of one run of an entry, with its measured energy if there is one."""
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


def _batches(entries: Entries, workload: str) -> BatchGrowth | Unanswered:
    """Samples against batch over all rounds of a workload, or the reason why it is unknown."""
    try:
        return published_growth(entries)
    except EvidenceError as err:
        return Unanswered(subject=workload, reason=str(err), missing=err.missing)


def _sources(data: Folders | None, also: Folders) -> str:
    first = "the embedded dataset" if not data else ", ".join(str(each) for each in paths(data))
    more = ", ".join(str(each) for each in paths(also))
    return f"{first}, and {more}" if more else first


def accuracy() -> AccuracyFindings:
    """Errors of every kind of answer on held-out data, and of the user's own ledger of predictions."""
    return AccuracyFindings(
        forecasts=recorded(),
        profiles=tuple(profiles().values()),
        plans=plan_records(),
        advised=shipped_advice().errors,
        advised_jointly=shipped_advice(COMBINED).errors,
        own=running(),
        dataset=embedded.version(),
    )


def recorded() -> Shipped | None:
    """The shipped errors of predictions; None in a checkout whose record has not been made yet."""
    try:
        return shipped_forecasts()
    except DataError:
        return None


def default_round(entries: pl.DataFrame) -> str:
    """The default round of a study: that of the published study, else the latest.

    entries: scores with their `round`. Raises EvidenceError if there are none.
    """
    held = entries["round"].drop_nulls()
    if held.is_empty():
        raise EvidenceError(
            "the data hold no entries", missing=("the results of a round: see `equipoise ingest`",)
        )
    studied = next((row.round for row in published() if row.round in held), None)
    return studied or max(filter(is_round, held), key=round_order, default=max(held))


def chosen_round(wanted: str | None, entries: pl.DataFrame) -> str:
    """The round that a user named, as spelt in the data, or the default one."""
    return default_round(entries) if wanted is None else named(wanted, entries["round"], round_name)


def chosen_workloads(
    wanted: Sequence[str] | None,
    entries: pl.DataFrame,
    *,
    default: Sequence[str],
    round_: str,
    catalogue: Catalogue | None,
) -> tuple[str, ...]:
    """The workloads to study, all with enough scored entries."""
    num_scored = dict(
        entries.drop_nulls("workload").group_by("workload").agg(SCORED.sum()).sort("workload").iter_rows()
    )
    if wanted:
        where = f"the {DIVISION} entries of {round_}"
        spelling = spellings(round_, catalogue)["workload"]
        names = [named(name, entries["workload"], spelling, where=where) for name in wanted]
        chosen = tuple(dict.fromkeys(names))
    else:
        enough = [workload for workload, count in num_scored.items() if count >= MIN_ENTRIES]
        chosen = tuple(workload for workload in default if workload in enough) or tuple(enough)
    thin = [workload for workload in chosen if num_scored[workload] < MIN_ENTRIES]
    if thin or not chosen:
        counts = (
            ", ".join(f"{workload} has {count}" for workload, count in num_scored.items())
            or "it has no entries"
        )
        raise EvidenceError(
            f"{round_}, {DIVISION}: a study needs {MIN_ENTRIES} entries of a workload with a score; {counts}",
            missing=tuple(f"scored {DIVISION} entries of {workload} in {round_}" for workload in thin)
            or (f"scored {DIVISION} entries in {round_}",),
        )
    return chosen

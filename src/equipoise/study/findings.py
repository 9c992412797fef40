"""Findings of a study: records from the layers below, and the sentences that summarise them."""

from collections import Counter
from collections.abc import Mapping, Sequence

import polars as pl
from msgspec import Struct

from equipoise.calibration.curves import AdviceErrors, Shipped
from equipoise.calibration.profiles import Profile
from equipoise.decide.combine import PlanRecord
from equipoise.decide.ledger import Running
from equipoise.economics import Bill
from equipoise.scaling.convergence import BatchGrowth
from equipoise.scaling.groups import Grouping, SharedSystems
from equipoise.scaling.metrics import Pointer, log_loss_shares
from equipoise.study.claims import Attributed, Claim, TableRow
from equipoise.study.diminishing_returns import Balances, Diagnosis, Unanswered
from equipoise.study.quantities import like_for_like_view
from equipoise.units import format_count, format_percent

_VERDICT_WORDS = (
    ("holds", "holds", "hold"),
    ("reverses", "reverses", "reverse"),
    ("not supported", "is not supported", "are not supported"),
    ("not enough evidence", "cannot be tested", "cannot be tested"),
)


class WorkloadFindings(Struct, frozen=True, kw_only=True):
    """One workload of the round.

    name: its title. entries: every entry of the division, scored or not, with the columns of
    `scaling.metrics.ENTRY_COLUMNS`, ordered by accelerators, then score; cluster and factors are null if
    unknown. spots: number of systems per accelerator and size. curves: best entry per size of each
    accelerator. grouping: None if there are too few systems; grouping_missing then says what is missing.
    pointers: for speed, in between, for efficiency; fewer if one entry serves several purposes.
    energy: the rows of `entries` with measured energy; may be empty.
    losses: the loss of each entry by cause (`scaling.metrics.losses`). diagnoses: of entries;
    curve_diagnoses: of accelerators. batches: samples against batch over all rounds, or why it is unknown.
    balances: where returns diminish on each accelerator.
    """

    workload: str
    name: str
    table: TableRow
    entries: pl.DataFrame
    spots: pl.DataFrame
    curves: pl.DataFrame
    grouping: Grouping | None
    grouping_missing: str | None
    pointers: tuple[Pointer, ...]
    energy: pl.DataFrame
    losses: pl.DataFrame
    diagnoses: tuple[Diagnosis, ...]
    curve_diagnoses: tuple[Diagnosis, ...]
    batches: BatchGrowth | Unanswered
    balances: Balances


class Findings(Struct, frozen=True, kw_only=True):
    """Everything a report shows about one round.

    headline: one sentence with the main finding. summary: further sentences, most important first.
    attributed: figures that others attribute to the published study of this round; empty for other rounds.
    record: errors of predictions on held-out results; None if it does not ship.
    dataset: version of the embedded data. sources: description of where the tables came from.
    """

    round: str
    division: str
    dataset: str
    sources: str
    headline: str
    summary: tuple[str, ...]
    workloads: tuple[WorkloadFindings, ...]
    claims: tuple[Claim, ...]
    shared: SharedSystems
    attributed: tuple[Attributed, ...]
    record: Shipped | None


class ComparedFindings(Struct, frozen=True, kw_only=True):
    """Everything on a page that compares entries of one round and workload.

    entries: every closed entry with a score, with the columns of `scaling.metrics.ENTRY_COLUMNS` except
    `cluster`, ordered by accelerators, then score. chosen: the compared entries, in that order. bills: the
    cost of one run of each. losses: of the chosen entries, from `scaling.metrics.losses`. curves: of their
    accelerators, from `scaling.metrics.curves`. are_given: whether the user chose the entries.
    """

    round: str
    division: str
    dataset: str
    sources: str
    workload: str
    name: str
    entries: pl.DataFrame
    chosen: pl.DataFrame
    bills: tuple[Bill, ...]
    losses: pl.DataFrame
    curves: pl.DataFrame
    are_given: bool


class AccuracyFindings(Struct, frozen=True, kw_only=True):
    """Errors of every kind of answer on held-out data; kinds without a record are empty or None.

    forecasts: of published results. profiles: of steps, one per software. plans: of published trainings, one
    per kind of model. advised, advised_jointly: of advised numbers of accelerators, from published results
    alone and combined with the model. own: from the user's ledger.
    """

    forecasts: Shipped | None
    profiles: tuple[Profile, ...]
    plans: tuple[PlanRecord, ...]
    advised: tuple[AdviceErrors, ...]
    advised_jointly: tuple[AdviceErrors, ...]
    own: Running | None
    dataset: str


def headline(label: str, entries_by_workload: Mapping[str, pl.DataFrame], claims: Sequence[Claim]) -> str:
    """One sentence on the efficiency of the largest systems and on how many of the study's claims hold.

    label: name of the data, e.g. `MLPerf Training v4.1`.
    """
    largest = [*_largest(entries_by_workload).values()]
    kept = [row["like_for_like_efficiency"] for row in largest]
    if not kept:
        scaling = "no accelerator was measured at two sizes, so there is no like-for-like comparison"
    elif len(kept) == 1:
        scaling = (
            f"{format_count(largest[0]['num_accelerators'])} accelerators work at {format_percent(kept[0])} "
            "of the efficiency of the smallest system with the same one"
        )
    else:
        scaling = (
            f"the largest systems, each of the accelerator with the most sizes, work at "
            f"{format_percent(min(kept))} to {format_percent(max(kept))} of the efficiency of the smallest"
        )
    return f"{label}: {scaling}; {_tally(claims)}."


def summary(
    names: Mapping[str, str], entries_by_workload: Mapping[str, pl.DataFrame], pointers: Sequence[Pointer]
) -> tuple[str, ...]:
    """A few sentences, most important first; sentences without supporting data are omitted.

    names: slug of a workload -> its title.
    """
    largest = _largest(entries_by_workload)
    return tuple(
        sentence
        for sentence in (
            _generation_words(names, largest),
            _cause_words(names, entries_by_workload),
            _between_words(names, pointers),
            _energy_words(names, entries_by_workload),
        )
        if sentence
    )


def _largest(entries_by_workload: Mapping[str, pl.DataFrame]) -> dict[str, dict[str, float]]:
    """By workload, the best entry at the largest size of the accelerator with the most sizes (over one)."""
    found = {}
    for workload, entries in entries_by_workload.items():
        best = like_for_like_view(workload, entries).best
        if best.height > 1:
            entry_id = best["entry_id"][-1]
            found[workload] = entries.row(by_predicate=pl.col("entry_id") == entry_id, named=True)
    return found


def _tally(claims: Sequence[Claim]) -> str:
    stated = [claim for claim in claims if claim.is_of_study]
    count: Counter[str] = Counter(claim.verdict for claim in stated)
    verdicts = [
        f"{count[verdict]} {singular if count[verdict] == 1 else plural}"
        for verdict, singular, plural in _VERDICT_WORDS
        if count[verdict]
    ]
    return f"of the study's {len(stated)} claims, compared like for like, {', '.join(verdicts)}"


def _generation_words(names: Mapping[str, str], largest: Mapping[str, dict[str, float]]) -> str | None:
    apart = {
        workload: row["relative_efficiency"] / row["like_for_like_efficiency"]
        for workload, row in largest.items()
    }
    if not apart:
        return None
    workload = max(apart, key=lambda slug: abs(apart[slug] - 1))
    row = largest[workload]
    return (
        f"One reference per workload mixes generations of hardware: {names[workload]} on "
        f"{format_count(row['num_accelerators'])} accelerators has E' {row['relative_efficiency']:.3g} "
        f"against the workload's reference, and {row['like_for_like_efficiency']:.2g} against the smallest "
        "system of its own kind."
    )


def _cause_words(names: Mapping[str, str], entries_by_workload: Mapping[str, pl.DataFrame]) -> str | None:
    shares = {}
    for workload, entries in entries_by_workload.items():
        known = log_loss_shares(like_for_like_view(workload, entries).best).sort("num_accelerators")
        if known.height:
            shares[workload] = known.row(-1, named=True)
    if not shares:
        return None
    workload = max(shares, key=lambda slug: shares[slug]["statistical_fraction"])
    row = shares[workload]
    fraction = row["statistical_fraction"]
    if fraction <= 0:
        return "At the largest sizes, none of the loss is batch growth: it is throughput."
    return (
        f"Not all loss is communication: for {names[workload]} on {format_count(row['num_accelerators'])} "
        f"accelerators, {format_percent(fraction)} of the (logarithmic) loss is the extra samples that a "
        "larger batch needs."
    )


def _between_words(names: Mapping[str, str], pointers: Sequence[Pointer]) -> str | None:
    between = [pointer for pointer in pointers if pointer.purpose == "between"]
    if not between:
        return None
    sizes = "; ".join(f"{names[each.workload]} {format_count(each.num_accelerators)}" for each in between)
    return f"Between the fastest and the most frugal entry, the data point to: {sizes} accelerators."


def _energy_words(names: Mapping[str, str], entries_by_workload: Mapping[str, pl.DataFrame]) -> str | None:
    measured = {
        workload: count
        for workload, entries in entries_by_workload.items()
        if (count := entries["energy_j"].count())
    }
    if not measured:
        return "None of these entries measured its energy."
    counted = ", ".join(f"{names[workload]} {count}" for workload, count in measured.items())
    return f"Entries with measured energy: {counted}."

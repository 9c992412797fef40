"""What a study found, in a few sentences made from its records: the headline and the summary below it."""

from collections import Counter
from collections.abc import Mapping, Sequence

import polars as pl

from equipoise.scaling.claims import Claim
from equipoise.scaling.decompose import log_loss_shares
from equipoise.scaling.pointers import Pointer
from equipoise.scaling.views import like_for_like_view
from equipoise.units import format_count, format_percent

_VERDICT_WORDS = (
    ("holds", "holds", "hold"),
    ("reverses", "reverses", "reverse"),
    ("not supported", "is not supported", "are not supported"),
    ("not enough evidence", "cannot be tested", "cannot be tested"),
)


def headline(label: str, entries_by_workload: Mapping[str, pl.DataFrame], claims: Sequence[Claim]) -> str:
    """One sentence: what is left of the efficiency at the largest systems, and how the study's claims fare.

    label: what the data are called, e.g. `MLPerf Training v4.1`.
    """
    kept = [row["like_for_like_efficiency"] for row in _largest(entries_by_workload).values()]
    if not kept:
        scaling = "no accelerator was measured at two sizes, so nothing can be said like for like"
    elif len(kept) == 1:
        scaling = (
            f"the largest system works at {format_percent(kept[0])} of the efficiency of its small sibling"
        )
    else:
        scaling = (
            f"the largest systems work at {format_percent(min(kept))} to {format_percent(max(kept))} of the "
            "efficiency of their small siblings"
        )
    return f"{label}: {scaling}; {_tally(claims)}."


def summary(
    names: Mapping[str, str], entries_by_workload: Mapping[str, pl.DataFrame], pointers: Sequence[Pointer]
) -> tuple[str, ...]:
    """A few sentences, most important first; each is left out where the data do not carry it.

    names: slug of a workload -> what people call it.
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
    """The best entry at the largest size of the accelerator seen at the most sizes (two at least)."""
    found = {}
    for workload, entries in entries_by_workload.items():
        best = like_for_like_view(workload, entries).best
        if best.height > 1:
            entry_id = best["entry_id"][-1]
            found[workload] = entries.row(by_predicate=pl.col("entry_id") == entry_id, named=True)
    return found


def _tally(claims: Sequence[Claim]) -> str:
    own = [claim for claim in claims if claim.workloads == claim.stated_for or not claim.stated_for]
    count: Counter[str] = Counter(claim.verdict for claim in own)
    told = [
        f"{count[verdict]} {singular if count[verdict] == 1 else plural}"
        for verdict, singular, plural in _VERDICT_WORDS
        if count[verdict]
    ]
    return f"of the study's {len(own)} claims, compared like for like, {', '.join(told)}"


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
        f"One reference a workload mixes generations of hardware: {names[workload]} on "
        f"{format_count(row['num_accelerators'])} accelerators has E' {row['relative_efficiency']:.3g} "
        f"against the workload's reference, and {row['like_for_like_efficiency']:.2g} against the smallest "
        "system of its own kind."
    )


def _cause_words(names: Mapping[str, str], entries_by_workload: Mapping[str, pl.DataFrame]) -> str | None:
    shares = {}
    for workload, entries in entries_by_workload.items():
        told = log_loss_shares(like_for_like_view(workload, entries).best).sort("num_accelerators")
        if told.height:
            shares[workload] = told.row(-1, named=True)
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

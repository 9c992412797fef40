"""What a study is of: the round and the workloads that are meant, as the data spell them."""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import polars as pl

from equipoise.errors import EvidenceError, SpecError
from equipoise.runs.queries import DIVISION, SCORED
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.rounds import is_round, round_name, round_order
from equipoise.study.published import published

# How a catalogue spells what a user wrote.
Spelling: TypeAlias = Callable[[str], str]
MIN_ENTRIES = 3


def default_round(entries: pl.DataFrame) -> str:
    """The round a study is of unless another is named: the published study's, else the latest.

    entries: scores with their `round`. Raises EvidenceError where there are none.
    """
    held = entries["round"].drop_nulls()
    if held.is_empty():
        raise EvidenceError(
            "the data hold no entries", missing=("the results of a round: see `equipoise ingest`",)
        )
    studied = next((row.round for row in published() if row.round in held), None)
    return studied or max(filter(is_round, held), key=round_order, default=max(held))


def chosen_round(wanted: str | None, entries: pl.DataFrame) -> str:
    """The round a user named, as the data spell it, or the usual one."""
    return default_round(entries) if wanted is None else named(wanted, entries["round"], round_name)


def chosen_workloads(
    wanted: Sequence[str] | None,
    entries: pl.DataFrame,
    *,
    default: Sequence[str],
    round_: str,
    catalogue: Catalogue | None = None,
) -> tuple[str, ...]:
    """The workloads to study, each with enough scored entries."""
    num_scored = dict(
        entries.drop_nulls("workload").group_by("workload").agg(SCORED.sum()).sort("workload").iter_rows()
    )
    if wanted:
        where = f"the {DIVISION} entries of {round_}"
        spelling = workload_spelling(round_, catalogue)
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


def named(wanted: str, held: pl.Series, spelt: Spelling, *, where: str = "the data") -> str:
    """The value of the data that a user's word stands for: itself in any case, or its catalogue's spelling.

    where: what `held` was taken from, for the complaint.
    """
    values = held.drop_nulls().unique().sort().to_list()
    if wanted in values:
        return wanted
    try:
        value = spelt(wanted)
    except SpecError:
        value = wanted
    for each in (value, *values):
        if each in values and each.lower() == value.lower():
            return str(each)
    listed = sorted(values, key=round_order) if held.name == "round" else values
    raise SpecError(f"{held.name} {wanted!r} is not in {where}; they hold {', '.join(listed)}")


def workload_spelling(round_: str | None, catalogue: Catalogue | None = None) -> Spelling:
    """The slug a name stands for in a round: `ssd` was another model before v2.0."""
    number = re.fullmatch(r"v(\d+(?:\.\d+)?)", round_name(round_)) if round_ else None
    slug_of = (catalogue or shipped()).workload_slug
    return lambda name: slug_of(name, float(number[1]) if number else None) or name

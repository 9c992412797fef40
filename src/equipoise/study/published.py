"""What published studies print and conclude, from published.toml, and how Table I differs from the data."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
from msgspec import Struct

from equipoise.files import shipped_table
from equipoise.units import MINUTE_S

_FILE = Path(__file__).with_name("published.toml")


class Reference(Struct, frozen=True, kw_only=True):
    """What speedup and E' count against: the entry of fewest accelerators and, among those, the slowest."""

    entry_id: str
    submitter: str
    system: str
    accelerator: str | None
    num_accelerators: int
    score_s: float
    source_uri: str | None


class Published(Struct, frozen=True, kw_only=True):
    """What a published study prints for one workload of one round; `source` names where.

    num_decimals: how many digits after the point it prints minutes with.
    """

    round: str
    workload: str
    name: str
    num_entries: int
    num_accelerators: int
    score_minutes: float
    num_decimals: int
    source: str


class Attributed(Struct, frozen=True, kw_only=True):
    """A figure that others ascribe to a published study, and what the study really holds of it."""

    claim: str
    found: str
    source: str


class Unscored(Struct, frozen=True, kw_only=True):
    """An entry of the results that has no official score, and why."""

    submitter: str
    system: str
    accelerator: str | None
    num_accelerators: int | None
    reason: str
    num_missing: int | None

    @property
    def words(self) -> str:
        """The entry and its reason, e.g. `Clemson/7x8xH100 (10 logs are missing)`."""
        return f"{self.submitter}/{self.system} ({self.reason})"


class TableRow(Struct, frozen=True, kw_only=True):
    """One row of Table I: the data's own figures, the study's where it has them, the differences in words.

    num_entries counts every entry of the division, scored or not. differences is empty when nothing differs
    or `published` is None.
    """

    workload: str
    num_entries: int
    num_scored: int
    reference: Reference | None
    unscored: tuple[Unscored, ...]
    published: Published | None
    differences: tuple[str, ...]


@cache
def studies() -> tuple[dict[str, Any], ...]:
    """Every published study as the file has it, first one first."""
    return tuple(shipped_table(_FILE)["study"])


def source(study: dict[str, Any], where: str) -> str:
    """The study, the place in it and its address, for a citation."""
    return f"{study['name']}, {where}, {study['url']}"


def published() -> tuple[Published, ...]:
    """The rows that published studies print, first study first."""
    return tuple(
        Published(
            round=study["round"],
            num_decimals=study["num_decimals"],
            source=source(study, study["where"]),
            **row,
        )
        for study in studies()
        for row in study["row"]
    )


def attributed(round_: str) -> tuple[Attributed, ...]:
    """What others ascribe to the studies of a round."""
    return tuple(
        Attributed(source=source(study, study["where"]), **stated)
        for study in studies()
        if study["round"] == round_
        for stated in study.get("attributed", ())
    )


def num_systems_in_all() -> int | None:
    """Distinct systems with a score in all workloads, as the first study counts them."""
    return studies()[0].get("num_systems_in_all")


def table_row(entries: pl.DataFrame, workload: str, published: Published | None) -> TableRow:
    """The row of Table I for the entries of one round, workload and division.

    entries: a frame `with_metrics` returned. published: the study's row for the same, None where it has none.
    """
    found = _reference(entries)
    unscored = _unscored(entries)
    differences: tuple[str, ...] = ()
    if published is not None:
        differences = (
            *_count_difference(entries.height, unscored, published),
            *_reference_differences(found, published),
        )
    return TableRow(
        workload=workload,
        num_entries=entries.height,
        num_scored=entries.height - len(unscored),
        reference=found,
        unscored=unscored,
        published=published,
        differences=differences,
    )


def _reference(entries: pl.DataFrame) -> Reference | None:
    rows = (
        entries.filter(pl.col("is_reference")).select(name for name in Reference.__struct_fields__).to_dicts()
    )
    return Reference(**rows[0]) if rows else None


def _unscored(entries: pl.DataFrame) -> tuple[Unscored, ...]:
    rows = entries.filter(pl.col("score_s").is_null()).sort("submitter", "system")
    return tuple(
        Unscored(**row | {"reason": row["reason"] or "no reason was recorded"})
        for row in rows.select(name for name in Unscored.__struct_fields__).to_dicts()
    )


def _count_difference(
    num_entries: int, unscored: tuple[Unscored, ...], published: Published
) -> tuple[str, ...]:
    more = num_entries - published.num_entries
    if more == 0:
        return ()
    counted = f"the results hold {num_entries} entries, the study counts {published.num_entries}"
    if more > 0 and len(unscored) == more:
        names = "; ".join(entry.words for entry in unscored)
        return (f"{counted}: as many more as have no score here: {names}",)
    if unscored:
        names = "; ".join(entry.words for entry in unscored)
        return (f"{counted}; {len(unscored)} of ours have no score: {names}",)
    return (f"{counted}; all of ours have a score, and the study does not state which ones it used",)


def _reference_differences(found: Reference | None, published: Published) -> tuple[str, ...]:
    if found is None:
        return ("no entry here has a score, so there is no reference to compare",)
    differences = []
    if found.num_accelerators != published.num_accelerators:
        differences.append(
            f"the reference has {found.num_accelerators} accelerators here, {published.num_accelerators} in "
            "the study"
        )
    minutes, printed, digits = found.score_s / MINUTE_S, published.score_minutes, published.num_decimals
    if round(minutes, digits) == round(printed, digits):
        return tuple(differences)
    # Adding a thousandth of the last digit absorbs the rounding of decimal fractions in binary.
    cut = math.floor(minutes * 10**digits + 1e-3) / 10**digits
    if math.isclose(cut, printed, abs_tol=10.0**-digits / 2):
        differences.append(
            f"{minutes:.5f} min here, {printed:.{digits}f} in the study: the same, cut after {digits} digits"
        )
    else:
        differences.append(
            f"{minutes:.5f} min here, {printed:.{digits}f} in the study: "
            f"{100 * abs(minutes / printed - 1):.2g} % {'more' if minutes > printed else 'less'} than it "
            "prints"
        )
    return tuple(differences)

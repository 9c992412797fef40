"""The claims of the published study, tested by its method (E', mixed hardware) and like for like.

The claims are in published.toml: which quantity is compared with which bounds. One evaluator tests them all.
Like for like means with one accelerator.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import polars as pl
from msgspec import Struct, field

from equipoise.errors import EvidenceError
from equipoise.files import converted, shipped_table
from equipoise.spec.workload import workload_title
from equipoise.study.quantities import QUANTITIES, Figure, View, Way, like_for_like_view, study_view
from equipoise.units import MINUTE_S

_FILE = Path(__file__).with_name("published.toml")


class Reference(Struct, frozen=True, kw_only=True):
    """The reference entry of speedup and E': the slowest of those with the fewest accelerators."""

    entry_id: str
    submitter: str
    system: str
    accelerator: str | None
    num_accelerators: int
    score_s: float
    source_uri: str | None


class Published(Struct, frozen=True, kw_only=True):
    """The figures of a published study for one workload of one round, with their source.

    num_decimals: number of decimals of the published minutes.
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
    """A figure that others attribute to a published study, and what the study actually states."""

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
    """One row of Table I: figures from the data, the study's figures if any, and the differences in words.

    num_entries: all entries of the division, scored or not. differences: empty if nothing differs or
    `published` is None.
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
    """Every published study in the file, in its order."""
    return tuple(shipped_table(_FILE)["study"])


def source(study: dict[str, Any], where: str) -> str:
    """A citation: the study, the location in it, and its address."""
    return f"{study['name']}, {where}, {study['url']}"


def published() -> tuple[Published, ...]:
    """The published rows of all studies, in the order of studies."""
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
    """The figures that others attribute to the studies of a round."""
    return tuple(
        Attributed(source=source(study, study["where"]), **stated)
        for study in studies()
        if study["round"] == round_
        for stated in study.get("attributed", ())
    )


def table_row(entries: pl.DataFrame, workload: str, published: Published | None) -> TableRow:
    """The row of Table I for the entries of one round, workload and division.

    entries: a frame returned by `with_metrics`. published: the study's row for them, or None.
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
    # A thousandth of the last digit is added to absorb the rounding of decimal fractions in binary.
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


Verdict: TypeAlias = Literal["holds", "reverses", "not supported", "not enough evidence"]

RULE = (
    "A statement holds, reverses or is not supported by its printed rule. A claim holds when every "
    "statement that could be tested holds, reverses when any reverses, and is not supported "
    "otherwise. The verdict is the one like for like where there is evidence, else the one by the "
    "study's method."
)
_BOUNDS: Final[dict[str, Callable[[float, float], bool]]] = {
    "above": operator.gt,
    "from": operator.ge,
    "below": operator.lt,
    "to": operator.le,
}


class Comparison(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A comparison of one quantity with bounds.

    compares: the quantity in words. quantity: its name in `QUANTITIES`, called with `options`. holds,
    reverses: bounds such as `from 0.5 to 2`; an empty one never matches. way: the only method by which it can
    be tested; None for both.
    """

    compares: str
    quantity: str
    options: Mapping[str, Any] = field(default_factory=dict)
    holds: str
    reverses: str = ""
    way: Way | None = None

    @property
    def rule(self) -> str:
        """The comparison in words."""
        way = f"{self.way}: " if self.way else ""
        reverses = f", reverses {self.reverses}" if self.reverses else ""
        return f"{way}{self.compares}: holds {self.holds}{reverses}"

    def verdict(self, value: float) -> Verdict:
        """The verdict for one value of the quantity."""
        if _is_within(value, self.holds):
            return "holds"
        return "reverses" if self.reverses and _is_within(value, self.reverses) else "not supported"


class Statement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One testable statement: it holds (or reverses) if all compared values do.

    workload: the only workload that it is about; None for each workload of its claim, or for all together if
    across_workloads. untested: why one of the two methods cannot test it.
    """

    name: str
    words: str
    comparisons: tuple[Comparison, ...]
    workload: str | None = None
    across_workloads: bool = False
    untested: str = ""

    def read(self, *views: View) -> "ClaimReading":
        """Test the statement on one view, or on one view per workload, all by the same method."""
        comparisons = [each for each in self.comparisons if each.way in {None, views[0].way}]
        about = "" if self.across_workloads else f"{views[0].about}: "
        if not comparisons:
            return ClaimReading(verdict="not enough evidence", figures=(), words=self.untested)
        try:
            found = [QUANTITIES[each.quantity](*views, **each.options) for each in comparisons]
        except EvidenceError as err:
            return ClaimReading(verdict="not enough evidence", figures=(), words=f"{about}{err}.")
        verdicts = {
            comparison.verdict(value)
            for comparison, measured in zip(comparisons, found, strict=True)
            for value in measured.values
        }
        return ClaimReading(
            verdict=verdicts.pop() if len(verdicts) == 1 else "not supported",
            figures=tuple(figure for measured in found for figure in measured.figures),
            words=f"{about}{'; '.join(measured.words for measured in found)}.",
        )


class Stated(Struct, frozen=True, kw_only=True):
    """One claim as the study states it.

    workloads: slugs for which it is stated; empty for all. of_others: its wording for workloads that the
    study does not cover; empty if it is not applied to those.
    """

    number: int
    words: str
    source: str
    statements: tuple[Statement, ...]
    workloads: tuple[str, ...] = ()
    of_others: str = ""


class ClaimReading(Struct, frozen=True, kw_only=True):
    """The result of one test method: its verdict, the figures behind it, and one sentence on them."""

    verdict: Verdict
    figures: tuple[Figure, ...]
    words: str


class ClaimPart(Struct, frozen=True, kw_only=True):
    """One testable statement of a claim with its printed rule, tested by both methods.

    workload: the slug it was tested on; None if it compares workloads.
    """

    statement: str
    rule: str
    workload: str | None
    study_method: ClaimReading
    like_for_like: ClaimReading


class Claim(Struct, frozen=True, kw_only=True):
    """One claim of the study on this data.

    number: 1..6, as the study's conclusions are numbered. source: location in the study.
    workloads: slugs it was tested on. stated_for: slugs for which the study states it, empty for all; differs
    from `workloads` if the claim was generalised.
    study_method, like_for_like: the parts combined. verdict: like for like if there is evidence, else by the
    study's method.
    """

    number: int
    claim: str
    source: str
    workloads: tuple[str, ...]
    stated_for: tuple[str, ...]
    parts: tuple[ClaimPart, ...]
    study_method: ClaimReading
    like_for_like: ClaimReading
    verdict: Verdict

    @property
    def is_of_study(self) -> bool:
        """Whether the study itself states the claim for these workloads."""
        return self.stated_for in {(), self.workloads}


@cache
def claim_table() -> tuple[Stated, ...]:
    """The claims of the first published study, by number."""
    study = studies()[0]
    statements = {each["name"]: converted(each, Statement) for each in study["statement"]}
    return tuple(
        Stated(
            number=each["number"],
            words=each["words"],
            source=source(study, each["where"]),
            statements=tuple(statements[name] for name in each["statements"]),
            workloads=tuple(each.get("workloads", ())),
            of_others=each.get("of_others", ""),
        )
        for each in study["claim"]
    )


def _is_within(value: float, bounds: str) -> bool:
    """Whether a value is within bounds such as `from 0.5 to 2`, `up to 1/3` or `above 0 and below 1`."""
    words = [word for word in bounds.split() if word not in {"up", "and"}]
    return all(
        _BOUNDS[relation](value, float(Fraction(limit)))
        for relation, limit in zip(words[::2], words[1::2], strict=True)
    )


def claims_about(entries_by_workload: Mapping[str, pl.DataFrame], *, label: str) -> tuple[Claim, ...]:
    """The claims tested on these workloads; some are also applied to workloads that the study does not cover.

    entries_by_workload: slug -> a frame with metrics and factors, of one round and division.
    label: name of the data in a sentence on missing evidence, e.g. `v4.1, closed`.
    """
    views = {
        workload: (study_view(workload, entries), like_for_like_view(workload, entries))
        for workload, entries in entries_by_workload.items()
    }
    covered = {workload for stated in claim_table() for workload in stated.workloads}
    others = tuple(workload for workload in views if workload not in covered)
    claims = []
    for stated in claim_table():
        claims.append(_claim(stated, stated.words, stated.workloads or tuple(views), views, label))
        if stated.of_others and others:
            claims.append(_claim(stated, stated.of_others, others, views, label))
    return tuple(claims)


def _claim(
    stated: Stated,
    words: str,
    workloads: tuple[str, ...],
    views: Mapping[str, tuple[View, View]],
    label: str,
) -> Claim:
    parts = tuple(part for statement in stated.statements for part in _parts(statement, workloads, views))
    absent = [workload_title(workload) for workload in workloads if workload not in views]
    missing = "Nothing could be tested."
    if absent:
        missing = f"{label}: {' and '.join(absent)} not among the workloads with scores chosen here."
    study_method = _combined([part.study_method for part in parts], missing)
    like_for_like = _combined([part.like_for_like for part in parts], missing)
    untested = like_for_like.verdict == "not enough evidence"
    return Claim(
        number=stated.number,
        claim=words,
        source=stated.source,
        workloads=workloads,
        stated_for=stated.workloads,
        parts=parts,
        study_method=study_method,
        like_for_like=like_for_like,
        verdict=study_method.verdict if untested else like_for_like.verdict,
    )


def _parts(
    statement: Statement, workloads: tuple[str, ...], views: Mapping[str, tuple[View, View]]
) -> list[ClaimPart]:
    """The statement tested on each available workload, or once across workloads if all are available."""
    present = tuple(workload for workload in workloads if workload in views)
    if statement.across_workloads:
        groups = [present] if present == workloads else []
    else:
        groups = [(workload,) for workload in present if statement.workload in {None, workload}]
    return [
        ClaimPart(
            statement=statement.words,
            rule="; ".join(each.rule for each in statement.comparisons),
            workload=None if statement.across_workloads else group[0],
            study_method=statement.read(*(views[workload][0] for workload in group)),
            like_for_like=statement.read(*(views[workload][1] for workload in group)),
        )
        for group in groups
    ]


def _combined(readings: Sequence[ClaimReading], missing: str) -> ClaimReading:
    """The results of all parts combined, by the rule in `RULE`."""
    tested = [reading for reading in readings if reading.verdict != "not enough evidence"]
    verdicts = {reading.verdict for reading in tested}
    verdict: Verdict = "not supported"
    if not tested:
        verdict = "not enough evidence"
    elif "reverses" in verdicts:
        verdict = "reverses"
    elif verdicts == {"holds"}:
        verdict = "holds"
    return ClaimReading(
        verdict=verdict,
        figures=tuple(figure for reading in readings for figure in reading.figures),
        words=" ".join(dict.fromkeys(reading.words for reading in tested or readings)) or missing,
    )

"""The claims of the published study, tested its way (E', mixed hardware) and like for like (one accelerator).

The claims are a table, published.toml: which quantity is compared with what. One evaluator walks it.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import polars as pl
from msgspec import Struct, field

from equipoise.errors import EvidenceError
from equipoise.spec.workload import workload_title
from equipoise.study.published import source, studies
from equipoise.study.quantities import QUANTITIES, Figure, View, Way, like_for_like_view, study_view

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


class Comparison(Struct, frozen=True, kw_only=True):
    """What one quantity is compared with.

    compares: the quantity in words. quantity: its name in `QUANTITIES`, taken with these options. holds,
    reverses: bounds such as `from 0.5 to 2`; an empty one is never kept. way: the only one it can be tested
    in; None for both.
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
        """What one value of the quantity means."""
        if _within(value, self.holds):
            return "holds"
        return "reverses" if self.reverses and _within(value, self.reverses) else "not supported"


class Statement(Struct, frozen=True, kw_only=True):
    """One statement that data can test: it holds or reverses where all compared values do.

    workload: the only one of its claim's that it is about; None for each of them, or for all together where
    across_workloads. untested: why one of the two ways cannot test it.
    """

    name: str
    words: str
    comparisons: tuple[Comparison, ...]
    workload: str | None = None
    across_workloads: bool = False
    untested: str = ""

    def read(self, *views: View) -> "ClaimReading":
        """The statement tested on one view, or on one of each workload, all of the same way."""
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
    """One claim as the study makes it.

    workloads: slugs it is stated for; empty for all. of_others: its wording where it is applied to workloads
    that the study does not cover; empty where it is not.
    """

    number: int
    words: str
    source: str
    statements: tuple[Statement, ...]
    workloads: tuple[str, ...] = ()
    of_others: str = ""


class ClaimReading(Struct, frozen=True, kw_only=True):
    """One way of testing: its verdict, the figures it rests on, and one sentence on what was seen."""

    verdict: Verdict
    figures: tuple[Figure, ...]
    words: str


class ClaimPart(Struct, frozen=True, kw_only=True):
    """One testable statement of a claim with its printed rule, tested both ways.

    workload: the slug it was tested on; None where it compares workloads.
    """

    statement: str
    rule: str
    workload: str | None
    study_method: ClaimReading
    like_for_like: ClaimReading


class Claim(Struct, frozen=True, kw_only=True):
    """One claim of the study on this data.

    number: 1..6 as the study's conclusions are listed. source: where the study has it.
    workloads: slugs it was tested on. stated_for: slugs the study states it for, empty when for all; differs
    from `workloads` where it was generalised.
    study_method, like_for_like: the parts taken together. verdict: like for like where there is evidence,
    else by the study's method.
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
    statements = {each["name"]: _statement(each) for each in study["statement"]}
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


def _statement(facts: Mapping[str, Any]) -> Statement:
    comparisons = tuple(Comparison(**each) for each in facts["comparisons"])
    return Statement(**{**facts, "comparisons": comparisons})


def _within(value: float, bounds: str) -> bool:
    """Whether a value keeps bounds such as `from 0.5 to 2`, `up to 1/3` or `above 0 and below 1`."""
    words = [word for word in bounds.split() if word not in {"up", "and"}]
    return all(
        _BOUNDS[relation](value, float(Fraction(limit)))
        for relation, limit in zip(words[::2], words[1::2], strict=True)
    )


def claims_about(entries_by_workload: Mapping[str, pl.DataFrame], *, label: str) -> tuple[Claim, ...]:
    """The claims on these workloads; some are applied to workloads that the study does not cover, too.

    entries_by_workload: slug -> a frame with metrics and factors, of one round and division.
    label: how to name the data in a sentence on what is lacking, e.g. `v4.1, closed`.
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
    study_method = _together([part.study_method for part in parts], missing)
    like_for_like = _together([part.like_for_like for part in parts], missing)
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
    """The statement tested in each workload that is there, or once across them if all are."""
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


def _together(readings: Sequence[ClaimReading], missing: str) -> ClaimReading:
    """The readings of all parts as one, by the rule that `RULE` prints."""
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

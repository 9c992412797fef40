"""The six claims of the study, tested its way (E', mixed hardware) and like for like (one accelerator)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from equipoise.scaling import readings
from equipoise.scaling.linearity import common_sizes, slopes
from equipoise.scaling.readings import (
    ALIKE_FACTOR,
    MARGIN,
    Reading,
    Verdict,
)
from equipoise.scaling.statements import BALANCE, BERT, CAUSE, COMPARED, RETINANET, STATED, STUDIED, Statement
from equipoise.scaling.titles import workload_title
from equipoise.scaling.views import View, like_for_like_view, their_view

RULE = (
    "A statement holds, reverses or is not supported by its printed rule. A claim holds when every "
    "statement that could be tested holds, reverses when any reverses, and is not supported otherwise. The "
    "verdict is the one like for like where there is evidence, else the one of the study's way."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One testable statement of a claim with its printed rule, tested both ways.

    workload: the slug it was tested on; None where it compares workloads.
    """

    statement: str
    rule: str
    workload: str | None
    their_way: Reading
    like_for_like: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim of the study on this data.

    number: 1..6 as the study's conclusions are listed. workloads: slugs it was tested on.
    stated_for: slugs the study states it for, empty when for all; differs from `workloads` where it was
    generalised.
    their_way, like_for_like: the parts taken together. verdict: like for like where there is evidence, else
    their way.
    """

    number: int
    claim: str
    workloads: tuple[str, ...]
    stated_for: tuple[str, ...]
    parts: tuple[Part, ...]
    their_way: Reading
    like_for_like: Reading
    verdict: Verdict


def claims_about(entries_by_workload: Mapping[str, pl.DataFrame], *, label: str) -> tuple[Claim, ...]:
    """The six claims on these workloads, and the first one asked of workloads that the study does not cover.

    entries_by_workload: slug -> a frame with metrics and factors, of one round and division.
    label: how to name the data in a sentence that says what is lacking, e.g. `v4.1, closed`.
    """
    views = {
        workload: (their_view(workload, entries), like_for_like_view(workload, entries))
        for workload, entries in entries_by_workload.items()
    }
    claims = [
        _claim(
            stated.number,
            stated.words,
            (stated.workload,),
            _parts(stated.statements, views, (stated.workload,)),
            missing=_missing(views, (stated.workload,), label),
        )
        for stated in STATED
    ]
    claims.append(_linearity_claim(entries_by_workload, views, label))
    everywhere = tuple(views)
    balance = _parts((BALANCE,), views, everywhere)
    claims.append(
        _claim(
            5,
            "An intermediate size balances time and efficiency, and it depends on the workload",
            (),
            (*balance, _depends_on_workload(balance)),
            workloads=everywhere,
        )
    )
    claims.append(
        _claim(
            6,
            "The loss is communication and gradient synchronisation",
            (),
            _parts((CAUSE,), views, everywhere),
            workloads=everywhere,
        )
    )
    uncovered = tuple(workload for workload in views if workload not in STUDIED)
    if uncovered:
        claims.append(
            _claim(
                1,
                "What the study says of BERT, asked of workloads it does not cover",
                ("bert",),
                _parts(BERT, views, uncovered),
                workloads=uncovered,
            )
        )
    return tuple(sorted(claims, key=lambda claim: (claim.number, claim.workloads != claim.stated_for)))


def _parts(
    statements: Sequence[Statement], views: Mapping[str, tuple[View, View]], workloads: Sequence[str]
) -> tuple[Part, ...]:
    return tuple(
        Part(
            statement=statement.words,
            rule=statement.rule,
            workload=workload,
            their_way=statement.test(views[workload][0]),
            like_for_like=statement.test(views[workload][1]),
        )
        for workload in workloads
        if workload in views
        for statement in statements
    )


def _missing(views: Mapping[str, object], workloads: Sequence[str], label: str) -> str | None:
    absent = [workload_title(workload) for workload in workloads if workload not in views]
    return (
        f"{label}: {' and '.join(absent)} not among the workloads with scores chosen here."
        if absent
        else None
    )


def _claim(
    number: int,
    words: str,
    stated_for: tuple[str, ...],
    parts: tuple[Part, ...],
    *,
    workloads: tuple[str, ...] | None = None,
    missing: str | None = None,
) -> Claim:
    their_way = _together([part.their_way for part in parts], missing)
    like_for_like = _together([part.like_for_like for part in parts], missing)
    untested = like_for_like.verdict == "not enough evidence"
    return Claim(
        number=number,
        claim=words,
        workloads=stated_for if workloads is None else workloads,
        stated_for=stated_for,
        parts=parts,
        their_way=their_way,
        like_for_like=like_for_like,
        verdict=their_way.verdict if untested else like_for_like.verdict,
    )


def _together(parts: Sequence[Reading], missing: str | None) -> Reading:
    """The readings of all parts as one, by the rule that `RULE` prints."""
    tested = [part for part in parts if part.verdict != "not enough evidence"]
    verdicts = {part.verdict for part in tested}
    verdict: Verdict = "not supported"
    if not tested:
        verdict = "not enough evidence"
    elif "reverses" in verdicts:
        verdict = "reverses"
    elif verdicts == {"holds"}:
        verdict = "holds"
    words = " ".join(dict.fromkeys(part.words for part in (tested or parts)))
    return Reading(
        verdict=verdict,
        figures=tuple(figure for part in parts for figure in part.figures),
        words=words or missing or "Nothing could be tested.",
    )


def _linearity_claim(
    entries_by_workload: Mapping[str, pl.DataFrame], views: Mapping[str, tuple[View, View]], label: str
) -> Claim:
    pair = COMPARED
    missing = _missing(views, pair, label)
    parts = _parts(RETINANET, views, ("retinanet",))
    if missing is None:
        linearity = Part(
            statement="RetinaNet scales more linearly than Llama 2 LoRA",
            rule="their way: Theil-Sen slope of log speedup against log accelerators over all systems, "
            f"nearer to 1 by {MARGIN}; like for like: E over the sizes that both have on one accelerator "
            "(best entries, from the smallest such size), geometric mean of RetinaNet's / Llama 2's: holds "
            f"above {1 + MARGIN:.2f}, reverses below {1 - MARGIN:.2f}",
            workload=None,
            their_way=slopes(*(views[workload][0] for workload in pair)),
            like_for_like=common_sizes({workload: entries_by_workload[workload] for workload in pair}),
        )
        parts = (linearity, *parts)
    return _claim(
        3,
        "RetinaNet: more linear than Llama 2 LoRA; low efficiency at the largest",
        pair,
        parts,
        missing=missing,
    )


def _depends_on_workload(balance: Sequence[Part]) -> Part:
    """Whether the sizes of balance of the workloads are more than a factor of two apart."""
    return Part(
        statement="the size of balance depends on the workload",
        rule="sizes with the highest efficiency x speedup, the censored ones left out: holds when the "
        "largest is more than twice the smallest, reverses when all are equal",
        workload=None,
        their_way=_spread([part.their_way for part in balance]),
        like_for_like=_spread([part.like_for_like for part in balance]),
    )


def _spread(points: Sequence[Reading]) -> Reading:
    figures = [figure for point in points if point.verdict == "holds" for figure in point.figures]
    if len(figures) <= 1:
        return readings.no_evidence("needs two workloads whose balance lies inside their range.")
    low, high = min(figure.value for figure in figures), max(figure.value for figure in figures)
    return Reading(
        verdict="reverses" if low == high else "holds" if high / low > ALIKE_FACTOR else "not supported",
        figures=tuple(figures),
        words=f"between {low:,.0f} and {high:,.0f} accelerators over {len(figures)} workloads.",
    )

"""The evidence of an answer: every source of the recommended time, with its weight in it."""

from dataclasses import dataclass

from equipoise.decide.answer import Answer
from equipoise.decide.candidate import Candidate
from equipoise.decide.estimate import Estimate, EstimatorName


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One source. kind: the estimator that has it. weight: in the time; weights of all sources sum to 1.

    ref: an entry, a run; of an estimator that names no source, its own name.
    """

    kind: EstimatorName
    estimate: str
    ref: str
    weight: float
    num_accelerators: int | None
    time_s: float | None
    source_uri: str | None
    source_line: int | None


def evidence_of(answer: Answer) -> tuple[Evidence, ...]:
    """What the time of the recommended candidate rests on; of the fastest where none is recommended."""
    shown = shown_candidate(answer)
    found: list[Evidence] = []
    for each in () if shown is None else shown.estimates:
        if not each.sources:
            found.append(_itself(each))
        shares = [1.0 if source.share is None else source.share for source in each.sources]
        whole = sum(shares) or 1.0
        found += (
            Evidence(
                kind=source.kind,
                estimate=each.name,
                ref=source.ref,
                weight=each.weight * share / whole,
                num_accelerators=source.num_accelerators,
                time_s=source.time_s,
                source_uri=source.source_uri,
                source_line=source.source_line,
            )
            for source, share in zip(each.sources, shares, strict=True)
        )
    return tuple(found)


def _itself(each: Estimate) -> Evidence:
    """An estimate that rests on no single sources, as the model's."""
    return Evidence(
        kind=each.estimator,
        estimate=each.name,
        ref=each.name,
        weight=each.weight,
        num_accelerators=None,
        time_s=None,
        source_uri=None,
        source_line=None,
    )


def shown_candidate(answer: Answer) -> Candidate | None:
    """The recommended candidate, else the fastest of all; None where there is none at all."""
    if answer.recommended is not None:
        return answer.recommended
    return None if answer.refusal is None else answer.refusal.fastest

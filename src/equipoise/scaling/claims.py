"""The six claims of the study, each tested its way (E', mixed hardware) and like for like (E, one accelerator)."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["holds", "reverses", "not supported", "not enough evidence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number a verdict rests on: what it is, its value, and the entries (entry_id) it was computed from."""

    name: str
    value: float
    entry_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One way of testing: its verdict, the figures it rests on, and one sentence that says what was seen."""

    verdict: Verdict
    figures: tuple[Figure, ...]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One testable statement of a claim with its printed rule, tested both ways."""

    statement: str
    rule: str
    their_way: Reading
    like_for_like: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim of the study on this data.

    number: 1..6 as the study's conclusions are listed. workloads: slugs it was tested on.
    stated_for: slugs the study states it for; differs from `workloads` where the claim was generalised.
    their_way, like_for_like: the parts taken together. verdict: like for like where there is evidence, else their way.
    """

    number: int
    claim: str
    workloads: tuple[str, ...]
    stated_for: tuple[str, ...]
    parts: tuple[Part, ...]
    their_way: Reading
    like_for_like: Reading
    verdict: Verdict

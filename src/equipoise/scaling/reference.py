"""The reference of a workload, its row in Table I, and how the study's own row differs from it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The entry against which speedup and E' are counted: fewest accelerators and, among those, the slowest."""

    entry_id: str
    submitter: str
    system: str
    accelerator: str
    num_accelerators: int
    score_s: float
    source_uri: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a published study prints for one workload of one round; `source` says where."""

    round: str
    workload: str
    name: str
    num_entries: int
    num_accelerators: int
    score_minutes: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored:
    """An entry of the results that has no official score, and why."""

    submitter: str
    system: str
    accelerator: str | None
    num_accelerators: int | None
    reason: str
    num_missing: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row of Table I: the data's own figures, the study's where it has them, and each difference in words.

    num_entries counts every entry of the division, scored or not. differences is empty when nothing differs or
    `published` is None.
    """

    workload: str
    num_entries: int
    num_scored: int
    reference: Reference | None
    unscored: tuple[Unscored, ...]
    published: Published | None
    differences: tuple[str, ...]

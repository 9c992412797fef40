"""What a study found: the records that the layers own, side by side. No logic."""

from dataclasses import dataclass

import polars as pl

from equipoise.scaling.claims import Claim
from equipoise.scaling.groups import Grouping
from equipoise.scaling.pointers import Pointer
from equipoise.scaling.reference import Attributed, TableRow
from equipoise.scaling.shared import SharedSystems


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFindings:
    """One workload of the round.

    name: what people call it. entries: every entry of the division, scored or not, with the columns of
    `scaling.metrics.ENTRY_COLUMNS`, ordered by accelerators, then score; cluster and the factors are null
    where they cannot be told. spots: how many systems share each accelerator and size. curves: best entry a
    size of each accelerator. grouping is None when there are too few systems; grouping_missing then says what
    is lacking.
    pointers: for speed, in between, for efficiency; fewer when one entry serves several purposes.
    energy: the rows of `entries` with measured energy; may be empty.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything a report shows about one round.

    headline: one sentence that says what was found. summary: a few sentences more, most important first.
    attributed: figures that others ascribe to the published study of this round; empty for other rounds.
    dataset: version of the embedded data. sources: where the tables came from, in words.
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

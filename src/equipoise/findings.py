"""What a study found: the records that the layers own, side by side. No logic."""

from dataclasses import dataclass

import polars as pl

from equipoise.advice.forecast.advice_record import AdviceErrors
from equipoise.advice.forecast.balance import Balances, Unanswered
from equipoise.advice.forecast.diagnose import Diagnosis
from equipoise.advice.forecast.record import Shipped
from equipoise.advice.validation.profiles import Profile
from equipoise.decide.ledger import Running
from equipoise.decide.strategies.plan_record import PlanRecord
from equipoise.economics import Bill
from equipoise.scaling.batches import BatchGrowth
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
    losses: what each entry lost by cause (`scaling.decompose.losses`). diagnoses: of entries;
    curve_diagnoses: of accelerators. batches: samples against batch over all rounds, or why nothing is known.
    balances: where each accelerator stops paying.
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
    losses: pl.DataFrame
    diagnoses: tuple[Diagnosis, ...]
    curve_diagnoses: tuple[Diagnosis, ...]
    batches: BatchGrowth | Unanswered
    balances: Balances


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything a report shows about one round.

    headline: one sentence that says what was found. summary: a few sentences more, most important first.
    attributed: figures that others ascribe to the published study of this round; empty for other rounds.
    record: how wrong predictions were on results held out; None where it does not ship.
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
    record: Shipped | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFindings:
    """Everything a page shows that puts entries of one round and workload side by side.

    entries: every closed entry with a score, with the columns of `scaling.metrics.ENTRY_COLUMNS` but
    `cluster`, ordered by accelerators, then score. chosen: those side by side, in that order; bills: what one
    run of each costs. losses: of those chosen, as `scaling.decompose.losses` returns them; curves: of their
    accelerators, as `scaling.metrics.curves`. are_given: whether somebody chose them.
    """

    round: str
    division: str
    dataset: str
    sources: str
    workload: str
    name: str
    entries: pl.DataFrame
    chosen: pl.DataFrame
    bills: tuple[Bill, ...]
    losses: pl.DataFrame
    curves: pl.DataFrame
    are_given: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyFindings:
    """How wrong every kind of answer was on what was held out; what has no record yet is empty or None.

    forecasts: of published results. profiles: of steps, a calibration each. plans: of published trainings,
    a kind of model each. advised, advised_jointly: of advised numbers of
    accelerators, by published results alone and with the model. own: of one's own ledger.
    """

    forecasts: Shipped | None
    profiles: tuple[Profile, ...]
    plans: tuple[PlanRecord, ...]
    advised: tuple[AdviceErrors, ...]
    advised_jointly: tuple[AdviceErrors, ...]
    own: Running | None
    dataset: str

"""Small findings made by hand, with names as hostile as a test wants them; a parser of pages."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace

from equipoise.calibration.curves import LawUsed, PredictedTime, Shipped, TimeCurve
from equipoise.economics import SYSTEM_POWER, GridCarbon, Price, Rates, bill
from equipoise.intervals import Interval
from equipoise.scaling.backtest import BacktestRecord, BacktestSummary, Errors
from equipoise.scaling.convergence import BatchGrowth, GrowthPoint
from equipoise.scaling.equilibrium import Equilibrium, NextStep
from equipoise.scaling.groups import Grouping, SharedSystems, SystemGroup
from equipoise.scaling.laws import Domain
from equipoise.scaling.metrics import ENTRY_COLUMNS, Pointer
from equipoise.scaling.pooled import SubmitterSpread
from equipoise.spec.mlperf import ScoredEntry
from equipoise.study.claims import (
    Attributed,
    Claim,
    ClaimPart,
    ClaimReading,
    Published,
    Reference,
    TableRow,
    Unscored,
)
from equipoise.study.diminishing_returns import Balance, Balances, Diagnosis, Unanswered
from equipoise.study.findings import Findings, WorkloadFindings
from equipoise.study.quantities import Figure

# accelerators, seconds, E', E, cluster, joules
ROWS = ((4, 600.0, 1.0, 1.0, 1, None), (8, 330.0, 0.909, 0.9, 1, 1.5e6), (64, 75.0, 0.5, 0.4, 2, 2.5e6))


def _entry(place: int, submitter: str, system: str, accelerator: str) -> dict[str, object]:
    size, score_s, relative, like_for_like, cluster, energy_j = ROWS[place]
    return dict.fromkeys(ENTRY_COLUMNS) | {
        "round": "v9.9",
        "division": "closed",
        "submitter": submitter,
        "system": f"{system}-{size}",
        "workload": "bert",
        "accelerator": accelerator,
        "num_accelerators": size,
        "score_s": score_s,
        "speedup": 600.0 / score_s,
        "relative_efficiency": relative,
        "like_for_like_efficiency": like_for_like,
        "like_for_like_baseline": f"{submitter}/{system}-4",
        "global_batch_samples": 128 * size,
        "samples_to_target": 2.5e6,
        "samples_per_s_per_accelerator": 2.5e6 / score_s / size,
        "energy_j": energy_j,
        "energy_j_per_sample": None if energy_j is None else energy_j / 2.5e6,
        "cluster": cluster,
        "statistical": 0.8,
        "throughput": 0.5,
        "source_uri": f"{submitter}/results/{system}-{size}/bert/result_0.txt",
        "source_line": 100 + place,
        "entry_id": f"v9.9/{submitter}/{system}-{size}/bert",
    }


def _reading(verdict: str, value: float, entry_id: str) -> ClaimReading:
    figure = Figure(name="E' at 64", value=value, unit="", entry_ids=(entry_id,))
    return ClaimReading(verdict=verdict, figures=(figure,), words=f"seen at 64: {value}.")


def _claims(entry_id: str) -> tuple[Claim, ...]:
    theirs, like = _reading("holds", 0.5, entry_id), _reading("reverses", 0.4, entry_id)
    part = ClaimPart(
        statement="the largest is as efficient as the smallest",
        rule="ratio from 0.5 to 2",
        workload="bert",
        study_method=theirs,
        like_for_like=like,
    )
    stated = Claim(
        number=1,
        claim="BERT: the largest is as efficient as the smallest",
        source="a paper, its conclusions",
        workloads=("bert",),
        stated_for=("bert",),
        parts=(part,),
        study_method=theirs,
        like_for_like=like,
        verdict="reverses",
    )
    nothing = ClaimReading(verdict="not enough evidence", figures=(), words="too few sizes.")
    untested = replace(stated, number=2, parts=(), study_method=nothing, like_for_like=nothing, stated_for=())
    return (stated, replace(untested, verdict="not enough evidence"))


def _grouping(words: str) -> Grouping:
    groups = tuple(
        SystemGroup(
            cluster=cluster,
            num_entries=number,
            min_accelerators=low,
            max_accelerators=high,
            min_s=75.0,
            max_s=600.0,
            median_relative_efficiency=0.5,
            accelerators=("h100-sxm5-80gb",),
            words=words,
        )
        for cluster, number, low, high in ((1, 2, 4, 8), (2, 1, 64, 64))
    )
    return Grouping(
        features=("log2 accelerators", "log2 E'"),
        scaling="each feature to mean 0",
        k=2,
        chosen_by="the highest mean silhouette",
        silhouettes=((2, 0.7), (3, 0.5)),
        stability=Interval(value=0.9, low=0.5, high=1.0, level=0.9),
        num_resamples=100,
        groups=groups,
        words="2 groups.",
    )


def _spots(entries: pl.DataFrame) -> pl.DataFrame:
    return entries.select(
        "accelerator",
        "num_accelerators",
        "cluster",
        num_systems=pl.lit(3, pl.UInt32),
        systems=pl.concat_list(pl.concat_str("submitter", "system", separator="/")),
    )


def _losses(entries: pl.DataFrame) -> pl.DataFrame:
    """E 1, 0.9 and 0.4: nothing lost; 0.152 doublings that no log tells; 1.322 = 0.322 + 1 + 0."""
    reason = "evaluation lies inside the training blocks"
    return entries.select(
        "accelerator",
        "num_accelerators",
        "entry_id",
        efficiency="like_for_like_efficiency",
        lost_doublings=pl.Series([0.0, 0.152, 1.322]),
        statistical=pl.Series([0.0, None, 0.322]),
        training=pl.Series([None] * 3, dtype=pl.Float64),
        overhead=pl.Series([None] * 3, dtype=pl.Float64),
        throughput=pl.Series([0.0, None, 1.0]),
        rules=pl.Series([0.0, None, 0.0]),
        unattributed=pl.Series([None, 0.152, None]),
        factors_missing=pl.Series([None, reason, reason]),
    )


def _batches(entries: pl.DataFrame) -> BatchGrowth:
    columns = ScoredEntry.__struct_fields__
    return BatchGrowth(
        entries=tuple(
            ScoredEntry(**row) for row in entries.rename({"round": "campaign"}).select(columns).to_dicts()
        ),
        adjusted_samples=entries["samples_to_target"].to_numpy(),
        weight=np.ones(len(entries)),
        curve=(
            GrowthPoint(global_batch_samples=512.0, samples=2.1e6, low=2e6, high=2.2e6),
            GrowthPoint(global_batch_samples=8192.0, samples=3e6, low=2.8e6, high=3.2e6),
        ),
        samples_min=Interval(value=2.0e6, low=1.9e6, high=2.1e6, level=0.9),
        batch_critical=Interval(value=16_000.0, low=14_000.0, high=19_000.0, level=0.9),
        growth=Interval(value=1.43, low=1.3, high=1.6, level=0.9),
        stretch=np.ones(2),
    )


def _balance(accelerator: str, submitter: str) -> Balance:
    """A balance at 32 (16-48) and a peak that the data do not reach."""
    step = NextStep(num_accelerators=64, gain_s=30.0, gain_fraction=0.25, accelerator_hours_factor=1.5)
    balance = Equilibrium(
        kind="balance",
        title="the balance point",
        num_accelerators=32,
        low=16,
        high=48,
        level=0.9,
        limited_by=None,
        time_s=120.0,
        efficiency=0.625,
        next_step=step,
    )
    peak = replace(
        balance,
        kind="peak",
        title="the fastest size",
        num_accelerators=64,
        low=64,
        high=None,
        limited_by="data",
    )
    rates = Rates(
        price=Price(
            accelerator=accelerator, usd_per_accelerator_hour=3.0, low=2.0, high=4.0, basis=f"by {submitter}"
        ),
        grid=GridCarbon(region="world", kg_co2_per_kwh=0.5, basis="2030, a source"),
        accelerator_power_w=700.0,
        system_power=SYSTEM_POWER,
    )
    times = TimeCurve(
        law=LawUsed(name="pooled", assumes="curves share their shape", source="a paper"),
        work="the complete training",
        round="v9.9",
        domain=Domain(smallest=4.0, largest=64.0),
        predictions=tuple(
            PredictedTime(
                num_accelerators=size,
                time=Interval(value=value, low=low, high=high, level=0.9),
                outside=None,
                record=None,
            )
            for size, value, low, high in (
                (4, 600.0, 550.0, 650.0),
                (16, 180.0, 160.0, 200.0),
                (64, 75.0, 70.0, 80.0),
                (128, 60.0, 50.0, 70.0),
            )
        ),
        curves_s=lambda sizes: sizes[None, :],
        evidence=(),
        notes=(),
    )
    return Balance(
        accelerator=accelerator,
        sizes=(4, 8, 64),
        curve=times,
        equilibria=(balance, peak),
        answer=balance,
        rates=rates,
        bills=(bill(32, 120.0, rates), bill(64, 120.0, rates, measured_energy_j=7.2e6)),
        words=("at 32 you are at the balance point (16-48)", "the fastest size lies at 64 or beyond"),
    )


def _shipped() -> Shipped:
    def record(median: float, coverage: float | None) -> BacktestRecord:
        errors = Errors(
            num_groups=40, median_abs_error=median, mean_abs_error=median, p90_abs_error=0.2, coverage=None
        )
        return BacktestRecord(
            num_groups=50,
            median_abs_error=median,
            mean_abs_error=median,
            p90_abs_error=0.2,
            coverage=coverage,
            by_workload={},
            by_jump={"up to 2x": errors},
            by_round={},
            by_cause={},
        )

    summary = BacktestSummary(
        protocol="largest",
        given_batch=False,
        pooled_law=record(0.06, 0.88),
        baselines={"perfect": record(0.35, None)},
    )
    spread = SubmitterSpread(factor=1.02, log_sd=0.1, num_results=50, num_held_out=40, coverage=0.9)
    return Shipped(
        dataset="2030.1",
        settings_without_batch={},
        settings_given_batch={},
        summaries=(summary,),
        submitters=spread,
    )


def make_findings(
    submitter: str = "Dell", system: str = "XE", accelerator: str = "h100-sxm5-80gb"
) -> Findings:
    """Three entries of one workload, and everything a study says about them."""
    entries = pl.DataFrame(
        [_entry(place, submitter, system, accelerator) for place in range(len(ROWS))],
        infer_schema_length=None,
    )
    first, last = entries.row(0, named=True), entries.row(2, named=True)
    named = {"submitter": submitter, "accelerator": accelerator}
    table = TableRow(
        workload="bert",
        num_entries=4,
        num_scored=3,
        reference=Reference(
            entry_id=first["entry_id"],
            system=first["system"],
            num_accelerators=4,
            score_s=600.0,
            source_uri=first["source_uri"],
            **named,
        ),
        unscored=(
            Unscored(
                system=system, num_accelerators=16, reason="2 of 10 logs missing", num_missing=2, **named
            ),
        ),
        published=Published(
            round="v9.9",
            workload="bert",
            name="BERT",
            num_entries=5,
            num_accelerators=4,
            score_minutes=10.0,
            num_decimals=2,
            source="a study, Table I",
        ),
        differences=("the results hold 4 entries, the study counts 5",),
    )
    pointer = Pointer(
        workload="bert",
        purpose="speed",
        entry_id=last["entry_id"],
        system=last["system"],
        num_accelerators=64,
        score_s=75.0,
        relative_efficiency=0.5,
        like_for_like_efficiency=0.4,
        words="the shortest time of all",
        **named,
    )
    workload = WorkloadFindings(
        workload="bert",
        name="BERT",
        table=table,
        entries=entries,
        spots=_spots(entries),
        curves=entries,
        grouping=_grouping(f"small systems of {submitter}"),
        grouping_missing=None,
        pointers=(pointer,),
        energy=entries.filter(pl.col("energy_j").is_not_null()),
        losses=_losses(entries),
        diagnoses=(
            Diagnosis(
                symptom="batch_starvation",
                subject=last["entry_id"],
                words="batch starvation: 1 samples an accelerator and step against 8 in its baseline",
            ),
        ),
        curve_diagnoses=(
            Diagnosis(
                symptom="diminishing_returns",
                subject=accelerator,
                words="diminishing returns from 8 accelerators",
            ),
        ),
        batches=_batches(entries),
        balances=Balances(
            found=(_balance(accelerator, submitter),),
            unanswered=(
                Unanswered(
                    subject=f"{accelerator}-other",
                    reason=f"{submitter} has one size.",
                    missing=("the time at 16 accelerators",),
                ),
            ),
        ),
    )
    shared = SharedSystems(
        num_systems=1,
        table=entries.head(1).with_columns(rank=pl.lit(1)),
        families=pl.DataFrame(
            {
                "submitter": [submitter],
                "accelerator": [accelerator],
                "from_accelerators": [4],
                "to_accelerators": [64],
                "workload": ["bert"],
                "efficiency": [0.4],
            }
        ),
        num_published=None,
        words="1 system has a score in all workloads.",
    )
    return Findings(
        round="v9.9",
        division="closed",
        dataset="2030.1",
        sources=f"Tables given by {submitter}.",
        headline=f"The largest system of {submitter} keeps 40 %",
        summary=("E' hides it.",),
        workloads=(workload,),
        claims=_claims(last["entry_id"]),
        shared=shared,
        attributed=(
            Attributed(claim=f"+99 % by {submitter}", found="it holds no such figure", source="a summary"),
        ),
        record=_shipped(),
    )


@pytest.fixture
def findings() -> Findings:
    """Findings with plain names."""
    return make_findings()


@pytest.fixture
def findings_of() -> Callable[..., Findings]:
    """Findings with the names a test gives."""
    return make_findings

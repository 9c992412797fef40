"""Answers made by hand, whose numbers follow from few: T(N) = serial + parallel / N, money and energy by the hour."""

from msgspec.structs import replace

from equipoise.calibration import EvidenceSource
from equipoise.decide.answer import (
    Alternative,
    Answer,
    Candidate,
    Constraint,
    Flip,
    Infeasibility,
    Measurement,
    MemoryUse,
    ModelStep,
    Reason,
    Refusal,
    Relaxation,
    Renting,
    SystemAnswer,
    SystemOffer,
    TimeValue,
)
from equipoise.decide.evidence import ErrorRecord, Estimate, PublishedResult
from equipoise.decide.question.query import TrainingQuery
from equipoise.economics import Price, rates
from equipoise.intervals import Bar, Interval, Tornado
from equipoise.notes import Note
from equipoise.scaling.equilibrium import Equilibrium, NextStep
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import workload

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">\x1b[2J"
SIZES = (8, 16, 32, 64)
USD_PER_HOUR = {"h100-sxm5-80gb": 2.5, "b200-sxm6-180gb": 5.0}
WATTS = 800.0
NUM_SAMPLES = 64_000.0


def around(value, share=0.1):
    return Interval(value=value, low=value * (1 - share), high=value * (1 + share), level=0.9)


def time_s(num_accelerators, speed=1.0):
    """600 s that do not scale and 64 hours that do: 8 take 8.17 h, 64 take 1.17 h."""
    return (600.0 + 64 * 3600.0 / num_accelerators) / speed


def candidate(size, *, system="h100-sxm5-80gb", title="NVIDIA H100 SXM5 80 GB", speed=1.0, **changed):
    time = time_s(size, speed)
    hours = size * time / 3600
    price = USD_PER_HOUR[system]
    made = Candidate(
        system=system,
        title=title,
        accelerator=system,
        num_accelerators=size,
        num_nodes=size // 8,
        terms="on_demand",
        strategy=Strategy(dp=size, global_batch_samples=64) if 64 % size == 0 else None,
        user_run=None,
        global_batch_samples=64,
        num_samples=NUM_SAMPLES,
        num_steps=1000.0,
        step_s=around(time / 1000),
        work_s=around(time),
        time_s=around(time),
        goodput=Interval(value=1.0, low=1.0, high=1.0, level=0.9),
        why_not=None,
        price=Price(accelerator=system, usd_per_accelerator_hour=price, low=price, high=price, basis="made"),
        power_w=WATTS,
        usd=around(hours * price, 0.2),
        energy_j=around(size * WATTS * time, 0.2),
        carbon_kg=around(size * WATTS * time / 3.6e6 * 0.5, 0.2),
        electricity_usd=None,
        interrupted=None,
        mfu=0.41,
        mfu_precision="bf16",
        order_bound=None,
        tokens_per_s_per_accelerator=1234.5,
        memory=MemoryUse(
            needed_bytes=60e9, available_bytes=80e9, by_kind_bytes={"weights": 40e9, "activations": 20e9}
        ),
        model=ModelStep(
            step_s=time / 1000,
            by_cause_s={"compute": time / 2000, "dp": 0.995 * time / 2000, "optimizer": 0.005 * time / 2000},
            num_samples=NUM_SAMPLES,
        ),
        speedup=around(time_s(8, speed) / time, 0.02),
        constraints=(
            Constraint(
                name="deadline_s", limit=3 * 3600.0, value=time, probability=0.97 if time < 10_800 else 0.01
            ),
        ),
        estimates=(
            Estimate(
                estimator="published",
                name="published results",
                time_s=around(time),
                log_sd=0.05,
                why="made",
                weight=0.75,
                sources=(
                    EvidenceSource(
                        kind="published",
                        ref="v9.9/Red/red-8/x",
                        share=0.5,
                        num_accelerators=8,
                        time_s=30_000.0,
                    ),
                    EvidenceSource(kind="published", ref=f"v9.9/{HOSTILE}/x", share=0.25),
                ),
            ),
            Estimate(
                estimator="model", name="the model", time_s=around(time), log_sd=0.1, why="made", weight=0.25
            ),
        ),
        published=(PublishedResult(entry_id=f"v9.9/Red/red-{size}/x", round="v9.9", score_s=time * 1.01),),
        disagreement=1.0,
        grade="published",
    )
    return replace(made, **changed)


def equilibrium(kind, size, limited_by=None):
    return Equilibrium(
        kind=kind,
        title=f"the {kind}",
        num_accelerators=size,
        low=16,
        high=64,
        level=0.9,
        limited_by=limited_by,
        is_smallest=False,
        time_s=time_s(size),
        efficiency=0.9,
        next_step=NextStep(
            num_accelerators=2 * size,
            gain_s=1.0,
            gain_fraction=0.1,
            accelerator_hours_factor=1.5,
            is_extrapolated=False,
        ),
    )


def system_answer(candidates, name="h100-sxm5-80gb", *, title="NVIDIA H100 SXM5 80 GB", equilibria=()):
    nodes = cluster(name)
    return SystemAnswer(
        name=name,
        title=title,
        cluster=nodes,
        topology=None,
        node_size=8,
        stock=None,
        rates={"on_demand": rates(nodes.accelerator, user_price=USD_PER_HOUR[name])},
        estimates=(),
        equilibria=equilibria,
        balance_size=32,
        best_strategies=candidates[:1],
        user_runs=(),
        rejected=(),
        unfit=(),
        records=(),
        calibration="made",
        time_per_step_time=1.0,
        time_per_step_time_of=None,
        software=None,
        transferred_from=None,
        run_fit=None,
        num_considered=100,
        num_fitting=60,
        search_s=0.01,
        notes=(),
    )


def made_answer(*, limited_by=None, is_refused=False, **changed):
    """32 of 8, 16, 32 and 64 H100 under a deadline of three hours; 8 and 16 miss it. Two B200 sizes besides."""
    own = tuple(candidate(size) for size in SIZES)
    other = tuple(
        candidate(size, system="b200-sxm6-180gb", title="B200 SXM 180 GB", speed=2.0, grade="carried")
        for size in (8, 16)
    )
    best = None if is_refused else own[2]
    points = (equilibrium("balance", 64, limited_by), equilibrium("marginal", 32, limited_by))
    tornado = Tornado(
        name="money",
        unit="USD",
        result=around(200.0, 0.2),
        bars=(Bar(name="price", unit="USD/h", low=2.0, high=3.0, at_low=160.0, at_high=240.0),),
    )
    made = Answer(
        question=TrainingQuery(workload="llama2_70b_lora", deadline_s=3 * 3600.0, systems=("h100", "b200")),
        dataset="v9.9+made",
        workload=workload("llama2_70b_lora"),
        work="reach the MLPerf target",
        systems=(
            system_answer(own, equilibria=points),
            system_answer(other, "b200-sxm6-180gb", title="B200 SXM 180 GB"),
        ),
        candidates=(*own, *other),
        recommended=best,
        refusal=None
        if best is not None
        else Refusal(
            cheapest=own[0],
            fastest=own[3],
            relaxations=(
                Relaxation(
                    constraint="deadline_s",
                    limit=1800.0,
                    needed=time_s(64),
                    candidate="h100-sxm5-80gb/64/on_demand",
                ),
            ),
        ),
        equilibria=() if best is None else points,
        limited_by=limited_by,
        frontier=tuple(each.id for each in own),
        flips=()
        if best is None
        else (
            Flip(
                quantity="price of b200-sxm6-180gb",
                system="b200-sxm6-180gb",
                unit="USD per accelerator-hour",
                value=5.0,
                flips_at=4.0,
                to="b200-sxm6-180gb/16/on_demand",
            ),
        ),
        time_values=(
            TimeValue(from_usd_per_hour=0.0, candidate="h100-sxm5-80gb/8/on_demand"),
            TimeValue(from_usd_per_hour=40.0, candidate="h100-sxm5-80gb/32/on_demand"),
            TimeValue(from_usd_per_hour=330.0, candidate="h100-sxm5-80gb/64/on_demand"),
        ),
        offers=(
            SystemOffer(
                candidate=own[2].id,
                system=own[2].system,
                terms="on_demand",
                is_feasible=best is not None,
                grade="published",
                break_even_usd_per_hour=None,
            ),
            SystemOffer(
                candidate=other[1].id,
                system=other[1].system,
                terms="on_demand",
                is_feasible=best is not None,
                grade="carried",
                break_even_usd_per_hour=None,
            ),
        ),
        alternatives=(
            Alternative(candidate=other[1], case="price", high=4.0),
            Alternative(candidate=own[3], case="hour", low=330.0),
        ),
        rejected=(Infeasibility(needed=90e9, available=80e9, count=40),),
        reasons=(Reason(words=f"Because {HOSTILE}.", sources=(), formula="w = 1"),),
        to_measure=(
            Measurement(
                words="50 steps on 8.", command="equipoise bench x", expected_time_s=around(9000.0, 0.05)
            ),
        ),
        records=(
            ErrorRecord(
                kind="published",
                of="made",
                num_held_out=10,
                median_abs_error=0.08,
                p90_abs_error=0.3,
                coverage=0.9,
                words="Ten held out.",
            ),
        ),
        sensitivity=tornado,
        renting=(Renting(candidate=own[2], tornado=tornado),),
        ownership=None,
        chosen_for_you=("precision bf16 (--precision for others)",),
        notes=(Note(f"A note with {HOSTILE}."),),
        num_considered=100,
        search_s=0.01,
    )
    return replace(made, **changed)

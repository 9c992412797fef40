"""The estimator of the user's own runs: the sizes they ran on, and larger ones by what more ranks add."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict

import numpy as np

from equipoise.advice.measured.scaled import HALF_WIDTH_LOG, SmallRun, scaled
from equipoise.bench.methods import method
from equipoise.decide.candidate import UserRun
from equipoise.decide.combine import straight_between
from equipoise.decide.estimate import (
    DEVIATE,
    LEAST_LOG_SD,
    Curves,
    Estimate,
    Estimates,
    Source,
    log_sd,
    with_log_sd,
)
from equipoise.decide.training_budget import TrainingBudget
from equipoise.decide.user_evidence.steps import Recast
from equipoise.errors import InputError
from equipoise.scaling.law import Domain
from equipoise.spec.cluster import Cluster
from equipoise.spec.workload import Workload
from equipoise.stats import Interval
from equipoise.units import format_count

# Errors of steps predicted from few ranks to many grow with doublings: 3 % from 1 to 8, 7 % to 16, 22 % to 32
# and 64 (medians, docs/experiments/0009); their 90 % interval was set on the first three doublings.
_FULL_AFTER_DOUBLINGS = 3.0
_LOG_SD_A_DOUBLING = 0.06
_NUM_DRAWS, _SEED = 64, 1
_DATA_PARALLEL = frozenset({"single", "ddp", "static_graph", "accumulate"})


def measured_estimates(
    runs: Sequence[UserRun],
    budget: TrainingBudget,
    sizes: Sequence[int],
    *,
    cluster: Cluster | None,
    workload: Workload | None,
    recasts: Mapping[str, Recast] | None = None,
) -> Estimates | None:
    """Estimates from the user's runs; None where they give none.

    Where several sizes were measured, their times make a curve. cluster: None where the catalogue does not
    have it: then only sizes that ran are estimated. recasts: by first run id, from a set-up to the strategy
    that is advised on as many accelerators; a set-up without one counts as it ran.
    """
    if budget.samples is None:
        return None
    usual = recasts or {}
    found: dict[int, Estimate] = {}
    used: dict[UserRun, float] = {}
    for size in sorted({*sizes, *(each.num_accelerators for each in runs)}):
        scaled_runs = [_at_size(each, size, budget, cluster, workload) for each in runs]
        known = [_recast(each, usual.get(each[0].run_ids[0])) for each in scaled_runs if each]
        if not known:
            continue
        # The nearest size counts; of several set-ups there, the fastest.
        nearest = min(abs(math.log2(size / run.num_accelerators)) for run, _, _ in known)
        near = [each for each in known if abs(math.log2(size / each[0].num_accelerators)) <= nearest]
        run, value, spread = min(near, key=lambda each: each[1])
        used[run] = value
        found[size] = Estimate(
            estimator="measured",
            name="your runs",
            time_s=with_log_sd(value, spread),
            log_sd=spread,
            why=_why(run, size, usual.get(run.run_ids[0])),
            sources=(_source(run, budget),),
        )
    if not found:
        return None
    ran = {each.num_accelerators for each in runs} & set(found)
    return Estimates(
        estimator="measured",
        name="your runs",
        by_size=found,
        grade=dict.fromkeys(found, "measured"),
        sources=tuple(_source(each, budget) for each in used),
        **_curve({size: found[size].time_s for size in ran}),
    )


def _source(run: UserRun, budget: TrainingBudget) -> Source:
    return Source(
        kind="measured",
        ref=run.run_ids[0] + (f" and {len(run.run_ids) - 1} more" if run.run_ids[1:] else ""),
        num_accelerators=run.num_accelerators,
        time_s=_time_s(budget, run.global_batch_samples, run.samples_per_s),
    )


_AtSize: TypeAlias = tuple[UserRun, float, float]


def _recast(found: _AtSize, recast: Recast | None) -> _AtSize:
    """The time of a set-up, as if it had trained as is advised."""
    run, value, spread = found
    return found if recast is None else (run, recast.factor * value, math.hypot(spread, recast.log_sd))


class _Curve(TypedDict):
    """The fields of estimates that make their curve."""

    curves_s: Curves | None
    domain: Domain | None


def _curve(measured: Mapping[int, Interval]) -> _Curve:
    """Curves through the times of measured sizes, and the sizes whose double was measured too."""
    sizes = sorted(measured)
    if not sizes or sizes[-1] / 2.0 <= sizes[0]:
        return {"curves_s": None, "domain": None}
    deviates = np.random.default_rng(_SEED).standard_normal((_NUM_DRAWS, len(sizes)))
    logs = np.log([measured[size].value for size in sizes])
    drawn_s = np.exp(logs + deviates * [log_sd(measured[size]) for size in sizes])
    return {
        "curves_s": straight_between(sizes, drawn_s),
        "domain": Domain(smallest=float(sizes[0]), largest=sizes[-1] / 2.0),
    }


def distance_log_sd(num_doublings: float) -> float:
    """How wrong steps so many doublings beyond the measured ones were: standard deviation of the logarithm.

    Source: docs/experiments/0009: 0.38 is half its 90 % interval, reached at three doublings; beyond, 0.06 a
    doubling where that is more.

    >>> distance_log_sd(0.0)
    0.0
    """
    usual = HALF_WIDTH_LOG / DEVIATE
    return max(usual * min(1.0, num_doublings / _FULL_AFTER_DOUBLINGS), _LOG_SD_A_DOUBLING * num_doublings)


def _at_size(
    run: UserRun, size: int, budget: TrainingBudget, cluster: Cluster | None, workload: Workload | None
) -> _AtSize | None:
    """The set-up, seconds of the training on so many, and their log standard deviation; None: not known."""
    own = max(run.log_sd, LEAST_LOG_SD)
    if size == run.num_accelerators:
        value = _time_s(budget, run.global_batch_samples, run.samples_per_s)
        return run, value, math.hypot(own, budget.log_sd(float(run.global_batch_samples)))
    rate = _scaled_rate(run, size, cluster, workload)
    if rate is None:
        return None
    batch = round(run.global_batch_samples * size / run.num_accelerators)
    far = distance_log_sd(math.log2(size / run.num_accelerators))
    value = _time_s(budget, batch, rate)
    return run, value, math.hypot(own, budget.log_sd(float(batch)), far)


def _time_s(budget: TrainingBudget, batch: int, samples_per_s: float) -> float:
    """Seconds of the whole training at a rate, without interruptions."""
    samples = budget.samples_at(batch)
    assert samples is not None
    return samples / samples_per_s


def _scaled_rate(run: UserRun, size: int, cluster: Cluster | None, workload: Workload | None) -> float | None:
    """Samples in a second on more accelerators, each keeping its share; None where no law applies."""
    if cluster is None or size < run.num_accelerators:
        return None
    accumulated = _accumulated(run.strategy)
    if accumulated is None:
        return None
    share = run.global_batch_samples // (run.num_accelerators * accumulated)
    if share < 1:
        return None
    try:
        small = SmallRun(
            step_s=run.global_batch_samples / run.samples_per_s,
            microbatch_samples=share,
            num_accelerators=run.num_accelerators,
            num_accumulated=accumulated,
        )
        found = scaled(small, [size], cluster=cluster, workload=workload)
    except InputError:
        return None
    return float(found.samples_per_s[0])


def _accumulated(strategy: str | None) -> int | None:
    """Micro-batches between exchanges, of plain data parallelism; None for other ways to train."""
    if strategy is None:
        return 1
    try:
        found, argument = method(strategy)
    except InputError:
        return None
    if found.name not in _DATA_PARALLEL:
        return None
    return int(argument or 1) if found.name == "accumulate" else 1


def _why(run: UserRun, size: int, recast: Recast | None) -> str:
    at = f"{format_count(len(run.run_ids))} of your runs on {format_count(run.num_accelerators)}"
    way = f" ({run.strategy})" if run.strategy else ""
    batch = format_count(run.global_batch_samples)
    if size == run.num_accelerators and recast is not None and recast.is_other:
        return f"{at}{way} at batch {batch}; trained as advised, {recast.factor:.2f} times, by the model"
    if size == run.num_accelerators:
        return f"{at}{way} at batch {batch}, as measured"
    return (
        f"{at}{way} at batch {batch}, with what more ranks add: waiting, exchange, input "
        "(docs/experiments/0009)"
    )

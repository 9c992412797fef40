"""The user's own runs as an estimator: the sizes that ran, and larger ones by the scale-up law."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from equipoise.calibration import EvidenceSource
from equipoise.decide.combine import distance_log_sd, straight_between
from equipoise.decide.evidence import LEAST_LOG_SD, DrawnCurves, Estimate, Estimates, UserRun, clear_slope
from equipoise.decide.question.training import TrainingBudget
from equipoise.decide.user_evidence.runs import Recast, num_accumulated
from equipoise.errors import InputError
from equipoise.intervals import Interval, log_sd, with_log_sd
from equipoise.perfmodel.load import GRADIENT_BYTES
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.scale_up import RAGGED_SAMPLES, MeasuredSteps, ScaleUpParameters, slowdown
from equipoise.scaling.laws import Domain
from equipoise.spec.cluster import Cluster
from equipoise.spec.workload import Workload
from equipoise.units import format_count, format_percent, listed

_NUM_DRAWS, _SEED = 64, 1
_FEWEST_SIZES = 2  # for a curve
OF_RUNS: Final = "your runs"


def measured_estimates(
    runs: Sequence[UserRun],
    budget: TrainingBudget,
    sizes: Sequence[int],
    *,
    cluster: Cluster | None,
    workload: Workload | None,
    recasts: Mapping[str, Recast] | None = None,
    recasts_beyond: Mapping[int, Mapping[str, Recast]] | None = None,
    global_batch_samples: int | None = None,
) -> Estimates | None:
    """Estimates from the user's runs; None if they give none.

    If several sizes were measured, their times form a curve. cluster: None if it is not in the catalogue;
    then only sizes that ran are estimated. recasts: by first run id, the conversion from a set-up to the
    strategy recommended at that size; a set-up without one counts as it ran. recasts_beyond: the same by
    size, for larger sizes than ran; elsewhere the conversion at its own size. global_batch_samples: stated by
    the question; if it ran at a size, no other batch counts there. If the runs lose significantly more from
    size to size than the scale-up law predicts, larger sizes continue to lose it.
    """
    if budget.samples is None:
        return None
    beyond = recasts_beyond or {}
    slopes = _slopes(runs, cluster, workload)
    found: dict[int, Estimate] = {}
    used: dict[UserRun, None] = {}  # in the order of sizes
    for size in sorted({*sizes, *(each.num_accelerators for each in runs)}):
        usual = {**(recasts or {}), **beyond.get(size, {})}
        scaled_runs = [
            _timed_at_size(each, size, budget, cluster, workload, slope=slopes.get(_mode(each), 0.0))
            for each in runs
        ]
        known = [_convert(each, usual.get(each.run.run_ids[0])) for each in scaled_runs if each]
        if not known:
            continue
        run, value, spread = _fastest(_nearest_runs(known, size, global_batch_samples), usual)
        used[run] = None
        found[size] = Estimate(
            estimator="measured",
            name=OF_RUNS,
            time_s=with_log_sd(value, spread),
            log_sd=spread,
            why=_why(run, size, usual.get(run.run_ids[0]), slopes.get(_mode(run), 0.0)),
            sources=(_source(run, budget),),
        )
    if not found:
        return None
    ran = {each.num_accelerators for each in runs} & set(found)
    return Estimates(
        estimator="measured",
        name=OF_RUNS,
        by_size=found,
        grade=dict.fromkeys(found, "measured"),
        sources=tuple(_source(each, budget) for each in used),
        curves=_curves({size: found[size].time_s for size in ran}),
    )


def _source(run: UserRun, budget: TrainingBudget) -> EvidenceSource:
    return EvidenceSource(
        kind="measured",
        ref=listed(run.run_ids, 1),
        num_accelerators=run.num_accelerators,
        time_s=_time_s(budget, run.global_batch_samples, run.samples_per_s),
    )


class _TimedRun(NamedTuple):
    """A set-up, the training time with it at some size, and the log standard deviation of that time."""

    run: UserRun
    time_s: float
    log_sd: float


def _convert(found: _TimedRun, recast: Recast | None) -> _TimedRun:
    """The time of a set-up, converted to the recommended strategy."""
    if recast is None:
        return found
    time_s = max(recast.factor * found.time_s, recast.least_s)
    return _TimedRun(found.run, time_s, math.hypot(found.log_sd, recast.log_sd))


def _nearest_runs(known: Sequence[_TimedRun], size: int, global_batch_samples: int | None) -> list[_TimedRun]:
    """The set-ups that ran the fewest doublings from a size, or only those there with the stated batch."""
    as_stated = [
        each
        for each in known
        if (each.run.num_accelerators, each.run.global_batch_samples) == (size, global_batch_samples)
    ]
    away = [abs(math.log2(size / each.run.num_accelerators)) for each in known]
    return as_stated or [each for each, far in zip(known, away, strict=True) if far <= min(away)]


def _fastest(found: Sequence[_TimedRun], recasts: Mapping[str, Recast]) -> _TimedRun:
    """The fastest converted set-up among those in the recommended precision (if any).

    Only the set-up closest to the recommended strategy may become faster by conversion; others count as no
    faster than they ran. Otherwise the least accurate conversion would win, and slow runs shorten times.
    """

    def recast(each: _TimedRun) -> Recast:
        return recasts.get(each.run.run_ids[0]) or Recast(factor=1.0, log_sd=0.0, keeps_strategy=True)

    alike = [each for each in found if recast(each).is_of_precision] or found
    converted = [each for each in alike if not recast(each).keeps_strategy]
    closest = min(converted, key=lambda each: abs(math.log(recast(each).conversion)), default=None)

    def limited(each: _TimedRun) -> _TimedRun:
        return (
            each if each is closest else each._replace(time_s=each.time_s / min(1.0, recast(each).conversion))
        )

    return min(map(limited, alike), key=lambda each: each.time_s)


def _curves(measured: Mapping[int, Interval]) -> DrawnCurves | None:
    """Curves through the times of measured sizes, without extrapolation."""
    sizes = sorted(measured)
    if len(sizes) < _FEWEST_SIZES:
        return None
    deviates = np.random.default_rng(_SEED).standard_normal((_NUM_DRAWS, len(sizes)))
    logs = np.log([measured[size].value for size in sizes])
    drawn_s = np.exp(logs + deviates * [log_sd(measured[size]) for size in sizes])
    return DrawnCurves(
        time_s=straight_between(sizes, drawn_s),
        domain=Domain(smallest=float(sizes[0]), largest=float(sizes[-1])),
        reach=1.0,
    )


_Mode: TypeAlias = tuple[str | None, str | None]  # strategy and precision
_DATA_PARALLEL = frozenset({None, "single", "ddp"})


def _mode(run: UserRun) -> _Mode:
    """Strategy and precision of a run; one device and plain data parallelism count as the same."""
    return None if run.strategy in _DATA_PARALLEL else run.strategy, run.precision


def _slopes(
    runs: Sequence[UserRun], cluster: Cluster | None, workload: Workload | None
) -> dict[_Mode, float]:
    """By strategy and precision, the growth of log time per doubling beyond that of the scale-up law.

    Between the smallest and the largest size, by the fastest set-up of each; 0 if it is not significant.
    Assumes that the growth between these sizes continues.
    Source: docs/experiments/0024.
    """
    found = {}
    for mode in {_mode(each) for each in runs}:
        members = [each for each in runs if _mode(each) == mode]
        fastest = {
            size: max(
                (each for each in members if each.num_accelerators == size),
                key=lambda each: each.samples_per_s,
            )
            for size in {each.num_accelerators for each in members}
        }
        first, last = fastest[min(fastest)], fastest[max(fastest)]
        expected = _scaled_rate(first, last.num_accelerators, cluster, workload)
        if first is last or expected is None:
            continue
        found[mode] = max(
            0.0,
            clear_slope(
                math.log(expected / last.samples_per_s),
                (max(first.log_sd, LEAST_LOG_SD), max(last.log_sd, LEAST_LOG_SD)),
                math.log2(last.num_accelerators / first.num_accelerators),
            ),
        )
    return found


def _timed_at_size(
    run: UserRun,
    size: int,
    budget: TrainingBudget,
    cluster: Cluster | None,
    workload: Workload | None,
    *,
    slope: float,
) -> _TimedRun | None:
    """The training time with a set-up at a size; None if it cannot be estimated.

    slope: additional growth of log time per doubling.
    """
    own = max(run.log_sd, LEAST_LOG_SD)
    if size == run.num_accelerators:
        value = _time_s(budget, run.global_batch_samples, run.samples_per_s)
        return _TimedRun(run, value, math.hypot(own, budget.log_sd(float(run.global_batch_samples))))
    rate = _scaled_rate(run, size, cluster, workload)
    if rate is None:
        return None
    batch = round(run.global_batch_samples * size / run.num_accelerators)
    doublings = math.log2(size / run.num_accelerators)
    far = math.hypot(distance_log_sd(doublings), slope * doublings)
    value = _time_s(budget, batch, rate) * math.exp(slope * doublings)
    return _TimedRun(run, value, math.hypot(own, budget.log_sd(float(batch)), far))


def _time_s(budget: TrainingBudget, batch: int, samples_per_s: float) -> float:
    """Seconds of the whole training at a rate, without interruptions."""
    samples = budget.samples_at(batch)
    assert samples is not None
    return samples / samples_per_s


def _scaled_rate(run: UserRun, size: int, cluster: Cluster | None, workload: Workload | None) -> float | None:
    """Samples per second on more accelerators at a constant batch per accelerator; None if no law applies.

    Source: `perfmodel/scale_up.py`; its errors: docs/experiments/0009.
    """
    accumulated = num_accumulated(run.strategy)
    if cluster is None or size < run.num_accelerators or accumulated is None:
        return None
    microbatch = run.global_batch_samples // (run.num_accelerators * accumulated)
    if microbatch < 1:
        return None
    try:
        measured = measured_steps(
            run, cluster, workload, microbatch_samples=microbatch, num_accumulated=accumulated
        )
    except InputError:
        return None
    longer = float(slowdown(measured, float(size), ScaleUpParameters()))
    return size * microbatch * accumulated / (run.global_batch_samples / run.samples_per_s * longer)


def measured_steps(
    run: UserRun,
    cluster: Cluster,
    workload: Workload | None,
    *,
    microbatch_samples: int,
    num_accumulated: int = 1,
) -> MeasuredSteps:
    """The steps of a set-up as input of the scale-up law.

    cluster: of the accelerator measured, for its links and hosts. workload: None if it is not in the
    catalogue; then it has the usual number of parameters, and samples of equal length. num_accumulated:
    micro-batches over which gradients are accumulated before they are exchanged.
    Raises SpecError if the cluster lacks a rate.
    """
    rates = machine(cluster)
    microbatch_s = run.global_batch_samples / run.samples_per_s / num_accumulated
    trained = None if workload is None else workload.trained_params
    takes_images = workload is not None and workload.sample == "image"
    return MeasuredSteps(
        microbatch_s=microbatch_s,
        num_accelerators=run.num_accelerators,
        gradient_bytes=math.nan if trained is None else trained * GRADIENT_BYTES,
        node_size=rates.node_size,
        wires=rates.wires,
        num_accumulated=num_accumulated,
        decoded_per_s=microbatch_samples / microbatch_s if takes_images else 0.0,
        num_cores=math.nan if cluster.num_cores is None else cluster.num_cores,
        is_ragged=float(workload is not None and workload.sample in RAGGED_SAMPLES),
    )


def _why(run: UserRun, size: int, recast: Recast | None, slope: float) -> str:
    at = f"{format_count(len(run.run_ids))} of your runs on {format_count(run.num_accelerators)}"
    way = f" ({run.strategy})" if run.strategy else ""
    batch = format_count(run.global_batch_samples)
    if size == run.num_accelerators and recast is not None and recast.keeps_strategy and recast.factor != 1.0:
        longer, slower = recast.factor / recast.power_factor, recast.power_factor
        whole = f", times {longer:.2f} for what published trainings took beyond their own steps"
        limited = f", times {slower:.2f} for the power limit, by the model"
        return f"{at}{way} at batch {batch}{whole if longer != 1.0 else ''}{limited if slower != 1.0 else ''}"
    if size == run.num_accelerators and recast is not None and recast.is_other:
        return (
            f"{at}{way} at batch {batch}, times {recast.factor:.2f} for the recommended strategy, by the "
            "model"
        )
    if size == run.num_accelerators:
        return f"{at}{way} at batch {batch}, as measured"
    further = (
        f", and {format_percent(math.expm1(slope))} more time per doubling, as your sizes show"
        if slope
        else ""
    )
    factor = recast.factor if recast is not None and recast.is_other else 1.0
    converted = "" if factor == 1.0 else f", times {factor:.2f} for the recommended strategy, by the model"
    return (
        f"{at}{way} at batch {batch}, plus what more ranks add: waiting, communication, input "
        f"(docs/experiments/0009){further}{converted}"
    )

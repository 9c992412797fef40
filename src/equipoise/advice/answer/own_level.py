"""The performance model, set to the level of the user's own steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from equipoise.advice.answer.evidence import Source, Witness
from equipoise.advice.answer.own_runs import OwnRun
from equipoise.advice.answer.weighed import log_sd
from equipoise.advice.answer.witnesses import with_log_sd
from equipoise.advice.plans.length import DEVIATE
from equipoise.advice.plans.planned import Plan
from equipoise.bench.methods import method
from equipoise.errors import InputError
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.grid import grid
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.machine import machine, stacked
from equipoise.spec.strategy import PRECISIONS, Precision, Strategy

# Of a doubling away from the sizes measured, beyond what the calibration's own record says: what its held-out
# sizes showed (docs/experiments/0006-calibration.md: leaving whole sizes out).
_LOG_SD_A_DOUBLING = 0.06
# Where nothing was held out of a calibration, as wrong as steps by the priors alone are (docs/accuracy.md).
_UNCALIBRATED_LOG_SD = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLevel:
    """How many times longer the user's steps take than the model says: the median over set-ups.

    log_sd: of that level. sizes: accelerators measured on. num_set_ups: that the model expresses.
    """

    factor: float
    log_sd: float
    sizes: tuple[int, ...]
    num_set_ups: int
    run_ids: tuple[str, ...]


def own_level(runs: Sequence[OwnRun], plan: Plan) -> OwnLevel | None:
    """The level of the user's steps over the plan's model; None where it expresses none of them.

    Assumes that what the model gets wrong about a machine and its software is one factor at all sizes.
    Source: the median of log(measured / modelled), its standard error from the spread of the set-ups, at
    least the calibration's record over their number.
    """
    pairs = [(run, found) for run in runs if (found := _strategy(run)) is not None]
    if not pairs:
        return None
    load = workload_load(plan.workload)
    sizes = [run.num_accelerators for run, _ in pairs]
    machines = stacked([machine(replace(plan.cluster, num_accelerators=size)) for size in sizes])
    steps = estimate(load, machines, grid([found for _, found in pairs]), plan.parameters).step_s
    measured = [run.global_batch_samples / run.samples_per_s for run, _ in pairs]
    logs = [
        math.log(ours / theirs)
        for ours, theirs in zip(measured, np.broadcast_to(steps, (len(pairs),)).tolist(), strict=True)
        if math.isfinite(theirs) and theirs > 0
    ]
    if not logs:
        return None
    scatter = float(np.std(logs, ddof=1)) if len(logs) > 1 else 0.0
    spread = max(scatter, _record_log_sd(plan))
    return OwnLevel(
        factor=math.exp(median(logs)),
        log_sd=spread / math.sqrt(len(logs)),
        sizes=tuple(sorted(set(sizes))),
        num_set_ups=len(logs),
        run_ids=tuple(run.run_ids[0] for run, _ in pairs),
    )


def _record_log_sd(plan: Plan) -> float:
    """How wrong steps by the plan's calibration were, as a standard deviation of logarithms."""
    most = plan.basis.p90_abs_error
    return _UNCALIBRATED_LOG_SD if most is None else math.log1p(most) / DEVIATE


def calibrated_witness(witness: Witness, plan: Plan, level: OwnLevel) -> Witness:
    """The model's witness at the user's own level, in place of the default.

    Its width is that of the level, of a step by the calibration, of the samples, and of the distance in
    doublings from the sizes measured; not that of plans of other people's trainings.
    """
    log_sds = {
        each.num_accelerators: plan.length.log_sd(float(each.strategy.global_batch_samples))
        for each in plan.by_size
    }
    times = {}
    for size, time in witness.times.items():
        far = min(abs(math.log2(size / each)) for each in level.sizes)
        spread = math.hypot(level.log_sd, _record_log_sd(plan), log_sds[size], _LOG_SD_A_DOUBLING * far)
        # Never surer of a size far away than the model without the runs would be of itself.
        times[size] = with_log_sd(level.factor * time.value, min(spread, max(log_sd(time), level.log_sd)))
    return replace(
        witness,
        name="the model, at the level of your runs",
        times=times,
        log_sds={size: log_sd(time) for size, time in times.items()},
        why=dict.fromkeys(
            times, f"your {level.num_set_ups} set-ups take {level.factor:.2f} times what it says of them"
        ),
        sources=(*(Source(kind="measured", ref=each) for each in level.run_ids), *witness.sources),
    )


def _strategy(run: OwnRun) -> Strategy | None:
    """The strategy of a set-up as the model knows it; None where it does not.

    Measured steps are plain PyTorch: layers run one by one, not compiled.
    """
    size, batch = run.num_accelerators, run.global_batch_samples
    precision: Precision = next((each for each in PRECISIONS if each == run.precision), "fp32")
    try:
        found, argument = method(run.strategy or ("single" if size == 1 else "ddp"))
        accumulated = int(argument or 1) if found.name == "accumulate" else 1
        if found.name not in {"single", "ddp", "static_graph", "accumulate", "fsdp", "fp16", "bf16"}:
            return None
        return Strategy(
            dp=size,
            microbatch_samples=max(1, batch // (size * accumulated)),
            global_batch_samples=batch,
            shard_state=3 if found.name == "fsdp" else 0,
            precision=precision,
            implementation="eager",
            compression="fp16" if found.name in {"fp16", "bf16"} else "none",
        )
    except InputError:
        return None

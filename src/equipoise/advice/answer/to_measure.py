"""What to measure to be surer, and how much surer it would make the answer."""

import math
from collections.abc import Iterator

from equipoise.advice.answer.advice import Choice, Measurement, Standing
from equipoise.advice.answer.asked import Request
from equipoise.advice.answer.measured_witness import distance_log_sd
from equipoise.advice.answer.weighed import LEAST_LOG_SD, log_sd
from equipoise.advice.answer.witnesses import with_log_sd
from equipoise.stats import Interval
from equipoise.units import format_count, format_duration, format_percent

NUM_STEPS = 50
# Steps that narrow the range by less than this are not worth the trouble.
_LEAST_NARROWING = 0.9


def to_measure(request: Request, standing: Standing) -> tuple[Measurement, ...]:
    """What would narrow the time of the recommended choice, the cheapest first; what is missing before it."""
    missing = [
        Measurement(words=f"State {each}.", command=None, narrowed=None) for each in standing.length.missing
    ]
    best = standing.recommended
    return (*missing, *(_steps(request, standing, best) if best is not None else ()))


def _steps(request: Request, standing: Standing, best: Choice) -> Iterator[Measurement]:
    """Steps on one node, and on as many as are recommended."""
    node = 1 if standing.cluster is None else standing.cluster.node_size
    measured = {
        source.num_accelerators
        for each in best.evidence
        if each.kind == "measured"
        for source in each.sources
    }
    for size in sorted({min(node, best.num_accelerators), best.num_accelerators}):
        if size in measured:
            continue
        narrowed = _narrowed(standing, best, size)
        if _half(narrowed) > _LEAST_NARROWING * _half(best.time):
            continue
        yield Measurement(
            words=(
                f"{NUM_STEPS} steps on {format_count(size)} accelerator{'' if size == 1 else 's'}"
                f"{_takes(best, size)}: the range of the time would narrow from "
                f"{_around(best.time)} to about {_around(narrowed)}."
            ),
            command=_command(request, best, size),
            narrowed=narrowed,
        )


def _narrowed(standing: Standing, best: Choice, size: int) -> Interval:
    """The interval with steps on so many accelerators besides.

    Assumes the new steps agree with the rest, and are off independently of it.
    Source: precisions of independent normal errors add.
    """
    option = best.option
    batch = 1.0 if option is None else float(option.strategy.global_batch_samples)
    new = math.hypot(
        LEAST_LOG_SD,
        standing.length.log_sd(batch),
        distance_log_sd(math.log2(best.num_accelerators / size)),
    )
    old = max(log_sd(best.time), LEAST_LOG_SD)
    return with_log_sd(best.time.value, 1.0 / math.hypot(1.0 / new, 1.0 / old))


def _half(time: Interval) -> float:
    return math.log(time.high / time.low) / 2.0


def _around(time: Interval) -> str:
    low, high = (format_percent(round(abs(end / time.value - 1.0), 2)) for end in (time.low, time.high))
    return f"-{low} +{high}"


def _takes(best: Choice, size: int) -> str:
    """What the steps take, by the model: micro-batches as large as those recommended."""
    if best.option is None:
        return ""
    seconds = NUM_STEPS * best.option.step_s
    return f" (some {format_duration(seconds)})" if size == best.num_accelerators else ""


def _command(request: Request, best: Choice, size: int) -> str:
    """What to type: the sweep where `bench` can run the model, else the watch that any loop takes."""
    if ":" in request.workload:
        batch = 32 if best.option is None else best.option.strategy.global_batch_samples
        return f"equipoise bench {request.workload} --sizes {size} --batch {batch} --out runs"
    return "equipoise.watch(model) in your training loop, then: equipoise advise ... --runs runs"

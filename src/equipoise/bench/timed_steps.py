"""Steps of one rank, timed by phase: warmed up until steady, then counted, then profiled."""

import gc
import resource
from dataclasses import replace
from time import perf_counter
from typing import Any

from equipoise.bench.cell import Cell
from equipoise.bench.methods import OptimizerSettings, method
from equipoise.bench.models import Trainee, trainee
from equipoise.bench.phases import EXPOSED, INPUT, REST, STEP, Mark, parts, union_s, with_total
from equipoise.bench.steady import WINDOW_STEPS, is_steady
from equipoise.errors import UsageError
from equipoise.units import MICROSECOND_S

_BACKEND = "gloo"
_MOST_WINDOWS = 10
_NUM_PROFILED_STEPS = 4
# getrusage counts in KiB on Linux.
_RUSAGE_BYTES = 1024


class _Timed:
    """Steps of one rank, each run to its end, with the marks it made on the way."""

    def __init__(self, step: Any, subject: Trainee, num_ranks: int) -> None:  # noqa: ANN401 - a Step; torch is not followed
        self._step = step
        self._batches = subject.batches
        self._alone = num_ranks == 1
        self._marks: list[Mark] = []
        self._ready_s: list[float] = []
        step.marks.append(self._mark)
        for parameter in subject.model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._ready)

    def _mark(self, name: str) -> None:
        self._marks.append((name, perf_counter()))

    def _ready(self, _parameter: object) -> None:
        self._ready_s.append(perf_counter())

    def one(self) -> dict[str, float]:
        """Seconds of one step, by phase."""
        self._marks, self._ready_s = [], []
        self._mark(INPUT)
        batch = next(self._batches)
        self._mark(REST)
        self._step.run(batch)
        if self._alone:  # nobody to exchange with: what follows the last gradient is computing
            return {**parts(self._marks, perf_counter(), ()), EXPOSED: 0.0}
        return parts(self._marks, perf_counter(), self._ready_s)


def measured(cell: Cell, rank: int) -> dict[str, Any] | None:
    """What rank 0 leaves: steps of the slowest rank, warm-up, memory by rank; None on other ranks."""
    import torch.distributed as dist  # noqa: PLC0415 - after the cores are set

    found, argument = method(cell.method)
    refusal = found.why_not(cell.num_ranks, _BACKEND)
    if refusal:
        raise UsageError(f"{cell.method} {refusal}")
    subject = trainee(
        cell.workload,
        batch_samples=cell.batch_samples,
        seed=cell.seed,
        rank=rank,
        num_ranks=cell.num_ranks,
    )
    subject = _in_precision(subject, cell.precision)
    step = found.begin(subject, OptimizerSettings(), rank=rank, world_size=cell.num_ranks, argument=argument)
    timed = _Timed(step, subject, cell.num_ranks)
    num_warm_up, steady = _warm_up(timed)
    gc.collect()
    dist.barrier()
    num_steps = -(-cell.num_steps // step.period) * step.period  # whole cycles: parts of one are unlike
    mine = [timed.one() for _ in range(num_steps)]
    communication_s, profiled_s = _profiled(timed, step.period)
    mine = [with_total(each, total_s=communication_s, step_s=profiled_s) for each in mine]
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RUSAGE_BYTES
    everyone: list[Any] = [None] * cell.num_ranks
    dist.all_gather_object(everyone, {"steps": mine, "memory_bytes": peak_bytes})
    if rank:
        return None
    by_step = zip(*(one["steps"] for one in everyone), strict=True)
    return {
        "steps": [max(ranks, key=lambda split: split[STEP]) for ranks in by_step],
        "num_warm_up": num_warm_up,
        "steady": steady,
        "memory_bytes": [one["memory_bytes"] for one in everyone],
    }


def _warm_up(timed: _Timed) -> tuple[int, bool]:
    """How many steps were run before every rank was steady, and whether every rank came to be."""
    import torch  # noqa: PLC0415 - after the cores are set
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    step_s: list[float] = []
    for _ in range(_MOST_WINDOWS):
        step_s += [timed.one()[STEP] for _ in range(WINDOW_STEPS)]
        agreed = torch.tensor([int(is_steady(step_s))])
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
        if agreed.item():
            return len(step_s), True
    return len(step_s), False


def _profiled(timed: _Timed, period: int) -> tuple[float, float]:
    """Seconds in which a collective ran, and of the steps, in steps that are profiled and not counted."""
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 - after the cores are set

    num_steps = -(-_NUM_PROFILED_STEPS // period) * period
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        steps_s = sum(timed.one()[STEP] for _ in range(num_steps))
    spans = [
        (event.time_range.start * MICROSECOND_S, event.time_range.end * MICROSECOND_S)
        for event in seen.events()
        if event.name.startswith(f"{_BACKEND}:")
    ]
    return union_s(spans), steps_s


def _in_precision(subject: Trainee, precision: str) -> Trainee:
    """The trainee with its forward pass and loss in that precision."""
    if precision == "fp32":
        return subject
    import torch  # noqa: PLC0415 - after the cores are set

    def loss(model: Any, batch: Any) -> Any:  # noqa: ANN401 - torch is not followed
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return subject.loss(model, batch)

    return replace(subject, loss=loss)

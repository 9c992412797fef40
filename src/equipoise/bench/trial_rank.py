"""One rank of a trial: steps timed by phase, or a training with its held-out loss curve. Needs torch.

Steps are warmed up until steady, then timed, then profiled. In a training, the seed determines the initial
weights, the order of samples and the dropout masks; the held-out data are the same for all seeds.
"""

import gc
from collections.abc import Iterator
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct
from msgspec.structs import replace
from torch.utils._pytree import tree_map_only

from equipoise.bench.devices import DeviceKind, device, every_rank
from equipoise.bench.meters import Metering
from equipoise.bench.phases import BACKWARD, OPTIMIZER, STEP, largest_gap
from equipoise.bench.stopwatch import CommunicationProfile, Lap, Profiled, Stopwatch, marked_every
from equipoise.bench.summary import CHECKED_EVERY, MOST_WARM_UP, WINDOW_STEPS, is_steady
from equipoise.bench.training import Trainee, method, trainee
from equipoise.bench.training.models import rows_of
from equipoise.bench.training.steps import TrainingStep, average
from equipoise.bench.trial import Trial
from equipoise.errors import UsageError

_NUM_GRADIENT_STEPS = 3


def gradients(step: TrainingStep, subject: Trainee, on: DeviceKind) -> dict[str, Any]:
    """Return the gradients in the order they become ready, and the buffers, of a rank that trains alone.

    `gradients`: shape, bytes, dtype and `ready`, the fraction of the backward pass after which it is ready.
    `buffers`: bytes and dtype of each buffer of the model.
    """
    clock = on.clock()
    trained = [each for each in subject.model.parameters() if each.requires_grad]
    seen: list[list[float]] = [[] for _ in trained]
    for _ in range(_NUM_GRADIENT_STEPS):
        for each, share in zip(seen, _ready_fractions(step, subject, on, clock, trained), strict=True):
            each.append(share)
    ready = [median(each) for each in seen]
    order = sorted(range(len(trained)), key=ready.__getitem__)
    return {
        "gradients": [
            {"shape": list(trained[at].shape), **_size(trained[at]), "ready": ready[at]} for at in order
        ],
        "buffers": [_size(each) for each in subject.model.buffers()],
    }


def _size(tensor: torch.Tensor) -> dict[str, Any]:
    """Return a tensor's bytes and dtype."""
    return {
        "bytes": tensor.numel() * tensor.element_size(),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }


def _ready_fractions(
    step: TrainingStep,
    subject: Trainee,
    on: DeviceKind,
    clock: Any,  # noqa: ANN401 - each Clock has its own type of timestamp
    trained: list[Any],
) -> list[float]:
    """Run one step; return the fraction of its backward pass after which each gradient was ready."""
    stamps: list[Any] = []
    places: dict[object, int] = {}

    def note(what: object, _parameter: object = None) -> None:
        places[what] = len(stamps)
        stamps.append(clock.now())

    hooks = [each.register_post_accumulate_grad_hook(partial(note, at)) for at, each in enumerate(trained)]
    step.marks.append(note)
    step.run(next(subject.batches))
    on.synchronise()
    step.marks.remove(note)
    for hook in hooks:
        hook.remove()
    moments = clock.moments(stamps)
    begun, ended = moments[places[BACKWARD]], moments[places[OPTIMIZER]]
    # A weight that took no part in this step counts as ready at the end of the pass.
    return [
        (moments[places[at]] - begun) / (ended - begun) if at in places else 1.0 for at in range(len(trained))
    ]


def moved(batch: Any, place: torch.device) -> Any:  # noqa: ANN401 - a tensor, or tensors in containers
    """Return the batch with its tensors on that device."""
    return tree_map_only(torch.Tensor, lambda each: each.to(place), batch)


def placed(subject: Trainee, place: torch.device) -> Trainee:
    """Return the trainee with its model on that device and every batch copied there when it is drawn.

    A batch that is the same object as the previous one is not copied again: a user's workload may repeat one.
    """
    if place.type == "cpu":
        return subject

    def batches() -> Iterator[Any]:
        drawn = there = None
        for batch in subject.batches:
            if batch is not drawn:
                drawn, there = batch, moved(batch, place)
            yield there

    return replace(
        subject,
        model=subject.model.to(place),
        batches=batches(),
        held_out=moved(subject.held_out, place),
    )


def in_precision(subject: Trainee, precision: str, place: torch.device) -> Trainee:
    """Return the trainee with its forward pass and loss in that precision."""
    if precision != "bf16":
        return subject

    def loss(model: Any, batch: Any) -> Any:  # noqa: ANN401 - torch is not followed
        with torch.autocast(place.type, dtype=torch.bfloat16):
            return subject.loss(model, batch)

    return replace(subject, loss=loss)


_NUM_PROFILED_STEPS = 4
# A run is marked if phases differ from their step, or steps from their total time, by a larger fraction.
_LARGEST_GAP = 0.05


class PreparedTraining(Struct, frozen=True, kw_only=True):
    """A trainee on its device, the training step of its method, and the bytes in use without its weights."""

    subject: Trainee
    step: TrainingStep
    memory_before: int


def prepared_training(trial: Trial, rank: int, on: DeviceKind, place: torch.device) -> PreparedTraining:
    """Return the trainee of a trial on its device and in its precision, with the step of its method.

    Raises UsageError if the device does not support the precision or the method cannot run.
    """
    found, argument = method(trial.method)
    refusal = found.why_not(trial.num_ranks, on.backend)
    if refusal:
        raise UsageError(f"{trial.method} {refusal}")
    refusal = on.refusal(trial.precision)
    if refusal:
        raise UsageError(refusal)
    on.set_precision(trial.precision)
    subject = trainee(
        trial.workload,
        batch_samples=trial.batch_samples,
        seed=trial.seed,
        rank=rank,
        num_ranks=trial.num_ranks,
    )
    subject = in_precision(placed(subject, place), trial.precision, place)
    # Creating a first optimizer loads 75 MB of torch's lazily imported modules.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    weight_bytes = sum(each.nbytes for each in (*subject.model.parameters(), *subject.model.buffers()))
    memory_before = on.memory()["now"] - weight_bytes
    if trial.learning_rate is not None:
        subject = replace(subject, settings=replace(subject.settings, learning_rate=trial.learning_rate))
    step = found.begin(subject, world_size=trial.num_ranks, argument=argument)
    return PreparedTraining(subject=subject, step=step, memory_before=memory_before)


def time_steps(trial: Trial, rank: int, place: torch.device) -> dict[str, Any] | None:
    """Return the result on rank 0 (steps of the slowest rank, warm-up, resource use); None on other ranks."""
    on = device(trial.device)
    on.restart_peak()
    meter = Metering(on, place)
    start = prepared_training(trial, rank, on, place)
    subject, step = start.subject, start.step
    watch = Stopwatch(step, subject, on, num_ranks=trial.num_ranks)
    warm_up_s, steady = _warm_up(watch, step.period)
    watch.settle()
    num_steps = _round_up(trial.num_steps, step.period)  # the steps within a cycle differ from each other
    every = marked_every(median(warm_up_s[-WINDOW_STEPS:]), num_steps, step.period)
    gc.collect()
    with meter:
        dist.barrier()
        begun_s = perf_counter()
        laps = watch.run(num_steps, every=every, period=step.period)
        whole_s = perf_counter() - begun_s
    seen, profiled = _profiled(watch, on, step.period)
    steps = watch.with_communication(laps, profiled, seen)
    used = meter.gathered(memory_before=start.memory_before)
    made = gradients(step, subject, on) if trial.num_ranks == 1 else {}
    everyone = every_rank({"steps": steps, "whole_s": whole_s})
    if rank:
        return None
    by_step = zip(*(one["steps"] for one in everyone), strict=True)
    return {
        "steps": [max(ranks, key=lambda split: split[STEP]) for ranks in by_step],
        "period": step.period,
        "marked_every": every,
        "num_warm_up": len(warm_up_s),
        "steady": steady,
        **_consistency(everyone),
        **used,
        **made,
    }


def _round_up(num_steps: int, period: int) -> int:
    return -(-num_steps // period) * period


def _warm_up(watch: Stopwatch, period: int) -> tuple[list[float], bool]:
    """Return the seconds of the warm-up steps and whether steps became steady.

    All ranks test the same series, the slowest rank's time for each step. If each rank tested its own series,
    a false alarm on any rank would delay all of them.
    """
    step_s: list[float] = []
    kinds: list[object] = []
    num_next = max(WINDOW_STEPS, period)
    while len(step_s) + num_next <= max(MOST_WARM_UP, period):
        laps = watch.run(num_next)
        step_s += watch.slowest_s(laps)
        kinds += [tuple(lap.names) for lap in laps]
        if is_steady(step_s, kinds):
            return step_s, True
        num_next = CHECKED_EVERY
    return step_s, False


def _profiled(watch: Stopwatch, on: DeviceKind, period: int) -> tuple[Profiled, list[Lap]]:
    """Run profiled steps, which are not timed; return their communication and the steps."""
    watch.observe_all()
    profile = CommunicationProfile(on)
    profile.begin()
    laps = watch.run(_round_up(_NUM_PROFILED_STEPS, period))
    seen = profile.ended()
    assert seen is not None  # no other profiler runs in a rank of a trial
    return seen, laps


def _consistency(everyone: list[dict[str, Any]]) -> dict[str, Any]:
    """Return whether phases sum to their step, and steps to the total time, on every rank."""
    marked = [split for one in everyone for split in one["steps"] if len(split) > 1]
    parts_gap = largest_gap(marked)
    steps_gap = max(1 - sum(split[STEP] for split in one["steps"]) / one["whole_s"] for one in everyone)
    return {
        "sums": {
            "parts_gap_fraction": parts_gap,
            "steps_gap_fraction": steps_gap,
            "hold": max(parts_gap, steps_gap) <= _LARGEST_GAP,
        }
    }


NUM_POINTS = 20
# Held-out samples are evaluated in chunks: one forward pass over all of them could set the memory peak.
_CHUNK_SAMPLES = 120


class HeldOutEvaluator:
    """Computes held-out loss and accuracy on a separate copy of the model, so training is not disturbed."""

    def __init__(self, subject: Trainee, rank: int, num_ranks: int) -> None:
        """subject: a trainee other than the one being trained; its weights are overwritten."""
        self._subject = subject
        self._model = subject.model.eval()
        self._rank, self._num_ranks = rank, num_ranks

    def evaluate(self, weights: dict[str, torch.Tensor]) -> dict[str, float | None]:
        """Return loss and accuracy of the mean of all ranks' weights, on rank 0 only; every rank must call.

        weights: this rank's weights by name; overwritten. The mean changes nothing if the method keeps the
        ranks' weights equal; if ranks train independently, it is what their next exchange starts from.
        """
        if self._num_ranks > 1:
            # In double precision, so that the mean of equal numbers is exactly that number.
            real = (each for each in weights.values() if each.is_floating_point())
            average(real, self._num_ranks, dtype=torch.float64)
        if self._rank:
            return {}
        subject = self._subject
        self._model.load_state_dict(weights)
        loss, num_correct, num_samples = 0.0, 0, 0
        with torch.no_grad():
            for places in torch.arange(subject.num_samples(subject.held_out)).split(_CHUNK_SAMPLES):
                part = rows_of(subject.held_out, places)
                loss += float(subject.loss(self._model, part)) * len(places)
                num_correct += subject.num_correct(self._model, part) if subject.num_correct else 0
                num_samples += len(places)
        accuracy = num_correct / num_samples if subject.num_correct else None
        return {"loss": loss / num_samples, "accuracy": accuracy}


def evaluated_after(num_runs: int, period: int) -> tuple[int, ...]:
    """Return after which runs the loss is evaluated: about 20 ends of cycles, and after the last run.

    Within a cycle, the weights of ranks that train independently differ, and accumulated gradients are not
    applied yet.

    >>> evaluated_after(100, 8)[:3], evaluated_after(100, 8)[-2:], evaluated_after(3, 8)
    ((8, 16, 24), (96, 100), (3,))
    """
    num_cycles = max(1, num_runs // period)
    stride = -(-num_cycles // NUM_POINTS) * period
    return (*range(stride, num_runs, stride), num_runs)


def train(trial: Trial, rank: int, place: torch.device) -> dict[str, Any] | None:
    """Return a training's loss curve and resource use on rank 0; None on other ranks.

    `seconds` of a point is training time of the slowest rank, without evaluation; resource use includes
    evaluation. Only whole batches are trained on, so a remainder of `train_samples` is dropped. Completing an
    unfinished cycle counts as training.
    Raises UsageError if the method cannot run or the workload has no held-out data.
    """
    on = device(trial.device)
    on.restart_peak()
    meter = Metering(on, place)
    evaluator = HeldOutEvaluator(_with_held_out(trial, place), rank, trial.num_ranks)
    start = prepared_training(trial, rank, on, place)
    subject, step = start.subject, start.step
    curve: list[dict[str, Any]] = []
    seconds, num_done = 0.0, 0
    num_runs = (trial.train_samples or 0) // trial.batch_samples
    with meter:
        for until in (0, *evaluated_after(num_runs, step.period)):
            dist.barrier()
            begun_s = perf_counter()
            for _ in range(num_done, until):
                step.run(next(subject.batches))
            if until == num_runs:
                step.close()
            on.synchronise()
            dist.barrier()
            seconds, num_done = seconds + (perf_counter() - begun_s if until else 0.0), until
            found = evaluator.evaluate(step.weights())
            curve.append({"samples": until * trial.batch_samples, "seconds": seconds, **found})
    used = meter.gathered(memory_before=start.memory_before)
    return None if rank else {"curve": curve, **used}


def _with_held_out(trial: Trial, place: torch.device) -> Trainee:
    """Return a second instance of the workload, to evaluate. Raises UsageError if it has no held-out data."""
    subject = trainee(trial.workload, batch_samples=trial.batch_samples, seed=trial.seed)
    if subject.held_out is None:
        raise UsageError(
            f"{trial.workload} has no held-out data, so learning cannot be distinguished from memorising; "
            "train on digits, such as mlp or small_cnn, or let your function return held-out data"
        )
    return placed(subject, place)

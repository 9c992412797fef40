"""Training for real: held-out loss at points on the way, and the seconds that training took to get there.

Different seeds give different initial weights, orders of samples and dropout masks; what is held out is the
same for all. Needs torch.
"""

from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from equipoise.bench.devices import device
from equipoise.bench.metering import Metering
from equipoise.bench.methods.local import average
from equipoise.bench.models import Trainee, trainee
from equipoise.bench.timed_steps import placed, prepared_training
from equipoise.bench.trial import Trial
from equipoise.bench.zoo.data import rows_of
from equipoise.errors import UsageError

NUM_POINTS = 20
# Held-out samples are evaluated in parts: a forward pass over all of them could be the peak of memory.
_PART_SAMPLES = 120


class HeldOutEvaluator:
    """Held-out loss and accuracy of weights, found on a model of its own: training is not disturbed."""

    def __init__(self, subject: Trainee, rank: int, num_ranks: int) -> None:
        """subject: not the one that is trained; its weights are overwritten."""
        self._subject = subject
        self._model = subject.model.eval()
        self._rank, self._num_ranks = rank, num_ranks

    def evaluate(self, weights: dict[str, torch.Tensor]) -> dict[str, float | None]:
        """Loss and accuracy of the mean of all ranks' weights, on rank 0; every rank must call.

        weights: of this rank, by name; overwritten. Where a method holds them equal the mean changes nothing;
        where ranks train alone it is what their next exchange starts from.
        """
        if self._num_ranks > 1:
            # In double precision, so that the mean of equal numbers is that number.
            real = (each for each in weights.values() if each.is_floating_point())
            average(real, self._num_ranks, dtype=torch.float64)
        if self._rank:
            return {}
        subject = self._subject
        self._model.load_state_dict(weights)
        loss, num_correct, num_samples = 0.0, 0, 0
        with torch.no_grad():
            for places in torch.arange(subject.num_samples(subject.held_out)).split(_PART_SAMPLES):
                part = rows_of(subject.held_out, places)
                loss += float(subject.loss(self._model, part)) * len(places)
                num_correct += subject.num_correct(self._model, part) if subject.num_correct else 0
                num_samples += len(places)
        accuracy = num_correct / num_samples if subject.num_correct else None
        return {"loss": loss / num_samples, "accuracy": accuracy}


def evaluated_after(num_runs: int, period: int) -> tuple[int, ...]:
    """After which runs a loss is taken: some 20 points, each at the end of a cycle, and after the last run.

    Between ends of cycles, ranks that train alone differ, and gradients that are summed are not applied.

    >>> evaluated_after(100, 8)[:3], evaluated_after(100, 8)[-2:], evaluated_after(3, 8)
    ((8, 16, 24), (96, 100), (3,))
    """
    num_cycles = max(1, num_runs // period)
    stride = -(-num_cycles // NUM_POINTS) * period
    return (*range(stride, num_runs, stride), num_runs)


def train(trial: Trial, rank: int, place: torch.device) -> dict[str, Any] | None:
    """What rank 0 leaves of a training: its curve, and what it used; None on other ranks.

    `seconds` of a point are those of the slowest rank, without evaluation; what was used includes it. Whole
    batches are trained on: what is left of `train_samples` is not. What ends an unfinished cycle is training.
    Raises UsageError where the method cannot run or the workload holds nothing out.
    """
    on = device(trial.device)
    on.restart_peak()
    evaluator = HeldOutEvaluator(_with_held_out(trial, place), rank, trial.num_ranks)
    start = prepared_training(trial, rank, on, place)
    subject, step = start.subject, start.step
    curve: list[dict[str, Any]] = []
    seconds, num_done = 0.0, 0
    num_runs = (trial.train_samples or 0) // trial.batch_samples
    with Metering(on, place, memory_before=start.memory_before) as meter:
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
    used = meter.gathered()
    return None if rank else {"curve": curve, **used}


def _with_held_out(trial: Trial, place: torch.device) -> Trainee:
    """The workload built once more, for its held-out data. Raises UsageError where it has none."""
    subject = trainee(trial.workload, batch_samples=trial.batch_samples, seed=trial.seed)
    if subject.held_out is None:
        raise UsageError(
            f"{trial.workload} has no held-out data, so learning cannot be distinguished from memorising; "
            "train on digits, such as mlp or small_cnn, or let your function return held-out data"
        )
    return placed(subject, place)

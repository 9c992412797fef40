"""Training for real: held-out loss at points on the way, and the seconds that training took to get there.

Different seeds give different initial weights, orders of samples and dropout masks; what is held out is the
same for all.
"""

from time import perf_counter
from typing import TYPE_CHECKING, Any

from equipoise.bench.devices import device
from equipoise.bench.metering import Metering
from equipoise.bench.models import Trainee, trainee
from equipoise.bench.timed_steps import prepared_training
from equipoise.bench.trial import Trial
from equipoise.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

NUM_POINTS = 20
# Held-out samples are looked at in parts: a forward pass over all of them could be the peak of memory.
_PART_SAMPLES = 120


class HeldOutEvaluator:
    """Held-out loss and accuracy of weights, found on a model of its own: training is not disturbed."""

    def __init__(self, subject: Trainee, rank: int, num_ranks: int) -> None:
        """subject: built beside the one that is trained; its weights are overwritten."""
        self._subject = subject
        self._model = subject.model.eval()
        self._rank, self._num_ranks = rank, num_ranks

    def of(self, weights: "dict[str, torch.Tensor]") -> dict[str, float | None]:
        """Loss and accuracy of the mean of all ranks' weights, on rank 0; every rank must call.

        weights: of this rank, by name; overwritten. Where a method holds them equal the mean changes nothing;
        where ranks train alone it is what their next exchange starts from.
        """
        if self._num_ranks > 1:
            _average(list(weights.values()), self._num_ranks)
        if self._rank:
            return {}
        import torch  # noqa: PLC0415 - after the cores are set

        self._model.load_state_dict(weights)
        loss, num_correct, num_samples = 0.0, 0, 0
        judged = self._subject.num_correct
        with torch.no_grad():
            for part in self._parts():
                num = self._subject.num_samples(part)
                loss += float(self._subject.loss(self._model, part)) * num
                num_correct += judged(self._model, part) if judged else 0
                num_samples += num
        return {"loss": loss / num_samples, "accuracy": num_correct / num_samples if judged else None}

    def _parts(self) -> "Iterator[Any]":
        """What is held out, in batches that need little memory."""
        import torch  # noqa: PLC0415 - after the cores are set

        from equipoise.bench.zoo.data import rows_of  # noqa: PLC0415 - imports torch

        held_out = self._subject.held_out
        for places in torch.arange(self._subject.num_samples(held_out)).split(_PART_SAMPLES):
            yield rows_of(held_out, places)


def _average(tensors: "list[torch.Tensor]", num_ranks: int) -> None:
    """Replaces tensors of real numbers by their means over the ranks: by themselves where all are equal."""
    import torch  # noqa: PLC0415 - after the cores are set
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    real = [each for each in tensors if each.is_floating_point()]
    flat = torch.cat([each.double().reshape(-1) for each in real])
    dist.all_reduce(flat)
    means = flat.div_(num_ranks).split([each.numel() for each in real])
    for each, mean in zip(real, means, strict=True):
        each.copy_(mean.view_as(each))


def judged_after(num_runs: int, period: int) -> tuple[int, ...]:
    """After which runs a loss is taken: some 20 points, each at the end of a cycle, and after the last run.

    Between ends of cycles, ranks that train alone differ, and gradients that are summed are not applied.

    >>> judged_after(100, 8)[:3], judged_after(100, 8)[-2:], judged_after(3, 8)
    ((8, 16, 24), (96, 100), (3,))
    """
    num_cycles = max(1, num_runs // period)
    stride = -(-num_cycles // NUM_POINTS) * period
    return (*range(stride, num_runs, stride), num_runs)


def trained(trial: Trial, rank: int, place: "torch.device") -> dict[str, Any] | None:
    """What rank 0 leaves of a training: its curve, and what it used; None on other ranks.

    `seconds` of a point are those of the slowest rank, without evaluation; what was used includes it. Whole
    batches are trained on: what is left of `train_samples` is not. What ends an unfinished cycle is training.
    Raises UsageError where the method cannot run or the workload holds nothing out.
    """
    import torch.distributed as dist  # noqa: PLC0415 - after the cores are set

    on = device(trial.device)
    on.restart_peak()
    judge = HeldOutEvaluator(_judged(trial, place), rank, trial.num_ranks)
    start = prepared_training(trial, rank, on, place)
    subject, step = start.subject, start.step
    curve: list[dict[str, Any]] = []
    seconds, num_done = 0.0, 0
    num_runs = (trial.train_samples or 0) // trial.batch_samples
    with Metering(on, place, memory_before=start.memory_before) as meter:
        for until in (0, *judged_after(num_runs, step.period)):
            dist.barrier()
            begun_s = perf_counter()
            for _ in range(num_done, until):
                step.run(next(subject.batches))
            if until == num_runs:
                step.close()
            on.synchronise()
            dist.barrier()
            seconds, num_done = seconds + (perf_counter() - begun_s if until else 0.0), until
            found = judge.of(step.weights())
            curve.append({"samples": until * trial.batch_samples, "seconds": seconds, **found})
    used = meter.gathered()
    return None if rank else {"curve": curve, **used}


def _judged(trial: Trial, place: "torch.device") -> Trainee:
    """The workload built once more, for its held-out data. Raises UsageError where it has none."""
    from equipoise.bench.timed_steps import placed  # noqa: PLC0415 - imports torch

    subject = trainee(trial.workload, batch_samples=trial.batch_samples, seed=trial.seed)
    if subject.held_out is None:
        raise UsageError(
            f"{trial.workload} holds no data out: what it learned cannot be told from what it memorised; "
            "train a workload on digits, such as mlp or small_cnn, or let your function return held-out data"
        )
    return placed(subject, place)

"""Data parallel that sends only the largest values of each gradient, with error feedback."""

import math

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from equipoise.bench.methods.method import Argument, OptimizerSettings
from equipoise.bench.methods.training import TrainingStep, optimizer
from equipoise.bench.models import Trainee

# The first steps are sent whole: buckets are laid out anew after the first, and what is kept is of one.
NUM_WHOLE_STEPS = 2


def largest(corrected: torch.Tensor, num_sent: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Places and values of the largest entries by size, and the tensor without them: what is kept.

    corrected: (num_values,), a gradient plus what was kept of earlier ones. The parts add up to it exactly.
    """
    places = torch.topk(corrected.abs(), num_sent, sorted=False).indices
    kept = corrected.clone()
    kept[places] = 0
    return places, corrected[places], kept


class Sparsifier:
    """A communication hook with the memory of what was not sent yet, one tensor a bucket."""

    def __init__(self, fraction: float, world_size: int) -> None:
        """fraction: of the values of a bucket, 0..1; at least one value is sent."""
        self.kept: dict[int, torch.Tensor] = {}
        self._fraction = fraction
        self._world_size = world_size
        self._num_steps = 0

    def hook(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The future of the averaged bucket."""
        gradient = bucket.buffer()
        whole = self._num_steps < NUM_WHOLE_STEPS
        self._num_steps += bucket.is_last()
        return self._averaged(gradient) if whole else self._sparse(gradient, bucket.index())

    def _averaged(self, gradient: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        gradient.div_(self._world_size)
        adding = dist.all_reduce(gradient, async_op=True).get_future()
        return adding.then(lambda _done: gradient)

    def _sparse(self, gradient: torch.Tensor, index: int) -> torch.futures.Future[torch.Tensor]:
        corrected = gradient.float()
        if index in self.kept:
            corrected = corrected + self.kept[index]
        num_sent = max(1, math.ceil(self._fraction * corrected.numel()))
        places, values, self.kept[index] = largest(corrected, num_sent)
        # Places and values travel together, as bytes of one message: an exchange costs one latency, not two.
        sent = torch.cat((places.to(torch.int32), values.view(torch.int32)))
        received = torch.empty(self._world_size * sent.numel(), dtype=torch.int32, device=sent.device)
        gathering = dist.all_gather_into_tensor(received, sent, async_op=True).get_future()

        def added(_done: object) -> torch.Tensor:
            total = torch.zeros_like(corrected)
            for part in received.view(self._world_size, 2, num_sent):
                total.index_add_(0, part[0].long(), part[1].view(torch.float32))
            averaged: torch.Tensor = gradient.copy_(total.div_(self._world_size))
            return averaged

        return gathering.then(added)


class SparseStep(TrainingStep):
    """A training step that shows what its ranks have not sent yet."""

    sparsifier: Sparsifier


def begin(
    name: str,
    trainee: Trainee,
    settings: OptimizerSettings,
    *,
    rank: int,
    world_size: int,
    argument: Argument,
) -> SparseStep:
    """Steps that send the fraction `argument` of their gradients' values."""
    del name, rank
    module = DistributedDataParallel(trainee.model)
    step = SparseStep(trainee, module, optimizer(settings, trainee.model.parameters()))
    step.sparsifier = Sparsifier(float(argument or 1.0), world_size)
    module.register_comm_hook(None, step.sparsifier.hook)
    return step

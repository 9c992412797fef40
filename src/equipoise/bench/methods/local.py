"""Methods that train alone and average weights every so many steps: local SGD and DiLoCo."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from equipoise.bench.methods import MethodSetup
from equipoise.bench.methods.data_parallel import TrainingStep, start_equal


def drifting(model: nn.Module) -> list[torch.Tensor]:
    """What differs between ranks that train alone: trained weights, and statistics such as batch norm's."""
    weights = [each.data for each in model.parameters() if each.requires_grad]
    return [*weights, *(each for each in model.buffers() if each.is_floating_point())]


def average(tensors: Iterable[torch.Tensor], world_size: int, *, dtype: torch.dtype = torch.float32) -> None:
    """Replaces each tensor by its mean over the ranks, in one message. dtype: the least that is added in."""
    tensors = list(tensors)
    sizes = [each.numel() for each in tensors]
    flat = torch.cat([each.reshape(-1).to(torch.promote_types(each.dtype, dtype)) for each in tensors])
    dist.all_reduce(flat)
    for tensor, mean in zip(tensors, flat.div_(world_size).split(sizes), strict=True):
        tensor.copy_(mean.view_as(tensor))


def average_changes(tensors: Sequence[torch.Tensor], agreed: Sequence[torch.Tensor], world_size: int) -> None:
    """Moves the tensors, and what was agreed on, to what was agreed on plus the ranks' mean change.

    Changes are sent as float16: they are small, and rounding takes up to 2^-11 of a change, not of a weight.
    Every rank adds the same numbers to the same: they stay equal to the last bit.
    """
    changes = [tensor - old for tensor, old in zip(tensors, agreed, strict=True)]
    # Divided before it is added: a sum of many ranks could exceed float16's 65,504.
    flat = torch.cat([each.reshape(-1) for each in changes]).div_(world_size).half()
    dist.all_reduce(flat)
    means = flat.split([each.numel() for each in changes])
    for tensor, old, mean in zip(tensors, agreed, means, strict=True):
        tensor.copy_(old.add_(mean.view_as(old)))


class Averaging:
    """Averages what differs between ranks that train alone; methods named *_fp16 send float16."""

    def __init__(self, name: str, model: nn.Module, world_size: int) -> None:
        """What the model is now, all ranks agree on."""
        self.tensors = drifting(model)
        self._world_size = world_size
        self._agreed = [each.clone() for each in self.tensors] if name.endswith("_fp16") else []

    def run(self) -> None:
        """Replaces the tensors by their mean."""
        if self._agreed:
            average_changes(self.tensors, self._agreed, self._world_size)
        else:
            average(self.tensors, self._world_size)

    def restart(self) -> None:
        """From now on, all ranks agree on what the tensors are now."""
        for old, now in zip(self._agreed, self.tensors, strict=False):
            old.copy_(now)


def begin_localsgd(setup: MethodSetup) -> TrainingStep:
    """Steps of which every `argument`-th ends with an average of weights; momentum stays with its rank."""
    start_equal(setup.trainee.model)
    return TrainingStep(
        setup,
        exchange=Averaging(setup.name, setup.trainee.model, setup.world_size).run,
        exchange_every=int(setup.argument or 1),
    )


# Douillard et al. 2023, table 5: Nesterov momentum 0.9 and learning rate 0.7 were best of those tried.
OUTER_LEARNING_RATE = 0.7
OUTER_MOMENTUM = 0.9


class OuterStep:
    """Moves the weights all ranks agree on by the mean of what each rank changed."""

    def __init__(self, name: str, model: nn.Module, world_size: int) -> None:
        """The weights as they are now are the first that all ranks agree on."""
        self._averaging = Averaging(name, model, world_size)
        self._trained = [each.data for each in model.parameters() if each.requires_grad]
        self._agreed = [each.clone() for each in self._trained]
        self._optimizer = torch.optim.SGD(
            self._agreed, lr=OUTER_LEARNING_RATE, momentum=OUTER_MOMENTUM, nesterov=True
        )

    def run(self) -> None:
        """One outer step; every rank then goes on from the same weights."""
        self._averaging.run()
        for agreed, mean in zip(self._agreed, self._trained, strict=True):
            agreed.grad = agreed - mean
        self._optimizer.step()
        for agreed, weight in zip(self._agreed, self._trained, strict=True):
            weight.copy_(agreed)
        self._averaging.restart()


def begin_diloco(setup: MethodSetup) -> TrainingStep:
    """Steps of which every `argument`-th ends with an outer step; the optimizer given is the inner one."""
    start_equal(setup.trainee.model)
    outer = OuterStep(setup.name, setup.trainee.model, setup.world_size)
    return TrainingStep(
        setup,
        exchange=outer.run,
        exchange_every=int(setup.argument or 1),
    )

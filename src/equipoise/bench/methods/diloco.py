"""DiLoCo: local training whose averaged change is the gradient of an outer optimizer with momentum."""

import torch
from torch import nn

from equipoise.bench.methods.localsgd import Averaging
from equipoise.bench.methods.method import Argument, OptimizerSettings
from equipoise.bench.methods.training import TrainingStep, optimizer, start_equal
from equipoise.bench.models import Trainee

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


def begin(
    name: str,
    trainee: Trainee,
    settings: OptimizerSettings,
    *,
    rank: int,
    world_size: int,
    argument: Argument,
) -> TrainingStep:
    """Steps of which every `argument`-th ends with an outer step; the optimizer given is the inner one."""
    del rank
    start_equal(trainee.model)
    outer = OuterStep(name, trainee.model, world_size)
    return TrainingStep(
        trainee,
        trainee.model,
        optimizer(settings, trainee.model.parameters()),
        exchange=outer.run,
        exchange_every=int(argument or 1),
    )

"""Data parallel that averages gradients once for several batches: the update of one batch as large as all."""

from torch.nn.parallel import DistributedDataParallel

from equipoise.bench.methods.method import Argument, OptimizerSettings
from equipoise.bench.methods.training import TrainingStep, optimizer
from equipoise.bench.models import Trainee


def begin(
    name: str,
    trainee: Trainee,
    settings: OptimizerSettings,
    *,
    rank: int,
    world_size: int,
    argument: Argument,
) -> TrainingStep:
    """Steps of which every `argument`-th sends gradients and updates."""
    del name, rank, world_size
    module = DistributedDataParallel(trainee.model)
    return TrainingStep(
        trainee,
        module,
        optimizer(settings, trainee.model.parameters()),
        num_accumulated=int(argument or 1),
    )

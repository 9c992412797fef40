"""One rank, no communication: the baseline of every speedup."""

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
    """Steps on this rank's own batches."""
    del name, rank, world_size, argument
    return TrainingStep(trainee, trainee.model, optimizer(settings, trainee.model.parameters()))

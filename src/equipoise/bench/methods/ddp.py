"""Data parallel: every rank holds the model; gradients are averaged in buckets during the backward pass."""

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
    """Steps that average gradients; the argument is the bucket in MiB, torch's own choice without it."""
    del rank, world_size
    module = DistributedDataParallel(
        trainee.model, bucket_cap_mb=argument, static_graph=name == "static_graph"
    )
    return TrainingStep(trainee, module, optimizer(settings, trainee.model.parameters()))

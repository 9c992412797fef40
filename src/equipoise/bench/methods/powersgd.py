"""Data parallel that sends low-rank approximations of gradients, with error feedback."""

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from equipoise.bench.methods.method import Argument, OptimizerSettings
from equipoise.bench.methods.training import TrainingStep, optimizer
from equipoise.bench.models import Trainee

# The callbacks of torch's hook wait for further all-reduces on gloo's own threads: with several buckets in
# flight every thread waits and none works. With one bucket that cannot happen, but nothing overlaps.
_ONE_BUCKET_MIB = 100_000

# The first steps are sent whole: buckets are laid out anew after the first, and errors belong to a layout.
NUM_WHOLE_STEPS = 2


class PowerStep(TrainingStep):
    """A training step that shows the state of its approximation."""

    state: powerSGD_hook.PowerSGDState


def begin(
    name: str,
    trainee: Trainee,
    settings: OptimizerSettings,
    *,
    rank: int,
    world_size: int,
    argument: Argument,
) -> PowerStep:
    """Steps whose gradients are sent as matrices of rank `argument`."""
    del name, rank, world_size
    one_bucket = _ONE_BUCKET_MIB if dist.get_backend() == "gloo" else None
    module = DistributedDataParallel(trainee.model, bucket_cap_mb=one_bucket)
    step = PowerStep(trainee, module, optimizer(settings, trainee.model.parameters()))
    step.state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=int(argument or 1),
        start_powerSGD_iter=NUM_WHOLE_STEPS,
    )
    module.register_comm_hook(step.state, powerSGD_hook.powerSGD_hook)
    return step

"""Data parallel that sends gradients in two bytes a value: float16 or bfloat16."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from equipoise.bench.methods.method import Argument, OptimizerSettings
from equipoise.bench.methods.training import TrainingStep, optimizer
from equipoise.bench.models import Trainee

_DTYPE = {"fp16": torch.float16, "bf16": torch.bfloat16}


def begin(
    name: str,
    trainee: Trainee,
    settings: OptimizerSettings,
    *,
    rank: int,
    world_size: int,
    argument: Argument,
) -> TrainingStep:
    """Steps whose gradients cross the wire as `name`."""
    del rank, argument
    module = DistributedDataParallel(trainee.model)
    dtype = _DTYPE[name]

    # torch's own bf16 hook refuses without CUDA, although gloo adds bfloat16; one hook serves both types.
    def hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradient = bucket.buffer()
        # Divided before it is added, as torch does: a sum of many ranks could exceed float16's 65,504.
        sent = gradient.div(world_size).to(dtype)
        adding = dist.all_reduce(sent, async_op=True).get_future()

        def restored(_done: object) -> torch.Tensor:
            gradient.copy_(sent)
            received: torch.Tensor = gradient
            return received

        return adding.then(restored)

    module.register_comm_hook(None, hook)
    return TrainingStep(trainee, module, optimizer(settings, trainee.model.parameters()))

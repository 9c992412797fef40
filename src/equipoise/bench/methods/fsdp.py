"""Fully sharded data parallel: each rank keeps its share of weights, gradients and optimizer state."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from equipoise.bench.methods.method import Argument, OptimizerSettings
from equipoise.bench.methods.training import TrainingStep, optimizer, start_equal
from equipoise.bench.models import Trainee


def blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a stack: what is gathered together, one ahead of its use."""
    stacks = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
    nested = {inner for stack in stacks for inner in stack.modules() if inner is not stack}
    return [
        block
        for stack in stacks
        if stack not in nested
        for block in stack
        if any(True for _ in block.parameters())
    ]


def begin(
    name: str,
    trainee: Trainee,
    settings: OptimizerSettings,
    *,
    rank: int,
    world_size: int,
    argument: Argument,
) -> TrainingStep:
    """Steps on sharded weights; each layer of a stack is one unit, the rest of the model another."""
    del name, rank, argument
    model = trainee.model
    start_equal(model)
    device: torch.device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (world_size,))
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return TrainingStep(trainee, model, optimizer(settings, model.parameters()))

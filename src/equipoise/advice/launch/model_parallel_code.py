"""Training scripts that cut the model itself: tensor and sequence parallelism, pipelines. Text only."""

from equipoise.advice.launch.training_code import (
    BEGIN,
    STAND_IN,
    WEIGHTS_SHARDED,
    accumulated,
    narrow,
    recompute_class,
    recomputing,
    whole_script,
)
from equipoise.spec.strategy import Strategy

_MESH = """\
mesh = init_device_mesh(device.type, (DP, {axis}), mesh_dim_names=("dp", "{name}"))
"""

_TENSOR_IMPORTS = """\
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
{sharding}from torch.distributed.tensor import Replicate{shard}
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
{ends}    RowwiseParallel,
{sequence}    parallelize_module,
)
"""

# Of a layer of attention and a gated feed-forward, as torch's tutorial on tensor parallelism cuts it.
_NAMES = """\
# In a transformer: wq, wk, wv, w1, w3 Colwise; wo, w2 Rowwise.
"""

_WHOLE_PLAN = """\
plan = {
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}
"""

_SEQUENCE_PLAN = """\
plan = {
    "norm": SequenceParallel(),  # on its share of the sequence
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}
"""

_PIPELINE_IMPORTS = """\
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, {schedule}
"""


def tensor_script(plan: Strategy) -> str:
    """A whole script that cuts each layer's products over `tp` ranks, and shards weights over `dp`."""
    recomputed = plan.recompute == "full"
    begin = (
        f"{BEGIN}"
        f"{_MESH.format(axis='TP', name='tp')}"
        "model = Model().to(device)\n"
        f"{_NAMES}"
        f"{_SEQUENCE_PLAN if plan.sequence_parallel else _WHOLE_PLAN}"
        "for block in model.blocks:\n"
        '    parallelize_module(block, mesh["tp"], plan)\n'
        'ends = {"head": ColwiseParallel(output_layouts=Replicate())}\n'
        'parallelize_module(model, mesh["tp"], ends)\n'
        f"{_ends(plan)}"
        f"{recomputing(plan) if recomputed else ''}"
        f"{_weights(plan)}"
        f"{'model = torch.compile(model)' if plan.implementation == 'compiled' else ''}\n"
        f"optimizer = {_optimizer(plan)}\n"
        "# Ranks of one copy of the model draw the same samples.\n"
        'torch.manual_seed(1 + mesh["dp"].get_local_rank())\n'
    )
    steps = (
        "for step in range(NUM_STEPS):\n"
        "    begun = time.perf_counter()\n"
        "    optimizer.zero_grad()\n"
        "    for place in range(NUM_MICROBATCHES):\n"
        f"{_waits(plan)}"
        "        x, y = make_batch(MICROBATCH, device)\n"
        f"{_loss(plan)}"
        "        (loss / NUM_MICROBATCHES).backward()\n"
        "    optimizer.step()\n"
        "    value = loss.item()  # waits for the device\n"
        "    took_s = time.perf_counter() - begun\n"
        "    if dist.get_rank() == 0:\n"
        '        print(f"step {step}: loss {value:.3f}, {took_s:.4f} s")\n'
        "dist.destroy_process_group()\n"
    )
    constants = (
        f"NUM_STEPS = 10\nDP, TP = {plan.dp}, {plan.tp}\n"
        f"MICROBATCH = {plan.microbatch_samples}  # samples a copy takes at a time\n"
        f"NUM_MICROBATCHES = {accumulated(plan)}\n"
    )
    wrapper = (recompute_class(plan),) if recomputed else ()
    return whole_script(_tensor_imports(plan), constants, STAND_IN, *wrapper, main=begin + steps)


def _ends(plan: Strategy) -> str:
    """Inputs cut along the sequence before the first layer, and made whole after the last."""
    if not plan.sequence_parallel:
        return ""
    return (
        "cut = PrepareModuleInput(\n"
        "    input_layouts=Replicate(),\n"
        "    desired_input_layouts=Shard(1),\n"
        "    use_local_output=True,\n)\n"
        "whole = PrepareModuleOutput(\n"
        "    output_layouts=Shard(1), desired_output_layouts=Replicate()\n)\n"
        'parallelize_module(model.blocks[0], mesh["tp"], cut)\n'
        'parallelize_module(model.blocks[-1], mesh["tp"], whole)\n'
    )


def _tensor_imports(plan: Strategy) -> str:
    sequence = plan.sequence_parallel
    sharding = "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n"
    return _TENSOR_IMPORTS.format(
        sharding=sharding if plan.dp > 1 else "",
        shard=", Shard" if sequence else "",
        ends="    PrepareModuleInput,\n    PrepareModuleOutput,\n" if sequence else "",
        sequence="    SequenceParallel,\n" if sequence else "",
    ) + ("from torch.utils.checkpoint import checkpoint\n" if plan.recompute == "full" else "")


def _weights(plan: Strategy) -> str:
    if plan.dp == 1:
        return ""
    again = plan.shard_state >= WEIGHTS_SHARDED
    return (
        "policy = MixedPrecisionPolicy(\n"
        f"    param_dtype=torch.{narrow(plan)}, reduce_dtype=torch.float32\n)\n"
        "shard = dict(\n"
        f'    mesh=mesh["dp"], mp_policy=policy, reshard_after_forward={again}\n)\n'
        "for block in model.blocks:\n"
        "    fully_shard(block, **shard)\n"
        "fully_shard(model, **shard)\n"
    )


def _loss(plan: Strategy) -> str:
    line = "loss = nn.functional.cross_entropy(model(x), y)\n"
    if plan.dp > 1 or narrow(plan) == "float32":  # fully_shard narrows by itself
        return f"        {line}"
    return f"        with torch.autocast(device.type, dtype=torch.{narrow(plan)}):\n            {line}"


def _waits(plan: Strategy) -> str:
    if plan.dp == 1 or accumulated(plan) == 1:
        return ""
    return "        model.set_requires_gradient_sync(place == NUM_MICROBATCHES - 1)\n"


def _optimizer(plan: Strategy) -> str:
    if plan.optimizer == "sgd":
        return "torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)"
    return "torch.optim.AdamW(model.parameters(), lr=1e-3)"


def pipeline_script(plan: Strategy) -> str:
    """A whole script that puts a model's layers on `pp` ranks and sends micro-batches through them."""
    looped = plan.interleave > 1
    schedule = "ScheduleInterleaved1F1B" if looped else "Schedule1F1B"
    chunks = "range(rank, PP * CHUNKS, PP)" if looped else "(rank,)"
    main = (
        f"{BEGIN}"
        f"{_MESH.format(axis='PP', name='pp')}"
        'rank, copies = mesh["pp"].get_local_rank(), mesh["dp"]\n'
        "model = Model(num_blocks=PP * CHUNKS)\n"
        "stages = []\n"
        f"for place in {chunks}:  # this rank's layers\n"
        "    blocks = model.blocks[place : place + 1]\n"
        "    is_last = place == PP * CHUNKS - 1\n"
        "    part = Part(blocks, model.head if is_last else None).to(device)\n"
        '    group = mesh["pp"].get_group()\n'
        "    stages.append(\n"
        "        PipelineStage(part, place, PP * CHUNKS, device, group=group)\n"
        "    )\n"
        f"schedule = {schedule}(\n"
        f"    stages{'' if looped else '[0]'}, NUM_MICROBATCHES, loss_fn=nn.functional.cross_entropy\n"
        ")\n"
        "weights = [each for stage in stages for each in stage.submod.parameters()]\n"
        "optimizer = torch.optim.AdamW(weights, lr=1e-3)\n"
        "torch.manual_seed(1 + copies.get_local_rank())\n"
        "for step in range(NUM_STEPS):\n"
        "    begun = time.perf_counter()\n"
        "    optimizer.zero_grad()\n"
        "    x, y = make_batch(MICROBATCH * NUM_MICROBATCHES, device)\n"
        "    losses = []\n"
        "    given = (x,) if rank == 0 else ()\n"
        "    wanted = dict(target=y, losses=losses) if rank == PP - 1 else {}\n"
        "    schedule.step(*given, **wanted)\n"
        "    if DP > 1:\n"
        "        for weight in weights:\n"
        "            dist.all_reduce(weight.grad, group=copies.get_group())\n"
        "            weight.grad /= DP\n"
        "    optimizer.step()\n"
        "    if rank == PP - 1 and copies.get_local_rank() == 0:\n"
        "        value = torch.stack(losses).mean().item()  # waits for the device\n"
        "        took_s = time.perf_counter() - begun\n"
        '        print(f"step {step}: loss {value:.3f}, {took_s:.4f} s")\n'
        "dist.destroy_process_group()\n"
    )
    constants = (
        f"NUM_STEPS = 10\nDP, PP, CHUNKS = {plan.dp}, {plan.pp}, {plan.interleave}\n"
        f"MICROBATCH = {plan.microbatch_samples}\n"
        f"NUM_MICROBATCHES = {accumulated(plan)}\n"
    )
    return whole_script(_PIPELINE_IMPORTS.format(schedule=schedule), constants, STAND_IN, _PART, main=main)


_PART = '''\
class Part(nn.Module):
    """Some layers of the model, and its end where that is among them."""

    def __init__(self, blocks, head):
        super().__init__()
        self.blocks, self.head = blocks, head

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x.mean(dim=1))
'''

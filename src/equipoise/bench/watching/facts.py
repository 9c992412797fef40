"""What a watched run is, from its model, its process group and its first forward pass."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from secrets import token_hex
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from equipoise.bench.devices import DeviceKind, device
from equipoise.bench.environment import conditions
from equipoise.errors import UsageError

_PRECISIONS = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float64: "fp64",
}
# Ranks begin to watch at about the same time: where training begins.
_MEETING_S = 60.0
_numbers = count(1)


def ranks() -> tuple[int, int]:
    """The number of this rank, and of how many."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def device_of(models: Sequence[nn.Module]) -> tuple[DeviceKind, torch.device]:
    """The kind of device that the models compute on, and which one."""
    places = [parameter.device for model in models for parameter in model.parameters()]
    place = next((each for each in places if each.type == "cuda"), torch.device("cpu"))
    return device(place.type), place


def run_name(rank: int, num_ranks: int) -> str:
    """A name for this run that all its ranks know, from rank 0: the time and some digits.

    Raises UsageError where rank 0 does not watch.
    """
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{token_hex(3)}"
    number = next(_numbers)
    if num_ranks == 1:
        return name
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - a collective would hang without a rank
    key = f"equipoise/watch/{number}"
    if rank == 0:
        store.set(key, name)
        return name
    try:
        store.wait([key], timedelta(seconds=_MEETING_S))
        found: bytes = store.get(key)
    except RuntimeError as err:
        raise UsageError(
            f"rank {rank}: rank 0 did not start watching within {_MEETING_S:.0f} s; "
            "call equipoise.watch on every rank, or on rank 0 only"
        ) from err
    return found.decode()


def about(
    models: Sequence[nn.Module], *, name: str | None, rank: int, num_ranks: int, batch_samples: int | None
) -> dict[str, Any]:
    """What is known of a run before its first step, as one record that fits into JSON."""
    on, place = device_of(models)
    cores = sorted(os.sched_getaffinity(0))
    backend = dist.get_backend() if num_ranks > 1 else None
    return {
        "rank": rank,
        "num_ranks": num_ranks,
        "workload": name or _kind(models[0]),
        "num_params": sum(parameter.numel() for model in models for parameter in model.parameters()),
        "device": on.name,
        "batch_samples": batch_samples,
        "conditions": {
            **conditions(core_sets=[cores], launcher="watch", backend=backend),
            **on.conditions(place),
            "host": platform.node(),
            "num_threads": torch.get_num_threads(),
        },
    }


def facts_of_forward(model: nn.Module, on: DeviceKind) -> dict[str, Any]:
    """Precision and strategy, from within a forward pass in training."""
    return {"precision": _precision(model, on), "strategy": _strategy(model)}


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model within what torch wraps around it."""
    for name in ("module", "_orig_mod"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return _unwrapped(inner)
    return model


def _kind(model: nn.Module) -> str:
    """The name of its class, before torch made it one whose weights are sharded."""
    kinds = [kind.__name__ for kind in type(_unwrapped(model)).__mro__]
    return kinds[kinds.index("FSDPModule") + 1] if "FSDPModule" in kinds else kinds[0]


def _precision(model: nn.Module, on: DeviceKind) -> str | None:
    """Of the matrix products, by autocast, the weights and torch's settings."""
    dtype = next((each.dtype for each in model.parameters() if each.dtype.is_floating_point), None)
    if torch.is_autocast_enabled(on.name):
        dtype = torch.get_autocast_dtype(on.name)
    if dtype == torch.float32 and on.name == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return _PRECISIONS.get(dtype, str(dtype).removeprefix("torch.")) if dtype else None


def _strategy(model: nn.Module) -> str | None:
    """How ranks share the model, by the sweep's names; None where that is not known."""
    if isinstance(model, DistributedDataParallel) or DistributedDataParallel._active_ddp_module:  # noqa: SLF001 - the model may be inside
        return "ddp"
    kinds = {kind.__name__ for kind in type(model).__mro__}
    return "fsdp" if kinds & {"FSDPModule", "FullyShardedDataParallel"} else None

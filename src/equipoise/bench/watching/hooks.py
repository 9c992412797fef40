"""torch-specific parts of watching a loop: facts about the run, and removable hooks that mark its steps."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from itertools import count
from secrets import token_hex
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from equipoise.bench.devices import DeviceKind, device, takes_tf32
from equipoise.bench.environment import conditions, usable_cores
from equipoise.bench.phases import Loop
from equipoise.errors import UsageError

_PRECISIONS = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float64: "fp64",
}
# Ranks start watching at about the same time, when training begins.
_MEETING_S = 60.0
_numbers = count(1)


def ranks() -> tuple[int, int]:
    """Return this rank and the number of ranks."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def device_of(models: Sequence[nn.Module]) -> tuple[DeviceKind, torch.device]:
    """Return the kind of device that the models compute on, and the device itself."""
    places = [parameter.device for model in models for parameter in model.parameters()]
    place = next((each for each in places if each.type == "cuda"), torch.device("cpu"))
    return device(place.type), place


_STAMP = "%Y%m%dT%H%M%S"


def run_name(rank: int, num_ranks: int, *, after: str) -> str:
    """Return a name for this run, which rank 0 chooses for all ranks: the time and random digits.

    after: the name of the latest run in the folder, after which this name sorts even if the clock was set
    back.
    Raises UsageError if rank 0 does not watch.
    """
    begun = datetime.now(UTC)
    with suppress(ValueError, OverflowError):  # not the name of a run
        latest = datetime.strptime(after.partition("-")[0], _STAMP).replace(tzinfo=UTC)
        begun = max(begun, latest + timedelta(seconds=1))
    name = f"{begun:{_STAMP}}-{token_hex(3)}"
    number = next(_numbers)
    if num_ranks == 1:
        return name
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - a collective would hang if a rank does not watch
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
    """Return what is known about a run before its first step, as a JSON-compatible record."""
    on, place = device_of(models)
    cores = usable_cores()
    backend = dist.get_backend() if num_ranks > 1 else None
    return {
        "rank": rank,
        "num_ranks": num_ranks,
        "workload": name or _class_name(models[0]),
        "num_params": sum(parameter.numel() for model in models for parameter in model.parameters()),
        "device": on.name,
        "batch_samples": batch_samples,
        "conditions": {
            **conditions(core_sets=[cores], launcher="watch", backend=backend),
            **on.conditions(place),
            "num_threads": torch.get_num_threads(),
        },
    }


def facts_of_forward(model: nn.Module, on: DeviceKind) -> dict[str, Any]:
    """Return precision and strategy; call it within a forward pass in training."""
    return {"precision": _precision(model, on), "strategy": _strategy(model)}


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model without torch's wrappers."""
    for name in ("module", "_orig_mod"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return _unwrapped(inner)
    return model


def _class_name(model: nn.Module) -> str:
    """Return the name of the model's class, before `fully_shard` replaced it."""
    kinds = [kind.__name__ for kind in type(_unwrapped(model)).__mro__]
    return kinds[kinds.index("FSDPModule") + 1] if "FSDPModule" in kinds else kinds[0]


def _precision(model: nn.Module, on: DeviceKind) -> str | None:
    """Return the precision of matrix products, from autocast, the weights and torch's settings."""
    dtype = next((each.dtype for each in model.parameters() if each.dtype.is_floating_point), None)
    if torch.is_autocast_enabled(on.name):
        dtype = torch.get_autocast_dtype(on.name)
    if dtype == torch.float32 and on.name == "cuda" and takes_tf32():
        return "tf32"
    return _PRECISIONS.get(dtype, str(dtype).removeprefix("torch.")) if dtype else None


def _strategy(model: nn.Module) -> str | None:
    """Return the training method, by the sweep's names; None if not known."""
    if isinstance(model, DistributedDataParallel) or DistributedDataParallel._active_ddp_module:  # noqa: SLF001 - the model may be inside
        return "ddp"
    kinds = {kind.__name__ for kind in type(model).__mro__}
    return "fsdp" if kinds & {"FSDPModule", "FullyShardedDataParallel"} else None


@contextmanager
def updates_seen(loop: Loop) -> Iterator[None]:
    """Report every update of weights to the loop."""
    after = register_optimizer_step_post_hook(lambda *_: loop.optimizer_ended())
    try:
        yield
    finally:
        after.remove()


@contextmanager
def phases_marked(loop: Loop, models: Iterable[nn.Module]) -> Iterator[None]:
    """Mark the models' forward passes, and all backward passes and starts of updates, on the loop."""
    with ExitStack() as removals:
        removals.enter_context(_backward_marked(loop))
        before = register_optimizer_step_pre_hook(lambda *_: loop.optimizer_begins())
        removals.callback(before.remove)
        for model in models:
            removals.enter_context(_forward_marked(loop, model))
        yield


def trained_once(models: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters that get a gradient; a parameter shared between models counts once."""
    shared = {id(each): each for model in models for each in model.parameters()}
    return [each for each in shared.values() if each.requires_grad and each.is_leaf]


def exchanges_throughout(models: Iterable[nn.Module]) -> bool:
    """Return whether weights are exchanged in both passes, as with sharded weights."""
    return any(hasattr(model, "set_requires_gradient_sync") for model in models)


@contextmanager
def _forward_marked(loop: Loop, model: nn.Module) -> Iterator[None]:
    """Mark each call of the model."""
    if getattr(model, "_compiled_call_impl", None) is not None:
        # The model is compiled in place, so hooks would be compiled too.
        with runs_within(model, "_compiled_call_impl", partial(forward, loop, model)):
            yield
        return

    def begins(module: nn.Module, _arguments: object) -> None:
        loop.forward(module, records=torch.is_grad_enabled())

    # Before other hooks, so that their work, such as gathering weights, counts as part of the pass.
    handle = model.register_forward_pre_hook(begins, prepend=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _backward_marked(loop: Loop) -> Iterator[None]:
    """Mark backward passes; all ways to start one call `torch.autograd.backward`."""
    plain = torch.autograd.backward
    is_active = True

    @wraps(plain)
    def marked(*arguments: Any, **named: Any) -> None:  # noqa: ANN401 - torch's own
        if not is_active:
            plain(*arguments, **named)
            return
        loop.backward_begins()
        try:
            plain(*arguments, **named)
        finally:
            loop.backward_ended()

    torch.autograd.backward = marked
    try:
        yield
    finally:
        is_active = False
        # If another wrapper was added later, ours stays inside it and only forwards calls.
        if torch.autograd.backward is marked:
            torch.autograd.backward = plain


@contextmanager
def forward(loop: Loop, model: Any) -> Iterator[None]:  # noqa: ANN401 - a module
    """Mark the code within as a forward pass of that model."""
    loop.forward(model, records=torch.is_grad_enabled())
    yield


@contextmanager
def runs_within(
    owner: Any,  # noqa: ANN401 - whatever has the method
    name: str,
    within: Callable[[], AbstractContextManager[None]],
) -> Iterator[None]:
    """Run each call of one object's method within a context."""
    plain, is_own = getattr(owner, name), name in vars(owner)

    @wraps(plain)
    def marked(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - the method's own
        with within():
            return plain(*arguments, **named)

    setattr(owner, name, marked)
    try:
        yield
    finally:
        if vars(owner).get(name) is marked:
            delattr(owner, name)
            if is_own:
                setattr(owner, name, plain)


@contextmanager
def fetches_marked(loop: Loop, loader: Any) -> Iterator[None]:  # noqa: ANN401 - a DataLoader, or what wraps one
    """Mark when a batch of this torch DataLoader is fetched, whatever code iterates over it."""
    inner = getattr(loader, "base_dataloader", loader)  # Accelerate's wrapper
    plain: Callable[[], Any] | None = getattr(inner, "_get_iterator", None)
    if plain is None:  # not a torch DataLoader: its input is not recorded
        yield
        return
    # Weak references, because an iterator that is garbage-collected ends its workers.
    marked: WeakKeyDictionary[Any, type] = WeakKeyDictionary()

    def marking_iterator() -> Any:  # noqa: ANN401 - torch's own
        batches = plain()
        marked[batches] = type(batches)
        batches.__class__ = _marking(loop, type(batches))
        return batches

    inner._get_iterator = marking_iterator  # noqa: SLF001 - torch offers no hook here
    try:
        yield
    finally:
        del inner._get_iterator  # noqa: SLF001 - likewise
        for batches, kind in marked.items():
            batches.__class__ = kind


@contextmanager
def iterator_marked(loop: Loop, batches: Any) -> Iterator[None]:  # noqa: ANN401 - an iterator of Lightning
    """Mark when this iterator fetches a batch."""
    kind = type(batches)
    batches.__class__ = _marking(loop, kind)
    try:
        yield
    finally:
        batches.__class__ = kind


def _marking(loop: Loop, kind: Any) -> type:  # noqa: ANN401 - a class of torch's iterators
    """Return a subclass of an iterator's class that marks each batch on the loop."""

    def following(self: Any) -> Any:  # noqa: ANN401 - a batch
        loop.fetching()
        try:
            batch = kind.__next__(self)
        except StopIteration:
            loop.between()
            raise
        loop.batch_fetched(num_samples(batch))
        return batch

    return type(kind.__name__, (kind,), {"__next__": following})


def num_samples(batch: Any, depth: int = 3) -> int:  # noqa: ANN401 - whatever a loader yields
    """Return the number of samples of a batch: the length of its first tensor; 0 if none is found.

    depth: of the search for a tensor in nested containers.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if not depth:
        return 0
    parts: Iterable[Any] = getattr(batch, "__dict__", {}).values()
    if isinstance(batch, list | tuple):
        parts = batch
    elif isinstance(batch, Mapping):
        parts = batch.values()
    for one in parts:
        if found := num_samples(one, depth - 1):
            return found
    return 0

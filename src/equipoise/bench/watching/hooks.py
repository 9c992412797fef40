"""Hooks on models, optimizers, data loaders and the profiler that mark a training loop; all removable."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import ProfilerActivity, profile

from equipoise.bench.devices import DeviceKind
from equipoise.bench.stopwatch import Profiled, profiled_in
from equipoise.bench.watching.loop import Loop


class Exchange:
    """Steps profiled from `begin` to `ended`."""

    def __init__(self, on: DeviceKind) -> None:
        """on: the device of which activities are recorded."""
        self._activities = [getattr(ProfilerActivity, name) for name in on.activities]
        self._synchronise = on.synchronise
        self._seen: Any = None

    def begin(self) -> bool:
        """Whether profiling began: not where somebody else profiles."""
        if torch.autograd._profiler_enabled():  # noqa: SLF001 - there is no other way to ask
            return False
        self._seen = profile(activities=self._activities)
        self._seen.start()
        return True

    def ended(self) -> Profiled | None:
        """Communication since `begin`; None where nothing was profiled."""
        if self._seen is None:
            return None
        self._synchronise()
        self._seen.stop()
        seen, self._seen = self._seen, None
        return profiled_in(seen)


@contextmanager
def attached(loop: Loop, models: Iterable[nn.Module]) -> Iterator[None]:
    """Hooks that mark on the loop what these models do, and every optimizer and backward pass."""
    with ExitStack() as removals:
        removals.enter_context(_backward_marked(loop))
        before = register_optimizer_step_pre_hook(lambda *_: loop.optimizer_begins())
        removals.callback(before.remove)
        after = register_optimizer_step_post_hook(lambda *_: loop.optimizer_ended())
        removals.callback(after.remove)
        for model in models:
            removals.enter_context(_forward_marked(loop, model))
        yield


class Gradients:
    """The moments at which gradients are ready: after the last one, ranks wait for exchanges only."""

    def __init__(self, loop: Loop, models: Iterable[nn.Module]) -> None:
        """Every gradient is looked at until `settle`, to find those that are ready last."""
        self._loop = loop
        self._latest: nn.Parameter | None = None
        self._last: dict[int, nn.Parameter] = {}
        self._held: list[Any] = []
        # One that models share counts once; what has a history has no gradient of its own.
        shared = {id(each): each for model in models for each in model.parameters()}
        self._observe([each for each in shared.values() if each.requires_grad and each.is_leaf], self._noted)

    def noted(self) -> None:
        """A step has ended: remember which of its gradients was the last."""
        if self._latest is not None:
            self._last[id(self._latest)] = self._latest
            self._latest = None

    def settle(self) -> None:
        """From now on look only at gradients that were the last in some step."""
        self._observe(list(self._last.values()), lambda _parameter: self._loop.ready())

    def removed(self) -> None:
        """Look at none."""
        self._observe((), self._noted)

    def _noted(self, parameter: nn.Parameter) -> None:
        self._latest = parameter
        self._loop.ready()

    def _observe(self, parameters: Sequence[nn.Parameter], hook: Callable[[Any], None]) -> None:
        for held in self._held:
            held.remove()
        self._held = [each.register_post_accumulate_grad_hook(hook) for each in parameters]


def exchanges_throughout(models: Iterable[nn.Module]) -> bool:
    """Whether weights are exchanged in both passes, as where they are sharded."""
    return any(hasattr(model, "set_requires_gradient_sync") for model in models)


@contextmanager
def _forward_marked(loop: Loop, model: nn.Module) -> Iterator[None]:
    """Marks each call of the model."""

    def begins(module: nn.Module, _arguments: object) -> None:
        loop.forward(module, records=torch.is_grad_enabled())

    # Compiled in place: hooks would be compiled too.
    compiled = getattr(model, "_compiled_call_impl", None)
    if compiled is None:
        # First of all hooks: what others do before the pass, gathering weights say, is part of it.
        handle = model.register_forward_pre_hook(begins, prepend=True)
        try:
            yield
        finally:
            handle.remove()
        return

    def called(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - the model's own
        begins(model, arguments)
        return compiled(*arguments, **named)

    model._compiled_call_impl = called  # noqa: SLF001 - likewise
    try:
        yield
    finally:
        model._compiled_call_impl = compiled  # noqa: SLF001 - likewise


@contextmanager
def _backward_marked(loop: Loop) -> Iterator[None]:
    """Marks backward passes: all ways to start one end in `torch.autograd.backward`."""
    plain = torch.autograd.backward
    watches = True

    @wraps(plain)
    def marked(*arguments: Any, **named: Any) -> None:  # noqa: ANN401 - torch's own
        if not watches:
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
        watches = False
        # Whoever wrapped it after us keeps what he put there; ours then only passes on.
        if torch.autograd.backward is marked:
            torch.autograd.backward = plain


@contextmanager
def forward(loop: Loop, model: Any) -> Iterator[None]:  # noqa: ANN401 - a module of Lightning
    """What runs within is a forward pass of that model."""
    loop.forward(model, records=torch.is_grad_enabled())
    yield


@contextmanager
def runs_within(
    owner: Any,  # noqa: ANN401 - whatever has the method
    name: str,
    within: Callable[[], AbstractContextManager[None]],
) -> Iterator[None]:
    """Each call of a method of this one object runs within a context."""
    plain = getattr(owner, name)

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


@contextmanager
def fetches_marked(loop: Loop, loader: Any) -> Iterator[None]:  # noqa: ANN401 - a DataLoader, or what wraps one
    """Marks when a batch of this torch DataLoader is fetched, whoever iterates over it."""
    inner = getattr(loader, "base_dataloader", loader)  # Accelerate's wrapper
    plain: Callable[[], Any] | None = getattr(inner, "_get_iterator", None)
    if plain is None:  # no torch DataLoader: its input is not seen
        yield
        return
    # Not kept alive: an iterator that is dropped ends its workers.
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
    """Marks when this iterator fetches a batch."""
    kind = type(batches)
    batches.__class__ = _marking(loop, kind)
    try:
        yield
    finally:
        batches.__class__ = kind


def _marking(loop: Loop, kind: Any) -> type:  # noqa: ANN401 - a class of torch's iterators
    """The same iterator, which marks each batch on the loop."""

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
    """How many samples a batch holds: the length of its first tensor; 0 where none is found.

    depth: how deep tensors are looked for in what holds them.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if not depth:
        return 0
    held: Iterable[Any] = getattr(batch, "__dict__", {}).values()
    if isinstance(batch, list | tuple):
        held = batch
    elif isinstance(batch, Mapping):
        held = batch.values()
    for one in held:
        if count := num_samples(one, depth - 1):
            return count
    return 0

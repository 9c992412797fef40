"""Traces the operations of a forward and a backward pass, and attributes them to modules."""

import bisect
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from msgspec import Struct, field
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.spec.torch_model.fakes import attention_shape, is_attention, operation_flop, tensors_in

if TYPE_CHECKING:
    from equipoise.spec.torch_model.count import AttentionShape

LOSS = "(loss)"
OWN_NAMESPACES = {"aten", "prims", "prim", "higher_order"}
# Operations that only allocate memory.
_EMPTY = {
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "set_",
}


class Work(Struct):
    """The work of one module so far, without its submodules."""

    forward_flop: int = 0
    backward_flop: int = 0
    activation_bytes: int = 0
    num_kernels: int = 0


class Storage(Struct):
    """One storage: its size, whether it depends on the batch, and the steps that wrote and last read it."""

    num_bytes: int
    from_batch: bool
    is_given: bool
    made_at: int
    read_at: int
    alive: weakref.ref[Any]
    is_saved: bool = False


class Modules(Struct):
    """The active module: by calls in the forward pass, by autograd sequence numbers in the backward pass."""

    stack: list[str] = field(default_factory=lambda: [""])
    first_nodes: list[int] = field(default_factory=lambda: [0])
    owners: list[str] = field(default_factory=lambda: [""])

    def entered(self, name: str) -> None:
        """Record that a module starts."""
        self.stack.append(name)
        self._from_here()

    def left(self) -> None:
        """Record that the innermost module has ended."""
        self.stack.pop()
        self._from_here()

    def _from_here(self) -> None:
        """Attribute autograd nodes created from now on to the innermost module."""
        self.first_nodes.append(torch.autograd._get_sequence_nr())  # noqa: SLF001 - has no public name
        self.owners.append(self.stack[-1])

    @property
    def innermost(self) -> str:
        """The module whose forward method is running."""
        return self.stack[-1]

    def of_node(self, number: int) -> str:
        """Return the module that was running when autograd created the node with this number."""
        return self.owners[bisect.bisect_right(self.first_nodes, number) - 1]


def watched(model: nn.Module, modules: Modules) -> ExitStack:
    """Attach hooks that record when each module starts and ends; closing the stack removes them."""
    hooks = ExitStack()
    for name, module in model.named_modules():
        before = module.register_forward_pre_hook(lambda *_, name=name: modules.entered(name), prepend=True)
        after = module.register_forward_hook(lambda *_: modules.left(), always_call=True)
        hooks.callback(before.remove)
        hooks.callback(after.remove)
    return hooks


class Trace(TorchDispatchMode):
    """Counts each operation when torch dispatches it, below autograd.

    work: by module.
    steps: the modules of the forward pass in order, with the FLOP done before each.
    crossings: for each result that depends on the batch, the steps that created and last read it, and its
    bytes. weight_uses: number of forward products that use each weight matrix, by its location in memory.
    """

    def __init__(self, modules: Modules) -> None:
        super().__init__()
        self.modules = modules
        self.work: dict[str, Work] = {}
        self.steps: list[tuple[str, int]] = []
        self.forward_flop = 0
        self.backward_flop = 0
        self.recompute_flop = 0
        self.num_kernels = [0, 0]
        self.live_bytes = 0
        self.peak_bytes = 0
        self.uncounted: set[str] = set()
        self.attention: list[AttentionShape] = []
        self.crossings: list[tuple[int, int, int]] = []
        self.weight_uses: Counter[tuple[int, int]] = Counter()
        self.is_backward = False
        self._storages: dict[int, Storage] = {}
        self._last_owner = ""

    @classmethod
    def supports_higher_order_operators(cls) -> bool:
        """Return True, so that operators which take functions are traced too."""
        return True

    def give(self, tensors: Sequence[torch.Tensor], *, from_batch: bool) -> None:
        """Register tensors that exist before the step: weights and buffers, or the batch."""
        for tensor in tensors:
            storage = self._storage(tensor, from_batch=from_batch, is_given=True)
            storage.is_given = True

    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record that the innermost module saves the tensor for the backward pass; return the tensor."""
        storage = self._storage(tensor, from_batch=False)
        if not storage.is_saved and not (storage.is_given and not storage.from_batch):
            storage.is_saved = True
            self._work(self.modules.innermost).activation_bytes += storage.num_bytes
        return tensor

    def saved_bytes(self) -> tuple[int, int]:
        """Return the bytes saved for the backward pass: all, and those that do not depend on the batch."""
        saved = [storage for storage in self._storages.values() if storage.is_saved]
        return (
            sum(storage.num_bytes for storage in saved),
            sum(storage.num_bytes for storage in saved if not storage.from_batch),
        )

    def end_forward(self) -> None:
        """Record the start of the backward pass."""
        for storage in self._storages.values():
            self._note_crossing(storage)
        self.is_backward = True

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an OpOverload or an operator of higher order
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Run and count the operation; return its result."""
        given = kwargs or {}
        if getattr(func, "namespace", "") == "prim":
            return func(*args, **given)
        if hasattr(func, "decompose"):
            with self:
                parts = func.decompose(*args, **given)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **given)
        self._count(func, args, given, out)
        return out

    def _count(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:  # noqa: ANN401
        """Add one operation to the work of its module."""
        is_again = self.is_backward and self._is_recomputation(func)
        owner = self._owner(is_again=is_again)
        sources = [self._storage(tensor) for tensor in tensors_in((args, kwargs))]
        from_batch = any(storage.from_batch for storage in sources)
        is_mutable = bool(getattr(getattr(func, "_schema", None), "is_mutable", False))
        known = {id(storage) for storage in sources}
        results = [self._storage(tensor, from_batch=from_batch) for tensor in tensors_in(out)]
        is_fresh = any(id(storage) not in known for storage in results)
        for storage in sources:
            storage.read_at = len(self.steps) - 1
        if is_mutable and sources:
            sources[0].from_batch |= from_batch
        name = getattr(getattr(func, "_schema", None), "name", "").rpartition(":")[2]
        if not (is_fresh or is_mutable) or name in _EMPTY:
            return
        flop = operation_flop(func, args, kwargs, out)
        if not self.is_backward and (shape := attention_shape(func, args)) is not None:
            self.attention.append(shape)
        work = self._work(owner)
        work.num_kernels += 1
        self.num_kernels[self.is_backward] += 1
        if flop is None:
            if getattr(func, "namespace", "aten") not in OWN_NAMESPACES:
                self.uncounted.add(str(func))
            return
        if not self.is_backward:
            self.weight_uses.update(self._weights(args, kwargs))
        self._add_flop(work, flop, is_again=is_again)

    def _weights(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[tuple[int, int]]:
        """Return the locations in memory of weight matrices that an operation reads; parts are separate."""
        read = ((each, self._storage(each)) for each in tensors_in((args, kwargs)))
        return {
            (id(storage), int(tensor.storage_offset()))
            for tensor, storage in read
            if storage.is_given and not storage.from_batch and tensor.dim() > 1
        }

    def _add_flop(self, work: Work, flop: int, *, is_again: bool) -> None:
        """Add the FLOP of one operation."""
        if not self.is_backward:
            self.forward_flop += flop
            work.forward_flop += flop
            return
        self.backward_flop += flop
        work.backward_flop += flop
        if is_again:
            self.recompute_flop += flop

    def _is_recomputation(self, func: Any) -> bool:  # noqa: ANN401 - an operation
        """Return whether an operation in the backward pass recomputes an activation checkpoint.

        Backward functions run with gradients disabled and outside modules. In a user's own autograd function
        the forward pass also runs with gradients disabled, but within a module.
        """
        return torch.is_grad_enabled() or self.modules.innermost != "" or is_attention(func)

    def _owner(self, *, is_again: bool) -> str:
        """Return the module that the operation belongs to."""
        node = torch._C._current_autograd_node() if self.is_backward else None  # noqa: SLF001 - has no public name
        if not self.is_backward or is_again:
            owner = self.modules.innermost
        elif node is None or node.name().endswith("AccumulateGrad"):
            return self._last_owner
        else:
            owner = self.modules.of_node(node._sequence_nr())  # noqa: SLF001 - has no public name
        if not self.is_backward and (not self.steps or self.steps[-1][0] != owner):
            self.steps.append((owner, self.forward_flop))
        self._last_owner = owner
        return owner

    def _work(self, owner: str) -> Work:
        """Return the work of a module so far."""
        return self.work.setdefault(owner, Work())

    def _storage(self, tensor: torch.Tensor, *, from_batch: bool = False, is_given: bool = False) -> Storage:
        """Return the record of a tensor's storage, created on first use and removed when it is freed."""
        memory = tensor.untyped_storage()
        key = memory._cdata  # noqa: SLF001 - the address is what makes two tensors share memory
        known = self._storages.get(key)
        if known is not None:
            return known
        storage = Storage(
            num_bytes=memory.nbytes(),
            from_batch=from_batch,
            is_given=is_given,
            made_at=len(self.steps) - 1,
            read_at=len(self.steps) - 1,
            alive=weakref.ref(memory, self._on_freed(key)),
        )
        self._storages[key] = storage
        if not is_given:
            self.live_bytes += storage.num_bytes
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return storage

    def _on_freed(self, key: int) -> Callable[[object], None]:
        """Return the callback for when a storage is freed."""

        def forget(_reference: object) -> None:
            storage = self._storages.pop(key)
            if not storage.is_given:
                self.live_bytes -= storage.num_bytes
            if not self.is_backward:
                self._note_crossing(storage)

        return forget

    def _note_crossing(self, storage: Storage) -> None:
        """Record the forward steps between which a result that depends on the batch was needed."""
        if storage.from_batch and not storage.is_given and storage.read_at > storage.made_at:
            self.crossings.append((max(storage.made_at, 0), storage.read_at, storage.num_bytes))

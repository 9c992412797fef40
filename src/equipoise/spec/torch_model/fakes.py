"""Models and batches without memory: copies that know shapes, and operations as accelerators run them."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from equipoise.errors import SpecError
from equipoise.spec.torch_model.flop import attention

CPU = torch.device("cpu")


def fake_mode() -> FakeTensorMode:
    """A mode in which tensors have shapes and no memory; real ones that a model holds are taken as fake."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_model(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """A copy of the model whose tensors have no memory; tied weights stay tied, the model is not touched.

    Raises SpecError if the model holds something that cannot be copied.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        model = model.module
    memo: dict[int, Any] = {}
    for tensor in _held_tensors(model):
        if nn.parameter.is_lazy(tensor):
            raise SpecError(
                f"{type(model).__name__}: a lazy module has no shapes before its first batch; "
                "run model(batch) once before the model is returned"
            )
        if id(tensor) not in memo:
            memo[id(tensor)] = _fake_tensor(tensor, mode)
    originals = list(_held_tensors(model))  # alive until the copy is made: the memo knows them by address
    try:
        copied = copy.deepcopy(model, memo)
    except (TypeError, RuntimeError, ValueError, AttributeError, NotImplementedError) as err:
        raise SpecError(
            f"{type(model).__name__}: the model holds something that cannot be copied ({err}); "
            "give a function that builds the model instead"
        ) from err
    del originals
    return copied


def fake_batch(batch: Any, mode: FakeTensorMode) -> Any:  # noqa: ANN401 - whatever the model takes
    """The batch with each tensor in it replaced by one without memory."""
    if isinstance(batch, torch.Tensor):
        return _fake_tensor(batch, mode)
    if isinstance(batch, Mapping):
        copied = {key: fake_batch(value, mode) for key, value in batch.items()}
        return copied if type(batch) is dict else _rebuilt_mapping(batch, copied)
    if isinstance(batch, list | tuple):
        items = [fake_batch(value, mode) for value in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return batch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 - any output of a model
    """Every tensor in a tensor, list, tuple, mapping or dataclass, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def _rebuilt_mapping(batch: Mapping[Any, Any], copied: dict[Any, Any]) -> Any:  # noqa: ANN401
    """A mapping of the same type where it can be made from a dict, as BatchEncoding can."""
    try:
        return type(batch)(copied)  # type: ignore[call-arg]
    except TypeError:
        return copied


def _held_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Weights, buffers, and tensors that modules hold as plain attributes, or in lists and mappings."""
    for module in model.modules():
        for name, value in vars(module).items():
            if name != "_modules":
                yield from tensors_in(value)


def _fake_tensor(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A tensor without memory of the same shape, strides and dtype, on the CPU; a weight stays a weight."""
    with mode:
        if tensor.layout is torch.strided:
            made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=CPU)
        else:
            made = torch.empty(tensor.size(), dtype=tensor.dtype, device=CPU)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)


class _AcceleratorForm(TorchFunctionMode):
    """Operations as an accelerator would run them, on tensors without memory.

    Every device becomes one: tensors without memory may claim one that this machine lacks, but then torch
    ends the process at their first gradient. Dropout keeps a mask of one byte a number, attention is one
    kernel that keeps no matrix of scores, RMS norm is one kernel; on a CPU, torch would keep more of each.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """The result of a torch function in the form described."""
        given = dict(kwargs or {})
        own = _FORMS.get(func)
        if own is not None:
            return own(*args, **given)
        if func is torch.Tensor.cuda:
            return torch.Tensor.to(args[0], self.device)
        if given.get("device") is not None:
            given["device"] = self._place(given["device"])
        if func is torch.Tensor.to:
            args = tuple(self._place(each) if type(each) in {str, int} else each for each in args)
        return func(
            *(self._place(each) if isinstance(each, torch.device) else each for each in args), **given
        )

    def _place(self, device: str | int | torch.device) -> torch.device:
        """Where a tensor goes that was meant for a device."""
        is_cpu = not isinstance(device, int) and torch.device(device).type == "cpu"
        return CPU if is_cpu else self.device


def _dropout(
    tensor: torch.Tensor,
    p: float = 0.5,
    training: bool = True,  # noqa: FBT001, FBT002 - torch's signature
    inplace: bool = False,  # noqa: ARG001, FBT001, FBT002 - torch's signature
) -> torch.Tensor:
    """Dropout that keeps a mask of booleans."""
    if not training or p == 0:
        return tensor
    return torch.native_dropout(tensor, p, train=True)[0]


def _attention(  # noqa: PLR0917 - torch's signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001 - a fused kernel keeps the seed only
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,  # noqa: ARG001 - shapes do not need it
    enable_gqa: bool = False,  # noqa: ARG001, FBT001, FBT002 - the count reads it from the shapes
) -> torch.Tensor:
    """Attention by one kernel, with or without a batch or heads."""
    missing = (None,) * max(0, 4 - query.dim())  # of batch, heads, sequence, head size
    attended = attention(query[missing], key[missing], value[missing], attn_mask, is_causal=is_causal)
    return attended[(0,) * len(missing)]


def _rms_norm(
    tensor: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,  # noqa: ARG001 - shapes do not need it
) -> torch.Tensor:
    """A norm in one kernel that keeps its input, with layer norm's shapes; a CPU takes eight."""
    return torch.native_layer_norm(tensor, normalized_shape, weight, None, 1.0)[0]


# By name in torch.nn.functional, for calls that torch itself makes there.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "scaled_dot_product_attention": _attention,
    "rms_norm": _rms_norm,
}
# By function, for calls through names that users gave them.
_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    **{getattr(F, name): own for name, own in _FUNCTIONS.items()},
    torch.dropout: _dropout,
    torch.rms_norm: _rms_norm,
}


@contextmanager
def accelerator_form(device: torch.device = CPU) -> Iterator[None]:
    """Operations as an accelerator would run them, while it lasts: see `_AcceleratorForm`.

    device: where tensors go that would be anywhere but on the CPU.
    A mode is off within the functions it passes on, so that what `F.multi_head_attention_forward` calls would
    escape it; hence the names in torch.nn.functional are exchanged as well.
    """
    exchanged = {name: getattr(F, name) for name in _FUNCTIONS}
    try:
        for name, own in _FUNCTIONS.items():
            setattr(F, name, own)
        with _AcceleratorForm(device):
            yield
    finally:
        for name, original in exchanged.items():
            setattr(F, name, original)

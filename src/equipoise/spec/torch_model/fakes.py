"""Fake models and batches without memory, accelerators' forms of operations, and FLOP formulas.

FLOP are counted for dispatched operations: matrix products, convolutions, attention. No durations.
"""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry

from equipoise.errors import SpecError
from equipoise.spec.torch_model.count import AttentionShape

_FORWARD = "(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal) -> (Tensor, Tensor)"
_BACKWARD = (
    "(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor out, Tensor log_sums, "
    "bool is_causal, bool is_mask_trained) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _nothing(*_args: object) -> Any:  # noqa: ANN401 - never returns
    """Raise NotImplementedError, because these operations have shapes but no kernels."""
    raise NotImplementedError("equipoise::attention has no kernel: it is run without memory only")


_forward = torch.library.custom_op("equipoise::attention", _nothing, mutates_args=(), schema=_FORWARD)
_backward = torch.library.custom_op(
    "equipoise::attention_backward", _nothing, mutates_args=(), schema=_BACKWARD
)

FORWARD = torch.ops.equipoise.attention
BACKWARD = torch.ops.equipoise.attention_backward


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, *, is_causal: bool
) -> torch.Tensor:
    """Return attention of (batch, heads, sequence, head size); groups may share heads of key and value.

    Saves query, key, value, mask, the result and one number per head and query, as fused kernels do.
    Source: Dao 2023 (FlashAttention-2), section 3.1.
    """
    attended: torch.Tensor = FORWARD(query, key, value, mask, is_causal)[0]
    return attended


def _attended(
    query: torch.Tensor,
    _key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    _is_causal: bool,  # noqa: FBT001
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result in the query's memory layout, and the logarithms of the softmax sums."""
    batch, heads, num_queries, head_size = query.shape
    if value.shape[-1] == head_size:
        out = torch.empty_like(query)
    else:
        out = query.new_empty((batch, num_queries, heads, value.shape[-1])).transpose(1, 2)
    return out, query.new_empty((batch, heads, num_queries), dtype=torch.float32)


def _gradients(
    _gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    _out: torch.Tensor,
    _log_sums: torch.Tensor,
    _is_causal: bool,  # noqa: FBT001
    is_mask_trained: bool,  # noqa: FBT001
) -> tuple[torch.Tensor, ...]:
    """Return gradients shaped like their inputs; an empty one for a mask that is not trained."""
    of_mask = torch.empty_like(mask) if is_mask_trained else query.new_empty(0)
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), of_mask


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:  # noqa: ANN401
    """Save the tensors that the backward pass needs."""
    query, key, value, mask, ctx.is_causal = inputs
    ctx.save_for_backward(query, key, value, mask, *output)


def _input_gradients(ctx: Any, gradient: torch.Tensor, _of_log_sums: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the gradients of the inputs."""
    is_mask_trained = bool(ctx.needs_input_grad[3])
    kept = ctx.saved_tensors
    *of_inputs, of_mask = BACKWARD(gradient, *kept, ctx.is_causal, is_mask_trained)
    return (*of_inputs, of_mask if is_mask_trained else None, None)


_forward.register_fake(_attended)
_backward.register_fake(_gradients)
_forward.register_autograd(_input_gradients, setup_context=_save)


def attention_flop(query: Sequence[int], key: Sequence[int], value: Sequence[int], *, is_causal: bool) -> int:
    """Return the forward FLOP of attention: scores and weighted values over the keys visible to a query.

    query: (..., heads, queries, head_size); heads of key and value may be shared by groups of query heads.
    Assumes a causal kernel skips masked keys, which torch's counter includes.

    >>> attention_flop((1, 1, 4, 8), (1, 1, 4, 8), (1, 1, 4, 8), is_causal=False)
    512
    >>> attention_flop((1, 1, 4, 8), (1, 1, 4, 8), (1, 1, 4, 8), is_causal=True)
    320
    """
    num_queries, num_keys = query[-2], key[-2]
    if is_causal:
        corner = min(num_queries, num_keys)
        num_pairs = corner * (corner + 1) // 2 + (num_queries - corner) * num_keys
    else:
        num_pairs = num_queries * num_keys
    return 2 * math.prod(query[:-2]) * num_pairs * (query[-1] + value[-1])


def forward_flop(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """Return the FLOP of the forward operation."""
    return attention_flop(args[0].shape, args[1].shape, args[2].shape, is_causal=args[4])


def backward_flop(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """Return the FLOP of the backward operation: recomputed scores, and two products per forward product.

    Source: Dao 2023 (FlashAttention-2), section 4.1: backward is 2.5 times forward.
    """
    query, key, value = args[1].shape, args[2].shape, args[3].shape
    scores = attention_flop(query, key, (*value[:-1], 0), is_causal=args[7])
    return 2 * attention_flop(query, key, value, is_causal=args[7]) + scores


def is_attention(func: Any) -> bool:  # noqa: ANN401 - an operation
    """Return whether an operation is forward attention."""
    return getattr(func, "_overloadpacket", func) is FORWARD


def attention_shape(func: Any, args: Sequence[Any]) -> AttentionShape | None:  # noqa: ANN401
    """Return the sizes of one attention call; None for any other operation."""
    if not is_attention(func):
        return None
    query, key = args[0].shape, args[1].shape
    return AttentionShape(
        heads=query[1],
        kv_heads=key[1],
        head_size=query[3],
        num_queries=query[2],
        num_keys=key[2],
        is_causal=args[4],
    )


aten = torch.ops.aten

Formula: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any], Any], int]


def operation_flop(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int | None:  # noqa: ANN401
    """Return the FLOP of one dispatched operation; None if it has no matrix product.

    Assumes one multiplication and one addition per pair of numbers; elementwise operations are not counted,
    as in published counts.
    Source: FORMULAS, then torch.utils.flop_counter with formulas added by `register_flop_formula`.
    """
    packet = getattr(func, "_overloadpacket", func)
    own = FORMULAS.get(packet)
    if own is not None:
        return own(args, kwargs, out)
    registered = flop_registry.get(packet)
    return None if registered is None else int(registered(*args, **kwargs, out_val=out))


def _convolution_backward(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """Return the FLOP of gradients of input and weight, each equal to the forward pass.

    torch's own formula ignores groups for the weight, which is 32 times too much for a depthwise layer of 32
    channels (still in torch 2.13); its forward formula is correct.
    """
    grad_out, given, weight, transposed = args[0], args[1], args[2], args[7]
    needs_input, needs_weight = args[10][0], args[10][1]
    # Of the side where each position, (batch, weight[0], *spatial), meets weight[1:] numbers.
    positions = given.shape if transposed else grad_out.shape
    one_pass: int = 2 * math.prod(positions) * math.prod(weight.shape[1:])
    return one_pass * (int(needs_input) + int(needs_weight))


def _vector_product(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """Return the FLOP of a matrix or vector times a vector."""
    return 2 * int(args[0].numel())


def _added_vector_product(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """Return the FLOP of addmv or addbmm, whose first argument is the addend."""
    left, right = args[1], args[2]
    columns = right.shape[-1] if right.dim() == 3 else 1  # noqa: PLR2004 - addbmm's are batches of matrices
    return 2 * int(left.numel()) * int(columns)


def _trilinear(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """Return the FLOP of products of three expanded tensors: two multiplications and a sum each."""
    shapes = []
    for tensor, new_dims in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.shape)
        for dim in sorted(new_dims):
            shape.insert(dim, 1)
        shapes.append(shape)
    return int(3 * math.prod(max(sizes) for sizes in zip(*shapes, strict=True)))


def _grouped_product(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """Return the FLOP of grouped products."""
    left, right = args[0], args[1]
    return 2 * int(left.numel()) * int(right.shape[-1])


FORMULAS: dict[Any, Formula] = {
    aten.convolution_backward: _convolution_backward,
    FORWARD: forward_flop,
    BACKWARD: backward_flop,
    aten.mv: _vector_product,
    aten.dot: _vector_product,
    aten.vdot: _vector_product,
    aten.addmv: _added_vector_product,
    aten.addbmm: _added_vector_product,
    aten._trilinear: _trilinear,  # noqa: SLF001
}
if hasattr(aten, "_grouped_mm"):  # since torch 2.8
    FORMULAS[aten._grouped_mm] = _grouped_product  # noqa: SLF001


CPU = torch.device("cpu")


def fake_mode() -> FakeTensorMode:
    """Return a mode in which tensors have shapes but no memory; a model's real tensors are converted."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_model(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return a copy of the model with fake tensors; tied weights remain tied, and the model is not changed.

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
    """Return the batch with each tensor replaced by a fake one."""
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
    """Yield every tensor in a tensor, list, tuple, mapping or dataclass, in order."""
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
    """Return a mapping of the same type if a dict can be converted to it (BatchEncoding); else the dict."""
    try:
        return type(batch)(copied)  # type: ignore[call-arg]
    except TypeError:
        return copied


def _held_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield weights, buffers, and tensors in plain attributes of modules, including lists and mappings."""
    for module in model.modules():
        for name, value in vars(module).items():
            if name != "_modules":
                yield from tensors_in(value)


def _fake_tensor(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """Return a fake CPU tensor of the same shape, strides and dtype; a parameter remains a parameter."""
    with mode:
        if tensor.layout is torch.strided:
            made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=CPU)
        else:
            made = torch.empty(tensor.size(), dtype=tensor.dtype, device=CPU)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)


class _AcceleratorForm(TorchFunctionMode):
    """Runs operations on fake tensors in the form in which an accelerator would run them.

    All devices are replaced by one, because a fake tensor on a device that this machine lacks makes torch end
    the process at its first gradient. Dropout saves a mask of one byte per number, attention is one kernel
    that saves no score matrix, RMS norm is one kernel; on a CPU, torch would save more.
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
        """Return the result of a torch function in the form described above."""
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
        """Return the device that replaces a requested device."""
        is_cpu = not isinstance(device, int) and torch.device(device).type == "cpu"
        return CPU if is_cpu else self.device


def _dropout(
    tensor: torch.Tensor,
    p: float = 0.5,
    training: bool = True,  # noqa: FBT001, FBT002 - torch's signature
    inplace: bool = False,  # noqa: ARG001, FBT001, FBT002 - torch's signature
) -> torch.Tensor:
    """Apply dropout that saves a boolean mask."""
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
    """Apply attention in one kernel, with or without batch and head dims."""
    missing = (None,) * max(0, 4 - query.dim())  # of batch, heads, sequence, head size
    attended = attention(query[missing], key[missing], value[missing], attn_mask, is_causal=is_causal)
    return attended[(0,) * len(missing)]


def _rms_norm(
    tensor: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,  # noqa: ARG001 - shapes do not need it
) -> torch.Tensor:
    """Apply a norm in one kernel that saves its input, with layer norm's shapes; a CPU uses eight kernels."""
    return torch.native_layer_norm(tensor, normalized_shape, weight, None, 1.0)[0]


# By name in torch.nn.functional, for torch's own calls.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "scaled_dot_product_attention": _attention,
    "rms_norm": _rms_norm,
}
# By function, for calls through names in a user's code.
_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    **{getattr(F, name): own for name, own in _FUNCTIONS.items()},
    torch.dropout: _dropout,
    torch.rms_norm: _rms_norm,
}


@contextmanager
def accelerator_form(device: torch.device = CPU) -> Iterator[None]:
    """Run operations within the block as an accelerator would; see `_AcceleratorForm`.

    device: replaces all devices other than the CPU.
    A mode is disabled within the functions it forwards, so it would miss calls in
    `F.multi_head_attention_forward`. The names in torch.nn.functional are therefore replaced too.
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

"""FLOP of the operations that torch dispatches: matrix products, convolutions, attention. No durations."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils.flop_counter import flop_registry

from equipoise.spec.torch_model import attention

aten = torch.ops.aten

Formula: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any], Any], int]


def operation_flop(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int | None:  # noqa: ANN401
    """FLOP of one dispatched operation; None for one that has no matrix product in it.

    Assumes one multiplication and one addition per pair of numbers; elementwise work counts nothing, as in
    published counts.
    Source: torch.utils.flop_counter, to which `register_flop_formula` adds; FORMULAS here come first.
    """
    packet = getattr(func, "_overloadpacket", func)
    own = FORMULAS.get(packet)
    if own is not None:
        return own(args, kwargs, out)
    registered = flop_registry.get(packet)
    return None if registered is None else int(registered(*args, **kwargs, out_val=out))


def _convolution(args: Sequence[Any], _kwargs: Mapping[str, Any], out: Any) -> int:  # noqa: ANN401
    """One pass over input or output: every position meets its share of the kernel."""
    transposed = args[6]
    return _convolution_pass(args[0].shape if transposed else out.shape, args[1].shape)


def _convolution_backward(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """The gradients of input and weight cost what the way forward cost, each.

    torch's own formula leaves the groups out for the weight, 32 times too much for a depthwise layer of 32.
    """
    grad_out, given, weight, transposed = args[0], args[1], args[2], args[7]
    needs_input, needs_weight = args[10][0], args[10][1]
    one_pass = _convolution_pass(given.shape if transposed else grad_out.shape, weight.shape)
    return one_pass * (int(needs_input) + int(needs_weight))


def _convolution_pass(positions: Sequence[int], weight: Sequence[int]) -> int:
    """positions: (batch, weight[0], *spatial) of the side where each position meets weight[1:] numbers."""
    return 2 * math.prod(positions) * math.prod(weight[1:])


def _vector_product(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """A matrix or vector with a vector: each number of the first is used once."""
    return 2 * int(args[0].numel())


def _added_vector_product(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """Addmv and addbmm: the first argument is what the product is added to."""
    left, right = args[1], args[2]
    columns = right.shape[-1] if right.dim() == 3 else 1  # noqa: PLR2004 - addbmm's are batches of matrices
    return 2 * int(left.numel()) * int(columns)


def _trilinear(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """Products of three tensors, each spread along its own new dims, two multiplications and a sum each."""
    shapes = []
    for tensor, new_dims in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.shape)
        for dim in sorted(new_dims):
            shape.insert(dim, 1)
        shapes.append(shape)
    return int(3 * math.prod(max(sizes) for sizes in zip(*shapes, strict=True)))


def _grouped_product(args: Sequence[Any], _kwargs: Mapping[str, Any], _out: Any) -> int:  # noqa: ANN401
    """Products of the groups that offsets share out; where both are batches, a product each."""
    left, right = args[0], args[1]
    return 2 * int(left.numel()) * int(right.shape[-1])


FORMULAS: dict[Any, Formula] = {
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    attention.FORWARD: attention.forward_flop,
    attention.BACKWARD: attention.backward_flop,
    aten.mv: _vector_product,
    aten.dot: _vector_product,
    aten.vdot: _vector_product,
    aten.addmv: _added_vector_product,
    aten.addbmm: _added_vector_product,
    aten._trilinear: _trilinear,  # noqa: SLF001
}
if hasattr(aten, "_grouped_mm"):  # from torch 2.8
    FORMULAS[aten._grouped_mm] = _grouped_product  # noqa: SLF001

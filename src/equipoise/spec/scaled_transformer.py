"""Scales a transformer to another number of parameters in the same proportions."""

import math
from bisect import bisect_left
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.spec.transformer import Transformer

# Matrix widths are multiples of 128, the tiles of matrix units, or of the largest smaller power of two that
# divides the family's width. Source: NVIDIA, Matrix Multiplication Background (2023).
_WIDTH_STEP: Final = 128
# The number of heads grows in steps of this size, so that tensor parallel ranks can divide heads and keys;
# with few heads, in steps of at most a quarter. Fewer heads are tried only for families with hardly more.
_FEW_HEADS: Final = 4
_MOST_HEADS: Final = 4096
# Maximum factor by which queries per key may differ from the family's: 5 instead of 7 is allowed.
_NEAR_SHARE: Final = 1.45


def scaled_to(shape: Transformer, params: float) -> Transformer:
    """Return a transformer with about `params` parameters, in the proportions of another.

    Width and depth are scaled by the same factor; the head size, the approximate queries per key, the number
    of experts, vocabulary and positions are unchanged. The width is in steps of whole heads, or of 128 if the
    heads together are not as wide as the model. The depth is then chosen, so that parameters differ by at
    most half a layer, unless a single layer is too large.
    Raises SpecError for a hybrid, which cannot be scaled uniquely.
    Assumes that models of a family have one ratio of width to depth.
    Source: Llama 3 (2024, table 3) and GPT-3 (2020, table 2.1) widen and deepen together, with heads of 128.
    """
    if shape.state_layers or shape.cross_layers or shape.towers or shape.compressed is not None:
        raise SpecError(
            "a hybrid transformer can grow in several ways; name a dense transformer or a mixture of experts"
        )
    widths = _widths(shape.heads, shape.kv_heads)
    place = bisect_left(widths, params, key=lambda heads: _params_at(shape, heads))
    beside = {widths[max(0, place - 1)], widths[min(place, len(widths) - 1)]}
    made = [_deep(_widened(shape, heads), params) for heads in sorted(beside)]
    return min(made, key=lambda each: abs(math.log(_ratio(each) / _ratio(shape))))


def _ratio(shape: Transformer) -> float:
    """Return width over depth."""
    return shape.hidden / shape.layers


@lru_cache(maxsize=64)
def _widths(family_heads: int, family_kv_heads: int) -> tuple[int, ...]:
    """Return the possible numbers of heads of a family, ascending."""

    def is_shared(count: int, family_count: int) -> bool:
        unit = math.gcd(family_count, _FEW_HEADS)
        return count % min(unit, 1 << max(0, (count // 4).bit_length() - 1)) == 0

    def may_be(heads: int) -> bool:
        share = max(1.0, heads * family_kv_heads / family_heads)
        keys = _kv_heads(heads, share)
        if not (is_shared(heads, family_heads) and is_shared(keys, family_kv_heads)):
            return False
        return share / _NEAR_SHARE <= keys <= share * _NEAR_SHARE

    return tuple(filter(may_be, range(min(_FEW_HEADS, -(-family_heads // 2)), _MOST_HEADS + 1)))


def _kv_heads(heads: int, share: float) -> int:
    """Return the number of key heads: the divisor of the number of heads nearest to `share`, as a ratio."""
    lower = [each for each in range(1, math.isqrt(heads) + 1) if heads % each == 0]
    divisors = (*lower, *(heads // each for each in lower))
    return min(divisors, key=lambda each: abs(math.log(each / share)))


def _params_at(shape: Transformer, heads: int) -> float:
    """Return the parameters at a width, in the family's ratio of width to depth."""
    wide = _widened(shape, heads)
    return wide.stack_params * heads / shape.heads + wide.embedding_params


def _widened(shape: Transformer, heads: int) -> Transformer:
    """Return the transformer with another number of heads and the width scaled accordingly."""
    if heads == shape.heads:
        return shape

    def scaled(size: int) -> int:
        step = math.gcd(size, _WIDTH_STEP)
        return max(step, step * round(size * heads / shape.heads / step)) if size else 0

    is_all_heads = shape.hidden == shape.heads * shape.head_size
    return replace(
        shape,
        heads=heads,
        kv_heads=_kv_heads(heads, heads * shape.kv_heads / shape.heads),
        hidden=heads * shape.head_size if is_all_heads else scaled(shape.hidden),
        ffn_hidden=scaled(shape.ffn_hidden),
        expert_ffn_hidden=scaled(shape.expert_ffn_hidden),
        shared_expert_ffn_hidden=scaled(shape.shared_expert_ffn_hidden),
        query_rank=scaled(shape.query_rank),
        kv_rank=scaled(shape.kv_rank),
        expert_latent=scaled(shape.expert_latent),
        output_rank=scaled(shape.output_rank),
    )


def _deep(shape: Transformer, params: float) -> Transformer:
    """Return the transformer with the depth for `params`; the dense layers of a mixture are unchanged."""
    layers = max(1, round((params - shape.embedding_params) / (shape.stack_params / shape.layers)))
    if shape.layers == layers:
        return shape

    def scaled(count: int | None) -> int | None:
        return None if count is None else round(count * layers / shape.layers)

    dense = shape.dense_layers
    if dense is not None and shape.experts:
        dense = min(dense, layers - 1) if layers > 1 else 0
    elif dense is not None:
        dense = scaled(dense)
    return replace(
        shape,
        layers=layers,
        attention_layers=scaled(shape.attention_layers),
        dense_layers=dense,
        expert_layers=None
        if shape.expert_layers is None or dense is not None
        else scaled(shape.expert_layers),
        windowed_layers=scaled(shape.windowed_layers) or 0,
    )

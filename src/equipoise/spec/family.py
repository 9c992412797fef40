"""Transformers of other sizes with the proportions of one: wider and deeper together."""

from dataclasses import replace

from equipoise.errors import SpecError
from equipoise.spec.transformer import Transformer

_FFN_STEP = 128
# Widths grow by so many heads, that tensor parallel ranks can share them.
_FEW_HEADS = 4
_MOST_TRIES = 64


def of_size(shape: Transformer, params: float) -> Transformer:
    """A transformer of about so many parameters, in the proportions of another.

    Width and depth grow by the same factor; heads keep their size, each key its share of queries, a mixture
    its number of experts; vocabulary and positions stay. The width comes in steps of whole heads, and the
    depth makes up the rest: parameters miss by half a layer at most, unless a single layer is too much.
    Raises SpecError for a hybrid, which has no one way to grow.
    Assumes that models of a family have one ratio of width to depth.
    Source: Llama 3 (2024, table 3) and GPT-3 (2020, table 2.1) widen and deepen together, with heads of 128.
    """
    if shape.state_layers or shape.compressed is not None:
        raise SpecError("a hybrid transformer has no one way to grow; name a plain one, or a mixture")
    shared = shape.heads // shape.kv_heads
    step = _FEW_HEADS if shape.heads % _FEW_HEADS == 0 and _FEW_HEADS % shared == 0 else shared
    heads = _heads(shape, params, step)
    wide = _widened(shape, heads)
    layer = wide.stack_params / wide.layers
    layers = max(1, round((params - wide.embedding_params) / layer))
    return _deepened(wide, layers)


def _heads(shape: Transformer, params: float, step: int) -> int:
    """The heads of the width that keeps nearest to the family's ratio of width to depth."""
    fewest, most = 1, 2
    while _params_at(shape, most * step) < params and most < 2**_MOST_TRIES:
        fewest, most = most, 2 * most
    while fewest + 1 < most:
        middle = (fewest + most) // 2
        if _params_at(shape, middle * step) < params:
            fewest = middle
        else:
            most = middle
    below, above = _params_at(shape, fewest * step), _params_at(shape, most * step)
    nearest = fewest if params / below < above / params else most
    return nearest * step


def _params_at(shape: Transformer, heads: int) -> float:
    """Parameters at a width, in the family's ratio of width to depth."""
    wide = _widened(shape, heads)
    return wide.stack_params * heads / shape.heads + wide.embedding_params


def _widened(shape: Transformer, heads: int) -> Transformer:
    """As deep, but so many heads wide."""

    def scaled(size: int, *, to: int = 1) -> int:
        return max(to, to * round(size * heads / shape.heads / to)) if size else 0

    return replace(
        shape,
        heads=heads,
        kv_heads=heads * shape.kv_heads // shape.heads,
        hidden=scaled(shape.hidden),
        ffn_hidden=scaled(shape.ffn_hidden, to=_FFN_STEP),
        expert_ffn_hidden=scaled(shape.expert_ffn_hidden, to=_FFN_STEP),
        shared_expert_ffn_hidden=scaled(shape.shared_expert_ffn_hidden, to=_FFN_STEP),
        query_rank=scaled(shape.query_rank),
        kv_rank=scaled(shape.kv_rank),
        expert_latent=scaled(shape.expert_latent),
        output_rank=scaled(shape.output_rank),
    )


def _deepened(shape: Transformer, layers: int) -> Transformer:
    """As wide, but so many layers deep; of a mixture the first layers stay dense."""
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

"""What a model asks of a machine, layer by layer: FLOP, bytes and parameters. Floats or arrays, no names."""

from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import SpecError
from equipoise.spec.transformer import Transformer

Floats: TypeAlias = float | NDArray[np.float64]

_TILE = 64
BYTES_PER_VALUE = 2  # bf16 and fp16: what activations travel and rest in


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Work and state of one model at one sequence length; every field a float, or arrays that broadcast.

    A layer is the mean layer of the stack; *_flop are of one token's way forward, before any sharding.
    layers, hidden, heads, kv_heads, experts: sizes that limit sharding; hidden is 0 for what has no tensor axis.
    sequence: tokens of a sample (1 where a sample is not text: then a "token" is a sample).
    dense_flop, num_dense_products: matrix products that every token passes, and how many there are in a layer.
    expert_flop, num_expert_products: those of the routed experts; routed_bytes is what a token sends to its experts.
    attention_flop: scores and their use; head_flop: the output matrix, once a token.
    product_whole_bytes, product_shared_bytes: what products read and write beside weights, by the sharing below.
    score_flop, score_bytes: what attention that is not fused adds: masked scores computed all the same, and every
    score written and read again by softmax and dropout.
    whole_bytes, shared_bytes: traffic of memory-bound work a layer and token, which a tensor axis leaves whole
    (norms, residuals, dropout), and which it shares out. head_bytes: that of logits and loss, once a token.
    num_kernels: kernels launched a layer, forward.
    dense_params, expert_params: a layer's; embedding_params: all tables; end_params: those at the fuller end of a pipeline; adapter_params: of an
    adapter, a layer and rank.
    kept_whole_bytes, kept_shared_bytes, kept_score_bytes: activations a token and layer keeps for the way back, by
    the same sharing, and the scores that unfused attention keeps; boundary_bytes: of a token between two layers.
    """

    layers: Floats
    hidden: Floats
    heads: Floats
    kv_heads: Floats
    experts: Floats
    sequence: Floats
    dense_flop: Floats
    num_dense_products: Floats
    expert_flop: Floats
    num_expert_products: Floats
    routed_bytes: Floats
    attention_flop: Floats
    head_flop: Floats
    product_whole_bytes: Floats
    product_shared_bytes: Floats
    score_flop: Floats
    score_bytes: Floats
    whole_bytes: Floats
    shared_bytes: Floats
    head_bytes: Floats
    num_kernels: Floats
    dense_params: Floats
    expert_params: Floats
    embedding_params: Floats
    end_params: Floats
    adapter_params: Floats
    kept_whole_bytes: Floats
    kept_shared_bytes: Floats
    kept_score_bytes: Floats
    kept_head_bytes: Floats
    boundary_bytes: Floats
    kv_bytes: Floats

    @property
    def params(self) -> Floats:
        """Every weight of the model."""
        return self.layers * (self.dense_params + self.expert_params) + self.embedding_params

    @property
    def train_flop_per_sample(self) -> Floats:
        """FLOP of one sample's way forward and back, nothing computed twice."""
        layer = self.dense_flop + self.expert_flop + self.attention_flop
        return 3 * self.sequence * (self.layers * layer + self.head_flop)


def transformer_load(model: Transformer, *, sequence: int) -> Load:
    """The load of a transformer on samples of `sequence` tokens.

    Assumes 2-byte activations; biases, norms and routing cost no FLOP; memory-bound work as counted below.
    Source: parameters and FLOP as in `Transformer`; activations kept: Korthikanti et al. 2022, eq. 1-3
    (10 + 24/t + 5as/h values of s b h, of which 24 are for a plain block with a four times wider feed-forward).
    """
    if sequence < 1:
        raise SpecError(f"sequence={sequence}; expected at least 1 token a sample")
    layers, hidden = float(model.layers), float(model.hidden)
    per_layer = 1 / layers
    attention = model.num_attention_blocks * per_layer
    dense = model.num_dense_blocks * per_layer
    expert = model.num_expert_blocks * per_layer
    state = model.state_layers * per_layer
    dense_params = (
        attention * model.attention_params
        + dense * model.dense_params
        + expert * model.shared_params
        + state * model.state_params
    )
    value = model.value_head_size or model.head_size
    key = model.head_size + (model.rope_head_size if model.kv_rank else 0)
    context = model.attention_context(sequence)
    inner = model.state_heads * model.state_head_size
    # Matrix units work on tiles of 64: a head of 96 costs as much as one of 128.
    tiled = _TILE * (-(-key // _TILE) + -(-value // _TILE))
    attention_flop = attention * 2 * model.heads * tiled * context + state * 4 * inner * model.state_size
    matrices = 3 if model.gated else 2
    # Widths of what one token leaves behind in each block, in values: inputs of the products and of the activation.
    attention_width = model.heads * (key + value) + model.kv_heads * (key + value)
    dense_width = (matrices if model.gated else matrices) * model.ffn_hidden
    expert_width = matrices * (model.top_k * model.expert_ffn_hidden + model.shared_expert_ffn_hidden) + (
        2 * model.top_k * (model.expert_latent or model.hidden) if model.experts else 0
    )
    state_width = 5 * inner
    shared_width = (
        attention * attention_width + dense * dense_width + expert * expert_width + state * state_width
    )
    blocks = attention + dense + expert + state
    return Load(
        layers=layers,
        hidden=hidden,
        heads=float(model.heads),
        kv_heads=float(model.kv_heads),
        experts=float(model.experts),
        sequence=float(sequence),
        dense_flop=2 * dense_params,
        num_dense_products=2 * attention
        + matrices * dense
        + (matrices if model.shared_expert_ffn_hidden else 0) * expert
        + 2 * state,
        expert_flop=2 * expert * model.top_k * model.expert_params,
        num_expert_products=matrices * expert,
        routed_bytes=expert * model.top_k * (model.expert_latent or hidden) * BYTES_PER_VALUE,
        attention_flop=attention_flop,
        head_flop=2 * model.vocabulary * hidden,
        # Products read their inputs and write their results: hidden at one end of each block, its width at the other.
        product_whole_bytes=(attention + dense + expert + state) * 2 * hidden * BYTES_PER_VALUE,
        product_shared_bytes=shared_width * BYTES_PER_VALUE,
        score_flop=attention * 2 * model.heads * tiled * (sequence - context),
        score_bytes=attention * 10.0 * model.heads * sequence,
        # A block reads and writes its token several times outside matrix products: norm, dropout, residual.
        whole_bytes=blocks * 6 * hidden * BYTES_PER_VALUE,
        shared_bytes=2 * shared_width * BYTES_PER_VALUE,
        # Logits are written, turned to 4 bytes, reduced twice and replaced by their gradient.
        head_bytes=20.0 * model.vocabulary,
        num_kernels=12 * attention + 5 * dense + 25 * expert + 15 * state,
        dense_params=dense_params,
        expert_params=expert * model.experts * model.expert_params,
        embedding_params=float(model.embedding_params),
        end_params=float(model.embedding_params) if model.tied_embeddings else model.embedding_params / 2,
        adapter_params=attention * 2 * (model.heads + model.kv_heads + 2 * model.heads) * model.head_size / 2
        + attention * 2 * hidden,
        kept_whole_bytes=blocks * 2.5 * hidden * BYTES_PER_VALUE,
        kept_shared_bytes=shared_width * BYTES_PER_VALUE,
        kept_score_bytes=attention * 5.0 * model.heads * sequence,
        kept_head_bytes=4.0 * model.vocabulary + 2 * BYTES_PER_VALUE * hidden,
        boundary_bytes=hidden * BYTES_PER_VALUE,
        kv_bytes=attention * model.kv_heads * (key + value) * BYTES_PER_VALUE,
    )


def stacked(loads: list[Load]) -> Load:
    """One load whose fields are arrays, an element a load: for rows of different models.

    loads: at least one. Returns fields of shape (n_loads,).
    """
    return Load(
        **{
            field.name: np.array([getattr(each, field.name) for each in loads], dtype=float)
            for field in fields(Load)
        }
    )

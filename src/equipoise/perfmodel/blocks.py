"""What one block of a transformer asks for a token, by kind: attention, feed-forward, experts, state
space.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from equipoise.spec.transformer import Transformer

BYTES_PER_VALUE = 2  # bf16 and fp16: what activations travel and rest in

_TILE = 64
# Memory-bound work moves a block's token whole: the norm reads and writes it, and dropout and residual read
# two, write one and a mask of a byte.
_WHOLE_PASSES = 5.5
# Values kept of a block's whole token: input of the norm, of the products, and the dropout's mask.
_WHOLE_KEPT = 2.5
# Unfused, a score is written, read and written by softmax, read and written with a mask by dropout, and read.
_SCORE_BYTES = 13.0
# Fewer bits: an input is read in 2 bytes and written in 1, once as it is and once turned.
_QUANTISED_BYTES = 4.0
# Tokens of a chunk within which a state space multiplies matrices instead of scanning.
_CHUNK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one block asks for a token forward; the fields mean what those of `Load` do, for one block.

    spared_bytes: what recomputing operation by operation keeps of it.
    """

    flop: float = 0.0
    num_products: float = 0.0
    again_flop: float = 0.0
    expert_flop: float = 0.0
    num_expert_products: float = 0.0
    routed_bytes: float = 0.0
    attention_flop: float = 0.0
    product_whole_bytes: float = 0.0
    product_shared_bytes: float = 0.0
    quantised_bytes: float = 0.0
    score_flop: float = 0.0
    score_bytes: float = 0.0
    whole_bytes: float = 0.0
    shared_bytes: float = 0.0
    num_kernels: float = 0.0
    num_expert_kernels: float = 0.0
    num_syncs: float = 0.0
    num_sums: float = 1.0
    params: float = 0.0
    expert_params: float = 0.0
    adapter_params: float = 0.0
    kept_whole_bytes: float = 0.0
    kept_shared_bytes: float = 0.0
    kept_score_bytes: float = 0.0
    spared_bytes: float = 0.0
    kv_bytes: float = 0.0


def summed(blocks: Sequence[tuple[float, Block]], layers: float) -> Block:
    """The mean layer of a stack: so many of each block, shared out over the layers."""
    return Block(
        **{
            field.name: sum(count * float(getattr(block, field.name)) for count, block in blocks) / layers
            for field in fields(Block)
        }
    )


def attention(model: Transformer, sequence: int) -> Block:
    """An attention block at the mean context of its sequence.

    Assumes matrix units work on tiles of 64: a head of 96 costs as much as one of 128; causal masks skip what
    they hide where attention is fused, and nothing where it is not.
    Source: Korthikanti et al. 2022, eq. 1-3 (activations kept; 5 a s / h scores); recomputing operation by
    operation keeps every second product and attention's result (torchtitan 2024, section 2.3).
    """
    value = model.value_head_size or model.head_size
    key = model.head_size + (model.rope_head_size if model.kv_rank else 0)
    context = model.attention_context(sequence)
    tiled = _TILE * (-(-key // _TILE) + -(-value // _TILE))
    picking = 0.0
    if model.compressed is not None:
        picking = model.compressed.index_flop_per_token(sequence) / model.num_attention_blocks
    queries, shared = model.heads * (key + value), model.kv_heads * (key + value)
    width = queries + shared
    output = model.heads * value
    # Of queries, keys, values and output the first and third are kept, the second and fourth done again.
    again = 2 * model.hidden * (model.kv_heads * key + output)
    return Block(
        flop=2 * model.attention_params,
        num_products=2.0,
        again_flop=min(again, model.attention_params),
        attention_flop=2 * model.heads * tiled * context + picking,
        product_whole_bytes=2 * model.hidden * BYTES_PER_VALUE,
        product_shared_bytes=width * BYTES_PER_VALUE,
        quantised_bytes=_QUANTISED_BYTES / 2 * (2 * model.hidden + width),
        score_flop=2 * model.heads * tiled * (sequence - context),
        score_bytes=_SCORE_BYTES * model.heads * sequence,
        whole_bytes=_WHOLE_PASSES * model.hidden * BYTES_PER_VALUE,
        shared_bytes=2 * model.heads * key * BYTES_PER_VALUE,
        num_kernels=12.0,
        params=float(model.attention_params),
        adapter_params=float(2 * model.hidden + 2 * output + 2 * model.kv_heads * model.head_size),
        kept_whole_bytes=_WHOLE_KEPT * model.hidden * BYTES_PER_VALUE,
        kept_shared_bytes=width * BYTES_PER_VALUE,
        kept_score_bytes=5.0 * model.heads * sequence,
        spared_bytes=(model.heads * key + model.kv_heads * value + output) * BYTES_PER_VALUE,
        kv_bytes=shared * BYTES_PER_VALUE,
    )


def dense(model: Transformer) -> Block:
    """A dense feed-forward block. Source: as `attention`; 19 s b h values with a four times wider hidden
    layer.
    """
    matrices = 3 if model.gated else 2
    width = matrices * model.ffn_hidden
    return Block(
        flop=2 * model.dense_params,
        num_products=float(matrices),
        again_flop=2 * model.dense_params / matrices,
        product_whole_bytes=2 * model.hidden * BYTES_PER_VALUE,
        product_shared_bytes=width * BYTES_PER_VALUE,
        quantised_bytes=_QUANTISED_BYTES / 2 * (2 * model.hidden + width),
        whole_bytes=_WHOLE_PASSES * model.hidden * BYTES_PER_VALUE,
        shared_bytes=width * BYTES_PER_VALUE,
        num_kernels=5.0,
        params=float(model.dense_params),
        kept_whole_bytes=_WHOLE_KEPT * model.hidden * BYTES_PER_VALUE,
        kept_shared_bytes=width * BYTES_PER_VALUE,
        spared_bytes=model.ffn_hidden * BYTES_PER_VALUE,
    )


def experts(model: Transformer) -> Block:
    """A feed-forward block of experts, with what every token meets of it: router, shared experts,
    projections.

    Assumes a token is copied into the order of experts and back on both sides of its travel, and scores of
    the router are fp32; libraries multiply expert by expert, two products each, and quantise their inputs so.
    Source: Gale et al. 2022 (MegaBlocks); NVIDIA Transformer Engine, grouped linear layers.
    """
    if not model.experts:
        return Block()
    matrices = 3 if model.gated else 2
    narrow = model.expert_latent or model.hidden
    routed = matrices * model.top_k * model.expert_ffn_hidden
    shared = matrices * model.shared_expert_ffn_hidden
    copies = 2 * model.top_k * narrow
    width = routed + shared + copies
    return Block(
        flop=2 * model.shared_params,
        num_products=float(matrices if shared else 0) + (2 if model.expert_latent else 0) + 1,
        again_flop=2 * model.shared_params / matrices,
        expert_flop=2 * model.top_k * model.expert_params,
        num_expert_products=float(matrices),
        routed_bytes=float(narrow * BYTES_PER_VALUE),
        product_whole_bytes=2 * model.hidden * BYTES_PER_VALUE,
        product_shared_bytes=width * BYTES_PER_VALUE,
        quantised_bytes=_QUANTISED_BYTES / 2 * width,
        whole_bytes=_WHOLE_PASSES * model.hidden * BYTES_PER_VALUE,
        shared_bytes=2 * (width + copies / 2) * BYTES_PER_VALUE + 16.0 * model.experts,
        num_kernels=25.0 + (4 if shared else 0),
        num_expert_kernels=4.0 * model.experts,
        num_syncs=1.0,
        params=float(model.shared_params),
        expert_params=float(model.experts * model.expert_params),
        kept_whole_bytes=_WHOLE_KEPT * model.hidden * BYTES_PER_VALUE,
        kept_shared_bytes=width * BYTES_PER_VALUE,
        spared_bytes=(width / matrices) * BYTES_PER_VALUE,
    )


def state(model: Transformer) -> Block:
    """A Mamba-2 block: products before and after a state space that is worked off in chunks.

    Assumes chunks of 128 tokens; states pass through memory in fp32 four times a chunk.
    Source: Dao and Gu 2024, section 6: within chunks scores and their use, between chunks states.
    """
    inner = model.state_heads * model.state_head_size
    mixed = inner + 2 * model.state_groups * model.state_size
    width = 3 * inner + 2 * model.state_groups * model.state_size
    scores = 2 * _CHUNK * (model.state_groups * model.state_size + inner)
    states = 4 * inner * model.state_size
    state_bytes = 16.0 * inner * model.state_size / _CHUNK
    return Block(
        flop=2 * model.state_params,
        num_products=2.0,
        again_flop=float(model.state_params),
        attention_flop=float(scores + states),
        product_whole_bytes=2 * model.hidden * BYTES_PER_VALUE,
        product_shared_bytes=width * BYTES_PER_VALUE,
        quantised_bytes=_QUANTISED_BYTES / 2 * (2 * model.hidden + width),
        whole_bytes=_WHOLE_PASSES * model.hidden * BYTES_PER_VALUE,
        # The convolution, three readings of its result and one writing, and the gated norm.
        shared_bytes=(2 * mixed + 4 * inner + 3 * inner) * BYTES_PER_VALUE + state_bytes,
        num_kernels=15.0,
        params=float(model.state_params),
        kept_whole_bytes=_WHOLE_KEPT * model.hidden * BYTES_PER_VALUE,
        kept_shared_bytes=(width + 2 * inner) * BYTES_PER_VALUE + state_bytes / 4,
        spared_bytes=width * BYTES_PER_VALUE,
    )

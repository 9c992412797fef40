"""FLOP, bytes and parameters of a model, per layer and token, as floats or arrays."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from equipoise.errors import SpecError
from equipoise.spec.strategy import Software
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Workload
from equipoise.units import BF16_BYTES

Numbers: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = float | Numbers

TABLE_BYTES = 4  # per value in a recommender's tables

# Head sizes are padded to multiples of these: on GPUs, and on TPUs, whose registers have 128 lanes.
_TILE, _WIDE_TILE = 64, 128
# Passes of memory-bound work over a block's hidden state: the norm reads and writes it; dropout and residual
# read two, and write one and a 1-byte mask.
_MEMORY_PASSES = 5.5
# Values kept per hidden value of a block: inputs of the norm and of the products, and the 1-byte dropout
# mask.
_KEPT_VALUES = 2.5
# Traffic per score of unfused attention: written, read and written by softmax, read and written with a mask
# by dropout, and read. Without dropout: written, read and written by softmax, and read.
_SCORE_BYTES, _SCORE_BYTES_NO_DROPOUT = 13.0, 8.0
# Traffic of quantising a value: read in 2 bytes, and written in 1 byte, for the value and for its transpose.
_QUANTISED_BYTES = 4.0
# Tokens per chunk, within which a state-space layer multiplies matrices instead of scanning.
_CHUNK = 128
# Memory traffic (bytes) that takes as long as one exponential of a scan.
_SCAN_BYTES = 0.85
# Kernels per layer of a convolutional network: a product, its norm and its activation.
_KERNELS_PER_LAYER = 3
# Traffic per logit: with fp32 softmax, written, widened, reduced twice, replaced by the gradient; or fused,
# read in the forward pass, and read and replaced in the backward pass.
_LOSS_BYTES, _FUSED_LOSS_BYTES = 20.0, 8.0
# Bytes alive per logit: softmax, gradient of the selected logit and gradient of all, each in fp32; or fused,
# logit and gradient in 2 bytes.
_KEPT_LOSS_BYTES, _KEPT_FUSED_LOSS_BYTES = 12.0, 4.0
# In place: logit, softmax and gradient share one fp32 value; the gradient is also held in 2 bytes.
_KEPT_LOSS_BYTES_IN_PLACE = 6.0
# Products per layer that read inputs gathered along the sequence: the first of each block.
_GATHERING_PRODUCTS = 2
# Gradients are sent in 4 bytes where weights are kept in 4, also with mixed precision (Horovod, DDP).
GRADIENT_BYTES = 4.0


class BlockLoad(Struct, frozen=True, kw_only=True):
    """Work and state of a block, or of the mean layer of a stack; fields as in `Load`."""

    dense_flop: Floats = 0.0
    num_dense_products: Floats = 0.0
    num_summed_whole: Floats = 0.0
    num_summed_shared: Floats = 0.0
    again_flop: Floats = 0.0
    expert_flop: Floats = 0.0
    num_expert_products: Floats = 0.0
    routed_bytes: Floats = 0.0
    attention_flop: Floats = 0.0
    product_whole_bytes: Floats = 0.0
    product_shared_bytes: Floats = 0.0
    quantised_bytes: Floats = 0.0
    score_flop: Floats = 0.0
    attention_padding_flop: Floats = 0.0
    score_padding_flop: Floats = 0.0
    score_bytes: Floats = 0.0
    whole_bytes: Floats = 0.0
    shared_bytes: Floats = 0.0
    num_kernels: Floats = 0.0
    num_expert_kernels: Floats = 0.0
    num_routings: Floats = 0.0
    num_sums: Floats = 1.0
    dense_params: Floats = 0.0
    expert_params: Floats = 0.0
    query_value_adapter_params: Floats = 0.0
    adapter_params: Floats = 0.0
    linear_adapter_params: Floats = 0.0
    num_adapted: Floats = 0.0
    num_linear_adapted: Floats = 0.0
    adapter_input_bytes: Floats = 0.0
    kept_whole_bytes: Floats = 0.0
    kept_shared_bytes: Floats = 0.0
    kept_score_bytes: Floats = 0.0
    kept_mask_bytes: Floats = 0.0
    gate_bytes: Floats = 0.0
    gradient_bytes: Floats = 0.0
    spared_shared_bytes: Floats = 0.0
    spared_expert_bytes: Floats = 0.0
    kv_bytes: Floats = 0.0


class Load(BlockLoad, frozen=True, kw_only=True):
    """Work and state of one model at one sequence length; every field a float, or arrays that broadcast.

    A layer is the mean layer of the stack; layers that predict later tokens are spread over all layers.
    Unless stated otherwise, FLOP and bytes are per layer and token of the forward pass, before sharding.
    *_whole_* are not sharded by the tensor axis (norms, residuals, dropout); *_shared_* are.
    Sizes that limit sharding: layers, hidden (0 without a tensor axis), heads, kv_heads, experts. top_k:
    experts per token, from at most top_groups of expert_groups groups (0: from any). sequence: tokens per
    sample (1 where samples are not text: a "token" is then a sample). vocabulary: columns of the output
    matrix.
    dense_flop, num_dense_products: matrix products of every token. num_summed_whole, num_summed_shared: inner
    dimensions of these products, summed over the forward pass and the gradient of its input. again_flop: part
    of dense_flop that selective recomputation repeats. expert_flop, num_expert_products: products of routed
    experts. routed_bytes: sent to one expert. attention_flop: scores and their use. head_flop: the output
    matrix, per token. product_whole_bytes, product_shared_bytes: traffic of products besides weights.
    quantised_bytes: traffic of quantising products' inputs, per pass.
    score_flop, score_bytes: additional work of unfused attention: masked scores, and traffic of scores in
    softmax and dropout. attention_padding_flop, score_padding_flop: additional FLOP where heads are padded to
    128 values. whole_bytes, shared_bytes: traffic of memory-bound work. loss_bytes, fused_loss_bytes: traffic
    of the loss per token, with logits in fp32 and with fused kernels. num_kernels, num_expert_kernels:
    kernels per layer, and per expert in addition. num_routings: routings, after which the host has to learn
    the number of tokens per expert. num_sums: all-reduces over the tensor axis.
    dense_params, expert_params: per layer. embedding_params: all tables. end_params: tables at the fuller end
    of a pipeline. adapter_params: adapters on attention, per layer and unit of LoRA rank;
    query_value_adapter_params: on queries and values only; linear_adapter_params: those on all linear layers
    in addition to adapter_params. num_adapted: matrices of queries, keys and values; num_linear_adapted:
    other linear layers, including attention's output; adapter_input_bytes: inputs of the latter's adapters.
    frozen_share: forward work of frozen auxiliary models, as a multiple of the model's own; frozen_params:
    their weights, where they are not the model's.
    kept_whole_bytes, kept_shared_bytes: activations kept for the backward pass; kept_score_bytes,
    kept_mask_bytes: scores and 1-byte dropout masks kept by unfused attention. gate_bytes: outputs of gated
    activations, kept where the product with the other half is a separate kernel. gradient_bytes: gradients of
    the outputs of a feed-forward block's first products, alive in its backward pass. spared_whole_bytes,
    spared_shared_bytes, spared_expert_bytes: activations kept under selective recomputation, the last those
    of routed experts. kept_loss_bytes, kept_fused_loss_bytes: logits and loss; logits_bytes: logits returned
    by the model. boundary_bytes: activations between two layers. input_bytes: inputs kept under full
    recomputation;
    segment_bytes: activations of a segment of layers recomputed at once, less those of one layer. kv_bytes:
    keys and values. gathered_bytes: inputs gathered along the sequence that tensor-parallel products keep.
    bucket_copies: additional copies of gradients, where gradients are not sharded over several data ranks.
    narrow_sums: 1 where gradient shards are summed in the width of weights. wide_residual_bytes: additional
    activations kept by norms that read fp32; norm_bytes: the same for unfused norms. output_layers: layers to
    which the output matrix is equivalent when pipeline stages are balanced; 0 where stages have equal layers.
    replicated_experts: 1 where only experts' states are replicated over groups. wide_frozen: 1 where shards
    of frozen weights are in fp32. steps_in_backward: 1 where each gradient is applied and freed at once.
    paged_states: 1 where optimizer states are outside the allocator. table_params: a recommender's tables,
    each row on one rank; lookup_bytes: rows read per sample; pooled_bytes: pooled embeddings per sample, sent
    to the sample's rank.
    """

    layers: Floats
    hidden: Floats
    heads: Floats
    kv_heads: Floats
    experts: Floats
    top_k: Floats
    expert_groups: Floats
    top_groups: Floats
    sequence: Floats
    vocabulary: Floats
    head_flop: Floats
    loss_bytes: Floats
    fused_loss_bytes: Floats
    embedding_params: Floats
    end_params: Floats
    frozen_share: Floats
    frozen_params: Floats
    spared_whole_bytes: Floats
    kept_loss_bytes: Floats
    kept_fused_loss_bytes: Floats
    boundary_bytes: Floats
    input_bytes: Floats
    segment_bytes: Floats = 0.0
    gathered_bytes: Floats = 0.0
    bucket_copies: Floats = 0.0
    narrow_sums: Floats = 0.0
    wide_residual_bytes: Floats = 0.0
    norm_bytes: Floats = 0.0
    output_layers: Floats = 0.0
    replicated_experts: Floats = 0.0
    wide_frozen: Floats = 0.0
    steps_in_backward: Floats = 0.0
    paged_states: Floats = 0.0
    logits_bytes: Floats = 0.0
    table_params: Floats = 0.0
    lookup_bytes: Floats = 0.0
    pooled_bytes: Floats = 0.0

    @property
    def params(self) -> Floats:
        """All weights of the model, including layers that predict later tokens."""
        return self.layers * (self.dense_params + self.expert_params) + self.embedding_params

    @property
    def train_flop_per_sample(self) -> Floats:
        """FLOP of one sample's forward and backward pass, without recomputation."""
        layer = self.dense_flop + self.expert_flop + self.attention_flop
        return (3 + self.frozen_share) * self.sequence * (self.layers * layer + self.head_flop)


def transformer_load(model: Transformer, *, sequence: int) -> Load:
    """The load of a transformer on samples of `sequence` tokens.

    Raises SpecError if sequence < 1.
    Assumes 2-byte activations; all blocks, also those of towers and of layers that predict later tokens, are
    spread evenly over the layers.
    Source: parameters and FLOP as in `Transformer`; bytes as in each block.
    """
    if sequence < 1:
        raise SpecError(f"sequence={sequence}; expected at least 1 token per sample")
    layers = float(model.layers + sum(each.model.layers for each in model.towers))
    hidden = float(model.hidden)
    further = model.prediction_layers
    # Shared weights are used once per further prediction, and stored once.
    further_stored = min(1, further) if model.prediction_shared else further
    towers = [(each.tokens_of(sequence), each.model) for each in model.towers]
    blocks = [(tokens, each.repeats, _blocks(each, tokens, 0)) for tokens, each in towers]
    passed = [
        (count, _per_main_token(block, tokens / sequence)) for tokens, _, of in blocks for count, block in of
    ]
    held = [(count / repeats, block) for _, repeats, of in blocks for count, block in of]
    own = [(count / model.repeats, block) for count, block in _blocks(model, sequence, further_stored)]
    stack = mean_layer((*_blocks(model, sequence, further), *passed), layers)
    stored = mean_layer((*own, *held), layers)
    joints = 2 * hidden * hidden * further_stored / layers
    logits = model.predicted_fraction * model.vocabulary * (1 + further)
    tables = float(model.embedding_params + sum(each.model.embedding_params for each in model.towers))
    whole = model.layers * hidden
    whole += sum(tokens / sequence * each.layers * each.hidden for tokens, each in towers)
    # A tensor axis shares out the heads of every layer.
    alike = [each.model for each in model.towers if each.tokens == 0]
    layer = replace(
        stack,
        dense_flop=stack.dense_flop + 4 * hidden * hidden * further / layers,
        dense_params=stored.dense_params + joints,
        expert_params=stored.expert_params,
        query_value_adapter_params=stored.query_value_adapter_params,
        adapter_params=stored.adapter_params,
        linear_adapter_params=stored.linear_adapter_params,
    )
    return Load(
        **asdict(layer),
        layers=layers,
        hidden=hidden,
        heads=float(math.gcd(model.heads, *(each.heads for each in alike))),
        kv_heads=float(math.gcd(model.kv_heads, *(each.kv_heads for each in alike))),
        experts=float(model.experts),
        top_k=float(model.top_k),
        expert_groups=float(model.expert_groups),
        top_groups=float(model.top_groups),
        sequence=float(sequence),
        vocabulary=float(model.vocabulary),
        head_flop=model.logits_flop_per_token * (1 + further),
        loss_bytes=_LOSS_BYTES * logits,
        fused_loss_bytes=_FUSED_LOSS_BYTES * logits,
        embedding_params=tables,
        end_params=tables if model.tied_embeddings else tables / 2,
        frozen_share=0.0,
        frozen_params=0.0,
        spared_whole_bytes=whole / layers * BF16_BYTES,
        kept_loss_bytes=_KEPT_LOSS_BYTES * logits,
        kept_fused_loss_bytes=_KEPT_FUSED_LOSS_BYTES * logits,
        logits_bytes=BF16_BYTES * logits,
        boundary_bytes=hidden * BF16_BYTES,
        input_bytes=hidden * BF16_BYTES,
    )


# Memory behaviour of a software or of a user's code that differs from the default, by name in
# `Software.holds`: the fields of a load that it changes.
_WAYS: Mapping[str, Callable[[Load], dict[str, Floats]]] = {
    # Tensor-parallel products keep their inputs gathered along the sequence, instead of gathering them again:
    # PyTorch, torch.distributed.tensor.parallel (a linear layer saves the input that it was given);
    # Megatron-LM, tensor_parallel/layers.py, gathers it again.
    "gathered_inputs": lambda load: {"gathered_bytes": _GATHERING_PRODUCTS * load.boundary_bytes},
    # Logits in fp32 are replaced by their gradient: Megatron-LM, tensor_parallel/cross_entropy.py.
    "loss_in_place": lambda load: {
        "kept_loss_bytes": load.kept_loss_bytes * (_KEPT_LOSS_BYTES_IN_PLACE / _KEPT_LOSS_BYTES)
    },
    # Gradients are copied into buckets to be summed: PyTorch, DistributedDataParallel
    # (`gradient_as_bucket_view`, off by default, saves the size of all gradients).
    "bucket_copies": lambda _: {"bucket_copies": 1.0},
    # A fused loss kernel works in place on logits widened to fp32; the 16-bit logits are also returned:
    # huggingface/transformers, loss/loss_utils.py (ForCausalLMLoss); linkedin/Liger-Kernel,
    # ops/cross_entropy.py (gradients in place of logits).
    "widened_logits": lambda load: {
        "kept_fused_loss_bytes": load.logits_bytes * (_KEPT_LOSS_BYTES_IN_PLACE / BF16_BYTES)
    },
    # Gradient shards are summed in the width in which weights are gathered: huggingface/accelerate,
    # dataclasses.py (FullyShardedDataParallelPlugin.set_mixed_precision).
    "narrow_sums": lambda _: {"narrow_sums": 1.0},
    # Residuals and inputs of norms are in fp32, where fp32 weights are cast when they are used: PyTorch,
    # torch.amp (embeddings and sums have the type of their inputs; products 16 bits).
    "wide_residual": lambda load: {"wide_residual_bytes": load.kept_whole_bytes / _KEPT_VALUES},
    # Unfused norms widen their inputs, and keep the widened inputs and their outputs:
    # huggingface/transformers, LlamaRMSNorm.forward (of gated models).
    "norms_as_written": lambda load: {
        "norm_bytes": np.greater(load.gate_bytes, 0) * (load.kept_whole_bytes / _KEPT_VALUES)
    },
    # Experts' states are replicated over groups of data ranks; others are sharded over all data ranks.
    "replicated_experts": lambda _: {"replicated_experts": 1.0},
    # Shards of frozen weights are in fp32, like those of trained ones, and are narrowed when gathered:
    # PyTorch FSDP2, MixedPrecisionPolicy (param_dtype is that of what is gathered).
    "wide_frozen": lambda _: {"wide_frozen": 1.0},
    # Unfused attention without dropout keeps only the output of softmax.
    "no_dropout": lambda load: {
        "score_bytes": load.score_bytes * (_SCORE_BYTES_NO_DROPOUT / _SCORE_BYTES),
        "kept_score_bytes": load.kept_score_bytes / 2,
        "kept_mask_bytes": 0.0,
    },
    # Outputs of frozen models were computed in advance, so those models are not loaded.
    "cached_inputs": lambda _: {"frozen_params": 0.0, "frozen_share": 0.0},
    # Each weight is updated as soon as its gradient is computed, which is then freed: PyTorch,
    # `register_post_accumulate_grad_hook` (tutorial on optimizer steps in the backward pass).
    "steps_in_backward": lambda _: {"steps_in_backward": 1.0},
    # Optimizer states are outside the allocator, in memory that the driver pages to the host: Dettmers et al.
    # 2023, section 3 (paged optimizers); bitsandbytes, functional.py (get_paged).
    "paged_states": lambda _: {"paged_states": 1.0},
    # Pipeline stages are balanced by the weights of layers and of the output matrix: huggingface/nanotron,
    # models/base.py (build_model) and models/llama.py (get_block_compute_costs).
    "stages_by_cost": lambda load: {
        "output_layers": load.vocabulary * load.hidden / (load.dense_params + load.expert_params)
    },
}


def held_as(load: Load, ways: Iterable[str]) -> Load:
    """The load with some memory behaviours applied. Raises SpecError for an unknown one."""
    changed: dict[str, Floats] = {}
    for way in ways:
        if way not in _WAYS:
            raise SpecError(f"way to hold a load {way!r}; expected one of {', '.join(_WAYS)}")
        changed |= _WAYS[way](load)
    return replace(load, **changed)


def held_by(load: Load, software: Software | None, further: Iterable[str] = ()) -> Load:
    """The load with the memory behaviours of a software and further ones applied."""
    return held_as(load, {*(() if software is None else software.holds), *further})


def workload_load(workload: Workload) -> Load:
    """The load of a workload: from its transformer, or for other models from its figures per sample.

    Raises SpecError where neither is known.
    Assumes other models have equal layers with one weight matrix each; every value kept for the backward pass
    was written once and read once by memory-bound work, and once by a product. Under full recomputation they
    are cut into the segments that keep least: the inputs of all segments and the activations of one.
    Work after a repeated product, as at each time step of a recurrent layer, is launched with the product.
    Source: figures of the workload; kernels as frameworks launch them for convolution, norm and activation;
    Appleyard et al. 2016, arXiv 1604.01946 (steps in time wait for each other, gates are one kernel);
    Chen et al. 2016, section 3 (segments: the square root of what is kept over what passes between them).
    """
    frozen = {"frozen_share": workload.frozen_share, "frozen_params": workload.frozen_params or 0.0}
    if workload.transformer is not None and workload.computed_tokens is not None:
        return replace(transformer_load(workload.transformer, sequence=workload.computed_tokens), **frozen)
    flop, params, kept = (
        workload.forward_flop_per_sample,
        workload.params,
        workload.activation_bytes_per_sample,
    )
    if workload.lacks or flop is None or params is None or kept is None:
        raise SpecError(
            f"workload {workload.slug!r} cannot be planned without {', '.join(workload.lacks)}; "
            "state a model with these figures per sample, or the sizes of a transformer, with --workloads"
        )
    layers, attention = float(workload.layers or 1), float(workload.adapter_width or 0)
    boundary = workload.boundary_bytes_per_sample or kept / layers
    segments = min(layers, max(1.0, math.sqrt(kept / boundary)))
    zeros = dict.fromkeys(Load.__struct_fields__, 0.0)
    stated = {
        "layers": layers,
        "sequence": 1.0,
        "dense_flop": flop / layers,
        "num_dense_products": workload.products_per_layer,
        "product_whole_bytes": kept / layers,
        "whole_bytes": 2 * kept / layers,
        "quantised_bytes": 2 * kept / layers,
        "num_kernels": _KERNELS_PER_LAYER + workload.products_per_layer - 1.0,
        "dense_params": params / layers,
        "adapter_params": attention / layers,
        "linear_adapter_params": max(0.0, (workload.linear_adapter_width or 0.0) - attention) / layers,
        "kept_whole_bytes": kept / layers,
        "spared_whole_bytes": kept / layers,
        "boundary_bytes": boundary,
        "input_bytes": segments * boundary / layers,
        "segment_bytes": kept / segments - kept / layers,
    }
    return Load(**(zeros | stated | frozen | _tables(workload)))


def _tables(workload: Workload) -> dict[str, float]:
    """Fields of a recommender's tables: rows in fp32; pooled embeddings are sent in 2 bytes."""
    tables, width = workload.embedding_tables or 0, workload.embedding_width or 0
    return {
        "table_params": workload.embedding_params or 0.0,
        "lookup_bytes": float(TABLE_BYTES * width * (workload.embedding_lookups_per_sample or 0)),
        "pooled_bytes": float(BF16_BYTES * width * tables),
    }


def stacked(loads: list[Load]) -> Load:
    """One load whose fields are arrays with one element per load, for rows of different models.

    loads: at least one. Returns fields of shape (n_loads,).
    """
    return Load(
        **{
            name: np.array([getattr(each, name) for each in loads], dtype=float)
            for name in Load.__struct_fields__
        }
    )


def mean_layer(blocks: Sequence[tuple[float, BlockLoad]], layers: float) -> BlockLoad:
    """The mean layer of a stack: the blocks, each times its count, divided by the number of layers."""
    return BlockLoad(
        **{
            name: sum(count * float(getattr(block, name)) for count, block in blocks) / layers
            for name in BlockLoad.__struct_fields__
        }
    )


def _per_main_token(block: BlockLoad, share: float) -> BlockLoad:
    """A tower's block per token of the main stack; the tower has `share` times as many tokens.

    Counts of kernels and products are per micro-batch, so they do not scale with tokens.
    """
    per_token = (name for name in BlockLoad.__struct_fields__ if not name.startswith("num_"))
    return replace(block, **{name: share * float(getattr(block, name)) for name in per_token})


def _blocks(model: Transformer, sequence: int, further: int) -> tuple[tuple[float, BlockLoad], ...]:
    """Count and block of each kind, including `further` layers that predict later tokens."""
    routed = model.num_expert_blocks > 0
    return (
        (model.num_attention_blocks + further, _attention_block(model, sequence)),
        (model.cross_layers, _attention_block(model, sequence, model.cross_tokens)),
        (model.num_dense_blocks + (0 if routed else further), _dense_block(model)),
        (model.num_expert_blocks + (further if routed else 0), _expert_block(model)),
        (model.state_layers, _state_block(model)),
    )


def _block(model: Transformer, width: float) -> BlockLoad:
    """Traffic and kept activations of a block whose products turn hidden values into `width` values per
    token.

    Assumes inputs, outputs of products and of norms are kept unchanged, and each is read and written once.
    """
    return BlockLoad(
        num_summed_whole=2.0 * model.hidden,
        num_summed_shared=float(width),
        product_whole_bytes=2 * model.hidden * BF16_BYTES,
        product_shared_bytes=width * BF16_BYTES,
        quantised_bytes=_QUANTISED_BYTES / 2 * (2 * model.hidden + width),
        whole_bytes=_MEMORY_PASSES * model.hidden * BF16_BYTES,
        kept_whole_bytes=_KEPT_VALUES * model.hidden * BF16_BYTES,
        kept_shared_bytes=width * BF16_BYTES,
    )


def _padded_to_tiles(tile: int, *sizes: int) -> int:
    """The sum of sizes, each rounded up to whole tiles."""
    return tile * sum(-(-each // tile) for each in sizes)


def _attention_block(model: Transformer, sequence: int, cross_tokens: int = 0) -> BlockLoad:
    """An attention block at the mean context of its sequence, or a cross-attention block on another stack.

    Assumes matrix units work on tiles of 64, or of 128 with the padding: a head of 96 costs as much as one of
    128; causal masks save work in fused attention, and none in unfused attention.
    Source: Korthikanti et al. 2022, eq. 1-3 (activations kept; 5 a s / h scores); selective recomputation
    keeps every second product and attention's result (torchtitan 2024, section 2.3).
    """
    value = model.value_head_size or model.head_size
    key = model.head_size + (model.rope_head_size if model.kv_rank else 0)
    context = float(cross_tokens) or model.attention_context(sequence)
    most = cross_tokens or sequence
    keys_per_token = most / sequence  # computed by this block
    tiled = _padded_to_tiles(_TILE, key, value)
    padding = _padded_to_tiles(_WIDE_TILE, key, value) - tiled
    picking = 0.0
    if model.compressed is not None:
        picking = model.compressed.index_flop_per_token(sequence) / model.num_attention_blocks
    queries, shared = model.heads * (key + value), keys_per_token * model.kv_heads * (key + value)
    width = queries + shared
    output = model.heads * value
    # Queries and values are kept; keys and output are recomputed.
    again = 2 * model.hidden * (model.kv_heads * key + output)
    params, made = model.attention_params, model.kv_params
    if cross_tokens:
        params, made = model.cross_params, model.cross_kv_params
    return replace(
        _block(model, width),
        dense_flop=2 * (params + (keys_per_token - 1) * made),
        num_dense_products=2.0,
        again_flop=min(again, params),
        attention_flop=2 * model.heads * tiled * context + picking,
        score_flop=2 * model.heads * tiled * (most - context),
        attention_padding_flop=2 * model.heads * padding * context,
        score_padding_flop=2 * model.heads * padding * (most - context),
        score_bytes=_SCORE_BYTES * model.heads * most,
        shared_bytes=2 * model.heads * key * BF16_BYTES,
        num_kernels=12.0,
        dense_params=float(params),
        query_value_adapter_params=float(model.query_value_adapter_width),
        adapter_params=float(model.attention_adapter_width),
        linear_adapter_params=2.0 * model.hidden,
        num_adapted=3.0,
        num_linear_adapted=1.0,
        kept_score_bytes=2.0 * BF16_BYTES * model.heads * most,
        kept_mask_bytes=1.0 * model.heads * most,
        spared_shared_bytes=(model.heads * key + model.kv_heads * value + output) * BF16_BYTES,
        kv_bytes=shared * BF16_BYTES,
    )


def _dense_block(model: Transformer) -> BlockLoad:
    """A dense feed-forward block.

    Source: as `_attention_block`; 19 s b h values with a four times wider hidden layer.
    """
    matrices = 3 if model.gated else 2
    width = matrices * model.ffn_hidden
    return replace(
        _block(model, width),
        dense_flop=2 * model.dense_params,
        num_dense_products=float(matrices),
        again_flop=2 * model.dense_params / matrices,
        shared_bytes=width * BF16_BYTES,
        num_kernels=5.0,
        dense_params=float(model.dense_params),
        linear_adapter_params=float(model.dense_adapter_width),
        num_linear_adapted=float(matrices),
        adapter_input_bytes=float(((matrices - 1) * model.hidden + model.ffn_hidden) * BF16_BYTES),
        gate_bytes=float((matrices - 2) * model.ffn_hidden * BF16_BYTES),
        gradient_bytes=float((matrices - 1) * model.ffn_hidden * BF16_BYTES),
        spared_shared_bytes=model.ffn_hidden * BF16_BYTES,
    )


def _expert_block(model: Transformer) -> BlockLoad:
    """A feed-forward block of experts, with the parts used by every token: router, shared experts,
    projections.

    Assumes a token is permuted into the order of experts and back on both ends of its transfer, and router
    scores are in fp32; libraries multiply, and quantise inputs, expert by expert with two products each.
    Source: Gale et al. 2022 (MegaBlocks); NVIDIA Transformer Engine, grouped linear layers.
    """
    if not model.experts:
        return BlockLoad()
    matrices = 3 if model.gated else 2
    narrow = model.expert_latent or model.hidden
    routed = matrices * model.top_k * model.expert_ffn_hidden
    shared = matrices * model.shared_expert_ffn_hidden
    copies = 2 * model.top_k * narrow
    width = routed + shared + copies
    return replace(
        _block(model, width),
        dense_flop=2 * model.shared_params,
        num_dense_products=float(matrices if shared else 0) + (2 if model.expert_latent else 0) + 1,
        num_summed_whole=2.0 * model.hidden if shared else 0.0,
        num_summed_shared=float(shared),
        again_flop=2 * model.shared_params / matrices,
        expert_flop=2 * model.top_k * model.expert_params,
        num_expert_products=float(matrices),
        routed_bytes=float(narrow * BF16_BYTES),
        quantised_bytes=_QUANTISED_BYTES / 2 * width,
        shared_bytes=2 * (width + copies / 2) * BF16_BYTES + 16.0 * model.experts,
        num_kernels=4.0 if shared else 0.0,
        num_expert_kernels=4.0,
        num_routings=1.0,
        dense_params=float(model.shared_params),
        expert_params=float(model.experts * model.expert_params),
        gate_bytes=(matrices - 2) / matrices * (routed + shared) * BF16_BYTES,
        gradient_bytes=(matrices - 1) / matrices * (routed + shared) * BF16_BYTES,
        spared_shared_bytes=(shared / matrices) * BF16_BYTES,
        spared_expert_bytes=((routed + copies) / matrices) * BF16_BYTES,
    )


def _state_block(model: Transformer) -> BlockLoad:
    """A Mamba-2 block, whose state-space layer between two products works in chunks; or a Mamba-1 block.

    Assumes chunks of 128 tokens; states pass through memory in fp32 four times per chunk. Mamba-1 scans
    without matrix products: one exponential per channel and state, at 16 per clock and multiprocessor, takes
    as long as 0.8 (A100) to 0.9 bytes (H100) of memory traffic.
    Source: Dao and Gu 2024, section 6: scores and their use within chunks, states between chunks; CUDA C++
    programming guide, throughput of arithmetic instructions.
    """
    inner = model.state_heads * model.state_head_size
    mixed = inner + 2 * model.state_groups * model.state_size
    width = 3 * inner + 2 * model.state_groups * model.state_size
    scores = 2 * _CHUNK * (model.state_groups * model.state_size + inner)
    states = 4 * inner * model.state_size
    state_bytes = 16.0 * inner * model.state_size / _CHUNK
    if model.state_rank:
        width = 3 * inner + model.state_rank + 2 * model.state_size
        scores, states, state_bytes = 0, 0, _SCAN_BYTES * inner * model.state_size
    if model.state_width:
        width = model.state_width
    kept_bytes = 0.0 if model.state_rank else state_bytes / 4
    return replace(
        _block(model, width),
        dense_flop=2 * model.state_params,
        num_dense_products=4.0 if model.state_rank else 2.0,
        again_flop=float(model.state_params),
        attention_flop=float(scores + states),
        # The convolution, three reads and one write of its result, and the gated norm.
        shared_bytes=(2 * mixed + 4 * inner + 3 * inner) * BF16_BYTES + state_bytes,
        num_kernels=15.0,
        dense_params=float(model.state_params),
        linear_adapter_params=float(model.state_adapter_width),
        num_linear_adapted=float(len(model.state_inputs)),
        adapter_input_bytes=float(sum(model.state_inputs) * BF16_BYTES),
        kept_shared_bytes=(width + 2 * inner) * BF16_BYTES + kept_bytes,
        spared_shared_bytes=width * BF16_BYTES,
    )

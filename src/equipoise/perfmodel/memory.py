"""Memory of the fullest rank, by kind, and how many strategies fit. Bytes only; nothing here knows a time."""

from collections.abc import Callable, Hashable, Sequence
from operator import mul

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.perfmodel.compute import (
    EAGER,
    NF4_BYTES,
    has_further_adapters,
    loss_is_fused,
    tokens_per_rank,
    value_bytes,
    width_ratio,
)
from equipoise.perfmodel.layouts import (
    ALL_LINEAR,
    CODES,
    DUALPIPE,
    DUALPIPE_V,
    FULL_TRAINING,
    MESH_ELEMENTS,
    OFFLOAD_ALL,
    OFFLOAD_NONE,
    ONE_OVERLAP,
    QLORA,
    QUERY_VALUE,
    RECOMPUTE_FULL,
    RECOMPUTE_SELECTIVE,
    Codes,
    LayoutGroup,
    Layouts,
    StrategyGrid,
    once_for_all,
)
from equipoise.perfmodel.load import TABLE_BYTES, Load, Numbers
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.space import LAYER_OPTIONS, STATE_OPTIONS, Combinations
from equipoise.spec.strategy import AXES, WEIGHTS_SHARDED
from equipoise.units import FP32_BYTES

# Bytes of moments a trained parameter has; with 2-byte weights a 4-byte master copy comes on top, unless all
# is kept in 2 bytes (Micikevicius et al. 2018; Dettmers et al. 2022 for 8-bit moments).
_MOMENTS = {"adam": 8.0, "adam_8bit": 2.0, "sgd": 4.0}
_EIGHT_BIT = CODES["optimizer"].index("adam_8bit")
_ADAM = CODES["optimizer"].index("adam")
_MOMENT_BYTES = np.array([_MOMENTS[name] for name in CODES["optimizer"]])
_FP16 = CODES["precision"].index("fp16")
# Of a gradient that several micro-batches add to: the width in which FSDP2 reduces it (PyTorch, FSDPParam,
# to_accumulated_grad_if_needed; reduce_dtype of torchtitan, accelerate and Automodel: fp32).
_SUMMED_BYTES = 4.0
# Of logits where the loss is a cross-entropy as written: themselves, their log-probabilities, the gradient of
# these and their own (torch.nn.functional.cross_entropy and its way back).
_PLAIN_LOSS_TENSORS = 4.0
# Of what is gathered, how many lie there at once: what is at work, and the next or the result.
_GATHERED = 2
# Layers whose offloaded activations lie on the accelerator: the one at work, and the one under way.
_TRAVELLING = 2
# State options that decide what is kept of a micro-batch; the others decide states. What lora_targets keep is
# the same in all of a search, which takes one value of them.
_OF_BATCHES = ("interleave", "schedule")
# Those that decide how large gradients are, and what an optimizer makes anew of them.
_OF_GRADIENTS = ("master_weights", "trained", "optimizer", "gradient_copies")
# Options that change no byte of memory.
_NO_MEMORY = ("tp_overlap", "compression", "compression_rank", "sync_period")
_OF_LAYERS = tuple(name for name in LAYER_OPTIONS if name not in _NO_MEMORY)
_OF_STATES = tuple(name for name in STATE_OPTIONS if name not in {*_OF_BATCHES, *_NO_MEMORY})
# Sizes that decide what activations take, beside the micro-batches that are alive, and what states take.
_OF_ACTIVATIONS = ("tp", "cp", "pp", "microbatch_samples")
_OF_SHARES = (*AXES, "dp_replicate")


class RankMemory(Struct, frozen=True, kw_only=True):
    """Bytes on the fullest rank, by kind; arrays that broadcast.

    fixed: of context, libraries and communicators. reserved: what the allocator holds of all other kinds:
    what most tools report.
    """

    weights: Numbers
    gradients: Numbers
    optimizer: Numbers
    activations: Numbers
    buffers: Numbers
    fixed: Numbers
    reserved: Numbers

    @property
    def allocated(self) -> Numbers:
        """Bytes that tensors hold at the fullest moment."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers

    @property
    def needed(self) -> Numbers:
        """Bytes the accelerator must have: those reserved, and those outside of the allocator."""
        return self.reserved + self.fixed


class Shards(Struct, frozen=True, kw_only=True):
    """Parameters of one rank of the fullest stage, before and after sharding over data ranks.

    dense, experts: weights in the rank's tensor or expert shard; tables: of the dense ones, those of
    embeddings and the output matrix. dense_ranks, expert_ranks: how many data ranks share one copy.
    dense_trained, expert_trained: of these, how many are trained.
    """

    dense: Numbers
    tables: Numbers
    experts: Numbers
    dense_ranks: Numbers
    expert_ranks: Numbers
    dense_trained: Numbers
    expert_trained: Numbers


def shards(load: Load, grid: StrategyGrid) -> Shards:
    """Parameters by rank on the fullest pipeline stage.

    Assumes tensor and expert shards are even, and that experts are spread over ep ranks whole. With DualPipe
    a rank holds two stages, and two ranks the same ones; with it and its V, one rank holds both ends.
    """
    ends = (grid.pp > 1) & (grid.schedule < DUALPIPE)
    tables = np.where(ends, load.end_params, load.embedding_params) / grid.tp
    copies = np.where(grid.schedule == DUALPIPE, 2.0, 1.0)
    stages = _stage_layers(load, grid)
    layer = load.dense_params / grid.tp + load.expert_params / grid.ep
    # An end has its tables, a stage between the ends all its layers.
    is_between = (stages.between - stages.first) * layer > tables
    tables = np.where(is_between, 0.0, tables)
    layers = np.where(is_between, stages.between, stages.first) * copies
    dense = layers * load.dense_params / grid.tp + tables
    experts = layers * load.expert_params / grid.ep
    all_ranks = grid.dp * grid.cp * copies
    ranks = all_ranks / grid.dp_replicate
    full = grid.trained == FULL_TRAINING
    adapters = layers * (grid.lora_rank * _adapter_width(load, grid)) / grid.tp
    return Shards(
        dense=dense,
        tables=tables,
        experts=experts,
        dense_ranks=np.where(np.greater(load.replicated_experts, 0), all_ranks, ranks),
        expert_ranks=ranks * grid.tp / grid.ep,
        dense_trained=np.where(full, dense, adapters),
        expert_trained=np.where(full, experts, 0.0),
    )


class _StageLayers(Struct, frozen=True, kw_only=True):
    """Layers of a pipeline's stages: of its ends, and of those between."""

    first: Numbers
    between: Numbers


def _stage_layers(load: Load, grid: StrategyGrid) -> _StageLayers:
    """Layers of stages: as many each; or, where these do not share out but two more would, one fewer at the
    ends, which have the tables; or, of stages that are shared out by cost, those of the first.

    Assumes otherwise the mean where layers do not share out: the fullest has more (of 36 on 8 stages 5,
    counted as 4.5).
    Source: Llama team 2024, section 3.3.2 (a layer less on the first and the last stage); Qi et al. 2024,
    table 3; BigScience 2022 (BLOOM: 70 layers and its tables on 12 stages, as 72).
    """
    layers = np.asarray(load.layers)
    even = layers / grid.pp
    if np.any(load.output_layers):
        share = np.floor((layers + load.output_layers) / grid.pp) + 1
        is_shared = np.greater(load.output_layers, 0) & (grid.pp > 1)
        even = np.where(is_shared, np.minimum(layers, share), even)
    is_whole = (np.mod(layers, grid.pp) == 0) | (np.mod(layers + 2, grid.pp) > 0)
    if np.all(is_whole):
        return _StageLayers(first=even, between=even)
    lighter = ~is_whole & (grid.schedule < DUALPIPE) & (grid.interleave <= 1) & np.greater(load.hidden, 0)
    most = (layers + 2) / grid.pp
    return _StageLayers(first=np.where(lighter, most - 1, even), between=np.where(lighter, most, even))


def _adapter_width(load: Load, grid: StrategyGrid) -> Numbers:
    """Weights of a layer's adapters, by rank, where any are trained."""
    adapted = grid.adapted_layers
    attention = np.where(adapted == QUERY_VALUE, load.query_value_adapter_params, load.adapter_params)
    return np.asarray(attention + np.where(adapted == ALL_LINEAR, load.linear_adapter_params, 0.0))


def state_bytes_per_param(grid: StrategyGrid) -> Numbers:
    """Bytes of optimizer state a trained parameter has, the master copy included.

    Without one, moments of 32 bits are kept as wide as the weights (torch.optim on a bf16 model).
    """
    is_narrow = value_bytes(grid) < FP32_BYTES
    master = np.where(is_narrow & (grid.master_weights > 0), FP32_BYTES, 0.0)
    halved = is_narrow & (grid.master_weights <= 0) & (grid.optimizer != _EIGHT_BIT)
    return np.asarray(_MOMENT_BYTES[grid.optimizer] * np.where(halved, 0.5, 1.0) + master)


def gradient_bytes_per_param(grid: StrategyGrid) -> Numbers:
    """Bytes of a gradient: 4 but for fp16, without a master copy, and for bf16 next to fp32 shards.

    With weights sharded the master copy is the weight: 16 bytes in all either way, counted as 2, 2 and 12.
    Source: Megatron-LM documentation (bf16 weights, fp32 gradients: 18 bytes); Rajbhandari et al. 2020 (fp16:
    16).
    """
    is_kept_narrow = (grid.precision == _FP16) | (grid.master_weights <= 0)
    halved = is_kept_narrow | (grid.held_stage >= WEIGHTS_SHARDED)
    return np.asarray(np.where(halved, value_bytes(grid), FP32_BYTES))


def holds_fp32_tables(grid: StrategyGrid) -> NDArray[np.bool_]:
    """Where tables and norms next to 4-bit weights are in fp32, and with them what layers pass on.

    Source: huggingface/peft, `prepare_model_for_kbit_training` ("cast all non INT8 parameters to fp32"); code
    with kernels of its own (Unsloth) keeps 16 bits.
    """
    return np.asarray((grid.trained == QLORA) & (grid.implementation == EAGER))


class HeldMemory(Struct, frozen=True, kw_only=True):
    """Bytes that no batch changes: of states, and of what is gathered of weights that lie elsewhere."""

    weights: Numbers
    gradients: Numbers
    optimizer: Numbers
    gathered: Numbers

    @property
    def total(self) -> Numbers:
        """Bytes of all of them."""
        return self.weights + self.gradients + self.optimizer + self.gathered


def memory(
    load: Load,
    grid: StrategyGrid,
    parameters: Parameters,
    *,
    host_bytes: Numbers | float = np.inf,
    peer_ranks: Numbers | float = np.inf,
) -> RankMemory:
    """Bytes by kind on the fullest rank, whose host has room for so many. peer_ranks: as `Machine` has it.

    Assumes 1F1B: the first stage keeps min(micro-batches, pp) of them alive, interleaving (1 + (pp - 1) / (pp
    v)) as many; ZeRO shards optimizer states, gradients and weights in this order, and a pipeline holds the
    latter two whole from its first micro-batch to its last (`held_stage`).
    Source: Rajbhandari et al. 2020 (states); Korthikanti et al. 2022 (activations); Narayanan et al. 2021
    (1F1B).
    """
    held = held_memory(load, grid)
    activations = _beside_states(load, grid, parameters, host_bytes)
    sent = sent_bytes(load, grid)
    return RankMemory(
        weights=held.weights,
        gradients=held.gradients,
        optimizer=held.optimizer,
        activations=activations,
        buffers=held.gathered + sent,
        fixed=np.asarray(parameters.fixed_bytes + communicator_bytes(grid, parameters, peer_ranks)),
        reserved=(activations + sent + _before_slack(held, grid, parameters)) * parameters.reserved_slack,
    )


def _before_slack(held: HeldMemory, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Bytes of states and of what is gathered that, with the allocator's slack, are what it reserves.

    Assumes none over frozen weights, which are allocated once and never freed.
    """
    frozen = np.where(grid.trained == FULL_TRAINING, 0.0, held.weights)
    return np.asarray(held.total - frozen * (1.0 - 1.0 / parameters.reserved_slack))


def held_memory(load: Load, grid: StrategyGrid) -> HeldMemory:
    """Bytes of states, and of what is gathered, on the fullest rank."""
    per_rank = shards(load, grid)
    held = grid.held_stage
    by_stage = [np.where(held >= stage, 1 / per_rank.dense_ranks, 1.0) for stage in (1, 2, 3)]
    experts_by_stage = [np.where(held >= stage, 1 / per_rank.expert_ranks, 1.0) for stage in (1, 2, 3)]
    width = value_bytes(grid)
    # What is quantised are linear layers: tables keep their width (transformers, bitsandbytes), or widen.
    is_wide = np.greater(load.wide_frozen, 0) & (held >= WEIGHTS_SHARDED) & (grid.master_weights > 0)
    stored = np.where(is_wide & (grid.trained != FULL_TRAINING), FP32_BYTES, width)
    frozen = np.where(grid.trained == QLORA, NF4_BYTES, stored)
    tables = np.where(holds_fp32_tables(grid), FP32_BYTES, stored)
    dense = frozen * (per_rank.dense - per_rank.tables) + tables * per_rank.tables
    resident = np.where(grid.offload == OFFLOAD_ALL, 0.0, 1.0)
    weights = resident * (dense * by_stage[2] + frozen * per_rank.experts * experts_by_stage[2]) + np.where(
        grid.trained == FULL_TRAINING, 0.0, width * per_rank.dense_trained
    )
    # Frozen models that run with it are stored as its weights are.
    split = np.where(np.greater(load.hidden, 0), grid.tp * grid.pp, 1.0)
    weights = weights + width * resident * by_stage[2] * load.frozen_params / split
    # A row of a recommender's table lies on one rank; its optimizer keeps one value (Mudigere et al. 2022).
    weights = weights + TABLE_BYTES * load.table_params / grid.num_accelerators
    gradients = gradient_bytes_per_param(grid) * (
        per_rank.dense_trained * by_stage[1] + per_rank.expert_trained * experts_by_stage[1]
    )
    if np.any(grid.gradient_copies):
        twice = _twofold_bytes(grid, by_stage) * per_rank.dense_trained
        twice = twice + _twofold_bytes(grid, experts_by_stage) * per_rank.expert_trained
        gradients = np.where((grid.gradient_copies > 0) & (width < FP32_BYTES), twice, gradients)
    if np.any(whole := grid.adds_up_whole):
        trained = per_rank.dense_trained + per_rank.expert_trained
        gradients = np.where(whole, _SUMMED_BYTES * trained, gradients)
    if np.any(load.bucket_copies):
        is_summed_whole = (held == 0) & (grid.dp * grid.cp > 1)
        gradients = gradients * (1.0 + is_summed_whole * load.bucket_copies)
    # FSDP moves shards of gradients to the host as they come (PyTorch, CPUOffloadPolicy).
    is_gone = (grid.offload == OFFLOAD_ALL) & (held >= WEIGHTS_SHARDED)
    gradients = np.where(is_gone | np.greater(load.steps_in_backward, 0), 0.0, gradients)
    is_here = (grid.offload == OFFLOAD_NONE) & ~np.greater(load.paged_states, 0)
    states = np.where(is_here, state_bytes_per_param(grid), 0.0)
    optimizer = states * (
        per_rank.dense_trained * by_stage[0] + per_rank.expert_trained * experts_by_stage[0]
    )
    return HeldMemory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        gathered=_gathered_bytes(load, grid, per_rank),
    )


def communicator_bytes(
    grid: StrategyGrid, parameters: Parameters, peer_ranks: Numbers | float = np.inf
) -> Numbers:
    """Bytes that communicators have outside of the allocator: one for each axis with several ranks.

    Assumes that beyond two hosts more ranks take no more, that each axis has a communicator of its own, and
    that ranks which only meet in their host have few channels, whose buffers are there.
    Source: NVIDIA/nccl, issue 864 (memory by communicators and channels, and what links need); NCCL,
    transport/shm.cc.
    """
    axes = (grid.dp, grid.tp, grid.pp, grid.cp, grid.ep)
    each = parameters.communicator_bytes * np.greater(peer_ranks, 1)
    return np.asarray(each * sum((axis > 1) * 1.0 for axis in axes))


def _twofold_bytes(grid: StrategyGrid, by_stage: Sequence[Numbers]) -> Numbers:
    """Bytes of a weight's gradients where those of 16 bits and of fp32 lie next to each other.

    by_stage: the share of a rank of what each ZeRO stage shards.
    Assumes that fp32 copies are of what the optimizer steps: a rank's share, made of a flat copy in 16 bits;
    of a pipeline in bf16, whose micro-batches add up in fp32, all; where weights are sharded, nothing is left
    of 16 bits.
    Source: Megatron-LM, docs, distributed optimizer (fp16 weights and gradients: 20 bytes a weight);
    DeepSpeed, stage_1_and_2.py (`step` flattens `averaged_gradients` and widens that) and bf16_optimizer.py
    (fp32_groups_gradients); `estimate_zero2_model_states_mem_needs`: 4 + 16 / n bytes a weight without the
    flat copy, and of `estimate_zero3_model_states_mem_needs` 18 / n.
    """
    flat = np.where(grid.zero_stage > 0, 2.0, 0.0)
    shared = 2.0 * by_stage[1] + (flat + 4.0) * by_stage[0]
    of_pipeline = (grid.pp > 1) & (grid.precision != _FP16)
    unsharded = np.where(of_pipeline, 6.0 * by_stage[1], shared)
    return np.asarray(np.where(grid.held_stage >= WEIGHTS_SHARDED, 4.0 * by_stage[2], unsharded))


class KeptActivations(Struct, frozen=True, kw_only=True):
    """Bytes one layer keeps of one micro-batch for the way back: with nothing recomputed, and as it is."""

    all: Numbers
    chosen: Numbers


def kept_activations(load: Load, grid: StrategyGrid) -> KeptActivations:
    """Bytes that one layer keeps, by what is recomputed.

    Assumes selective recomputation drops the scores of unfused attention; where it is fused, it keeps a
    layer's input and every second product's result, and without a compiler also the last one, which
    nothing reads. Where weights are sharded, nothing of experts is kept: PyTorch's policy names operations to
    keep, and grouped products are none of them. Each adapter of LoRA outside attention keeps an input of its
    own, as dropout and casts to the adapters' type leave one (PEFT, LoraLayer); those of QLoRA are not
    counted, 2.2 GB of 16.5 for Llama 2 7B at 1,304 tokens (Raschka 2023). Next to 4-bit weights norms in fp32
    pass fp32 on, and layers return what they were given (bitsandbytes, `Linear4bit.forward`). Run as it was
    written, a gate's activation is kept besides its input, as the factor of the other half (transformers,
    `LlamaMLP.forward`).
    Source: Korthikanti et al. 2022, eq. 1-6; torchtitan 2024, section 2.3; pytorch/torchtitan,
    `_op_sac_save_list`: `aten.mm`, attention and reduce-scatters.
    """
    wider = width_ratio(grid)
    tokens = tokens_per_rank(load, grid) * wider
    sharded = tokens / grid.tp
    whole = np.where(grid.sequence_parallel > 0, sharded, tokens)
    fused = grid.fused_attention > 0
    # Results of softmax and dropout are as wide as values, a mask of dropout has a byte.
    scores = np.where(fused, 0.0, sharded * (load.kept_score_bytes + load.kept_mask_bytes / wider))
    widened = np.where(holds_fp32_tables(grid), FP32_BYTES / value_bytes(grid), 1.0)
    plain = (whole * load.kept_whole_bytes + sharded * load.kept_shared_bytes) * widened
    plain = plain + (grid.implementation == EAGER) * (sharded * load.gate_bytes)
    is_wide = _is_autocast(grid) & np.greater(load.wide_residual_bytes, 0)
    plain = plain + is_wide * (whole * load.wide_residual_bytes)
    if np.any(load.norm_bytes):
        full = grid.trained == FULL_TRAINING
        values = np.where(is_wide, 2.0, 1.0 + full) * (grid.trained != QLORA)
        plain = plain + (grid.implementation == EAGER) * values * (whole * load.norm_bytes)
    if np.any(further := has_further_adapters(grid)):
        plain = plain + further * (sharded * load.adapter_input_bytes)
    unread = np.where(grid.implementation == EAGER, load.boundary_bytes, 0.0)
    experts = np.where(grid.zero_stage >= WEIGHTS_SHARDED, 0.0, load.spared_expert_bytes)
    spared = whole * (load.spared_whole_bytes + unread) + sharded * (load.spared_shared_bytes + experts)
    selective = np.where(fused, np.minimum(spared, plain), plain)
    # In place of the share of it that the product's own rank had.
    split = (grid.tp > 1) & (grid.sequence_parallel > 0)
    gathered = split * (tokens - sharded) * load.gathered_bytes
    all_kept = plain + scores + gathered
    inputs = load.input_bytes * np.where(is_wide, FP32_BYTES / value_bytes(grid), widened)
    boundary = np.minimum(whole * inputs, selective)
    chosen = np.where(
        grid.recompute == RECOMPUTE_FULL,
        boundary,
        np.where(grid.recompute == RECOMPUTE_SELECTIVE, selective, all_kept),
    )
    return KeptActivations(all=all_kept, chosen=chosen)


def _is_autocast(grid: StrategyGrid) -> NDArray[np.bool_]:
    """Where weights of fp32 are cast as they are used; FSDP casts them as it gathers."""
    is_narrow = value_bytes(grid) < FP32_BYTES
    return np.asarray(
        (grid.trained == FULL_TRAINING) & (grid.master_weights > 0) & (grid.zero_stage == 0) & is_narrow
    )


def activation_bytes(load: Load, grid: StrategyGrid, host_bytes: Numbers | float = np.inf) -> Numbers:
    """Bytes of activations alive at the fullest moment of the fullest stage.

    Assumes the moment is either that of the loss, on the last stage, or that in which a layer goes back, next
    to which lie the gradients of what its wide products made; the first stage holds the most micro-batches,
    the last one, besides the loss, one. DualPipe keeps one more than stages, its V half a one more, and the
    loss on the rank that has the first stage too. 1F1B with overlap begins one chunk early, and without a
    pipeline one layer. Offloaded, what two layers keep lies there: that of the layer at work, that of the one
    whose copy travels, and what the host has no room for. What runs as it was written returns its logits, and
    holds them while the loss goes back. A loss in chunks returns none: it makes as many logits at a time as
    the hidden states have values, and keeps the gradient of these. A loss as written has four tensors of all
    logits, whole on every tensor rank.
    Source: huggingface/transformers, `CausalLMOutputWithPast` (logits beside the loss); Hsu et al. 2024,
    section 3.2, and linkedin/Liger-Kernel, fused_linear_cross_entropy.py (chunks); arXiv 2412.19437, table 2;
    github.com/deepseek-ai/DualPipe, README (V: two stages a rank); megatron-core, combined_1f1b.py (overlap);
    pytorch/torchtune, OffloadActivations (a stash of tensors under way).
    """
    kept = kept_activations(load, grid)
    tokens = tokens_per_rank(load, grid) / grid.tp
    loss = tokens * np.where(loss_is_fused(grid), load.kept_fused_loss_bytes, load.kept_loss_bytes)
    returned = (grid.implementation == EAGER) * (load.logits_bytes * width_ratio(grid))
    # Chunks of as many logits as the hidden states have values, whose gradient is made at once.
    hidden = _hidden_bytes(load, grid)
    in_chunks = np.minimum(2 * hidden, loss)
    loss = loss + tokens * returned
    if np.any(grid.plain_loss > 0):
        logits = tokens_per_rank(load, grid) * (load.logits_bytes * width_ratio(grid))
        loss = np.where(grid.plain_loss > 0, _PLAIN_LOSS_TENSORS * logits, loss)
    loss = np.where(grid.chunked_loss > 0, in_chunks, loss)
    # A product reads its whole input on every tensor rank, and leaves a partial sum as large; a layer that
    # keeps such inputs has the former.
    split = (grid.tp > 1) & (grid.sequence_parallel > 0)
    gathered = split * (_GATHERED * hidden)
    at_work = _layer_at_work(load, grid, kept) - kept.chosen + gathered
    at_work = at_work - split * np.greater(load.gathered_bytes, 0) * hidden
    more = np.where(grid.schedule == DUALPIPE, 1.0, np.where(grid.schedule == DUALPIPE_V, 0.5, 0.0))
    stages = _stage_layers(load, grid)
    if np.any(is_overlap := grid.schedule == ONE_OVERLAP):
        # Without a pipeline each layer goes forward beside one of another micro-batch that goes back.
        begun = np.where(grid.pp > 1, grid.interleave, np.maximum(stages.first, 1.0))
        more = np.where(is_overlap, 1.0 / begun, more)
    alive = np.minimum(grid.num_microbatches, grid.pp + more)
    # Interleaved, chunks of further micro-batches begin before the first is back: no more than there are.
    early = np.where(grid.interleave > 1, (grid.pp - 1) / grid.interleave, 0.0)
    layers = stages.first * kept.chosen
    # Few of these arrays are as large as the mesh: only the last line's.
    at_end = np.where(grid.schedule >= DUALPIPE, alive, 1.0 + more)
    last = layers * at_end if np.any(grid.schedule) else layers
    first = layers * np.minimum(grid.num_microbatches, alive + early)
    if stages.between is not stages.first:
        # The second stage has one micro-batch less, of a layer more.
        second = np.minimum(grid.num_microbatches, grid.pp - 1 + more)
        first = np.maximum(first, stages.between * kept.chosen * second)
    first = first + _held_outputs(load, grid, alive)
    if np.any(grid.activation_offload > 0):
        # Of what has no equal layers, the widest that passes between any two.
        widest = np.where(np.greater(load.hidden, 0), 0.0, hidden)
        here = np.where(grid.activation_offload > 0, _TRAVELLING * np.maximum(kept.chosen, widest), np.inf)
        last, first = (np.minimum(each, np.maximum(here, each - host_bytes)) for each in (last, first))
    with_loss = last + np.maximum(loss + gathered, at_work)
    return np.asarray(np.maximum(first + at_work, with_loss))


def _layer_at_work(load: Load, grid: StrategyGrid, kept: KeptActivations) -> Numbers:
    """Bytes of a layer that goes back: what it keeps, the segment made again, and gradients of what its wide
    products made.
    """
    again = (grid.recompute == RECOMPUTE_FULL) * load.segment_bytes
    tokens = tokens_per_rank(load, grid) / grid.tp
    return np.asarray(kept.all + tokens * ((load.gradient_bytes + again) * width_ratio(grid)))


def _beside_states(
    load: Load, grid: StrategyGrid, parameters: Parameters, host_bytes: Numbers | float
) -> Numbers:
    """Bytes of activations next to weights, states and all gradients, at the fullest moment of a step.

    Where one accelerator trains all weights in a step of one micro-batch, gradients only grow as activations
    go: at the fullest moment of activations there are none, at the end the last layer lies next to all. An
    optimizer that runs as it was written then makes as much anew as there are gradients.
    Assumes no buffer of all gradients, as data ranks have, and that gradients and what layers keep change
    evenly in between; that optimizers of shards, of 8 bits and of copies in fp32 have kernels of their own.
    Source: PyTorch, `Optimizer.zero_grad(set_to_none=True)`, the default, and `torch.optim.AdamW` (foreach:
    about the size of the parameters more at its peak).
    """
    alive = activation_bytes(load, grid, host_bytes) * parameters.activation_slack
    trains_all = (grid.trained == FULL_TRAINING) & ~np.greater(load.steps_in_backward, 0)
    undivided = trains_all & (grid.tp == 1) & (grid.pp == 1)
    is_alone = undivided & (grid.dp == 1) & (grid.cp == 1)
    has_foreach = (grid.implementation == EAGER) & (grid.optimizer == _ADAM) & (grid.gradient_copies <= 0)
    anew = undivided & has_foreach & (grid.zero_stage == 0) & (grid.ep == 1)
    if not np.any(is_alone | anew):
        return alive
    held = shards(load, grid)
    gradients = gradient_bytes_per_param(grid) * (held.dense_trained + held.expert_trained)
    last = _layer_at_work(load, grid, kept_activations(load, grid)) * parameters.activation_slack
    stepping = np.where(anew, gradients, np.minimum(alive, gradients))
    growing = is_alone & (grid.num_microbatches == 1)
    fullest = np.where(growing, np.maximum(alive - gradients, last), alive)
    return np.asarray(np.where(growing | anew, np.maximum(fullest, stepping), alive))


def _hidden_bytes(load: Load, grid: StrategyGrid) -> Numbers:
    """Bytes of a micro-batch's hidden states between two layers, whole."""
    return tokens_per_rank(load, grid) * (load.boundary_bytes * width_ratio(grid))


def _held_outputs(load: Load, grid: StrategyGrid, alive: Numbers) -> Numbers:
    """Bytes of a pipeline stage's outputs that wait for their way back, where code runs as it was written.

    Source: DeepSpeed, pipe/engine.py (pipe_buffers['outputs']); Megatron-Core frees them once they are sent
    (deallocate_pipeline_outputs).
    """
    split = np.where(grid.sequence_parallel > 0, grid.tp, 1.0)
    output = _hidden_bytes(load, grid) / split
    return np.asarray(np.where((grid.pp > 1) & (grid.implementation == EAGER), alive * output, 0.0))


def _gathered_bytes(load: Load, grid: StrategyGrid, per_rank: Shards) -> Numbers:
    """Bytes of what is gathered of weights that lie elsewhere, and lost again within a step.

    Assumes that at the fullest moment a layer lies there gathered, with its gradients and either the next one
    or its gradients on their way out, in fp32 unless nothing is; tables stay gathered between the two ways,
    and the output's gradient next to them until activations are gone.
    Source: PyTorch FSDP2 (fully_shard; the root is not resharded after the way forward; FSDPParam,
    to_accumulated_grad_if_needed; MixedPrecisionPolicy: reduce_dtype is param_dtype unless it is given).
    """
    width = value_bytes(grid)
    is_narrow = (grid.master_weights <= 0) & ~grid.adds_up_whole
    sums = np.where(is_narrow | np.greater(load.narrow_sums, 0), width, _SUMMED_BYTES)
    layer = load.dense_params / grid.tp + load.expert_params / grid.ep
    tables = np.where(grid.pp > 1, load.end_params, load.embedding_params) / grid.tp
    full = grid.trained == FULL_TRAINING
    # 4-bit weights travel and wait as they are (Answer.AI 2024, FSDP and QLoRA).
    stored = np.where(grid.trained == QLORA, NF4_BYTES, width)
    at_work = stored + np.where(full, width + np.maximum(stored, sums), stored)
    gathered = layer * at_work + tables * width * (1.0 + full / 2)
    sharded = (grid.held_stage >= WEIGHTS_SHARDED) & (per_rank.dense_ranks > 1)
    elsewhere = sharded | (grid.offload == OFFLOAD_ALL)
    return np.asarray(np.where(elsewhere, gathered, 0.0))


def sent_bytes(load: Load, grid: StrategyGrid) -> Numbers:
    """Bytes of what a pipeline stage receives and sends, which are freed within the step.

    Assumes one micro-batch of each at a time. Source: the activations at the boundary of two stages
    (Narayanan et al. 2021).
    """
    return np.asarray(np.where(grid.pp > 1, 2 * _hidden_bytes(load, grid), 0.0))


class FittingCount(Struct):
    """How many strategies of a space are legal and fit, and the least that any needs that does not fit."""

    num_legal: int = 0
    num_fitting: int = 0
    nearest_bytes: float | None = None


class Fitting(Struct, frozen=True, kw_only=True):
    """Whether any strategy fits, by the layouts of a group.

    with_any_layer: whatever its layer options, (n_layouts,). by_layer: with each that need different amounts,
    (n_different, n_layouts); layer: which of these each layer options are.
    """

    with_any_layer: NDArray[np.bool_]
    by_layer: NDArray[np.bool_]
    layer: Sequence[int]


class _Needed(Struct, frozen=True, kw_only=True):
    """Bytes that layouts need with each combination of options, computed once for those that need the same.

    needed: (n_layers or 1, n_states, n_different). different: of which of these each batch, or share, of the
    layouts is, (n_batches,). which: the batch or share of each layout, (n_layouts,).
    """

    needed: Numbers
    different: Codes
    which: Codes

    def of_layouts(self, needed: Numbers) -> Callable[[Codes | slice], Numbers]:
        """Of some layouts, what was made of what different ones need, which comes last."""
        of_each = needed.take(self.different, axis=-1)
        return lambda layouts: of_each.take(self.which[layouts], axis=-1)

    def at(self, layouts: Codes) -> Numbers:
        """What some layouts need: (n_layers or 1, n_states, n_layouts)."""
        return self.needed.take(self.different.take(self.which[layouts]), axis=-1)


class _SplitBytes(Struct, frozen=True, kw_only=True):
    """Bytes of a group's strategies in two parts, of which fewer layouts differ than in both.

    batches: activations and what a stage sends, with the state options that decide them. shares: states and
    what is gathered, with the others. num_layers, num_states: how many combinations need as much as each.
    layer: which of these each layer options are. most: both together, to fit.
    """

    batches: _Needed
    shares: _Needed
    num_layers: Sequence[int]
    num_states: Sequence[int]
    layer: Sequence[int]
    most: float

    def lightest(self) -> Callable[[slice], Numbers]:
        """Of layouts, the least that any strategy of each layer options needs: (n_layers, n_layouts)."""
        batches = self.batches.of_layouts(self.batches.needed.min(axis=1))
        shares = self.shares.of_layouts(self.shares.needed.min(axis=1))
        return lambda which: batches(which) + shares(which)

    def heaviest(self) -> Callable[[slice], Numbers]:
        """Of layouts, what no strategy exceeds: (n_layouts,)."""
        batches = self.batches.of_layouts(self.batches.needed.max(axis=(0, 1)))
        shares = self.shares.of_layouts(self.shares.needed.max(axis=(0, 1)))
        return lambda which: batches(which) + shares(which)


def by_activations(load: Load, groups: Sequence[LayoutGroup]) -> list[LayoutGroup]:
    """The groups in parts whose strategies keep the same of experts, with sharded weights or without, and
    have the same gradients; where code runs as it was written, also with states that are whole, or not.

    Activations of a part then depend on the layout, its layers and `_OF_BATCHES` alone.
    """
    stage = STATE_OPTIONS.index("zero_stage")
    implementation = LAYER_OPTIONS.index("implementation")
    of_gradients = [STATE_OPTIONS.index(name) for name in _OF_GRADIENTS]
    has_experts = bool(np.any(load.spared_expert_bytes))
    found = []
    for group in groups:
        is_open = bool(np.any(load.wide_residual_bytes))
        is_open |= any(each[implementation] == "eager" for each in group.layers)
        parts: dict[Hashable, list[int]] = {}
        for number, each in enumerate(group.states):
            is_sharded = has_experts and int(each[stage]) >= WEIGHTS_SHARDED
            is_whole = is_open and int(each[stage]) == 0
            parts.setdefault((is_sharded, is_whole, *(each[at] for at in of_gradients)), []).append(number)
        found += [group.only(range(len(group.layers)), states) for states in parts.values()]
    return found


def count_fitting(
    load: Load, machine: Machine, parameters: Parameters, *, groups: Sequence[LayoutGroup], num_spaces: int
) -> tuple[list[FittingCount], list[Fitting]]:
    """How many strategies of each space fit; by group, in which of its layouts any does.

    load, machine, parameters: of plain numbers. groups: as `by_activations` has them, their layouts
    ordered by space.
    """
    counts = [FittingCount() for _ in range(num_spaces)]
    nearest = [np.inf] * num_spaces
    fitting = []
    for group, amounts in zip(groups, _split_bytes(load, machine, parameters, groups), strict=True):
        lightest_of, heaviest_of = amounts.lightest(), amounts.heaviest()
        fits = np.empty((len(amounts.num_layers), len(group.layouts)), dtype=bool)
        some_fits = np.empty(len(group.layouts), dtype=bool)
        step = MESH_ELEMENTS // len(fits)
        ends = np.searchsorted(group.layouts.column("space"), np.arange(num_spaces + 1)).tolist()
        for space, (counted, first, last) in enumerate(zip(counts, ends, ends[1:], strict=False)):
            counted.num_legal += group.num_each * (last - first)
            for start in range(first, last, step):
                here = slice(start, min(start + step, last))
                by_layer = lightest_of(here)
                np.less_equal(by_layer, amounts.most, out=fits[:, here])
                lightest = np.minimum.reduce(by_layer)
                one_fits = np.less_equal(lightest, amounts.most, out=some_fits[here])
                all_fit = heaviest_of(here) <= amounts.most
                nearest[space] = min(nearest[space], lightest[~one_fits].min(initial=np.inf))
                some_fit = np.flatnonzero(one_fits & ~all_fit) + start
                num_fitting, nearest[space] = _count_each(amounts, some_fit, nearest[space])
                counted.num_fitting += num_fitting + group.num_each * int(np.count_nonzero(all_fit))
        fitting.append(Fitting(with_any_layer=some_fits, by_layer=fits, layer=amounts.layer))
    for counted, amount in zip(counts, nearest, strict=True):
        if np.isfinite(amount):
            counted.nearest_bytes = float(amount * parameters.reserved_slack + parameters.fixed_bytes)
    return counts, fitting


def whatever_fits(group: LayoutGroup) -> Fitting:
    """The layouts of a group as if memory had no end."""
    num_layouts, num_layers = len(group.layouts), len(group.layers)
    every = np.ones(num_layouts, dtype=bool)
    return Fitting(with_any_layer=every, by_layer=every[None], layer=[0] * num_layers)


def any_fits(load: Load, machine: Machine, parameters: Parameters, groups: Sequence[LayoutGroup]) -> bool:
    """Whether any strategy of some groups, as `by_activations` has them, fits."""
    split = _split_bytes(load, machine, parameters, groups)
    return any(bool((each.lightest()(slice(None)) <= each.most).any()) for each in split)


def _count_each(amounts: _SplitBytes, which: Codes, nearest: float) -> tuple[int, float]:
    """How many strategies of some layouts fit, and the least above `most` that any has, or `nearest`."""
    num_fitting = 0
    step = max(1, MESH_ELEMENTS // amounts.batches.needed[..., 0].size)
    for start in range(0, len(which), step):
        rows = which[start : start + step]
        batches, shares = amounts.batches.at(rows), amounts.shares.at(rows)
        for state, num_states in enumerate(amounts.num_states):
            needed = batches + shares[:, state, None]
            fits = needed <= amounts.most
            by_layer = (int(np.count_nonzero(each)) for each in fits)
            num_fitting += num_states * sum(map(mul, amounts.num_layers, by_layer))
            nearest = float(needed[~fits & (needed < nearest)].min(initial=nearest))
    return num_fitting, nearest


def _split_bytes(
    load: Load, machine: Machine, parameters: Parameters, groups: Sequence[LayoutGroup]
) -> list[_SplitBytes]:
    """What the strategies of each group need."""
    kinds = [_OptionKinds.of(group) for group in groups]

    def of_batches(group: LayoutGroup) -> Numbers:
        mesh = group.mesh()
        kept = _beside_states(load, mesh, parameters, machine.host_memory_bytes)
        return np.asarray(kept + sent_bytes(load, mesh))

    def of_shares(group: LayoutGroup) -> Numbers:
        # As bytes of the allocator, those of communicators too, which lie outside of it.
        mesh = group.mesh()
        outside = communicator_bytes(mesh, parameters, machine.peer_ranks) / parameters.reserved_slack
        return np.asarray(_before_slack(held_memory(load, mesh), mesh, parameters) + outside)

    batches = once_for_all(
        [kind.of_batches for kind in kinds],
        [
            replace(group.only(kind.layers, kind.chunks), layouts=group.layouts.each_batch())
            for group, kind in zip(groups, kinds, strict=True)
        ],
        numbered=_activation_numbers,
        computed=of_batches,
    )
    shares = once_for_all(
        [kind.of_shares for kind in kinds],
        [
            replace(group.only(kind.layers, kind.states), layouts=group.layouts.each_share())
            for group, kind in zip(groups, kinds, strict=True)
        ],
        numbered=lambda layouts: layouts.numbered(_OF_SHARES),
        computed=of_shares,
    )
    return [
        _SplitBytes(
            batches=_Needed(needed=kept, different=of_kept, which=group.layouts.batch),
            shares=_Needed(needed=held, different=of_held, which=group.layouts.share),
            num_layers=np.bincount(kind.layer).tolist(),
            num_states=(np.bincount(kind.state) // len(kind.chunks)).tolist(),
            layer=kind.layer,
            most=float((machine.memory_bytes - parameters.fixed_bytes) / parameters.reserved_slack),
        )
        for group, kind, (kept, of_kept), (held, of_held) in zip(groups, kinds, batches, shares, strict=True)
    ]


class _OptionKinds(Struct, frozen=True, kw_only=True):
    """Which combinations of a group's options need different amounts of memory.

    layers, chunks, states: numbers of one combination of each kind: of layer options, of the state options
    that decide activations, and of the others. layer, state: of which kind each combination is. of_batches,
    of_shares: equal for groups whose activations, and whose states, are those of the same combinations.
    """

    layers: Sequence[int]
    layer: Sequence[int]
    chunks: Sequence[int]
    states: Sequence[int]
    state: Sequence[int]
    of_batches: Hashable
    of_shares: Hashable

    @classmethod
    def of(cls, group: LayoutGroup) -> "_OptionKinds":
        """The kinds of a group of `by_activations`, which has one schedule, one way to keep experts and one
        kind of gradients.
        """
        layers, layer, of_layers = _alike(LAYER_OPTIONS, group.layers, _OF_LAYERS)
        chunks, _, of_chunks = _alike(STATE_OPTIONS, group.states, _OF_BATCHES)
        states, state, of_states = _alike(STATE_OPTIONS, group.states, _OF_STATES)
        schedule, stage, *of_gradients = (
            group.states[0][STATE_OPTIONS.index(name)] for name in ("schedule", "zero_stage", *_OF_GRADIENTS)
        )
        return cls(
            layers=layers,
            layer=layer,
            chunks=chunks,
            states=states,
            state=state,
            of_batches=(of_layers, of_chunks, int(stage) >= WEIGHTS_SHARDED, int(stage) == 0, *of_gradients),
            of_shares=(of_layers, of_states, schedule),
        )


def _activation_numbers(layouts: Layouts) -> Codes:
    """A small number for every layout, the same for those whose activations take the same.

    Of a batch nothing but how many micro-batches are alive matters: one more than stages at most, or, where
    stages are interleaved, one and a half times as many; of data and expert ranks whether there is one.
    """
    data_ranks, stages = layouts.column("dp"), layouts.column("pp")
    in_flight = layouts.column("global_batch_samples") / (data_ranks * layouts.column("microbatch_samples"))
    alive = np.minimum(in_flight, 2 * stages)
    several = 2 * (data_ranks > 1) + (layouts.column("ep") > 1)
    return layouts.numbered(_OF_ACTIVATIONS, 4 * alive + several)


def _alike(
    names: tuple[str, ...], combinations: Combinations, options: tuple[str, ...]
) -> tuple[list[int], list[int], Combinations]:
    """The numbers of combinations that differ in some options, which of these each agrees with, and their
    values.
    """
    positions = [names.index(each) for each in options]
    keys = [tuple(values[each] for each in positions) for values in combinations]
    different = tuple(dict.fromkeys(keys))
    return [keys.index(each) for each in different], [different.index(each) for each in keys], different

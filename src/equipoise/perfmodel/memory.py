"""Memory of the fullest rank by kind, and how many strategies fit. No times are computed here."""

from collections.abc import Callable, Hashable, Sequence
from operator import mul

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.perfmodel.compute import (
    EAGER,
    NF4_BYTES,
    has_non_attention_adapters,
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
    computed_once,
)
from equipoise.perfmodel.load import TABLE_BYTES, Load, Numbers
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.space import LAYER_OPTIONS, STATE_OPTIONS, Combinations
from equipoise.spec.strategy import AXES, WEIGHTS_SHARDED
from equipoise.units import FP32_BYTES

# Bytes of moments per trained parameter; 2-byte weights have a 4-byte master copy in addition, unless
# everything is kept in 2 bytes (Micikevicius et al. 2018; Dettmers et al. 2022 for 8-bit moments).
_MOMENTS = {"adam": 8.0, "adam_8bit": 2.0, "sgd": 4.0}
_EIGHT_BIT = CODES["optimizer"].index("adam_8bit")
_ADAM = CODES["optimizer"].index("adam")
_MOMENT_BYTES = np.array([_MOMENTS[name] for name in CODES["optimizer"]])
_FP16 = CODES["precision"].index("fp16")
# Bytes of a gradient accumulated over micro-batches: the width in which FSDP2 reduces it (PyTorch, FSDPParam,
# to_accumulated_grad_if_needed; reduce_dtype of torchtitan, accelerate and Automodel: fp32).
_SUMMED_BYTES = 4.0
# Tensors of an unfused cross-entropy: logits, log-probabilities, and the gradients of both
# (torch.nn.functional.cross_entropy and its backward pass).
_PLAIN_LOSS_TENSORS = 4.0
# Gathered tensors alive at once: the one in use, and the next one or the result.
_GATHERED_COPIES = 2
# Layers whose offloaded activations are on the accelerator: the one computing, and the one being copied.
_RESIDENT_OFFLOADED_LAYERS = 2
# State options on which activations depend; the others affect weights, gradients and optimizer states. A
# search has a single value of lora_targets, so that option is not listed.
_ACTIVATION_STATE_OPTIONS = ("interleave", "schedule")
# State options on which the size of gradients and an optimizer's temporary copies depend.
_GRADIENT_OPTIONS = ("master_weights", "trained", "optimizer", "gradient_copies")
# Options that do not affect memory.
_NO_MEMORY = ("tp_overlap", "compression", "compression_rank", "sync_period")
_MEMORY_LAYER_OPTIONS = tuple(name for name in LAYER_OPTIONS if name not in _NO_MEMORY)
_MEMORY_STATE_OPTIONS = tuple(
    name for name in STATE_OPTIONS if name not in {*_ACTIVATION_STATE_OPTIONS, *_NO_MEMORY}
)
# Sizes on which activations depend, besides the number of micro-batches alive, and on which states depend.
_ACTIVATION_SIZES = ("tp", "cp", "pp", "microbatch_samples")
_SHARD_SIZES = (*AXES, "dp_replicate")


class RankMemory(Struct, frozen=True, kw_only=True):
    """Bytes on the fullest rank, by kind; arrays that broadcast.

    fixed: context, libraries and communicators. reserved: what the allocator reserves for all other kinds,
    which is what most tools report.
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
        """Bytes of tensors at the peak."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers

    @property
    def needed(self) -> Numbers:
        """Bytes the accelerator must have: those reserved by the allocator, and those outside it."""
        return self.reserved + self.fixed


class Shards(Struct, frozen=True, kw_only=True):
    """Parameters of one rank of the fullest stage before sharding over data ranks, and how many ranks share.

    dense, experts: weights in the rank's tensor or expert shard; tables: the part of dense in embeddings and
    output matrix. dense_ranks, expert_ranks: data ranks over which one copy is sharded. dense_trained,
    expert_trained: trained parameters among dense and experts.
    """

    dense: Numbers
    tables: Numbers
    experts: Numbers
    dense_ranks: Numbers
    expert_ranks: Numbers
    dense_trained: Numbers
    expert_trained: Numbers


def shards(load: Load, grid: StrategyGrid) -> Shards:
    """Parameters per rank on the fullest pipeline stage.

    Assumes even tensor and expert shards, and whole experts spread over ep ranks. With DualPipe a rank holds
    two stages, and the same stages are on two ranks; with it and with its V schedule, one rank holds both
    ends.
    """
    ends = (grid.pp > 1) & (grid.schedule < DUALPIPE)
    tables = np.where(ends, load.end_params, load.embedding_params) / grid.tp
    copies = np.where(grid.schedule == DUALPIPE, 2.0, 1.0)
    stages = _stage_layers(load, grid)
    layer = load.dense_params / grid.tp + load.expert_params / grid.ep
    # The first and last stages hold tables; an inner stage may hold more layers instead.
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
    """Numbers of layers in the first or last stage of a pipeline, and in the inner stages."""

    first: Numbers
    between: Numbers


def _stage_layers(load: Load, grid: StrategyGrid) -> _StageLayers:
    """Layers per stage: equal numbers; or one fewer at both ends, which hold the tables, where only layers +
    2 divides evenly; or, where stages are balanced by cost (`output_layers`), those of the first stage.

    Assumes the mean where layers do not divide evenly, although the fullest stage has more (36 layers on 8
    stages: 5, counted as 4.5).
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
    """Weights of a layer's adapters per unit of LoRA rank."""
    adapted = grid.adapted_layers
    attention = np.where(adapted == QUERY_VALUE, load.query_value_adapter_params, load.adapter_params)
    return np.asarray(attention + np.where(adapted == ALL_LINEAR, load.linear_adapter_params, 0.0))


def state_bytes_per_param(grid: StrategyGrid) -> Numbers:
    """Bytes of optimizer state per trained parameter, including the master copy.

    Without a master copy, 32-bit moments are kept in the width of the weights (torch.optim on a bf16 model).
    """
    is_narrow = value_bytes(grid) < FP32_BYTES
    master = np.where(is_narrow & (grid.master_weights > 0), FP32_BYTES, 0.0)
    halved = is_narrow & (grid.master_weights <= 0) & (grid.optimizer != _EIGHT_BIT)
    return np.asarray(_MOMENT_BYTES[grid.optimizer] * np.where(halved, 0.5, 1.0) + master)


def gradient_bytes_per_param(grid: StrategyGrid) -> Numbers:
    """Bytes of a gradient: 4, or the width of values for fp16, without a master copy, or with sharded
    weights.

    With sharded weights the master copy is the weight: 16 bytes in all either way, counted as 2, 2 and 12.
    Source: Megatron-LM documentation (bf16 weights, fp32 gradients: 18 bytes); Rajbhandari et al. 2020 (fp16:
    16).
    """
    is_kept_narrow = (grid.precision == _FP16) | (grid.master_weights <= 0)
    halved = is_kept_narrow | (grid.held_stage >= WEIGHTS_SHARDED)
    return np.asarray(np.where(halved, value_bytes(grid), FP32_BYTES))


def holds_fp32_tables(grid: StrategyGrid) -> NDArray[np.bool_]:
    """Whether tables and norms next to 4-bit weights are in fp32, and therefore also layer outputs.

    Source: huggingface/peft, `prepare_model_for_kbit_training` ("cast all non INT8 parameters to fp32"); code
    with kernels of its own (Unsloth) keeps 16 bits.
    """
    return np.asarray((grid.trained == QLORA) & (grid.implementation == EAGER))


class HeldMemory(Struct, frozen=True, kw_only=True):
    """Bytes that do not depend on the batch: states, and gathered copies of sharded or offloaded weights."""

    weights: Numbers
    gradients: Numbers
    optimizer: Numbers
    gathered: Numbers

    @property
    def total(self) -> Numbers:
        """Sum of all kinds."""
        return self.weights + self.gradients + self.optimizer + self.gathered


def memory(
    load: Load,
    grid: StrategyGrid,
    parameters: Parameters,
    *,
    host_bytes: Numbers | float = np.inf,
    peer_ranks: Numbers | float = np.inf,
) -> RankMemory:
    """Bytes by kind on the fullest rank. host_bytes: its share of host memory. peer_ranks: see `Machine`.

    Assumes 1F1B: the first stage keeps min(micro-batches, pp) micro-batches alive, and with interleaving
    (1 + (pp - 1) / (pp v)) times as many; ZeRO shards optimizer states, gradients and weights in this order,
    and a pipeline holds the latter two unsharded from its first micro-batch to its last (`held_stage`).
    Source: Rajbhandari et al. 2020 (states); Korthikanti et al. 2022 (activations); Narayanan et al. 2021
    (1F1B).
    """
    held = held_memory(load, grid)
    activations = _peak_activation_bytes(load, grid, parameters, host_bytes)
    sent = sent_bytes(load, grid)
    return RankMemory(
        weights=held.weights,
        gradients=held.gradients,
        optimizer=held.optimizer,
        activations=activations,
        buffers=held.gathered + sent,
        fixed=np.asarray(parameters.fixed_bytes + communicator_bytes(grid, parameters, peer_ranks)),
        reserved=(activations + sent + _state_bytes_before_slack(held, grid, parameters))
        * parameters.reserved_slack,
    )


def _state_bytes_before_slack(held: HeldMemory, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Bytes of states and gathered weights, which times the allocator's slack are what it reserves.

    Assumes no slack for frozen weights, which are allocated once and never freed.
    """
    frozen = np.where(grid.trained == FULL_TRAINING, 0.0, held.weights)
    return np.asarray(held.total - frozen * (1.0 - 1.0 / parameters.reserved_slack))


def held_memory(load: Load, grid: StrategyGrid) -> HeldMemory:
    """Bytes of states and of gathered weights on the fullest rank."""
    per_rank = shards(load, grid)
    held = grid.held_stage
    by_stage = [np.where(held >= stage, 1 / per_rank.dense_ranks, 1.0) for stage in (1, 2, 3)]
    experts_by_stage = [np.where(held >= stage, 1 / per_rank.expert_ranks, 1.0) for stage in (1, 2, 3)]
    width = value_bytes(grid)
    # Only linear layers are quantised; tables keep their width (transformers, bitsandbytes) or are widened.
    is_wide = np.greater(load.wide_frozen, 0) & (held >= WEIGHTS_SHARDED) & (grid.master_weights > 0)
    stored = np.where(is_wide & (grid.trained != FULL_TRAINING), FP32_BYTES, width)
    frozen = np.where(grid.trained == QLORA, NF4_BYTES, stored)
    tables = np.where(holds_fp32_tables(grid), FP32_BYTES, stored)
    dense = frozen * (per_rank.dense - per_rank.tables) + tables * per_rank.tables
    resident = np.where(grid.offload == OFFLOAD_ALL, 0.0, 1.0)
    weights = resident * (dense * by_stage[2] + frozen * per_rank.experts * experts_by_stage[2]) + np.where(
        grid.trained == FULL_TRAINING, 0.0, width * per_rank.dense_trained
    )
    # Frozen auxiliary models are stored like the model's own weights.
    split = np.where(np.greater(load.hidden, 0), grid.tp * grid.pp, 1.0)
    weights = weights + width * resident * by_stage[2] * load.frozen_params / split
    # A row of a recommender's table is on one rank; its optimizer keeps one value (Mudigere et al. 2022).
    weights = weights + TABLE_BYTES * load.table_params / grid.num_accelerators
    gradients = gradient_bytes_per_param(grid) * (
        per_rank.dense_trained * by_stage[1] + per_rank.expert_trained * experts_by_stage[1]
    )
    if np.any(grid.gradient_copies):
        twice = _two_copy_gradient_bytes(grid, by_stage) * per_rank.dense_trained
        twice = twice + _two_copy_gradient_bytes(grid, experts_by_stage) * per_rank.expert_trained
        gradients = np.where((grid.gradient_copies > 0) & (width < FP32_BYTES), twice, gradients)
    if np.any(whole := grid.accumulates_unsharded):
        trained = per_rank.dense_trained + per_rank.expert_trained
        gradients = np.where(whole, _SUMMED_BYTES * trained, gradients)
    if np.any(load.bucket_copies):
        is_summed_whole = (held == 0) & (grid.dp * grid.cp > 1)
        gradients = gradients * (1.0 + is_summed_whole * load.bucket_copies)
    # FSDP moves gradient shards to the host as they are produced (PyTorch, CPUOffloadPolicy).
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
    """Bytes of communicators outside the allocator: one communicator for each axis with several ranks.

    Assumes the size does not grow with the number of ranks beyond two hosts, and that ranks which communicate
    only through their host have few channels, with buffers in host memory.
    Source: NVIDIA/nccl, issue 864 (memory by communicators and channels, and what links need); NCCL,
    transport/shm.cc.
    """
    axes = (grid.dp, grid.tp, grid.pp, grid.cp, grid.ep)
    each = parameters.communicator_bytes * np.greater(peer_ranks, 1)
    return np.asarray(each * sum((axis > 1) * 1.0 for axis in axes))


def _two_copy_gradient_bytes(grid: StrategyGrid, by_stage: Sequence[Numbers]) -> Numbers:
    """Bytes of gradients per weight where 16-bit and fp32 copies exist at the same time.

    by_stage: a rank's share of what each ZeRO stage shards.
    Assumes fp32 copies of what the optimizer updates: a rank's share, made from a flat 16-bit copy; in a bf16
    pipeline, which accumulates in fp32, all gradients; with sharded weights no 16-bit gradients remain.
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
    """Bytes one layer keeps per micro-batch for the backward pass: without recomputation, and as chosen."""

    all: Numbers
    chosen: Numbers


def kept_activations(load: Load, grid: StrategyGrid) -> KeptActivations:
    """Bytes of activations that one layer keeps per micro-batch, by recomputation.

    Assumes selective recomputation drops the scores of unfused attention; with fused attention it keeps a
    layer's input and every second product's result, and in eager code also the last one, although nothing
    reads it. With sharded weights nothing of experts is kept: PyTorch's policy lists operations to keep, and
    grouped products are not among them. Each LoRA adapter outside attention keeps its own input, because
    dropout and casts to the adapter's type copy it (PEFT, LoraLayer); those of QLoRA are not counted (2.2 of
    16.5 GB for Llama 2 7B at 1,304 tokens, Raschka 2023). Next to 4-bit weights, fp32 norms output fp32, and
    layers return the type of their input (bitsandbytes, `Linear4bit.forward`). Eager code keeps a gate's
    activation in addition to its input, as the factor of the other half (transformers, `LlamaMLP.forward`).
    Source: Korthikanti et al. 2022, eq. 1-6; torchtitan 2024, section 2.3; pytorch/torchtitan,
    `_op_sac_save_list`: `aten.mm`, attention and reduce-scatters.
    """
    wider = width_ratio(grid)
    tokens = tokens_per_rank(load, grid) * wider
    sharded = tokens / grid.tp
    whole = np.where(grid.sequence_parallel > 0, sharded, tokens)
    fused = grid.fused_attention > 0
    # Outputs of softmax and dropout have the width of values; a dropout mask has one byte.
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
    if np.any(further := has_non_attention_adapters(grid)):
        plain = plain + further * (sharded * load.adapter_input_bytes)
    unread = np.where(grid.implementation == EAGER, load.boundary_bytes, 0.0)
    experts = np.where(grid.zero_stage >= WEIGHTS_SHARDED, 0.0, load.spared_expert_bytes)
    spared = whole * (load.spared_whole_bytes + unread) + sharded * (load.spared_shared_bytes + experts)
    selective = np.where(fused, np.minimum(spared, plain), plain)
    # The gathered input replaces the shard that the rank already had.
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
    """Whether fp32 weights are cast when they are used (autocast); FSDP casts them when it gathers."""
    is_narrow = value_bytes(grid) < FP32_BYTES
    return np.asarray(
        (grid.trained == FULL_TRAINING) & (grid.master_weights > 0) & (grid.zero_stage == 0) & is_narrow
    )


def activation_bytes(load: Load, grid: StrategyGrid, host_bytes: Numbers | float = np.inf) -> Numbers:
    """Peak bytes of activations on the fullest stage.

    Assumes the peak is either at the loss, on the last stage, or in a layer's backward pass, with gradients
    of its wide products' outputs; the first stage holds the most micro-batches, the last one only one and the
    loss. DualPipe keeps one micro-batch more than stages, its V schedule half of one more, and the loss on
    the rank that also has the first stage. 1F1B with overlap starts one chunk early, and without a pipeline
    one layer. With offloading, activations of two layers remain (the one computing and the one being copied),
    and what does not fit in host memory. Eager code returns its logits and holds them during the loss's
    backward pass. A chunked loss returns none: it makes as many logits at a time as the hidden states have
    values, and keeps the gradient of these. An unfused loss has four tensors of all logits, unsharded on
    every tensor rank.
    Source: huggingface/transformers, `CausalLMOutputWithPast` (logits beside the loss); Hsu et al. 2024,
    section 3.2, and linkedin/Liger-Kernel, fused_linear_cross_entropy.py (chunks); arXiv 2412.19437, table 2;
    github.com/deepseek-ai/DualPipe, README (V: two stages a rank); megatron-core, combined_1f1b.py (overlap);
    pytorch/torchtune, OffloadActivations (a stash of tensors being copied).
    """
    kept = kept_activations(load, grid)
    tokens = tokens_per_rank(load, grid) / grid.tp
    loss = tokens * np.where(loss_is_fused(grid), load.kept_fused_loss_bytes, load.kept_loss_bytes)
    returned = (grid.implementation == EAGER) * (load.logits_bytes * width_ratio(grid))
    # A chunk has as many logits as the hidden states have values, and its gradient is made at once.
    hidden = _hidden_bytes(load, grid)
    in_chunks = np.minimum(2 * hidden, loss)
    loss = loss + tokens * returned
    if np.any(grid.plain_loss > 0):
        logits = tokens_per_rank(load, grid) * (load.logits_bytes * width_ratio(grid))
        loss = np.where(grid.plain_loss > 0, _PLAIN_LOSS_TENSORS * logits, loss)
    loss = np.where(grid.chunked_loss > 0, in_chunks, loss)
    # A product reads its whole input on every tensor rank and outputs a partial sum of the same size; layers
    # that keep gathered inputs already count the former.
    split = (grid.tp > 1) & (grid.sequence_parallel > 0)
    gathered = split * (_GATHERED_COPIES * hidden)
    at_work = _backward_layer_bytes(load, grid, kept) - kept.chosen + gathered
    at_work = at_work - split * np.greater(load.gathered_bytes, 0) * hidden
    more = np.where(grid.schedule == DUALPIPE, 1.0, np.where(grid.schedule == DUALPIPE_V, 0.5, 0.0))
    stages = _stage_layers(load, grid)
    if np.any(is_overlap := grid.schedule == ONE_OVERLAP):
        # Without a pipeline each layer's forward pass overlaps with a backward pass of another micro-batch.
        begun = np.where(grid.pp > 1, grid.interleave, np.maximum(stages.first, 1.0))
        more = np.where(is_overlap, 1.0 / begun, more)
    alive = np.minimum(grid.num_microbatches, grid.pp + more)
    # With interleaving, chunks of further micro-batches start before the first one returns, if there are any.
    early = np.where(grid.interleave > 1, (grid.pp - 1) / grid.interleave, 0.0)
    layers = stages.first * kept.chosen
    # For speed, only the last line computes arrays as large as the mesh.
    at_end = np.where(grid.schedule >= DUALPIPE, alive, 1.0 + more)
    last = layers * at_end if np.any(grid.schedule) else layers
    first = layers * np.minimum(grid.num_microbatches, alive + early)
    if stages.between is not stages.first:
        # The second stage holds one micro-batch fewer, but one layer more.
        second = np.minimum(grid.num_microbatches, grid.pp - 1 + more)
        first = np.maximum(first, stages.between * kept.chosen * second)
    first = first + _stage_output_bytes(load, grid, alive)
    if np.any(grid.activation_offload > 0):
        # Without equal layers, the widest activations between any two layers count.
        widest = np.where(np.greater(load.hidden, 0), 0.0, hidden)
        here = np.where(
            grid.activation_offload > 0, _RESIDENT_OFFLOADED_LAYERS * np.maximum(kept.chosen, widest), np.inf
        )
        last, first = (np.minimum(each, np.maximum(here, each - host_bytes)) for each in (last, first))
    with_loss = last + np.maximum(loss + gathered, at_work)
    return np.asarray(np.maximum(first + at_work, with_loss))


def _backward_layer_bytes(load: Load, grid: StrategyGrid, kept: KeptActivations) -> Numbers:
    """Bytes of a layer in its backward pass: kept and recomputed activations, and their widest gradients."""
    again = (grid.recompute == RECOMPUTE_FULL) * load.segment_bytes
    tokens = tokens_per_rank(load, grid) / grid.tp
    return np.asarray(kept.all + tokens * ((load.gradient_bytes + again) * width_ratio(grid)))


def _peak_activation_bytes(
    load: Load, grid: StrategyGrid, parameters: Parameters, host_bytes: Numbers | float
) -> Numbers:
    """Peak bytes of a step beyond weights, optimizer states and all gradients.

    If one accelerator trains all weights in a step of one micro-batch, gradients grow while activations are
    freed: none exist at the peak of activations, and at the end all of them exist beside the last layer. An
    eager optimizer then allocates temporaries as large as the gradients.
    Assumes no buffer of all gradients, as data ranks have, and linear change of gradients and activations in
    between; sharded optimizers, 8-bit ones and those with fp32 gradient copies have fused kernels.
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
    last = _backward_layer_bytes(load, grid, kept_activations(load, grid)) * parameters.activation_slack
    stepping = np.where(anew, gradients, np.minimum(alive, gradients))
    growing = is_alone & (grid.num_microbatches == 1)
    fullest = np.where(growing, np.maximum(alive - gradients, last), alive)
    return np.asarray(np.where(growing | anew, np.maximum(fullest, stepping), alive))


def _hidden_bytes(load: Load, grid: StrategyGrid) -> Numbers:
    """Bytes of a micro-batch's hidden states between two layers, unsharded."""
    return tokens_per_rank(load, grid) * (load.boundary_bytes * width_ratio(grid))


def _stage_output_bytes(load: Load, grid: StrategyGrid, alive: Numbers) -> Numbers:
    """Bytes of a pipeline stage's outputs that eager code keeps for their backward pass.

    Source: DeepSpeed, pipe/engine.py (pipe_buffers['outputs']); Megatron-Core frees them once they are sent
    (deallocate_pipeline_outputs).
    """
    split = np.where(grid.sequence_parallel > 0, grid.tp, 1.0)
    output = _hidden_bytes(load, grid) / split
    return np.asarray(np.where((grid.pp > 1) & (grid.implementation == EAGER), alive * output, 0.0))


def _gathered_bytes(load: Load, grid: StrategyGrid, per_rank: Shards) -> Numbers:
    """Bytes of gathered copies of sharded or offloaded weights, which are freed within a step.

    Assumes that at the peak there are one gathered layer, its gradients, and either the next layer or the
    gradients being reduced, in fp32 unless nothing else is; tables stay gathered between the forward and the
    backward pass, and the output matrix's gradient until activations are freed.
    Source: PyTorch FSDP2 (fully_shard; the root is not resharded after the forward pass; FSDPParam,
    to_accumulated_grad_if_needed; MixedPrecisionPolicy: reduce_dtype is param_dtype unless it is given).
    """
    width = value_bytes(grid)
    is_narrow = (grid.master_weights <= 0) & ~grid.accumulates_unsharded
    sums = np.where(is_narrow | np.greater(load.narrow_sums, 0), width, _SUMMED_BYTES)
    layer = load.dense_params / grid.tp + load.expert_params / grid.ep
    tables = np.where(grid.pp > 1, load.end_params, load.embedding_params) / grid.tp
    full = grid.trained == FULL_TRAINING
    # 4-bit weights are sent and stored in 4 bits (Answer.AI 2024, FSDP and QLoRA).
    stored = np.where(grid.trained == QLORA, NF4_BYTES, width)
    at_work = stored + np.where(full, width + np.maximum(stored, sums), stored)
    gathered = layer * at_work + tables * width * (1.0 + full / 2)
    sharded = (grid.held_stage >= WEIGHTS_SHARDED) & (per_rank.dense_ranks > 1)
    elsewhere = sharded | (grid.offload == OFFLOAD_ALL)
    return np.asarray(np.where(elsewhere, gathered, 0.0))


def sent_bytes(load: Load, grid: StrategyGrid) -> Numbers:
    """Bytes of a pipeline stage's send and receive buffers, which are freed within the step.

    Assumes one micro-batch in each at a time. Source: the activations at the boundary of two stages
    (Narayanan et al. 2021).
    """
    return np.asarray(np.where(grid.pp > 1, 2 * _hidden_bytes(load, grid), 0.0))


class FittingCount(Struct):
    """Numbers of legal and of fitting strategies of a space, and the least bytes that do not fit."""

    num_legal: int = 0
    num_fitting: int = 0
    nearest_bytes: float | None = None


class Fitting(Struct, frozen=True, kw_only=True):
    """Whether any strategy fits, by layout of a group.

    with_any_layer: with some layer options, (n_layouts,). by_layer: with each kind of layer options that
    differ in memory, (n_kinds, n_layouts). layer: kind of each layer options, by index.
    """

    with_any_layer: NDArray[np.bool_]
    by_layer: NDArray[np.bool_]
    layer: Sequence[int]


class _Needed(Struct, frozen=True, kw_only=True):
    """Bytes that layouts need with each combination of options, computed once for equal layouts.

    needed: (n_layers or 1, n_states, n_distinct). different: for each batch or share, its index on the last
    axis of needed, (n_batches,) or (n_shares,). which: the batch or share of each layout, (n_layouts,).
    """

    needed: Numbers
    different: Codes
    which: Codes

    def of_layouts(self, needed: Numbers) -> Callable[[Codes | slice], Numbers]:
        """A function from layouts to their values of `needed`, whose last axis is that of `self.needed`."""
        of_each = needed.take(self.different, axis=-1)
        return lambda layouts: of_each.take(self.which[layouts], axis=-1)

    def at(self, layouts: Codes) -> Numbers:
        """Bytes that some layouts need: (n_layers or 1, n_states, n_layouts)."""
        return self.needed.take(self.different.take(self.which[layouts]), axis=-1)


class _SplitBytes(Struct, frozen=True, kw_only=True):
    """Bytes of a group's strategies in two parts, each with fewer distinct layouts than their sum.

    batches: activations and pipeline buffers, by the state options that affect them. shares: states and
    gathered weights, by the other state options. num_layers, num_states: number of combinations of each kind.
    layer: kind of each layer options. limit_bytes: largest sum of both that fits.
    """

    batches: _Needed
    shares: _Needed
    num_layers: Sequence[int]
    num_states: Sequence[int]
    layer: Sequence[int]
    limit_bytes: float

    def lightest(self) -> Callable[[slice], Numbers]:
        """A function from layouts to least bytes with each kind of layer options: (n_layers, n_layouts)."""
        batches = self.batches.of_layouts(self.batches.needed.min(axis=1))
        shares = self.shares.of_layouts(self.shares.needed.min(axis=1))
        return lambda which: batches(which) + shares(which)

    def heaviest(self) -> Callable[[slice], Numbers]:
        """A function from layouts to an upper bound of the bytes of all their strategies: (n_layouts,)."""
        batches = self.batches.of_layouts(self.batches.needed.max(axis=(0, 1)))
        shares = self.shares.of_layouts(self.shares.needed.max(axis=(0, 1)))
        return lambda which: batches(which) + shares(which)


def by_activations(load: Load, groups: Sequence[LayoutGroup]) -> list[LayoutGroup]:
    """The groups split so that activations depend only on the layout, its layer options and
    `_ACTIVATION_STATE_OPTIONS`.

    Strategies of a part have the same gradients, and with experts all have sharded weights or none; with
    eager code or wide residuals, optimizer states are sharded in all or in none.
    """
    stage = STATE_OPTIONS.index("zero_stage")
    implementation = LAYER_OPTIONS.index("implementation")
    of_gradients = [STATE_OPTIONS.index(name) for name in _GRADIENT_OPTIONS]
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
    """By space, how many strategies fit; and by group, in which layouts any does.

    load, machine, parameters: fields are scalars. groups: from `by_activations`, layouts ordered by space.
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
                np.less_equal(by_layer, amounts.limit_bytes, out=fits[:, here])
                lightest = np.minimum.reduce(by_layer)
                one_fits = np.less_equal(lightest, amounts.limit_bytes, out=some_fits[here])
                all_fit = heaviest_of(here) <= amounts.limit_bytes
                nearest[space] = min(nearest[space], lightest[~one_fits].min(initial=np.inf))
                some_fit = np.flatnonzero(one_fits & ~all_fit) + start
                num_fitting, nearest[space] = _count_mixed(amounts, some_fit, nearest[space])
                counted.num_fitting += num_fitting + group.num_each * int(np.count_nonzero(all_fit))
        fitting.append(Fitting(with_any_layer=some_fits, by_layer=fits, layer=amounts.layer))
    for counted, amount in zip(counts, nearest, strict=True):
        if np.isfinite(amount):
            counted.nearest_bytes = float(amount * parameters.reserved_slack + parameters.fixed_bytes)
    return counts, fitting


def all_fitting(group: LayoutGroup) -> Fitting:
    """The `Fitting` of a group with unlimited memory."""
    num_layouts, num_layers = len(group.layouts), len(group.layers)
    every = np.ones(num_layouts, dtype=bool)
    return Fitting(with_any_layer=every, by_layer=every[None], layer=[0] * num_layers)


def any_fits(load: Load, machine: Machine, parameters: Parameters, groups: Sequence[LayoutGroup]) -> bool:
    """Whether any strategy of any group fits. groups: from `by_activations`."""
    split = _split_bytes(load, machine, parameters, groups)
    return any(bool((each.lightest()(slice(None)) <= each.limit_bytes).any()) for each in split)


def _count_mixed(amounts: _SplitBytes, which: Codes, nearest: float) -> tuple[int, float]:
    """Number of fitting strategies in some layouts, and the least bytes that do not fit, or `nearest`."""
    num_fitting = 0
    step = max(1, MESH_ELEMENTS // amounts.batches.needed[..., 0].size)
    for start in range(0, len(which), step):
        rows = which[start : start + step]
        batches, shares = amounts.batches.at(rows), amounts.shares.at(rows)
        for state, num_states in enumerate(amounts.num_states):
            needed = batches + shares[:, state, None]
            fits = needed <= amounts.limit_bytes
            by_layer = (int(np.count_nonzero(each)) for each in fits)
            num_fitting += num_states * sum(map(mul, amounts.num_layers, by_layer))
            nearest = float(needed[~fits & (needed < nearest)].min(initial=nearest))
    return num_fitting, nearest


def _split_bytes(
    load: Load, machine: Machine, parameters: Parameters, groups: Sequence[LayoutGroup]
) -> list[_SplitBytes]:
    """The bytes that the strategies of each group need."""
    kinds = [_OptionKinds.of(group) for group in groups]

    def batch_bytes(group: LayoutGroup) -> Numbers:
        mesh = group.mesh()
        kept = _peak_activation_bytes(load, mesh, parameters, machine.host_memory_bytes)
        return np.asarray(kept + sent_bytes(load, mesh))

    def shard_bytes(group: LayoutGroup) -> Numbers:
        # Communicators are outside the allocator; divided by its slack, they are comparable with its bytes.
        mesh = group.mesh()
        outside = communicator_bytes(mesh, parameters, machine.peer_ranks) / parameters.reserved_slack
        return np.asarray(_state_bytes_before_slack(held_memory(load, mesh), mesh, parameters) + outside)

    batches = computed_once(
        [kind.activation_key for kind in kinds],
        [
            replace(group.only(kind.layers, kind.chunks), layouts=group.layouts.each_batch())
            for group, kind in zip(groups, kinds, strict=True)
        ],
        codes_of=_activation_codes,
        compute=batch_bytes,
    )
    shares = computed_once(
        [kind.shard_key for kind in kinds],
        [
            replace(group.only(kind.layers, kind.states), layouts=group.layouts.each_share())
            for group, kind in zip(groups, kinds, strict=True)
        ],
        codes_of=lambda layouts: layouts.codes(_SHARD_SIZES),
        compute=shard_bytes,
    )
    return [
        _SplitBytes(
            batches=_Needed(needed=kept, different=of_kept, which=group.layouts.batch),
            shares=_Needed(needed=held, different=of_held, which=group.layouts.share),
            num_layers=np.bincount(kind.layer).tolist(),
            num_states=(np.bincount(kind.state) // len(kind.chunks)).tolist(),
            layer=kind.layer,
            limit_bytes=float((machine.memory_bytes - parameters.fixed_bytes) / parameters.reserved_slack),
        )
        for group, kind, (kept, of_kept), (held, of_held) in zip(groups, kinds, batches, shares, strict=True)
    ]


class _OptionKinds(Struct, frozen=True, kw_only=True):
    """The kinds of a group's option combinations that differ in memory.

    layers, chunks, states: index of one combination of each kind: of layer options, of the state options that
    affect activations, and of the other state options. layer, state: kind of each combination.
    activation_key, shard_key: equal for groups with the same activations, and with the same states, at equal
    sizes.
    """

    layers: Sequence[int]
    layer: Sequence[int]
    chunks: Sequence[int]
    states: Sequence[int]
    state: Sequence[int]
    activation_key: Hashable
    shard_key: Hashable

    @classmethod
    def of(cls, group: LayoutGroup) -> "_OptionKinds":
        """The kinds of a group from `by_activations`, whose schedule and gradient options are uniform."""
        layers, layer, of_layers = _distinct_combinations(LAYER_OPTIONS, group.layers, _MEMORY_LAYER_OPTIONS)
        chunks, _, of_chunks = _distinct_combinations(STATE_OPTIONS, group.states, _ACTIVATION_STATE_OPTIONS)
        states, state, of_states = _distinct_combinations(STATE_OPTIONS, group.states, _MEMORY_STATE_OPTIONS)
        schedule, stage, *of_gradients = (
            group.states[0][STATE_OPTIONS.index(name)]
            for name in ("schedule", "zero_stage", *_GRADIENT_OPTIONS)
        )
        return cls(
            layers=layers,
            layer=layer,
            chunks=chunks,
            states=states,
            state=state,
            activation_key=(
                of_layers,
                of_chunks,
                int(stage) >= WEIGHTS_SHARDED,
                int(stage) == 0,
                *of_gradients,
            ),
            shard_key=(of_layers, of_states, schedule),
        )


def _activation_codes(layouts: Layouts) -> Codes:
    """An integer code for every layout, equal for layouts with the same activations.

    The batch matters only by the number of micro-batches alive, at most twice the number of stages; dp
    and ep matter only by whether they exceed 1.
    """
    data_ranks, stages = layouts.column("dp"), layouts.column("pp")
    in_flight = layouts.column("global_batch_samples") / (data_ranks * layouts.column("microbatch_samples"))
    alive = np.minimum(in_flight, 2 * stages)
    several = 2 * (data_ranks > 1) + (layouts.column("ep") > 1)
    return layouts.codes(_ACTIVATION_SIZES, 4 * alive + several)


def _distinct_combinations(
    names: tuple[str, ...], combinations: Combinations, options: tuple[str, ...]
) -> tuple[list[int], list[int], Combinations]:
    """Group combinations by some options: an index of each kind, the kind of each, and the kinds' values."""
    positions = [names.index(each) for each in options]
    keys = [tuple(values[each] for each in positions) for values in combinations]
    different = tuple(dict.fromkeys(keys))
    return [keys.index(each) for each in different], [different.index(each) for each in keys], different

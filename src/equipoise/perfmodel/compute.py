"""Time of work on one accelerator: matrix products, attention, memory-bound work, kernel launches."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.perfmodel.layouts import (
    ALL_LINEAR,
    CODES,
    FULL_TRAINING,
    LORA,
    QLORA,
    QUERY_VALUE,
    RECOMPUTE_FULL,
    RECOMPUTE_SELECTIVE,
    StrategyGrid,
)
from equipoise.perfmodel.load import Floats, Load, Numbers
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.strategy import WEIGHTS_SHARDED
from equipoise.stats import deviations_of_slowest
from equipoise.units import BF16_BYTES, FP32_BYTES

EAGER = CODES["implementation"].index("eager")
BF16, FP16, FP32 = (CODES["precision"].index(name) for name in ("bf16", "fp16", "fp32"))
# From this precision on, products run in fewer than 16 bits and their inputs have to be quantised.
_FIRST_NARROW = CODES["precision"].index("fp8")
# Per frozen weight: 4 bits, and 0.127 bits of scales (Dettmers et al. 2023, double quantisation).
NF4_BYTES = (4 + 0.127) / 8
# The backward pass has two products for each in the forward pass: one for the gradient of the inputs, and one
# for that of the weights, which frozen weights do not need.
_BACKWARD_PER_FORWARD = 2.0
_FROZEN_BACKWARD_PER_FORWARD = 1.0
# Kernels per adapter: two products forward; backward, the gradients of two inputs and of two weights (Hu et
# al. 2021, equation 3). In both passes its two 32-bit matrices are cast first (unsloth/kernels: utils.py,
# fast_lora.py).
_ADAPTER_KERNELS, _ADAPTER_BACKWARD_KERNELS = 4.0, 6.0
# Kernels per use of a frozen 4-bit matrix: dequantise its scales, their offset, and its values.
_DEQUANTISING_KERNELS = 3.0
# Share of queries and values in the matrices of queries, keys and values.
_QUERY_VALUE_SHARE = 2 / 3
# Fused attention recomputes its scores backward: five products for two (Dao et al. 2022, appendix B).
_FUSED_BACKWARD_PER_FORWARD = 2.5
# The backward pass of unfused attention reads dropped scores, writes their gradient, reads it with the mask
# and writes it, reads both for softmax and writes one, and reads that twice: 19 bytes per score, against 13
# forward.
_SCORES_BACKWARD_PER_FORWARD = 19 / 13
# Fused softmax needs a multiple of four rows of heads; otherwise six kernels (widen, scale, make a mask,
# apply it, softmax, narrow) replace it: Megatron-LM, fused_softmax.py, is_kernel_available.
_SOFTMAX_ROWS, _SOFTMAX_KERNELS = 4, 6.0
# Tensor cores read 16 bytes at once: matrices whose width is not a multiple of 8 values of 2 bytes are read
# in halves, quarters or eighths of that.
_ALIGNMENTS = (8, 4, 2)
# Tensors in a transformer's layer: four matrices of attention, two of the rest, norms, and their biases.
TENSORS = 12
# Unfused Adam takes 12 kernels per tensor, which move 30 values per weight; fused Adam moves 7
# (`optimizer_time_s`).
_KERNELS_PER_PASS = 12 / (30 / 7 - 1)
# Width in columns up to which a block's experts reach `expert_fraction` of the rate of dense products.
_NARROW_EXPERT = 2048.0


class LayerTime(Struct, frozen=True, kw_only=True):
    """Seconds one rank needs for one layer and one micro-batch, by pass; arrays that broadcast.

    host_s: time the host needs to launch all kernels, independent of device time.
    """

    forward_s: Numbers
    backward_s: Numbers
    recompute_s: Numbers
    host_s: Numbers


def tokens_per_rank(load: Load, grid: StrategyGrid) -> Numbers:
    """Tokens of a micro-batch per context-parallel rank.

    Assumes every sequence is split evenly. Source: definition of context parallelism.
    """
    return np.asarray(grid.microbatch_samples * (load.sequence / grid.cp))


def product_rate_flop_per_s(machine: Machine, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """FLOP/s of a layer's large matrix products in each strategy's precision; NaN where the chip lacks it.

    Assumes products below 16 bits reach a calibrated fraction of the share of peak measured in 16 bits.
    """
    below = {
        "fp8": parameters.fp8_fraction,
        "fp8_rowwise": parameters.rowwise_fraction,
        "mxfp8": parameters.mxfp8_fraction,
        "fp4": parameters.fp4_fraction,
    }
    rates = _achieved_flop_per_s(machine, parameters)
    narrowed = tuple(
        rate * below.get(name, 1.0) for name, rate in zip(CODES["precision"], rates, strict=True)
    )
    return np.asarray(np.choose(grid.precision, narrowed))


def wide_rate_flop_per_s(machine: Machine, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """FLOP/s of large products of attention and logits: in 16 bits (bf16 if available) where layers run
    below.

    Assumes they reach the same share of peak as the products of layers in that precision.
    Source: Transformer Engine runs linear layers in FP8; attention, unless asked for, and logits stay in 16
    bits.
    """
    rates = _achieved_flop_per_s(machine, parameters)
    of_16_bits = np.where(np.isnan(rates[BF16]), rates[FP16], rates[BF16])
    wide = tuple(
        rate if name in {"fp32", "tf32", "fp16"} else of_16_bits
        for name, rate in zip(CODES["precision"], rates, strict=True)
    )
    return np.asarray(np.choose(grid.precision, wide))


def _achieved_flop_per_s(machine: Machine, parameters: Parameters) -> tuple[Numbers, ...]:
    """FLOP/s that products reach in each precision, at the share of peak of 16 bits; fp32 has its own share.

    Assumes the share of peak measured in 16 bits also holds in tf32.
    """
    common = parameters.product_fraction * power_rate(machine, parameters)
    shares = {"fp32": machine.achievable_fp32_fraction * common}
    narrow = machine.achievable_fraction * common
    return tuple(
        np.asarray(peak * shares.get(name, narrow))
        for name, peak in zip(CODES["precision"], machine.peak_flop_per_s, strict=True)
    )


def power_rate(machine: Machine, parameters: Parameters) -> Floats:
    """Rate of compute-bound work under the machine's power limit, relative to the power of its stated peaks.

    Source: dynamic power is frequency x voltage^2, and voltage rises with frequency, so rate is power^(1/3).
    """
    return machine.power_share**parameters.power_exponent


def backward_per_forward(grid: StrategyGrid) -> Numbers:
    """Products of the backward pass for each in the forward pass; fewer where weights are frozen."""
    full = grid.trained == FULL_TRAINING
    return np.asarray(np.where(full, _BACKWARD_PER_FORWARD, _FROZEN_BACKWARD_PER_FORWARD))


def is_narrow(grid: StrategyGrid) -> NDArray[np.bool_]:
    """Whether a layer's products run in fewer than 16 bits."""
    return np.asarray(grid.precision >= _FIRST_NARROW)


def loss_is_fused(grid: StrategyGrid) -> NDArray[np.bool_]:
    """Whether logits are never stored in fp32: a fused or chunked loss also computes gradients."""
    compiled = (grid.fused_loss > 0) & (grid.implementation != EAGER)
    return np.asarray(compiled | (grid.chunked_loss > 0))


def value_bytes(grid: StrategyGrid) -> Numbers:
    """Bytes of a value when sent or stored: 4 in fp32 and tf32, else 2."""
    is_wide = np.array([name in {"fp32", "tf32"} for name in CODES["precision"]])
    return np.where(is_wide[grid.precision], float(FP32_BYTES), BF16_BYTES)


def width_ratio(grid: StrategyGrid) -> Numbers:
    """Bytes of a value relative to the 2 bytes assumed in `Load`: 2 in fp32 and tf32, else 1."""
    return value_bytes(grid) / BF16_BYTES


def layer_time(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> LayerTime:
    """Device and host time of one layer and micro-batch on one rank.

    Assumes products are divided evenly over the tensor axis; each takes its FLOP at the achieved rate plus a
    fixed ramp time; memory-bound work moves its bytes at the achieved share of memory bandwidth.
    Source: t = F / (P e) (1 + F_half / F), with F_half / (P e) as a time.
    """
    tokens = tokens_per_rank(load, grid)
    sharded = tokens / grid.tp
    rate = product_rate_flop_per_s(machine, grid, parameters)
    rate = rate * np.where(np.equal(load.hidden, 0), parameters.convolution_fraction, 1.0)
    memory = 1.0 / (machine.memory_byte_per_s * parameters.memory_fraction)
    wider = width_ratio(grid)
    products = sharded * (load.dense_flop / rate) + load.num_dense_products * parameters.product_ramp_s
    experts = _expert_s(load, machine, grid, parameters)
    carried = tokens * load.product_whole_bytes + sharded * load.product_shared_bytes
    products = products + (memory * parameters.product_traffic * wider) * (
        carried + 2 * load.dense_params / grid.tp
    )
    idle = _partial_tile_flop(load, grid, parameters) / rate
    attention, scores = _attention_s(load, machine, grid, parameters)
    whole = np.where(grid.sequence_parallel > 0, sharded, tokens)
    traffic = (whole * load.whole_bytes + sharded * load.shared_bytes) * (
        wider * memory * parameters.layer_traffic
    )
    # Transformers older than fused attention may have hand-fused memory-bound work, and then need no
    # compiler.
    by_hand = grid.fused_attention <= 0
    transformers = np.where(by_hand, parameters.by_hand_traffic, parameters.eager_traffic)
    others = parameters.eager_traffic * parameters.other_eager_traffic
    uncompiled = np.where(np.equal(load.heads, 0), others, transformers)
    uncompiled = uncompiled * np.where(wider > 1, 1.0, parameters.cast_traffic)
    traffic = traffic * np.where(grid.implementation == EAGER, uncompiled, 1.0)
    quantising = is_narrow(grid) * (sharded * (load.quantised_bytes * parameters.quantise_traffic * memory))
    traffic = traffic + quantising
    unpacking = _dequantising_s(load, grid, memory)
    adapters = _non_attention_adapters_s(load, grid, rate, memory * parameters.product_traffic)
    forward = products + idle + experts + attention + scores + traffic + unpacking + adapters
    fused = grid.fused_attention > 0
    backward = (
        backward_per_forward(grid) * (products + experts)
        + idle
        + np.where(fused, _FUSED_BACKWARD_PER_FORWARD, _BACKWARD_PER_FORWARD) * attention
        + _SCORES_BACKWARD_PER_FORWARD * scores
        + parameters.backward_traffic * traffic
        + unpacking
        + _BACKWARD_PER_FORWARD * adapters
    )
    # Selective recomputation repeats unfused attention; if attention is fused, every second product and all
    # memory-bound work (torchtitan 2024, section 2.3), and under FSDP's policy also the experts' products.
    grouped = np.where(grid.zero_stage >= WEIGHTS_SHARDED, experts, 0.0)
    selected = np.where(fused, sharded * (load.again_flop / rate) + grouped + traffic, attention + scores)
    again = (grid.recompute == RECOMPUTE_FULL) * (parameters.recompute_share * forward) + (
        grid.recompute == RECOMPUTE_SELECTIVE
    ) * selected
    return LayerTime(
        forward_s=forward * (1 + load.frozen_share),
        backward_s=backward,
        recompute_s=again,
        host_s=_host_s(load, machine, grid, parameters),
    )


def has_non_attention_adapters(grid: StrategyGrid) -> NDArray[np.bool_]:
    """Whether LoRA has adapters outside attention, whose kept inputs and products are counted separately.

    Assumes the cost of adapters at their usual places (LoRA on attention, QLoRA on all linear layers) is
    included in the parameters, which were fitted to such steps.
    """
    return np.asarray((grid.trained == LORA) & (grid.adapted_layers == ALL_LINEAR))


def _non_attention_adapters_s(load: Load, grid: StrategyGrid, rate: Numbers, s_per_byte: Floats) -> Numbers:
    """Seconds of the forward products of a layer's LoRA adapters outside attention.

    Assumes each reads its layer's input once and writes the layer's result once more; the part hidden by FLOP
    is accounted for in `s_per_byte`.
    Source: Hu et al. 2021, equation 3: two products of `lora_rank` columns.
    """
    if not np.any(further := has_non_attention_adapters(grid)):
        return np.zeros(())
    values = further * (tokens_per_rank(load, grid) / grid.tp * load.linear_adapter_params)
    return np.asarray(values * (2 * grid.lora_rank / rate + value_bytes(grid) * s_per_byte))


def _partial_tile_flop(load: Load, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """FLOP per pass lost because the last tiles of products do not occupy all processors.

    Assumes half a wave of tiles is idle on average, for products of any size; weight-gradient products, which
    sum over tokens, are split so that none is idle; the loss is equal in forward and input-gradient products.
    Source: wave quantisation, NVIDIA's guide to matrix products; docs/experiments/0039.
    """
    summed = (load.num_summed_whole + load.num_summed_shared / grid.tp) / 2
    return np.asarray(2 * parameters.idle_outputs * summed)


def _dequantising_s(load: Load, grid: StrategyGrid, memory_s_per_byte: Floats) -> Numbers:
    """Seconds of dequantising a layer's 4-bit weights for one pass; 0 for other weights.

    Source: Dettmers et al. 2023, equation 5: weights are dequantised before each product, forward and
    backward.
    """
    if not np.any(grid.trained == QLORA):
        return np.zeros(())
    weights = load.dense_params / grid.tp + load.expert_params / grid.ep
    moved = (grid.trained == QLORA) * (NF4_BYTES + value_bytes(grid)) * weights
    return np.asarray(moved * memory_s_per_byte)


def _attention_s(
    load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters
) -> tuple[Numbers, Numbers]:
    """Seconds of attention's products, and of the memory traffic of its scores, in the forward pass.

    Unfused attention also computes masked scores.
    """
    wide = wide_rate_flop_per_s(machine, grid, parameters)
    sharded = tokens_per_rank(load, grid) / grid.tp
    # Blocks on the diagonal of a causal mask are half empty; their share is larger for shorter sequences.
    lost = parameters.attention_half_tokens * np.greater(load.score_flop, 0)
    # With Ulysses a rank attends to whole sequences, for some of the heads.
    pieces = np.where(grid.ulysses > 0, 1.0, grid.cp) if np.any(grid.ulysses > 0) else grid.cp
    held = load.sequence / pieces
    kernels = _attention_kernel_efficiency(machine, parameters)
    if np.any(grid.native_attention > 0):
        kernels = np.where(grid.native_attention > 0, np.maximum(kernels, 1.0), kernels)
    reached = np.minimum(parameters.attention_fraction * kernels, 1.0) * (held / (held + lost))
    rate = wide * (reached / parameters.product_fraction)
    if np.any(pieces > 1):
        rate = rate * np.where(pieces > 1, parameters.split_attention, 1.0)
    # Code that casts scores to fp32 for softmax moves the same bytes in any precision.
    wider = width_ratio(grid)
    uncompiled = np.maximum(wider, parameters.eager_score_traffic)
    moved = load.score_bytes * np.where(grid.implementation == EAGER, uncompiled, wider)
    moved = moved * parameters.score_traffic
    plain = grid.fused_attention <= 0
    flop = load.attention_flop + plain * load.score_flop
    if np.any(machine.pads_heads):
        padding = load.attention_padding_flop + plain * load.score_padding_flop
        flop = flop + machine.pads_heads * padding
    products = sharded * (flop / rate)
    scores = sharded * (plain * (moved / (machine.memory_byte_per_s * parameters.memory_fraction)))
    return np.asarray(products), np.asarray(scores)


def _attention_kernel_efficiency(machine: Machine, parameters: Parameters) -> Numbers:
    """Efficiency of the software's attention kernels on this chip generation; 1 on chips before Hopper."""
    of_hopper, of_blackwell = parameters.asynchronous_attention, parameters.tensor_memory_attention
    generation = machine.asynchronous_products
    return np.asarray(np.where(generation > 1, of_blackwell, np.where(generation > 0, of_hopper, 1.0)))


def _expert_s(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Seconds of the grouped products of a rank's experts, forward; each weight is read once."""
    if not np.any(load.experts):
        return np.zeros(())
    rate = product_rate_flop_per_s(machine, grid, parameters) * expert_rate_fraction(load, parameters)
    tokens = tokens_per_rank(load, grid) / grid.tp
    weights = load.expert_params / grid.ep * value_bytes(grid)
    return np.asarray(
        tokens * (load.expert_flop * parameters.expert_imbalance / rate)
        + weights / (machine.memory_byte_per_s * parameters.memory_fraction)
        + load.num_expert_products * _num_expert_launches(load, grid, parameters) * parameters.product_ramp_s
        + load.num_routings * (grid.full_graphs <= 0) * parameters.expert_sync_s
    )


def _num_expert_launches(load: Load, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Kernel launches per expert product of a rank; at least one.

    Source: Transformer Engine's grouped linear layers launch each expert's product; `torch._grouped_mm`, and
    Megablox and ragged products in JAX, launch one for all. A graph of a whole step also has one: a kernel
    that reads each expert's token count from the device (Transformer Engine 2.15, grouped MLP of te.ops).
    """
    further = np.maximum(load.experts / grid.ep, 1.0) - 1
    return np.asarray(1 + (grid.full_graphs <= 0) * (parameters.separate_experts * further))


def expert_rate_fraction(load: Load, parameters: Parameters) -> Numbers:
    """Rate of the experts' products relative to dense products.

    Assumes the cost of grouping is a time per column, so that wide experts run like dense layers.
    Source: Grok-1, with experts of 32,768 columns, against those of 768 to 2,880: docs/experiments/0028.
    """
    products = 2 * load.top_k * load.num_expert_products * load.hidden
    columns = load.expert_flop / np.maximum(products, 1.0)
    lost = (1 - parameters.expert_fraction) * np.minimum(1.0, _NARROW_EXPERT / np.maximum(columns, 1.0))
    return np.asarray(1 - lost)


def _host_s(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Seconds to launch a layer's kernels forward, backward and for recomputation; jitter of ranks adds to
    it.

    Assumes CUDA graphs of layers exclude the kernels of experts, whose shapes depend on the routing; a graph
    of a whole step includes them.
    Source: NVIDIA/Megatron-LM, cuda_graph_scope (attn, moe_router, moe_preprocess; full_iteration).
    """
    eager = np.where(grid.implementation == EAGER, parameters.eager_launch, 1.0)
    passes = (
        1
        + load.frozen_share
        + _BACKWARD_PER_FORWARD
        + (grid.recompute == RECOMPUTE_FULL) * parameters.recompute_share
    )
    waiting = 1 + parameters.launch_jitter * deviations_of_slowest(grid.tp * grid.cp)
    kernels = load.num_kernels + load.num_routings * parameters.routing_kernels
    if np.any(grid.cuda_graphs > 0):
        kernels = kernels * np.where(grid.cuda_graphs > 0, parameters.graph_launch, 1.0)
    if np.any(load.experts):
        of_each = np.where(is_narrow(grid), 1.0, 0.5) * load.num_expert_kernels * parameters.expert_launch
        kernels = kernels + of_each * _num_expert_launches(load, grid, parameters)
    if np.any(grid.full_graphs > 0):
        every = load.num_kernels + load.num_routings * parameters.routing_kernels
        every = every + load.num_expert_kernels
        kernels = np.where(grid.full_graphs > 0, parameters.graph_launch * every, kernels)
    rows = load.heads / grid.tp * grid.microbatch_samples
    split = (grid.fused_attention <= 0) & (rows % _SOFTMAX_ROWS > 0)
    launches = kernels * passes + split * (_SOFTMAX_KERNELS * (passes - 1))
    if np.any(grid.trained != FULL_TRAINING):
        launches = launches + _adapter_kernels(load, grid, parameters)
    each_s = parameters.launch_s * eager * waiting
    if np.any(machine.grace_host > 0):
        on_grace = (machine.grace_host > 0) & (grid.full_graphs <= 0)
        each_s = each_s * np.where(on_grace, parameters.grace_launch, 1.0)
    return np.asarray(launches * each_s)


def _adapter_kernels(load: Load, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Additional kernels per layer in training adapters: forward, backward and recomputation.

    Assumes frozen matrices need no product for weight gradients; scaling and adding an adapter's result is
    fused into a product; and its two 32-bit matrices are cast before each use.
    Source: Hu et al. 2021, equation 3, and its derivatives; unsloth/kernels/utils.py (matmul_lora,
    fast_dequantize).
    """
    frozen = grid.trained != FULL_TRAINING
    layers = grid.adapted_layers
    of_attention = np.where(layers == QUERY_VALUE, _QUERY_VALUE_SHARE, 1.0)
    adapted = frozen * (of_attention * load.num_adapted + (layers == ALL_LINEAR) * load.num_linear_adapted)
    again = (grid.recompute == RECOMPUTE_FULL) * parameters.recompute_share
    more = adapted * (_ADAPTER_KERNELS * (1 + again) + _ADAPTER_BACKWARD_KERNELS)
    unpacked = (grid.trained == QLORA) * _DEQUANTISING_KERNELS * (2 + again)
    return np.asarray(more + (unpacked - frozen) * (load.num_adapted + load.num_linear_adapted))


def head_time_s(load: Load, machine: Machine, grid: StrategyGrid, parameters: Parameters) -> Numbers:
    """Seconds of logits and loss for one micro-batch, forward and backward, on the last stage.

    Assumes a matrix whose width is not a multiple of 16 bytes loses a share of its rate per halving of the
    alignment, and that the output matrix is frozen where adapters are trained.
    Source: alignment as in NVIDIA's matrix multiplication guide; host and device as in a layer.
    """
    sharded = tokens_per_rank(load, grid) / grid.tp
    wide = wide_rate_flop_per_s(machine, grid, parameters)
    memory = 1.0 / (machine.memory_byte_per_s * parameters.memory_fraction)
    width = np.floor(load.vocabulary / grid.tp)
    halvings = sum((width % each > 0) * 1.0 for each in _ALIGNMENTS)
    reached = parameters.head_fraction * parameters.unaligned_fraction**halvings
    products = (
        (1 + load.frozen_share + backward_per_forward(grid)) * sharded * (load.head_flop / (wide * reached))
    )
    moved = np.where(loss_is_fused(grid), load.fused_loss_bytes, load.loss_bytes)
    if np.any(plain := grid.plain_loss > 0):
        # As many reads and writes as with fp32, in the width of values, unsharded on every tensor rank.
        moved = np.where(plain, load.loss_bytes * (value_bytes(grid) / FP32_BYTES) * grid.tp, moved)
    eager = np.where(grid.implementation == EAGER, parameters.eager_launch, 1.0)
    host = np.asarray(
        np.greater(load.vocabulary, 0)
        * (parameters.head_kernels * parameters.launch_s)
        * (np.where(grid.full_graphs > 0, parameters.graph_launch, 1.0) * eager)
    )
    return soft_maximum(products + sharded * (moved * memory * parameters.head_traffic), host)


def soft_maximum(busy_s: Numbers, host_s: Numbers) -> Numbers:
    """(busy^2 + host^2)^(1/2), in seconds, for device and host running concurrently.

    Assumes neither is fully hidden when both are similar: the 2-norm lies between their maximum and their
    sum.
    Source: a smooth maximum, an assumption of this model.
    """
    return np.asarray(np.sqrt(busy_s * busy_s + host_s * host_s))


def optimizer_time_s(
    load: Load, machine: Machine, grid: StrategyGrid, state_bytes: Numbers, parameters: Parameters
) -> Numbers:
    """Seconds of a memory-bound optimizer step that reads and writes `state_bytes`.

    Assumes only transformers in eager 32-bit code have unfused optimizers: mixed precision uses fused ones
    (apex), a compiler fuses, and other models are trained with SGD, which has few kernels. Each pass over a
    tensor beyond the first launches additional kernels.
    Source: NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/BERT, run_squad.py and optimization.py.
    """
    is_plain = (grid.implementation == EAGER) & (value_bytes(grid) > BF16_BYTES)
    more = np.where(is_plain & np.greater(load.hidden, 0), parameters.optimizer_passes - 1.0, 0.0)
    rate: Floats = machine.memory_byte_per_s * parameters.memory_fraction
    busy_s = 2 * state_bytes * parameters.optimizer_traffic * (1.0 + more) / rate
    kernels = np.maximum(more, 0.0) * _KERNELS_PER_PASS * (TENSORS * load.layers / grid.pp)
    return soft_maximum(busy_s, kernels * (parameters.launch_s * parameters.eager_launch))

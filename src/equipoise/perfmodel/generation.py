"""Time of generating completions, as reinforcement learning does before each training step."""

import math
from typing import Final

import numpy as np
from msgspec import Struct

from equipoise.perfmodel.collectives import all_reduce_s
from equipoise.perfmodel.compute import BF16, FP16, FP32, NF4_BYTES, power_rate
from equipoise.perfmodel.load import Numbers
from equipoise.perfmodel.machine import Group, Machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Rollout, Workload
from equipoise.units import BF16_BYTES

# Share of memory that an engine may use: on accelerators that also train (`gpu_memory_utilization` in NeMo
# RL's examples/configs/grpo_math_1B.yaml), and on dedicated ones (default of vLLM).
SHARED_MEMORY: Final = 0.6
OWN_MEMORY: Final = 0.9
# Limit on ranks per engine: the widest published recipe has 32 (NeMo RL v0.4, DeepSeek-V3).
_MAX_RANKS: Final = 64
_BINS: Final = 128


class Generation(Struct, frozen=True, kw_only=True):
    """Time of generating a batch of completions. ranks: accelerators per engine, which share its weights."""

    seconds: float
    ranks: int


def cache_bytes_per_token(model: Transformer, ranks: int = 1) -> float:
    """Bytes that a token adds to one attention block's key-value cache, over all ranks of an engine.

    Assumes every rank keeps whole heads, at least one, and with latent attention the whole latent vector.
    Source: DeepSeek-V2 2024, table 1 (latent attention keeps its compressed vector and the rotated part);
    vLLM, `ModelConfig.get_num_kv_heads` (max(1, heads / ranks); one with latent attention).
    """
    if model.kv_rank:
        return BF16_BYTES * ranks * (model.kv_rank + model.rope_head_size)
    value = 0 if model.kv_shared else model.value_head_size or model.head_size
    heads = -(-model.kv_heads // ranks) * ranks
    return BF16_BYTES * heads * (model.head_size + value)


def weights_read(model: Transformer, num_sequences: Numbers) -> Numbers:
    """Number of weights that one decoding step of `num_sequences` sequences reads.

    Assumes tokens choose experts independently and evenly; only single rows of the input table are read.
    """
    inputs = 0 if model.tied_embeddings else model.vocabulary * model.hidden
    experts = model.num_expert_blocks * model.experts * model.expert_params
    touched = 0.0 if not model.experts else 1 - (1 - model.top_k / model.experts) ** num_sequences
    return np.asarray(model.params - inputs - experts + experts * touched)


def still_generating(rollout: Rollout, at_tokens: Numbers) -> Numbers:
    """Share of completions longer than `at_tokens`.

    Assumes exponential lengths, truncated at the limit, with the stated mean.
    """
    limit, mean = float(rollout.most_completion_tokens), float(rollout.completion_tokens)
    if mean > 0.99 * limit:  # all of one length
        return np.where(at_tokens < limit, 1.0, 0.0)
    low, high = mean * 1e-3, limit * 1e3
    for _ in range(60):  # the mean of the cut lengths rises with the scale
        scale = math.sqrt(low * high)
        low, high = (scale, high) if scale * -math.expm1(-limit / scale) < mean else (low, scale)
    return np.where(at_tokens < limit, np.exp(-at_tokens / high), 0.0)


class RolloutSplit(Struct, frozen=True, kw_only=True):
    """A reinforcement-learning step on accelerators that generate and train in turn, and on two pools.

    With pools, generation for the next step and training overlap; None where no split fits. Seconds are those
    of the model, without other work of such steps.
    """

    num_shared: int
    generation_s: float
    training_s: float
    ranks_per_engine: int
    num_generating: int | None = None
    num_training: int | None = None
    pooled_generation_s: float | None = None
    pooled_training_s: float | None = None

    @property
    def shared_step_s(self) -> float:
        """Generation followed by training."""
        return self.generation_s + self.training_s

    @property
    def pooled_step_s(self) -> float | None:
        """Time of the slower pool."""
        if self.pooled_generation_s is None or self.pooled_training_s is None:
            return None
        return max(self.pooled_generation_s, self.pooled_training_s)


class Engines(Struct, frozen=True, kw_only=True):
    """The accelerators that generate. memory_share: share of their memory for weights and caches."""

    machine: Machine
    num_accelerators: int
    memory_share: float


def generation(
    about: Workload, engines: Engines, parameters: Parameters, *, num_completions: float
) -> Generation | None:
    """The fastest way to generate a step's completions; None where none are needed, or they do not fit.

    Assumes a decoding step takes the longer of reading its weights and cached keys and values once and of its
    products, and then two all-reduces per layer over the engine's ranks; ranks split attention by heads, not
    by sequences; waiting sequences replace finished ones; and the prompt of a group is processed once.
    Training states are offloaded meanwhile, as frameworks with shared accelerators do.
    Source: Pope et al. 2022 (arXiv:2211.05102), section 2; Kwon et al. 2023 (arXiv:2309.06180).
    """
    found = []
    ranks = 1
    most = min(engines.num_accelerators, _MAX_RANKS)
    while about.rollout and about.transformer and ranks <= most and about.transformer.heads % ranks == 0:
        one = _generation(about, engines, parameters, ranks=ranks, num_completions=num_completions)
        found += [] if one is None else [one]
        ranks *= 2
    return min(found, key=lambda each: each.seconds, default=None)


def _serving_peak(machine: Machine) -> float:
    """Peak FLOP/s of the precision in which engines multiply: bf16, else fp16, else fp32."""
    peaks = (float(machine.peak_flop_per_s[each]) for each in (BF16, FP16, FP32))
    return next((peak for peak in peaks if not math.isnan(peak)), math.nan)


def _generation(
    about: Workload, engines: Engines, parameters: Parameters, *, ranks: int, num_completions: float
) -> Generation | None:
    """`generation` with a given number of ranks per engine."""
    model, rollout, machine = about.transformer, about.rollout, engines.machine
    assert model is not None
    assert rollout is not None
    weight_bytes = NF4_BYTES if about.trained == "qlora" else BF16_BYTES
    num_engines = engines.num_accelerators // ranks
    memory_bytes = engines.memory_share * float(machine.memory_bytes) * ranks
    mean_tokens = rollout.prompt_tokens + rollout.completion_tokens
    cache_bytes = cache_bytes_per_token(model, ranks) * model.num_attention_blocks
    room = memory_bytes - weight_bytes * model.params
    most = math.floor(room / (cache_bytes * mean_tokens)) if cache_bytes else math.inf
    if room <= 0 or most < 1:
        return None
    waiting = math.ceil(num_completions / num_engines)
    concurrent = int(min(waiting, most))
    rate = float(
        _serving_peak(machine)
        * machine.achievable_fraction
        * parameters.product_fraction
        * power_rate(machine, parameters)
    )
    read_byte_per_s = float(ranks * machine.memory_byte_per_s * parameters.memory_fraction)
    node_size = int(min(ranks, float(machine.node_size)))
    group = Group(ranks_per_node=node_size, num_nodes=-(-ranks // node_size))
    num_sums = 2 * model.layers

    def decode_s(num_sequences: Numbers, tokens: Numbers) -> Numbers:
        keys = np.array([model.attention_context(max(1, round(2 * each))) for each in np.ravel(tokens)])
        read = weight_bytes * weights_read(model, num_sequences) + num_sequences * keys * cache_bytes
        flop = num_sequences * 2 * model.active_params
        sums = all_reduce_s(
            num_sequences * (BF16_BYTES * model.hidden), group, machine.wires, parameters.collective
        )
        return np.asarray(np.maximum(read / read_byte_per_s, flop / (ranks * rate)) + num_sums * sums)

    # Engines stay full while sequences wait; then they drain until the longest completion ends.
    width = rollout.most_completion_tokens / _BINS
    at = np.asarray((np.arange(_BINS) + 0.5) * width, dtype=np.float64)
    share = still_generating(rollout, at)
    running = share * num_completions >= 0.5  # noqa: PLR2004 - rounds to one completion
    full_steps = (waiting - concurrent) * rollout.completion_tokens / concurrent
    half_way = np.array([rollout.prompt_tokens + rollout.completion_tokens / 2], dtype=np.float64)
    full_s = full_steps * decode_s(np.array([float(concurrent)]), half_way)[0]
    drain = decode_s(np.maximum(1.0, concurrent * share), rollout.prompt_tokens + at)
    prompts = num_completions / rollout.group_size * rollout.prompt_tokens
    read_s = prompts * 2 * model.active_params / (ranks * num_engines * rate)
    return Generation(
        seconds=float(full_s + width * np.sum(drain[running]) + read_s),
        ranks=ranks,
    )

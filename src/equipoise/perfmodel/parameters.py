"""Every calibrated number of the model: its prior, its meaning and where the prior is from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from equipoise.perfmodel.collective_correction import stacked_corrections
from equipoise.perfmodel.collective_parameters import COLLECTIVE_PRIORS, CollectiveParameters
from equipoise.perfmodel.prior import Prior


def _prior(
    median: float,
    log_sd: float,
    meaning: str,
    source: str,
    largest: float = math.inf,
    *,
    local: bool = False,
) -> Any:  # noqa: ANN401 - as dataclasses.field
    """A field whose default is its prior's median; log_sd is the standard deviation of its logarithm."""
    told = {"log_sd": log_sd, "meaning": meaning, "source": source, "largest": largest, "local": local}
    return field(default=median, metadata=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """One calibration of the model; as built without arguments, the medians of the priors.

    Every parameter is positive and its prior log-normal, so that no fit can reach a rate or time below zero.
    """

    product_fraction: float = _prior(
        0.88,
        0.05,
        "of the rate of the best matrix product, what a layer's products reach when large",
        "large cuBLAS products beside MAMF tables: A100 230-250 of 271 TFLOP/s",
        1.0,
    )
    product_ramp_s: float = _prior(
        5e-6,
        0.4,
        "time a matrix product takes beside its FLOP: its start and its tail",
        "cuBLAS traces",
    )
    product_traffic: float = _prior(
        0.4,
        0.4,
        "of the time products take to read and write memory, what their FLOP do not hide",
        "roofline",
        1.0,
    )
    head_fraction: float = _prior(
        0.85, 0.25, "of the rate of a layer's products, what those of the output matrix reach", "fp32 logits"
    )
    unaligned_fraction: float = _prior(
        0.99,
        0.5,
        "rate of the output matrix that each halving of its alignment below 16 bytes leaves",
        "frameworks pad vocabularies so that nothing is lost; where they do not: NVIDIA's guide to products",
        1.0,
        local=True,
    )
    head_kernels: float = _prior(
        30.0, 0.2, "kernels of embedding, logits, loss and their ways back", "count in Megatron-LM"
    )
    attention_fraction: float = _prior(
        0.5,
        0.3,
        "of the rate of the best matrix product, what attention reaches",
        "FlashAttention-2, table 1",
        1.0,
    )
    split_attention: float = _prior(
        0.8,
        0.3,
        "of the rate of attention, what it reaches piece by piece over a context axis",
        "partial results merged in fp32 (Liu et al. 2023); Llama team 2024, section 3.3.2",
        1.0,
    )
    expert_fraction: float = _prior(
        0.6,
        0.4,
        "of the rate of dense products, what grouped products of experts reach",
        "MegaBlocks 2022",
        1.0,
    )
    expert_sync_s: float = _prior(
        2e-4,
        0.7,
        "time idle in a block of experts until the host knows how many tokens each gets",
        "a copy to the host and what it then launches: 10-20 launches",
    )
    expert_imbalance: float = _prior(
        1.1, 0.1, "tokens of the busiest expert rank over the mean", "balance losses keep it near one"
    )
    fp8_fraction: float = _prior(
        0.9,
        0.15,
        "of the bf16 fraction of peak, what fp8 products reach",
        "cuBLAS on H100: 1.4-1.5 of 1.98 PFLOP/s, where bf16 reaches 0.8 of its peak",
    )
    rowwise_fraction: float = _prior(
        0.45, 0.3, "likewise with scales a row", "torchao float8 README: rowwise gains less"
    )
    mxfp8_fraction: float = _prior(
        0.9, 0.15, "likewise with scales a block of 32", "cuBLAS on B200: 3.2-3.5 of 4.5 PFLOP/s"
    )
    fp4_fraction: float = _prior(
        0.8,
        0.3,
        "likewise of fp4",
        "cuBLAS on B200: 6-7 of 9 PFLOP/s; the way back keeps some products wider",
    )
    quantise_traffic: float = _prior(
        1.0, 0.5, "bytes of quantising over the count of `Load`", "often fused with norm or activation"
    )
    power_exponent: float = _prior(
        0.33,
        0.3,
        "rate of compute-bound work goes as power to this",
        "frequency x voltage^2; an RTX 3090 at 80 % of its power keeps 95 % (Puget Systems 2020)",
    )
    memory_fraction: float = _prior(
        0.86,
        0.06,
        "of the memory's byte/s, what memory-bound work reaches",
        "STREAM on accelerators, 80-92 %",
        1.0,
    )
    layer_traffic: float = _prior(
        1.0, 0.15, "bytes of memory-bound work in a layer over the count of `Load`", "fusion varies"
    )
    score_traffic: float = _prior(1.0, 0.1, "bytes of unfused attention over the count of `Load`", "likewise")
    head_traffic: float = _prior(1.0, 0.3, "bytes of logits and loss over the count of `Load`", "likewise")
    backward_traffic: float = _prior(
        1.7,
        0.12,
        "bytes of memory-bound work on the way back over those forward",
        "count: norm 10 for 4, dropout 9 for 7, activation 24 for 16, biases 7 for 0",
    )
    recompute_share: float = _prior(
        1.0,
        1.0,
        "of a forward pass, what recomputing layers in full really does again",
        "Korthikanti et al. 2022, table 4: all of it; a campaign's word for it may not hold",
        1.0,
        local=True,
    )
    eager_traffic: float = _prior(
        1.8,
        0.3,
        "bytes of memory-bound work without a compiler over those with one",
        "torchtitan 2024, table 1",
    )
    launch_s: float = _prior(
        12e-6, 0.7, "host time to launch one kernel, compiled", "PyTorch profiler traces"
    )
    eager_launch: float = _prior(
        2.0, 0.4, "host time a kernel without a compiler, over that with one", "likewise"
    )
    launch_jitter: float = _prior(
        0.05,
        0.5,
        "growth of host time where ranks wait for each other, per sqrt(2 ln ranks)",
        "extreme values",
    )
    tp_overlap: float = _prior(
        0.5, 0.5, "share of tp traffic left bare when it runs beside products", "async TP"
    )
    tp_bare: float = _prior(
        0.7,
        0.6,
        "share of sums on the way back that products for the weights' gradients do not hide",
        "Megatron-LM of 2021 hides none, since 2022 all: Korthikanti et al. 2022, table 4",
        1.0,
        local=True,
    )
    dp_overlap: float = _prior(
        0.5,
        0.5,
        "share of gradient traffic left bare beside the way back",
        "PyTorch DDP 2020 hides most, Megatron-LM of 2021 nothing",
        1.0,
    )
    shard_overlap: float = _prior(
        0.15, 0.7, "share of gathered weights left bare beside a layer", "FSDP 2023"
    )
    shard_copy_s: float = _prior(
        5e-6,
        0.5,
        "time of a copy out of gathered parts, where tensors are gathered one by one",
        "PyTorch launches one in 5 to 10 us, a device makes a short one in 2 to 5",
        local=True,
    )
    cp_overlap: float = _prior(
        0.3, 0.7, "share of key and value traffic left bare beside attention", "ring attention"
    )
    ep_overlap: float = _prior(
        0.8, 0.3, "share of expert traffic left bare beside products", "DeepSeek-V3 2024, DualPipe"
    )
    pp_overlap: float = _prior(0.7, 0.5, "share of traffic between stages left bare", "Narayanan et al. 2021")
    optimizer_traffic: float = _prior(
        1.25, 0.3, "bytes of an optimizer step over those of its states", "fused Adam, gradients and norms"
    )
    rank_jitter: float = _prior(
        0.005,
        0.7,
        "sd of a rank's step time over its mean: the slowest of n ranks is sqrt(2 ln n) above",
        "MegaScale",
    )
    step_s: float = _prior(
        2e-3, 1.0, "time of a step that nothing else explains: input, logging, hooks", "profiles", local=True
    )
    fixed_bytes: float = _prior(
        1.6e9, 0.4, "memory of context, libraries and communicators", "nvidia-smi, 1-2 GB"
    )
    activation_slack: float = _prior(
        1.0, 0.2, "activations held over the count of `Load`", "Korthikanti et al. 2022, table 4"
    )
    reserved_slack: float = _prior(
        1.06, 0.05, "memory the allocator reserves over what lives", "caching allocators"
    )

    collective: CollectiveParameters = field(default_factory=CollectiveParameters)

    def value(self, name: str) -> float:
        """The parameter of a name of PRIORS."""
        holder, _, last = name.rpartition(".")
        return float(getattr(self.collective if holder else self, last))

    def changed(self, values: Mapping[str, float]) -> "Parameters":
        """These parameters with some replaced; names as in PRIORS."""
        own = {name: value for name, value in values.items() if "." not in name}
        links: dict[str, Any] = {
            name.partition(".")[2]: value for name, value in values.items() if "." in name
        }
        return replace(self, collective=replace(self.collective, **links), **own)

    def elsewhere(self) -> "Parameters":
        """These parameters for other campaigns: what is local to one returns to its prior's median."""
        return self.changed({each.name: each.median for each in PRIORS if each.local})


def stacked(draws: Sequence[Parameters]) -> Parameters:
    """One calibration whose every number is an array, an element a draw, that broadcasts against rows.

    draws: at least one. Returns numbers of shape (n_draws, 1): what is estimated with them has a row a draw.
    """

    def column(name: str) -> Any:  # noqa: ANN401 - an array where the record says float
        return np.array([each.value(name) for each in draws], dtype=float)[:, None]

    whole = Parameters().changed({each.name: column(each.name) for each in PRIORS})
    measured = stacked_corrections([each.collective.measured for each in draws])
    return replace(whole, collective=replace(whole.collective, measured=measured))


_MEDIANS = Parameters()
# Every number a calibration may move; those of collectives are called `collective.<name>`.
PRIORS: tuple[Prior, ...] = (
    *(
        Prior(name=each.name, median=getattr(_MEDIANS, each.name), **each.metadata)
        for each in fields(Parameters)
        if each.name != "collective"
    ),
    *(replace(each, name=f"collective.{each.name}") for each in COLLECTIVE_PRIORS),
)

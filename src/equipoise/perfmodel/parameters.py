"""Every calibrated number of the model: its meaning, its prior, and where the prior is from.

With them the correction by which measured collectives differ from the model, looked up by size and group.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.perfmodel.load import Floats
from equipoise.perfmodel.machine import Group

Numbers: TypeAlias = NDArray[np.float64]

# Sizes of a table of corrections: so many to an octave, from 1 byte to 1 TiB.
STEPS = 8
_MOST_OCTAVES = 40
SIZES = 2.0 ** (np.arange(_MOST_OCTAVES * STEPS + 1) / STEPS)
# What was measured holds for sizes and groups up to about four times as large, or small: results
# hardly change from 1 to 3 octaves (docs/experiments/0005-collectives.md).
OCTAVES = 2.0
# Groups nearer than the first are no more certain, and groups farther away than the second no less: errors of
# the law itself were measured between.
NEAREST_OCTAVES, FARTHEST_OCTAVES = 0.5, 3.0
_NEAR = 10.0**-6
_NUDGE = 1e-3  # of a parameter, to see what a prediction changes with it


class Prior(Struct, frozen=True, kw_only=True):
    """A log-normal prior: the number lies within a factor exp(log_sd) of its median two times in three.

    name: the field it belongs to. largest: what it cannot exceed, inf where nothing forbids it.
    local: it belongs to how one campaign was run (its software, its settings), not to machines: a fitted
    value is of no use for other campaigns.
    """

    name: str
    median: float
    log_sd: float
    meaning: str
    source: str
    largest: float = float("inf")
    local: bool = False


def prior(
    log_sd: float, meaning: str, source: str, largest: float = math.inf, *, local: bool = False
) -> dict[str, Any]:
    """What `Annotated` says of a field with a prior, whose default is the median: the rest of the prior."""
    return {"log_sd": log_sd, "meaning": meaning, "source": source, "largest": largest, "local": local}


def priors_of(medians: Any) -> tuple[Prior, ...]:  # noqa: ANN401 - any record of prior fields
    """The priors of a record's fields declared with `prior`. medians: the record without arguments."""
    return tuple(
        Prior(name=name, median=getattr(medians, name), **hint.__metadata__[0])
        for name, hint in type(medians).__annotations__.items()
        if hasattr(hint, "__metadata__")
    )


def prior_log_sd(
    predict: Callable[[Mapping[str, float]], Floats], priors: Sequence[Prior]
) -> NDArray[np.float64]:
    """Standard deviation of a prediction's logarithm under the priors alone, in the prediction's shape.

    predict: the prediction with some parameters changed, all others at their priors' medians.
    Assumes that parameters are independent and small changes add up.
    Source: first-order propagation of the priors' log_sd.
    """
    centre, step = predict({}), 1 - _NUDGE
    slopes = np.stack(
        [np.log(predict({each.name: each.median * step}) / centre) / np.log(step) for each in priors]
    )
    return np.asarray(np.sqrt(np.tensordot([each.log_sd**2 for each in priors], slopes**2, 1)))


class Correction(Struct, frozen=True, kw_only=True, eq=False):
    """Log(measured / modelled) of one operation by size, for the groups it was measured on.

    log_factor: (n_groups, n_sizes) at SIZES, or (n_draws, n_groups, n_sizes). log_inside, log_nodes:
    (n_groups,) ranks per node and nodes of each, in octaves. log_octave: what each octave away from a group
    measured adds; shape (n_draws, 1) where there are draws.
    """

    log_factor: Numbers
    log_inside: Numbers
    log_nodes: Numbers
    log_octave: Floats = 0.0

    def at(self, payload_bytes: Floats, group: Group) -> Numbers:
        """Log(measured / modelled) of messages; arguments broadcast, and do not depend on draws.

        0 for groups within nodes where only groups over several were measured, and the other way round.
        Assumes that what the law leaves fades with the distance in octaves from what was measured.
        Source: weights of inverse distance (Shepard 1968) between several groups.
        """
        inside, nodes = np.log2(group.ranks_per_node), np.log2(group.num_nodes)
        position = np.clip(np.log2(np.maximum(payload_bytes, 1.0)) * STEPS, 0.0, len(SIZES) - 1.0)
        below = np.minimum(position.astype(np.intp), len(SIZES) - 2)
        share = position - below
        nearest, weight, found = np.full((), np.inf), np.zeros(()), np.zeros(())
        for number, (known_inside, known_nodes) in enumerate(
            zip(self.log_inside, self.log_nodes, strict=True)
        ):
            same_links = np.equal(np.greater(nodes, 0), known_nodes > 0)
            far = np.where(same_links, np.hypot(inside - known_inside, nodes - known_nodes), np.inf)
            near = 1.0 / (far + _NEAR)
            table = self.log_factor[..., number, :]
            lower, upper = np.take(table, below, axis=-1), np.take(table, below + 1, axis=-1)
            found = found + near * (lower + share * (upper - lower))
            weight, nearest = weight + near, np.minimum(nearest, far)
        known = np.isfinite(nearest)
        far = np.where(known, nearest, 0.0)
        fades = known * np.exp(-far / OCTAVES) / np.where(known, weight, 1.0)
        unsure = np.clip(far, NEAREST_OCTAVES * (far > _NEAR), FARTHEST_OCTAVES)
        return np.asarray(found * fades + self.log_octave * unsure)


def _stacked_corrections(draws: Sequence[Mapping[str, Correction] | None]) -> dict[str, Correction] | None:
    """Tables of several draws as one: an element a draw. None where there are none.

    draws: at least one, of the same operations and groups.
    """
    first = draws[0]
    if first is None:
        return None
    found = {}
    for operation, one in first.items():
        each = [tables[operation] for tables in draws if tables is not None]
        found[operation] = Correction(
            log_factor=np.stack([table.log_factor for table in each]),
            log_inside=one.log_inside,
            log_nodes=one.log_nodes,
            log_octave=np.array([table.log_octave for table in each], dtype=float)[:, None],
        )
    return found


class CollectiveParameters(Struct, frozen=True, kw_only=True):
    """The calibrated numbers of a machine's collectives; without arguments, the medians of the priors.

    measured: by operation, the correction by measured collectives; None: none were measured.
    """

    launch_s: Annotated[
        float,
        prior(
            0.5,
            "time of a collective that moves nothing: launch, and waiting for the last rank",
            "nccl-tests of 4-byte messages on 8 accelerators of one node: 10 to 35 us",
        ),
    ] = 20e-6
    intra_latency_scale: Annotated[
        float,
        prior(
            0.5,
            "one step inside a node over the link's stated latency",
            "nccl-tests on A100, H100 and B200 against 3.4 us: 0.5 to 2",
        ),
    ] = 1.0
    inter_latency_scale: Annotated[
        float,
        prior(
            0.5,
            "one step between nodes over the link's stated latency",
            "nccl-tests over InfiniBand and EFA against 14 and 20 us: 0.5 to 2",
        ),
    ] = 1.0
    quick_step: Annotated[
        float,
        prior(
            0.4,
            "a step under a protocol for short messages over an ordinary one",
            "NCCL src/graph/tuning.cc: LL and LL128 against Simple, 0.2 to 0.6",
        ),
    ] = 0.4
    quick_rate: Annotated[
        float,
        prior(
            0.4,
            "rate under a protocol for short messages over an ordinary one's",
            "NCCL src/graph/tuning.cc: LL reaches 1/4 to 1/2 of the rate",
            1.0,
        ),
    ] = 0.25
    intra_fraction: Annotated[
        float,
        prior(
            0.12,
            "share of the link's rate inside a node that long transfers reach",
            "nccl-tests of rings: B200 0.75, H200 0.81, A100 0.78 of the stated rate",
            1.0,
        ),
    ] = 0.8
    inter_fraction: Annotated[
        float,
        prior(
            0.08,
            "share of the network cards' rate that long transfers reach",
            "nccl-tests of all-reduce over 8 cards of 25 and 50 GB/s: 0.93 to 0.96",
            1.0,
        ),
    ] = 0.92
    switch_fraction: Annotated[
        float,
        prior(
            0.12,
            "share of the link's rate that a reducing switch reaches",
            "nccl-tests with NVLS: H200 0.68 over 5 to 8 ranks, B200 0.60",
            1.0,
        ),
    ] = 0.63
    local_share: Annotated[
        float,
        prior(
            1.0,
            "time of passing a payload through a rank's own memory, over one trip on the link",
            "ring all-reduce by rank count: 0.07 on H200, 0.5 on A100",
        ),
    ] = 0.15
    fill_s: Annotated[
        float,
        prior(
            0.8,
            "time in which the chunks of a long message fill the pipeline",
            "nccl-tests on A100 and B200, one node and two: 15 to 150 us",
        ),
    ] = 35e-6
    serial_share: Annotated[
        float,
        prior(
            1.0,
            "share of the shorter phase, inside or between nodes, that the longer does not hide",
            "two nodes of 8 B200 reach 0.96 of their cards' rate",
            1.0,
        ),
    ] = 0.03
    measured: Mapping[str, Correction] | None = None

    def __hash__(self) -> int:
        """Of the parameters; corrections, which are no part of it, are distinguished by comparing them."""
        return hash(tuple(getattr(self, name) for name in self.__struct_fields__ if name != "measured"))


class Parameters(Struct, frozen=True, kw_only=True):
    """One calibration of the model; as built without arguments, the medians of the priors.

    Every parameter is positive and its prior log-normal, so that no fit can reach a rate or time below zero.
    """

    product_fraction: Annotated[
        float,
        prior(
            0.05,
            "of the rate of the best matrix product, what a layer's products reach when large",
            "large cuBLAS products in MAMF tables: A100 230-250 of 271 TFLOP/s",
            1.0,
        ),
    ] = 0.88
    product_ramp_s: Annotated[
        float,
        prior(0.4, "time a matrix product takes besides its FLOP: its start and its tail", "cuBLAS traces"),
    ] = 5e-6
    idle_outputs: Annotated[
        float,
        prior(
            0.5,
            "outputs of a product that could be made while its last tiles fill the processors in part",
            "half of a round of tiles of 128 x 256: 108 processors of A100 1.8e6, 132 of H100 2.2e6; less "
            "where libraries choose smaller ones",
        ),
    ] = 1.5e6
    product_traffic: Annotated[
        float,
        prior(
            0.4,
            "of the time products take to read and write memory, what their FLOP do not hide",
            "roofline",
            1.0,
        ),
    ] = 0.4
    head_fraction: Annotated[
        float,
        prior(
            0.25, "of the rate of a layer's products, what those of the output matrix reach", "fp32 logits"
        ),
    ] = 0.85
    unaligned_fraction: Annotated[
        float,
        prior(
            0.25,
            "rate of the output matrix that each halving of its alignment below 16 bytes leaves",
            "frameworks pad vocabularies so that nothing is lost; where they do not: NVIDIA's guide to "
            "products",
            1.0,
            local=True,
        ),
    ] = 0.99
    head_kernels: Annotated[
        float, prior(0.2, "kernels of embedding, logits, loss and their ways back", "count in Megatron-LM")
    ] = 30.0
    attention_fraction: Annotated[
        float,
        prior(
            0.3,
            "of the rate of the best matrix product, what attention reaches over long sequences",
            "FlashAttention-2 (Dao 2023), figure 4: up to 190 of 271 TFLOP/s on A100",
            1.0,
        ),
    ] = 0.6
    attention_half_tokens: Annotated[
        float,
        prior(
            0.5,
            "tokens a rank holds of a sequence at which causal attention reaches half of that",
            "FlashAttention-2 (Dao 2023), figure 4: causal, heads of 128, from 512 to 16k tokens",
        ),
    ] = 600.0
    split_attention: Annotated[
        float,
        prior(
            0.3,
            "of the rate of attention, what it reaches piece by piece over a context axis",
            "partial results merged in fp32 (Liu et al. 2023); Llama team 2024, section 3.3.2",
            1.0,
        ),
    ] = 0.9
    expert_fraction: Annotated[
        float,
        prior(
            0.4,
            "of the rate of dense products, what those of experts of up to 2,048 columns reach",
            "MegaBlocks 2022",
            1.0,
        ),
    ] = 0.6
    expert_sync_s: Annotated[
        float,
        prior(
            0.7,
            "time idle in a block of experts until the host knows how many tokens each gets",
            "a copy to the host and what it then launches: 10-20 launches",
        ),
    ] = 2e-4
    expert_imbalance: Annotated[
        float,
        prior(0.1, "tokens of the busiest expert rank over the mean", "balance losses keep it near one"),
    ] = 1.1
    fp8_fraction: Annotated[
        float,
        prior(
            0.15,
            "of the bf16 fraction of peak, what fp8 products reach",
            "cuBLAS on H100: 1.4-1.5 of 1.98 PFLOP/s, where bf16 reaches 0.8 of its peak",
        ),
    ] = 0.9
    rowwise_fraction: Annotated[
        float,
        prior(
            0.4,
            "likewise with scales a row",
            "H100 and H200 over bf16: torchao's training page 1.10 (8B), torchtitan 7a04053 1.11 (8B), "
            "PyTorch with Crusoe 2025 1.34 to 1.43: 0.65 to 0.8; with tensor parallelism less: "
            "docs/experiments/0025",
            local=True,
        ),
    ] = 0.75
    mxfp8_fraction: Annotated[
        float, prior(0.15, "likewise with scales a block of 32", "cuBLAS on B200: 3.2-3.5 of 4.5 PFLOP/s")
    ] = 0.9
    fp4_fraction: Annotated[
        float,
        prior(
            0.3, "likewise of fp4", "cuBLAS on B200: 6-7 of 9 PFLOP/s; the way back keeps some products wider"
        ),
    ] = 0.8
    quantise_traffic: Annotated[
        float,
        prior(0.5, "bytes of quantising over the count of `Load`", "often fused with norm or activation"),
    ] = 1.0
    power_exponent: Annotated[
        float,
        prior(
            0.3,
            "rate of compute-bound work goes as power to this",
            "frequency x voltage^2; an RTX 3090 at 80 % of its power keeps 95 % (Puget Systems 2020)",
        ),
    ] = 0.33
    memory_fraction: Annotated[
        float,
        prior(
            0.06,
            "of the memory's byte/s, what memory-bound work reaches",
            "STREAM on accelerators, 80-92 %",
            1.0,
        ),
    ] = 0.86
    layer_traffic: Annotated[
        float, prior(0.15, "bytes of memory-bound work in a layer over the count of `Load`", "fusion varies")
    ] = 1.0
    score_traffic: Annotated[
        float, prior(0.1, "bytes of unfused attention over the count of `Load`", "likewise")
    ] = 1.0
    head_traffic: Annotated[
        float, prior(0.3, "bytes of logits and loss over the count of `Load`", "likewise")
    ] = 1.0
    backward_traffic: Annotated[
        float,
        prior(
            0.12,
            "bytes of memory-bound work on the way back over those forward",
            "count: norm 10 for 4, dropout 9 for 7, activation 24 for 16, biases 7 for 0",
        ),
    ] = 1.7
    recompute_share: Annotated[
        float,
        prior(
            1.0,
            "of a forward pass, what recomputing layers in full really does again",
            "Korthikanti et al. 2022, table 4: all of it; what a campaign states may differ",
            1.0,
            local=True,
        ),
    ] = 1.0
    eager_traffic: Annotated[
        float,
        prior(
            0.3,
            "bytes of memory-bound work without a compiler over those with one",
            "torchtitan 2024, table 1",
        ),
    ] = 1.8
    by_hand_traffic: Annotated[
        float,
        prior(
            0.1,
            "likewise of transformers from before fused attention",
            "Megatron-LM fuses bias, dropout, residual and softmax in kernels of its own: as with a compiler",
        ),
    ] = 1.0
    other_eager_traffic: Annotated[
        float,
        prior(
            0.1,
            "bytes of such work of models that are no transformers, over `eager_traffic`",
            "as of transformers: timm's images per second on RTX 3090 (benchmark-train-amp-nchw, torch 1.12)",
        ),
    ] = 1.0
    cast_traffic: Annotated[
        float,
        prior(
            0.1,
            "bytes of memory-bound work without a compiler in 16 bits, over half of those in 32",
            "1 where all is kept in 16 bits; more where kernels of their own cast to and fro",
        ),
    ] = 1.0
    launch_s: Annotated[
        float, prior(0.7, "host time to launch one kernel, compiled", "PyTorch profiler traces")
    ] = 12e-6
    eager_launch: Annotated[
        float, prior(0.4, "host time a kernel without a compiler, over that with one", "likewise")
    ] = 2.0
    launch_jitter: Annotated[
        float,
        prior(
            0.5, "growth of host time where ranks wait for each other, per sqrt(2 ln ranks)", "extreme values"
        ),
    ] = 0.05
    tp_overlap: Annotated[
        float, prior(0.5, "share of tp traffic left exposed when it overlaps with products", "async TP")
    ] = 0.5
    tp_exposed: Annotated[
        float,
        prior(
            0.6,
            "share of sums on the way back that products for the weights' gradients do not hide",
            "Megatron-LM of 2021 hides none, since 2022 all: Korthikanti et al. 2022, table 4",
            1.0,
            local=True,
        ),
    ] = 0.7
    dp_overlap: Annotated[
        float,
        prior(
            0.5,
            "share of gradient traffic left exposed by the backward pass",
            "PyTorch DDP 2020 hides most, Megatron-LM of 2021 nothing",
            1.0,
        ),
    ] = 0.5
    shard_overlap: Annotated[
        float, prior(0.7, "share of gathered weights left exposed by a layer", "FSDP 2023")
    ] = 0.15
    shard_copy_s: Annotated[
        float,
        prior(
            0.5,
            "time of a copy out of gathered parts, where tensors are gathered one by one",
            "PyTorch launches one in 5 to 10 us, a device makes a short one in 2 to 5",
            local=True,
        ),
    ] = 5e-6
    cp_overlap: Annotated[
        float, prior(0.7, "share of key and value traffic left exposed by attention", "ring attention")
    ] = 0.3
    ep_overlap: Annotated[
        float, prior(0.3, "share of expert traffic left exposed by products", "DeepSeek-V3 2024, DualPipe")
    ] = 0.8
    pp_overlap: Annotated[
        float, prior(0.5, "share of traffic between stages left exposed", "Narayanan et al. 2021")
    ] = 0.7
    optimizer_traffic: Annotated[
        float,
        prior(0.3, "bytes of an optimizer step over those of its states", "fused Adam, gradients and norms"),
    ] = 1.25
    rank_jitter: Annotated[
        float,
        prior(
            0.7,
            "sd of a rank's step time over its mean: the slowest of n ranks is sqrt(2 ln n) above",
            "MegaScale",
        ),
    ] = 0.005
    step_s: Annotated[
        float,
        prior(
            1.0, "time of a step that nothing else explains: input, logging, hooks", "profiles", local=True
        ),
    ] = 2e-3
    fixed_bytes: Annotated[
        float, prior(0.4, "memory of context, libraries and communicators", "nvidia-smi, 1-2 GB")
    ] = 1.6e9
    activation_slack: Annotated[
        float, prior(0.2, "activations held over the count of `Load`", "Korthikanti et al. 2022, table 4")
    ] = 1.0
    reserved_slack: Annotated[
        float, prior(0.05, "memory the allocator reserves over what lives", "caching allocators")
    ] = 1.06

    collective: CollectiveParameters = field(default_factory=CollectiveParameters)

    def value(self, name: str) -> float:
        """The parameter of a name of PRIORS."""
        holder, _, last = name.rpartition(".")
        return float(getattr(self.collective if holder else self, last))

    def changed(self, values: Mapping[str, Floats]) -> "Parameters":
        """These parameters with some replaced, by floats or arrays that broadcast; names as in PRIORS."""
        own: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
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
    measured = _stacked_corrections([each.collective.measured for each in draws])
    return replace(whole, collective=replace(whole.collective, measured=measured))


COLLECTIVE_PRIORS: tuple[Prior, ...] = priors_of(CollectiveParameters())
# Every number a calibration may move; those of collectives are called `collective.<name>`.
PRIORS: tuple[Prior, ...] = (
    *priors_of(Parameters()),
    *(replace(each, name=f"collective.{each.name}") for each in COLLECTIVE_PRIORS),
)

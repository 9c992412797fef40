"""Calibrated parameters of the model with their priors, and corrections by measured collectives."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, convert, field
from msgspec.structs import replace

from equipoise.files import shipped_table
from equipoise.perfmodel.load import Floats, Numbers
from equipoise.perfmodel.machine import Group

# Sizes in a table of corrections: STEPS per octave, from 1 byte to 1 TiB.
STEPS = 8
_MAX_OCTAVES = 40
SIZES = 2.0 ** (np.arange(_MAX_OCTAVES * STEPS + 1) / STEPS)
# Distance at which measurements lose their influence: sizes and groups about four times as large or small.
# Results hardly change from 1 to 3 octaves (docs/experiments/0005-collectives.md).
OCTAVES = 2.0
# Uncertainty is constant below the first distance and above the second: errors of the law were measured
# between.
NEAREST_OCTAVES, FARTHEST_OCTAVES = 0.5, 3.0
_MIN_DISTANCE = 10.0**-6
_NUDGE = 1e-3  # relative change of a parameter in finite differences


class Prior(Struct, frozen=True, kw_only=True):
    """A log-normal prior: within a factor exp(log_sd) of its median with probability two thirds.

    name: the parameter's field. largest: upper bound; inf without one. local: the parameter depends on how
    one campaign was run (its software and settings), so a fitted value does not apply to other campaigns.
    """

    name: str
    median: float
    log_sd: float
    meaning: str
    source: str
    largest: float = float("inf")
    local: bool = False


_TABLES = shipped_table(Path(__file__).with_name("priors.toml"))


def priors_in(table: str) -> tuple[Prior, ...]:
    """The priors of a table of priors.toml, in file order."""
    return convert(_TABLES[table], tuple[Prior, ...])


_STEP_PRIORS, COLLECTIVE_PRIORS = priors_in("step"), priors_in("collective")
# All parameters that a calibration may fit; those of collectives are named `collective.<name>`.
PRIORS: tuple[Prior, ...] = (
    *_STEP_PRIORS,
    *(replace(each, name=f"collective.{each.name}") for each in COLLECTIVE_PRIORS),
)
# Fractions of the best rates of products, attention and memory, each with an upper bound.
_RATES = frozenset(
    (
        *("product_fraction", "convolution_fraction", "unaligned_fraction", "expert_fraction"),
        *("attention_fraction", "asynchronous_attention", "tensor_memory_attention", "split_attention"),
        "memory_fraction",
    )
)
_STEP = {each.name: each.median for each in _STEP_PRIORS}
_COLLECTIVE = {each.name: each.median for each in COLLECTIVE_PRIORS}


def prior_log_sd(predict: Callable[[Mapping[str, float]], Floats], priors: Sequence[Prior]) -> Numbers:
    """Standard deviation of a prediction's logarithm under the priors alone, in the prediction's shape.

    predict: returns the prediction with some parameters changed and all others at their prior medians.
    Assumes independent parameters and linear effects of small changes.
    Source: first-order propagation of the priors' log_sd.
    """
    centre, step = predict({}), 1 - _NUDGE
    slopes = np.stack(
        [np.log(predict({each.name: each.median * step}) / centre) / np.log(step) for each in priors]
    )
    return np.asarray(np.sqrt(np.tensordot([each.log_sd**2 for each in priors], slopes**2, 1)))


class Correction(Struct, frozen=True, kw_only=True, eq=False):
    """Log(measured / modelled) of one operation by size, for the measured groups.

    log_factor: at SIZES, (n_groups, n_sizes) or (n_draws, n_groups, n_sizes). log_inside, log_nodes: log2 of
    ranks per node and of nodes, (n_groups,). log_octave: added per octave of distance from a measured group;
    shape (n_draws, 1) with draws.
    """

    log_factor: Numbers
    log_inside: Numbers
    log_nodes: Numbers
    log_octave: Floats = 0.0

    def at(self, payload_bytes: Floats, group: Group) -> Numbers:
        """Log(measured / modelled) of messages; arguments broadcast, and do not depend on draws.

        0 for groups inside one node where only groups over several nodes were measured, and vice versa.
        Assumes the law's residuals decay with the distance in octaves from measured groups.
        Source: inverse distance weighting (Shepard 1968) between several groups.
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
            near = 1.0 / (far + _MIN_DISTANCE)
            table = self.log_factor[..., number, :]
            lower, upper = np.take(table, below, axis=-1), np.take(table, below + 1, axis=-1)
            found = found + near * (lower + share * (upper - lower))
            weight, nearest = weight + near, np.minimum(nearest, far)
        known = np.isfinite(nearest)
        far = np.where(known, nearest, 0.0)
        fades = known * np.exp(-far / OCTAVES) / np.where(known, weight, 1.0)
        unsure = np.clip(far, NEAREST_OCTAVES * (far > _MIN_DISTANCE), FARTHEST_OCTAVES)
        return np.asarray(found * fades + self.log_octave * unsure)


def _stacked_corrections(draws: Sequence[Mapping[str, Correction] | None]) -> dict[str, Correction] | None:
    """Corrections of several draws as one, with one element per draw; None where there are none.

    draws: at least one, all with the same operations and groups.
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
    """Calibrated parameters of a machine's collectives; by default, the medians of the priors.

    measured: corrections by operation from measured collectives; None: none were measured.
    """

    launch_s: float = _COLLECTIVE["launch_s"]
    intra_latency_scale: float = _COLLECTIVE["intra_latency_scale"]
    inter_latency_scale: float = _COLLECTIVE["inter_latency_scale"]
    quick_step: float = _COLLECTIVE["quick_step"]
    quick_rate: float = _COLLECTIVE["quick_rate"]
    intra_fraction: float = _COLLECTIVE["intra_fraction"]
    inter_fraction: float = _COLLECTIVE["inter_fraction"]
    switch_fraction: float = _COLLECTIVE["switch_fraction"]
    local_share: float = _COLLECTIVE["local_share"]
    fill_s: float = _COLLECTIVE["fill_s"]
    serial_share: float = _COLLECTIVE["serial_share"]
    measured: Mapping[str, Correction] | None = None

    def __hash__(self) -> int:
        """Hash of the parameters without corrections, which equality still compares."""
        return hash(tuple(getattr(self, name) for name in self.__struct_fields__ if name != "measured"))


class Parameters(Struct, frozen=True, kw_only=True):
    """One calibration of the model; by default, the medians of the priors.

    All parameters are positive with log-normal priors, so that no fit can make a rate or time negative.
    """

    product_fraction: float = _STEP["product_fraction"]
    convolution_fraction: float = _STEP["convolution_fraction"]
    product_ramp_s: float = _STEP["product_ramp_s"]
    idle_outputs: float = _STEP["idle_outputs"]
    product_traffic: float = _STEP["product_traffic"]
    head_fraction: float = _STEP["head_fraction"]
    unaligned_fraction: float = _STEP["unaligned_fraction"]
    head_kernels: float = _STEP["head_kernels"]
    attention_fraction: float = _STEP["attention_fraction"]
    asynchronous_attention: float = _STEP["asynchronous_attention"]
    tensor_memory_attention: float = _STEP["tensor_memory_attention"]
    attention_half_tokens: float = _STEP["attention_half_tokens"]
    split_attention: float = _STEP["split_attention"]
    expert_fraction: float = _STEP["expert_fraction"]
    separate_experts: float = _STEP["separate_experts"]
    expert_sync_s: float = _STEP["expert_sync_s"]
    expert_imbalance: float = _STEP["expert_imbalance"]
    fp8_fraction: float = _STEP["fp8_fraction"]
    rowwise_fraction: float = _STEP["rowwise_fraction"]
    mxfp8_fraction: float = _STEP["mxfp8_fraction"]
    fp4_fraction: float = _STEP["fp4_fraction"]
    quantise_traffic: float = _STEP["quantise_traffic"]
    power_exponent: float = _STEP["power_exponent"]
    memory_fraction: float = _STEP["memory_fraction"]
    layer_traffic: float = _STEP["layer_traffic"]
    score_traffic: float = _STEP["score_traffic"]
    eager_score_traffic: float = _STEP["eager_score_traffic"]
    head_traffic: float = _STEP["head_traffic"]
    backward_traffic: float = _STEP["backward_traffic"]
    recompute_share: float = _STEP["recompute_share"]
    eager_traffic: float = _STEP["eager_traffic"]
    by_hand_traffic: float = _STEP["by_hand_traffic"]
    other_eager_traffic: float = _STEP["other_eager_traffic"]
    cast_traffic: float = _STEP["cast_traffic"]
    launch_s: float = _STEP["launch_s"]
    eager_launch: float = _STEP["eager_launch"]
    graph_launch: float = _STEP["graph_launch"]
    grace_launch: float = _STEP["grace_launch"]
    routing_kernels: float = _STEP["routing_kernels"]
    expert_launch: float = _STEP["expert_launch"]
    launch_jitter: float = _STEP["launch_jitter"]
    tp_overlap: float = _STEP["tp_overlap"]
    tp_exposed: float = _STEP["tp_exposed"]
    dp_overlap: float = _STEP["dp_overlap"]
    shard_overlap: float = _STEP["shard_overlap"]
    shard_copy_s: float = _STEP["shard_copy_s"]
    cp_overlap: float = _STEP["cp_overlap"]
    ep_overlap: float = _STEP["ep_overlap"]
    pp_overlap: float = _STEP["pp_overlap"]
    optimizer_traffic: float = _STEP["optimizer_traffic"]
    optimizer_passes: float = _STEP["optimizer_passes"]
    rank_jitter: float = _STEP["rank_jitter"]
    step_s: float = _STEP["step_s"]
    fixed_bytes: float = _STEP["fixed_bytes"]
    communicator_bytes: float = _STEP["communicator_bytes"]
    activation_slack: float = _STEP["activation_slack"]
    reserved_slack: float = _STEP["reserved_slack"]

    collective: CollectiveParameters = field(default_factory=CollectiveParameters)

    def value(self, name: str) -> float:
        """The parameter with this name in PRIORS."""
        holder, _, last = name.rpartition(".")
        return float(getattr(self.collective if holder else self, last))

    def changed(self, values: Mapping[str, Floats]) -> "Parameters":
        """A copy with some parameters replaced by floats or arrays that broadcast; names as in PRIORS."""
        own: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
        links: dict[str, Any] = {
            name.partition(".")[2]: value for name, value in values.items() if "." in name
        }
        return replace(self, collective=replace(self.collective, **links), **own)

    def elsewhere(self) -> "Parameters":
        """A copy for other campaigns, with local parameters reset to their prior medians."""
        return self.changed({each.name: each.median for each in PRIORS if each.local})

    def at_best_rates(self) -> "Parameters":
        """A copy in which products, attention and memory reach the upper bounds of their rates."""
        return self.changed({each.name: each.largest for each in PRIORS if each.name in _RATES})


def stacked(draws: Sequence[Parameters]) -> Parameters:
    """One calibration whose parameters are arrays with one element per draw, which broadcast against rows.

    draws: at least one. Returns parameters of shape (n_draws, 1), so that estimates have one row per draw.
    """

    def column(name: str) -> Any:  # noqa: ANN401 - an array where the record says float
        return np.array([each.value(name) for each in draws], dtype=float)[:, None]

    whole = Parameters().changed({each.name: column(each.name) for each in PRIORS})
    measured = _stacked_corrections([each.collective.measured for each in draws])
    return replace(whole, collective=replace(whole.collective, measured=measured))

"""One accelerator or two: steps of each for pairs, models and batches, over draws of the model's priors."""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.calibration.profiles import prior_model
from equipoise.perfmodel.layouts import CODES, StrategyGrid, grid
from equipoise.perfmodel.load import Load, stacked
from equipoise.perfmodel.machine import TUPLES, Machine, machine
from equipoise.perfmodel.machine import stacked as stacked_machines
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.replicas import ExchangedTensors, ReplicaSeconds, exchanged_tensors, replica_seconds
from equipoise.spec.cluster import build_cluster, usual_system
from equipoise.spec.hardware import Accelerator
from equipoise.spec.links import LinkReach
from equipoise.spec.strategy import Strategy

# Below this, what two gain over one is not worth a second accelerator's trouble.
LEAST_GAIN = 1.05
LEVEL = 0.9
_TWO_SIDED = 1.645  # standard deviations that hold 90 % of a normal distribution
_SEED = 1
_RANKS = (1, 2)

Speedups: TypeAlias = NDArray[np.float64]
_Record = TypeVar("_Record", Load, ExchangedTensors)


class Pair(Struct, frozen=True, kw_only=True):
    """Two accelerators of a kind, and what the link between them reaches."""

    accelerator: Accelerator
    link: LinkReach

    def machine(self) -> Machine:
        """Its rates. Raises SpecError where the table lacks what an estimate needs of the accelerator."""
        return machine(
            build_cluster(
                usual_system(self.accelerator, "switch"),
                accelerator=self.accelerator,
                node_size=2,
                num_accelerators=2,
                intra_byte_per_s=self.link.byte_per_s,
                intra_latency_s=self.link.latency_s,
                topology="switch",
                switch_reduces=False,
            )
        )


class Cases(Struct, frozen=True, kw_only=True):
    """Every pair with every model and batch, ready to be estimated; axes (pairs, models, batches, ranks)."""

    pairs: tuple[Pair, ...]
    machines: Machine
    load: Load
    holds: ExchangedTensors
    grid: StrategyGrid


def cases(
    pairs: Sequence[Pair],
    loads: Sequence[Load],
    batches: Sequence[int],
    *,
    tensors: Sequence[ExchangedTensors] | None = None,
    with_autocast: bool = False,
) -> Cases:
    """All cases, as torch trains by default: eager, in fp32, batches shared between two.

    loads: of the models. batches: samples of a step over both; odd ones are made even for two. tensors: what
    each model exchanges; by its load unless given. with_autocast: products in bf16 where the accelerator has
    it, else fp16; weights and gradients stay in fp32.
    Assumes convolutions without it run in tf32 where the accelerator has it (cuDNN's default in torch),
    products of transformers in fp32.
    Raises SpecError where the table lacks what an estimate needs of an accelerator.
    """
    machines = stacked_machines([each.machine() for each in pairs])
    shape, along = (-1, 1, 1, 1), (1, -1, 1, 1)
    peaks, slowdowns = (tuple(np.reshape(each, shape) for each in getattr(machines, name)) for name in TUPLES)
    rates = {
        name: np.reshape(getattr(machines, name), shape)
        for name in Machine.__struct_fields__
        if name not in TUPLES
    }
    exchanged = [exchanged_tensors(each) for each in loads] if tensors is None else tensors
    joined = {
        name: np.array([getattr(each, name) for each in exchanged], dtype=float)
        for name in ExchangedTensors.__struct_fields__
    }
    are_transformers = np.reshape([float(each.hidden) > 0 for each in loads], along)
    precision = _narrowest(peaks) if with_autocast else _precisions(peaks, are_transformers)
    return Cases(
        pairs=tuple(pairs),
        machines=Machine(peak_flop_per_s=peaks, group_slowdowns=slowdowns, **rates),
        load=_shaped(stacked(list(loads)), along),
        holds=_shaped(ExchangedTensors(**joined), along),
        grid=replace(_shares(batches), precision=precision),
    )


def _shaped(record: _Record, shape: tuple[int, ...]) -> _Record:
    return type(record)(
        **{name: np.reshape(getattr(record, name), shape) for name in record.__struct_fields__}
    )


def _shares(batches: Sequence[int]) -> StrategyGrid:
    strategies = [
        Strategy(
            dp=ranks,
            microbatch_samples=-(-batch // ranks),
            global_batch_samples=-(-batch // ranks) * ranks,
            precision="fp32",
            implementation="eager",
        )
        for batch in batches
        for ranks in _RANKS
    ]
    flat = grid(strategies)
    return StrategyGrid(
        **{
            name: np.reshape(getattr(flat, name), (1, 1, len(batches), len(_RANKS)))
            for name in StrategyGrid.__struct_fields__
        }
    )


def _precisions(
    peaks: Sequence[NDArray[np.float64]], are_transformers: NDArray[np.bool_]
) -> NDArray[np.intp]:
    names = CODES["precision"]
    plain, wide = names.index("fp32"), names.index("tf32")
    lacks = np.isnan(peaks[wide])
    # A chip whose table has no fp32 runs it at the rate of what is nearest.
    return np.where(lacks | (are_transformers & ~np.isnan(peaks[plain])), plain, wide).astype(np.intp)


def _narrowest(peaks: Sequence[NDArray[np.float64]]) -> NDArray[np.intp]:
    """bf16 where the accelerator has it, else fp16, else fp32; as codes."""
    names = CODES["precision"]
    codes = np.full(peaks[0].shape, names.index("fp32"), dtype=np.intp)
    for name in ("fp16", "bf16"):
        codes = np.where(np.isnan(peaks[names.index(name)]), codes, names.index(name))
    return codes


def seconds(found: Cases, parameters: Parameters | None = None) -> ReplicaSeconds:
    """Seconds by cause at the typical rates of the links; parameters: medians of the priors unless given."""
    rates = np.array([each.link.byte_per_s for each in found.pairs])
    return _estimated(found, parameters or Parameters(), rates)


def speedups(found: Cases) -> Speedups:
    """Seconds on one over seconds on two, over draws: shape (n_draws, n_pairs, n_models, n_batches).

    Assumes every draw has its own parameters and its own rate of each link, log-normal within its range.
    Source: draws of all priors of the model; ranges of rates as the pairs state them.
    """
    rng = np.random.default_rng(_SEED)
    low, middle, high = (
        np.array([getattr(each.link, name) for each in found.pairs]) for name in ("low", "byte_per_s", "high")
    )
    spread = np.log(high / low) / (2 * _TWO_SIDED)
    drawn = []
    for parameters in prior_model().draws:
        rates = np.clip(middle * np.exp(spread * rng.standard_normal(len(middle))), low, high)
        step_s = _estimated(found, parameters, rates).step
        drawn.append(step_s[..., 0] / step_s[..., 1])
    return np.asarray(drawn)


def _estimated(found: Cases, parameters: Parameters, byte_per_s: NDArray[np.float64]) -> ReplicaSeconds:
    # Rates are what transfers reach; the model takes a stated rate and multiplies it by this share.
    stated = np.reshape(byte_per_s / parameters.value("collective.intra_fraction"), (-1, 1, 1, 1))
    machines = replace(found.machines, intra_byte_per_s=stated)
    return replica_seconds(found.load, machines, found.grid, parameters, tensors=found.holds)

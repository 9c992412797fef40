"""What a topology means for training: the rates of its links, and which models gain on two accelerators.

The corresponding sentences are in link_findings.py.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.bench.topology.topology import BestGroup, Islands, Topology, best_groups, islands
from equipoise.calibration.profiles import prior_model
from equipoise.errors import SpecError, UsageError, expect_whole
from equipoise.intervals import DEVIATE, tails
from equipoise.perfmodel.layouts import CODES, StrategyGrid, grid
from equipoise.perfmodel.load import Load, stacked, transformer_load, workload_load
from equipoise.perfmodel.machine import Machine, machine
from equipoise.perfmodel.machine import stacked as stacked_machines
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.replicas import ExchangedTensors, ReplicaSeconds, exchanged_tensors, replica_seconds
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.cluster import build_cluster, usual_system
from equipoise.spec.hardware import Accelerator
from equipoise.spec.links import LinkReach, kind, number, nvlink_candidates, rank, reach
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import Workload, workload

# A smaller speedup of two over one is not worth a second accelerator.
LEAST_GAIN = 1.05
_SEED = 1
_RANKS = (1, 2)

Speedups: TypeAlias = NDArray[np.float64]
_Record = TypeVar("_Record", Machine, Load, ExchangedTensors, StrategyGrid)


class Pair(Struct, frozen=True, kw_only=True):
    """Two equal accelerators, and the rate of the link between them."""

    accelerator: Accelerator
    link: LinkReach

    def machine(self) -> Machine:
        """Its rates. Raises SpecError if the table lacks data of the accelerator for an estimate."""
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
    """Every combination of pair, model and batch; axes (pairs, models, batches, ranks)."""

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
    tensors: ExchangedTensors | None = None,
    with_autocast: bool = False,
) -> Cases:
    """All cases, with torch's defaults: eager, in fp32, batches split between two accelerators.

    loads: of the models. batches: samples per step over both; odd ones are made even for two. tensors: the
    exchanged tensors of each model, fields of shape (n_models,); by default from its load. with_autocast:
    matrix products in bf16 if the accelerator supports it, else fp16; weights and gradients stay in fp32.
    Assumes that without autocast convolutions run in tf32 if the accelerator has it (cuDNN's default in
    torch), and products of transformers in fp32.
    Raises SpecError if the table lacks data of an accelerator for an estimate.
    """
    machines = _reshaped(stacked_machines([each.machine() for each in pairs]), (-1, 1, 1, 1))
    load = _reshaped(stacked(list(loads)), (1, -1, 1, 1))
    peaks = [np.asarray(each) for each in machines.peak_flop_per_s]
    precision = (
        _autocast_precision(peaks) if with_autocast else _precisions(peaks, np.greater(load.hidden, 0))
    )
    return Cases(
        pairs=tuple(pairs),
        machines=machines,
        load=load,
        holds=exchanged_tensors(load) if tensors is None else _reshaped(tensors, (1, -1, 1, 1)),
        grid=replace(_batch_shares(batches), precision=precision),
    )


def _reshaped(record: _Record, shape: tuple[int, ...]) -> _Record:
    """The record with every array reshaped, including arrays in tuples."""

    def shaped(value: Any) -> Any:  # noqa: ANN401 - an array, a number or a tuple of them
        return tuple(map(shaped, value)) if isinstance(value, tuple) else np.reshape(value, shape)

    return type(record)(**{name: shaped(getattr(record, name)) for name in record.__struct_fields__})


def _batch_shares(batches: Sequence[int]) -> StrategyGrid:
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
    return _reshaped(grid(strategies), (1, 1, len(batches), len(_RANKS)))


def _precisions(
    peaks: Sequence[NDArray[np.float64]], are_transformers: NDArray[np.bool_]
) -> NDArray[np.intp]:
    names = CODES["precision"]
    plain, wide = names.index("fp32"), names.index("tf32")
    lacks = np.isnan(peaks[wide])
    # A chip without an fp32 peak in the table uses the nearest precision.
    return np.where(lacks | (are_transformers & ~np.isnan(peaks[plain])), plain, wide).astype(np.intp)


def _autocast_precision(peaks: Sequence[NDArray[np.float64]]) -> NDArray[np.intp]:
    """The codes of bf16 if the accelerator has it, else fp16, else fp32."""
    names = CODES["precision"]
    codes = np.full(peaks[0].shape, names.index("fp32"), dtype=np.intp)
    for name in ("fp16", "bf16"):
        codes = np.where(np.isnan(peaks[names.index(name)]), codes, names.index(name))
    return codes


def seconds(found: Cases) -> ReplicaSeconds:
    """Seconds by cause, at the typical rates of the links and the medians of the priors."""
    return _estimated(found, Parameters(), np.array([each.link.byte_per_s for each in found.pairs]))


def speedups(found: Cases) -> Speedups:
    """Seconds on one accelerator over seconds on two: shape (n_draws, n_pairs, n_models, n_batches).

    Assumes that each draw has its own parameters and one quantile in the ranges of all links, whose rates are
    log-normal, so that the result for a pair does not depend on the other pairs.
    Source: draws from all priors of the model; ranges of rates as the pairs state them.
    """
    rng = np.random.default_rng(_SEED)
    low, middle, high = (
        np.array([getattr(each.link, name) for each in found.pairs]) for name in ("low", "byte_per_s", "high")
    )
    spread = np.log(high / low) / (2 * DEVIATE)
    drawn = []
    for parameters in prior_model().draws:
        rates = np.clip(middle * np.exp(spread * rng.standard_normal()), low, high)
        step_s = _estimated(found, parameters, rates).step
        drawn.append(step_s[..., 0] / step_s[..., 1])
    return np.asarray(drawn)


def _estimated(found: Cases, parameters: Parameters, byte_per_s: NDArray[np.float64]) -> ReplicaSeconds:
    # `byte_per_s` is the achieved rate; the model expects a stated rate and multiplies it by this fraction.
    stated = np.reshape(byte_per_s / parameters.value("collective.intra_fraction"), (-1, 1, 1, 1))
    machines = replace(found.machines, intra_byte_per_s=stated)
    return replica_seconds(found.load, machines, found.grid, parameters, tensors=found.holds)


USUAL_BATCH = 32
MOST_BATCH = 1_000_000
# From small to large; the first five are from a field report on two GPUs behind a host bridge.
MODELS = ("small_cnn", "mobilenet_v2", "resnet50", "resnet152", "vit_large", "bert", "gpt2_medium")
# The model whose step is broken down: it lies between models that lose and models that gain.
EXAMPLE = "resnet50"
# A family of models that differ only in width: vision transformers of 12 layers with heads of 64.
FAMILY = "vision transformers of 12 layers"
_FAMILY_OF = "vit_base"
_WIDTHS = tuple(range(64, 2048 + 1, 64))
_HEAD = 64


class ClassReach(Struct, frozen=True, kw_only=True):
    """A link class, the number of device pairs that it connects, and its rate."""

    link_class: str
    num_pairs: int
    reach: LinkReach


class Gain(Struct, frozen=True, kw_only=True):
    """Speedup of two accelerators over one at the same total batch; bounds at LEVEL."""

    link_class: str
    workload: str
    title: str
    params: float
    speedup: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether a second accelerator pays, as far as the range shows."""
        if self.high < 1 and self.speedup < 1 / LEAST_GAIN:
            return "slower"
        if self.high < LEAST_GAIN:
            return "no gain"
        return "gains" if self.low >= 1 else "either way"


class Crossover(Struct, frozen=True, kw_only=True):
    """Number of parameters from which a model of FAMILY gains LEAST_GAIN on two; bounds at LEVEL.

    None: no size up to `most` gains. A value equal to `least` means that or less, because the smallest size
    that was tried already gains.
    """

    link_class: str
    params: float | None
    low: float | None
    high: float | None
    least: float
    most: float


class Parts(Struct, frozen=True, kw_only=True):
    """Breakdown of a step of EXAMPLE on two accelerators, at the medians of all priors.

    one_s: the step on one accelerator. share_s: on half of the batch. launching_s: launches and copies of the
    exchange. exchange_s: exposed messages, and waiting for the slower accelerator.
    """

    link_class: str
    workload: str
    title: str
    one_s: float
    share_s: float
    launching_s: float
    exchange_s: float


class Meaning(Struct, frozen=True, kw_only=True):
    """What the links of a topology mean.

    chip: accelerator of all devices, or None if unknown. candidates: accelerators covered by the predictions.
    batch: samples per step, over all accelerators. with_autocast: whether matrix products use fewer than 32
    bits. catalogue: for resolving the titles of devices.
    """

    catalogue: Catalogue
    topology: Topology
    chip: Accelerator | None
    candidates: tuple[Accelerator, ...]
    batch: int
    with_autocast: bool
    islands: Islands
    groups: tuple[BestGroup, ...]
    reached: tuple[ClassReach, ...]
    gains: tuple[Gain, ...]
    crossovers: tuple[Crossover, ...]
    parts: tuple[Parts, ...]


def meaning(
    topology: Topology,
    *,
    chip: Accelerator | None = None,
    batch: int = USUAL_BATCH,
    with_autocast: bool = True,
    catalogue: Catalogue | None = None,
) -> Meaning:
    """What the links of a topology mean for training with data parallelism.

    chip: accelerator of all devices; by default from their titles. batch: samples per step. with_autocast:
    matrix products in bf16 or fp16; otherwise all in fp32, which is torch's default. catalogue: the shipped
    one by default. Raises UsageError if all titles name other accelerators than `chip`, if there are none, or
    if two cannot share the batch.
    Assumes that two accelerators have their links to themselves, that input is not a bottleneck, and torch's
    DistributedDataParallel with fp32 gradients exchanged once per step.
    Source: rates of links.toml; steps of `perfmodel.replicas` over draws of all its priors.
    """
    expect_whole("batch", batch, least=2, most=MOST_BATCH)
    known = catalogue or shipped()
    has_accelerators = any(device.kind == "gpu" for device in topology.devices)
    if chip is not None and not has_accelerators:
        raise UsageError(
            f"{topology.origin} shows no accelerators, so its links are not those of {chip.title}; omit the "
            "accelerator, or give the output of `nvidia-smi topo -m` from a machine with some"
        )
    named = named_chips(topology, known)
    if chip is not None and named and chip.slug not in {each.slug for each in named}:
        titles = " and ".join(each.title for each in named)
        raise UsageError(
            f"it describes {titles}, not {chip.title}; omit the accelerator, or name one that it describes"
        )
    chip = chip or (named[0] if len(named) == 1 else None)
    # In MIG mode an accelerator has no peer access to another (NVIDIA MIG User Guide).
    cut = {device.name for device in topology.devices if device.slices}
    whole = (link for link in topology.between_devices if not cut & {link.a, link.b})
    counts = Counter(link.link_class for link in whole if link.link_class is not None)
    classes = sorted(counts, key=rank)
    reached = tuple(
        ClassReach(link_class=name, num_pairs=counts[name], reach=_reach(name, chip, topology))
        for name in (classes if has_accelerators else ())
    )
    candidates = (chip,) if chip else named or _candidates(classes, topology, known)
    gains, crossovers, parts = _predicted(
        reached, candidates, topology, batch=batch, with_autocast=with_autocast
    )
    return Meaning(
        catalogue=known,
        topology=topology,
        chip=chip,
        candidates=candidates,
        batch=batch,
        with_autocast=with_autocast,
        islands=islands(topology),
        groups=best_groups(topology),
        reached=reached,
        gains=gains,
        crossovers=crossovers,
        parts=parts,
    )


def named_chips(topology: Topology, catalogue: Catalogue | None = None) -> tuple[Accelerator, ...]:
    """The distinct accelerators named by the titles of the devices; none if any title is unknown."""
    titles = dict.fromkeys(device.title or "" for device in topology.devices if device.kind == "gpu")
    known = (catalogue or shipped()).hardware
    found = [known.exact(title) for title in titles]
    chips = {chip.slug: chip for chip in found if chip is not None}
    return () if None in found else tuple(chips.values())


def _reach(name: str, chip: Accelerator | None, topology: Topology) -> LinkReach:
    """The rate of a link class, given peer access and slots of the topology."""
    peers = {link.peers for link in topology.between_devices if link.link_class == name} - {None, "U"}
    slots = [device.slot_byte_per_s for device in topology.devices if device.slot_byte_per_s]
    return reach(
        name,
        chip,
        has_peers=None if not peers else peers == {"OK"},
        slot_byte_per_s=min(slots) if slots else None,
    )


def _candidates(classes: Sequence[str], topology: Topology, catalogue: Catalogue) -> tuple[Accelerator, ...]:
    """Possible accelerators if none is named: by their NVLinks, mesh or PCIe form.

    For the latter two, only those that PyTorch's compiler supports; older ones must be named.
    """
    bonded = [number(name) for name in classes if kind(name) == "NV"]
    if bonded:
        return nvlink_candidates(max(bonded), catalogue.accelerators())
    vendor = "NVIDIA" if "nvidia" in topology.origin else "AMD"
    has_mesh = any(kind(name) == "XGMI" for name in classes)
    return tuple(
        each
        for each in catalogue.accelerators()
        if each.vendor == vendor and not each.lacks_compiler
        if (each.topology == "mesh" if has_mesh else "-pcie-" in each.slug)
    )


def _predicted(
    reached: Sequence[ClassReach],
    candidates: Sequence[Accelerator],
    topology: Topology,
    *,
    batch: int,
    with_autocast: bool,
) -> tuple[tuple[Gain, ...], tuple[Crossover, ...], tuple[Parts, ...]]:
    if not reached or not candidates or batch < 2:  # noqa: PLR2004 - two share a batch
        return (), (), ()
    known = [workload(name) for name in MODELS]
    family, sizes = _family()
    gains: list[Gain] = []
    crossovers: list[Crossover] = []
    parts: list[Parts] = []
    for each in reached:
        pairs = _pairs_of(each.link_class, candidates, topology)
        if not pairs:
            continue
        loads = [*map(workload_load, known), *family]
        tried = cases(pairs, loads, [batch], with_autocast=with_autocast)
        drawn = np.reshape(speedups(tried), (-1, len(pairs), len(loads)))
        gains += [_gain(each.link_class, model, drawn[..., place]) for place, model in enumerate(known)]
        crossovers.append(_crossover(each.link_class, drawn[..., len(known) :], sizes))
        parts.append(_parts(each.link_class, tried, known))
    return tuple(gains), tuple(crossovers), tuple(parts)


def _parts(link_class: str, tried: Cases, known: Sequence[Workload]) -> Parts:
    """The breakdown of the example's step, on the pair with the median speedup."""
    found = seconds(tried)
    place = next(index for index, model in enumerate(known) if model.slug == EXAMPLE)
    whole = np.broadcast_to(found.step, found.share.shape)[:, place, 0]
    ratios = whole[:, 0] / whole[:, 1]
    middle = int(np.argsort(ratios)[len(ratios) // 2])

    def part_s(*names: str) -> float:
        values = (np.broadcast_to(getattr(found, name), found.share.shape) for name in names)
        return float(sum(value[middle, place, 0, 1] for value in values))

    return Parts(
        link_class=link_class,
        workload=known[place].slug,
        title=known[place].title,
        one_s=float(whole[middle, 0]),
        share_s=part_s("share"),
        launching_s=part_s("launching", "copying"),
        exchange_s=part_s("buffers", "exposed", "waiting"),
    )


def _pairs_of(name: str, candidates: Sequence[Accelerator], topology: Topology) -> list[Pair]:
    """A pair of each candidate with a link class, without candidates for which the model lacks data."""
    found = []
    for chip in candidates:
        try:
            each = Pair(accelerator=chip, link=_reach(name, chip, topology))
            each.machine()
        except SpecError:
            continue
        found.append(each)
    return found


def _family() -> tuple[list[Load], NDArray[np.float64]]:
    """Loads of the family and their numbers of parameters, from narrow to wide."""
    model = workload(_FAMILY_OF)
    assert model.transformer is not None
    assert model.sequence_tokens is not None
    wide = [
        replace(
            model.transformer,
            hidden=width,
            heads=width // _HEAD,
            kv_heads=width // _HEAD,
            ffn_hidden=4 * width,
        )
        for width in _WIDTHS
    ]
    loads = [transformer_load(each, sequence=model.sequence_tokens) for each in wide]
    return loads, np.array([each.params for each in wide], dtype=float)


def _gain(link_class: str, model: Workload, speedups: NDArray[np.float64]) -> Gain:
    """The gain from speedups of shape (n_draws, n_pairs); its range contains that of every pair."""
    low, high = np.quantile(speedups, tails(), axis=0)
    return Gain(
        link_class=link_class,
        workload=model.slug,
        title=model.title,
        params=float(model.params or 0),
        speedup=float(np.median(speedups)),
        low=float(low.min()),
        high=float(high.max()),
    )


def _crossover(link_class: str, speedups: NDArray[np.float64], sizes: NDArray[np.float64]) -> Crossover:
    """The size at which speedups reach LEAST_GAIN; infinite in draws that never reach it.

    speedups: (n_draws, n_pairs, n_sizes). The range contains that of every pair, as in `_gain`.
    """
    gains = speedups >= LEAST_GAIN
    first = np.where(gains.any(axis=-1), gains.argmax(axis=-1), len(sizes))
    passed = np.append(sizes, np.inf)[first]
    low, high = np.quantile(passed, tails(), axis=0, method="inverted_cdf")
    return Crossover(
        link_class=link_class,
        params=_finite(np.quantile(passed, 0.5, method="inverted_cdf")),
        low=_finite(low.min()),
        high=_finite(high.max()),
        least=float(sizes[0]),
        most=float(sizes[-1]),
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None

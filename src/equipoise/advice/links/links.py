"""What a topology means for training: the rates its links reach, and which models gain on two accelerators.

Sentences for people are in `link_words.py`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from equipoise.advice.plans.modelled import prior_model
from equipoise.bench.topology.groups import BestGroup, Islands, best_groups, islands
from equipoise.bench.topology.topology import Link, Topology
from equipoise.errors import SpecError
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.grid import CODES, Grid, grid
from equipoise.perfmodel.load import Load, stacked, transformer_load, workload_load
from equipoise.perfmodel.machine import Machine, machine
from equipoise.perfmodel.machine import stacked as stacked_machines
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.cluster import cluster
from equipoise.spec.hardware import Accelerator, accelerator_alias, accelerators
from equipoise.spec.hardware import accelerator as known_accelerator
from equipoise.spec.link_class import Reach, kind, number, nvlink_candidates, rank, reach
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import Workload, workload

LEVEL = 0.9
USUAL_BATCH = 32
# From small to large; the first five are those of a field report on two GPUs behind a host bridge.
MODELS = ("small_cnn", "mobilenet_v2", "resnet50", "resnet152", "vit_large", "bert", "gpt2_medium")
# A family that differs in width alone: vision transformers of 12 layers, heads of 64.
FAMILY = "vision transformers of 12 layers"
_FAMILY_OF = "vit_base"
_WIDTHS = tuple(range(64, 2048 + 1, 64))
_HEAD = 64
# Below this, what two gain over one is not worth a second accelerator's trouble.
LEAST_GAIN = 1.05
_TWO_SIDED = 1.645  # standard deviations that hold 90 % of a normal distribution
_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassReach:
    """A class of link, how many pairs of devices it joins, and what it reaches."""

    link_class: str
    num_pairs: int
    reach: Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Steps of one accelerator over steps of two that share its batch; bounds at LEVEL."""

    link_class: str
    workload: str
    title: str
    params: float
    speedup: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether two are worth it, as far as the range tells."""
        if self.high < 1 and self.speedup < 1 / LEAST_GAIN:
            return "slower"
        if self.high < LEAST_GAIN:
            return "no gain"
        return "gains" if self.low >= 1 else "either way"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Parameters from which a model of FAMILY gains LEAST_GAIN on two accelerators; bounds at LEVEL.

    None: no size that was tried gains, up to `most`. A figure equal to `least` means that or less: the
    smallest that was tried gains already.
    """

    link_class: str
    params: float | None
    low: float | None
    high: float | None
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What the links of a topology mean.

    chip: of all devices; None where not known. candidates: those the predictions stand for. batch: samples of
    a step, over all accelerators.
    """

    topology: Topology
    chip: Accelerator | None
    candidates: tuple[Accelerator, ...]
    batch: int
    islands: Islands
    groups: tuple[BestGroup, ...]
    reached: tuple[ClassReach, ...]
    gains: tuple[Gain, ...]
    crossovers: tuple[Crossover, ...]


def meaning(topology: Topology, *, chip: Accelerator | None = None, batch: int = USUAL_BATCH) -> Meaning:
    """What the links of a topology mean for training with data parallelism.

    chip: of all its devices; by their titles unless given. batch: samples of a step.
    Assumes two accelerators alone on their links, an input that keeps up, and gradients that travel once a
    step.
    Source: rates of links.toml; steps of `perfmodel.estimate` over draws of all its priors.
    """
    chip = chip or (named_chips(topology)[0] if len(named_chips(topology)) == 1 else None)
    links = [link for link in topology.between_devices if link.link_class is not None]
    counts = Counter(str(link.link_class) for link in links)
    classes = sorted(counts, key=rank)
    has_accelerators = any(device.kind == "gpu" for device in topology.devices)
    reached = tuple(
        ClassReach(
            link_class=name, num_pairs=counts[name], reach=_reach(name, chip, links, topology=topology)
        )
        for name in (classes if has_accelerators else ())
    )
    candidates = (chip,) if chip else named_chips(topology) or _candidates(classes, topology)
    gains, crossovers = _predicted(reached, candidates, links, topology=topology, batch=batch)
    return Meaning(
        topology=topology,
        chip=chip,
        candidates=candidates,
        batch=batch,
        islands=islands(topology),
        groups=best_groups(topology),
        reached=reached,
        gains=gains,
        crossovers=crossovers,
    )


def named_chips(topology: Topology) -> tuple[Accelerator, ...]:
    """The accelerators that the devices are by their titles, each once; none where any is not known."""
    titles = dict.fromkeys(device.title or "" for device in topology.devices if device.kind == "gpu")
    aliases = [accelerator_alias(title) for title in titles]
    slugs = dict.fromkeys(alias.slug for alias in aliases if alias is not None)
    return () if None in aliases else tuple(known_accelerator(slug) for slug in slugs)


def _reach(name: str, chip: Accelerator | None, links: Sequence[Link], *, topology: Topology) -> Reach:
    said = {link.peers for link in links if link.link_class == name} - {None, "U"}
    slots = [device.slot_byte_per_s for device in topology.devices if device.slot_byte_per_s]
    return reach(
        name,
        chip,
        has_peers=None if not said else said == {"OK"},
        slot_byte_per_s=min(slots) if slots else None,
    )


def _candidates(classes: Sequence[str], topology: Topology) -> tuple[Accelerator, ...]:
    """Accelerators that may be meant where none is named: by their NVLinks, else all that PCIe joins."""
    bonded = [number(name) for name in classes if kind(name) == "NV"]
    if bonded:
        return nvlink_candidates(max(bonded))
    vendor = "NVIDIA" if "nvidia" in topology.origin else "AMD"
    has_mesh = any(kind(name) == "XGMI" for name in classes)
    return tuple(
        each
        for each in accelerators()
        if each.vendor == vendor and (each.topology == "mesh" if has_mesh else "-pcie-" in each.slug)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cases:
    """Machines of two accelerators by class and chip, flat; models along the next axis, one and two last."""

    machines: Machine
    reaches: tuple[Reach, ...]
    grid: Grid
    loads: Load
    num_models: int


def _predicted(
    reached: Sequence[ClassReach],
    candidates: Sequence[Accelerator],
    links: Sequence[Link],
    *,
    topology: Topology,
    batch: int,
) -> tuple[tuple[Gain, ...], tuple[Crossover, ...]]:
    if not reached or not candidates or batch < 2:  # noqa: PLR2004 - two share a batch
        return (), ()
    known = [workload(name) for name in MODELS]
    family, sizes = _family()
    gains: list[Gain] = []
    crossovers: list[Crossover] = []
    for each in reached:
        pairs = _pairs_of(each.link_class, candidates, links, topology)
        if not pairs:
            continue
        cases = _cases(pairs, [*map(workload_load, known), *family], batch)
        speedups = _speedups(cases)
        gains += [_gain(each.link_class, model, speedups[..., place]) for place, model in enumerate(known)]
        crossovers.append(_crossover(each.link_class, speedups[..., len(known) :], sizes))
    return tuple(gains), tuple(crossovers)


def _pairs_of(
    name: str, candidates: Sequence[Accelerator], links: Sequence[Link], topology: Topology
) -> list[tuple[Machine, Reach]]:
    """Two of each candidate joined by a link of a class; those the model knows too little of are left out."""
    found = []
    for chip in candidates:
        try:
            rate = _reach(name, chip, links, topology=topology)
            pair = cluster(
                chip.slug,
                node_size=2,
                num_accelerators=2,
                intra_byte_per_s=rate.byte_per_s,
                intra_latency_s=rate.latency_s,
                topology="switch",
                switch_reduces=False,
            )
            found.append((machine(pair), rate))
        except SpecError:
            continue
    return found


def _family() -> tuple[list[Load], NDArray[np.float64]]:
    """Loads of the family, and their parameters, from narrow to wide."""
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


def _cases(pairs: Sequence[tuple[Machine, Reach]], loads: Sequence[Load], batch: int) -> _Cases:
    machines = stacked_machines([pair for pair, _ in pairs])
    shaped = {
        field.name: np.reshape(getattr(machines, field.name), (-1, 1, 1))
        for field in fields(Machine)
        if field.name != "peak_flop_per_s"
    }
    peaks = tuple(np.reshape(peak, (-1, 1, 1)) for peak in machines.peak_flop_per_s)
    together = stacked(list(loads))
    shares = [
        Strategy(
            dp=ranks, microbatch_samples=-(-batch // ranks), global_batch_samples=-(-batch // ranks) * ranks
        )
        for ranks in (1, 2)
    ]
    return _Cases(
        machines=Machine(peak_flop_per_s=peaks, **shaped),
        reaches=tuple(rate for _, rate in pairs),
        grid=replace(grid(shares), precision=_precisions(peaks)),
        loads=Load(
            **{field.name: np.reshape(getattr(together, field.name), (1, -1, 1)) for field in fields(Load)}
        ),
        num_models=len(loads),
    )


def _precisions(peaks: Sequence[NDArray[np.float64]]) -> NDArray[np.intp]:
    """bf16 where the accelerator has it, else fp16, else fp32; as codes."""
    names = CODES["precision"]
    codes = np.full(peaks[0].shape, names.index("fp32"), dtype=np.intp)
    for name in ("fp16", "bf16"):
        codes = np.where(np.isnan(peaks[names.index(name)]), codes, names.index(name))
    return codes


def _speedups(cases: _Cases) -> NDArray[np.float64]:
    """Seconds of one over seconds of two, shape (n_draws * n_machines, n_models).

    Every draw has its own parameters and its own rate for each machine's link.
    """
    rng = np.random.default_rng(_SEED)
    low, middle, high = (
        np.array([getattr(rate, name) for rate in cases.reaches]) for name in ("low", "byte_per_s", "high")
    )
    spread = np.log(high / low) / (2 * _TWO_SIDED)
    found = []
    for parameters in prior_model().draws:
        rates = np.clip(middle * np.exp(spread * rng.standard_normal(len(middle))), low, high)
        found.append(_ratio(cases, parameters, rates))
    return np.concatenate(found)


def _ratio(cases: _Cases, parameters: Parameters, byte_per_s: NDArray[np.float64]) -> NDArray[np.float64]:
    # What is drawn is what transfers reach; the model takes a stated rate and multiplies it by this share.
    stated = byte_per_s / parameters.value("collective.intra_fraction")
    machines = replace(cases.machines, intra_byte_per_s=np.reshape(stated, (-1, 1, 1)))
    step_s = estimate(cases.loads, machines, cases.grid, parameters).step_s
    step_s = np.broadcast_to(step_s, (len(byte_per_s), cases.num_models, 2))
    return np.asarray(step_s[..., 0] / step_s[..., 1])


def _gain(link_class: str, model: Workload, speedups: NDArray[np.float64]) -> Gain:
    low, middle, high = np.quantile(speedups, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    return Gain(
        link_class=link_class,
        workload=model.slug,
        title=model.title,
        params=float(model.params or 0),
        speedup=float(middle),
        low=float(low),
        high=float(high),
    )


def _crossover(link_class: str, speedups: NDArray[np.float64], sizes: NDArray[np.float64]) -> Crossover:
    """Where speed-ups of sizes pass LEAST_GAIN, in each draw; sizes that no draw reaches are infinite."""
    gains = speedups >= LEAST_GAIN
    first = np.where(gains.any(axis=1), gains.argmax(axis=1), len(sizes))
    tried = np.append(sizes, np.inf)
    low, middle, high = np.quantile(
        tried[first], [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2], method="inverted_cdf"
    )
    return Crossover(
        link_class=link_class,
        params=_finite(middle),
        low=_finite(low),
        high=_finite(high),
        least=float(sizes[0]),
        most=float(sizes[-1]),
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None

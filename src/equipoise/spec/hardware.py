"""Accelerators: what a chip is, by name. Facts live in hardware.toml; this reads and finds them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Literal, TypeAlias, cast

from equipoise.errors import SpecError
from equipoise.spec.facts import Block, canonical, claimed, merged, read_blocks, shown

HARDWARE_FILE = Path(__file__).with_name("hardware.toml")
# What a file given with --hardware may hold; blocks of clusters are read by cluster.py.
BLOCK_KINDS = frozenset({"accelerator", "cluster"})
EDIT = "src/equipoise/spec/hardware.toml, or a file given with --hardware"

Kind: TypeAlias = Literal["gpu", "tpu", "npu", "ipu", "cpu"]
Confidence: TypeAlias = Literal["high", "medium", "low"]
Dtype: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]
Topology: TypeAlias = Literal["switch", "mesh", "ring", "torus", "bridge", "host"]
KINDS: tuple[Kind, ...] = ("gpu", "tpu", "npu", "ipu", "cpu")
CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")
DTYPES: tuple[Dtype, ...] = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
# switch: every pair at full rate (NVSwitch); mesh: the rate is divided over links to the peers; ring, torus:
# neighbours only; bridge: pairs joined, others through the host; host: all through PCIe and the host bridge.
TOPOLOGIES: tuple[Topology, ...] = ("switch", "mesh", "ring", "torus", "bridge", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One kind of accelerator, as its maker states it: dense peaks, memory, link and power; None is unknown.

    A CPU socket is an accelerator too. Rates of links are one direction, whole accelerator.
    peak_power_w: power at which the peaks hold, where power_w is a lower limit.
    host_byte_per_s: between the accelerator and the memory of its host. bridge_byte_per_s: over a bridge sold
    apart, where link_byte_per_s is the slot's.
    for_desktops: whether it is sold for desktop computers: an own one stands in an office or at home.
    node_size to topology: the node it usually sits in, where `node_source` says so; `Cluster` explains them.
    """

    slug: str
    title: str
    vendor: str
    kind: Kind
    source: str
    confidence: Confidence
    year: int | None = None
    memory_bytes: int | None = None
    memory_byte_per_s: float | None = None
    peak_fp32_flop_per_s: float | None = None
    peak_tf32_flop_per_s: float | None = None
    peak_fp16_flop_per_s: float | None = None
    peak_bf16_flop_per_s: float | None = None
    peak_fp8_flop_per_s: float | None = None
    peak_fp4_flop_per_s: float | None = None
    achieved_bf16_flop_per_s: float | None = None
    link: str | None = None
    link_byte_per_s: float | None = None
    power_w: float | None = None
    peak_power_w: float | None = None
    host_byte_per_s: float | None = None
    bridge_byte_per_s: float | None = None
    node_size: int | None = None
    num_nics: int | None = None
    inter_byte_per_s: float | None = None
    intra_latency_s: float | None = None
    inter_latency_s: float | None = None
    topology: Topology | None = None
    switch_reduces: bool | None = None
    keeps_order: bool | None = None
    for_desktops: bool | None = None
    node_source: str | None = None
    aliases: tuple[str, ...] = ()

    @property
    def achievable_fraction(self) -> float:
        """The share of its bf16 peak that a large matrix product reaches.

        Measured (`achieved_bf16_flop_per_s`) where anyone did; else the median of the measured ones of the
        same vendor and kind, or of all where there is none: `achievable_is_measured` tells which.
        """
        measured = _achieved_fraction(self)
        return _usual_fraction(self.vendor, self.kind) if measured is None else measured

    @property
    def achievable_is_measured(self) -> bool:
        """Whether `achievable_fraction` was measured on this very accelerator."""
        return _achieved_fraction(self) is not None

    @property
    def power_share(self) -> float:
        """Allowed power over the power at which the peaks hold; 1 where no limit is known."""
        return 1.0 if not (self.power_w and self.peak_power_w) else min(1.0, self.power_w / self.peak_power_w)

    def peak_flop_per_s(self, dtype: Dtype) -> float | None:
        """Dense peak of one dtype; None where the maker states none."""
        return cast("float | None", getattr(self, f"peak_{dtype}_flop_per_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorAlias:
    """What a raw name means: the accelerator, and how many of it one counted unit is (TPU core: 0.5)."""

    slug: str
    accelerators_per_count: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A set of accelerators and every spelling that leads to them. Built by `load_hardware`; read-only."""

    accelerators: MappingProxyType[str, Accelerator]
    names: MappingProxyType[str, AcceleratorAlias]
    names_in_systems: MappingProxyType[tuple[str, str], AcceleratorAlias]

    def alias(self, raw: str, system_name: str | None = None) -> AcceleratorAlias | None:
        """What a raw name means, if need be with the name of its system; None when the table does not say."""
        name = canonical(raw)
        if system_name is not None:
            in_system = self.names_in_systems.get((name, canonical(system_name)))
            if in_system is not None:
                return in_system
        return self.names.get(name)

    def accelerator(self, name: str) -> Accelerator:
        """The accelerator of a slug, title or alias.

        Raises SpecError with the nearest names and the file to edit when the table does not have it.
        """
        found = self.names.get(canonical(name))
        if found is not None:
            return self.accelerators[found.slug]
        near = _near(canonical(name), self)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise SpecError(f"accelerator {shown(name)} is not known; {hint}Add it to {EDIT}")


def accelerator(name: str) -> Accelerator:
    """The accelerator of a slug, title or alias: exact but for case, punctuation and trademark signs.

    Raises SpecError with the nearest names and the file to edit.

    >>> accelerator("NVIDIA H100-SXM5-80GB").slug
    'h100-sxm5-80gb'
    """
    return current().accelerator(name)


def accelerator_alias(raw: str, system_name: str | None = None) -> AcceleratorAlias | None:
    """What a raw accelerator name means, or None when the table does not have it.

    system_name: needed where the raw name alone says too little (`TPU` of v0.7 and v1.0).

    >>> accelerator_alias("tpuv3-8")
    AcceleratorAlias(slug='tpu-v3', accelerators_per_count=0.5)
    >>> accelerator_alias("TPU") is None
    True
    >>> accelerator_alias("TPU", "tpu-v4-128").slug
    'tpu-v4'
    """
    return current().alias(raw, system_name)


def accelerator_slug(raw: str, system_name: str | None = None) -> str | None:
    """The slug a raw accelerator name stands for, or None when the table does not have it.

    >>> accelerator_slug("NVIDIA A100 - PCIe - 80 GB")
    'a100-pcie-80gb'
    """
    found = accelerator_alias(raw, system_name)
    return None if found is None else found.slug


def accelerators() -> tuple[Accelerator, ...]:
    """Every accelerator of the table, those of added files included, in the order of the files."""
    return tuple(current().accelerators.values())


_added: list[Path] = []


def add_file(path: Path) -> None:
    """Add a user's table for the rest of this process: new accelerators, and single fields of known ones.

    Raises SpecError with file and line, and then adds nothing.
    """
    load_hardware((*_added, path))
    _added.append(path)
    current.cache_clear()


def capped(chip: Accelerator, power_w: float) -> Accelerator:
    """The accelerator under a limit of power; what is no limit to it changes nothing.

    Raises SpecError for a limit that is no power.
    """
    if not 0 < power_w < math.inf:
        raise SpecError(f"power cap of {chip.slug}: {power_w!r} W; expected a power above zero")
    if chip.power_w is not None and power_w >= chip.power_w:
        return chip
    return replace(chip, power_w=power_w, peak_power_w=chip.peak_power_w or chip.power_w)


def added_files() -> tuple[Path, ...]:
    """The users' tables added so far, in the order in which they count."""
    return tuple(_added)


@cache
def current() -> Hardware:
    """The embedded table with the files added so far."""
    return load_hardware(tuple(_added))


def load_hardware(extra: Sequence[Path] = ()) -> Hardware:
    """The embedded table and then the given files; of two statements on a field or name the later wins.

    Raises SpecError with file and line if a file is not such a table.
    """
    table: dict[str, Accelerator] = {}
    names: dict[str, AcceleratorAlias] = {}
    in_systems: dict[tuple[str, str], AcceleratorAlias] = {}
    for path in (HARDWARE_FILE, *extra):
        owners: dict[str, str] = {}
        for block in read_blocks(path, BLOCK_KINDS):
            if block.kind != "accelerator":
                continue
            chip = _accelerator(block, table.get(block.slug))
            table[chip.slug] = chip
            alias = AcceleratorAlias(slug=chip.slug)
            names[canonical(f"{chip.vendor} {chip.slug}")] = alias
            for spelling in (chip.slug, chip.title, *block.texts("aliases")):
                names[claimed(block, spelling, chip.slug, owners)] = alias
            for counted in block.blocks("counted"):
                _add_counted(counted, chip, owners, names, in_systems)
    return Hardware(
        accelerators=MappingProxyType(table),
        names=MappingProxyType(names),
        names_in_systems=MappingProxyType(in_systems),
    )


_TEXTS = ("title", "vendor", "link", "source", "node_source")
_FLAGS = ("switch_reduces", "keeps_order", "for_desktops")
_COUNTS = ("year", "memory_bytes", "node_size", "num_nics")
_RATES = (
    "memory_byte_per_s",
    *(f"peak_{dtype}_flop_per_s" for dtype in DTYPES),
    "achieved_bf16_flop_per_s",
    "link_byte_per_s",
    "power_w",
    "peak_power_w",
    "host_byte_per_s",
    "bridge_byte_per_s",
    "inter_byte_per_s",
    "intra_latency_s",
    "inter_latency_s",
)
_KEYS = frozenset(
    (*_TEXTS, *_FLAGS, *_COUNTS, *_RATES, "kind", "confidence", "topology", "aliases", "counted")
)
_WIDER_THAN: tuple[tuple[Dtype, Dtype], ...] = (
    ("fp32", "tf32"),
    ("tf32", "bf16"),
    ("bf16", "fp8"),
    ("fp16", "fp8"),
    ("fp8", "fp4"),
)
_COUNTED_KEYS = frozenset({"raw", "accelerators_per_count", "systems"})


def _accelerator(block: Block, known: Accelerator | None) -> Accelerator:
    """The accelerator a block describes; fields it does not state are kept from an earlier file."""
    block.check_keys(_KEYS)
    stated: dict[str, object] = {key: block.text(key) for key in _TEXTS}
    stated |= {key: block.number(key) for key in _RATES}
    stated |= {key: block.count(key) for key in _COUNTS}
    stated["kind"] = block.one_of("kind", KINDS)
    stated["confidence"] = block.one_of("confidence", CONFIDENCES)
    stated["topology"] = block.one_of("topology", TOPOLOGIES)
    stated |= {key: block.flag(key) for key in _FLAGS}
    chip = Accelerator(**merged(block, stated, known, "title vendor kind source confidence"))
    _check_order_of_peaks(block, chip)
    return chip


def _check_order_of_peaks(block: Block, chip: Accelerator) -> None:
    """Refuse a narrower type that is slower than a wider one: nearly always a slip of a column or a power."""
    for wide, narrow in _WIDER_THAN:
        wide_rate, narrow_rate = chip.peak_flop_per_s(wide), chip.peak_flop_per_s(narrow)
        if wide_rate is not None and narrow_rate is not None and narrow_rate < wide_rate:
            raise SpecError(
                f"{block.where}: peak_{narrow}_flop_per_s={narrow_rate:g} is below "
                f"peak_{wide}_flop_per_s={wide_rate:g}; a narrower type is never slower"
            )
    if (chip.achieved_bf16_flop_per_s or 0) > (chip.peak_bf16_flop_per_s or math.inf):
        raise block.refuse("achieved_bf16_flop_per_s", f"at most the peak {chip.peak_bf16_flop_per_s:g}")


def _achieved_fraction(chip: Accelerator) -> float | None:
    """Achieved over peak, where both are known."""
    if chip.achieved_bf16_flop_per_s is None or chip.peak_bf16_flop_per_s is None:
        return None
    return chip.achieved_bf16_flop_per_s / chip.peak_bf16_flop_per_s


def _usual_fraction(vendor: str, kind: Kind) -> float:
    """The median of what was achieved on accelerators of a vendor and kind; of all where it has none."""
    measured = [(chip, _achieved_fraction(chip)) for chip in accelerators()]
    alike = [
        part for chip, part in measured if part is not None and (chip.vendor, chip.kind) == (vendor, kind)
    ]
    return median(alike or [part for _, part in measured if part is not None])


def _add_counted(
    block: Block,
    chip: Accelerator,
    owners: dict[str, str],
    names: dict[str, AcceleratorAlias],
    in_systems: dict[tuple[str, str], AcceleratorAlias],
) -> None:
    """Add a spelling that is counted in other units, or that needs the name of its system."""
    block.check_keys(_COUNTED_KEYS)
    raw = block.text("raw")
    if raw is None:
        raise block.refuse("raw", "the spelling as it occurs")
    per_count = block.number("accelerators_per_count") or 1.0
    alias = AcceleratorAlias(slug=chip.slug, accelerators_per_count=per_count)
    systems = block.texts("systems")
    if not systems:
        names[claimed(block, raw, chip.slug, owners)] = alias
    for system in systems:
        claimed(block, f"{raw} in {system}", chip.slug, owners)
        in_systems[canonical(raw), canonical(system)] = alias


def near_slugs(name: str) -> list[str]:
    """Up to five accelerators that a name may have meant, the likeliest first."""
    return _near(canonical(name), current())


def _near(name: str, hardware: Hardware) -> list[str]:
    """Up to five slugs that may have been meant: first those with every word, then close spellings."""
    words = set(name.split())
    having = [slug for slug in hardware.accelerators if words and words <= set(canonical(slug).split())]
    close = [hardware.names[near].slug for near in get_close_matches(name[:80], hardware.names, n=5)]
    return list(dict.fromkeys((*having, *close)))[:5]

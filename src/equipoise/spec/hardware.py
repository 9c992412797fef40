"""Accelerators: reads the facts in hardware.toml and finds accelerators by name.

Module-level functions use the shipped table; `spec.catalogue.Catalogue` includes a user's files.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter, ge, itemgetter, truediv
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Final, Literal, TypeAlias, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.files import kept_record
from equipoise.spec import (
    FactBlock,
    PlausibleRange,
    canonical,
    claim_name,
    close_names,
    compact,
    family_of,
    read_blocks,
    short_names,
    shown,
    unknown_name,
)
from equipoise.units import whole_percent

HARDWARE_FILE = Path(__file__).with_name("hardware.toml")
# The blocks allowed in a file for --hardware; blocks of clusters are read by cluster.py.
BLOCK_KINDS = frozenset({"accelerator", "cluster"})
EDIT = "a file for --hardware FILE (`equipoise list accelerators --example` prints one)"
# Similarity above which a name counts as a misspelling of another: "Arc A770" does not mean "Arc Pro B60".
NEAR: Final = 0.8

Kind: TypeAlias = Literal["gpu", "tpu", "npu", "ipu", "cpu"]
Confidence: TypeAlias = Literal["high", "medium", "low"]
Dtype: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]
Topology: TypeAlias = Literal["switch", "mesh", "ring", "torus", "bridge", "host"]
# Vendors whose GPUs torch calls `xpu` and `mps` instead of `cuda`, which generated scripts use.
_WITHOUT_CUDA = frozenset({"Intel", "Apple"})
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
# Data types of matrix units, which share one achievable fraction of their peak.
NARROW_DTYPES: Final = tuple(dtype for dtype in DTYPES if dtype != "fp32")
# switch: every pair at full rate (NVSwitch); mesh: the rate is divided among links to the peers; ring, torus:
# neighbours only; bridge: pairs, others through the host; host: all through PCIe and the host bridge.
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)

# Rental terms of accelerators and the default grid; they are part of questions and independent of any table.
PriceTerms: TypeAlias = Literal["on_demand", "reserved", "spot"]
TERMS: Final[tuple[PriceTerms, ...]] = get_args(PriceTerms)
TERM_WORDS: Final[dict[PriceTerms, str]] = {"on_demand": "on demand", "reserved": "reserved", "spot": "spot"}
OnReclaim: TypeAlias = Literal["wait", "shrink"]
ON_RECLAIM: Final[tuple[OnReclaim, ...]] = get_args(OnReclaim)
DEFAULT_GRID: Final = "world"


# Plausible ranges for chips and systems, from a small CPU or a slow network to a wafer-scale chip.
Bytes: TypeAlias = Annotated[int, PlausibleRange(1e7, 1e15, "bytes")]
MemoryRate: TypeAlias = Annotated[float, PlausibleRange(1e10, 1e17, "bytes per second")]
LinkRate: TypeAlias = Annotated[float, PlausibleRange(1e6, 1e14, "bytes per second")]
FlopRate: TypeAlias = Annotated[float, PlausibleRange(1e9, 1e19, "FLOP per second", 12)]
Share: TypeAlias = Annotated[float, PlausibleRange(0.1, 1, "of its memory")]
Watts: TypeAlias = Annotated[float, PlausibleRange(1, 1e5, "watts")]
Latency: TypeAlias = Annotated[float, PlausibleRange(1e-9, 0.5, "seconds")]


class Accelerator(Struct, frozen=True, kw_only=True):
    """One kind of accelerator as its vendor specifies it: dense peaks, memory, link, power; None is unknown.

    A CPU socket is an accelerator too. Link rates are one direction, per accelerator.
    peak_power_w: power at which the peaks are reached, if power_w is a lower limit.
    host_byte_per_s: between the accelerator and its host's memory. bridge_byte_per_s: over a bridge that is
    sold separately, in which case link_byte_per_s is that of the slot.
    for_desktops: whether it is sold for desktop computers, and so is used in an office or at home.
    shares_host_memory: whether it shares the host's memory, so that offloading saves nothing.
    usable_memory_fraction: fraction of memory that the operating system leaves to programs; None means all.
    asynchronous_products: number of generations of asynchronous instructions that its matrix units need to
    reach their peak; older attention kernels do not use them.
    grace_host: whether its host is NVIDIA's Grace, which takes longer to launch a kernel than x86 hosts.
    lacks_compiler: whether PyTorch's compiler does not support it, so that code runs eagerly.
    node_size to topology: of its usual node, whose source is `node_source`; see `Cluster`.
    slice_sizes: numbers of a pod's accelerators that can be rented, and multiples of the last; empty means
    any. ordered_fraction, ordered_fp32_fraction: `achievable_fraction` and `achievable_fp32_fraction`,
    computed among the accelerators of its table.
    """

    slug: str
    title: str
    vendor: str
    kind: Kind
    source: str
    confidence: Confidence
    year: int | None = None
    memory_bytes: Bytes | None = None
    memory_byte_per_s: MemoryRate | None = None
    peak_fp32_flop_per_s: FlopRate | None = None
    peak_tf32_flop_per_s: FlopRate | None = None
    peak_fp16_flop_per_s: FlopRate | None = None
    peak_bf16_flop_per_s: FlopRate | None = None
    peak_fp8_flop_per_s: FlopRate | None = None
    peak_fp4_flop_per_s: FlopRate | None = None
    achieved_bf16_flop_per_s: FlopRate | None = None
    achieved_fp16_flop_per_s: FlopRate | None = None
    achieved_fp32_flop_per_s: FlopRate | None = None
    link: str | None = None
    link_byte_per_s: LinkRate | None = None
    power_w: Watts | None = None
    peak_power_w: Watts | None = None
    host_byte_per_s: LinkRate | None = None
    bridge_byte_per_s: LinkRate | None = None
    node_size: int | None = None
    num_nics: int | None = None
    inter_byte_per_s: LinkRate | None = None
    intra_latency_s: Latency | None = None
    inter_latency_s: Latency | None = None
    topology: Topology | None = None
    slice_sizes: tuple[int, ...] = ()
    switch_reduces: bool | None = None
    keeps_order: bool | None = None
    for_desktops: bool | None = None
    shares_host_memory: bool | None = None
    usable_memory_fraction: Share | None = None
    asynchronous_products: int | None = None
    grace_host: bool | None = None
    lacks_compiler: bool | None = None
    node_source: str | None = None
    ordered_fraction: float | None = None
    ordered_fp32_fraction: float | None = None
    aliases: tuple[str, ...] = ()

    @property
    def usable_memory_bytes(self) -> float | None:
        """Bytes available to programs; None if the memory is not known."""
        return None if self.memory_bytes is None else (self.usable_memory_fraction or 1.0) * self.memory_bytes

    @property
    def achievable_fraction(self) -> float:
        """The fraction of peak that a large 16-bit matrix product reaches; above 1 at clocks above the rated.

        It is measured if possible (`achieved_bf16_flop_per_s`, or fp16 without bf16; see
        `achievable_is_measured`). Otherwise it is the median of measured accelerators of the same vendor and
        kind: those with equal peaks, else of the same chip, else the three with the nearest power per FLOP/s
        (of any vendor if fewer were measured). Unknown power counts as the lowest per FLOP/s, so that a
        missing fact is no advantage. The fraction is raised to the rate of every accelerator of the same
        vendor and kind that this one equals or exceeds in peaks, memory and power. If not measured, it is
        limited to the rate of any measured one that exceeds it.
        """
        return self._ordered_fraction(self.ordered_fraction, _NARROW)

    @property
    def achievable_fp32_fraction(self) -> float:
        """The achievable fraction of the fp32 peak, outside matrix units; see `achievable_fraction`."""
        return self._ordered_fraction(self.ordered_fp32_fraction, _SINGLE)

    def _ordered_fraction(self, known: float | None, products: "_Products") -> float:
        """Return the fraction computed with its table, or else compute it among the shipped accelerators."""
        if known is not None:
            return known
        chips = (*accelerators(), self)
        return _ordered_fractions(chips, _dominated(chips), products)[self.slug]

    @property
    def achievable_is_measured(self) -> bool:
        """Return whether `achievable_fraction` was measured on this accelerator."""
        return _NARROW.achieved_fraction(self) is not None

    @property
    def power_share(self) -> float:
        """Power limit divided by the power at which the peaks are reached; 1 if no limit is known."""
        return 1.0 if not (self.power_w and self.peak_power_w) else min(1.0, self.power_w / self.peak_power_w)

    @property
    def is_started(self) -> bool:
        """Return whether torch's launcher can start scripts on it that support only CPUs and `cuda`."""
        return self.kind == "cpu" or (self.kind == "gpu" and self.vendor not in _WITHOUT_CUDA)

    def peak_flop_per_s(self, dtype: Dtype) -> float | None:
        """Return the dense peak of a dtype; None if the vendor states none."""
        return cast("float | None", getattr(self, f"peak_{dtype}_flop_per_s"))


class AcceleratorAlias(Struct, frozen=True, kw_only=True):
    """The meaning of a raw name: the accelerator, and the number of them per counted unit (TPU core: 0.5)."""

    slug: str
    accelerators_per_count: float = 1.0


class Hardware(Struct, frozen=True, kw_only=True):
    """A set of accelerators with all their spellings. Built by `load_hardware`; read-only.

    names: canonical spelling in logs and tables of measurements -> its meaning.
    short_names: compact short name that users type -> the slugs it may mean.
    """

    accelerators: Mapping[str, Accelerator]
    names: Mapping[str, AcceleratorAlias]
    names_in_systems: Mapping[tuple[str, str], AcceleratorAlias]
    short_names: Mapping[str, tuple[str, ...]]

    def alias(self, raw: str, system_name: str | None = None) -> AcceleratorAlias | None:
        """Return the meaning of a raw name, with the name of its system if necessary; None if unknown.

        Only exact aliases match, because names in logs and measured rows are never completed.
        """
        name = canonical(raw)
        if system_name is not None:
            in_system = self.names_in_systems.get((name, canonical(system_name)))
            if in_system is not None:
                return in_system
        return self.names.get(name)

    def exact(self, raw: str) -> Accelerator | None:
        """Return the accelerator of an exact slug, title or alias; None for other names.

        >>> shipped_hardware().exact("h100") is None
        True
        """
        found = self.alias(raw)
        return None if found is None else self.accelerators[found.slug]

    def find(self, name: str) -> Accelerator | None:
        """Return the accelerator of a name that a user typed, exact or short; None if unknown.

        A short name omits some of the slug's words for form and memory, and may omit spaces: `h100`,
        `rtx4090`, `a100 80gb`. If several accelerators share it, it means the one whose block claims it
        (`short`). Other names may omit the vendor, `H100-80GB-HBM3`, and short names may include vendor and
        brand: `NVIDIA GeForce RTX 4060 Ti`.
        Raises SpecError with the candidates if the name is ambiguous and no block claims it.
        """
        found = self.exact(name)
        if found is not None:
            return found
        slugs = self.short_names.get(compact(name), ())
        if len(slugs) > 1:
            raise SpecError(
                f"accelerator {shown(name)} may mean {', '.join(slugs[:-1])} or {slugs[-1]}; name one of them"
            )
        if slugs:
            return self.accelerators[slugs[0]]
        vendors = dict.fromkeys(each.vendor for each in self.accelerators.values())
        found = next(filter(None, (self.exact(f"{vendor} {name}") for vendor in vendors)), None)
        if found is not None:
            return found
        words = canonical(name).split()
        rest = [each for each in words if each not in {*map(canonical, vendors), *BRANDS}]
        return self.find(" ".join(rest)) if 0 < len(rest) < len(words) else None

    def accelerator(self, name: str) -> Accelerator:
        """Return the accelerator of a name as `find` does.

        Raises SpecError with similar names and the file to edit if the name is unknown.
        """
        found = self.find(name)
        if found is not None:
            return found
        near = self.near(name)
        raise unknown_name(f"accelerator {shown(name)} is not known", near, kind="accelerators", edit=EDIT)

    def near(self, name: str) -> list[str]:
        """Return up to five slugs similar to a name.

        Slugs with all its words come first, then those of the closest short name, then close spellings.

        >>> shipped_hardware().near("h1000")[0]
        'h100-sxm5-80gb'
        """
        wanted = canonical(name)
        words = set(wanted.split())
        having = [slug for slug in self.accelerators if words and words <= set(canonical(slug).split())]
        short = [
            slug
            for each in close_names(compact(name), self.short_names, cutoff=NEAR)[:1]
            for slug in self.short_names[each]
        ]
        close = [self.names[each].slug for each in close_names(name, self.names, cutoff=NEAR)]
        return list(dict.fromkeys((*having, *short, *close)))[:5]


# Brand words that are not needed to distinguish accelerators.
BRANDS: Final = frozenset({"geforce", "tesla", "instinct", "habana"})


def accelerator(name: str) -> Accelerator:
    """Return the accelerator of a slug, title, alias or short name; see `Hardware.find`.

    Raises SpecError with similar names and the file to edit.

    >>> accelerator("NVIDIA H100-SXM5-80GB").slug, accelerator("rtx4090").slug
    ('h100-sxm5-80gb', 'rtx-4090-pcie-24gb')
    """
    return shipped_hardware().accelerator(name)


def accelerator_title(slug: str) -> str:
    """Return the title of an accelerator; the slug itself if it is not in the shipped table.

    >>> accelerator_title("h100-sxm5-80gb")
    'NVIDIA H100 SXM5 80 GB'
    """
    known = shipped_hardware().exact(slug)
    return slug if known is None else known.title


def slug_typed(name: str) -> str | None:
    """Return the slug of a name that a user typed, including short names; None if unknown.

    Raises SpecError if the name is ambiguous.

    >>> slug_typed("h100"), slug_typed("h900")
    ('h100-sxm5-80gb', None)
    """
    found = shipped_hardware().find(name)
    return None if found is None else found.slug


def accelerators() -> tuple[Accelerator, ...]:
    """Return every accelerator of the shipped table, in the order of the file."""
    return tuple(shipped_hardware().accelerators.values())


@cache
def shipped_hardware() -> Hardware:
    """Return the shipped table."""
    return kept_record("hardware", Hardware, load_hardware)


# Lowest power cap relative to the rated power: a B200 of 1,000 W accepts limits from 200 W, the lowest known
# share.
# Source: https://docs.nvidia.com/dgx/dgxb200-user-guide/power-capping.html, read 2026-11-22.
_LEAST_CAP = 0.2


def capped(chip: Accelerator, power_w: float) -> Accelerator:
    """Return the accelerator under a power cap; a cap at or above its power changes nothing.

    Raises SpecError for an invalid cap, or one lower than drivers accept.
    """
    if not 0 < power_w < math.inf:
        raise SpecError(f"power cap of {chip.slug}: {power_w!r} W; expected a power above zero")
    if chip.power_w is None:
        raise SpecError(
            f"power cap of {chip.slug}: its own power is not known, and so not how much slower it is; state "
            "power_w in a file for --hardware"
        )
    if power_w >= chip.power_w:
        return chip
    if power_w < _LEAST_CAP * chip.power_w:
        raise SpecError(
            f"power cap of {chip.slug}: {power_w:g} W; expected from {_LEAST_CAP * chip.power_w:g} W, "
            f"{whole_percent(_LEAST_CAP)} of its {chip.power_w:g} W: no driver takes less"
        )
    return replace(chip, power_w=power_w, peak_power_w=chip.peak_power_w or chip.power_w)


def load_hardware(extra: Sequence[Path] = ()) -> Hardware:
    """Return the shipped table combined with the given files, which override fields and names.

    Raises SpecError with file and line if a file is invalid.
    """
    read = _shipped_blocks().copied()
    for path in extra:
        read.add(path)
    table, names = read.table, read.names
    known = tuple(table.values())
    dominated = _dominated(known)
    narrow, single = (_ordered_fractions(known, dominated, each) for each in (_NARROW, _SINGLE))
    chips = {
        slug: replace(chip, ordered_fraction=narrow[slug], ordered_fp32_fraction=single[slug])
        for slug, chip in table.items()
    }
    return Hardware(
        accelerators=chips,
        names=names,
        names_in_systems=read.in_systems,
        short_names=short_names(
            {slug: chip.vendor for slug, chip in chips.items()},
            {name: alias.slug for name, alias in names.items() if alias.accelerators_per_count == 1},
            {slug: short for short, slug in read.claimed.items()},
        ),
    )


class _Blocks(Struct, kw_only=True):
    """The contents of files: accelerators by slug, aliases by name and by system, and claimed short names."""

    table: dict[str, Accelerator] = {}
    names: dict[str, AcceleratorAlias] = {}
    in_systems: dict[tuple[str, str], AcceleratorAlias] = {}
    claimed: dict[str, str] = {}

    def copied(self) -> "_Blocks":
        """Return a copy, to which another file can be added."""
        return _Blocks(
            table=dict(self.table),
            names=dict(self.names),
            in_systems=dict(self.in_systems),
            claimed=dict(self.claimed),
        )

    def add(self, path: Path) -> None:
        """Add the contents of a file."""
        owners: dict[str, str] = {}
        short_owners: dict[str, str] = {}
        for block in read_blocks(path, BLOCK_KINDS):
            if block.kind != "accelerator":
                continue
            chip = _accelerator(block, self.table.get(block.slug))
            self.table[chip.slug] = chip
            alias = AcceleratorAlias(slug=chip.slug)
            self.names[canonical(f"{chip.vendor} {chip.slug}")] = alias
            for spelling in (chip.slug, chip.title, *block.texts("aliases")):
                self.names[claim_name(block, spelling, chip.slug, owners)] = alias
            for counted in block.blocks("counted"):
                _add_counted(counted, chip, owners, self.names, self.in_systems)
            _add_short(block, short_owners, self.claimed)


@cache
def _shipped_blocks() -> _Blocks:
    """Return the contents of the shipped table; cached, because each user's file extends it."""
    shipped = _Blocks()
    shipped.add(HARDWARE_FILE)
    return shipped


_WIDER_THAN: tuple[tuple[Dtype, Dtype], ...] = (
    ("fp32", "tf32"),
    ("tf32", "bf16"),
    ("bf16", "fp8"),
    ("fp16", "fp8"),
    ("fp8", "fp4"),
)


def _accelerator(block: FactBlock, known: Accelerator | None) -> Accelerator:
    """Return the accelerator that a block describes; missing fields are taken from an earlier file."""
    given = {"slug": block.slug, "ordered_fraction": None, "ordered_fp32_fraction": None}
    chip = block.read(Accelerator, known, also=("short", "counted"), given=given)
    _check_order_of_peaks(block, chip)
    return chip


def _check_order_of_peaks(block: FactBlock, chip: Accelerator) -> None:
    """Raise SpecError if a narrower type is slower than a wider one, usually a wrong column or power."""
    for wide, narrow in _WIDER_THAN:
        wide_rate, narrow_rate = chip.peak_flop_per_s(wide), chip.peak_flop_per_s(narrow)
        if wide_rate is not None and narrow_rate is not None and narrow_rate < wide_rate:
            raise SpecError(
                f"{block.where}: peak_{narrow}_flop_per_s={narrow_rate:g} is below "
                f"peak_{wide}_flop_per_s={wide_rate:g}; a narrower type is never slower"
            )
    for name in ("bf16", "fp16", "fp32"):
        peak, achieved = chip.peak_flop_per_s(name), getattr(chip, f"achieved_{name}_flop_per_s")
        if achieved is not None and peak is not None and achieved > _MOST_OVER_PEAK * peak:
            raise block.refuse(
                f"achieved_{name}_flop_per_s",
                f"at most {_MOST_OVER_PEAK:g} times the peak {peak:g}, which a clock above the stated one "
                "may reach",
            )


_Amounts: TypeAlias = tuple[float | None, ...]
_PEAK_NAMES = tuple(f"peak_{dtype}_flop_per_s" for dtype in DTYPES)
# Thousands of pairs of accelerators are compared whenever their table is read.
_peaks: Callable[[Accelerator], _Amounts] = attrgetter(*_PEAK_NAMES)
_peaks_and_memory: Callable[[Accelerator], _Amounts] = attrgetter(
    *_PEAK_NAMES, "memory_bytes", "memory_byte_per_s"
)


# Desktop cards reach up to 1.14 times the peak at their rated clock: docs/experiments/0040.
_MOST_OVER_PEAK = 1.5
# Number of measured chips with the nearest power per FLOP/s whose median is used.
_NUM_NEAREST = 3
# Number of measured chips of one design needed for a curve over power per FLOP/s: twice as many as for a
# median.
_NUM_FOR_CURVE = 2 * _NUM_NEAREST
# Ratio of tensor to fp32 peak that separates designs: 2 to 8 on NVIDIA's graphics cards and before A100; 15
# and more on server chips since A100, which are wide and clocked low.
_WIDE = 12.0


class _Products(Struct, frozen=True):
    """Matrix products of one kind of unit.

    peaks: peaks of its data types. achieved: data types with achieved rates, in order of preference.
    """

    peaks: Callable[[Accelerator], _Amounts]
    achieved: tuple[Dtype, ...]

    def achieved_fraction(self, chip: Accelerator) -> float | None:
        """Return achieved rate over peak for the first type with both; None if there is none."""
        for dtype in self.achieved:
            achieved, peak = getattr(chip, f"achieved_{dtype}_flop_per_s"), chip.peak_flop_per_s(dtype)
            if achieved is not None and peak is not None:
                return cast("float", achieved / peak)
        return None

    def power_per_flop_log(self, chip: Accelerator) -> float:
        """Return the log of power over peak, without any power cap; NaN if one is unknown."""
        power_w = chip.peak_power_w or chip.power_w
        peak = next((rate for each in self.achieved if (rate := chip.peak_flop_per_s(each))), None)
        return math.log(power_w / peak) if power_w and peak else math.nan


_NARROW: Final = _Products(
    attrgetter(*(f"peak_{dtype}_flop_per_s" for dtype in NARROW_DTYPES)), ("bf16", "fp16")
)
_SINGLE: Final = _Products(lambda chip: (chip.peak_fp32_flop_per_s,), ("fp32",))


def _dominated(chips: Sequence[Accelerator]) -> dict[str, tuple[Accelerator, ...]]:
    """Return by slug the accelerators of the same vendor and kind that one equals or exceeds.

    Peaks, memory and power are compared. Of two accelerators with one slug, the later counts.
    """
    amounts = [_amounts(chip) for chip in chips]
    families: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, chip in enumerate(chips):
        families[chip.vendor, chip.kind].append(place)
    return {
        chip.slug: tuple(
            chips[each] for each in families[chip.vendor, chip.kind] if all(map(ge, own, amounts[each]))
        )
        for chip, own in zip(chips, amounts, strict=True)
    }


def _ordered_fractions(
    chips: Sequence[Accelerator], dominated: Mapping[str, tuple[Accelerator, ...]], products: _Products
) -> dict[str, float]:
    """Return by slug the achievable fraction of peak, with no rate below that of a dominated accelerator.

    dominated: the result of `_dominated`.
    Assumes that a better accelerator of the same vendor reaches at least the same rate with the same
    software; a contrary measurement is due to measurement errors or different software.
    """
    measured = {each.slug: part for each in chips if (part := products.achieved_fraction(each)) is not None}
    of_measured = [
        _MeasuredChip(each, measured[each.slug], products.power_per_flop_log(each))
        for each in chips
        if each.slug in measured
    ]
    by_power = _fractions_by_power(of_measured)
    most: dict[str, float] = defaultdict(lambda: math.inf)
    lesser: dict[str, dict[str, float]] = {}
    # The largest ratio of two is over the types that both state; it is 0 where they share none.
    peaks = {each.slug: [peak or 0.0 for peak in products.peaks(each)] for each in chips}
    for better in chips:
        own = [peak or math.inf for peak in peaks[better.slug]]
        lesser[better.slug] = {
            each.slug: max(map(truediv, peaks[each.slug], own)) for each in dominated[better.slug]
        }
        for slug, ratio in lesser[better.slug].items():
            if better.slug in measured and ratio > 0:
                most[slug] = min(most[slug], measured[better.slug] / ratio)
    found = {
        chip.slug: measured.get(chip.slug)
        or min(_expected_fraction(chip, of_measured, by_power, products), most[chip.slug])
        for chip in chips
    }
    while True:
        raised = {
            slug: max([part, *(found[each] * ratio for each, ratio in lesser[slug].items())])
            for slug, part in found.items()
        }
        if raised == found:
            return found
        found = raised


class _MeasuredChip(Struct, frozen=True):
    """An accelerator with a measured fraction of peak, and the logarithm of its power per FLOP/s."""

    chip: Accelerator
    fraction: float
    power_per_flop_log: float


def _expected_fraction(
    chip: Accelerator,
    measured: Sequence[_MeasuredChip],
    by_power: Sequence[tuple[float, float]],
    products: _Products,
) -> float:
    """Return the expected fraction of peak of an unmeasured accelerator.

    measured: all measured accelerators. by_power: the result of `_fractions_by_power`.
    Assumes that power per FLOP/s determines how far a chip's clock is from that of its peak: among chips of
    the same design if enough were measured, or among all vendors if none of its own was; unknown power counts
    as the lowest. Assumes that a TPU reaches the fraction of the measured TPU with the nearest memory
    bandwidth per FLOP/s.
    Source: docs/experiments/0040, 0042.
    """
    family = [each for each in measured if is_same_family(each.chip, chip)]
    if family and chip.kind == "tpu":
        # Their clock is fixed; measured fractions of peak grow with memory bandwidth per FLOP/s.
        fed = _bytes_per_flop_log(chip)
        return min(family, key=lambda each: abs(_bytes_per_flop_log(each.chip) - fed)).fraction
    power_per_flop_log = products.power_per_flop_log(chip)
    if math.isnan(power_per_flop_log) and by_power:
        power_per_flop_log = by_power[0][0]
    if not family and by_power:
        return _fraction_at(by_power, power_per_flop_log)
    alike = [each for each in family if _peaks(each.chip) == _peaks(chip)] or [
        each for each in family if is_same_chip(each.chip, chip)
    ]
    if not alike:
        wide = _is_wide(chip)
        built_alike = [each for each in family if wide is not None and _is_wide(each.chip) == wide]
        if len(built_alike) >= _NUM_FOR_CURVE:
            return _fraction_between(_fractions_by_power(built_alike), power_per_flop_log)
        known = family if len(family) >= _NUM_NEAREST else measured
        alike = _nearest_power(known, power_per_flop_log) or list(known)
    return median(each.fraction for each in alike)


def _is_wide(chip: Accelerator) -> bool | None:
    """Return whether tensor peaks far exceed fp32 peaks, as on server chips; None if a peak is unknown."""
    narrow = chip.peak_bf16_flop_per_s or chip.peak_fp16_flop_per_s
    single = chip.peak_fp32_flop_per_s
    return None if narrow is None or single is None else narrow > _WIDE * single


def _fractions_by_power(measured: Sequence[_MeasuredChip]) -> list[tuple[float, float]]:
    """Return fractions of peak by log of power per FLOP/s, as a non-decreasing fit over measured chips."""
    known = [each for each in measured if not math.isnan(each.power_per_flop_log)]
    known.sort(key=attrgetter("power_per_flop_log"))
    fitted = _never_falling([each.fraction for each in known])
    return [(each.power_per_flop_log, fraction) for each, fraction in zip(known, fitted, strict=True)]


def _fraction_at(by_power: Sequence[tuple[float, float]], power_per_flop_log: float) -> float:
    """Return the fraction of peak at a power per FLOP/s.

    Between measured chips it rises at most in proportion to power per FLOP/s, so that a higher peak at the
    same power never lowers the rate.
    """
    at_log, found = by_power[0]
    limit = found
    for log, fraction in by_power:
        if log > power_per_flop_log:
            break
        found = min(limit, found * math.exp(log - at_log))
        at_log, limit = log, fraction
    return min(limit, found * math.exp(max(0.0, power_per_flop_log - at_log)))


def _fraction_between(by_power: Sequence[tuple[float, float]], power_per_flop_log: float) -> float:
    """Return the fraction of peak at a power per FLOP/s, by linear interpolation and constant extrapolation.

    It rises at most in proportion, so that a higher peak at the same power never lowers the rate.
    """
    (before_log, before), *later = by_power
    for log, fraction in later:
        if power_per_flop_log <= before_log:
            return before
        if power_per_flop_log < log:
            way = (power_per_flop_log - before_log) / (log - before_log)
            return min(before + way * (fraction - before), before * math.exp(power_per_flop_log - before_log))
        before_log, before = log, fraction
    return before


def _never_falling(values: Sequence[float]) -> list[float]:
    """Return the closest non-decreasing values, in order.

    Source: isotonic regression by adjacent violators (Ayer et al. 1955, doi:10.1214/aoms/1177728423).
    """
    groups: list[list[float]] = []
    for value in values:
        groups.append([value])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [fmean(group) for group in groups for _ in group]


def _nearest_power(known: Sequence[_MeasuredChip], power_per_flop_log: float) -> list[_MeasuredChip]:
    """Return the chips with the nearest power per FLOP/s; empty if it is not known."""
    away = [(abs(each.power_per_flop_log - power_per_flop_log), each) for each in known]
    nearest = sorted((pair for pair in away if not math.isnan(pair[0])), key=itemgetter(0))
    return [each for _, each in nearest[:_NUM_NEAREST]]


def _bytes_per_flop_log(chip: Accelerator) -> float:
    """Return the log of memory bandwidth over peak; infinity if one is unknown."""
    peak = chip.peak_bf16_flop_per_s
    return math.log(chip.memory_byte_per_s / peak) if chip.memory_byte_per_s and peak else math.inf


def is_same_family(one: Accelerator, other: Accelerator) -> bool:
    """Return whether two accelerators are of the same vendor and kind."""
    return (one.vendor, one.kind) == (other.vendor, other.kind)


def is_same_chip(one: Accelerator, other: Accelerator) -> bool:
    """Return whether two accelerators have the same chip, with any board, memory and power (Max-Q)."""
    return family_of(one.slug.replace("-max-q", "")) == family_of(other.slug.replace("-max-q", ""))


def has_same_peaks(one: Accelerator, other: Accelerator) -> bool:
    """Return whether two accelerators of a vendor and kind have the same peak in every data type.

    This holds for variants with slower links or more memory under another name.
    """
    return is_same_family(one, other) and _peaks(one) == _peaks(other)


def usual_peak_flop_per_s(chip: Accelerator) -> float | None:
    """Return the dense peak in the usual training precision: bf16, else fp16, else fp32; None if unknown."""
    return chip.peak_bf16_flop_per_s or chip.peak_fp16_flop_per_s or chip.peak_fp32_flop_per_s


def peak_log2(chip: Accelerator) -> float:
    """Return log2 of the peak in the usual training precision; NaN if unknown."""
    peak = usual_peak_flop_per_s(chip)
    return math.nan if peak is None else math.log2(peak)


def at_least_as_good(chip: Accelerator, other: Accelerator) -> bool:
    """Return whether a chip of the same vendor and kind is at least as good as another in every stated fact.

    Facts: peaks in every data type, memory, its bandwidth, power, the rate of the link and the power cap. A
    fact that only the other states counts against the chip.
    """
    if not is_same_family(chip, other) or not all(map(ge, _amounts(chip), _amounts(other))):
        return False
    has_link = other.link_byte_per_s is None or (chip.link_byte_per_s or 0.0) >= other.link_byte_per_s
    return has_link and chip.power_share >= other.power_share


def _amounts(chip: Accelerator) -> tuple[float, ...]:
    """Return peaks, memory and power without any power cap; unknown facts are minus infinity."""
    stated = (*_peaks_and_memory(chip), chip.peak_power_w or chip.power_w)
    return tuple(-math.inf if each is None else each for each in stated)


def _add_short(block: FactBlock, owners: dict[str, str], claimed: dict[str, str]) -> None:
    """Register the short name that a block claims for its accelerator among variants of its chip."""
    short = block.text("short")
    if short is None:
        return
    words, parts = canonical(short).split(), block.slug.split("-")
    family = family_of(block.slug)
    if tuple(words[: len(family)]) != family or not set(words) <= set(parts):
        raise block.refuse("short", f"words of the slug, beginning with {' '.join(family)!r}")
    claimed[claim_name(block, short, block.slug, owners)] = block.slug


class _CountedName(Struct, frozen=True, kw_only=True):
    """A spelling `raw` and the accelerators per counted unit; valid only in `systems` if these are given."""

    raw: str
    accelerators_per_count: float = 1.0
    systems: tuple[str, ...] = ()


def _add_counted(
    block: FactBlock,
    chip: Accelerator,
    owners: dict[str, str],
    names: dict[str, AcceleratorAlias],
    in_systems: dict[tuple[str, str], AcceleratorAlias],
) -> None:
    """Add a spelling that counts other units, or that is valid only with the name of its system."""
    counted = block.read(_CountedName)
    alias = AcceleratorAlias(slug=chip.slug, accelerators_per_count=counted.accelerators_per_count)
    if not counted.systems:
        names[claim_name(block, counted.raw, chip.slug, owners)] = alias
    for system in counted.systems:
        claim_name(block, f"{counted.raw} in {system}", chip.slug, owners)
        in_systems[canonical(counted.raw), canonical(system)] = alias

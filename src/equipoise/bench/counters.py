"""Readers of counters: energy, power and utilisation (NVML, amdgpu, RAPL), network bytes, use of cores."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from msgspec import Struct

from equipoise.bench.environment import PROCESSES, file_text, usable_cores
from equipoise.units import MICROJOULE_J, MICROWATT_W, MILLIJOULE_J, MILLIWATT_W, SI_PREFIXES

Reading = Callable[[], float | None]


class PowerMeter(Struct, frozen=True, kw_only=True):
    """A component that draws power, with its readers; a reading is None if the component does not answer.

    part: its name on its machine. meter: the interface that reads it. counter_j: cumulative joules, which
    wrap to zero beyond range_j. busy_fraction: over the meter's own sampling window. num_programs: programs
    that compute on it.
    """

    part: str
    meter: str
    counter_j: Reading | None = None
    range_j: float = inf
    power_w: Reading | None = None
    busy_fraction: Reading | None = None
    num_programs: Reading | None = None


class PowerMeters(Struct, frozen=True, kw_only=True):
    """The meters found, and the reason if there are none or some are missing."""

    found: tuple[PowerMeter, ...] = ()
    reason: str | None = None


_MISSING = "accelerators: nvidia-ml-py is not installed: pip install 'equipoise[bench]'"


def nvml_sources(addresses: Sequence[str], library: Any = None) -> PowerMeters:  # noqa: ANN401 - pynvml has no types
    """Return meters of the accelerators with these PCI addresses or UUIDs, which begin with `GPU-`.

    library: an object with the interface of pynvml; None for pynvml itself.
    """
    nvml, reason = _opened(library)
    if nvml is None:
        return PowerMeters(reason=reason)
    try:
        handles = [_handle(nvml, address) for address in addresses]
    except nvml.NVMLError as err:
        return PowerMeters(reason=f"accelerators: NVML has none at {', '.join(addresses)} ({err})")
    named = zip(addresses, handles, strict=True)
    return PowerMeters(found=tuple(_nvml_source(nvml, address, handle) for address, handle in named))


def _opened(library: Any) -> tuple[Any, str | None]:  # noqa: ANN401 - pynvml has no types
    """Return NVML, initialised, or None and the reason."""
    if library is None:
        try:
            library = import_module("pynvml")
        except ModuleNotFoundError:
            return None, _MISSING
    try:
        library.nvmlInit()  # reference-counted; shut down when the process ends
    except library.NVMLError as err:
        return None, f"accelerators: NVML does not start ({err})"
    return library, None


def _handle(nvml: Any, address: str) -> Any:  # noqa: ANN401 - pynvml has no types
    """Return the accelerator with this PCI address or UUID."""
    if address.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(address.encode())
    return nvml.nvmlDeviceGetHandleByPciBusId(address.encode())


def _nvml_source(nvml: Any, address: str, handle: Any) -> PowerMeter:  # noqa: ANN401 - pynvml has no types
    def available(ask: Callable[[Any], float], factor: float) -> Reading | None:
        def reading() -> float | None:
            try:
                return ask(handle) * factor
            except nvml.NVMLError:
                return None

        return None if reading() is None else reading  # a counter that fails now is not supported

    return PowerMeter(
        part=f"accelerator {address}",
        meter="NVML",
        counter_j=available(nvml.nvmlDeviceGetTotalEnergyConsumption, MILLIJOULE_J),
        power_w=available(nvml.nvmlDeviceGetPowerUsage, MILLIWATT_W),
        busy_fraction=available(lambda each: nvml.nvmlDeviceGetUtilizationRates(each).gpu, 0.01),
        num_programs=available(lambda each: len(nvml.nvmlDeviceGetComputeRunningProcesses(each)), 1.0),
    )


def nvml_conditions(address: str) -> dict[str, Any]:
    """Return driver, clocks and power limit of one accelerator; None where not known."""
    nvml, _ = _opened(None)
    found: dict[str, Any] = dict.fromkeys(
        ("driver", "accelerator_clock_hz", "accelerator_most_clock_hz", "accelerator_power_limit_w")
    )
    if nvml is None:
        return found
    with suppress(nvml.NVMLError):
        handle = _handle(nvml, address)
        found["driver"] = nvml.nvmlSystemGetDriverVersion()
        megahertz = SI_PREFIXES["M"]
        found["accelerator_clock_hz"] = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * megahertz
        found["accelerator_most_clock_hz"] = (
            nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * megahertz
        )
        found["accelerator_power_limit_w"] = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) * MILLIWATT_W
    return found


BUS = Path("/sys/bus/pci/devices")
# Lines of pp_dpm_sclk, e.g. `1: 2100Mhz *`; the asterisk marks the current clock.
_CLOCK = re.compile(r"\d+:\s*(\d+)\s*mhz\s*\*", re.IGNORECASE)


def amdgpu_sources(addresses: Sequence[str], bus: Path = BUS) -> PowerMeters:
    """Return meters of the accelerators at these PCI addresses.

    bus: a folder structured like /sys/bus/pci/devices.
    """
    found = []
    for address in addresses:
        sensors = sorted((bus / address / "hwmon").glob("hwmon*"))
        if not sensors:
            return PowerMeters(reason=f"accelerators: amdgpu has no sensor for {address}")
        found.append(_amdgpu_source(bus / address, sensors[0]))
    return PowerMeters(found=tuple(found))


def _amdgpu_source(card: Path, sensor: Path) -> PowerMeter:
    # `input` is the instantaneous reading of newer drivers; `average` of older ones is over some
    # milliseconds.
    power = next(
        (sensor / name for name in ("power1_input", "power1_average") if (sensor / name).exists()), None
    )
    energy = sensor / "energy1_input"
    busy = card / "gpu_busy_percent"
    return PowerMeter(
        part=f"accelerator {card.name}",
        meter="amdgpu",
        counter_j=_scaled(energy, MICROJOULE_J) if energy.exists() else None,
        power_w=_scaled(power, MICROWATT_W) if power else None,
        busy_fraction=_scaled(busy, 0.01) if busy.exists() else None,
    )


def _scaled(path: Path, factor: float) -> Reading:
    def reading() -> float | None:
        try:
            return float(path.read_text(encoding="ascii")) * factor
        except (OSError, ValueError):
            return None

    return reading


_AMDGPU_VERSION = Path("/sys/module/amdgpu/version")


def amdgpu_conditions(address: str, bus: Path = BUS) -> dict[str, Any]:
    """Return driver and clock of one accelerator; None where not known."""
    clock = _CLOCK.search(file_text(bus / address / "pp_dpm_sclk"))
    return {
        "driver": file_text(_AMDGPU_VERSION) or None,
        "accelerator_clock_hz": float(clock[1]) * SI_PREFIXES["M"] if clock else None,
    }


POWERCAP = Path("/sys/class/powercap")
# Packages and their subzones. The kernel lists the same packages again as intel-rapl-mmio.
_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")
# Zones to add up: `core` and `uncore` are part of their package and `psys` includes it; memory is separate.
_ADDED = re.compile(r"package-\d+(-die-\d+)?|dram")


def rapl_sources(root: Path = POWERCAP) -> PowerMeters:
    """Return meters of every CPU package and its memory.

    root: a folder structured like /sys/class/powercap.
    """
    if not root.is_dir():
        return PowerMeters(
            reason="processors: this kernel or virtual machine has no energy counter (powercap)"
        )
    found, forbidden = [], 0
    for zone, part in _zones(root):
        try:
            _number(zone / "energy_uj")
            largest = _number(zone / "max_energy_range_uj")
        except PermissionError:
            forbidden += 1
        except (OSError, ValueError):
            continue
        else:
            counter_j = _scaled(zone / "energy_uj", MICROJOULE_J)
            range_j = largest * MICROJOULE_J
            found.append(PowerMeter(part=part, meter="RAPL", counter_j=counter_j, range_j=range_j))
    if forbidden:
        return PowerMeters(reason="processors: only root may read their energy counters (powercap energy_uj)")
    if not found:
        return PowerMeters(reason="processors: powercap has no package with an energy counter")
    return PowerMeters(found=tuple(found))


def _zones(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the zones to add up, each with a name."""
    for zone in sorted(root.iterdir()):
        name = file_text(zone / "name")
        if _ZONE.fullmatch(zone.name) and _ADDED.fullmatch(name):
            above = file_text(root / zone.name.rpartition(":")[0] / "name")
            yield zone, f"{above} {name}" if name == "dram" else name


def _number(path: Path) -> float:
    return float(path.read_text(encoding="ascii"))


# Fields of a core's line in /proc/stat after its name: user, nice, system and steal. Interrupts are excluded,
# because those of the loopback interface carry a program's own messages.
_TAKEN = (0, 1, 2, 7)
# Fields of /proc/PID/stat after the name: user and system time of the process, and of its ended children.
_USED = (11, 12, 13, 14)
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class CoreUse(Struct, frozen=True, kw_only=True):
    """The use of cores until a moment, or between two. taken_s: core-seconds used by all programs. own_s: the
    part of them used by this process and its descendants.
    """

    cores: tuple[int, ...]
    wall_s: float
    taken_s: float
    own_s: float

    def since(self, before: "CoreUse") -> "CoreUse":
        """Return the use since an earlier moment."""
        return CoreUse(
            cores=self.cores,
            wall_s=self.wall_s - before.wall_s,
            taken_s=self.taken_s - before.taken_s,
            own_s=self.own_s - before.own_s,
        )


def core_use() -> CoreUse | None:
    """Return the use until now of the cores available to this process; None if the system has no counts."""
    cores = usable_cores()
    lines = (line.split() for line in file_text(PROCESSES / "stat").splitlines())
    taken = {line[0]: line[1:] for line in lines if line and line[0].startswith("cpu")}
    try:
        taken_s = sum(int(taken[f"cpu{core}"][at]) for core in cores for at in _TAKEN) * _TICK_S
    except (KeyError, IndexError, ValueError):
        return None
    return CoreUse(cores=cores, wall_s=monotonic(), taken_s=taken_s, own_s=_family_s(os.getpid()))


def _family_s(process: int) -> float:
    """Return the CPU seconds of a process and all its descendants, running or ended."""
    fields = file_text(PROCESSES / str(process) / "stat").rpartition(")")[2].split()
    used_s = sum(int(fields[at]) for at in _USED) * _TICK_S if fields else 0.0
    children = (PROCESSES / str(process) / "task").glob("*/children")
    return used_s + sum(_family_s(int(each)) for path in children for each in file_text(path).split())


# Timer ticks, kernel threads and a few shells use less than this fraction of the cores.
MOST_OTHERS = 0.1


def others_fraction(uses: Iterable[tuple[str, CoreUse]]) -> float | None:
    """Return the fraction of the ranks' cores that other programs used, the largest over sets of cores.

    uses: the machine and core use of each rank, over the same period. Returns None if `uses` is empty.
    Assumes ranks on one machine have the same cores or none in common. Source: definition.
    """
    together: dict[tuple[str, tuple[int, ...]], list[CoreUse]] = {}
    for machine, use in uses:
        together.setdefault((machine, use.cores), []).append(use)
    shares = [
        (max(use.taken_s for use in each) - sum(use.own_s for use in each))
        / (max(use.wall_s for use in each) * len(cores))
        for (_, cores), each in together.items()
    ]
    return min(1.0, max(0.0, *shares)) if shares else None


_LOOPBACK = "lo"
# Index of the bytes sent in /proc/net/dev: 8 fields about received data come first after the name.
_SENT = 8
# InfiniBand counts words of four bytes (Linux Documentation/ABI/stable/sysfs-class-infiniband).
_WORD_BYTES = 4


def sent_bytes(processes: Path = PROCESSES, system: Path = Path("/sys")) -> dict[str, int]:
    """Return bytes sent so far: `wire` over all interfaces except the loopback, and `loopback`.

    Bridges and bonds are excluded, because their traffic is counted at the interfaces below them. InfiniBand
    traffic, which bypasses the kernel, is read from the counters of its ports.
    """
    sent = {"wire": _infiniband_bytes(system / "class" / "infiniband"), "loopback": 0}
    for line in file_text(processes / "self" / "net" / "dev").splitlines():
        name, colon, numbers = line.strip().partition(":")
        fields = numbers.split()
        if not colon or len(fields) <= _SENT or not fields[_SENT].isdigit():
            continue
        shown = system / "class" / "net" / name
        if name == _LOOPBACK:
            sent["loopback"] += int(fields[_SENT])
        elif not (shown / "bridge").exists() and not (shown / "bonding").exists():
            sent["wire"] += int(fields[_SENT])
    return sent


def _infiniband_bytes(root: Path) -> int:
    words = (file_text(path) for path in root.glob("*/ports/*/counters/port_xmit_data"))
    return sum(int(each) for each in words if each.isdigit()) * _WORD_BYTES

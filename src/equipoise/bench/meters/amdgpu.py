"""AMD accelerators: power, energy and use as the kernel's amdgpu driver shows them. No torch."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.bench.environment import file_text
from equipoise.bench.meters.source import Reading, Source, Sources
from equipoise.units import MICROJOULE_J, MICROWATT_W, SI_PREFIXES

BUS = Path("/sys/bus/pci/devices")
# Lines of pp_dpm_sclk: `1: 2100Mhz *`, the star beside the clock it has now.
_CLOCK = re.compile(r"\d+:\s*(\d+)\s*mhz\s*\*", re.IGNORECASE)


def sources(addresses: Sequence[str], bus: Path = BUS) -> Sources:
    """The accelerators at these addresses on the PCI bus.

    bus: a folder that looks like /sys/bus/pci/devices.
    """
    found = []
    for address in addresses:
        sensors = sorted((bus / address / "hwmon").glob("hwmon*"))
        if not sensors:
            return Sources(reason=f"accelerators: amdgpu shows no sensor of {address}")
        found.append(_source(bus / address, sensors[0]))
    return Sources(found=tuple(found))


def _source(card: Path, sensor: Path) -> Source:
    # Newer drivers name the reading of the moment `input`, older ones an average over some milliseconds.
    power = next(
        (sensor / name for name in ("power1_input", "power1_average") if (sensor / name).exists()), None
    )
    energy = sensor / "energy1_input"
    busy = card / "gpu_busy_percent"
    return Source(
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


def conditions(
    address: str, bus: Path = BUS, driver: Path = Path("/sys/module/amdgpu/version")
) -> dict[str, Any]:
    """Driver and clock of one accelerator; None where not told."""
    clock = _CLOCK.search(file_text(bus / address / "pp_dpm_sclk"))
    return {
        "driver": file_text(driver).strip() or None,
        "accelerator_clock_hz": float(clock[1]) * SI_PREFIXES["M"] if clock else None,
    }

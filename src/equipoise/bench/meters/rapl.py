"""Processor packages and memory: Intel's and AMD's energy counters (RAPL), as Linux shows them. No torch."""

import re
from collections.abc import Iterator
from pathlib import Path

from equipoise.bench.meters.source import Source, Sources
from equipoise.units import MICROJOULE_J

POWERCAP = Path("/sys/class/powercap")
# Packages, and what lies below them. The same packages are shown again as intel-rapl-mmio.
_ZONE = re.compile(r"intel-rapl:\d+(:\d+)?")
# `core` and `uncore` are within their package, `psys` holds it; memory is counted beside it.
_ADDED = re.compile(r"package-\d+(-die-\d+)?|dram")


def sources(root: Path = POWERCAP) -> Sources:
    """Every package and its memory.

    root: a folder that looks like /sys/class/powercap.
    """
    if not root.is_dir():
        return Sources(reason="processors: this kernel or virtual machine shows no energy counter (powercap)")
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
            found.append(_source(zone, part, largest))
    if forbidden:
        return Sources(reason="processors: only root may read their energy counters (powercap energy_uj)")
    if not found:
        return Sources(reason="processors: powercap shows no package that counts energy")
    return Sources(found=tuple(found))


def _zones(root: Path) -> Iterator[tuple[Path, str]]:
    """Zones to add up, with a name for each."""
    for zone in sorted(root.iterdir()):
        name = _line(zone / "name")
        if _ZONE.fullmatch(zone.name) and _ADDED.fullmatch(name):
            above = _line(root / zone.name.rpartition(":")[0] / "name")
            yield zone, f"{above} {name}" if name == "dram" else name


def _source(zone: Path, part: str, largest: float) -> Source:
    def counter_j() -> float | None:
        try:
            return _number(zone / "energy_uj") * MICROJOULE_J
        except (OSError, ValueError):
            return None

    return Source(part=part, meter="RAPL", counter_j=counter_j, range_j=largest * MICROJOULE_J)


def _number(path: Path) -> float:
    return float(path.read_text(encoding="ascii"))


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

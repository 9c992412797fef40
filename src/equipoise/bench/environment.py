"""The conditions of a run: what it ran on and with. Unlike ones are never pooled. No torch."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from equipoise.errors import DataError
from equipoise.units import SI_PREFIXES

# What must be equal before two runs may be pooled; clock and load change all the time and are recorded only.
COMPARED = (
    "host",
    "kernel",
    "processor",
    "num_cores",
    "memory_bytes",
    "governor",
    "python",
    "torch",
    "equipoise",
    "backend",
    "core_sets",
    "launcher",
)

_PACKAGES = ("torch", "equipoise", "numpy", "transformers")


def conditions(
    *, core_sets: Sequence[Sequence[int]], launcher: str, backend: str | None = None
) -> dict[str, Any]:
    """The conditions of this machine now, as one record that fits into JSON; None where not readable.

    core_sets: the cores each rank is bound to, by rank.
    """
    page_bytes, num_pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "processor": _processor(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": page_bytes * num_pages,
        "governor": _line(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "clock_hz": _clock_hz(),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
        "backend": backend,
        "core_sets": [list(cores) for cores in core_sets],
        "launcher": launcher,
    }


def refuse_unlike(records: Sequence[Mapping[str, Any]], where: str) -> None:
    """Nothing, when every record may be pooled with every other.

    where: what they are runs of. Raises DataError that names the field that differs.
    """
    for one, other in pairwise(records):
        for name in COMPARED:
            if one.get(name) != other.get(name):
                raise DataError(
                    f"{where}: repetitions under unlike conditions, {name}={one.get(name)!r} and "
                    f"{other.get(name)!r}, are not pooled; measure them again into another --out"
                )


def core_sets(num_ranks: int, *, most_ranks: int) -> tuple[tuple[int, ...], ...]:
    """The cores of every rank: as many a rank as the largest run of the sweep can give each of its ranks.

    Raises DataError when there are more ranks than cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // most_ranks
    if not each:
        raise DataError(
            f"{most_ranks} ranks on {len(cores)} cores: every rank needs a core of its own; "
            "take smaller --sizes"
        )
    return tuple(tuple(cores[rank * each : (rank + 1) * each]) for rank in range(num_ranks))


def num_memory_kills() -> int | None:
    """How often this machine's kernel has ended a process for want of memory; None where not told."""
    text = _text(Path("/proc/vmstat"))
    counts = [line.split()[1] for line in text.splitlines() if line.startswith("oom_kill ")]
    return int(counts[0]) if counts else None


def _processor() -> str | None:
    return _cpuinfo("model name") or platform.processor() or None


def _clock_hz() -> float | None:
    """The clock of the first core, now."""
    stated = _cpuinfo("cpu MHz")
    return None if stated is None else float(stated) * SI_PREFIXES["M"]


def _cpuinfo(key: str) -> str | None:
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _line(path: Path) -> str | None:
    return _text(path).strip() or None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

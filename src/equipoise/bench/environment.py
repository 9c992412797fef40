"""The conditions of a run: what it ran on and with. Unlike ones are never pooled. No torch."""

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from equipoise.bench.wakeups import time_slice_s
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

_MACHINE = (
    "host",
    "kernel",
    "processor",
    "num_cores",
    "memory_bytes",
    "governor",
    "clock_hz",
    "load_1min",
    "time_slice_s",
)
_PACKAGES = ("torch", "equipoise", "numpy", "transformers")


def conditions(
    *, core_sets: Sequence[Sequence[int]], launcher: str, backend: str | None = None, here: bool = True
) -> dict[str, Any]:
    """The conditions of this machine now, as one record that fits into JSON; None where not readable.

    core_sets: the cores each rank is bound to, by rank. here: whether ranks run on this machine; if not,
    only its software is told.
    """
    machine = _machine() if here else dict.fromkeys(_MACHINE)
    software = {package: _version(package) for package in _PACKAGES}
    return {
        **machine,
        "python": platform.python_version(),
        **software,
        "backend": backend,
        "core_sets": [list(cores) for cores in core_sets],
        "launcher": launcher,
    }


def _machine() -> dict[str, Any]:
    """What a machine is, and its clock and load now."""
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
        "time_slice_s": time_slice_s(),
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


def refuse_unlike_nodes(runs: Sequence[Sequence[Mapping[str, Any]]], where: str) -> None:
    """Nothing, when the nodes of every run are alike: as many of each kind, whatever their names and order.

    runs: the records that ranks left of their nodes, by run. Raises DataError that names the field.
    """
    kinds = [sorted((_kind(node) for node in nodes), key=repr) for nodes in runs]
    for one, other in pairwise(kinds):
        if len(one) != len(other):
            raise DataError(
                f"{where}: repetitions on {len(one)} and {len(other)} nodes are not pooled; "
                "measure them again into another --out"
            )
        for first, second in zip(one, other, strict=True):
            refuse_unlike([first, second], where)


def _kind(node: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared of a node of several: all but its name; of its ranks, how many cores each has."""
    shared_out = sorted(len(cores) for cores in node.get("core_sets", ()))
    return {name: node.get(name) for name in COMPARED} | {"host": None, "core_sets": shared_out}


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


def core_sets_by_node(
    nodes: Sequence[tuple[str, tuple[int, ...]]], most_ranks: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The cores of each of the ranks that a node can have, by node: every rank of all nodes has as many.

    nodes: the kernel of each, and the cores it has there. Nodes that share both, as emulated ones may,
    share the cores out. most_ranks: on a node. Raises DataError when there are more ranks than cores.
    """
    neighbours = Counter(nodes)
    each = min(len(node[1]) // (most_ranks * neighbours[node]) for node in nodes)
    if not each:
        fewest = min(len(cores) for _, cores in nodes)
        raise DataError(
            f"{most_ranks} ranks on a node of {fewest} cores: every rank needs a core of its own; "
            "take smaller --sizes"
        )
    before: Counter[tuple[str, tuple[int, ...]]] = Counter()
    shared_out = []
    for node in nodes:
        first = before[node] * most_ranks * each
        before[node] += 1
        starts = range(first, first + most_ranks * each, each)
        shared_out.append(tuple(node[1][start : start + each] for start in starts))
    return tuple(shared_out)


def kernel_id() -> str:
    """What tells whether two processes run on one machine, whatever name its containers give it."""
    return _line(Path("/proc/sys/kernel/random/boot_id")) or platform.node()


def num_memory_kills() -> int | None:
    """How often this machine's kernel has ended a process for want of memory; None where not told."""
    text = file_text(Path("/proc/vmstat"))
    counts = [line.split()[1] for line in text.splitlines() if line.startswith("oom_kill ")]
    return int(counts[0]) if counts else None


def _processor() -> str | None:
    return _cpuinfo("model name") or platform.processor() or None


def _clock_hz() -> float | None:
    """The clock of the first core, now."""
    stated = _cpuinfo("cpu MHz")
    return None if stated is None else float(stated) * SI_PREFIXES["M"]


def _cpuinfo(key: str) -> str | None:
    for line in file_text(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _line(path: Path) -> str | None:
    return file_text(path).strip() or None


def file_text(path: Path) -> str:
    """What a file of the kernel says; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

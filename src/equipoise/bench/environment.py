"""The conditions of a run (machine and software); runs under different conditions are never pooled."""

import ctypes
import os
import platform
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from equipoise.errors import DataError
from equipoise.units import NANOSECOND_S, SI_PREFIXES

PROCESSES = Path("/proc")
# System call numbers of sched_setattr(2) and sched_getattr(2), for which the C library has no wrappers.
SCHEDULING_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
SCHEDULING_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
# Policies whose runtime field is the length of the time slice.
_TIME_SHARING = (0, 3)  # SCHED_OTHER, SCHED_BATCH


def time_slice_s() -> float | None:
    """Return the time slice of this thread; None if the kernel does not report it."""
    found = scheduling()
    if found is None or found[1] not in _TIME_SHARING:
        return None
    return found[5] * NANOSECOND_S or None


def scheduling() -> tuple[int, ...] | None:
    """Return the fields of this thread's `sched_attr`; None if the system call does not exist."""
    calls = SCHEDULING_CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return None
    buffer = ctypes.create_string_buffer(SCHEDULING_ATTRIBUTES.size)
    refused = ctypes.CDLL(None).syscall(calls[1], 0, buffer, SCHEDULING_ATTRIBUTES.size, 0)
    return None if refused else SCHEDULING_ATTRIBUTES.unpack(buffer.raw)


# Fields that must be equal for two runs to be pooled. Clock and load always vary, so they are only recorded.
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
    # From the records of nodes that ranks write; None without accelerators.
    "accelerator",
    "driver",
    "cuda",
    "rocm",
    "collectives",
)

_PACKAGES = ("torch", "equipoise", "numpy", "transformers")


def conditions(
    *, core_sets: Sequence[Sequence[int]], launcher: str, backend: str | None = None, here: bool = True
) -> dict[str, Any]:
    """Return the current conditions of this machine as a JSON-compatible record; None where not readable.

    core_sets: the cores that each rank is bound to, by rank. here: whether ranks run on this machine; if not,
    only its software is recorded.
    """
    machine = _machine()
    return {
        **(machine if here else dict.fromkeys(machine)),
        "python": platform.python_version(),
        **{package: version_of(package) for package in _PACKAGES},
        "backend": backend,
        "core_sets": [list(cores) for cores in core_sets],
        "launcher": launcher,
    }


def _machine() -> dict[str, Any]:
    """Return the facts of this machine, and its current clock and load."""
    page_bytes, num_pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    clock_mhz = cpuinfo("cpu MHz")
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "processor": cpuinfo("model name") or platform.processor() or None,
        "num_cores": len(usable_cores()),
        "memory_bytes": page_bytes * num_pages,
        "governor": file_text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")) or None,
        "clock_hz": None if clock_mhz is None else float(clock_mhz) * SI_PREFIXES["M"],
        "load_1min": os.getloadavg()[0],
        "time_slice_s": time_slice_s(),
    }


def refuse_unlike(records: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raise DataError that names the differing field if the records may not be pooled.

    where: the folder or configuration, for the message.
    """
    for one, other in pairwise(records):
        for name in COMPARED:
            if one.get(name) != other.get(name):
                raise DataError(
                    f"{where}: repetitions under different conditions, {name}={one.get(name)!r} and "
                    f"{other.get(name)!r}, are not pooled; measure them again into another --out"
                )


def refuse_unlike_nodes(runs: Sequence[Sequence[Mapping[str, Any]]], where: str) -> None:
    """Raise DataError that names the differing field if runs used different nodes, in any order.

    runs: the records of nodes that the ranks wrote, by run.
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
    """Return the compared fields of a node, without its name and with the number of cores of each rank."""
    shared_out = sorted(len(cores) for cores in node.get("core_sets", ()))
    return {name: node.get(name) for name in COMPARED} | {"host": None, "core_sets": shared_out}


def usable_cores() -> tuple[int, ...]:
    """Return the cores that this process may use; in a container these may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def core_sets(num_ranks: int, *, most_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the cores of each rank on this machine, which are divided among `most_ranks` ranks.

    most_ranks: of the largest trial of the sweep. Raises DataError if there are more ranks than cores.
    """
    return core_sets_by_node([(kernel_id(), usable_cores())], most_ranks)[0][:num_ranks]


def shared_core_sets(num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the cores of each rank on this machine; ranks share cores if there are too few."""
    cores = usable_cores()
    if num_ranks > len(cores):
        return tuple((cores[rank % len(cores)],) for rank in range(num_ranks))
    return core_sets(num_ranks, most_ranks=num_ranks)


def core_sets_by_node(
    nodes: Sequence[tuple[str, tuple[int, ...]]], most_ranks: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return the cores of each rank of a node, by node; every rank of all nodes has equally many.

    nodes: the kernel identity and the cores of each. Nodes equal in both, as emulated nodes may be, divide
    the cores among them. most_ranks: per node. Raises DataError if there are more ranks than cores.
    """
    neighbours = Counter(nodes)
    each = min(len(node[1]) // (most_ranks * neighbours[node]) for node in nodes)
    if not each:
        fewest = min(len(cores) for _, cores in nodes)
        raise DataError(
            f"{most_ranks} ranks on {fewest} cores: every rank needs its own core; use smaller --sizes"
        )
    before: Counter[tuple[str, tuple[int, ...]]] = Counter()
    shared_out = []
    for node in nodes:
        first = before[node] * most_ranks * each
        before[node] += 1
        starts = range(first, first + most_ranks * each, each)
        shared_out.append(tuple(node[1][start : start + each] for start in starts))
    return tuple(shared_out)


def no_torch() -> str | None:
    """Return the reason why training is not possible here; None if torch is installed."""
    return None if find_spec("torch") else "torch is not installed: pip install 'equipoise[torch]'"


def kernel_id() -> str:
    """Return an identity of this machine that is the same in all its containers."""
    return file_text(Path("/proc/sys/kernel/random/boot_id")) or platform.node()


def this_node() -> dict[str, Any]:
    """Return this node's name, kernel identity and usable cores, for the other nodes of a job."""
    return {"host": platform.node(), "kernel": kernel_id(), "cores": list(usable_cores())}


def num_memory_kills() -> int | None:
    """Return the number of out-of-memory kills by this machine's kernel; None if not known."""
    text = file_text(Path("/proc/vmstat"))
    counts = [line.split()[1] for line in text.splitlines() if line.startswith("oom_kill ")]
    return int(counts[0]) if counts else None


def cpuinfo(key: str, processes: Path = PROCESSES) -> str | None:
    """Return the first value of a key in /proc/cpuinfo; None if the key is absent.

    processes: a folder structured like /proc.
    """
    for line in file_text(processes / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


_COMMAND_S = 30.0
_MOST_OUTPUT_BYTES = 1_000_000


def file_text(path: Path) -> str:
    """Return the stripped text of a kernel file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def command_output(command: Sequence[str], *, limit_s: float = _COMMAND_S) -> str:
    """Return the output of a command; empty if it is not installed, fails or exceeds the time limit."""
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout[:_MOST_OUTPUT_BYTES].decode(errors="replace") if ended.returncode == 0 else ""


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    from importlib import metadata  # noqa: PLC0415 - slow to import, because it loads the email parser

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

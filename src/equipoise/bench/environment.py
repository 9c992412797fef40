"""The conditions of a run: what it ran on and with; unlike ones are never pooled."""

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
# Numbers of sched_setattr(2) and sched_getattr(2), for which the C library has no functions.
SCHEDULING_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
SCHEDULING_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
# Policies whose runtime is the length of a slice.
_SHARING = (0, 3)  # SCHED_OTHER, SCHED_BATCH


def time_slice_s() -> float | None:
    """How long a turn of this thread on its core may last; None where the kernel does not say."""
    found = scheduling()
    if found is None or found[1] not in _SHARING:
        return None
    return found[5] * NANOSECOND_S or None


def scheduling() -> tuple[int, ...] | None:
    """The fields of this thread's `sched_attr`; None where there is no such call."""
    calls = SCHEDULING_CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return None
    buffer = ctypes.create_string_buffer(SCHEDULING_ATTRIBUTES.size)
    refused = ctypes.CDLL(None).syscall(calls[1], 0, buffer, SCHEDULING_ATTRIBUTES.size, 0)
    return None if refused else SCHEDULING_ATTRIBUTES.unpack(buffer.raw)


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
    # Of the nodes that ranks leave; None on processors.
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
    """The conditions of this machine now, as one record that fits into JSON; None where not readable.

    core_sets: the cores each rank is bound to, by rank. here: whether ranks run on this machine; if not,
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
    """What a machine is, and its clock and load now."""
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
    """Nothing, when every record may be pooled with every other.

    where: what they are runs of. Raises DataError that names the field that differs.
    """
    for one, other in pairwise(records):
        for name in COMPARED:
            if one.get(name) != other.get(name):
                raise DataError(
                    f"{where}: repetitions under different conditions, {name}={one.get(name)!r} and "
                    f"{other.get(name)!r}, are not pooled; measure them again into another --out"
                )


def refuse_unlike_nodes(runs: Sequence[Sequence[Mapping[str, Any]]], where: str) -> None:
    """Nothing, when the nodes of every run are the same: as many of each kind, in any order.

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


def usable_cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def core_sets(num_ranks: int, *, most_ranks: int) -> tuple[tuple[int, ...], ...]:
    """The cores of every rank here: as many as the largest trial of the sweep can give each of its ranks.

    Raises DataError when there are more ranks than cores.
    """
    return core_sets_by_node([(kernel_id(), usable_cores())], most_ranks)[0][:num_ranks]


def shared_core_sets(num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """The same where ranks share cores if there are too few."""
    cores = usable_cores()
    if num_ranks > len(cores):
        return tuple((cores[rank % len(cores)],) for rank in range(num_ranks))
    return core_sets(num_ranks, most_ranks=num_ranks)


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
    """Why nothing can train here; None where torch is installed."""
    return None if find_spec("torch") else "torch is not installed: pip install 'equipoise[torch]'"


def kernel_id() -> str:
    """The same for all processes of one machine, whatever name its containers give it."""
    return file_text(Path("/proc/sys/kernel/random/boot_id")) or platform.node()


def this_node() -> dict[str, Any]:
    """What other nodes of a job must know of this one: its name, its kernel, and the cores it may use."""
    return {"host": platform.node(), "kernel": kernel_id(), "cores": list(usable_cores())}


def num_memory_kills() -> int | None:
    """How often this machine's kernel has killed a process because memory ran out; None where not known."""
    text = file_text(Path("/proc/vmstat"))
    counts = [line.split()[1] for line in text.splitlines() if line.startswith("oom_kill ")]
    return int(counts[0]) if counts else None


def cpuinfo(key: str, processes: Path = PROCESSES) -> str | None:
    """What the kernel states first of its processors under that key; None where it does not.

    processes: a folder that looks like /proc.
    """
    for line in file_text(processes / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


_COMMAND_S = 30.0
_MOST_OUTPUT_BYTES = 1_000_000


def file_text(path: Path) -> str:
    """The text of a file of the kernel without blanks around it; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def command_output(command: Sequence[str], *, limit_s: float = _COMMAND_S) -> str:
    """What a command prints within so many seconds; nothing where it is not installed or fails."""
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
    """The installed version of a package; None where it is not installed."""
    from importlib import metadata  # noqa: PLC0415 - it loads the parser of e-mails, which nothing else needs

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

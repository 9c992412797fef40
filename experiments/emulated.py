"""Each rank on an emulated host: a network namespace with one core and a link of a stated rate. As root."""

import ctypes
import os
import platform
import re
import signal
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from shutil import which
from threading import Event, Thread

from msgspec import Struct
from msgspec.structs import replace

from equipoise.bench.environment import (
    SCHEDULING_ATTRIBUTES,
    SCHEDULING_CALLS,
    no_torch,
    scheduling,
    time_slice_s,
)
from equipoise.bench.launchers import (
    SEAT,
    Command,
    JobOutcome,
    Launcher,
    LaunchJob,
    rank_command,
    run_commands,
)
from equipoise.errors import UsageError
from equipoise.units import MICROSECOND_S, NANOSECOND_S, SI_PREFIXES

_NAMESPACES = Path("/run/netns")
_NAME = re.compile(r"equipoise-(\d+)-\d+-\w+")
# Interfaces of different hosts may share a name: each is alone in its namespace.
_INTERFACE = "link0"
_MOST_HOSTS = 200  # of one /24
# Two segments of 64 KiB at once, and 20 ms of queue: TCP then fills 95 % of a link.
_SHAPED = ("tbf", "burst", "128kb", "latency", "20ms")
_numbers = count(1)


class Host(Struct, frozen=True, kw_only=True):
    """One emulated host: the name of its namespace, and its address on the interface to the others.

    A host alone has its loopback only.
    """

    name: str
    address: str
    interface: str

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """The prefix of a command that runs there; the process keeps its id."""
        return ("ip", "netns", "exec", self.name)


def why_not() -> str | None:
    """Why hosts cannot be emulated here, and what to do; None where they can: two were made and removed."""
    if os.geteuid():
        return "network namespaces need root: run it with sudo"
    missing = [program for program in ("ip", "tc") if not which(program)]
    if missing:
        return f"needs the program {' and '.join(missing)}: apt-get install iproute2"
    try:
        with hosts(link_bit_per_s=1_000_000_000):
            return None
    except UsageError as err:
        return f"{err}; it needs a kernel with network namespaces, veth and sch_tbf, and CAP_SYS_ADMIN"


@contextmanager
def hosts(*, link_bit_per_s: float, num_hosts: int = 2) -> Iterator[tuple[Host, ...]]:
    """Hosts connected by links of that rate in each direction: two directly, more through a switch.

    Gone on leaving, with every process still in them. What processes that no longer live have left is
    removed first. Raises UsageError when they cannot be made.
    """
    if not 1 <= num_hosts <= _MOST_HOSTS or not link_bit_per_s > 0:
        raise UsageError(
            f"{num_hosts} hosts at {link_bit_per_s} bit/s; expected 1 to {_MOST_HOSTS} and a rate above 0"
        )
    _remove_orphans()
    prefix = f"equipoise-{os.getpid()}-{next(_numbers)}"
    made = tuple(
        Host(name=f"{prefix}-{rank}", address=f"10.201.0.{rank + 1}", interface=_INTERFACE)
        for rank in range(num_hosts)
    )
    if num_hosts == 1:
        made = (Host(name=f"{prefix}-0", address="127.0.0.1", interface="lo"),)
    switch = f"{prefix}-switch"
    try:
        for host in made:
            _run("ip", "netns", "add", host.name)
            _run("ip", "-n", host.name, "link", "set", "lo", "up")
        if num_hosts == 2:  # noqa: PLR2004 - a pair needs nothing between
            _join(made[0].name, _INTERFACE, made[1].name, _INTERFACE)
        elif num_hosts > 1:
            _switched(switch, made)
        for host in made if num_hosts > 1 else ():
            _run("ip", "-n", host.name, "address", "add", f"{host.address}/24", "dev", _INTERFACE)
            _limit(host.name, _INTERFACE, link_bit_per_s)
        for port in range(num_hosts if num_hosts > 2 else 0):  # noqa: PLR2004
            _limit(switch, f"port{port}", link_bit_per_s)
        yield made
    finally:
        for name in (*(host.name for host in made), switch):
            _remove(name)


def _switched(switch: str, made: tuple[Host, ...]) -> None:
    """A bridge in a namespace of its own, and a cable to each host."""
    _run("ip", "netns", "add", switch)
    _run("ip", "-n", switch, "link", "add", "bridge0", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "bridge0", "up")
    for port, host in enumerate(made):
        _join(switch, f"port{port}", host.name, _INTERFACE)
        _run("ip", "-n", switch, "link", "set", f"port{port}", "master", "bridge0")


def _join(one: str, interface: str, other: str, other_interface: str) -> None:
    """A cable between two namespaces."""
    ends = ("type", "veth", "peer", "name", other_interface, "netns", other)
    _run("ip", "link", "add", "name", interface, "netns", one, *ends)


def _limit(name: str, interface: str, link_bit_per_s: float) -> None:
    """Bring an end of a cable up, and have it send no faster than the rate."""
    _run("ip", "-n", name, "link", "set", interface, "up")
    kind, *settings = _SHAPED
    rate = ("rate", f"{link_bit_per_s:.0f}bit")
    _run("tc", "-n", name, "qdisc", "replace", "dev", interface, "root", kind, *rate, *settings)


def _run(*command: str) -> None:
    """Run it; raises UsageError with its last message."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UsageError(f"hosts cannot be emulated: {' '.join(command)}: {reason}")


def _remove(name: str) -> None:
    """End what runs in a namespace, and remove it; nothing where it is gone already."""
    if not (_NAMESPACES / name).exists():
        return
    listed = subprocess.run(("ip", "netns", "pids", name), capture_output=True, text=True, check=False)
    for pid in listed.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(("ip", "netns", "delete", name), capture_output=True, check=False)


def _remove_orphans() -> None:
    """Remove namespaces whose name carries the id of a process that has ended."""
    for path in _NAMESPACES.glob("equipoise-*"):
        found = _NAME.fullmatch(path.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            _remove(path.name)


# The least that Linux grants (6.12 and later; before, any is).
SLICE_S = 100 * MICROSECOND_S
# A thread that is ready may have to wait for the clock's tick, 4 ms, while another spins for what it holds.
# An interruption takes some 40 us where a virtual machine lies within another: no more often than needed.
TICK_S = 1000 * MICROSECOND_S
_LATENCY = Path("/dev/cpu_dma_latency")


@contextmanager
def prompt_wakeups(cores: Iterable[int] = ()) -> Iterator[None]:
    """Have what is started inside run as soon as a message wakes it, as far as this machine allows.

    Threads of one core take turns of some 3 ms: one that a message wakes waits for the turn of the one that
    computes, which a slice of 0.1 ms shortens; whatever is started inside inherits it. Root also keeps all
    cores from sleeping meanwhile: a sleeping virtual core may notice a message only at its next clock tick,
    4 ms later. An all-reduce of 64 KiB took 2 to 3 ms without, 0.3 to 0.6 ms with both
    (docs/experiments/0011-two-hosts.md). What is refused is left as it is.

    cores: where several threads of a rank share one. There a turn ends only at the clock's tick, and gloo's
    threads spin through it for what a waiting one holds: 4 ms with 250 ticks a second. A thread of this
    process interrupts them each millisecond (root), as a kernel of 1,000 ticks would.
    """
    before_s = time_slice_s()
    latency: int | None = None
    over = Event()
    with suppress(OSError):
        latency = os.open(_LATENCY, os.O_WRONLY)
        os.write(latency, struct.pack("=i", 0))  # microseconds; holds until it is closed
    ticking = [Thread(target=_tick, args=(core, over), daemon=True) for core in sorted(set(cores))]
    try:
        for each in ticking:
            each.start()
        if before_s is not None:
            _take_slice(SLICE_S)
        yield
    finally:
        over.set()
        for each in ticking:
            each.join()
        if before_s is not None:
            _take_slice(before_s)
        if latency is not None:
            os.close(latency)


def _tick(core: int, over: Event) -> None:
    """Wake this thread on a core again and again: its scheduler then looks who waits. Ends where refused."""
    with suppress(OSError, AttributeError):
        os.sched_setaffinity(0, {core})  # of this thread alone
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        while not over.is_set():
            time.sleep(TICK_S)


def _take_slice(slice_s: float) -> None:
    """Give this thread, and what it starts from now on, turns of that length; policy and niceness stay."""
    found = scheduling()
    if found is not None:
        size, policy, flags, nice, priority, _, deadline, period = found
        runtime = round(slice_s / NANOSECOND_S)
        changed = SCHEDULING_ATTRIBUTES.pack(size, policy, flags, nice, priority, runtime, deadline, period)
        ctypes.CDLL(None).syscall(SCHEDULING_CALLS[platform.machine()][0], 0, changed, 0)


NAME = "emulated"
_RATE = re.compile(r"([0-9.]+)([kMGmg]?)bit")
# Alone in its namespace: any port is free.
_PORT = 29500


def emulated(name: str) -> Launcher:
    """The launcher of a name such as `emulated:1gbit`. Raises UsageError for a rate that is none."""
    _, _, rate = name.partition(":")
    found = _RATE.fullmatch(rate)
    try:
        link_bit_per_s = float(found[1]) * SI_PREFIXES[found[2].upper().replace("K", "k")] if found else 0.0
    except ValueError:
        link_bit_per_s = 0.0
    if not link_bit_per_s:
        raise UsageError(f"launcher {name!r}; expected the rate of the link, e.g. {NAME}:1gbit")

    def launch(job: LaunchJob) -> JobOutcome:
        return _launch(job, link_bit_per_s)

    return Launcher(name=f"{NAME}:{rate.lower()}", why_not=lambda: no_torch() or why_not(), launch=launch)


def _launch(job: LaunchJob, link_bit_per_s: float) -> JobOutcome:
    """One trial on hosts of its own: making and removing them takes hundredths of the start of torch."""
    job = replace(job, core_sets=tuple(cores[:1] for cores in job.core_sets))
    cores = [core for of_rank in job.core_sets for core in of_rank]
    with hosts(link_bit_per_s=link_bit_per_s, num_hosts=job.task.num_ranks) as made, prompt_wakeups(cores):
        return run_commands(job, [_command(job, rank, made) for rank in range(job.task.num_ranks)])


def _command(job: LaunchJob, rank: int, made: tuple[Host, ...]) -> Command:
    """How one rank is started on its host."""
    command, host = rank_command(job, rank), made[rank]
    meeting = {
        "LOCAL_RANK": "0",
        SEAT: str(rank),
        "MASTER_ADDR": made[0].address,
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": host.interface,
        # Its warnings that addresses have no names would look like the cause of a failure.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    return replace(
        command,
        arguments=(*host.command_prefix, *command.arguments),
        environment={**command.environment, **meeting},
    )

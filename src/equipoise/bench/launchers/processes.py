"""Processes of a job on one host: started directly or by torchrun, waited for, and ended to the last.

No torch.
"""

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from equipoise.bench.environment import num_memory_kills
from equipoise.bench.launchers.folder import (
    INSTRUCTIONS,
    SEAT,
    End,
    JobOutcome,
    Launcher,
    LaunchJob,
    cause,
    complaints_path,
    instructions,
    leave,
    outcome,
)

WORKER = "equipoise.bench.worker"
_POLL_S = 0.02
# How long other ranks may leave their reasons, after one has failed.
GRACE_S = 2.0


class Command(Struct, frozen=True, kw_only=True):
    """What to start, with which environment, and where its output goes."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    complaints: Path


@contextmanager
def started(commands: Sequence[Command]) -> Iterator[tuple[subprocess.Popen[bytes], ...]]:
    """The processes, each in a group of its own; every group is killed on leaving, however that is."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with command.complaints.open("wb") as complaints:
                processes.append(
                    subprocess.Popen(
                        command.arguments,
                        env=dict(command.environment),
                        stdin=subprocess.PIPE,  # never written: it closes when this process ends
                        stdout=complaints,
                        stderr=complaints,
                        start_new_session=True,
                    )
                )
        yield tuple(processes)
    finally:
        for process in processes:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process and its children, and take its exit code."""
    with suppress(ProcessLookupError):
        # Also after it ended by itself: its children may be there, and the group is theirs until the last.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()


def exit_codes(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> tuple[dict[int, int], bool]:
    """Exit codes by rank, in the order of their ends, and whether time ran out before all had ended.

    Returns early when one has failed: others wait for it and would never end.
    """
    deadline = time.monotonic() + limit_s
    codes: dict[int, int] = {}
    while time.monotonic() < deadline:
        for rank, process in enumerate(processes):
            code = process.poll()
            if rank not in codes and code is not None:
                codes[rank] = code
                if code:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if len(codes) == len(processes):
            break
        time.sleep(_POLL_S)
    return codes, len(codes) < len(processes) and not any(codes.values())


# What the kernel calls the request for an interface's address, and how long its name may be.
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16
_ANY_PORT_BUT_0 = 9


def address_towards(address: str) -> str:
    """The address of this host that others see when it sends to that address. Raises OSError for none."""
    family, _, _, _, target = socket.getaddrinfo(address, _ANY_PORT_BUT_0, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing: the kernel chooses a route
        return str(probe.getsockname()[0])


def interface_towards(address: str) -> str | None:
    """The name of the interface over which this host reaches an address; None where it is not known."""
    try:
        here = address_towards(address)
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                found = fcntl.ioctl(
                    probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
                )
            except OSError:  # it has no address of this family
                continue
        if socket.inet_ntoa(found[20:24]) == here:
            return name
    return None


def free_port() -> int:
    """A port that nobody on this host holds now."""
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


def why_not() -> str | None:
    """Why no process can train here; None where it can."""
    return None if find_spec("torch") else "torch is not installed: pip install 'equipoise[torch]'"


def command(job: LaunchJob, rank: int) -> Command:
    """How one rank is started."""
    environment = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"}
    environment |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.task.num_ranks),
        "OMP_NUM_THREADS": str(len(job.core_sets[rank])),
        # Ranks of one host need no name of it, which may not resolve.
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return Command(
        arguments=(sys.executable, "-m", WORKER, str(job.folder)),
        environment=environment,
        complaints=complaints_path(job.folder, rank),
    )


def run_commands(job: LaunchJob, commands: Sequence[Command], *, by_agent: bool = False) -> JobOutcome:
    """What came of a job run by these commands: one per rank, or one agent that starts the ranks itself."""
    leave(job.folder, INSTRUCTIONS, instructions(job, job.core_sets))
    kills_before = num_memory_kills()
    with started(commands) as processes:
        codes, ran_out = exit_codes(processes, job.limit_s)
    if by_agent and 0 in codes:
        codes = _codes_of_ranks(job, codes[0])
    ends = [
        End(rank=rank, code=code, why=cause(job.folder, rank, code, kills_before) if code else None)
        for rank, code in codes.items()
    ]
    return outcome(job, ends, ran_out=ran_out)


def _codes_of_ranks(job: LaunchJob, code: int) -> dict[int, int]:
    """An agent's exit code as that of all ranks, or of the one that failed first and left a reason."""
    if not code:
        return dict.fromkeys(range(job.task.num_ranks), 0)
    failed = [int(reason.name.partition(".")[2]) for reason in job.folder.glob("reason.*")]
    return {min(failed, default=0): code}


def _inprocess_launch(job: LaunchJob) -> JobOutcome:
    return run_commands(job, [command(job, rank) for rank in range(job.task.num_ranks)])


INPROCESS = Launcher(name="inprocess", why_not=why_not, launch=_inprocess_launch)

# What torchrun sets for its own processes would lead workers of another group astray.
_FOREIGN = ("TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_")


class Order(Struct, frozen=True, kw_only=True):
    """What a host is to do for a job: its ranks, of how many, and where they meet.

    instructions: for every worker, with the cores of each of `ranks`. first_local_rank: of `ranks`, where
    others of the host have an order of their own. num_local_ranks: of the host; 0 for as many as `ranks`.
    """

    ranks: tuple[int, ...]
    num_ranks: int
    address: str
    port: int
    instructions: Mapping[str, Any]
    first_local_rank: int = 0
    num_local_ranks: int = 0

    def as_json(self) -> dict[str, Any]:
        """Its fields, for a message."""
        return {**to_builtins(self), "ranks": list(self.ranks), "instructions": dict(self.instructions)}


def order_from(found: Mapping[str, Any]) -> Order:
    """The order that `as_json` gave."""
    return Order(**{**found, "ranks": tuple(found["ranks"])})


class Ranks:
    """The processes of an order on this host."""

    def __init__(self, order: Order, folder: Path) -> None:
        """order: begun at once. folder: on this host, where processes leave their files."""
        self._order = order
        self._folder = folder
        self._kills_before = num_memory_kills()
        self._ended: set[int] = set()
        self._stack = ExitStack()
        leave(folder, INSTRUCTIONS, order.instructions)
        commands = [self._command(seat) for seat in range(len(order.ranks))]
        self._processes = self._stack.enter_context(started(commands))

    def _command(self, seat: int) -> Command:
        """How one rank is started."""
        order = self._order
        rank = order.ranks[seat]
        variables = {
            "RANK": rank,
            "WORLD_SIZE": order.num_ranks,
            "LOCAL_RANK": order.first_local_rank + seat,
            "LOCAL_WORLD_SIZE": order.num_local_ranks or len(order.ranks),
            "OMP_NUM_THREADS": len(order.instructions["core_sets"][seat]),
            SEAT: seat,
            "MASTER_ADDR": order.address,
            "MASTER_PORT": order.port,
        }
        return Command(
            arguments=(sys.executable, "-m", WORKER, str(self._folder)),
            environment=_inherited(order.address) | {name: str(value) for name, value in variables.items()},
            complaints=complaints_path(self._folder, rank),
        )

    def ends(self) -> list[End]:
        """The ranks that have ended since this was called last."""
        found = []
        for rank, process in zip(self._order.ranks, self._processes, strict=True):
            code = process.poll()
            if code is None or rank in self._ended:
                continue
            self._ended.add(rank)
            why = cause(self._folder, rank, code, self._kills_before) if code else None
            found.append(End(rank=rank, code=code, why=why))
        return found

    def end(self) -> None:
        """Kill what is left; returns when nothing is."""
        self._stack.close()


def _inherited(address: str) -> dict[str, str]:
    """What workers have of the environment of this process, and the interface that leads to an address."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    # Left alone, a backend takes the interface that the host's name resolves to, which may be the loopback.
    interface = interface_towards(address)
    if interface is not None:
        kept = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} | kept
    return kept


# The agent itself must not outlive this process; its workers see to themselves.
_AGENT = (
    "from equipoise.bench.worker import end_with_parent; end_with_parent(); "
    "from torch.distributed.run import main; main()"
)


def _command(job: LaunchJob) -> Command:
    """How the agent is started."""
    arguments = (sys.executable, "-c", _AGENT, "--nnodes=1", f"--nproc-per-node={job.task.num_ranks}")
    return Command(
        # Port 0: any that is free, so that sweeps do not meet.
        arguments=(
            *arguments,
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0",
            "--local-addr=127.0.0.1",
            "-m",
            WORKER,
            str(job.folder),
        ),
        environment={
            **os.environ,
            "OMP_NUM_THREADS": str(len(job.core_sets[0])),
            "GLOO_SOCKET_IFNAME": "lo",
        },
        complaints=complaints_path(job.folder, 0),
    )


def _torchrun_launch(job: LaunchJob) -> JobOutcome:
    return run_commands(job, [_command(job)], by_agent=True)


TORCHRUN = Launcher(name="torchrun", why_not=why_not, launch=_torchrun_launch)

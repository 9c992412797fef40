"""Processes of a job on one host: started directly or by torchrun, waited for, and ended."""

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from equipoise.bench.environment import no_torch, num_memory_kills
from equipoise.bench.launchers import (
    INSTRUCTIONS,
    SEAT,
    End,
    JobOutcome,
    Launcher,
    LaunchJob,
    cause,
    collect_ends,
    instructions,
    outcome,
    output_path,
    write_document,
)

WORKER = "equipoise.bench.worker"
_POLL_S = 0.02


class Command(Struct, frozen=True, kw_only=True):
    """What to start, and with which environment."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


class Ranks:
    """Processes of a job on this host, by rank, each in a process group of its own."""

    def __init__(self, commands: Mapping[int, Command], folder: Path) -> None:
        """commands: started at once. folder: where the processes write their files."""
        self._folder = folder
        self._kills_before = num_memory_kills()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: set[int] = set()
        try:
            for rank, command in commands.items():
                with output_path(folder, rank).open("wb") as output:
                    self._running[rank] = subprocess.Popen(
                        command.arguments,
                        env=dict(command.environment),
                        stdin=subprocess.PIPE,  # never written: it closes when this process ends
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
        except BaseException:
            self.end()
            raise

    def ends(self) -> list[End]:
        """The ranks that have ended since this was called last."""
        found = []
        for rank, process in self._running.items():
            code = process.poll()
            if code is not None and rank not in self._ended:
                self._ended.add(rank)
                why = cause(self._folder, rank, code, self._kills_before) if code else None
                found.append(End(rank=rank, code=code, why=why))
        return found

    def end(self) -> None:
        """Kill every process that is left, with its children; returns when none is."""
        for process in self._running.values():
            with suppress(ProcessLookupError):
                # Also after it ended by itself: its children may still be in its group.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin:
                process.stdin.close()


# What the kernel calls the request for an interface's address, and how long its name may be.
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16
_ANY_PORT_BUT_0 = 9


def interface_towards(address: str) -> str | None:
    """The name of the interface over which this host reaches an address; None where it is not known."""
    try:
        family, _, _, _, target = socket.getaddrinfo(address, _ANY_PORT_BUT_0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing: the kernel chooses a route
            here = str(probe.getsockname()[0])
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
    """A port that is free on this host now."""
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


def rank_command(job: LaunchJob, rank: int) -> Command:
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
    return Command(arguments=(sys.executable, "-m", WORKER, str(job.folder)), environment=environment)


def run_commands(job: LaunchJob, commands: Sequence[Command], *, by_agent: bool = False) -> JobOutcome:
    """What came of a job run by these commands: one per rank, or one agent that starts the ranks itself."""
    write_document(job.folder, INSTRUCTIONS, instructions(job, job.core_sets))
    ranks = Ranks(dict(enumerate(commands)), job.folder)

    def new_ends() -> list[End]:
        time.sleep(_POLL_S)
        return ranks.ends()

    try:
        ends, ran_out = collect_ends(len(commands), new_ends, limit_s=job.limit_s)
    finally:
        ranks.end()
    if by_agent and ends:
        ends = _ends_of_ranks(job, ends[0])
    return outcome(job, ends, ran_out=ran_out)


def _ends_of_ranks(job: LaunchJob, agent: End) -> list[End]:
    """An agent's end as that of all ranks, or of the one that failed first and wrote a reason."""
    if not agent.code:
        return [End(rank=rank, code=0, why=None) for rank in range(job.task.num_ranks)]
    failed = [int(reason.name.partition(".")[2]) for reason in job.folder.glob("reason.*")]
    rank = min(failed, default=0)
    return [
        End(
            rank=rank, code=agent.code, why=cause(job.folder, rank, agent.code, None) if failed else agent.why
        )
    ]


def _inprocess_launch(job: LaunchJob) -> JobOutcome:
    return run_commands(job, [rank_command(job, rank) for rank in range(job.task.num_ranks)])


INPROCESS = Launcher(name="inprocess", why_not=no_torch, launch=_inprocess_launch)

# What torchrun sets for its own processes must not reach workers of another group.
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


def begin(order: Order, folder: Path) -> Ranks:
    """Start the ranks of an order. folder: on this host, where processes write their files."""
    write_document(folder, INSTRUCTIONS, order.instructions)
    inherited = _inherited(order.address)
    commands = {}
    for seat, rank in enumerate(order.ranks):
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
        commands[rank] = Command(
            arguments=(sys.executable, "-m", WORKER, str(folder)),
            environment=inherited | {name: str(value) for name, value in variables.items()},
        )
    return Ranks(commands, folder)


def _inherited(address: str) -> dict[str, str]:
    """What workers have of the environment of this process, and the interface that leads to an address."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    # A backend would take the interface that the host's name resolves to, which may be the loopback.
    interface = interface_towards(address)
    chosen = {} if interface is None else {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return chosen | inherited


# The agent itself must not outlive this process; its workers see to themselves.
_AGENT = (
    "from equipoise.bench.worker import end_with_parent; end_with_parent(); "
    "from torch.distributed.run import main; main()"
)


def _torchrun_launch(job: LaunchJob) -> JobOutcome:
    agent = Command(
        # Port 0: any that is free, so that sweeps do not meet.
        arguments=(
            *(sys.executable, "-c", _AGENT, "--nnodes=1", f"--nproc-per-node={job.task.num_ranks}"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"),
            *("-m", WORKER, str(job.folder)),
        ),
        environment={
            **os.environ,
            "OMP_NUM_THREADS": str(len(job.core_sets[0])),
            "GLOO_SOCKET_IFNAME": "lo",
        },
    )
    return run_commands(job, [agent], by_agent=True)


TORCHRUN = Launcher(name="torchrun", why_not=no_torch, launch=_torchrun_launch)

"""Launchers: their interface, the files in a job's folder, and processes on one host (direct or torchrun)."""

import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol

from msgspec import Struct, to_builtins

from equipoise.bench.environment import conditions, no_torch, num_memory_kills


class WorkerTask(Protocol):
    """The task of a job's processes: a Trial, or another task whose kind the worker knows."""

    kind: ClassVar[str]

    @property
    def num_ranks(self) -> int:
        """Number of processes."""

    @property
    def seed(self) -> int:
        """Seed of all random numbers."""

    @property
    def device(self) -> str:
        """The device that ranks compute on, as torch names it."""


class LaunchJob(Struct, frozen=True, kw_only=True):
    """A task to run, with its folder, cores and time limit.

    folder: empty, used by this job alone. core_sets: one per rank; empty if the launcher does not bind here.
    limit_s: the job is killed after this time. most_ranks: number of ranks of the sweep's largest trial,
    among which cores and devices are divided; 0 for the task's own. report: called with status such as
    "queued".
    """

    task: WorkerTask
    folder: Path
    core_sets: tuple[tuple[int, ...], ...]
    limit_s: float
    most_ranks: int = 0
    report: Callable[[str], None] = lambda _message: None


class JobOutcome(Struct, frozen=True, kw_only=True):
    """The result of a job, or the reason why it failed: exactly one of the two."""

    result: Mapping[str, Any] | None = None
    reason: str | None = None


class Launcher(Struct, frozen=True, kw_only=True):
    """A way to start the processes of a job.

    why_not: the reason why it is not usable here, with the remedy; None if it is usable.
    launch: runs a job to completion or failure; no process of the job is left when it returns. Raises
    DataError if the launcher cannot run further jobs. binds_here: ranks run on this machine, on the job's
    core sets; otherwise the machines of the ranks choose cores.
    """

    name: str
    why_not: Callable[[], str | None]
    launch: Callable[[LaunchJob], JobOutcome]
    binds_here: bool = True

    def conditions(self, core_sets: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
        """Return the current conditions of a run. core_sets: by rank, if the launcher binds here."""
        return conditions(core_sets=core_sets, launcher=self.name, here=self.binds_here)


# The workers' task; rank 0's final result; rank 0's result so far.
INSTRUCTIONS, RESULT, SO_FAR = "job.json", "result.json", "so_far.json"
# Environment variable with the index of a worker's core set, if that is not its LOCAL_RANK.
SEAT = "EQUIPOISE_SEAT"
_TAIL_BYTES = 400
# The time that other ranks have to write their reasons after one has failed.
GRACE_S = 2.0
_LOST = re.compile(r"closed by peer|reset by peer|connection (closed|refused)|broken pipe", re.IGNORECASE)
# The prefix of information and warnings logged by torch's C++ code.
_WARNING = re.compile(r"\[[IW]\d{4} ")
# Signals that kill a process from outside. SIGABRT is not among them: NCCL's watchdog aborts waiting ranks.
_KILLED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGSEGV, -signal.SIGBUS)
OUT_OF_MEMORY = "out of memory"


def instructions(job: LaunchJob, core_sets: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the instructions of a node's workers: the task, and the cores of each rank of the node."""
    by_rank = [list(cores) for cores in core_sets]
    return {"kind": job.task.kind, "task": to_builtins(job.task), "core_sets": by_rank}


def write_document(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    """Write or replace a JSON file atomically."""
    temporary = folder / f".{name}"
    temporary.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
    temporary.replace(folder / name)


def read_document(folder: Path, name: str) -> Mapping[str, Any] | None:
    """Return the content of a JSON file; None if it does not exist yet."""
    try:
        found: Mapping[str, Any] = json.loads((folder / name).read_bytes())
    except FileNotFoundError:
        return None
    return found


def write_reason(folder: Path, rank: int, reason: str) -> None:
    """Write the reason why a rank failed."""
    (folder / f"reason.{rank}").write_text(reason, encoding="utf-8", errors="backslashreplace")


def output_path(folder: Path, rank: int) -> Path:
    """Return the file for the standard output and error of a rank."""
    return folder / f"stderr.{rank}"


class End(Struct, frozen=True, kw_only=True):
    """The end of a rank: its exit code, and the reason unless the code is 0."""

    rank: int
    code: int
    why: str | None


def collect_ends(
    num_ranks: int,
    new_ends: Callable[[], Sequence[End]],
    *,
    limit_s: float,
    grace_s: Callable[[End], float] = lambda _end: GRACE_S,
) -> tuple[list[End], bool]:
    """Return the ends of ranks in the order they become known, and whether the job timed out.

    new_ends: waits briefly and returns the ends since the last call. grace_s: the time that other ranks have
    after a rank has failed, because they may wait for it forever.
    """
    deadline = time.monotonic() + limit_s
    ends: list[End] = []
    while len(ends) < num_ranks and time.monotonic() < deadline:
        for end in new_ends():
            ends.append(end)
            if end.code:
                deadline = min(deadline, time.monotonic() + grace_s(end))
    return ends, len(ends) < num_ranks and not any(end.code for end in ends)


def outcome(
    job: LaunchJob, ends: Sequence[End], *, ran_out: bool, hosts: Mapping[int, str] | None = None
) -> JobOutcome:
    """Return the outcome of a job that has ended.

    ends: of the ranks that ended by themselves, in the order they became known. ran_out: whether the job was
    killed at its time limit. hosts: by rank, if there are several.
    """
    failed = [end for end in ends if end.code]
    result = read_document(job.folder, RESULT)
    if result is not None and len(ends) == job.task.num_ranks and not failed:
        return JobOutcome(result=result)
    if ran_out:
        return JobOutcome(reason=f"hung: ended after {job.limit_s:g} s (--limit for more)")
    if not failed:
        return JobOutcome(reason="ended without a result")
    # When a rank is killed or exits, the others fail as a consequence, and their ends may become known first.
    early = next((end for end in ends if not end.code), None)
    if early is not None and all(map(lost_another, failed)):
        first, why = early, "ended without an error before the others, which lost it"
    else:
        first = min(failed, key=lambda end: (end.code not in _KILLED, lost_another(end)))
        why = first.why or ""
    where = f" on {hosts[first.rank]}" if hosts else ""
    return JobOutcome(reason=f"rank {first.rank}{where} {why}")


def lost_another(end: End) -> bool:
    """Return whether a rank failed because it lost its connection to another."""
    return bool(end.why and _LOST.search(end.why))


def cause(folder: Path, rank: int, code: int, kills_before: int | None) -> str:
    """Return the reason for a process's exit code."""
    stated = folder / f"reason.{rank}"
    if stated.exists():
        return stated.read_text(encoding="utf-8")
    if code == -signal.SIGKILL and kills_before is not None and (num_memory_kills() or 0) > kills_before:
        return f"{OUT_OF_MEMORY}: killed by the kernel"
    if code == -signal.SIGILL:
        return (
            "was killed by SIGILL: an instruction that this processor lists and a virtual machine may trap; "
            "on CPUs try ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"
        )
    ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"{ended}{_last_line(output_path(folder, rank))}"


def _last_line(path: Path) -> str:
    """Return a colon and the last line of words that a process wrote; empty if there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    # Lines without letters are separators, such as those of torchrun's error summary.
    words = [line for line in lines if re.search(r"[a-z]", line) and not _WARNING.match(line)]
    return f": {words[-1].strip()}" if words else ""


WORKER = "equipoise.bench.worker"
_POLL_S = 0.02


class Command(Struct, frozen=True, kw_only=True):
    """A command line and its environment."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


class Ranks:
    """Processes of a job on this host, by rank, each in its own process group."""

    def __init__(self, commands: Mapping[int, Command], folder: Path) -> None:
        """commands: started immediately. folder: for the files of the processes."""
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
                        stdin=subprocess.PIPE,  # never written to; closes when this process ends
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
        except BaseException:
            self.end()
            raise

    def ends(self) -> list[End]:
        """Return the ends of ranks since the last call."""
        found = []
        for rank, process in self._running.items():
            code = process.poll()
            if code is not None and rank not in self._ended:
                self._ended.add(rank)
                why = cause(self._folder, rank, code, self._kills_before) if code else None
                found.append(End(rank=rank, code=code, why=why))
        return found

    def end(self) -> None:
        """Kill every remaining process with its children, and wait until they have ended."""
        for process in self._running.values():
            with suppress(ProcessLookupError):
                # Also if the process has ended, because its children may still be in its group.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin:
                process.stdin.close()


# The ioctl request for an interface's address, and the maximum length of an interface's name.
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16
_ANY_PORT_BUT_0 = 9


def interface_towards(address: str) -> str | None:
    """Return the name of the interface over which this host reaches an address; None if not known."""
    try:
        family, _, _, _, target = socket.getaddrinfo(address, _ANY_PORT_BUT_0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing; the kernel only chooses a route
            here = str(probe.getsockname()[0])
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                found = fcntl.ioctl(
                    probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[: _NAME_BYTES - 1])
                )
            except OSError:  # the interface has no IPv4 address
                continue
        if socket.inet_ntoa(found[20:24]) == here:
            return name
    return None


def free_port() -> int:
    """Return a port that is currently free on this host."""
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


def rank_command(job: LaunchJob, rank: int) -> Command:
    """Return the command that starts one rank."""
    environment = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"}
    environment |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.task.num_ranks),
        "OMP_NUM_THREADS": str(len(job.core_sets[rank])),
        # The loopback, because the host's name may not resolve.
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return Command(arguments=(sys.executable, "-m", WORKER, str(job.folder)), environment=environment)


def run_commands(job: LaunchJob, commands: Sequence[Command], *, by_agent: bool = False) -> JobOutcome:
    """Run a job by one command per rank, or by one agent that starts the ranks; return its outcome."""
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
    else:
        # A rank writes its reason before it ends; on a busy host it may end only after the grace period.
        known = {end.rank for end in ends}
        ends += [end for end in _stated_ends(job.folder, 1) if end.rank not in known]
    return outcome(job, ends, ran_out=ran_out)


def _ends_of_ranks(job: LaunchJob, agent: End) -> list[End]:
    """Return an agent's end as the ends of all ranks, or of those that failed and wrote a reason."""
    if not agent.code:
        return [End(rank=rank, code=0, why=None) for rank in range(job.task.num_ranks)]
    return _stated_ends(job.folder, agent.code) or [End(rank=0, code=agent.code, why=agent.why)]


def _stated_ends(folder: Path, code: int) -> list[End]:
    """Return an end with this code for each rank that wrote a reason for its failure."""
    ranks = sorted(int(reason.name.partition(".")[2]) for reason in folder.glob("reason.*"))
    return [End(rank=rank, code=code, why=cause(folder, rank, code, None)) for rank in ranks]


INPROCESS = Launcher(
    name="inprocess",
    why_not=no_torch,
    launch=lambda job: run_commands(job, [rank_command(job, rank) for rank in range(job.task.num_ranks)]),
)

# Prefixes of variables that torchrun sets for its own processes; workers of another group must not inherit
# them.
_FOREIGN = ("TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_")


class Order(Struct, frozen=True, kw_only=True):
    """The part of a job that one host runs: its ranks, their total number, and the rendezvous address.

    instructions: for every worker, with the cores of each of `ranks`. first_local_rank: local rank of the
    first of `ranks`, if other ranks of the host have a separate order. num_local_ranks: number of ranks on
    the host; 0 for the number of `ranks`.
    """

    ranks: tuple[int, ...]
    num_ranks: int
    address: str
    port: int
    instructions: Mapping[str, Any]
    first_local_rank: int = 0
    num_local_ranks: int = 0


def begin(order: Order, folder: Path) -> Ranks:
    """Start the ranks of an order. folder: on this host, for the files of the processes."""
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
    """Return the environment that workers inherit, with the network interface that reaches an address."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    # By default, a backend uses the interface that the host's name resolves to, which may be the loopback.
    interface = interface_towards(address)
    chosen = {} if interface is None else {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return chosen | inherited


# The agent must not outlive this process either; its workers check that themselves.
_AGENT = (
    "from equipoise.bench.worker import end_with_parent; end_with_parent(); "
    "from torch.distributed.run import main; main()"
)


def _torchrun_launch(job: LaunchJob) -> JobOutcome:
    agent = Command(
        # Port 0 means any free port, so that concurrent sweeps do not collide.
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

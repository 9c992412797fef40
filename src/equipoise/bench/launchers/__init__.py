"""What a launcher is; the folder of a job: what its worker is given, and what its processes left; and those
processes on one host: started directly or by torchrun, waited for, and ended.
"""

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
    """What the processes of a job are to do: a Trial, or something else that a worker knows the kind of."""

    kind: ClassVar[str]

    @property
    def num_ranks(self) -> int:
        """How many processes."""

    @property
    def seed(self) -> int:
        """Of whatever is random."""

    @property
    def device(self) -> str:
        """Where they compute, as torch names it."""


class LaunchJob(Struct, frozen=True, kw_only=True):
    """A trial, or another task, to run: where its processes leave their files, on which cores, how long.

    folder: empty, the job's own. core_sets: one per rank; none where the launcher does not bind here.
    limit_s: it is ended after so many seconds. most_ranks: of the largest trial of its sweep, by which cores
    and devices are shared out; 0 for its own. report: called with what happens on the way, as "queued".
    """

    task: WorkerTask
    folder: Path
    core_sets: tuple[tuple[int, ...], ...]
    limit_s: float
    most_ranks: int = 0
    report: Callable[[str], None] = lambda _message: None


class JobOutcome(Struct, frozen=True, kw_only=True):
    """What a job measured, or why it failed: exactly one of both."""

    result: Mapping[str, Any] | None = None
    reason: str | None = None


class Launcher(Struct, frozen=True, kw_only=True):
    """A way to start the processes of a trial.

    why_not: why it cannot be used here, with what to do; None where it can.
    launch: runs a job to its end, whatever that is; no process of it is left when it returns. Raises
    DataError when nothing more can be run with it. binds_here: ranks run on this machine, on cores that the
    job names; otherwise their own machines choose.
    """

    name: str
    why_not: Callable[[], str | None]
    launch: Callable[[LaunchJob], JobOutcome]
    binds_here: bool = True

    def conditions(self, core_sets: Sequence[Sequence[int]] = ()) -> dict[str, Any]:
        """The conditions that a run with it has now. core_sets: of each rank, where it binds here."""
        return conditions(core_sets=core_sets, launcher=self.name, here=self.binds_here)


# What workers are to do; what rank 0 measured, in the end and up to now.
INSTRUCTIONS, RESULT, SO_FAR = "job.json", "result.json", "so_far.json"
# Names the core set of a worker where that is not the number of its LOCAL_RANK.
SEAT = "EQUIPOISE_SEAT"
_TAIL_CHARS = 400
# How long other ranks may take to write their reasons, after one has failed.
GRACE_S = 2.0
_LOST = re.compile(r"closed by peer|reset by peer|connection (closed|refused)|broken pipe", re.IGNORECASE)
# As torch's C++ begins a line that is no error.
_WARNING = re.compile(r"\[[IW]\d{4} ")
# What ends a process from outside; NCCL's watchdog aborts those that wait for it.
_KILLED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGSEGV, -signal.SIGBUS)
OUT_OF_MEMORY = "out of memory"


def instructions(job: LaunchJob, core_sets: Sequence[Sequence[int]]) -> dict[str, Any]:
    """What the workers of a node are to do: the task, and the cores of each rank of the node."""
    shared_out = [list(cores) for cores in core_sets]
    return {"kind": job.task.kind, "task": to_builtins(job.task), "core_sets": shared_out}


def write_document(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole, in place of one of that name."""
    aside = folder / f".{name}"
    aside.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
    aside.replace(folder / name)


def read_document(folder: Path, name: str) -> Mapping[str, Any] | None:
    """The content of a JSON file; None where there is none yet."""
    try:
        found: Mapping[str, Any] = json.loads((folder / name).read_bytes())
    except FileNotFoundError:
        return None
    return found


def write_reason(folder: Path, rank: int, reason: str) -> None:
    """Write why a rank failed."""
    (folder / f"reason.{rank}").write_text(reason, encoding="utf-8", errors="backslashreplace")


def output_path(folder: Path, rank: int) -> Path:
    """Where standard output and error of a rank go."""
    return folder / f"stderr.{rank}"


class End(Struct, frozen=True, kw_only=True):
    """How a rank ended: its exit code, and why, unless it is 0."""

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
    """The ends of ranks in the order they are known, and whether time ran out before all had ended.

    new_ends: waits a moment and returns those since the last call. grace_s: how long after a failed rank the
    others may take, which wait for it and would never end.
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
    """What came of a job that has ended.

    ends: of the ranks that ended by themselves, in the order they are known. ran_out: whether the job was
    ended because its time was over. hosts: of every rank, where there are several.
    """
    failed = [end for end in ends if end.code]
    result = read_document(job.folder, RESULT)
    if result is not None and len(ends) == job.task.num_ranks and not failed:
        return JobOutcome(result=result)
    if ran_out:
        return JobOutcome(reason=f"hung: ended after {job.limit_s:g} s (--limit for more)")
    if not failed:
        return JobOutcome(reason="ended without a result")
    # Others fail when a rank is killed or ends by itself, and their ends may be known first.
    early = next((end for end in ends if not end.code), None)
    if early is not None and all(map(lost_another, failed)):
        first, why = early, "ended without an error before the others, which lost it"
    else:
        first = min(failed, key=lambda end: (end.code not in _KILLED, lost_another(end)))
        why = first.why or ""
    where = f" on {hosts[first.rank]}" if hosts else ""
    return JobOutcome(reason=f"rank {first.rank}{where} {why}")


def lost_another(end: End) -> bool:
    """Whether a rank failed because it could no longer reach another."""
    return bool(end.why and _LOST.search(end.why))


def cause(folder: Path, rank: int, code: int, kills_before: int | None) -> str:
    """Why one process ended as it did."""
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
    """The last line of words that a process wrote, after a colon."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_CHARS))
        lines = file.read().decode(errors="replace").strip().splitlines()
    # A line of no letters is a rule, as below torchrun's account of which process failed and why.
    words = [line for line in lines if re.search(r"[a-z]", line) and not _WARNING.match(line)]
    return f": {words[-1].strip()}" if words else ""


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
    else:
        # A rank writes its reason before it ends; on a busy host the rest takes longer than it is waited for.
        known = {end.rank for end in ends}
        ends += [end for end in _stated_ends(job.folder, 1) if end.rank not in known]
    return outcome(job, ends, ran_out=ran_out)


def _ends_of_ranks(job: LaunchJob, agent: End) -> list[End]:
    """An agent's end as that of all ranks, or of those that failed and wrote a reason."""
    if not agent.code:
        return [End(rank=rank, code=0, why=None) for rank in range(job.task.num_ranks)]
    return _stated_ends(job.folder, agent.code) or [End(rank=0, code=agent.code, why=agent.why)]


def _stated_ends(folder: Path, code: int) -> list[End]:
    """The ranks that wrote why they failed, as ended with a code."""
    ranks = sorted(int(reason.name.partition(".")[2]) for reason in folder.glob("reason.*"))
    return [End(rank=rank, code=code, why=cause(folder, rank, code, None)) for rank in ranks]


INPROCESS = Launcher(
    name="inprocess",
    why_not=no_torch,
    launch=lambda job: run_commands(job, [rank_command(job, rank) for rank in range(job.task.num_ranks)]),
)

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

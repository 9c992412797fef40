"""A sweep over hosts on which torchrun or srun has started this program; the first host coordinates."""

import atexit
import hmac
import json
import os
import select
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any
from zlib import crc32

from msgspec import Struct, convert, to_builtins

from equipoise.bench.environment import command_output, core_sets_by_node, no_torch, this_node
from equipoise.bench.launchers import (
    End,
    JobOutcome,
    Launcher,
    LaunchJob,
    Order,
    Ranks,
    begin,
    collect_ends,
    free_port,
    instructions,
    outcome,
)
from equipoise.errors import DataError, UsageError, first_line

# A host whose connection breaks without being closed is considered lost after about this time.
_PATIENCE_S = 25
_PROBE_S = 5
_CHUNK_BYTES = 1 << 16
# Limits on unauthenticated connections: bytes before the end of the first message, and their number.
_FIRST_BYTES = 1 << 16
_MOST_UNKNOWN = 256


class HostConnection:
    """One end of a connection between hosts; `lost` becomes True when the other end is gone."""

    def __init__(self, connection: socket.socket) -> None:
        """connection: an open TCP connection, owned by this object."""
        self._connection = connection
        self._pending = b""
        self.lost = False
        connection.settimeout(_PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PATIENCE_S // _PROBE_S - 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _PATIENCE_S * 1000)

    def fileno(self) -> int:
        """Return the file descriptor for `select`."""
        return self._connection.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; set `lost` if the other end is gone."""
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.lost = True

    def received(self) -> list[dict[str, Any]]:
        """Return the messages received, possibly none; call it when `select` reports it readable.

        Anything but a JSON object sets `lost`.
        """
        try:
            chunk = self._connection.recv(_CHUNK_BYTES)
        except OSError:
            chunk = b""
        self.lost = self.lost or not chunk
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            messages = [None]
        if all(isinstance(each, dict) for each in messages):
            return messages
        self.lost = True
        return []

    def introduction(self, token: str) -> dict[str, Any] | None:
        """Return the first message if it contains the token; anything else sets `lost`."""
        messages = self.received()
        if messages and hmac.compare_digest(str(messages[0].get("token")).encode(), token.encode()):
            return messages[0]
        self.lost = self.lost or bool(messages) or len(self._pending) > _FIRST_BYTES
        return None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


_MEETING_S = 120.0
_PORTS = range(20_000, 32_000)  # below Linux's range of ephemeral ports


def shared_port(name: str) -> int:
    """Return a port derived from a name that the processes of a job share and other jobs do not have."""
    return _PORTS[crc32(name.encode()) % len(_PORTS)]


class Member(Struct, frozen=True, kw_only=True):
    """This process as one of several started together. starter: the program that started them.

    address: of the host of member 0. port: of the store on that host, which holds the port of its listener.
    has_store: whether torchrun already runs a store there. attempt: an identity of this start.
    """

    number: int
    num_members: int
    starter: str
    address: str
    port: int
    has_store: bool
    attempt: str


def member(environment: Mapping[str, str] = os.environ) -> Member | None:
    """Return this process as one of several started together, one per host; None if it is alone.

    Raises UsageError if a host has more than one of them.
    """
    if "TORCHELASTIC_RUN_ID" in environment and int(environment["WORLD_SIZE"]) > 1:
        _refuse_several(int(environment["LOCAL_WORLD_SIZE"]), "--nproc-per-node=1")
        return Member(
            number=int(environment["RANK"]),
            num_members=int(environment["WORLD_SIZE"]),
            starter="torchrun",
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=".".join(
                environment.get(f"TORCHELASTIC_{name}", "0") for name in ("RUN_ID", "RESTART_COUNT")
            ),
        )
    # These variables are set in steps started by srun, not in batch scripts.
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and "SLURM_PROCID" in environment:
        num_nodes = int(environment["SLURM_STEP_NUM_NODES"])
        _refuse_several(-(-int(environment["SLURM_STEP_NUM_TASKS"]) // num_nodes), "--ntasks-per-node=1")
        attempt = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
        return Member(
            number=int(environment["SLURM_PROCID"]),
            num_members=int(environment["SLURM_STEP_NUM_TASKS"]),
            starter="srun",
            address=slurm_address(environment["SLURM_STEP_NODELIST"]),
            port=shared_port(attempt),
            has_store=False,
            attempt=attempt,
        )
    return None


def _refuse_several(num_processes: int, option: str) -> None:
    if num_processes > 1:
        raise UsageError(
            f"{num_processes} processes of bench were started on a host, which starts its ranks itself; "
            f"start one per host: {option}"
        )


def slurm_address(nodes: str) -> str:
    """Return Slurm's own address of the first node, which works even if names of nodes do not resolve."""
    first = hostnames(nodes)[:1] or [nodes]
    words = command_output(("scontrol", "show", "node", first[0], "-o")).split()
    facts = dict(word.partition("=")[::2] for word in words)
    return facts.get("NodeAddr", first[0])


def hostnames(nodes: str) -> list[str]:
    """Return the names of nodes that Slurm abbreviates as n[1-4]; empty if that fails."""
    return command_output(("scontrol", "show", "hostnames", nodes)).split()


def listening(of: Member) -> tuple[socket.socket, str, Any]:
    """Return member 0's listening socket, the token for others, and the store that holds port and token.

    Raises DataError if the store cannot be created.
    """
    try:
        store = _store(of)
    except RuntimeError as err:
        raise DataError(f"{of.address}:{of.port}: hosts cannot meet there ({first_line(err)})") from err
    listener, token = socket.create_server(("", 0)), token_hex(16)
    store.set(_key(of), f"{listener.getsockname()[1]} {token}")
    return listener, token, store


def connection_to_first(of: Member) -> tuple[HostConnection, str]:
    """Return a connection to member 0 and the token to send. Raises DataError if it fails."""
    try:
        port, token = bytes(_store(of).get(_key(of))).decode().split()
        connection = socket.create_connection((of.address, int(port)), timeout=_MEETING_S)
    except (OSError, RuntimeError) as err:  # a store raises subclasses of RuntimeError
        raise DataError(
            f"{of.address}:{of.port}: no host coordinates the sweep there ({first_line(err)}); check "
            "on that host whether it started, or give each host the address that others use: "
            "torchrun --local-addr=ADDRESS"
        ) from err
    return HostConnection(connection), token


def _store(of: Member) -> Any:  # noqa: ANN401 - torch is not followed
    """Return torchrun's store, or one that member 0 opens if there is none."""
    from torch.distributed import TCPStore  # noqa: PLC0415 - only needed with several hosts

    return TCPStore(
        of.address,
        of.port,
        is_master=of.number == 0 and not of.has_store,
        wait_for_workers=False,
        timeout=timedelta(seconds=_MEETING_S),
    )


def _key(of: Member) -> str:
    return f"equipoise/{of.attempt}"


_POLL_S = 0.02
_ARRIVAL_S = 120.0
_END_S = 20.0
_RESUME = "finished trials are stored: start it again on every host, with --resume"


def served() -> bool:
    """Serve the coordinator until it finishes, if this is a host other than the first; return whether it is.

    Raises DataError if the coordinator is lost before it finishes.
    """
    this = member()
    if this is None or this.number == 0:
        return False
    wire, token = connection_to_first(this)
    wire.send({"token": token, "number": this.number, **this_node()})
    with tempfile.TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True) as folder:
        _serve(wire, Path(folder))
    return True


def _serve(wire: HostConnection, folder: Path) -> None:
    """Run the orders of the coordinator until it finishes."""
    running: Ranks | None = None
    num_jobs = 0
    try:
        while True:
            readable, _, _ = select.select([wire], [], [], _POLL_S if running else None)
            for message in wire.received() if readable else ():
                if "start" in message:
                    num_jobs += 1
                    job_folder = folder / str(num_jobs)
                    job_folder.mkdir()
                    running = begin(convert(message["start"], Order), job_folder)
                elif "end" in message and running:
                    running.end()
                    running = None
                    wire.send({"ended": True})
                elif "finish" in message:
                    return
            if wire.lost:
                raise DataError(f"the host that coordinates the sweep is gone; {_RESUME}")
            for end in running.ends() if running else ():
                wire.send(to_builtins(end))
    finally:
        if running:
            running.end()


def _to_drop(unknown: Sequence[HostConnection]) -> list[HostConnection]:
    """Return the unauthenticated connections to close: lost ones, and the oldest beyond the limit."""
    excess = len(unknown) - _MOST_UNKNOWN
    return [wire for place, wire in enumerate(unknown) if wire.lost or place < excess]


class _Hosts:
    """The hosts of a sweep, this one first; the others connect when the first job is run."""

    def __init__(self, this: Member) -> None:
        self._this = this
        self._wires: list[HostConnection] = []
        self._known: list[Mapping[str, Any]] = []

    def _meet(self) -> None:
        """Wait for every other host. Raises DataError with the number of hosts that connected in time."""
        listener, token, store = listening(self._this)
        self._known = [this_node()]
        came: dict[int, tuple[HostConnection, Mapping[str, Any]]] = {}
        deadline = time.monotonic() + _ARRIVAL_S
        unknown: list[HostConnection] = []
        listener.setblocking(False)
        with listener:
            while len(came) < self._this.num_members - 1:
                if time.monotonic() > deadline:
                    raise DataError(
                        f"{len(came) + 1} of {self._this.num_members} hosts started within {_ARRIVAL_S:g} s; "
                        "start the same command on every host"
                    )
                waited_for: list[Any] = [listener, *unknown]
                for wire in select.select(waited_for, [], [], 1.0)[0]:
                    if wire is listener:
                        with suppress(OSError):  # already disconnected
                            unknown.append(HostConnection(listener.accept()[0]))
                        continue
                    message = wire.introduction(token)
                    if message is not None:
                        came[int(message["number"])] = (wire, message)
                        unknown.remove(wire)
                for wire in _to_drop(unknown):
                    unknown.remove(wire)
                    wire.close()
        for wire in unknown:
            wire.close()
        del store  # no longer needed
        for number in sorted(came):
            self._wires.append(came[number][0])
            self._known.append(came[number][1])
        atexit.register(self._finish)

    def _finish(self) -> None:
        for wire in self._wires:
            wire.send({"finish": True})

    def launch(self, job: LaunchJob) -> JobOutcome:
        """Run a job on as many hosts as its ranks fill."""
        if not self._known:
            self._meet()
        num_hosts = len(self._known)
        most_ranks = max(job.most_ranks, job.task.num_ranks)
        # The largest trial is spread over all hosts; smaller ones fill them in order.
        per_host = -(-most_ranks // num_hosts)
        sets = core_sets_by_node([(one["kernel"], tuple(one["cores"])) for one in self._known], per_host)
        address, port = self._this.address, free_port()
        orders = [
            Order(
                ranks=tuple(range(first, min(first + per_host, job.task.num_ranks))),
                num_ranks=job.task.num_ranks,
                address=address,
                port=port,
                instructions=instructions(job, core_sets),
            )
            for first, core_sets in zip(range(0, num_hosts * per_host, per_host), sets, strict=True)
            if first < job.task.num_ranks
        ]
        return self._run(job, orders)

    def _run(self, job: LaunchJob, orders: Sequence[Order]) -> JobOutcome:
        """Run a job and return its outcome, after all its processes have ended on all hosts."""
        wires = self._wires[: len(orders) - 1]
        ranks = begin(orders[0], job.folder)
        try:
            for wire, each in zip(wires, orders[1:], strict=True):
                wire.send({"start": to_builtins(each)})
            ends, ran_out = collect_ends(
                job.task.num_ranks, lambda: self._new_ends(job, ranks, wires), limit_s=job.limit_s
            )
        finally:
            ranks.end()
            for wire in wires:
                wire.send({"end": True})
        self._await_ended(job, wires)
        hosts = {
            rank: one["host"] for one, each in zip(self._known, orders, strict=False) for rank in each.ranks
        }
        return outcome(job, ends, ran_out=ran_out, hosts=hosts)

    def _new_ends(self, job: LaunchJob, ranks: Ranks, wires: Sequence[HostConnection]) -> list[End]:
        """Return the ends of ranks since the last call, on this and other hosts."""
        messages = self._received(job, wires)
        return ranks.ends() + [convert(message, End) for message in messages if "rank" in message]

    def _await_ended(self, job: LaunchJob, wires: Sequence[HostConnection]) -> None:
        """Wait until no process of the job is left on any other host."""
        deadline = time.monotonic() + _END_S
        missing = list(wires)
        while missing and time.monotonic() < deadline:
            for wire in tuple(missing):
                if any("ended" in message for message in self._received(job, [wire])):
                    missing.remove(wire)
        for wire in missing:
            wire.lost = True
        self._refuse_loss(job)

    def _received(self, job: LaunchJob, wires: Sequence[HostConnection]) -> list[dict[str, Any]]:
        """Return messages of other hosts after a brief wait. Raises DataError if a host is lost."""
        if not wires:
            time.sleep(_POLL_S)
            return []
        readable, _, _ = select.select(list(wires), [], [], _POLL_S)
        messages = [message for wire in readable for message in wire.received()]
        self._refuse_loss(job)
        return messages

    def _refuse_loss(self, job: LaunchJob) -> None:
        for wire, known in zip(self._wires, self._known[1:], strict=True):
            if wire.lost:
                with suppress(OSError):
                    wire.close()
                raise DataError(
                    f"host {known['host']} (number {known['number']} of {self._this.starter}) is gone while "
                    f"{getattr(job.task, 'trial_id', job.task.kind)} ran; {_RESUME}"
                )


@cache
def over_hosts() -> Launcher | None:
    """Return the launcher of this process if it is the first of several hosts; None if it is alone.

    Raises UsageError on the other hosts, which should call `served` instead.
    """
    this = member()
    if this is None:
        return None
    if this.number:
        raise UsageError(
            f"this is number {this.number} of {this.num_members} hosts: it must serve, not measure"
        )
    return Launcher(
        name=f"{this.starter} over {this.num_members} hosts",
        why_not=no_torch,
        launch=_Hosts(this).launch,
        binds_here=False,
    )

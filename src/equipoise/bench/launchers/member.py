"""Whether this process is one of several that torchrun or srun has started, one a host."""

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_hex
from typing import Any

from equipoise.bench.launchers.wire import Wire
from equipoise.errors import DataError, UsageError

_MEETING_S = 120.0
_RETRY_S = 0.2
_PORTS = range(20_000, 32_000)  # below those that Linux gives away


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """This process among those started together: its number, how many they are, and by what.

    address: of the host of member 0. port: where its listener is, or the store that tells it.
    has_store: whether torchrun keeps a store there already.
    """

    number: int
    num_members: int
    starter: str
    address: str
    port: int
    has_store: bool
    attempt: str


def member(environment: Mapping[str, str] = os.environ) -> Member | None:
    """This process as one of several started together, one a host; None when it is on its own.

    Raises UsageError when a host has more than one of them.
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
    # Only steps that srun starts have these; a batch script has not.
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and "SLURM_PROCID" in environment:
        num_nodes = int(environment["SLURM_STEP_NUM_NODES"])
        _refuse_several(-(-int(environment["SLURM_STEP_NUM_TASKS"]) // num_nodes), "--ntasks-per-node=1")
        attempt = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
        return Member(
            number=int(environment["SLURM_PROCID"]),
            num_members=int(environment["SLURM_STEP_NUM_TASKS"]),
            starter="srun",
            address=slurm_address(environment["SLURM_STEP_NODELIST"]),
            port=_PORTS[sum(attempt.encode()) * 7919 % len(_PORTS)],
            has_store=False,
            attempt=attempt,
        )
    return None


def _refuse_several(num_processes: int, option: str) -> None:
    if num_processes > 1:
        raise UsageError(
            f"{num_processes} processes of bench were started on a host, which starts its ranks itself; "
            f"start one a host: {option}"
        )


def slurm_address(nodes: str) -> str:
    """Where Slurm itself reaches the first of the nodes: it holds also where their names do not resolve."""
    first = hostnames(nodes)[:1] or [nodes]
    words = _said("scontrol", "show", "node", first[0], "-o").split()
    told = dict(word.partition("=")[::2] for word in words)
    return told.get("NodeAddr", first[0])


def hostnames(nodes: str) -> list[str]:
    """The names of nodes that Slurm abbreviates as n[1-4]; none where it cannot be asked."""
    return _said("scontrol", "show", "hostnames", nodes).split()


def _said(*command: str) -> str:
    """What a command of Slurm prints; nothing where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if not done.returncode else ""


def listening(of: Member) -> tuple[socket.socket, str]:
    """Where member 0 waits for the others, and the word by which it knows them."""
    if not of.has_store:
        return socket.create_server(("", of.port)), of.attempt
    listener, word = socket.create_server(("", 0)), token_hex(16)
    _store(of).set(_key(of), f"{listener.getsockname()[1]} {word}")
    return listener, word


def joined(of: Member) -> tuple[Wire, str]:
    """The wire to member 0, and the word by which it knows the others. Raises DataError for none."""
    port, word = of.port, of.attempt
    try:
        if of.has_store:
            told = bytes(_store(of).get(_key(of))).decode().split()
            port, word = int(told[0]), told[1]
        return Wire(_connected(of.address, port)), word
    except (OSError, RuntimeError) as err:  # a store raises kinds of RuntimeError
        said = (str(err).strip().splitlines() or [type(err).__name__])[0]
        raise DataError(
            f"{of.address}:{port}: the host that coordinates the sweep cannot be reached ({said}); see there "
            "whether it began, or give each host the address others see: torchrun --local-addr=ADDRESS"
        ) from err


def _connected(address: str, port: int) -> socket.socket:
    """A connection, tried until the other end listens."""
    deadline = time.monotonic() + _MEETING_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=_MEETING_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)


def _store(of: Member) -> Any:  # noqa: ANN401 - torch is not followed
    """The store that torchrun keeps."""
    from torch.distributed import TCPStore  # noqa: PLC0415 - only hosts under torchrun need it

    return TCPStore(of.address, of.port, is_master=False, timeout=timedelta(seconds=_MEETING_S))


def _key(of: Member) -> str:
    return f"equipoise/{of.attempt}"

"""The ranks of a job on one host of several: started, watched without waiting, and ended. No torch."""

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.bench.environment import num_memory_kills
from equipoise.bench.launchers.folder import End, cause, complaints_path, leave_order
from equipoise.bench.launchers.network import interface_towards
from equipoise.bench.launchers.processes import Command, started

WORKER = "equipoise.bench.worker"
# What torchrun tells its own processes would lead workers of another group astray.
_FOREIGN = ("TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a host is to do for a job: its ranks, of how many, where they meet, and what each is told.

    told: of every worker of this host, with the cores of each of `ranks`.
    """

    ranks: tuple[int, ...]
    num_ranks: int
    address: str
    port: int
    told: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Its fields, for a message."""
        return {
            "ranks": list(self.ranks),
            "num_ranks": self.num_ranks,
            "address": self.address,
            "port": self.port,
            "told": dict(self.told),
        }


def order_from(found: Mapping[str, Any]) -> Order:
    """The order that `as_json` gave."""
    return Order(**{**found, "ranks": tuple(found["ranks"])})


class Ranks:
    """The processes of an order on this host."""

    def __init__(self, order: Order, folder: Path) -> None:
        """order: begun at once. folder: on this host, where processes leave what they have to say."""
        self._order = order
        self._folder = folder
        self._kills_before = num_memory_kills()
        self._ended: set[int] = set()
        self._stack = ExitStack()
        leave_order(folder, order.told)
        commands = [self._command(local_rank) for local_rank in range(len(order.ranks))]
        self._processes = self._stack.enter_context(started(commands))

    def _command(self, local_rank: int) -> Command:
        """How one rank is started."""
        rank = self._order.ranks[local_rank]
        return Command(
            arguments=(sys.executable, "-m", WORKER, str(self._folder)),
            environment=environment(
                rank=rank,
                num_ranks=self._order.num_ranks,
                local_rank=local_rank,
                num_local_ranks=len(self._order.ranks),
                num_cores=len(self._order.told["core_sets"][local_rank]),
                address=self._order.address,
                port=self._order.port,
            ),
            complaints=complaints_path(self._folder, rank),
        )

    def ends(self) -> list[End]:
        """The ranks that have ended since this was asked last."""
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


def environment(
    *,
    rank: int,
    num_ranks: int,
    local_rank: int,
    num_local_ranks: int,
    num_cores: int,
    address: str,
    port: int,
) -> dict[str, str]:
    """The environment of a worker that meets ranks of other hosts at an address."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    own |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(num_local_ranks),
        "OMP_NUM_THREADS": str(num_cores),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
    # Left alone, a backend takes the interface that the host's name resolves to, which may be the loopback.
    interface = interface_towards(address)
    if interface is not None:
        own = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} | own
    return own

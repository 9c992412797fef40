"""The ranks of a job on one host of several: started, watched without waiting, and ended. No torch."""

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equipoise.bench.environment import num_memory_kills
from equipoise.bench.launchers.folder import SEAT, End, cause, complaints_path, leave_order
from equipoise.bench.launchers.network import interface_towards
from equipoise.bench.launchers.processes import Command, started

WORKER = "equipoise.bench.worker"
# What torchrun tells its own processes would lead workers of another group astray.
_FOREIGN = ("TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a host is to do for a job: its ranks, of how many, where they meet, and what each is told.

    told: to every worker, with the cores of each of `ranks`. first_local_rank: of `ranks`, where others of
    the host have an order of their own. num_local_ranks: of the host; 0 for as many as `ranks`.
    """

    ranks: tuple[int, ...]
    num_ranks: int
    address: str
    port: int
    told: Mapping[str, Any]
    first_local_rank: int = 0
    num_local_ranks: int = 0

    def as_json(self) -> dict[str, Any]:
        """Its fields, for a message."""
        return {**asdict(self), "ranks": list(self.ranks), "told": dict(self.told)}


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
        commands = [self._command(seat) for seat in range(len(order.ranks))]
        self._processes = self._stack.enter_context(started(commands))

    def _command(self, seat: int) -> Command:
        """How one rank is started."""
        order = self._order
        rank = order.ranks[seat]
        told = {
            "RANK": rank,
            "WORLD_SIZE": order.num_ranks,
            "LOCAL_RANK": order.first_local_rank + seat,
            "LOCAL_WORLD_SIZE": order.num_local_ranks or len(order.ranks),
            "OMP_NUM_THREADS": len(order.told["core_sets"][seat]),
            SEAT: seat,
            "MASTER_ADDR": order.address,
            "MASTER_PORT": order.port,
        }
        return Command(
            arguments=(sys.executable, "-m", WORKER, str(self._folder)),
            environment=_inherited(order.address) | {name: str(value) for name, value in told.items()},
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


def _inherited(address: str) -> dict[str, str]:
    """What workers have of the environment of this process, and the interface that leads to an address."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    # Left alone, a backend takes the interface that the host's name resolves to, which may be the loopback.
    interface = interface_towards(address)
    if interface is not None:
        own = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} | own
    return own

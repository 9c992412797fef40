"""Hosts on each of which torchrun or srun has started this program: the first coordinates the sweep, others
serve it. No torch.
"""

import atexit
import os
import platform
import select
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from equipoise.bench.environment import core_sets_by_node, kernel_id
from equipoise.bench.launchers.folder import End, order, outcome_of
from equipoise.bench.launchers.inprocess import why_not
from equipoise.bench.launchers.launcher import Job, Launcher, Outcome
from equipoise.bench.launchers.member import Member, joined, listening, member
from equipoise.bench.launchers.network import free_port
from equipoise.bench.launchers.processes import GRACE_S
from equipoise.bench.launchers.ranks import Order, Ranks, order_from
from equipoise.bench.launchers.wire import Wire
from equipoise.errors import DataError, UsageError

_POLL_S = 0.02
_ARRIVAL_S = 120.0
_END_S = 20.0
_RESUME = "finished cells are kept: start it again on every host, with --resume"


def served() -> bool:
    """Whether this process is one of several hosts but not the first, and has now served to the end.

    Raises DataError when the host that coordinates is gone before it said so.
    """
    own = member()
    if own is None or own.number == 0:
        return False
    wire, word = joined(own)
    wire.send({"word": word, "number": own.number, **_self()})
    with tempfile.TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True) as folder:
        _serve(wire, Path(folder))
    return True


def _self() -> dict[str, Any]:
    """What a host says of itself."""
    cores = sorted(os.sched_getaffinity(0))
    return {"host": platform.node(), "kernel": kernel_id(), "cores": cores}


def _serve(wire: Wire, folder: Path) -> None:
    """Run what the coordinator orders until it lets go."""
    running: Ranks | None = None
    num_jobs = 0
    try:
        while True:
            readable, _, _ = select.select([wire], [], [], _POLL_S if running else None)
            for message in wire.received() if readable else ():
                if "start" in message:
                    num_jobs += 1
                    own = folder / str(num_jobs)
                    own.mkdir()
                    running = Ranks(order_from(message["start"]), own)
                elif "end" in message and running:
                    running.end()
                    running = None
                    wire.send({"ended": True})
                elif "finish" in message:
                    return
            if wire.lost:
                raise DataError(f"the host that coordinates the sweep is gone; {_RESUME}")
            for end in running.ends() if running else ():
                wire.send({"rank": end.rank, "code": end.code, "why": end.why})
    finally:
        if running:
            running.end()


class _Hosts:
    """The hosts of a sweep, this one first; the others are met when the first job is run."""

    def __init__(self, own: Member) -> None:
        self._own = own
        self._wires: list[Wire] = []
        self._known: list[Mapping[str, Any]] = []

    def _meet(self) -> None:
        """Wait for every other host. Raises DataError that says how many came."""
        listener, word = listening(self._own)
        self._known = [_self()]
        came: dict[int, tuple[Wire, Mapping[str, Any]]] = {}
        deadline = time.monotonic() + _ARRIVAL_S
        with listener:
            while len(came) < self._own.num_members - 1:
                listener.settimeout(max(0.1, deadline - time.monotonic()))
                try:
                    wire = Wire(listener.accept()[0])
                except TimeoutError as err:
                    raise DataError(
                        f"{len(came) + 1} of {self._own.num_members} hosts came within {_ARRIVAL_S:g} s; "
                        "start the same command on every host"
                    ) from err
                said = wire.received()
                # Whoever does not know the word is no host of this sweep.
                if said and said[0].get("word") == word:
                    came[int(said[0]["number"])] = (wire, said[0])
                else:
                    wire.close()
        for number in sorted(came):
            self._wires.append(came[number][0])
            self._known.append(came[number][1])
        atexit.register(self._let_go)

    def _let_go(self) -> None:
        """Tell the others that no more comes."""
        for wire in self._wires:
            wire.send({"finish": True})

    def launch(self, job: Job) -> Outcome:
        """Run a job on as many hosts as its ranks fill."""
        if not self._known:
            self._meet()
        num_hosts = len(self._known)
        most_ranks = max(job.most_ranks, job.cell.num_ranks)
        # The largest cell is spread over all hosts; smaller ones fill them in order.
        most_a_host = -(-most_ranks // num_hosts)
        sets = core_sets_by_node([(one["kernel"], tuple(one["cores"])) for one in self._known], most_a_host)
        address, port = self._own.address, free_port()
        orders = [
            Order(
                ranks=tuple(range(first, min(first + most_a_host, job.cell.num_ranks))),
                num_ranks=job.cell.num_ranks,
                address=address,
                port=port,
                told=order(job, own_sets),
            )
            for first, own_sets in zip(range(0, num_hosts * most_a_host, most_a_host), sets, strict=True)
            if first < job.cell.num_ranks
        ]
        return self._run(job, orders)

    def _run(self, job: Job, orders: Sequence[Order]) -> Outcome:
        """What came of a job, once no process of it is left anywhere."""
        wires = self._wires[: len(orders) - 1]
        ranks = Ranks(orders[0], job.folder)
        try:
            for wire, each in zip(wires, orders[1:], strict=True):
                wire.send({"start": each.as_json()})
            ends, ran_out = self._ends(job, ranks, wires)
        finally:
            ranks.end()
            for wire in wires:
                wire.send({"end": True})
        self._until_ended(job, wires)
        hosts = {
            rank: one["host"] for one, each in zip(self._known, orders, strict=False) for rank in each.ranks
        }
        return outcome_of(job, ends, hosts, ran_out=ran_out)

    def _ends(self, job: Job, ranks: Ranks, wires: Sequence[Wire]) -> tuple[list[End], bool]:
        """The ends of ranks in their order, and whether time ran out before; soon after the first failure."""
        deadline = time.monotonic() + job.limit_s
        ends: list[End] = []
        failed = False
        while len(ends) < job.cell.num_ranks and time.monotonic() < deadline:
            new = ranks.ends() + [
                End(rank=said["rank"], code=said["code"], why=said["why"])
                for said in self._heard(job, wires, _POLL_S)
                if "rank" in said
            ]
            ends += new
            if any(end.code for end in new) and not failed:
                failed = True
                deadline = min(deadline, time.monotonic() + GRACE_S)
        return ends, len(ends) < job.cell.num_ranks and not failed

    def _until_ended(self, job: Job, wires: Sequence[Wire]) -> None:
        """Return when every other host has said that nothing of the job is left there."""
        deadline = time.monotonic() + _END_S
        missing = list(wires)
        while missing and time.monotonic() < deadline:
            for wire in tuple(missing):
                if any("ended" in said for said in self._heard(job, [wire], _POLL_S)):
                    missing.remove(wire)
        for wire in missing:
            wire.lost = True
        self._refuse_loss(job)

    def _heard(self, job: Job, wires: Sequence[Wire], wait_s: float) -> list[dict[str, Any]]:
        """What other hosts have said within a while. Raises DataError when one is gone."""
        if not wires:
            time.sleep(wait_s)
            return []
        readable, _, _ = select.select(list(wires), [], [], wait_s)
        said = [message for wire in readable for message in wire.received()]
        self._refuse_loss(job)
        return said

    def _refuse_loss(self, job: Job) -> None:
        """Raise DataError when a host is gone."""
        for wire, known in zip(self._wires, self._known[1:], strict=True):
            if wire.lost:
                with suppress(OSError):
                    wire.close()
                raise DataError(
                    f"host {known['host']} (number {known['number']} of {self._own.starter}) is gone while "
                    f"{getattr(job.cell, 'cell_id', job.cell.kind)} ran; {_RESUME}"
                )


@cache
def over_hosts() -> Launcher | None:
    """The launcher of this process where it is the first of several hosts; None where it is on its own.

    Raises UsageError on the other hosts, where `served` should have been called.
    """
    own = member()
    if own is None:
        return None
    if own.number:
        raise UsageError(
            f"this is number {own.number} of {own.num_members} hosts: it must serve, not measure"
        )
    return Launcher(
        name=f"{own.starter} over {own.num_members} hosts",
        why_not=why_not,
        launch=_Hosts(own).launch,
        binds_here=False,
    )

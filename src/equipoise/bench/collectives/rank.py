"""One rank of a measurement of collectives, once the ranks have met. Needs torch.

A time is that of the slowest rank, of several calls in a row: their median on a CPU, their mean on a device,
which is not stopped between them. Sizes come in another order each round, so that no drift of the machine
looks like an effect.
"""

import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct

from equipoise.bench.collectives import WIDTH_BYTES, CollectivesTask

# Calls in a row last so long: some see the 4 ms that a sleeping core may take to wake, most do not.
LEAST_BATCH_S = 0.05
MOST_CALLS = 100
# Warm when two batches in a row differ by no more than this; after so many it is measured regardless.
STEADY_FRACTION = 0.1
MOST_WARM_UPS = 10
# Patterns repeat after so many elements: sums of them over 1024 ranks are exact in float32.
_PATTERN = 251

Report = Callable[[Mapping[str, Any]], None]


class Exercise(Struct, frozen=True, kw_only=True):
    """One operation on buffers of one size: a call, what it reads, what it writes, and what that must hold.

    pattern: what rank r puts into `given`. expected: in `taken`, by the rank that asks, after a call.
    group: the ranks, as one whose calls may not hang for long; None for all of them.
    """

    call: Callable[[], None]
    given: torch.Tensor
    taken: torch.Tensor
    pattern: Callable[[int], torch.Tensor]
    expected: Callable[[], torch.Tensor]
    group: dist.ProcessGroup | None = None

    @property
    def payload_bytes(self) -> int:
        """What a rank holds whole, before or after."""
        return WIDTH_BYTES * max(int(self.given.numel()), int(self.taken.numel()))


def exercise(
    operation: str, payload_bytes: int, device: torch.device, group: dist.ProcessGroup | None = None
) -> Exercise:
    """An operation ready to call. payload_bytes: rounded down to whole elements for each rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = max(payload_bytes // WIDTH_BYTES // size, 1)
    whole, other = torch.zeros(count * size, device=device), torch.zeros(count * size, device=device)
    part = torch.zeros(count, device=device)
    gathers = operation == "all_gather"

    def pattern(of: int) -> torch.Tensor:
        length = count if gathers else count * size
        return torch.arange(of + 1, of + 1 + length, device=device).remainder(_PATTERN).float()

    def summed() -> torch.Tensor:
        return torch.stack([pattern(each) for each in range(size)]).sum(0)

    def piece(of: int) -> torch.Tensor:
        return pattern(of)[rank * count : (rank + 1) * count]

    def exchange() -> None:
        sent = dist.isend(whole, (rank + 1) % size, group=group)
        dist.recv(other, (rank - 1) % size, group=group)
        if sent is not None:
            sent.wait()

    kinds: dict[str, tuple[Callable[[], Any], torch.Tensor, torch.Tensor, Callable[[], torch.Tensor]]] = {
        "all_reduce": (lambda: dist.all_reduce(whole, group=group), whole, whole, summed),
        "broadcast": (lambda: dist.broadcast(whole, 0, group=group), whole, whole, lambda: pattern(0)),
        "all_gather": (
            lambda: dist.all_gather_into_tensor(whole, part, group=group),
            part,
            whole,
            lambda: torch.cat([pattern(each) for each in range(size)]),
        ),
        "reduce_scatter": (
            lambda: dist.reduce_scatter_tensor(part, whole, group=group),
            whole,
            part,
            lambda: torch.stack([piece(each) for each in range(size)]).sum(0),
        ),
        "all_to_all": (
            lambda: dist.all_to_all_single(other, whole, group=group),
            whole,
            other,
            lambda: torch.cat([piece(each) for each in range(size)]),
        ),
        "send": (exchange, whole, other, lambda: pattern((rank - 1) % size)),
    }
    call, given, taken, expected = kinds[operation]
    return Exercise(call=call, given=given, taken=taken, pattern=pattern, expected=expected, group=group)


def num_wrong(one: Exercise) -> int:
    """Elements that one call leaves wrong on the worst rank. Its buffers are zero again afterwards."""
    one.taken.zero_()
    one.given.copy_(one.pattern(dist.get_rank()))
    one.call()
    wrong = int((one.taken != one.expected()).sum())
    one.given.zero_()  # sums of zeros stay what they are however often they are taken
    return int(_over_ranks(one.group, float(wrong))[0])


def _over_ranks(group: dist.ProcessGroup | None, value: float, also: float = 0.0) -> tuple[float, float]:
    """The largest of all ranks' values, and the mean of the others."""
    # On the CPU, over which gloo exchanges, next to NCCL.
    largest = torch.tensor([value], dtype=torch.float64)
    total = torch.tensor([also], dtype=torch.float64)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    dist.all_reduce(total, group=group)
    return float(largest), float(total) / dist.get_world_size()


def batch(one: Exercise, num_calls: int) -> tuple[float, float]:
    """Seconds of a call, of so many in a row, on the slowest rank; and how many cores a rank was busy on.

    The latter is the processor time of the whole process over the wall's, mean over ranks: what is taken from
    computing meanwhile.
    """
    dist.barrier(group=one.group)
    began, worked = time.perf_counter(), time.process_time()
    ends = []
    for _ in range(num_calls):
        one.call()
        ends.append(time.perf_counter())
    if one.given.is_cuda:
        torch.cuda.synchronize()
    took_s, worked_s = time.perf_counter() - began, time.process_time() - worked
    # Starts of calls on a device end long before the calls do.
    calls_s = [] if one.given.is_cuda else [end - start for start, end in pairwise((began, *ends))]
    call_s = median(calls_s) if calls_s else took_s / num_calls
    return _over_ranks(one.group, call_s, worked_s / took_s)


def warmed_up(one: Exercise) -> tuple[int, bool]:
    """How many calls make a batch, and whether two batches in a row came to take equally long."""
    num_calls, before_s = 1, float("inf")
    for _ in range(MOST_WARM_UPS):
        took_s, _ = batch(one, num_calls)
        is_steady = abs(took_s - before_s) <= STEADY_FRACTION * took_s
        wanted = min(MOST_CALLS, max(1, round(LEAST_BATCH_S / took_s)))
        if is_steady and wanted <= 2 * num_calls:
            return num_calls, True
        num_calls, before_s = max(num_calls, wanted), took_s
    return num_calls, False


def measure(task: CollectivesTask, rank: int, report: Report) -> dict[str, Any] | None:
    """The result, on rank 0: rows of every operation, what the backend refused, and where ranks were.

    report: called by rank 0 with the result so far and what comes next, before each piece of work.
    """
    # A call that hangs ends after this limit: on the group that all ranks are in it is half an hour.
    group = dist.new_group(timeout=timedelta(seconds=task.limit_s))
    rows, refused = list[dict[str, Any]](), dict[str, str]()
    so_far = {"rows": rows, "refused": refused, **_setting(task.device)}
    num_pieces = len(task.sizes_bytes) * (1 + task.num_rounds)
    order = random.Random(task.seed)  # noqa: S311 - an order, the same on every rank
    for number, operation in enumerate(order.sample(task.operations, len(task.operations))):
        found: list[dict[str, Any]] = []
        try:
            for piece, payload_bytes in enumerate(_pieces(operation, task, group, order, found)):
                if rank == 0:
                    share = (number + piece / num_pieces) / len(task.operations)
                    report({**so_far, "now": [operation, payload_bytes], "done_fraction": share})
        except (RuntimeError, NotImplementedError, ValueError) as err:
            if _ran_out(err):
                raise
            refused[operation] = str(err).splitlines()[0][:200]
            continue
        rows.extend(found)
    return so_far if rank == 0 else None


def _ran_out(err: Exception) -> bool:
    message = str(err).lower()
    return any(words in message for words in ("timed out", "timeout", "connection closed"))


def _pieces(
    operation: str,
    task: CollectivesTask,
    group: dist.ProcessGroup | None,
    order: random.Random,
    found: list[dict[str, Any]],
) -> Iterator[int]:
    """Fills `found` with a row per size; yields the size before each piece of work."""
    ready: list[tuple[Exercise, dict[str, Any]]] = []
    for payload_bytes in task.sizes_bytes:
        yield payload_bytes
        one = exercise(operation, payload_bytes, torch.device(task.device), group)
        wrong = num_wrong(one)
        num_calls, is_steady = warmed_up(one)
        row: dict[str, Any] = {
            "operation": operation,
            "payload_bytes": one.payload_bytes,
            "num_wrong": wrong,
            "num_calls": num_calls,
            "is_steady": is_steady,
            "seconds": [],
            "cpu_fraction": [],
        }
        ready.append((one, row))
    for _ in range(task.num_rounds):
        for one, row in order.sample(ready, len(ready)):
            yield row["payload_bytes"]
            took_s, cpu_fraction = batch(one, row["num_calls"])
            row["seconds"].append(took_s)
            row["cpu_fraction"].append(cpu_fraction)
    for one, row in ready:  # what was right once may not be after thousands of calls
        row["num_wrong"] += num_wrong(one)
    found.extend(row for _, row in ready)


def _setting(device: str) -> dict[str, Any]:
    """The backend of the ranks, and how many hosts they were on: a network namespace counts as a host."""
    namespace = Path("/proc/self/ns/net")
    network = namespace.stat().st_ino if namespace.exists() else None
    on_accelerator = device == "cuda"
    mine = (platform.node(), network, torch.cuda.get_device_name() if on_accelerator else None)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    names = {name for _, _, name in everyone}
    return {
        "backend": "nccl" if on_accelerator else "gloo",
        "torch": torch.__version__,
        "num_nodes": len({(host, network) for host, network, _ in everyone}),
        "device_name": names.pop() if len(names) == 1 else None,
    }

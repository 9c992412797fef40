"""One rank of a measurement of communication, once the ranks have met. Needs torch.

Collectives alone, or messages and computing at once and how much they slow each other. A time is that of the
slowest rank, of several calls in a row: their median on a CPU, their mean on a device,
which is not stopped between them. Sizes come in another order each round: no drift looks like an effect.
"""

import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct
from torch import nn

from equipoise.bench.collectives import CollectivesTask
from equipoise.bench.devices import DeviceKind, device, every_rank
from equipoise.bench.sweep import InterferenceTask
from equipoise.bench.training import OptimizerSettings, Trainee, method
from equipoise.errors import first_line
from equipoise.units import FP32_BYTES

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
        return FP32_BYTES * max(int(self.given.numel()), int(self.taken.numel()))


def exercise(
    operation: str, payload_bytes: int, device: torch.device, group: dist.ProcessGroup | None
) -> Exercise:
    """An operation ready to call. payload_bytes: rounded down to whole elements for each rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = max(payload_bytes // FP32_BYTES // size, 1)
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


def measure_collectives(task: CollectivesTask, rank: int, report: Report) -> dict[str, Any] | None:
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
            if any(words in str(err).lower() for words in ("timed out", "timeout", "connection closed")):
                raise
            refused[operation] = first_line(err)[:200]
            continue
        rows.extend(found)
    return so_far if rank == 0 else None


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
    device_name = torch.cuda.get_device_name() if on_accelerator else None
    everyone = every_rank((platform.node(), network, device_name))
    names = {name for _, _, name in everyone}
    return {
        "backend": "nccl" if on_accelerator else "gloo",
        "torch": torch.__version__,
        "num_nodes": len({(host, network) for host, network, _ in everyone}),
        "device_name": names.pop() if len(names) == 1 else None,
    }


# A piece of computing: short against messages, long against the clock.
_SIDE = 96
_NUM_PIECES_WARM = 200
# Weights, momenta and activations that a step touches for each gradient.
_STATE = 3
# Pieces are timed together for so long: what else disturbs a core does so with a message and without.
_LEAST_WINDOW_S, _MOST_WINDOW_S = 0.004, 0.04
# Large messages vary less, and take longer.
_FEW_ROUNDS, _LARGE_BYTES = 5, 2**22
_NUM_WARM, _NUM_TIMED = 4, 11
# Made-up weights: (tensors, side of each), from a handful of values to 32 MiB; the first few in any case.
_FEWEST_MODELS = 3
# Of a made-up batch whose computing is watched: work of matrices, as in training.
_NUM_SAMPLES = 32
_MODELS = ((1, 1), (64, 1), (4, 128), (4, 512), (8, 1024))


def measure_interference(task: InterferenceTask, rank: int) -> dict[str, Any] | None:
    """What rank 0 leaves; None on other ranks."""
    on = device(task.device)
    if task.num_ranks == 1:
        return {"own_work": [row for text in task.methods for row in _method_work(text, task, on)]}
    rows = [_message(operation, size, task, on) for operation in task.operations for size in task.sizes_bytes]
    slowed = [_slowed(num, side, task, rank, on) for num, side in _models(task)]
    return None if rank else {"messages": rows, "slowed": slowed}


def _models(task: InterferenceTask) -> list[tuple[int, int]]:
    """The made-up models no larger than the largest message; the first few in any case."""
    largest_bytes = max(task.sizes_bytes)
    return [
        (num, side)
        for place, (num, side) in enumerate(_MODELS)
        if place < _FEWEST_MODELS or _bytes_of(num, side) <= largest_bytes
    ]


def _bytes_of(num_tensors: int, side: int) -> int:
    return num_tensors * side * side * FP32_BYTES


def _slowed(num_tensors: int, side: int, task: InterferenceTask, rank: int, on: DeviceKind) -> dict[str, Any]:
    """Seconds of a step without a method: while other ranks rest, while they compute, and after a message.

    Means over the ranks, by round. Steps follow a step of the same kind, so that caches hold what they can.
    """
    gradient_bytes = _bytes_of(num_tensors, side)
    run = _step("single", num_tensors, side, on, num_samples=_NUM_SAMPLES)
    whole = torch.zeros(gradient_bytes // FP32_BYTES, device=torch.device(on.name))
    num_rounds = task.num_rounds if gradient_bytes < _LARGE_BYTES else _FEW_ROUNDS
    rounds = []
    for _ in range(_NUM_WARM + num_rounds):
        alone_s = 0.0
        for turn in range(task.num_ranks):
            dist.barrier()
            if turn == rank:
                run()
                alone_s = _seconds(run, on)
        dist.barrier()
        run()
        together_s = _seconds(run, on)
        dist.all_reduce(whole)
        rounds.append((alone_s, together_s, _seconds(run, on)))
    mean = torch.tensor(rounds[_NUM_WARM:], dtype=torch.float64) / task.num_ranks
    dist.all_reduce(mean)
    alone, together, after = mean.T.tolist()
    return {
        "num_tensors": num_tensors,
        "gradient_bytes": gradient_bytes,
        "alone_s": alone,
        "together_s": together,
        "after_s": after,
    }


def _message(operation: str, payload_bytes: int, task: InterferenceTask, on: DeviceKind) -> dict[str, Any]:
    """Seconds of one message, alone and during computing, and what of computing it took; by round."""
    place = torch.device(on.name)
    count = max(1, payload_bytes // FP32_BYTES // task.num_ranks) * task.num_ranks
    whole = torch.zeros(count, device=place)
    part = whole[: count // task.num_ranks].clone()
    step_state = torch.zeros(_STATE * count, device=place)
    start: Mapping[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole, async_op=True),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, async_op=True),
    }
    matrix = torch.rand(_SIDE, _SIDE, device=place)
    for _ in range(_NUM_PIECES_WARM):
        torch.mm(matrix, matrix)
    num_rounds = task.num_rounds if payload_bytes < _LARGE_BYTES else _FEW_ROUNDS
    rounds = [_round(start[operation], matrix, (step_state, whole), on) for _ in range(num_rounds + 1)][1:]
    slowest = torch.tensor(rounds, dtype=torch.float64)
    mean = slowest / task.num_ranks
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(mean)
    alone_s, during_s, _ = slowest.T.tolist()
    return {
        "operation": operation,
        "payload_bytes": count * FP32_BYTES,
        "alone_s": alone_s,
        "overlapped_s": during_s,
        "core_share": mean[:, 2].tolist(),
    }


def _round(
    start: Callable[[], Any], matrix: torch.Tensor, touched: Sequence[torch.Tensor], on: DeviceKind
) -> tuple[float, float, float]:
    """Seconds alone, seconds during computing, share of the core that it took meanwhile.

    touched: what computing has just read and written, so that caches hold it and not what messages need.
    """
    dist.barrier()
    _piece_s(matrix, on, _LEAST_WINDOW_S)
    for each in touched:
        each.mul_(1.0)
    on.synchronise()
    begun = perf_counter()
    start().wait()
    on.synchronise()
    alone_s = perf_counter() - begun
    dist.barrier()
    piece_s = _piece_s(matrix, on, min(max(alone_s, _LEAST_WINDOW_S), _MOST_WINDOW_S))
    dist.barrier()
    begun, num_pieces = perf_counter(), 0
    message = start()
    while not message.is_completed():
        torch.mm(matrix, matrix)
        on.synchronise()
        num_pieces += 1
    during_s = perf_counter() - begun
    message.wait()
    return alone_s, during_s, max(0.0, 1.0 - num_pieces * piece_s / during_s)


def _piece_s(matrix: torch.Tensor, on: DeviceKind, window_s: float) -> float:
    """Seconds of a piece of computing, over pieces that fill a window."""
    begun, num_pieces = perf_counter(), 0
    while perf_counter() - begun < window_s:
        torch.mm(matrix, matrix)
        on.synchronise()
        num_pieces += 1
    return (perf_counter() - begun) / num_pieces


def _method_work(text: str, task: InterferenceTask, on: DeviceKind) -> list[dict[str, Any]]:
    """What a method's step takes above one without a method, on a rank that exchanges with none."""
    rows: list[dict[str, Any]] = []
    for num_tensors, side in _models(task):
        plain = _step("single", num_tensors, side, on)
        other = _step(text, num_tensors, side, on)
        differences = []
        for number in range(_NUM_WARM + _NUM_TIMED):
            seconds = [_seconds(run, on) for run in (plain, other)]
            if number >= _NUM_WARM:
                differences.append(seconds[1] - seconds[0])
        rows.append(
            {
                "method": text,
                "num_tensors": num_tensors,
                "gradient_bytes": _bytes_of(num_tensors, side),
                "seconds": differences,
            }
        )
    return rows


def _step(
    text: str, num_tensors: int, side: int, on: DeviceKind, *, num_samples: int = 1
) -> Callable[[], Any]:
    torch.manual_seed(0)
    place = torch.device(on.name)
    batch = (torch.rand(num_samples, side, device=place),)
    layers = [nn.Linear(side, side, bias=False) for _ in range(num_tensors)]
    subject = Trainee(
        model=nn.Sequential(*layers).to(place),
        batches=iter(()),
        loss=lambda model, given: model(*given).sum(),
        num_samples=lambda _batch: 1,
        settings=OptimizerSettings(learning_rate=1e-6),
    )
    found, argument = method(text)
    step = found.begin(subject, world_size=1, argument=argument)
    return lambda: step.run(batch)


def _seconds(run: Callable[[], Any], on: DeviceKind) -> float:
    begun = perf_counter()
    run()
    on.synchronise()
    return perf_counter() - begun

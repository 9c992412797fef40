"""One rank of a measurement of communication, after rendezvous. Needs torch.

Measures collectives alone, or how messages and computation slow each other. A time is the slowest rank's time
per call over several consecutive calls: the median on a CPU, the mean on a device, which is not synchronised
between calls. The order of sizes is random in each round, so that a drift does not look like an effect.
"""

import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise, product
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

# The target duration of a batch of calls. A sleeping core may take 4 ms to wake, which few calls then
# include.
LEAST_BATCH_S = 0.05
MOST_CALLS = 100
# Warm-up ends when consecutive batches differ by no more than this fraction, or after MOST_WARM_UPS batches.
STEADY_FRACTION = 0.1
MOST_WARM_UPS = 10
# The period of test patterns in elements. Their sums over 1024 ranks are exact in float32.
_PATTERN = 251

Report = Callable[[Mapping[str, Any]], None]


class Exercise(Struct, frozen=True, kw_only=True):
    """One operation on buffers of one size: the call, its input and output, and their test values.

    pattern: the values that rank r puts into `given`. expected: this rank's values of `taken` after a call.
    group: a process group with a short timeout; None for the default group.
    """

    call: Callable[[], None]
    given: torch.Tensor
    taken: torch.Tensor
    pattern: Callable[[int], torch.Tensor]
    expected: Callable[[], torch.Tensor]
    group: dist.ProcessGroup | None = None

    @property
    def payload_bytes(self) -> int:
        """The full payload on one rank: the larger of its input and output."""
        return FP32_BYTES * max(int(self.given.numel()), int(self.taken.numel()))


def exercise(
    operation: str, payload_bytes: int, device: torch.device, group: dist.ProcessGroup | None
) -> Exercise:
    """Return an operation ready to call. payload_bytes: rounded down to whole elements per rank."""
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
    """Return the number of wrong elements after one call, on the worst rank; then zero the input buffer."""
    one.taken.zero_()
    one.given.copy_(one.pattern(dist.get_rank()))
    one.call()
    wrong = int((one.taken != one.expected()).sum())
    one.given.zero_()  # repeated sums of zeros cannot overflow
    return int(_over_ranks(one.group, float(wrong))[0])


def _over_ranks(group: dist.ProcessGroup | None, to_max: float, to_mean: float = 0.0) -> tuple[float, float]:
    """Return the maximum of `to_max` and the mean of `to_mean` over all ranks."""
    # CPU tensors are reduced over gloo, which is available alongside NCCL.
    largest = torch.tensor([to_max], dtype=torch.float64)
    total = torch.tensor([to_mean], dtype=torch.float64)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    dist.all_reduce(total, group=group)
    return float(largest), float(total) / dist.get_world_size()


def batch(one: Exercise, num_calls: int) -> tuple[float, float]:
    """Run consecutive calls; return seconds per call on the slowest rank, and the cores used per rank.

    Cores used are the CPU time of the process divided by wall-clock time, as a mean over ranks. They are not
    available to computation meanwhile.
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
    # On a device, calls return long before the work is done.
    calls_s = [] if one.given.is_cuda else [end - start for start, end in pairwise((began, *ends))]
    call_s = median(calls_s) if calls_s else took_s / num_calls
    return _over_ranks(one.group, call_s, worked_s / took_s)


def warmed_up(one: Exercise) -> tuple[int, bool]:
    """Warm up; return the calls per batch, and whether two consecutive batches took equally long."""
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
    """Return the result on rank 0: rows of every operation, refused operations, and backend facts.

    report: called by rank 0 before each piece of work, with the result so far and the next piece.
    """
    # A hanging call ends after this limit; the timeout of the default group is half an hour.
    group = dist.new_group(timeout=timedelta(seconds=task.limit_s))
    rows, refused = list[dict[str, Any]](), dict[str, str]()
    so_far = {"rows": rows, "refused": refused, **_backend_facts(task.device)}
    num_pieces = len(task.sizes_bytes) * (1 + task.num_rounds)
    order = random.Random(task.seed)  # noqa: S311 - for ordering, identical on every rank
    for number, operation in enumerate(order.sample(task.operations, len(task.operations))):
        found: list[dict[str, Any]] = []
        try:
            for piece, payload_bytes in enumerate(_measure_operation(operation, task, group, order, found)):
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


def _measure_operation(
    operation: str,
    task: CollectivesTask,
    group: dist.ProcessGroup | None,
    order: random.Random,
    found: list[dict[str, Any]],
) -> Iterator[int]:
    """Fill `found` with one row per size; yield the size before each piece of work."""
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
    for one, row in ready:  # a call that was correct at first may not be after thousands of calls
        row["num_wrong"] += num_wrong(one)
    found.extend(row for _, row in ready)


def _backend_facts(device: str) -> dict[str, Any]:
    """Return the backend of the ranks and their number of hosts; each network namespace counts as a host."""
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


# The side of the square matrices of one product: short compared with messages, long compared with the clock.
_SIDE = 96
_NUM_WARM_PRODUCTS = 200
# Weights, momenta and activations that a step touches for each gradient.
_STATE = 3
# Products are timed together for this long, so that other disturbances of a core occur with and without a
# message.
_LEAST_WINDOW_S, _MOST_WINDOW_S = 0.004, 0.04
# Large messages vary less and take longer, so they are timed in fewer rounds.
_FEW_ROUNDS, _LARGE_BYTES = 5, 2**22
_NUM_WARM, _NUM_TIMED = 4, 11
# The batch of the synthetic models whose slowdown is measured.
_NUM_SAMPLES = 32
# Synthetic models as (tensors, side of each), from one value to 32 MiB; the first few are always measured.
_FEWEST_MODELS = 3
_MODELS = ((1, 1), (64, 1), (4, 128), (4, 512), (8, 1024))


def measure_interference(task: InterferenceTask, rank: int) -> dict[str, Any] | None:
    """Return the result on rank 0; None on other ranks."""
    on = device(task.device)
    if task.num_ranks == 1:
        return {"own_work": [row for text in task.methods for row in _method_work(text, task, on)]}
    wanted = product(task.operations, task.sizes_bytes)
    rows = [_measure_message(operation, size, task, on) for operation, size in wanted]
    slowed = [_measure_slowdown(num, side, task, rank, on) for num, side in _models(task)]
    return None if rank else {"messages": rows, "slowed": slowed}


def _models(task: InterferenceTask) -> list[tuple[int, int]]:
    """Return the synthetic models no larger than the largest message, and always the first few."""
    largest_bytes = max(task.sizes_bytes)
    return [
        (num, side)
        for place, (num, side) in enumerate(_MODELS)
        if place < _FEWEST_MODELS or _bytes_of(num, side) <= largest_bytes
    ]


def _bytes_of(num_tensors: int, side: int) -> int:
    return num_tensors * side * side * FP32_BYTES


def _measure_slowdown(
    num_tensors: int, side: int, task: InterferenceTask, rank: int, on: DeviceKind
) -> dict[str, Any]:
    """Return seconds of a single-rank step: while other ranks idle, while they compute, and after a message.

    Means over ranks, by round. An untimed step of the same kind runs first, to warm the caches.
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


def _measure_message(
    operation: str, payload_bytes: int, task: InterferenceTask, on: DeviceKind
) -> dict[str, Any]:
    """Return seconds of one message alone and during computation, and its share of the core; by round."""
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
    for _ in range(_NUM_WARM_PRODUCTS):
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
    """Return a message's seconds alone, its seconds during computation, and its share of the core then.

    touched: tensors to read and write first, so that caches hold them instead of the message's data.
    """
    dist.barrier()
    _product_s(matrix, on, _LEAST_WINDOW_S)
    for each in touched:
        each.mul_(1.0)
    on.synchronise()
    begun = perf_counter()
    start().wait()
    on.synchronise()
    alone_s = perf_counter() - begun
    dist.barrier()
    product_s = _product_s(matrix, on, min(max(alone_s, _LEAST_WINDOW_S), _MOST_WINDOW_S))
    dist.barrier()
    begun, num_products = perf_counter(), 0
    message = start()
    while not message.is_completed():
        torch.mm(matrix, matrix)
        on.synchronise()
        num_products += 1
    during_s = perf_counter() - begun
    message.wait()
    return alone_s, during_s, max(0.0, 1.0 - num_products * product_s / during_s)


def _product_s(matrix: torch.Tensor, on: DeviceKind, window_s: float) -> float:
    """Return the mean seconds of a matrix product, over products that fill a window."""
    begun, num_products = perf_counter(), 0
    while perf_counter() - begun < window_s:
        torch.mm(matrix, matrix)
        on.synchronise()
        num_products += 1
    return (perf_counter() - begun) / num_products


def _method_work(text: str, task: InterferenceTask, on: DeviceKind) -> list[dict[str, Any]]:
    """Return the extra seconds of a method's step over a plain step, on a rank that exchanges with none."""
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

"""One rank of a measurement of interference, once the ranks have met. Needs torch."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from equipoise.bench.collectives import WIDTH_BYTES
from equipoise.bench.devices import DeviceKind, device
from equipoise.bench.methods import method
from equipoise.bench.sweep import InterferenceTask
from equipoise.bench.zoo import OptimizerSettings, Trainee

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


def measure(task: InterferenceTask, rank: int) -> dict[str, Any] | None:
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
    return num_tensors * side * side * WIDTH_BYTES


def _slowed(num_tensors: int, side: int, task: InterferenceTask, rank: int, on: DeviceKind) -> dict[str, Any]:
    """Seconds of a step without a method: while other ranks rest, while they compute, and after a message.

    Means over the ranks, by round. Steps follow a step of the same kind, so that caches hold what they can.
    """
    gradient_bytes = _bytes_of(num_tensors, side)
    run = _step("single", num_tensors, side, on, num_samples=_NUM_SAMPLES)
    whole = torch.zeros(gradient_bytes // WIDTH_BYTES, device=torch.device(on.name))
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
    count = max(1, payload_bytes // WIDTH_BYTES // task.num_ranks) * task.num_ranks
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
        "payload_bytes": count * WIDTH_BYTES,
        "alone_s": alone_s,
        "beside_s": during_s,
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
    """One step of a method on made-up weights."""
    torch.manual_seed(0)
    place = torch.device(on.name)
    batch = (torch.rand(num_samples, side, device=place),)
    layers = [nn.Linear(side, side, bias=False) for _ in range(num_tensors)]
    subject = Trainee(
        model=nn.Sequential(*layers).to(place),
        batches=iter(()),
        loss=lambda model, given: model(*given).sum(),
        num_samples=lambda _batch: 1,
    )
    found, argument = method(text)
    settings = OptimizerSettings(learning_rate=1e-6)
    step = found.begin(subject, settings, world_size=1, argument=argument)
    return lambda: step.run(batch)


def _seconds(run: Callable[[], Any], on: DeviceKind) -> float:
    begun = perf_counter()
    run()
    on.synchronise()
    return perf_counter() - begun

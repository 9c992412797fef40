"""How right counts of torch models are, against what the same step does on this CPU.

    python benchmarks/torch_model.py

Kept: bytes that a real forward pass saves for its backward pass, by torch's hooks. Peak: most bytes that
torch's allocator had handed out at once during a step, by its profiler. Both as measured over counted.
Time: median of repeated steps on one thread; the FLOP rate says only whether time follows FLOP across sizes.
Exits with 1 where a count is off by more than its limit. Needs torch.
"""

import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
from msgspec import Struct
from torch import nn
from torch.profiler import ProfilerActivity, profile

from equipoise.spec.torch_model import Counted, count
from equipoise.units import format_si

NUM_STEPS = 5
# Kept bytes are a matter of shapes. A convolution on a CPU takes room to rearrange its input, which no shape
# tells: the first case's peak was 1.32 of the count.
KEPT_LIMIT, PEAK_LIMIT = 0.01, 0.40


class Case(Struct, frozen=True, kw_only=True):
    """A model and a batch for it; of a family, each is larger than the one before."""

    family: str
    size: str
    build: Callable[[], nn.Module]
    batch: Callable[[], torch.Tensor]


def convolutions(width: int) -> nn.Module:
    """A small network for images."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, 2 * width, 3, 2, 1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(inplace=True),
        nn.Conv2d(2 * width, 4 * width, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 100),
    )


def encoder(hidden: int) -> nn.Module:
    """A small transformer; without dropout, of which a CPU keeps more than an accelerator."""
    layer = nn.TransformerEncoderLayer(hidden, 8, 4 * hidden, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


def perceptron(hidden: int) -> nn.Module:
    """Four wide layers."""
    layers = [each for _ in range(4) for each in (nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden))]
    return nn.Sequential(*layers)


CASES = (
    *(
        Case(
            family="convolutions",
            size=str(w),
            build=lambda w=w: convolutions(w),
            batch=lambda: torch.randn(8, 3, 64, 64),
        )
        for w in (32, 64, 128)
    ),
    *(
        Case(
            family="encoder",
            size=str(h),
            build=lambda h=h: encoder(h),
            batch=lambda h=h: torch.randn(8, 64, h),
        )
        for h in (128, 256, 512)
    ),
    *(
        Case(
            family="perceptron",
            size=str(h),
            build=lambda h=h: perceptron(h),
            batch=lambda h=h: torch.randn(256, h),
        )
        for h in (256, 512, 1024)
    ),
)


def kept_bytes(model: nn.Module, batch: torch.Tensor) -> int:
    """Bytes of the storages that a real forward pass saves, weights and buffers not counted."""
    held = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in held:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def peak_bytes(model: nn.Module, batch: torch.Tensor) -> int:
    """Most bytes alive at once in a step, by the allocations that the profiler recorded."""
    model.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step(model, batch)
    changes: list[tuple[int, int]] = []
    waiting = list(recorded.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.typed[0].name == "Allocation":
            changes.append((event.start_time_ns, event.typed[1].alloc_size))
    alive_bytes = most_bytes = 0
    for _, change_bytes in sorted(changes, key=lambda change: change[0]):
        alive_bytes += change_bytes
        most_bytes = max(most_bytes, alive_bytes)
    return most_bytes


def step(model: nn.Module, batch: torch.Tensor) -> None:
    """One forward and backward pass, the output's gradient all ones."""
    out = model(batch)
    out.backward(torch.ones_like(out))


def step_s(model: nn.Module, batch: torch.Tensor) -> float:
    """Median seconds of a step after two to warm up."""
    seconds = []
    for _ in range(2 + NUM_STEPS):
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        step(model, batch)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def show(case: Case, counted: Counted, count_s: float) -> bool:
    """Print one comparison; whether the bytes are within their limits."""
    model, batch = case.build(), case.batch()
    kept = kept_bytes(model, batch) / counted.activation_bytes
    peak = peak_bytes(model, batch) / counted.peak_bytes
    seconds = step_s(model, batch)
    flop = counted.forward_flop + counted.backward_flop
    print(
        f"  {case.family:13}{case.size:>5}  {counted.params:>10,}  {format_si(flop, 'FLOP'):>11}  "
        f"{format_si(counted.activation_bytes, 'B'):>8} {kept:6.3f}  "
        f"{format_si(counted.peak_bytes, 'B'):>8} {peak:6.3f}  "
        f"{count_s:6.2f} s {1e3 * seconds:8.2f} ms  {format_si(flop / seconds, 'FLOP/s'):>13}"
    )
    return abs(kept - 1) <= KEPT_LIMIT and abs(peak - 1) <= PEAK_LIMIT


def main() -> None:
    """Print every comparison."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    count(nn.Linear(2, 2), torch.randn(2, 2))  # what torch loads at the first count is not the count
    heads = (
        ("params", 10),
        ("FLOP", 11),
        ("kept", 8),
        ("ratio", 6),
        ("peak", 8),
        ("ratio", 6),
        ("count", 7),
        ("step", 11),
    )
    print(" " * 20, *(f"{head:>{width}} " for head, width in heads), f"{'rate':>14}")
    are_right = []
    for case in CASES:
        start = time.perf_counter()
        counted = count(case.build, case.batch())
        are_right.append(show(case, counted, time.perf_counter() - start))
    if not all(are_right):
        sys.exit(f"kept or peak bytes are off by more than {KEPT_LIMIT:.0%} or {PEAK_LIMIT:.0%}")


if __name__ == "__main__":
    main()

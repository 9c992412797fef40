"""What `equipoise.watch` costs a training loop: watched against bare steps, in interleaved pairs.

    python benchmarks/watching.py [--workloads mlp,small_cnn] [--ranks 1,2] [--pairs 200]

As benchmarks/instrumentation.py, of which it is a variant: the same blocks, order and interval, another arm.
Hooks are put on before a watched block and taken off after it, outside of its time; what a watch does once
(its begin, the profiled steps, its end) is not in it. Run it on a quiet machine: it takes one core a rank.
"""

import argparse
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import instrumentation as pairs

import equipoise
from equipoise.bench.cell import Cell
from equipoise.bench.devices import device

# As many as a watch takes.
NUM_STEPS = 100_000


def main() -> None:
    """Run every workload on every number of ranks; print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workloads", default="mlp,small_cnn")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.meeting:
        one_rank(given.workloads, given.meeting, given.pairs)
        return
    columns = f"{'workload':14}{'ranks':>6}{'step ms':>10}{'cost us':>9}   {'cost, 95 %':27}bare against bare"
    print(columns, flush=True)
    for num_ranks in map(int, given.ranks.split(",")):
        for workload in given.workloads.split(","):
            pairs.started(workload, num_ranks, given.pairs, script=__file__)


def one_rank(workload: str, meeting: str, num_pairs: int) -> None:
    """Time blocks on this rank; rank 0 prints what watching them costs."""
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    import torch  # noqa: PLC0415 - after the cores are set
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    from equipoise.bench.timed_steps import begun  # noqa: PLC0415 - likewise

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(meeting).as_uri(), rank=rank, world_size=num_ranks)
    cell = Cell(
        workload=workload,
        method="single" if num_ranks == 1 else "ddp",
        num_ranks=num_ranks,
        batch_samples=pairs.BATCH_SAMPLES * num_ranks,
    )
    on = device("cpu")
    start = begun(cell, rank, on, on.bind(rank))
    subject, step = start.subject, start.step

    def run(batches: Iterator[Any], num_steps: int) -> None:
        for batch in islice(batches, num_steps):
            loss = subject.loss(step.module, batch)
            loss.backward()
            step.optimizer.step()
            step.optimizer.zero_grad(set_to_none=True)

    with equipoise.watch(step.module, num_steps=NUM_STEPS) as seen:
        watched = iter(seen.batches(subject.batches))
        run(watched, pairs.NUM_WARM_UP)
        taken_off(seen)
        arms = {
            "bare": (nullcontext, subject.batches),
            "again": (nullcontext, subject.batches),
            "instrumented": (lambda: put_on(seen, step.module), watched),
        }

        def block_s(arm: str, num_steps: int) -> float:
            around, batches = arms[arm]
            with around():
                dist.barrier()
                start = perf_counter()
                run(batches, num_steps)
                taken = torch.tensor([perf_counter() - start])
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            return float(taken) / num_steps

        found = in_pairs(block_s, sorted(arms), num_pairs)
    if rank == 0:
        pairs.told(workload, num_ranks, found)
    dist.destroy_process_group()


def in_pairs(block_s: Callable[[str, int], float], arms: list[str], num_pairs: int) -> dict[str, list[float]]:
    """Seconds of a step of each arm, in so many rounds of an order drawn anew."""
    num_steps = max(1, round(pairs.BLOCK_S / median(block_s("bare", 3) for _ in range(5))))
    taken: dict[str, list[float]] = {name: [] for name in arms}
    order = random.Random(1)  # noqa: S311 - an order, no secret
    for _ in range(num_pairs):
        for name in order.sample(arms, len(arms)):
            taken[name].append(block_s(name, num_steps))
    return taken


@contextmanager
def put_on(seen: Any, module: Any) -> Iterator[None]:  # noqa: ANN401 - a Watch, which is not made for this
    """The hooks of a watch that has settled, for a block."""
    from equipoise.bench.watching.hooks import attached  # noqa: PLC0415 - after the cores are set

    seen._hooks.enter_context(attached(seen._loop, [module]))  # noqa: SLF001 - likewise
    if seen._gradients:  # noqa: SLF001 - likewise
        seen._gradients.settle()  # noqa: SLF001 - likewise
    try:
        yield
    finally:
        taken_off(seen)


def taken_off(seen: Any) -> None:  # noqa: ANN401 - likewise
    """No hook of it is left."""
    seen._hooks.close()  # noqa: SLF001 - likewise
    if seen._gradients:  # noqa: SLF001 - likewise
        seen._gradients.removed()  # noqa: SLF001 - likewise


if __name__ == "__main__":
    main()

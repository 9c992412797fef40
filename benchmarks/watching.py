"""What `equipoise.watch` costs a training loop: watched against bare steps, in interleaved pairs.

    python benchmarks/watching.py [--workloads mlp@64,small_cnn@16] [--ranks 1,2] [--pairs 400]

As benchmarks/instrumentation.py, of which it is a variant: the same order and interval, another arm.
Hooks are put on before a watched block and taken off after it, outside of its time; what a watch does once
(its begin, the profiled steps, its end) is not in it. Run it on a quiet machine: it takes one core a rank.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from statistics import median
from time import perf_counter, process_time
from typing import Any

import instrumentation as pairs

import equipoise

# A block holds several of the steps that are recorded among those that are only counted.
BLOCK_S = 0.2
# As many as a watch takes.
NUM_STEPS = 100_000
# After so many it has chosen what share of the steps it records.
NUM_SETTLED = 70


def main() -> None:
    """Run every workload on every number of ranks; print one line each."""
    pairs.asked(__file__, __doc__, one_rank)


def one_rank(rank: pairs.Rank, num_pairs: int) -> None:
    """Time blocks on this rank; rank 0 prints what watching them costs."""
    import torch  # noqa: PLC0415 - after the cores are set
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    subject, step = rank.subject, rank.step
    now_s = process_time if rank.num_ranks == 1 else perf_counter

    def run(batches: Iterator[Any], num_steps: int) -> None:
        for batch in islice(batches, num_steps):
            loss = subject.loss(step.module, batch)
            loss.backward()
            step.optimizer.step()
            step.optimizer.zero_grad(set_to_none=True)

    with equipoise.watch(step.module, num_steps=NUM_STEPS) as seen:
        watched = iter(seen.batches(subject.batches))
        run(watched, NUM_SETTLED)
        taken_off(seen)
        arms = {
            "bare": (nullcontext, subject.batches),
            "again": (nullcontext, subject.batches),
            "instrumented": (lambda: put_on(seen), watched),
        }

        def block_s(arm: str, num_steps: int) -> float:
            around, batches = arms[arm]
            with around():
                dist.barrier()
                start_s = now_s()
                run(batches, num_steps)
                taken = torch.tensor([now_s() - start_s])
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            return float(taken) / num_steps

        found = in_pairs(block_s, sorted(arms), num_pairs)
    if rank.number == 0:
        pairs.told(rank, found)


def in_pairs(block_s: Callable[[str, int], float], arms: list[str], num_pairs: int) -> dict[str, list[float]]:
    """Seconds of a step of each arm, in so many rounds of an order drawn anew."""
    num_steps = max(1, round(BLOCK_S / median(block_s("bare", 3) for _ in range(5))))
    taken: dict[str, list[float]] = {name: [] for name in arms}
    order = random.Random(1)  # noqa: S311 - an order, no secret
    for _ in range(num_pairs):
        for name in order.sample(arms, len(arms)):
            taken[name].append(block_s(name, num_steps))
    return taken


@contextmanager
def put_on(seen: Any) -> Iterator[None]:  # noqa: ANN401 - a Watch, which is not made for this
    """The hooks of a watch that has settled, for a block."""
    from equipoise.bench.watching.hooks import updates_seen  # noqa: PLC0415 - after the cores are set

    seen._hooks.enter_context(updates_seen(seen.loop))  # noqa: SLF001 - likewise
    if seen._gradients:  # noqa: SLF001 - likewise
        seen._gradients.settle()  # noqa: SLF001 - likewise
    take_up = seen._count_steps if seen.loop.is_counting else seen._record_steps  # noqa: SLF001 - likewise
    take_up()
    try:
        yield
    finally:
        taken_off(seen)


def taken_off(seen: Any) -> None:  # noqa: ANN401 - likewise
    """No hook of it is left."""
    seen._marks.close()  # noqa: SLF001 - likewise
    seen._hooks.close()  # noqa: SLF001 - likewise
    if seen._gradients:  # noqa: SLF001 - likewise
        seen._gradients.release()  # noqa: SLF001 - likewise


if __name__ == "__main__":
    main()

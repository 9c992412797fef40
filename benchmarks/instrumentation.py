"""What timing a step by phase costs: instrumented against bare steps of training, in interleaved pairs.

    python benchmarks/instrumentation.py [--workloads mlp@64,small_cnn@16] [--ranks 1,2] [--pairs 400]

A workload is named with the samples of a rank's batch.

The bare arm is the loop that anybody writes: next batch, loss, backward, optimizer step, zero_grad; no clock,
no hook, no mark. Both arms train the same model in the same processes, in blocks of a few steps whose order
is drawn anew for each round; a block begins and ends at a barrier, outside of its time. The bare arm runs
twice a round. The cost is the median over rounds of log(instrumented / geometric mean of both bare), with a
bootstrap interval of 95 %; bare against bare says what such a difference is worth. One rank waits for nobody:
its time is that of its processor, which leaves out the turns of other programs. Two ranks are timed by the
wall clock, the slower of both; run them on a quiet machine.
"""

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from types import FunctionType
from typing import Any

import numpy as np
from msgspec import Struct

from equipoise.bench.devices import DeviceKind, device
from equipoise.bench.training import Trainee
from equipoise.bench.trial import Trial
from equipoise.units import MICROSECOND_S

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))

from emulated import prompt_wakeups

BATCH_SAMPLES = 64
# A block takes about this long, or one step: what else the machine does then falls on few blocks of many.
BLOCK_S = 0.01
NUM_WARM_UP = 30
# As many as a run times for phases to be marked as seldom as short steps want it.
NUM_STEPS = 400
NUM_RESAMPLES = 2000
TARGET = 0.01


def main() -> None:
    """Run every workload on every number of ranks; print one line each."""
    asked(__file__, __doc__, one_rank)


def asked(script: str, told_of: str | None, one_rank: Callable[["Rank", int], None]) -> None:
    """Do what the options say: time each workload on each number of ranks, or be one rank of one of them.

    script, told_of: what a rank is started with, and its account of itself. one_rank: of a rank that has
    joined and the number of pairs.
    """
    parser = argparse.ArgumentParser(description=told_of, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workloads", default="mlp@64,small_cnn@16")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.meeting:
        with joined(given.workloads, given.meeting) as rank:
            one_rank(rank, given.pairs)
        return
    columns = "   cost, 95 %                 bare against bare"
    print(f"{'workload':14}{'ranks':>6}{'step ms':>10}{'cost us':>9}{columns}", flush=True)
    for num_ranks in map(int, given.ranks.split(",")):
        for workload in given.workloads.split(","):
            started(workload, num_ranks, given.pairs, script=script)


def started(workload: str, num_ranks: int, num_pairs: int, *, script: str = __file__) -> None:
    """Run one workload on so many ranks; rank 0 prints."""
    cores = sorted(os.sched_getaffinity(0))[:num_ranks] if num_ranks > 1 else ()
    with tempfile.TemporaryDirectory() as folder, prompt_wakeups(cores):
        command = (sys.executable, script, "--workloads", workload, "--pairs", str(num_pairs))
        ranks = [
            subprocess.Popen(
                (*command, "--meeting", f"{folder}/meeting"),
                env=os.environ
                | {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(num_ranks),
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                },
            )
            for rank in range(num_ranks)
        ]
        exit_codes = [process.wait() for process in ranks]
        if any(exit_codes):
            sys.exit(1)


class Rank(Struct, frozen=True, kw_only=True):
    """A rank that has joined: what it trains, on what, and how."""

    number: int
    num_ranks: int
    workload: str
    device: DeviceKind
    subject: Trainee
    step: Any  # a TrainingStep, which imports torch


@contextmanager
def joined(workload: str, meeting: str) -> Iterator[Rank]:
    """This process as a rank of its workload, on a core of its own."""
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    import torch  # noqa: PLC0415 - after the cores are set
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    from equipoise.bench.trial_rank import prepared_training  # noqa: PLC0415 - likewise

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(meeting).as_uri(), rank=rank, world_size=num_ranks)
    name, _, batch = workload.partition("@")
    trial = Trial(
        workload=name,
        method="single" if num_ranks == 1 else "ddp",
        num_ranks=num_ranks,
        batch_samples=int(batch or BATCH_SAMPLES) * num_ranks,
    )
    on = device("cpu")
    start = prepared_training(trial, rank, on, on.bind(rank))
    yield Rank(
        number=rank,
        num_ranks=num_ranks,
        workload=workload,
        device=on,
        subject=start.subject,
        step=start.step,
    )
    dist.destroy_process_group()


def one_rank(rank: Rank, num_pairs: int) -> None:
    """Time pairs of blocks on this rank; rank 0 prints what they cost."""
    import torch  # noqa: PLC0415 - loaded by now
    import torch.distributed as dist  # noqa: PLC0415 - likewise

    from equipoise.bench.stopwatch import Stopwatch, marked_every  # noqa: PLC0415 - likewise

    subject, step, num_ranks = rank.subject, rank.step, rank.num_ranks
    watch = Stopwatch(step, subject, rank.device, num_ranks=num_ranks)
    watch.run(NUM_WARM_UP)
    module, optimizer, batches, loss_of = step.module, step.optimizer, subject.batches, subject.loss

    def bare(num_steps: int) -> None:
        for _ in range(num_steps):
            loss = loss_of(module, next(batches))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def instrumented(num_steps: int) -> None:
        watch.run(num_steps, every=every)

    every = 1
    now = process_time if num_ranks == 1 else perf_counter

    def block_s(run: Callable[[int], object], num_steps: int) -> float:
        (watch.settle if run == instrumented else watch.release)()
        dist.barrier()
        run(1)  # the first step of a block finds another arm's code in the caches
        start = now()
        run(num_steps)
        taken = torch.tensor([now() - start], dtype=torch.float64)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        return float(taken) / num_steps

    step_s = median(block_s(bare, 3) for _ in range(5))
    every = marked_every(step_s, NUM_STEPS, 1)
    # Whole groups of a marked step and those between, and about a block's time.
    num_steps = every * max(1, round(BLOCK_S / step_s / every))
    # With code of its own, as the instrumented arm has: an arm that runs twice as often would be warmer.
    again = FunctionType(bare.__code__.replace(), bare.__globals__, "again", None, bare.__closure__)
    arms = {"bare": bare, "again": again, "instrumented": instrumented}
    order, seen = random.Random(1), {name: [] for name in arms}  # noqa: S311 - an order, no secret
    for _ in range(num_pairs):
        for name in order.sample(sorted(arms), len(arms)):
            seen[name].append(block_s(arms[name], num_steps))
    if rank.number == 0:
        told(rank, seen)


def told(rank: Rank, seen: dict[str, list[float]]) -> None:
    """Print one line."""
    both_bare = np.sqrt(np.multiply(seen["bare"], seen["again"]))
    bare = median(both_bare)
    cost = median(np.subtract(seen["instrumented"], both_bare)) / MICROSECOND_S
    low, middle, high = interval(seen["instrumented"], both_bare)
    verdict = "" if high <= TARGET else "  not shown" if low <= TARGET else "  over 1 %"
    print(
        f"{rank.workload:14}{rank.num_ranks:6}{1000 * bare:10.3f}{cost:9.1f}   "
        f"{percent(middle)} ({percent(low)} to {percent(high)})   "
        "{1} ({0} to {2})".format(*map(percent, interval(seen["again"], seen["bare"])))
        + verdict,
        flush=True,
    )


def interval(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Low end, median and high end of the fraction by which one takes longer, from pairs."""
    logs = np.log(one) - np.log(other)
    drawn = np.random.default_rng(0).choice(logs, (NUM_RESAMPLES, len(logs)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return math.expm1(low), math.expm1(np.median(logs)), math.expm1(high)


def percent(fraction: float) -> str:
    """A signed percentage."""
    return f"{100 * fraction:+.2f} %"


if __name__ == "__main__":
    main()

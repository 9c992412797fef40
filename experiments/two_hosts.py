"""One device against two emulated hosts of one core each: steps by model, batch and rate of the link.

    python experiments/two_hosts.py [--out DIR] [--quick] [--minutes M] [--parts links,...]

Needs root, ip, tc and two idle cores. All of it takes about half an hour, --quick five minutes;
--minutes stops earlier, between two trials, and the same command goes on from there.
docs/experiments/0011-two-hosts.md tells what was learnt; two_hosts_page.py writes its tables.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import Any

from emulated import emulated, hosts, prompt_wakeups
from msgspec import Struct, to_builtins
from quiet import in_quiet

from equipoise.bench.collectives import CollectivesTask, timed_document
from equipoise.bench.environment import conditions
from equipoise.bench.summary import timed_run
from equipoise.bench.sweep import InterferenceTask, in_random_order, interference
from equipoise.bench.trial import FAILED, SUCCESS, FinishedTrial, Store, Trial, write_whole
from equipoise.errors import UsageError

LINK_BIT_PER_S = {"1gbit": 1e9, "10gbit": 1e10}
RATES = tuple(LINK_BIT_PER_S)
PARTS = ("family", "held_out", "fresh", "images", "zoo")
NUM_REPETITIONS = 5
LIMIT_S = 300.0
# What other programs took of one core meanwhile, in the result of a trial.
OTHERS = "others_core_fraction"
_RANK = str(Path(__file__).with_name("two_hosts_rank.py"))

# Of growing.py: 0.05, 0.26, 1.0, 2.6, 6.9 and 27 M parameters; the second and fifth are the field report's.
WIDTHS = (140, 341, 688, 1122, 1839, 3656)
TABLE_BATCH = 128
# Enough work a parameter for 1 Gbit/s to be outweighed somewhere.
LARGE_BATCHES, LARGE_BATCH_WIDTHS = (1024, 2048), (72, 140, 341, 688)
SWEPT_WIDTHS, SWEPT_BATCHES = (341, 1839), (8, 32, 128)
# Chosen before any of them was measured, between and beyond what is above.
HELD_OUT = ((210, 32), (210, 256), (480, 64), (480, 512), (890, 32), (890, 256), (1560, 64), (1560, 192))
# Chosen when the law had been settled, the held-out pairs having been looked at: between those and others.
FRESH = ((175, 48), (175, 384), (300, 96), (400, 768), (640, 24), (640, 128), (1050, 96), (1300, 160))
HELD_OUT_PARTS = {"held_out": HELD_OUT, "fresh": FRESH}
# Of the family whose work grows as the square of its parameters: where it crosses over is well determined.
IMAGE_WIDTHS, IMAGE_BATCH = (128, 192, 256, 320, 384, 448, 512), 32
# Name, batch, steps, repetitions: a step of the large ones takes seconds.
ZOO = (("small_cnn", 64, 20, 3), ("mobilenet_v2", 8, 8, 1), ("resnet50", 4, 4, 1))
REPETITIONS_UP_TO = ((1500, NUM_REPETITIONS), (3000, 2))
# Steps of wide ones take so long that few must do; of short ones some wait for a tick of the clock.
MOST_STEPS, FEWEST_STEPS, STEPS_BY_WIDTH = 60, 5, 20_000
# Of a quick run: width x width x batch below this takes little time.
QUICK_WORK = 2e8

# A repetition in which one device was slower than this times the fastest repetition was not alone.
MOST_SLOWED = 1.2

PAYLOADS_BYTES = tuple(2**power for power in range(10, 26))
NUM_STARTS, NUM_ROUNDS = 1, 5


class Asking(Struct, frozen=True, kw_only=True):
    """One workload at one global batch, to be timed on one device at that and at half of it, and on two."""

    workload: str
    batch_samples: int
    num_steps: int
    num_repetitions: int = NUM_REPETITIONS


def num_steps(width: int) -> int:
    """Timed steps of one trial of the family."""
    return max(FEWEST_STEPS, min(MOST_STEPS, STEPS_BY_WIDTH // width))


def num_repetitions(width: int) -> int:
    """Of one trial of the family: fewer where a step takes long."""
    return next((count for widest, count in REPETITIONS_UP_TO if width <= widest), 1)


def askings(part: str, *, is_quick: bool) -> tuple[Asking, ...]:
    """What is asked for in one part; quick leaves out what takes long."""
    pairs: list[tuple[int, int]] = []
    if part == "zoo":
        kept = ZOO[:1] if is_quick else ZOO
        return tuple(
            Asking(workload=name, batch_samples=batch, num_steps=steps, num_repetitions=repetitions)
            for name, batch, steps, repetitions in kept
        )
    if part == "images":
        return tuple(
            Asking(workload=f"growing:image_{width}", batch_samples=IMAGE_BATCH, num_steps=num_steps(width))
            for width in IMAGE_WIDTHS
        )
    if part in HELD_OUT_PARTS:
        pairs = list(HELD_OUT_PARTS[part])
    else:
        pairs = [(width, TABLE_BATCH) for width in WIDTHS]
        pairs += list(product(LARGE_BATCH_WIDTHS, LARGE_BATCHES))
        pairs += [(width, batch) for width in SWEPT_WIDTHS for batch in SWEPT_BATCHES if batch != TABLE_BATCH]
    if is_quick:
        pairs = [(width, batch) for width, batch in pairs if width * width * batch < QUICK_WORK]
    return tuple(
        Asking(
            workload=f"growing:mlp_{width}",
            batch_samples=batch,
            num_steps=num_steps(width),
            num_repetitions=num_repetitions(width),
        )
        for width, batch in pairs
    )


def trials(asked: tuple[Asking, ...], *, num_ranks: int, is_quick: bool) -> tuple[Trial, ...]:
    """The trials on one device, at the batch and at half of it, or those on two."""
    found = {}
    for one in asked:
        batches = (one.batch_samples, one.batch_samples // 2) if num_ranks == 1 else (one.batch_samples,)
        for batch in batches:
            for repetition in range(1, min(one.num_repetitions, 2 if is_quick else NUM_REPETITIONS) + 1):
                trial = Trial(
                    workload=one.workload,
                    method="single" if num_ranks == 1 else "ddp",
                    num_ranks=num_ranks,
                    batch_samples=batch,
                    repetition=repetition,
                    num_steps=one.num_steps,
                )
                found[trial.trial_id] = trial
    return tuple(found.values())


class Crew:
    """Processes on emulated hosts, one core each, that time one trial after another."""

    def __init__(self, rate: str, num_ranks: int, cores: Sequence[int]) -> None:
        """rate: of the link. cores: one a rank; the first `num_ranks` are taken."""
        self._stack = ExitStack()
        made = self._stack.enter_context(hosts(link_bit_per_s=LINK_BIT_PER_S[rate], num_hosts=num_ranks))
        self._stack.enter_context(prompt_wakeups(cores[:num_ranks]))
        self._complaints = self._stack.enter_context(TemporaryFile("w+"))  # noqa: SIM115 - the stack is one
        self._processes = [
            subprocess.Popen(
                (*host.command_prefix, sys.executable, _RANK, str(rank), str(num_ranks), str(cores[rank])),
                env={
                    **os.environ,
                    "MASTER_ADDR": made[0].address,
                    "MASTER_PORT": "29500",
                    "GLOO_SOCKET_IFNAME": host.interface,
                    "OMP_NUM_THREADS": "1",
                    "TORCH_CPP_LOG_LEVEL": "ERROR",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                text=True,
            )
            for rank, host in enumerate(made)
        ]

    @property
    def ids(self) -> tuple[int, ...]:
        """Of its processes."""
        return tuple(each.pid for each in self._processes)

    def timed(self, trial: Trial) -> dict[str, Any] | str:
        """What was measured of a trial, or why it was not; then the crew is of no more use."""
        try:
            for process in self._processes:
                print(json.dumps(to_builtins(trial)), file=process.stdin, flush=True)
        except BrokenPipeError:
            return self._said()
        answers = self._processes[0].stdout
        ready, _, _ = select.select([answers], [], [], LIMIT_S)
        if not ready or answers is None:
            return f"no answer after {LIMIT_S:g} s"
        line = answers.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        return found or self._said()

    def _said(self) -> str:
        self._complaints.seek(0)
        return (self._complaints.read().strip().splitlines() or ["ended without a word"])[-1]

    def end(self) -> None:
        """End its processes, and its hosts."""
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
        self._stack.close()


def timed(store: Store, rate: str, left: Sequence[Trial], cores: Sequence[int], *, end_s: float) -> bool:
    """Some trials of a store timed by one crew, and by another where one failed; False when time was over."""
    crew: Crew | None = None
    num_ranks = left[0].num_ranks
    try:
        for number, trial in enumerate(left, 1):
            if time.monotonic() > end_s:
                return False
            began_s = time.monotonic()
            crew = crew or Crew(rate, num_ranks, cores)
            found, others = in_quiet(partial(crew.timed, trial), crew.ids)
            failed = isinstance(found, str)
            store.add(
                FinishedTrial(
                    trial=trial,
                    status=FAILED if failed else SUCCESS,
                    reason=found if isinstance(found, str) else None,
                    conditions=conditions(
                        core_sets=[[core] for core in cores[:num_ranks]], launcher=f"emulated:{rate}"
                    ),
                    result={} if isinstance(found, str) else {**found, OTHERS: others},
                )
            )
            took = f"{time.monotonic() - began_s:.1f} s, others {others:.1%} of a core"
            print(f"{rate} {number}/{len(left)} {trial.trial_id}: {found if failed else took}", flush=True)
            if failed:
                crew.end()
                crew = None
    finally:
        if crew:
            crew.end()
    return True


def undisturbed(out: Path, part: str) -> frozenset[int]:
    """The repetitions of a part that had the machine to themselves, as its steps of one device tell.

    Those whose steps took, in the median over trials, at most 1.2 times that of the fastest repetition. Steps
    of two devices are not looked at.
    """
    taken: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for each in Store(out / part / "single").finished():
        run = timed_run(each)
        if run is not None:
            taken[each.trial.workload, each.trial.batch_samples][each.trial.repetition] = run.step_s
    slowed: dict[int, list[float]] = defaultdict(list)
    for steps in taken.values():
        for repetition, step_s in steps.items():
            slowed[repetition].append(step_s / min(steps.values()))
    least = min(median(ratios) for ratios in slowed.values())
    return frozenset(each for each, ratios in slowed.items() if median(ratios) <= MOST_SLOWED * least)


def _sweeps(
    out: Path,
    parts: Sequence[str],
    cores: Sequence[int],
    *,
    repetitions: Sequence[int],
    is_quick: bool,
    end_s: float,
) -> bool:
    """All parts; repetition by repetition through all folders, so that drifts fall on all alike."""
    for repetition, part in product(repetitions, parts):
        _interferences(out, repetition, cores, end_s=end_s)
        asked = askings(part, is_quick=is_quick)
        for name, rate, num_ranks in (("single", RATES[0], 1), *((rate, rate, 2) for rate in RATES)):
            store = Store(out / part / name)
            plan = in_random_order(trials(asked, num_ranks=num_ranks, is_quick=is_quick), seed=0)
            with store.opened(plan, resume=True):
                left = [each for each in plan if each.repetition == repetition and not store.has(each)]
                if left and not timed(store, rate, left, cores, end_s=end_s):
                    return False
    return True


def _interferences(out: Path, repetition: int, cores: Sequence[int], *, end_s: float) -> None:
    """What messages and computing cost each other, in every repetition anew: they drift as steps do."""
    asked = InterferenceTask(methods=("ddp",), operations=("all_reduce",))
    for rate in RATES:
        path = out / f"interference-{rate}-{repetition}.json"
        _kept(path, cores, lambda rate=rate: interference(asked, emulated(f"emulated:{rate}")), end_s=end_s)


def _links(out: Path, cores: Sequence[int], *, end_s: float) -> None:
    """All-reduces over each link."""
    asked = CollectivesTask(operations=("all_reduce",), sizes_bytes=PAYLOADS_BYTES, num_rounds=NUM_ROUNDS)
    for rate in RATES:
        by = emulated(f"emulated:{rate}")
        _kept(
            out / f"all_reduce-{rate}.json",
            cores,
            lambda by=by: timed_document(asked, by, num_starts=NUM_STARTS),
            end_s=end_s,
        )


def _kept(path: Path, cores: Sequence[int], document: Callable[[], object], *, end_s: float) -> None:
    """A document measured and written, where it is not there and time is not over."""
    if path.exists() or time.monotonic() > end_s:
        return
    began_s = time.monotonic()
    os.sched_setaffinity(0, cores)
    write_whole(path, json.dumps(document(), indent=1).encode())
    print(f"{path.name}: {time.monotonic() - began_s:.0f} s", flush=True)


def main() -> None:
    """Measure what is not measured yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/experiments/two-hosts"))
    parser.add_argument("--quick", action="store_true", help="what is small, twice")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    of_all = ",".join(map(str, range(1, NUM_REPETITIONS + 1)))
    parser.add_argument("--repetitions", default=of_all, help="those to measure, in this order")
    parser.add_argument("--parts", default=",".join(("links", *PARTS)))
    chosen = parser.parse_args()
    out = chosen.out.resolve()
    os.chdir(Path(__file__).parent)  # where workers find growing.py
    end_s = time.monotonic() + chosen.minutes * 60
    cores = sorted(os.sched_getaffinity(0))[:2]
    parts = chosen.parts.split(",")
    try:
        out.mkdir(parents=True, exist_ok=True)
        swept = [each for each in PARTS if each in parts]
        asked = [int(each) for each in chosen.repetitions.split(",")]
        is_done = _sweeps(out, swept, cores, repetitions=asked, is_quick=chosen.quick, end_s=end_s)
        if "links" in parts:
            _links(out, cores, end_s=end_s)
    except UsageError as err:
        sys.exit(f"two_hosts: {err}")
    print("measured" if is_done else "not finished: the same command goes on")


if __name__ == "__main__":
    main()

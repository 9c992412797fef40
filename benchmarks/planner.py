"""How long a plan takes: the search beside trying everything, a change on a page, a verb from a cold start.

    python benchmarks/planner.py [--repetitions 5] [--cold 3]

Cases are workloads on accelerators from few to many, none chosen for its speed. Searches: every repetition
searches all sizes of a case by `perfmodel.fastest` and then, in the same run, by `perfmodel.search`, which
works out every strategy; both must find the same strategies, times and counts, or this ends with an error.
Changes: what a page that keeps landscapes asks, one after the other: a pair never seen, other money, another
deadline, another number. Cold: fresh processes of the verbs, from their start to their end; `-` for a verb
that this version lacks. Seconds of the core, which other work on the machine stretches less than the clock.
docs/experiments/0020-planner.md has the figures.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.landscapes import Landscapes
from equipoise.advice.plans.plan import landscape, tried
from equipoise.advice.plans.planned import Question
from equipoise.perfmodel.estimate import Estimates
from equipoise.perfmodel.fastest import fastest
from equipoise.perfmodel.grid import Grid, Numbers
from equipoise.perfmodel.job import Job
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.search import Searched, search
from equipoise.perfmodel.space import Space
from equipoise.runs.chosen import tables

CASES = (
    ("llama2_70b_lora", "h200-sxm5-141gb", 8, 512, {}),
    ("llama2_70b_lora", "a100-sxm4-40gb", 8, 64, {}),
    ("gpt3", "h100-sxm5-80gb", 64, 512, {}),
    ("mixtral_8x7b", "h100-sxm5-80gb", 8, 64, {"training_tokens": 1e9}),
    ("deepseekv3_671b", "h100-sxm5-80gb", 512, 2048, {"training_tokens": 1e12}),
    ("resnet50", "a100-sxm4-80gb", 1, 128, {}),
)
VERBS = (
    ("plan", "llama2_70b_lora", "--accelerator", "h200-sxm5-141gb", "--accelerators", "8..512"),
    ("predict", "--workload", "llama2_70b_lora", "--accelerator", "h200-sxm5-141gb", "--at", "8,64,512"),
    ("advise", "llama2_70b_lora", "--accelerator", "h200-sxm5-141gb", "--max-accelerators", "512"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question, its setting, and what both searches are given."""

    question: Question
    job: Job
    spaces: tuple[Space, ...]

    def pruned(self) -> tuple[Searched, ...]:
        """By the search in use."""
        return fastest(self.job, self.spaces, num_best=self.question.num_best)

    def exhaustive(self) -> tuple[Searched, ...]:
        """By working out every strategy."""

        def time_s(mesh: Grid, estimates: Estimates) -> Numbers:
            return np.asarray(estimates.step_s * self.job.num_steps(mesh.global_batch_samples))

        given = (self.job.load, self.job.machine)
        return tuple(
            search(
                *given,
                each,
                self.job.parameters,
                objectives=(time_s,),
                num_best=self.question.num_best,
            )
            for each in self.spaces
        )


def case(scores: pl.DataFrame, question: Question) -> Case:
    """A case of one kind of node: all its sizes have the same machine."""
    ground = landscape(question, scores=scores).ground
    sizes = sorted(tried(question, ground))
    return Case(
        question=question,
        job=Job(
            load=ground.load,
            machine=machine(replace(ground.cluster, num_accelerators=sizes[-1])),
            parameters=ground.model.parameters,
            num_steps=lambda batch: ground.length.samples(batch) / batch,
        ),
        spaces=tuple(
            Space(
                num_accelerators=size,
                global_batches=ground.batches(size),
                choices=ground.choices,
            )
            for size in sizes
        ),
    )


def core_s(of: Callable[[], object]) -> float:
    """Seconds of the core that a call takes."""
    began = time.process_time()
    of()
    return time.process_time() - began


def told(found: Searched) -> tuple[object, ...]:
    """What of a search an answer rests on."""
    return found.num_legal, found.num_fitting, found.best, found.faults


def compare(each: Case, repetitions: int) -> None:
    """Print both searches' seconds and their ratio; exit where they do not find the same."""
    quick, whole = each.pruned(), each.exhaustive()
    if any(told(one) != told(other) for one, other in zip(quick, whole, strict=True)):
        sys.exit(f"{each.question.workload}: the searches differ")
    pairs = [(core_s(each.pruned), core_s(each.exhaustive)) for _ in range(repetitions)]
    ratios = sorted(slow / fast for fast, slow in pairs)
    fast, slow = (median(column) for column in zip(*pairs, strict=True))
    print(
        f"{each.question.workload:<16} {each.question.accelerator:<16} {len(each.spaces):>2} sizes "
        f"{sum(found.num_legal for found in quick):>11,} {fast:>7.3f} s {slow:>7.3f} s "
        f"{median(ratios):>5.1f}x ({ratios[0]:.1f} to {ratios[-1]:.1f})"
    )


def changes(scores: pl.DataFrame, question: Question, repetitions: int) -> None:
    """Print what each kind of change takes."""
    spent: dict[str, list[float]] = {}
    for _ in range(repetitions):
        kept = Landscapes()
        asked = {
            "never seen": (question, Terms()),
            "other money": (question, Terms(usd_per_accelerator_hour=1.5, region="france")),
            "objective": (replace(question, objective="cost"), Terms()),
            "deadline": (replace(question, deadline_s=3600.0), Terms()),
            "other number": (replace(question, most=3 * question.most // 4), Terms()),
        }
        for name, (changed, terms) in asked.items():
            began = time.process_time()
            kept.plan(changed, terms=terms, scores=scores)
            spent.setdefault(name, []).append(time.process_time() - began)
    told = "  ".join(f"{name} {1e3 * median(times):.0f} ms" for name, times in spent.items())
    print(f"{question.workload:<16} {question.accelerator:<16} {told}")


def cold(arguments: tuple[str, ...], repetitions: int) -> None:
    """Print what fresh processes of a verb take."""
    wall, core = [], []
    for _ in range(repetitions):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-m", "equipoise", *arguments],
            capture_output=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if ended.returncode:
            print(f"{arguments[0]:<8} -")
            return
        wall.append(time.perf_counter() - began)
        core.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"{arguments[0]:<8} {median(core):.2f} s of the core, {median(wall):.2f} s by the clock")


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cold", type=int, default=3)
    arguments = parser.parse_args()
    scores = tables().scores
    questions = [
        Question(workload=workload, accelerator=accelerator, fewest=fewest, most=most, **stated)
        for workload, accelerator, fewest, most, stated in CASES
    ]
    with threadpool_limits(limits=1):
        print("search: strategies, this search, every strategy, ratio (least to most)")
        for each in questions:
            compare(case(scores, each), arguments.repetitions)
        print("a change")
        for each in questions:
            changes(scores, each, arguments.repetitions)
    print("from a cold start")
    for each in VERBS:
        cold(each, arguments.cold)


if __name__ == "__main__":
    main()

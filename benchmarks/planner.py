"""How long a plan takes: the search against trying everything, a change on a page, a verb from a cold start.

    python benchmarks/planner.py [--repetitions 5] [--cold 3]

Cases are workloads on accelerators from few to many, none chosen for its speed. Searches: every repetition
searches all sizes of a case by `perfmodel.search` and then, in the same run, by the exhaustive search of the
tests, which works out every strategy; both must find the same strategies, times and counts, or this ends
with an error.
Changes: whole answers to what a page that keeps its searches asks, one after the other: a pair never seen,
other money, another objective, another deadline, another number. Cold: fresh processes of the verbs, from
their start to their end; `-` for a verb that this version lacks. Seconds of the core, which other work on the
machine stretches less than the clock. docs/experiments/0020-planner.md has the figures.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from equipoise.decide.assessment import Inputs, start_model
from equipoise.decide.decision import answer
from equipoise.decide.question.field import Sizes
from equipoise.decide.question.query import TrainingQuery, query
from equipoise.decide.question.systems import requested_systems
from equipoise.decide.question.training import training
from equipoise.decide.strategies.size_searches import SEARCH_CACHE, size_range
from equipoise.decide.strategies.strategy_search import problem
from equipoise.decide.user_evidence import UserEvidence
from equipoise.perfmodel.estimate import StepEstimates
from equipoise.perfmodel.layouts import StrategyGrid, clear_layout_caches
from equipoise.perfmodel.load import Numbers
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.search import SearchJob, SearchResult, fastest
from equipoise.perfmodel.space import Space
from equipoise.runs.embedded import scores as published
from equipoise.spec.catalogue import shipped
from equipoise.spec.mlperf import Scores
from equipoise.units import HOUR_S

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "perfmodel"))
from exhaustive import search

CASES = (
    ("llama2_70b_lora", "h200-sxm5-141gb", "8..512", {}),
    ("llama2_70b_lora", "a100-sxm4-40gb", "8..64", {}),
    ("gpt3", "h100-sxm5-80gb", "64..512", {}),
    ("mixtral_8x7b", "h100-sxm5-80gb", "8..64", {"tokens": 1e9}),
    ("deepseekv3_671b", "h100-sxm5-80gb", "512..2048", {"tokens": 1e12}),
    ("resnet50", "a100-sxm4-80gb", "1..128", {}),
)
VERBS = (
    ("plan", "llama2_70b_lora", "--accelerator", "h200-sxm5-141gb", "--accelerators", "8..512"),
    ("predict", "--workload", "llama2_70b_lora", "--accelerator", "h200-sxm5-141gb", "--at", "8,64,512"),
    ("advise", "llama2_70b_lora", "--accelerator", "h200-sxm5-141gb", "--max-accelerators", "512"),
)


class Case(Struct, frozen=True, kw_only=True):
    """A question of one system, and what both searches are given."""

    asked: TrainingQuery
    job: SearchJob
    spaces: tuple[Space, ...]

    def pruned(self) -> tuple[SearchResult, ...]:
        """By the search in use, with nothing kept of the last one."""
        clear_layout_caches()
        return fastest(self.job, self.spaces, num_best=self.asked.num_strategies)

    def exhaustive(self) -> tuple[SearchResult, ...]:
        """By working out every strategy."""

        def time_s(mesh: StrategyGrid, estimates: StepEstimates) -> Numbers:
            return np.asarray(estimates.step_s * self.job.num_steps(mesh.global_batch_samples))

        given = (self.job.load, self.job.machine)
        return tuple(
            search(
                *given,
                each,
                self.job.parameters,
                objective=time_s,
                num_best=self.asked.num_strategies,
            )
            for each in self.spaces
        )


def case(scores: Scores, asked: TrainingQuery) -> Case:
    """A case of one kind of node: all its sizes have the same machine."""
    known = shipped()
    (system,) = requested_systems(asked, known)
    about = training(asked, known, scores)
    inputs = Inputs(query=asked, training=about, catalogue=known, scores=scores, user=UserEvidence())
    assert system.cluster is not None
    posed = problem(about, system.cluster, start_model(inputs, system), num_best=asked.num_strategies)
    sizes = size_range(asked, system, flop=about.stated_flop, known=()).tried
    return Case(
        asked=asked,
        job=SearchJob(
            load=posed.load,
            machine=machine(replace(posed.cluster, num_accelerators=sizes[-1])),
            parameters=posed.model.parameters,
            num_steps=posed.num_steps,
        ),
        spaces=tuple(
            Space(num_accelerators=size, global_batches=posed.batches(size), choices=posed.choices)
            for size in sizes
        ),
    )


def core_s(of: Callable[[], object]) -> float:
    """Seconds of the core that a call takes."""
    began = time.process_time()
    of()
    return time.process_time() - began


def comparable(found: SearchResult) -> tuple[object, ...]:
    """What an answer takes from a search."""
    return found.num_legal, found.num_fitting, found.best, found.faults


def compare(each: Case, repetitions: int) -> None:
    """Print both searches' seconds and their ratio; exit where they do not find the same."""
    quick, whole = each.pruned(), each.exhaustive()
    if any(comparable(one) != comparable(other) for one, other in zip(quick, whole, strict=True)):
        sys.exit(f"{each.asked.workload}: the searches differ")
    pairs = [(core_s(each.pruned), core_s(each.exhaustive)) for _ in range(repetitions)]
    ratios = sorted(slow / fast for fast, slow in pairs)
    fast, slow = (median(column) for column in zip(*pairs, strict=True))
    print(
        f"{each.asked.workload:<16} {each.asked.systems[0]:<16} {len(each.spaces):>2} sizes "
        f"{sum(found.num_legal for found in quick):>11,} {fast:>7.3f} s {slow:>7.3f} s "
        f"{median(ratios):>5.1f}x ({ratios[0]:.1f} to {ratios[-1]:.1f})"
    )


def changes(scores: Scores, question: TrainingQuery, repetitions: int) -> None:
    """Print what each kind of change takes."""
    assert question.sizes is not None
    fewer = Sizes(listed=(question.sizes.fewest, 3 * question.sizes.most // 4), is_range=True)
    asked = {
        "never seen": question,
        "other money": replace(question, price=(("", 1.5),), region="france"),
        "objective": replace(question, objective="cost"),
        "deadline": replace(question, deadline_s=HOUR_S),
        "other number": replace(question, sizes=fewer),
    }
    spent: dict[str, list[float]] = {}
    for _ in range(repetitions):
        SEARCH_CACHE.clear()
        for name, each in asked.items():
            spent.setdefault(name, []).append(core_s(lambda each=each: answer(each, scores=scores)))
    shown = "  ".join(f"{name} {1e3 * median(times):.0f} ms" for name, times in spent.items())
    print(f"{question.workload:<16} {question.systems[0]:<16} {shown}")


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
    scores = published()
    questions = [
        query({"workload": workload, "accelerator": [chip], "accelerators": sizes, **stated})
        for workload, chip, sizes, stated in CASES
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

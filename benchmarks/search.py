"""How many strategies a second the search of `plan` goes through on one core, against other tools.

    python benchmarks/search.py [--repetitions 7] [--llm-analysis-python PYTHON | --install]

GPT-3 175B on 64 A100, of which Calculon enumerates 3.23 million configurations: ours holds more, all legal
and distinct. Counted are strategies whose time by cause, memory by kind, fit and rank were worked out, from
laying the space out to the ten best, by seconds of the core; every repetition begins anew, after one to
warm up. PYTHON is an interpreter that has llm-analysis, which then evaluates legal strategies of the same
space one by one; --install makes one in a folder that is deleted afterwards; without either it is left out.
Linear algebra has one thread.
docs/experiments/0008-search-speed.md has the figures.
"""

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from equipoise.perfmodel.load import Load, workload_load
from equipoise.perfmodel.machine import Machine, machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.search import SearchResult
from equipoise.perfmodel.space import Space, limits
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import workload

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "perfmodel"))
from exhaustive import legal_strategies, search, strategy_at

NUM_ACCELERATORS, GLOBAL_BATCH, SEQUENCE = 64, 1536, 2048
# Every parameter that leaves what is trained as it is, and the precisions the chip has.
WIDE = Space(
    num_accelerators=NUM_ACCELERATORS,
    global_batches=(GLOBAL_BATCH,),
    choices={
        "precision": ("bf16", "fp16", "tf32", "fp32"),
        "implementation": ("compiled", "eager"),
        "fused_attention": (True, False),
        "optimizer": ("adam", "adam_8bit"),
        "offload": ("none", "optimizer", "optimizer_and_params"),
    },
)
# Configurations a second and core: measured once on another machine, Calculon over its own GPT-3 space.
PUBLISHED = {"Calculon (stated)": (80.0, 157.0), "llm-analysis (stated, no search)": (5200.0, 5200.0)}
NUM_RIVAL = 2000

# Runs in the interpreter that has llm-analysis.
# stdin: [[dp, tp, pp, micro-batch, ZeRO stage, recompute], ...].
RIVAL_PROGRAM = """
import json, logging, sys, time
from importlib.metadata import version
from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import DtypeConfig, ModelConfig, ParallelismConfig, get_gpu_config_by_name
from llm_analysis.logger import logger

logger.setLevel(logging.ERROR)
strategies = json.load(sys.stdin)
sizes = {"num_layers": 96, "n_head": 96, "hidden_dim": 12288, "vocab_size": 51200, "max_seq_len": 2048}
model = ModelConfig(name="gpt3", **sizes)
chip = get_gpu_config_by_name("a100-sxm-80gb")
stages = {"none": 0, "selective": 1, "full": 2}
began, done = time.process_time(), 0
for dp, tp, pp, size, stage, recompute in strategies:
    sizes = ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp, sp_size=tp)
    analysis = LLMAnalysis(model, chip, DtypeConfig(), sizes, flops_efficiency=0.5)
    try:
        analysis.training(
            batch_size_per_gpu=size, global_batch_size=1536, seq_len=2048, ds_zero=DSZeRO(stage),
            activation_recomputation=ActivationRecomputation(stages[recompute]),
        )
    except AssertionError:
        continue
    done += 1
spent = time.process_time() - began
print(json.dumps({"seconds": spent, "answered": done, "version": version("llm-analysis")}))
"""


def subject() -> tuple[Load, Machine]:
    """GPT-3 175B, and the accelerators it is to run on."""
    nodes = machine(cluster("a100-sxm4-80gb", num_accelerators=NUM_ACCELERATORS))
    return workload_load(workload("gpt3")), nodes


def searched(load: Load, nodes: Machine) -> SearchResult:
    """One search of the whole space for the shortest step."""
    return search(load, nodes, WIDE, Parameters(), objective=lambda _, estimates: estimates.step_s)


def timed(load: Load, nodes: Machine, repetitions: int) -> tuple[SearchResult, list[float], list[float]]:
    """What a search finds, and each further repetition's seconds: of the clock, and of the core."""
    found = searched(load, nodes)
    wall, core = [], []
    for _ in range(repetitions):
        began, began_core = time.perf_counter(), time.process_time()
        searched(load, nodes)
        wall.append(time.perf_counter() - began)
        core.append(time.process_time() - began_core)
    return found, wall, core


def some_strategies(load: Load, nodes: Machine) -> list[Strategy]:
    """Legal strategies from all over the space that llm-analysis can express: no context axis, one chunk."""
    narrow = Space(
        num_accelerators=NUM_ACCELERATORS,
        global_batches=(GLOBAL_BATCH,),
        choices={"cp": (1,), "interleave": (1,), "tp_overlap": (False,)},
    )
    meshes = legal_strategies(narrow, limits(load, nodes), most_elements=10**6).meshes
    found = [strategy_at(mesh, index) for mesh in meshes for index in range(int(np.prod(mesh.shape)))]
    return (found * (NUM_RIVAL // len(found) + 1))[:NUM_RIVAL]


@contextlib.contextmanager
def rival_python(python: str | None, *, install: bool) -> Iterator[str | None]:
    """An interpreter with llm-analysis: the one given, one made for the occasion, or None."""
    if not install:
        yield python
        return
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        made = str(Path(folder) / "bin" / "python")
        ended = subprocess.run([made, "-m", "pip", "install", "-q", "llm-analysis"], check=False)
        yield made if ended.returncode == 0 else None


def rival_rate(python: str, strategies: list[Strategy]) -> tuple[float, str]:
    """Configurations a second of llm-analysis, and its version."""
    rows = [
        [each.dp, each.tp, each.pp, each.microbatch_samples, each.zero_stage, each.recompute]
        for each in strategies
    ]
    ended = subprocess.run(
        [python, "-c", RIVAL_PROGRAM], input=json.dumps(rows), capture_output=True, text=True, check=True
    )
    answer = json.loads(ended.stdout.splitlines()[-1])
    return answer["answered"] / answer[
        "seconds"
    ], f"{answer['version']}, {answer['answered']} of {len(rows)} answered"


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--llm-analysis-python", metavar="PYTHON")
    parser.add_argument("--install", action="store_true")
    arguments = parser.parse_args()
    with threadpool_limits(limits=1):
        load, nodes = subject()
        found, wall, core = timed(load, nodes, arguments.repetitions)
    rate = found.num_legal / float(np.median(core))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"GPT-3 175B on {NUM_ACCELERATORS} A100: {found.num_legal:,} strategies, {found.num_fitting:,} fit")
    print(f"best: {found.best[0].strategy.text()}")
    for name, seconds in (("by the clock", wall), ("of one core", core)):
        low, middle, high = np.quantile(seconds, [0.0, 0.5, 1.0])
        print(f"search: {middle:.3f} s {name} ({low:.3f} to {high:.3f}, {len(seconds)} repetitions)")
    print(f"peak memory of the process: {peak_bytes / 1e6:.0f} MB")
    print(f"ours: {rate:,.0f} strategies/s on one core")
    with rival_python(arguments.llm_analysis_python, install=arguments.install) as python:
        if python is None:
            print("llm-analysis: not run (--install or --llm-analysis-python PYTHON)")
        else:
            own, words = rival_rate(python, some_strategies(load, nodes))
            print(f"llm-analysis {words}: {own:,.0f}/s here; ours: {rate / own:,.0f} times as many")
    for name, (least, most) in PUBLISHED.items():
        print(f"{name}: {least:,.0f} to {most:,.0f}/s; ours: at least {rate / most:,.0f} times as many")


if __name__ == "__main__":
    main()

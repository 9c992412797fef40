"""The search for the fastest way to train: what it tries, when it stops, what it reports as unknown."""

import json
import re
from pathlib import Path

import pytest
from msgspec import convert
from msgspec.structs import replace

from equipoise.bench.training import METHODS
from equipoise.bench.trial import FAILED, SUCCESS, FinishedTrial, Trial
from equipoise.diagnose.method_search import (
    EXACT,
    LARGER_BATCH,
    LOSSY,
    OTHER,
    MethodSpace,
    candidates,
    default_methods,
    effect,
    one_device_trials,
    search_methods,
)
from equipoise.diagnose.predicted_steps import ExchangeCosts, Messages, MethodWork, exchange_costs
from equipoise.errors import EvidenceError, UsageError

SPACE = MethodSpace(
    workload="made_up",
    methods=("ddp", "fp16", "accumulate:4", "localsgd:8"),
    sizes=(1, 2),
    batches=(32, 64),
    num_steps=5,
)
GRADIENTS = [{"shape": [1024, 1024], "bytes": 4 * 2**20, "dtype": "float32", "ready": 1.0}]


def costs(byte_per_s=1e8):
    sizes = (8.0, 1e9)
    seconds = tuple(size / byte_per_s for size in sizes)
    messages = Messages(payload_bytes=sizes, alone_s=seconds, overlapped_s=seconds, core_share=(0.0, 0.0))
    work = MethodWork(fixed_s=0.0, tensor_s=0.0, gradient_bytes=(1.0,), copying_s=(0.0,))
    return {
        2: ExchangeCosts(
            num_ranks=2,
            messages={"all_reduce": messages, "all_gather": messages},
            method_work={"ddp": work, "fp16": work},
        )
    }


class Machine:
    """Answers a run with a step of so many seconds a sample of a rank, and what its exchange takes."""

    def __init__(self, exchange_s, failing=()):
        self.exchange_s = exchange_s
        self.failing = failing
        self.measured = []

    def __call__(self, trials):
        return [self._finished(trial) for trial in trials]

    def _finished(self, trial):
        self.measured.append(trial)
        if trial.method in self.failing:
            return FinishedTrial(trial=trial, status=FAILED, reason="hung", conditions={}, result={})
        step_s = 1e-3 * trial.rank_batch_samples + self.exchange_s.get(trial.method, 0.0)
        # Repetitions differ by a thousandth.
        step_s *= 1 + 1e-3 * trial.repetition
        split = {"forward": step_s / 3, "backward": step_s / 2, "optimizer": step_s / 6, "step": step_s}
        result = {"steps": [split] * 16, "gradients": GRADIENTS, "buffers": [], "steady": True, "period": 1}
        return FinishedTrial(trial=trial, status=SUCCESS, reason=None, conditions={}, result=result)


# As predicted from 4 MiB at 100 MB/s: 42 ms; half with fp16; a fourth and an eighth of it for the others.
TRUE_S = {"ddp": 0.042, "fp16": 0.021, "accumulate:4": 0.0105, "localsgd:8": 0.005}


def test_every_method_says_what_it_does_to_learning():
    found = {
        each.name: effect(f"{each.name}:1" if each.takes and each.takes.needed else each.name)
        for each in METHODS
    }
    assert {found[name] for name in ("single", "ddp", "static_graph", "fsdp")} == {EXACT}
    assert found["accumulate"] == LARGER_BATCH
    assert {found[name] for name in ("fp16", "bf16", "powersgd", "topk")} == {LOSSY}
    assert {found[name] for name in ("localsgd", "diloco")} == {OTHER}
    assert {effect(text) for text in default_methods(exact_only=True)} == {EXACT}


def test_candidates_are_every_combination_that_can_run():
    trials, refused = candidates(replace(SPACE, batches=(32, 33)))
    assert {(trial.method, trial.num_ranks, trial.batch_samples) for trial in trials} == {
        ("single", 1, 32),
        ("single", 1, 33),
        *((text, 2, 32) for text in SPACE.methods),
    }
    assert {(each.method, each.batch_samples) for each in refused} == {(text, 33) for text in SPACE.methods}
    assert re.search("33 .*2 ranks", refused[0].reason)


def test_what_a_backend_cannot_run_is_listed_with_its_reason():
    trials, refused = candidates(replace(SPACE, backend="mpi"))
    assert {trial.num_ranks for trial in trials} == {1}
    assert "over mpi" in refused[0].reason


def test_one_device_is_measured_at_every_share():
    assert [trial.batch_samples for trial in one_device_trials(SPACE)] == [16, 32, 64]


def test_the_fastest_is_found_in_fewer_runs_than_there_are():
    machine = Machine(TRUE_S)
    found = search_methods(SPACE, machine, costs(), num_trials=20, num_repetitions=1)
    assert (found.best.trial.method, found.best.trial.batch_samples) == ("localsgd:8", 64)
    assert found.num_trials < 8
    assert "interval" in found.stopped
    assert found.alone.samples_per_s == pytest.approx(1000, rel=0.01)
    assert found.median_error_fraction < 0.05
    assert found.over_alone is None


def test_plain_ddp_is_always_among_what_is_tried():
    found = search_methods(SPACE, Machine(TRUE_S), costs(), num_trials=1, num_repetitions=1)
    assert found.plain is not None
    assert found.plain.runs
    assert found.num_trials == 1
    assert " 1 trial" in found.stopped


def test_a_wrong_prediction_is_learned_from():
    # Local steps turn out slow where they were predicted best: the next best is tried, and found.
    found = search_methods(
        SPACE, Machine({**TRUE_S, "localsgd:8": 0.3}), costs(), num_trials=20, num_repetitions=1
    )
    assert found.best.trial.method == "accumulate:4"
    wrong = [each for each in found.tried if each.trial.method == "localsgd:8" and each.runs]
    assert wrong
    assert wrong[0].error_log < -1


def test_repetitions_give_gains_their_intervals():
    found = search_methods(SPACE, Machine(TRUE_S), costs(), num_trials=20, num_repetitions=3)
    assert found.over_alone is not None
    assert found.over_plain is not None
    assert found.over_alone.low <= found.over_alone.value <= found.over_alone.high
    assert found.over_alone.value == pytest.approx((64 / 0.037) / 1000, rel=0.01)
    assert found.over_plain.value == pytest.approx(0.074 / 0.037, rel=0.01)


def test_what_failed_is_told_and_not_tried_again():
    machine = Machine(TRUE_S, failing={"localsgd:8"})
    found = search_methods(SPACE, machine, costs(), num_trials=20, num_repetitions=2)
    assert found.best.trial.method == "accumulate:4"
    failed = [each for each in found.tried if each.failed]
    assert {each.failed for each in failed} == {"hung"}
    runs = [trial.trial_id for trial in machine.measured]
    assert len(runs) == len(set(runs))


def test_one_device_can_be_the_fastest():
    found = search_methods(
        SPACE, Machine(dict.fromkeys(TRUE_S, 10.0)), costs(1e5), num_trials=20, num_repetitions=1
    )
    assert found.best.trial.num_ranks == 1
    # Of the others, nothing was predicted to be faster: only plain ddp was tried.
    assert [each.trial.method for each in found.tried if each.runs and each.trial.num_ranks > 1] == ["ddp"]


def test_nothing_is_found_without_one_device_or_trials():
    with pytest.raises(EvidenceError):
        search_methods(SPACE, Machine(TRUE_S, failing={"single"}), costs(), num_trials=3, num_repetitions=1)
    with pytest.raises(UsageError, match="0 trials"):
        search_methods(SPACE, Machine(TRUE_S), costs(), num_trials=0, num_repetitions=1)


def test_a_recorded_machine_is_searched_as_a_real_one():
    # Runs of 3.8 M parameters on two hosts at 1 Gbit/s, made by experiments/find.py.
    path = Path(__file__).parent / "recorded" / "find-1gbit-large-mlp.json"
    recorded = json.loads(path.read_text())
    runs = [
        FinishedTrial(
            trial=convert(each["cell"], Trial),
            status=each["status"],
            reason=each["reason"],
            conditions={},
            result=each["result"],
        )
        for each in recorded["cells"]
    ]
    known = {each.trial.trial_id: each for each in runs}
    space = MethodSpace(
        workload="large_mlp",
        methods=("ddp", "static_graph", "fsdp", "fp16", "accumulate:4", "localsgd:8"),
        sizes=(1, 2),
        batches=(64, 256),
        num_steps=12,
    )
    found = search_methods(
        space,
        lambda trials: [known[trial.trial_id] for trial in trials],
        {2: exchange_costs(recorded["interference"], str(path))},
        num_trials=6,
        num_repetitions=1,
    )
    speeds = [
        each.trial.batch_samples
        / (sum(step["step"] for step in each.result["steps"]) / len(each.result["steps"]))
        for each in runs
    ]
    assert found.num_trials <= 6
    assert found.best.samples_per_s > 0.9 * max(speeds)
    assert found.plain.samples_per_s < found.best.samples_per_s

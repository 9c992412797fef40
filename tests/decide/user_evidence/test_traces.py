"""Own traces as evidence: seconds and shares by hand, what has to be said of them, and what cannot be."""

import json
import re

import pytest

from equipoise.calibration.profiles import prior_model
from equipoise.decide.estimators.measured import measured_estimates
from equipoise.decide.explanation.reasons import trace_words
from equipoise.decide.question.query import query
from equipoise.decide.question.training import fixed_budget
from equipoise.decide.user_evidence import (
    checks,
    possible,
    traced_as,
    unused_traces,
    user_evidence,
    user_traces,
    with_traces,
)
from equipoise.errors import DataError, SpecError, UsageError
from equipoise.perfmodel.load import workload_load
from equipoise.spec.catalogue import catalogue
from equipoise.spec.cluster import cluster
from equipoise.spec.hardware import accelerator
from equipoise.spec.workload import workload

CATALOGUE = catalogue()
A100 = "NVIDIA A100-SXM4-80GB"
STEP_US = 200_000.0
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def span(name, start_us, took_us, category="kernel", **arguments):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start_us,
        "dur": took_us,
        "args": {"device": 0, "stream": 7, **arguments},
    }


def step(number, start_us, collective=ALL_REDUCE, step_us=STEP_US):
    """A step of which 0.7 are computed, 0.2 only communicated (of 0.3), and 0.1 idle."""
    return [
        span(f"ProfilerStep#{number}", start_us, step_us, category="user_annotation"),
        span("ampere_sgemm_128x64_nn", start_us, 0.7 * step_us),
        span(collective, start_us + 0.6 * step_us, 0.3 * step_us),
    ]


@pytest.fixture
def traced(tmp_path):
    def from_steps(stated="", *, world=8, device=A100, num_steps=4, ranks=(0,), **shape):
        for rank in ranks:
            events = [event for at in range(num_steps) for event in step(at, at * STEP_US, **shape)]
            whole = {"traceEvents": events, "distributedInfo": {"rank": rank}}
            if world is not None:
                whole["distributedInfo"]["world_size"] = world
            if device is not None:
                whole["deviceProperties"] = [{"id": 0, "name": device}]
            (tmp_path / f"rank{rank}.json").write_text(json.dumps(whole))
        return user_traces([tmp_path], traced_as(stated), CATALOGUE)

    return from_steps


def test_a_trace_holds_ranks_device_step_and_shares(traced):
    (found,) = traced(ranks=(0, 3))
    assert (found.num_ranks, len(found.files), found.accelerator) == (8, 2, "a100-sxm4-80gb")
    assert found.step_s == pytest.approx(0.2)
    assert (found.exposed_share, found.idle_share) == pytest.approx((0.2, 0.1))
    assert found.run() is None
    (missing,) = found.missing
    assert "--traced-as global_batch=N" in missing


def test_with_its_batch_it_is_a_run_of_that_rate(traced):
    (found,) = traced("global_batch=512 precision=fp16")
    run = found.run()
    assert (run.num_accelerators, run.strategy, run.precision) == (8, "ddp", "fp16")
    assert run.samples_per_s == pytest.approx(512 / 0.2)
    # 5000 steps of 0.2 s for 2,560,000 samples
    about = workload("resnet50")
    found_s = measured_estimates([run], fixed_budget(about, 2.56e6), [8], cluster=None, workload=about)
    assert found_s.by_size[8].time_s.value == pytest.approx(1000.0)
    assert with_traces(None, [found]).set_ups == (run,)


@pytest.mark.parametrize(
    ("stated", "strategy"),
    [
        ("global_batch=512", "ddp"),
        ("global_batch=512 microbatch=16", "accumulate:4"),
        ("global_batch=512 zero_stage=3", "fsdp"),
        (
            "global_batch=512 tp=2",
            "dp=4 tp=2 microbatch=128 global_batch=512 precision=fp32 implementation=eager",
        ),
    ],
)
def test_a_strategy_is_named_as_measured_ones_are(traced, stated, strategy):
    assert traced(stated)[0].run().strategy == strategy


def test_ranks_that_no_trace_states_are_asked_for(traced):
    (unnamed,) = traced(world=None)
    assert "--traced-as ranks=N" in unnamed.missing[0]
    (named,) = traced("ranks=4 global_batch=64", world=None)
    assert named.run().num_accelerators == 4
    (other,) = traced("ranks=4 global_batch=64", world=8)
    assert other.num_ranks == 8
    assert {"4", "8"} <= set(re.findall(r"\d+", other.notes[0]))


def test_a_trace_that_gives_no_time_is_said_not_to_be_used(traced):
    (note,) = unused_traces(traced(world=None), "a100-sxm4-80gb", "A100")
    assert note.kind == "not_used"
    assert "--traced-as ranks=N" in note.words


def test_what_does_not_fit_the_ranks_is_missing_and_is_no_run(traced):
    (found,) = traced("global_batch=64 tp=3")
    assert found.run() is None
    assert re.search(r"2 x 3 ranks\b.*\b8\b", found.missing[0])
    (uneven,) = traced("global_batch=63")
    assert "dp x microbatch_samples" in uneven.missing[0]


def test_collectives_of_shards_count_at_their_own_size_alone_unless_explained(traced):
    (found,) = traced("global_batch=64", collective=GATHER)
    assert found.run().strategy == "traced"
    assert "allgather" in found.notes[0]
    load, nodes = workload_load(workload("bert")), cluster("a100-sxm4-80gb", num_accelerators=8)
    assert checks([found], load, nodes, prior_model().parameters)[0].modelled_step_s is None
    (explained,) = traced("global_batch=64 zero_stage=3", collective=GATHER)
    assert explained.run().strategy == "fsdp"
    assert explained.notes == ()


def test_a_trace_without_marked_steps_has_shares_and_no_step(tmp_path):
    events = step(0, 0.0)[1:]
    (tmp_path / "whole.json").write_text(json.dumps({"traceEvents": events}))
    (found,) = user_traces([tmp_path / "whole.json"], traced_as("ranks=2 global_batch=8"), CATALOGUE)
    assert found.step_s is None
    assert found.exposed_share == pytest.approx(0.2 / 0.9)
    assert "profiler.step()" in found.missing[0]
    assert "20 %" not in trace_words(checks([found], None, _nodes(), None)[0])


def _nodes():
    return cluster("a100-sxm4-80gb", num_accelerators=8)


def test_a_trace_is_compared_with_the_modelled_step(traced):
    (found,) = traced("global_batch=512 precision=bf16")
    load, parameters = workload_load(workload("bert")), prior_model().parameters
    (check,) = checks([found], load, _nodes(), parameters)
    assert 0.01 < check.modelled_step_s < 10.0
    assert 0.0 < check.modelled_exposed_share < 1.0
    words = trace_words(check)
    shown = re.findall(r"rank0\.json|\d+ ranks|[\d.]+ ms|\d+ %", words)
    assert shown[:5] == ["rank0.json", "8 ranks", "200 ms", "20 %", "10 %"]
    assert f"{1000 * check.modelled_step_s:.3g} ms" in shown
    assert checks([found], load, cluster("h100-sxm5-80gb"), parameters) == ()
    assert [*unused_traces([found], "a100-sxm4-80gb", "A100")] == []
    (elsewhere,) = unused_traces([found], "h100-sxm5-80gb", "H100")
    assert elsewhere.kind == "not_used"  # by which an answer finds it for its first lines
    assert re.findall(r"H100|rank0\.json|A100-SXM4-80GB", elsewhere.words) == [
        "rank0.json",
        "H100",
        "A100-SXM4-80GB",
    ]


def test_a_step_faster_than_the_peak_is_of_something_else(traced):
    (found,) = traced("global_batch=65536 precision=bf16")
    about = workload("resnet50")
    # 8 x 312 TFLOP/s in 0.2 s; ResNet-50 asks for 2.5e10 FLOP a sample there and back.
    assert about.train_flop_per_sample * 65536 / (8 * 312e12) > 0.2
    refuted = possible(found, about, accelerator("a100-sxm4-80gb"))
    assert refuted.run() is None
    assert "65,536 samples of ResNet-50" in refuted.missing[0]
    (usual,) = traced("global_batch=4096 precision=bf16")
    assert possible(usual, about, accelerator("a100-sxm4-80gb")) == usual
    # In fp32 torch convolves in tf32: 8,192 samples take 0.16 s at its 156 TFLOP/s, and 1.3 s at 19.5 of fp32.
    (in_tf32,) = traced("global_batch=8192 precision=fp32")
    assert possible(in_tf32, about, accelerator("a100-sxm4-80gb")) == in_tf32


def test_few_steps_are_less_sure_than_many(traced):
    (few,), (many,) = traced("global_batch=8", num_steps=2), traced("global_batch=8", num_steps=12)
    assert few.log_sd > 3 * many.log_sd
    assert many.log_sd == pytest.approx(0.05)  # what a profiler may add, steps being alike


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("ranks=0", UsageError, "ranks.*0"),
        ("ranks=many", UsageError, "ranks.*many"),
        ("rank=8", UsageError, "'ranks=8'"),
        ("lora_ran=8", SpecError, "'lora_rank=8'"),
        ("global_batch=8 global_batch=16", UsageError, "given twice"),
        ("batch=8", SpecError, "batch=8"),
        ("precision=fp17", SpecError, "fp32 or tf32"),
    ],
)
def test_what_is_no_part_of_a_strategy_is_refused(text, error, words):
    with pytest.raises(error, match=words):
        traced_as(text)


def test_files_of_a_question_have_to_name_their_machine(tmp_path, traced):
    traced(device=None)
    asked = query({"workload": "bert", "accelerator": ["a", "b"], "trace": [tmp_path / "rank0.json"]})
    names, about = ["a100-sxm4-80gb", "h100-sxm5-80gb"], workload("bert")
    with pytest.raises(UsageError, match=r"rank0.json.* 2:"):
        user_evidence(asked, about, names, CATALOGUE)
    assert len(user_evidence(asked, about, names[:1], CATALOGUE).traces) == 1
    alone = query({"workload": "bert", "accelerator": ["a"], "traced_as": "ranks=8"})
    with pytest.raises(UsageError, match="--trace FILE"):
        user_evidence(alone, about, names[:1], CATALOGUE)
    (tmp_path / "rank0.json").write_text("steps")
    with pytest.raises(DataError, match=r"rank0\.json"):
        user_evidence(asked, about, names[:1], CATALOGUE)


@pytest.mark.parametrize("world", [-1, 10**12, "8", None, {}, 1.5])
def test_numbers_of_ranks_that_cannot_be_are_not_known(tmp_path, world):
    whole = {
        "traceEvents": step(0, 0.0),
        "distributedInfo": {"world_size": world},
        "deviceProperties": [{"id": 0, "name": ["x"]}, 3],
    }
    (tmp_path / "odd.json").write_text(json.dumps(whole))
    (found,) = user_traces([tmp_path / "odd.json"], traced_as("global_batch=8"), CATALOGUE)
    assert found.num_ranks is None
    assert found.device is None

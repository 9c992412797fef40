"""The times of jobs: those of `advise` for the same question, or the user's own."""

import json
import re

import pytest

from equipoise.decide.allocation import allocate, job_times
from equipoise.decide.allocation.jobs import read_jobs
from equipoise.decide.allocation.problem import pool_of
from equipoise.decide.decision import answer
from equipoise.decide.question.query import query
from equipoise.errors import DataError, UsageError
from equipoise.runs import embedded
from equipoise.spec.catalogue import shipped

# What a question tries by itself, and what 8 of the 64 leave to another job.
SIZES = "1,2,3,4,5,6,7,8,9,10,12,14,16,18,20,24,28,32,36,40,48,56,64"


@pytest.fixture(scope="module")
def scores():
    return embedded.scores()


@pytest.fixture
def times(tmp_path, scores):
    """A function that gives the times of the jobs of a text on a pool."""

    def of(text, cluster="64x h100-sxm5-80gb", **pool):
        path = tmp_path / "jobs.toml"
        path.write_text(text)
        file = read_jobs(path)
        shared = pool_of(cluster, shipped(), **pool)
        return file.jobs, shared, job_times(file.jobs, shared, scores=scores, catalogue=shipped())

    return of


@pytest.mark.parametrize(
    ("job", "asked"),
    [
        ('workload = "bert"', {"workload": "bert"}),
        ('workload = "llama2_70b_lora"', {"workload": "llama2_70b_lora"}),
        ('workload = "llama2_7b"\ntokens = 1e11', {"workload": "llama2_7b", "tokens": 1e11}),
        (
            'workload = "resnet50"\nsamples = 1e8\nglobal_batch = 4096',
            {"workload": "resnet50", "samples": 1e8, "global_batch": 4096},
        ),
        (
            'workload = "llama31_8b"\ntokens = 1e11\nprecision = "fp8"',
            {"workload": "llama31_8b", "tokens": 1e11, "precision": "fp8"},
        ),
        (
            'workload = "llama31_8b"\ntrain = ["lora", "dpo"]\nexamples = "50k"\nepochs = 2\nsequence = "2k"',
            {"workload": "llama31_8b", "train": "lora,dpo", "examples": 5e4, "epochs": 2, "sequence": 2048},
        ),
        (
            'workload = "llama31_8b"\ntokens = 1e10\nfix = "zero_stage=3"',
            {"workload": "llama31_8b", "tokens": 1e10, "fix": "zero_stage=3"},
        ),
    ],
)
def test_a_job_takes_what_advise_says(times, scores, job, asked):
    jobs, pool, found = times(f"[[job]]\n{job}\n", price=[("", 2.5)])
    stated = {"accelerator": "64x h100-sxm5-80gb", "price": 2.5, "accelerators": SIZES}
    whole = answer(query(asked | stated), scores=scores)
    expected = {each.num_accelerators: each for each in whole.candidates if each.num_accelerators <= 64}
    assert len(expected) > 3
    assert {each.num_accelerators: each for each in found[0].candidates}.items() <= expected.items()
    assert {8, 16, 32, 64} <= set(found[0].sizes)
    share = allocate(jobs, found, pool, objective="time").shares[0]
    assert share.candidate == expected[share.candidate.num_accelerators]


def test_a_model_of_ones_own_is_read_beside_the_file_of_jobs(times, tmp_path):
    shape = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "vocab_size": 32000}
    (tmp_path / "mine.json").write_text(
        json.dumps({"model_type": "llama", "intermediate_size": 8192, **shape})
    )
    asked = 'config = "mine.json"\ntokens = "10G"\nsequence = "2k"'
    (job,), pool, (found,) = times(f"[[job]]\n{asked}\n", price=[("", 2.5)])
    assert job.name == "mine.json"
    whole = query(
        {
            "config": tmp_path / "mine.json",
            "tokens": 1e10,
            "sequence": 2048,
            "price": 2.5,
            "accelerator": "64x h100-sxm5-80gb",
            "accelerators": SIZES,
        }
    )
    expected = {each.id: each.time_s for each in answer(whole, scores=None).candidates}
    assert pool.num_accelerators == 64
    assert {each.id: each.time_s for each in found.candidates}.items() <= expected.items()
    assert found.candidates


def test_sizes_named_are_estimated_and_no_other_is_offered(times):
    _, _, found = times('[[job]]\nworkload = "bert"\nsizes = [24, 48, 4096]\n')
    assert found[0].sizes == (24, 48)
    _, _, other = times('[[job]]\nworkload = "bert"\nsizes = [24]\n')
    assert other[0].time_s[0].value == pytest.approx(found[0].time_s[0].value, rel=1e-6)


def test_stated_times_are_the_users_own(times):
    _, _, found = times(
        '[[job]]\nname = "a"\ntimes = { 8 = ["3 h", "3 h"], 16 = "2 h", 128 = "1 h" }\n', price=[("", 2.0)]
    )
    assert found[0].sizes == (8, 16)
    assert [each.value for each in found[0].time_s] == pytest.approx([3 * 3600, 2 * 3600])
    # 16 accelerators for two hours at 2 USD.
    assert found[0].candidates[1].usd.value == pytest.approx(64.0)
    assert [each.grade for each in found[0].candidates] == ["measured", "measured"]
    assert found[0].notes


def test_measured_files_are_what_predict_makes_of_them(times, tmp_path):
    # T(N) = 100 s + 8000 s / N, exactly: Amdahl's law.
    rows = "".join(f"{size},{100 + 8000 / size}\n" for size in (4, 8, 16, 32))
    (tmp_path / "mine.csv").write_text(f"num_accelerators,time_to_train_s\n{rows}")
    _, _, found = times('[[job]]\nname = "a"\nfile = "mine.csv"\nsizes = [8, 64]\n')
    assert found[0].sizes == (8, 64)
    assert [each.value for each in found[0].time_s] == pytest.approx([1100, 225], rel=0.02)


def test_files_of_too_few_sizes_are_taken_as_measured(times, tmp_path):
    (tmp_path / "mine.csv").write_text("num_accelerators,time_to_train_s\n8,1000\n8,1100\n")
    _, _, found = times('[[job]]\nname = "a"\nfile = "mine.csv"\n')
    assert found[0].sizes == (8,)
    assert found[0].time_s[0].low < 1000 < found[0].time_s[0].high
    assert "too few" in found[0].notes[0].words


def test_rows_of_a_file_that_are_left_out_are_counted(times, tmp_path):
    rows = "".join(f"bert,{size},{100 + 8000 / size}\n" for size in (4, 8, 16, 32))
    (tmp_path / "mine.csv").write_text(
        f"workload,num_accelerators,time_to_train_s\n{rows}other,8,1\nother,16,1\n"
    )
    _, _, found = times('[[job]]\nname = "a"\nworkload = "bert"\nfile = "mine.csv"\nsizes = [8, 64]\n')
    (note,) = [each.words for each in found[0].notes if each.kind == "not_used"]
    assert re.match(r"a: .*\bworkload\b.*\bbert\b.* 2\.$", note)


@pytest.mark.parametrize(
    ("job", "error", "words"),
    [
        ('name = "mine"\nworkload = "llama2_7b"', UsageError, r"job 1 \(mine\): .*--tokens 1e12"),
        ('workload = "bert"\nsizes = [128]', UsageError, "128 accelerators .* 64"),
        ('name = "a"\ntimes = { 128 = "1 h" }', UsageError, r"job 1 \(a\): times on 128 accelerators"),
        ('times = { 128 = "1 h" }', UsageError, "job 1: times on 128 accelerators"),
        ('workload = "megatron_1t"\ntokens = 1e9', UsageError, "64"),
        ('workload = "bert"\nprecision = "int1"', DataError, "int1"),
        ('name = "a"\nfile = "steps.csv"', DataError, r"steps\.csv.*trainings"),
        ('workload = "retinanet"\nglobal_batch = 0.5', DataError, "whole number"),
        ('workload = "bert"\nconfig = "mine.json"', DataError, "config"),
        ('workload = "bert"\ntimes = { 8 = "3 h" }\nsamples = 1e6', DataError, "times.*samples"),
        ('name = "a"\nfile = "steps.csv"\ntokens = 1e9\nprecision = "bf16"', DataError, "file.*tokens"),
        ('workload = "retinanet"\ntrain = "lora"', UsageError, r"job 1 \(retinanet\): .*lora"),
    ],
)
def test_what_cannot_be_timed_names_the_job(times, tmp_path, job, error, words):
    (tmp_path / "steps.csv").write_text("num_accelerators,step_s,global_batch_samples\n8,1.0,8\n16,0.6,8\n")
    with pytest.raises(error, match=words):
        times(f"[[job]]\n{job}\n")


def test_cards_counted_by_name_are_in_the_same_host_as_for_advise(times, scores):
    tune = {"workload": "sdxl", "train": "lora", "examples": 1e3}
    job = '[[job]]\nworkload = "sdxl"\ntrain = "lora"\nexamples = 1000\n'
    for stated, nodes in (({}, 1), ({"node_size": 2}, 2)):
        _, pool, (found,) = times(job, "4x rtx4090", **stated)
        whole = answer(query(tune | {"accelerator": "4x rtx4090"} | stated), scores=scores)
        expected = {each.num_accelerators: each.time_s for each in whole.candidates}
        assert 4 in found.sizes
        assert {each.num_accelerators: each.time_s for each in found.candidates}.items() <= expected.items()
        assert pool.cluster.num_nodes == nodes


def test_a_pool_is_a_node_unless_it_has_a_number():
    alone = pool_of("dgx-h100", shipped())
    assert alone.num_accelerators == 8
    assert (
        len(alone.system.chosen_for_you) == len(pool_of("8x dgx-h100", shipped()).system.chosen_for_you) + 1
    )
    with pytest.raises(UsageError, match="no accelerators"):
        pool_of("0x dgx-h100", shipped())

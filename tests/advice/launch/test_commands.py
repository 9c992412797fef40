"""Commands and code that run an option: what is written must start, and say what the strategy says."""

import ast
import os
import subprocess
import sys

import pytest

from equipoise.advice.launch.commands import launch_snippets, ranks_per_host
from equipoise.advice.launch.model_parallel_code import pipeline_script, tensor_script
from equipoise.advice.launch.training_code import training_script
from equipoise.advice.plans.planned import Option
from equipoise.economics import bill, rates
from equipoise.errors import SpecError
from equipoise.spec.cluster import cluster
from equipoise.spec.hardware import accelerator
from equipoise.spec.strategy import strategy
from equipoise.stats import Interval

SCRIPTS = {
    "dp=2 microbatch=4 global_batch=16": training_script,
    "dp=8 microbatch=2 global_batch=16 precision=fp16 shard_state=1 recompute=full": training_script,
    "dp=8 microbatch=2 global_batch=16 shard_state=2 recompute=selective optimizer=adam_8bit": training_script,
    "dp=8 microbatch=2 global_batch=32 shard_state=3 offload=optimizer_and_params": training_script,
    "dp=4 microbatch=1 global_batch=4 compression=powersgd compression_rank=4": training_script,
    "dp=4 microbatch=1 global_batch=8 sync_period=8 optimizer=sgd": training_script,
    "microbatch=4 global_batch=8 precision=tf32": training_script,
    "dp=2 tp=4 microbatch=1 global_batch=8 sequence_parallel=true recompute=full": tensor_script,
    "tp=2 microbatch=1 global_batch=8": tensor_script,
    "dp=2 pp=4 interleave=2 microbatch=1 global_batch=16": pipeline_script,
}


def option(text, memory_bytes=1e9):
    plan = strategy(text)
    return Option(
        accelerator="h100-sxm5-80gb",
        strategy=plan,
        step_s=1.0,
        seconds={},
        memory_bytes=memory_bytes,
        memory={},
        samples=1.0,
        goodput=1.0,
        time=Interval(value=1.0, low=1.0, high=1.0, level=0.9),
        flop_share=None,
        bill=bill(plan.num_accelerators, 1.0, rates(accelerator("h100-sxm5-80gb"))),
    )


def snippets(text, name="dgx-h100", **facts):
    plan = strategy(text)
    return launch_snippets(option(text), cluster(name, num_accelerators=plan.num_accelerators), **facts)


def codes(found):
    return "\n".join(each.code for each in found)


@pytest.mark.parametrize("text", SCRIPTS)
def test_scripts_are_python_for_eighty_columns(text):
    code = SCRIPTS[text](strategy(text))
    ast.parse(code)
    assert max(map(len, code.splitlines())) <= 80


@pytest.mark.parametrize(
    "text",
    [
        "dp=2 microbatch=2 global_batch=8 precision=fp32 implementation=eager compression=fp16",
        "dp=2 microbatch=2 global_batch=8 precision=bf16 implementation=eager shard_state=3",
    ],
)
def test_scripts_train_on_two_ranks(text, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(training_script(strategy(text)).replace("NUM_STEPS = 10", "NUM_STEPS = 2"))
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2"]
    address = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    ran = subprocess.run(
        [*agent, *address, str(script)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert [line.split(":")[0] for line in ran.stdout.splitlines()] == ["step 0", "step 1"]


def test_one_host_starts_a_rank_for_each_accelerator():
    first = snippets("dp=4 microbatch=1 global_batch=4")[0]
    assert first.code == "torchrun --standalone --nproc-per-node=4 train.py\n"


def test_one_accelerator_needs_no_launcher():
    found = snippets("microbatch=4 global_batch=8", script="mine.py")
    assert found[0].code == "python mine.py\n"
    assert "init_process_group" not in codes(found)


def test_names_of_scripts_are_quoted():
    found = snippets("dp=2 microbatch=1 global_batch=2", script="my train.py; rm -rf .")
    assert found[0].code.endswith("'my train.py; rm -rf .'\n")


def test_hosts_meet_at_one_of_them():
    first, slurm, *_ = snippets("dp=24 microbatch=1 global_batch=24")
    assert "--nnodes=3 --nproc-per-node=8" in first.code
    assert '--rdzv-endpoint="$HEAD:29500"' in first.code
    assert slurm.code.startswith("export HEAD=")
    assert "srun --nodes=3 --ntasks-per-node=1 --gpus-per-node=8" in slurm.code


def test_a_rack_of_fast_links_is_many_hosts():
    plan = strategy("dp=72 microbatch=1 global_batch=72")
    assert ranks_per_host(cluster("gb200-nvl72", num_accelerators=72), plan) == 4


def test_microbatches_before_the_last_exchange_nothing():
    several = codes(snippets("dp=2 microbatch=2 global_batch=16"))
    assert "NUM_MICROBATCHES = 4" in several
    assert "no_sync()" in several
    assert "no_sync()" not in codes(snippets("dp=2 microbatch=8 global_batch=16"))


@pytest.mark.parametrize(("stage", "again"), [(2, False), (3, True)])
def test_the_zero_stage_says_whether_weights_are_gathered_again(stage, again):
    found = codes(snippets(f"dp=8 microbatch=1 global_batch=8 shard_state={stage}"))
    assert f"reshard_after_forward={again}" in found


def test_what_takes_torch_many_lines_is_said_in_frameworks_words():
    found = snippets(
        "dp=2 tp=8 pp=4 cp=2 interleave=2 microbatch=1 global_batch=64 sequence_parallel=true "
        "shard_state=1 recompute=selective precision=fp8"
    )
    megatron, torchtitan = found[-2:]
    for words in (
        "--tensor-model-parallel-size 8",
        "--pipeline-model-parallel-size 4",
        "--context-parallel-size 2",
        "--num-virtual-stages-per-pipeline-rank 2",
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--recompute-granularity selective",
        "--fp8-format hybrid",
        "--micro-batch-size 1",
        "--global-batch-size 64",
    ):
        assert words in megatron.code
    assert "--parallelism.pipeline_parallel_schedule Interleaved1F1B" in torchtitan.code
    assert "--parallelism.context_parallel_degree 2" in torchtitan.code
    assert "https://docs.nvidia.com/megatron-core" in megatron.why
    assert not any(each.title.startswith("train.py") for each in found)


def test_experts_get_an_axis_of_their_own():
    megatron = snippets("dp=8 ep=8 microbatch=1 global_batch=64")[-2]
    assert "--expert-model-parallel-size 8" in megatron.code


def test_adapters_and_narrow_products_name_their_libraries():
    found = snippets("dp=2 microbatch=1 global_batch=2 trained=lora lora_rank=16 precision=fp8_rowwise")
    assert "LoraConfig(r=16" in codes(found)
    assert 'from_recipe_name("rowwise")' in codes(found)


def test_every_snippet_has_a_reason_and_shell_lines_fit_a_terminal():
    for text in ("dp=24 microbatch=1 global_batch=24", "dp=2 tp=8 pp=2 microbatch=1 global_batch=8"):
        for each in snippets(text):
            assert each.why
            assert each.code.endswith("\n")
            assert max(map(len, each.code.splitlines())) <= 80


def test_accelerators_that_torch_does_not_start_are_refused():
    with pytest.raises(SpecError, match="is a tpu"):
        launch_snippets(option("dp=4 microbatch=1 global_batch=4"), cluster("tpu-v4", num_accelerators=4))

"""Options of torchtitan: each obeys the rules of its parser, and what has no option is listed."""

import pytest
from installed import imported, quiet
from option_table import faults, given, table

from equipoise.launch import program
from equipoise.spec.strategy import strategy
from equipoise.spec.workload import workload

TORCHTITAN = program("torchtitan")
RULES = table("torchtitan")
LLAMA = workload("llama31_405b").transformer


def options(text, model=LLAMA):
    return given(TORCHTITAN.translate(strategy(text), model).bash_text)


def unsupported(text, model=LLAMA):
    return " / ".join(TORCHTITAN.translate(strategy(text), model).unsupported)


def test_the_table_states_which_version_was_read():
    assert RULES["version"] == "0.3.0"
    assert RULES["read"].year >= 2026


def test_every_option_obeys_the_rules_of_the_parser(trained):
    text, model = trained
    found = TORCHTITAN.translate(strategy(text), model)
    assert faults(found.bash_text, RULES) == []
    assert found.options[-1].name.startswith("activation-checkpoint:")


def test_the_parser_of_torchtitan_takes_them(trained):
    """Where torchtitan is installed."""
    manager = imported("torchtitan.config.manager")
    imported("torchtitan.models.llama3.config_registry")  # which needs triton, that it does not ask for
    text, model = trained
    wanted = strategy(text)
    words = TORCHTITAN.translate(wanted, model).words
    named = ["--module", "llama3", "--config", "llama3_debugmodel"]
    with quiet():
        config = manager.ConfigManager().parse_args([*named, *words])
    axes = config.parallelism
    data = axes.data_parallel_replicate_degree * axes.data_parallel_shard_degree
    assert (data, axes.tensor_parallel_degree, axes.pipeline_parallel_degree) == (
        wanted.dp,
        wanted.tp,
        wanted.pp,
    )
    assert config.training.global_batch_size == wanted.global_batch_samples
    assert config.compile.enable == (wanted.implementation == "compiled")


def test_a_pipeline_takes_the_rank_s_whole_batch():
    found = options("dp=2 pp=2 microbatch=2 global_batch=32")
    assert found["training.local_batch_size"] == ["16"]
    assert found["parallelism.pipeline_parallel_microbatch_size"] == ["2"]


def test_without_a_pipeline_a_pass_is_a_micro_batch():
    found = options("dp=2 tp=2 microbatch=2 global_batch=32")
    assert found["training.local_batch_size"] == ["2"]
    assert found["training.global_batch_size"] == ["32"]


def test_compilation_and_recomputation_are_the_plan_s():
    found = options("dp=2 tp=2 microbatch=1 global_batch=2 implementation=eager recompute=full")
    assert "compile.no_enable" in found
    assert found[""] == ["activation-checkpoint:full"]
    assert "compile.enable" in options("dp=2 tp=2 microbatch=1 global_batch=2")


def test_chunks_other_than_the_default_need_layers_a_stage():
    text = "pp=7 interleave=3 microbatch=1 global_batch=28"
    assert options(text)["parallelism.pipeline_parallel_layers_per_stage"] == ["6"]  # 126 / 21
    assert "chunks" in unsupported(text, None)


def test_the_last_stage_lacks_the_layers_that_stages_do_not_divide():
    # 126 layers on 16 stages: fifteen of 8, and 6.
    found = options("pp=16 microbatch=1 global_batch=32")
    assert found["parallelism.pipeline_parallel_last_stage_less_layers"] == ["2"]
    assert not unsupported("pp=16 microbatch=1 global_batch=32 zero_stage=0")
    # 126 layers on 100 stages of at most 2: the last would have none.
    assert "126 layers" in unsupported("pp=100 microbatch=1 global_batch=200")


def test_of_dualpipe_it_has_the_v():
    # torch.distributed.pipelining, ScheduleDualPipeV: two stages a rank, at least as many micro-batches as stages.
    text = "pp=7 dp=2 ep=2 zero_stage=2 microbatch=1 global_batch=28 schedule=dualpipe_v"
    assert options(text)["parallelism.pipeline_parallel_schedule"] == ["DualPipeV"]
    assert "schedule=dualpipe" in unsupported(text.replace("dualpipe_v", "dualpipe"), None)
    assert "recompute=full" in unsupported(f"{text} recompute=full", None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("precision=fp8_rowwise", "rowwise"),
        ("precision=fp4", "NVFP4LinearConverter"),
        ("precision=fp16", "fp16"),
        ("zero_stage=1", "ZeRO stage 1"),
        ("optimizer=adam_8bit", "adam_8bit"),
        ("compression=topk", "topk"),
        ("sync_period=4", "averaging"),
        ("ep=4", "experts"),
    ],
)
def test_what_has_no_option_is_reported(text, words):
    assert words in unsupported(f"dp=8 tp=2 microbatch=1 global_batch=8 {text}")


def test_adapters_print_no_options():
    assert not options("dp=4 tp=2 microbatch=1 global_batch=8 trained=lora lora_rank=8")[""]
    assert "adapters" in unsupported("dp=4 tp=2 microbatch=1 global_batch=8 trained=lora lora_rank=8")

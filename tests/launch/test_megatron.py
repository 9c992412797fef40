"""Options of Megatron-LM: each obeys the rules of its parser, and what has no option is listed."""

import math
import re

import pytest
from option_table import faults, given, table

from equipoise.launch import program
from equipoise.launch.program import pipeline_layout, stage_layers
from equipoise.perfmodel.estimate import stages as stages_of_time_model
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import transformer_load
from equipoise.spec.strategy import strategy
from equipoise.spec.workload import workload

MEGATRON = program("Megatron-LM")
RULES = table("megatron")
DEEPSEEK = workload("deepseek_v3").transformer
LLAMA = workload("llama31_405b").transformer


def options(text, model=LLAMA):
    return given(MEGATRON.translate(strategy(text), model).bash_text)


def unsupported(text, model=LLAMA):
    return " / ".join(MEGATRON.translate(strategy(text), model).unsupported)


def layers_of(layout):
    """Layers of each stage, by the grammar that Megatron-LM's help states: | ends a stage, * repeats."""
    text = layout
    while "(" in text:
        text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    text = re.sub(r"t\*(\d+)", lambda found: "t" * int(found[1]), text)
    return [stage.count("t") for stage in text.split("|")]


def test_layers_of_state_spaces_are_of_the_hybrid_model_and_its_pattern():
    """megatron/core/models/hybrid: one symbol of --hybrid-layer-pattern a layer, M for Mamba-2, | for stages."""
    text, hybrid = (
        "dp=4 tp=2 pp=6 interleave=10 microbatch=1 global_batch=48",
        workload("nemotron_h_56b").transformer,
    )
    assert "--hybrid-layer-pattern" in unsupported(text, hybrid)
    assert not {"pipeline-model-parallel-layout", "num-virtual-stages-per-pipeline-rank"} & {
        *options(text, hybrid)
    }
    # A gated delta net stands in for attention: --experimental-attention-variant of the usual program.
    assert "hybrid" not in unsupported(
        text.replace("pp=6 interleave=10", "pp=2"), workload("qwen35_27b").transformer
    )
    assert "hybrid" not in unsupported(text)
    assert "num-virtual-stages-per-pipeline-rank" in options("dp=4 pp=2 interleave=9 global_batch=48")


def test_the_table_states_where_and_when_it_was_read():
    assert RULES["source"].startswith("https://github.com/NVIDIA/Megatron-LM/blob/")
    assert RULES["read"].year >= 2026
    assert len(RULES["options"]) > 30


def test_every_option_obeys_the_rules_of_the_parser(trained):
    text, model = trained
    found = MEGATRON.translate(strategy(text), model)
    assert found.options
    assert faults(found.bash_text, RULES) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("--tensor-parallel 8", "unknown"),
        ("--tp-comm-overlap", "needs sequence-parallel"),
        ("--fp8-format hybrid --fp8-recipe rowwise", "no choice"),
        ("--fp16 --bf16", "excludes"),
        ("--use-megatron-fsdp --ckpt-format torch_dist", "needs ckpt-format=fsdp_dtensor"),
        ("--bf16 yes", "bf16 takes"),
    ],
)
def test_the_table_refuses_what_the_parser_refuses(code, words):
    assert words in " ".join(faults(code, RULES))


def test_the_batch_is_the_plan_s():
    found = options("dp=4 tp=2 microbatch=2 global_batch=64")
    assert found["micro-batch-size"] == ["2"]
    assert found["global-batch-size"] == ["64"]


def test_layers_that_stages_do_not_divide_get_a_layout():
    found = options("dp=4 tp=4 pp=16 ep=16 microbatch=1 global_batch=64 sequence_parallel=true", DEEPSEEK)
    stages = layers_of(found["pipeline-model-parallel-layout"][0])
    assert len(stages) == 16
    assert sum(stages) == 61
    assert max(stages) == 4
    assert "pipeline-model-parallel-layout" not in options("pp=2 microbatch=1 global_batch=8")


@pytest.mark.parametrize(
    ("layers", "stages"), [(61, 16), (126, 63), (5, 4), (7, 2), (32, 8), (80, 12), (9, 7)]
)
def test_layouts_hold_every_layer_once(layers, stages):
    found = layers_of(pipeline_layout(stage_layers(layers, stages)))
    assert len(found) == stages
    assert sum(found) == layers
    assert max(found) == math.ceil(layers / stages)
    assert min(found) > 0


@pytest.mark.parametrize(("pp", "interleave"), [(16, 1), (4, 2), (7, 1), (4, 3)])
def test_stages_are_those_that_the_time_model_times(pp, interleave):
    plan = strategy(f"pp={pp} interleave={interleave} microbatch=1 global_batch={2 * pp}")
    timed = stages_of_time_model(transformer_load(DEEPSEEK, sequence=4096), grid([plan]))
    counts = stage_layers(DEEPSEEK.layers, pp, interleave)
    by_rank = [sum(counts[rank::pp]) for rank in range(pp)]
    assert max(by_rank) == timed.fullest
    assert by_rank[-1] == timed.last


def test_layouts_are_read_by_megatron_core():
    read = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")
    layout = pipeline_layout(stage_layers(61, 16), 1)
    assert read.PipelineParallelLayerLayout.get_num_stages_from_str(layout) == 16


def test_experts_are_not_cut_by_tensor_parallelism():
    found = options("dp=4 tp=4 ep=16 microbatch=1 global_batch=64 sequence_parallel=true", DEEPSEEK)
    assert found["num-experts"] == ["256"]
    assert found["expert-model-parallel-size"] == ["16"]
    assert found["expert-tensor-parallel-size"] == ["1"]


def test_selective_recomputation_names_what_is_recomputed():
    text = "dp=4 tp=2 microbatch=1 global_batch=8 recompute=selective"
    assert options(text)["recompute-modules"] == ["layernorm", "mlp"]
    assert "product" in unsupported(text)
    unfused = f"{text} fused_attention=false"
    assert options(unfused)["recompute-modules"] == ["core_attn"]
    assert options(unfused)["attention-backend"] == ["unfused"]
    assert "product" not in unsupported(unfused)


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("bf16", {"bf16": []}),
        ("fp16", {"fp16": []}),
        ("fp8", {"bf16": [], "fp8-format": ["hybrid"], "fp8-recipe": ["tensorwise"]}),
        ("mxfp8", {"bf16": [], "fp8-format": ["hybrid"], "fp8-recipe": ["mxfp8"]}),
        ("fp4", {"bf16": [], "fp4-format": ["e2m1"], "fp4-recipe": ["nvfp4"]}),
        ("fp32", {}),
    ],
)
def test_precisions_have_their_own_options(precision, expected):
    found = options(f"dp=4 tp=2 microbatch=1 global_batch=8 precision={precision}")
    names = {"bf16", "fp16", "fp8-format", "fp8-recipe", "fp4-format", "fp4-recipe"}
    assert {name: value for name, value in found.items() if name in names} == expected


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, {"overlap-grad-reduce": []}),
        (1, {"overlap-grad-reduce": [], "overlap-param-gather": [], "use-distributed-optimizer": []}),
        (2, {"data-parallel-sharding-strategy": ["optim_grads"]}),
        (3, {"data-parallel-sharding-strategy": ["optim_grads_params"]}),
    ],
)
def test_zero_stages_have_their_own_options(stage, expected):
    found = options(f"dp=4 tp=2 microbatch=1 global_batch=8 zero_stage={stage}")
    assert expected.items() <= found.items()
    assert ("use-megatron-fsdp" in found) == (stage >= 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("precision=fp8_rowwise", "by row"),
        ("precision=tf32", "tf32"),
        ("compression=powersgd", "powersgd"),
        ("sync_period=8", "averaging"),
        ("offload=optimizer_and_params", "offloading"),
        ("optimizer=adam_8bit zero_stage=3", "8-bit Adam"),
        ("implementation=compiled", "torch.compile"),
    ],
)
def test_what_has_no_option_is_reported(text, words):
    assert words in unsupported(f"dp=4 tp=2 microbatch=1 global_batch=8 {text}")


def test_adapters_print_no_options_that_train_all_weights():
    found = MEGATRON.translate(
        strategy("dp=4 tp=2 microbatch=1 global_batch=8 trained=lora lora_rank=16"), LLAMA
    )
    assert found.options == ()
    assert "adapters" in found.unsupported[0]


def test_eight_bit_adam_stores_its_states_in_eight_bits():
    found = options("dp=4 tp=2 microbatch=1 global_batch=8 zero_stage=1 optimizer=adam_8bit")
    assert found["exp-avg-dtype"] == found["exp-avg-sq-dtype"] == ["fp8"]


def test_a_model_that_is_not_known_leaves_its_sizes_open():
    found = unsupported("dp=8 pp=2 ep=8 microbatch=1 global_batch=64", None)
    assert "layers" in found
    assert "--num-experts" in found


@pytest.mark.filterwarnings("ignore")
def test_megatron_core_takes_stages_and_recomputation(trained):
    """Where megatron-core is installed, its own checks of the model's configuration pass."""
    config = pytest.importorskip("megatron.core.transformer.transformer_config").TransformerConfig
    torch = pytest.importorskip("torch")
    text, model = trained
    wanted, found = strategy(text), given(MEGATRON.translate(strategy(text), model).bash_text)

    def number(name):
        return int(found[name][0]) if name in found else None

    built = config(
        num_layers=model.layers,
        hidden_size=model.hidden,
        num_attention_heads=model.heads,
        tensor_model_parallel_size=wanted.tp,
        pipeline_model_parallel_size=wanted.pp,
        context_parallel_size=wanted.cp,
        sequence_parallel="sequence-parallel" in found,
        virtual_pipeline_model_parallel_size=number("num-virtual-stages-per-pipeline-rank"),
        pipeline_model_parallel_layout=found.get("pipeline-model-parallel-layout", [None])[0],
        mtp_num_layers=number("mtp-num-layers"),
        pipeline_dtype=torch.bfloat16,
        recompute_granularity=found.get("recompute-granularity", [None])[0],
        recompute_method=found.get("recompute-method", [None])[0],
        recompute_num_layers=number("recompute-num-layers"),
        recompute_modules=found.get("recompute-modules"),
        add_bias_linear=False,
        num_moe_experts=number("num-experts"),
        moe_grouped_gemm="moe-grouped-gemm" in found,
        gradient_accumulation_fusion=False,
    )
    assert (built.virtual_pipeline_model_parallel_size or 1) == wanted.interleave


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gemma3_27b", "tp=2,dp=2,cp=4,global_batch=64", "all_gather"),
        ("gemma3_27b", "tp=2,dp=2,cp=4,ulysses=true,global_batch=64", "a2a"),
        ("llama31_405b", "tp=2,dp=2,cp=4,global_batch=64", None),
    ],
)
def test_windows_do_not_go_around_a_ring(name, text, expected):
    """Transformer Engine: sliding windows need cp_comm_type a2a or all_gather."""
    assert options(text, workload(name).transformer).get("cp-comm-type", [None]) == [expected]

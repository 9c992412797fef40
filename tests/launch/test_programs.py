"""Every program expresses every field of a strategy, or says that it cannot."""

import json
import re
from pathlib import Path

import pytest

from equipoise.launch import PROGRAMS, SNIPPETS, launch_snippets
from equipoise.launch.text import yaml_text
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import Strategy, strategy
from equipoise.spec.workload import workload

DENSE, EXPERTS = workload("llama31_405b").transformer, workload("deepseek_v3").transformer
BASE = "dp=8 microbatch=1 global_batch=64"
# Each pair differs in one field alone; where the field means nothing without another, both have the other.
PAIRS = {
    "global_batch_samples": (BASE, "dp=8 microbatch=1 global_batch=128"),
    "microbatch_samples": (BASE, "dp=8 microbatch=2 global_batch=64"),
    "dp": (BASE, "dp=4 microbatch=1 global_batch=64"),
    "tp": (BASE, f"{BASE} tp=2"),
    "pp": (BASE, f"{BASE} pp=2"),
    "cp": (BASE, f"{BASE} cp=2"),
    "ep": (BASE, f"{BASE} ep=8"),
    "zero_stage": (BASE, f"{BASE} zero_stage=1"),
    "whole_gradients": (f"{BASE} zero_stage=3", f"{BASE} zero_stage=3 whole_gradients=true"),
    "gradient_copies": (f"{BASE} zero_stage=1", f"{BASE} zero_stage=1 gradient_copies=true"),
    "dp_replicate": (f"{BASE} zero_stage=3", f"{BASE} zero_stage=3 dp_replicate=2"),
    "ulysses": (f"{BASE} cp=2", f"{BASE} cp=2 ulysses=true"),
    "dispatch_copies": (f"{BASE} ep=2", f"{BASE} ep=2 dispatch_copies=true"),
    "interleave": (f"{BASE} pp=2", f"{BASE} pp=2 interleave=3"),
    "schedule": (f"{BASE} pp=2", f"{BASE} pp=2 schedule=dualpipe_v"),
    "sequence_parallel": (f"{BASE} tp=2", f"{BASE} tp=2 sequence_parallel=true"),
    "tp_overlap": (f"{BASE} tp=2", f"{BASE} tp=2 tp_overlap=true"),
    "fused_attention": (BASE, f"{BASE} fused_attention=false"),
    "native_attention": (BASE, f"{BASE} native_attention=true"),
    "fused_loss": (BASE, f"{BASE} fused_loss=false"),
    "plain_loss": (BASE, f"{BASE} plain_loss=true"),
    "chunked_loss": (BASE, f"{BASE} chunked_loss=true"),
    "recompute": (f"{BASE} recompute=full", f"{BASE} recompute=selective"),
    "precision": (BASE, f"{BASE} precision=fp8_rowwise"),
    "implementation": (BASE, f"{BASE} implementation=eager"),
    "cuda_graphs": (BASE, f"{BASE} cuda_graphs=true"),
    "full_graphs": (BASE, f"{BASE} full_graphs=true"),
    "optimizer": (BASE, f"{BASE} optimizer=adam_8bit"),
    "master_weights": (BASE, f"{BASE} master_weights=false"),
    "offload": (BASE, f"{BASE} offload=optimizer"),
    "activation_offload": (f"{BASE} recompute=full", f"{BASE} recompute=full activation_offload=true"),
    "compression": (BASE, f"{BASE} compression=topk"),
    "compression_rank": (f"{BASE} compression=powersgd", f"{BASE} compression=powersgd compression_rank=2"),
    "sync_period": (BASE, f"{BASE} sync_period=8"),
    "trained": (f"{BASE} lora_rank=8", f"{BASE} lora_rank=8 trained=qlora"),
    "lora_rank": (f"{BASE} trained=lora lora_rank=8", f"{BASE} trained=lora lora_rank=16"),
    "lora_targets": (
        f"{BASE} trained=lora lora_rank=8 lora_targets=attention",
        f"{BASE} trained=lora lora_rank=8 lora_targets=all_linear",
    ),
}
# These compute dp from the number of processes.
FROM_PROCESSES = ("Megatron-LM", "NeMo (Megatron-Bridge)")


def named(program):
    return program.name


@pytest.mark.parametrize("field", Strategy.__struct_fields__)
@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_no_field_is_dropped(program, field):
    """Changing one field changes an option, or what is listed as having none."""
    first, second = (program.translate(strategy(text), DENSE) for text in PAIRS[field])
    if field == "dp" and program.name in FROM_PROCESSES:
        assert first.options == second.options
    else:
        assert first != second


@pytest.mark.parametrize("field", Strategy.__struct_fields__)
def test_scripts_drop_no_field(field):
    """The scripts of this package obey the same rule."""
    found = []
    for text in PAIRS[field]:
        plan = strategy(text)
        nodes = cluster("dgx-h100", num_accelerators=plan.num_accelerators)
        scripts = [each for each in launch_snippets(plan, nodes) if each.target == "torch"]
        found.append([(each.code, each.unsupported) for each in scripts])
    if field == "dp":  # as many as there are processes
        return
    if field in ("ulysses", "dispatch_copies"):  # of axes that they do not have
        assert found == [[], []]
        return
    assert found[0]
    assert found[0] != found[1]


@pytest.mark.parametrize("axes", ["dp=8", "dp=4 tp=2"])
def test_scripts_hold_gradients_whole_only_where_the_plan_counts_them_so(axes):
    """FSDP's `set_requires_gradient_sync` leaves 4 bytes a weight on every rank until the last micro-batch."""
    text = f"{axes} microbatch=1 global_batch=64 zero_stage="
    for rest, is_whole in (("3", False), ("2", False), ("3 whole_gradients=true", True)):
        plan = strategy(text + rest)
        nodes = cluster("dgx-h100", num_accelerators=plan.num_accelerators)
        code = [each.code for each in launch_snippets(plan, nodes) if each.target == "torch"]
        assert ["set_requires_gradient_sync" in each for each in code] == [is_whole]


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_no_precision_passes_for_another(program):
    """Two precisions have the same text only where one of them is listed as having none."""
    texts = [
        f"{BASE} precision={each}" for each in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp8_rowwise", "fp4")
    ]
    found = [program.translate(strategy(text), DENSE) for text in texts]
    assert len(set(found)) == len(texts)


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_names_of_options_are_given_once(program, trained):
    text, model = trained
    found = [each.name for each in program.translate(strategy(text), model).options]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("program", [each for each in PROGRAMS if each.form == "yaml"], ids=named)
def test_yaml_reads_back_as_the_options(program, trained):
    yaml = pytest.importorskip("yaml")
    text, model = trained
    found = program.translate(strategy(text), model)
    assert (yaml.safe_load(program.text(found)) or {}) == found.document


@pytest.mark.parametrize(
    "name",
    [
        "yes",
        "null",
        "1e3",
        "a: b",
        "- x",
        "#",
        "'",
        '"',
        "a\nb",
        "${x}",
        "é",
        "{}",
        "&a *b",
        "!!python/x",
        " ",
    ],
)
def test_yaml_keeps_any_text(name):
    yaml = pytest.importorskip("yaml")
    document = {"name": name, name: [name, {"inside": [name]}], "script": f"{name}\n"}
    assert yaml.safe_load(yaml_text(document)) == document


def test_documents_are_sections_of_values():
    found = next(each for each in PROGRAMS if each.form == "json")
    document = json.loads(found.text(found.translate(strategy(f"{BASE} zero_stage=3 offload=optimizer"))))
    assert document["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert document["train_batch_size"] == 64


def test_deepspeed_moves_the_weights_of_one_accelerator_to_its_host():
    # offload_param is of stage 3 alone (deepspeed.ai, DeepSpeed Configuration JSON, ZeRO options).
    (deepspeed,) = (each for each in PROGRAMS if each.form == "json")
    one = strategy("microbatch=1 global_batch=8 offload=optimizer_and_params")
    written = json.loads(deepspeed.text(deepspeed.translate(one)))["zero_optimization"]
    assert (written["stage"], written["offload_param"]["device"]) == (3, "cpu")


@pytest.mark.parametrize("optimizer", ["adam", "adam_8bit", "sgd"])
def test_a_learning_rate_that_stands_in_for_the_users_is_named_beside_what_is_left_out(optimizer):
    """A configuration has no comments, and the rate of a placeholder ruins a fine-tuning."""
    (deepspeed,) = (each for each in PROGRAMS if each.form == "json")
    found = deepspeed.translate(strategy(f"{BASE} optimizer={optimizer}"))
    written = json.loads(deepspeed.text(found))["optimizer"]["params"]["lr"]
    assert any(f"rate: {written} " in each for each in found.unsupported)


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_experts_keep_their_own_tensor_axis(program):
    text = "dp=8 tp=2 ep=16 microbatch=1 global_batch=64 sequence_parallel=true"
    found = program.translate(strategy(text), EXPERTS)
    written = {each.name.rpartition(".")[2].replace("-", "_"): each.value for each in found.options}
    assert written.get("expert_tensor_parallel_size", 1) == 1
    assert "expert" in " ".join(written) or "ep=16" in " ".join(found.unsupported)


def test_the_page_names_every_target_and_a_test_that_is_there():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "decide" / "launch.md").read_text()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if "`test_" in line
    ]
    rows = {row[0]: row for row in cells if len(row) == 5}
    files = {each.target: each.file for _, _, each in SNIPPETS["platform"]}
    files |= {each.name: each.file for each in PROGRAMS}
    assert set(rows) == set(files)
    sources = "".join(path.read_text() for path in (root / "tests").glob("*/test_*.py"))
    for name, (_, file, _, test, _) in rows.items():
        assert file == f"`{files[name]}`"
        assert re.fullmatch(r"`test_\w+`", test)
    named = re.findall(r"`(test_\w+)`", page)
    assert named
    assert all(f"def {each}(" in sources for each in named)

"""Every generated file is accepted by the program it is for: its own parser, its own schema, or a run."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
from installed import imported, quiet
from waiting import ahead_of_others

from equipoise.launch import SKYPILOT_NAMES, launch_files, launch_snippets, program
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import strategy
from equipoise.spec.workload import workload

LLAMA = workload("llama31_405b")
SMALL = (
    "dp=8 microbatch=2 global_batch=64",
    "dp=4 microbatch=1 global_batch=64 zero_stage=1 recompute=selective",
    "dp=16 microbatch=1 global_batch=64 zero_stage=2 precision=fp16 recompute=full implementation=eager",
    "dp=16 microbatch=1 global_batch=64 zero_stage=3 offload=optimizer_and_params optimizer=adam_8bit",
    "dp=8 microbatch=1 global_batch=64 zero_stage=2 precision=fp32 optimizer=sgd compression=fp16",
    "dp=16 microbatch=1 global_batch=64 zero_stage=3 dp_replicate=2 recompute=full activation_offload=true",
    "dp=2 microbatch=1 global_batch=64 recompute=full activation_offload=true",
    "dp=4 tp=2 microbatch=1 global_batch=8 zero_stage=3 tp_overlap=true sequence_parallel=true",
    "dp=4 cp=2 microbatch=1 global_batch=8 zero_stage=3 trained=lora lora_rank=16",
    "dp=8 ep=8 microbatch=1 global_batch=64 zero_stage=2 precision=fp8 trained=qlora lora_rank=4",
    "dp=8 microbatch=1 global_batch=64 zero_stage=3 recompute=full offload=optimizer_and_params trained=lora lora_rank=16",
    "microbatch=4 global_batch=16",
)


def of_program(name, text, model=LLAMA.transformer):
    """What is written for a program, and the strategy."""
    plan = strategy(text)
    found = program(name)
    return found.text(found.translate(plan, model)), plan


def files(text, name="dgx-h100", **facts):
    plan = strategy(text)
    nodes = cluster(name, num_accelerators=plan.num_accelerators)
    return launch_files(plan, launch_snippets(plan, nodes, **facts))


@pytest.mark.parametrize("text", SMALL)
def test_deepspeed_reads_its_configuration(text, tmp_path, monkeypatch):
    config = imported("deepspeed.runtime.config")
    # It asks for its rank, and would compile its own collectives to answer on processors.
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
    (tmp_path / "deepspeed.json").write_text(files(text)["deepspeed.json"])
    plan = strategy(text)

    class Groups:
        """The one thing of a parallel run that the reader asks for."""

        @staticmethod
        def get_data_parallel_world_size():
            return plan.dp

    with quiet():
        found = config.DeepSpeedConfig(str(tmp_path / "deepspeed.json"), mpu=Groups)
    assert found.train_batch_size == plan.global_batch_samples
    assert found.train_micro_batch_size_per_gpu == plan.microbatch_samples
    assert found.gradient_accumulation_steps == plan.num_microbatches
    assert found.zero_optimization_stage == plan.zero_stage
    assert found.float16_config.enabled == (plan.precision == "fp16")
    assert found.bfloat16_config.enabled == (plan.precision not in {"fp16", "fp32"})
    offloads = found.zero_config.offload_optimizer
    assert (offloads is not None and offloads.device == "cpu") == (plan.offload != "none")
    assert max(1, found.tensor_parallel_config.autotp_size) == plan.tp
    assert found.optimizer_name.lower() == ("sgd" if plan.optimizer == "sgd" else "adamw")
    assert found.expert_parallel_config.autoep_size == plan.ep
    assert found.activation_checkpointing_config.cpu_checkpointing == plan.activation_offload


def test_transformers_reads_the_configuration_of_deepspeed():
    """Its Trainer reads the file as plain JSON."""
    text = files("dp=4 microbatch=1 global_batch=64 zero_stage=3")["deepspeed.json"]
    assert json.loads(text)["zero_optimization"]["stage"] == 3


@pytest.mark.parametrize("text", SMALL)
def test_accelerate_launch_reads_its_configuration(text, mine):
    launch = imported("accelerate.commands.launch")
    path = mine(files(text)["accelerate.yaml"], "accelerate.yaml")
    plan = strategy(text)
    words = ["--config_file", str(path), "--num_machines", "1", "train.py"]
    args, _, _ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
    assert args.num_processes == plan.num_accelerators
    sharded = plan.zero_stage > 0 or plan.offload != "none" or plan.tp * plan.cp > 1
    assert args.use_fsdp == sharded
    assert args.multi_gpu == (not sharded and plan.num_accelerators > 1)
    wanted = {"fp32": "no", "tf32": "no", "fp8": "fp8", "fp16": "fp16"}.get(plan.precision, "bf16")
    assert args.mixed_precision == wanted
    assert args.dynamo_backend.upper() == ("INDUCTOR" if plan.implementation == "compiled" else "NO")
    if sharded:
        assert args.fsdp_version == 2
        assert args.fsdp_reshard_after_forward == plan.shards_weights
        assert args.fsdp_activation_checkpointing == (plan.recompute != "none")
        assert str(args.fsdp_activation_checkpointing_offload).lower() == str(plan.activation_offload).lower()


@pytest.mark.parametrize("text", [each for each in SMALL if re.search("(tp|cp|dp_replicate)=2", each)])
def test_accelerate_makes_the_axes(text, mine, monkeypatch):
    launch = imported("accelerate.commands.launch")
    utils = imported("accelerate.utils.launch")
    parallel = imported("accelerate.parallelism_config")
    path = mine(files(text)["accelerate.yaml"], "accelerate.yaml")
    words = ["--config_file", str(path), "--num_machines", "1", "train.py"]
    args, _, _ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
    for name, value in utils.prepare_multi_gpu_env(args).items():
        if name.startswith("PARALLELISM_CONFIG"):
            monkeypatch.setenv(name, value)
    found, plan = parallel.ParallelismConfig(), strategy(text)
    assert (found.tp_size, found.cp_size) == (plan.tp, plan.cp)
    assert (found.dp_replicate_size, found.dp_shard_size * found.dp_replicate_size) == (
        plan.dp_replicate,
        plan.dp,
    )
    assert found.total_size == plan.num_accelerators


def test_accelerate_starts_a_script_with_its_configuration(tmp_path):
    """On processors, of which a run needs no more than the launcher itself."""
    imported("accelerate")
    (tmp_path / "accelerate.yaml").write_text(
        files("microbatch=1 global_batch=4 precision=fp32")["accelerate.yaml"]
    )
    (tmp_path / "train.py").write_text(
        "import os; print('mixed', os.environ['ACCELERATE_MIXED_PRECISION'])\n"
    )
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        "accelerate.yaml",
        "--cpu",
    ]
    ran = subprocess.run(
        [*command, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "mixed no" in ran.stdout


@pytest.mark.parametrize("text", [each for each in SMALL if "tf32" not in each])
def test_the_trainer_reads_its_arguments(text, tmp_path):
    transformers = imported("transformers")
    imported("accelerate")
    # On a machine without accelerators it refuses bf16 unless its arguments ask it to compute on processors.
    (tmp_path / "trainer.yaml").write_text(files(text)["trainer.yaml"] + "use_cpu: true\n")
    plan = strategy(text)
    with quiet():
        parser = transformers.HfArgumentParser(transformers.TrainingArguments)
        (found,) = parser.parse_yaml_file(str(tmp_path / "trainer.yaml"))
    assert found.per_device_train_batch_size == plan.microbatch_samples
    assert found.gradient_accumulation_steps == plan.num_microbatches
    assert found.torch_compile == (plan.implementation == "compiled")
    assert (
        found.optim.value
        == {"adam": "adamw_torch", "adam_8bit": "adamw_bnb_8bit", "sgd": "sgd"}[plan.optimizer]
    )
    assert (found.fp16, found.bf16) == (plan.precision == "fp16", plan.precision not in {"fp16", "fp32"})
    sharded = plan.zero_stage > 0 or plan.offload != "none" or plan.tp * plan.cp > 1
    assert bool(found.fsdp) == sharded
    if sharded:
        assert found.fsdp_plugin_args["reshard_after_forward"] == plan.shards_weights
        assert found.fsdp_plugin_args.get("activation_checkpointing", False) == (plan.recompute != "none")
        assert found.fsdp_plugin_args.get("cpu_offload", False) == (plan.offload != "none")
    else:
        assert bool(found.gradient_checkpointing) == (plan.recompute != "none")
        assert (found.gradient_checkpointing_kwargs or {}).get("offload", False) == plan.activation_offload


def test_nemo_s_records_take_its_sections(trained):
    """Sections that are records of megatron-core are made; the fields of Megatron-Bridge's own are looked up."""
    text, model = trained
    yaml = imported("yaml")
    core = imported("megatron.core.transformer.transformer_config")
    optimizer = imported("megatron.core.optimizer.optimizer_config")
    ddp = imported("megatron.core.distributed.distributed_data_parallel_config")
    enums = imported("megatron.core.transformer.enums")
    torch = imported("torch")
    written, plan = of_program("NeMo (Megatron-Bridge)", text, model)
    document = yaml.safe_load(written)
    section = document["model"]
    backend = section.pop("attention_backend")
    assert backend.pop("_target_") == f"{enums.__name__}.AttnBackend"
    assert enums.AttnBackend(*backend["_args_"]).name == ("flash" if plan.fused_attention else "unfused")
    experts = {"num_moe_experts": model.experts} if model.experts else {}
    with quiet():
        built = core.TransformerConfig(
            num_layers=model.layers,
            hidden_size=model.hidden,
            num_attention_heads=model.heads,
            pipeline_dtype=torch.bfloat16,
            add_bias_linear=False,
            bf16=plan.precision != "fp16",
            **experts,
            **{"gradient_accumulation_fusion": False, **section},
        )
        if (
            find_spec("transformer_engine") is None
            and "use_precision_aware_optimizer" in document["optimizer"]
        ):
            # It asks Transformer Engine, which is built for GPUs, for its version.
            assert set(document["optimizer"]) <= {each.name for each in fields(optimizer.OptimizerConfig)}
        else:
            optimizer.OptimizerConfig(**document["optimizer"])
        ddp.DistributedDataParallelConfig(**document["ddp"])
    assert built.tensor_model_parallel_size == plan.tp
    assert (built.virtual_pipeline_model_parallel_size or 1) == plan.interleave
    assert not model.experts or built.expert_tensor_parallel_size == 1
    sections = {"model", "optimizer", "ddp", "train", "mixed_precision", "checkpoint", "peft", "rng"}
    assert set(document) <= sections


def test_nemo_s_own_sections_have_the_fields_that_are_written():
    yaml = imported("yaml")
    if find_spec("megatron") is None or find_spec("megatron.bridge") is None:
        pytest.skip("megatron-bridge is not installed")
    # It imports Transformer Engine, which is built for GPUs: its sources are read instead.
    (folder,) = find_spec("megatron.bridge").submodule_search_locations
    names = fields_in(Path(folder, "training", "config.py"))
    recipes = Path(folder, "training", "mixed_precision.py").read_text()
    adapters = fields_in(Path(folder, "peft", "lora.py"))["LoRA"]
    canonical = fields_in(Path(folder, "peft", "canonical_lora.py"))["CanonicalLoRA"]
    for text in (
        "dp=4 tp=2 microbatch=1 global_batch=8 trained=lora lora_rank=8 zero_stage=3",
        "dp=4 tp=2 microbatch=1 global_batch=8 trained=lora lora_rank=8 lora_targets=query_value",
        "dp=4 microbatch=1 global_batch=8 precision=mxfp8",
        "dp=4 microbatch=1 global_batch=8 precision=fp4",
        "dp=4 microbatch=1 global_batch=8 precision=fp8",
        "dp=4 microbatch=1 global_batch=8 precision=fp16",
    ):
        document = yaml.safe_load(of_program("NeMo (Megatron-Bridge)", text)[0])
        assert set(document) <= names["ConfigContainer"]
        assert set(document["train"]) <= names["TrainingConfig"]
        assert set(document.get("checkpoint", ())) <= names["CheckpointConfig"]
        assert f"def {document['mixed_precision']}()" in recipes
        fields = canonical if "query_value" in text else adapters
        assert set(document.get("peft", ())) - {"_target_"} <= fields


def fields_in(path):
    """The fields of the classes of a source file, by class."""
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    return {
        each.name: {line.target.id for line in each.body if isinstance(line, ast.AnnAssign)}
        for each in classes
    }


TEXTS = (
    "dp=24 microbatch=1 global_batch=24",
    "dp=4 microbatch=1 global_batch=4 zero_stage=3",
    "dp=2 tp=8 pp=9 cp=2 interleave=2 microbatch=1 global_batch=36 sequence_parallel=true",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("system", ["dgx-h100", "gb200-nvl72", "mi300x-oam-192gb", "xeon-8480-cpu"])
def test_kubernetes_takes_its_documents(text, system):
    yaml = imported("yaml")
    models = imported("kubeflow_trainer_api.models")
    written, plan = files(text, system, workload=LLAMA), strategy(text)
    for name, kind in (("trainjob.yaml", "TrainerV1alpha1TrainJob"), ("jobset.yaml", "JobsetV1alpha2JobSet")):
        document = yaml.safe_load(written[name])
        found = getattr(models, kind).from_dict(document)
        # What the schema does not know is not kept: nothing was lost.
        assert found.to_dict() == document
    trainer = yaml.safe_load(written["trainjob.yaml"])["spec"]["trainer"]
    assert trainer["numNodes"] * trainer["numProcPerNode"] == plan.num_accelerators
    (job,) = yaml.safe_load(written["jobset.yaml"])["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    parser = pytest.importorskip("torch.distributed.run").get_args_parser()
    found = parser.parse_args(container["command"][1:])
    assert int(found.nnodes) * int(found.nproc_per_node) == plan.num_accelerators
    assert job["template"]["spec"]["completions"] == int(found.nnodes)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("system", ["dgx-h100", "xeon-8480-cpu"])
def test_skypilot_takes_its_task(text, system, tmp_path, monkeypatch):
    sky = imported("sky")
    yaml = imported("yaml")
    monkeypatch.chdir(tmp_path)
    plan = strategy(text)
    with quiet():
        task = sky.Task.from_yaml_config(yaml.safe_load(files(text, system)["sky.yaml"]))
    assert task.num_nodes * cluster_ranks(task, plan) == plan.num_accelerators
    checked = subprocess.run(["bash", "-n"], input=task.run, text=True, check=False, timeout=60)
    assert checked.returncode == 0


def cluster_ranks(task, plan):
    (resources,) = task.resources
    if resources.accelerators is None:
        return plan.num_accelerators // task.num_nodes
    (count,) = resources.accelerators.values()
    return count


def test_skypilot_knows_the_names_of_accelerators():
    names = imported("sky.utils.gpu_names")
    catalog = imported("sky.catalog")
    known = {*names.CANONICAL_GPU_NAMES, *catalog.get_common_gpus()}
    # Names of clouds that it fetches prices of: sky/catalog/data_fetchers/fetch_runpod.py.
    fetched = {"MI300X", "RTX3090", "RTX4090"}
    assert len(SKYPILOT_NAMES) > 10
    assert set(SKYPILOT_NAMES.values()) <= known | fetched


def test_shells_read_every_script():
    bash = shutil.which("bash")
    written = [
        (name, code)
        for text in (*SMALL, *TEXTS)
        for name, code in files(text, workload=LLAMA).items()
        if name.endswith((".sh", ".sbatch"))
    ]
    assert len(written) > 20
    for name, code in written:
        checked = subprocess.run(
            [bash, "-n"], input=code, text=True, capture_output=True, check=False, timeout=60
        )
        assert checked.returncode == 0, (name, checked.stderr)


def test_ray_trains_on_two_ranks(tmp_path):
    imported("ray")
    imported("torch")
    text = "dp=2 microbatch=2 global_batch=4 implementation=eager"
    for name, code in files(text, "xeon-8480-cpu").items():
        (tmp_path / name).write_text(code.replace("NUM_STEPS = 10", "NUM_STEPS = 2"))
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "local",  # a cluster of its own, not the one that another test has started
        "RAY_raylet_start_wait_time_s": "150",  # 30 by default: too short beside other work
    }
    ran = subprocess.run(
        ahead_of_others(sys.executable, "ray_launch.py"),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        start_new_session=True,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]
    assert "step 1" in ran.stdout + ran.stderr

"""Commands and code that run an option: what is written must start, and set what the strategy has."""

import ast
import builtins
import os
import re
import shlex
import subprocess

import pytest
from command_line import prepared_python
from msgspec.structs import replace

from equipoise.errors import SpecError, UsageError
from equipoise.launch import launch_snippets, ranks_per_host, runtime_settings, write_launch_files
from equipoise.spec.cluster import cluster
from equipoise.spec.strategy import strategy
from equipoise.spec.workload import workload

SCRIPTS = (
    "dp=2 microbatch=4 global_batch=16",
    "dp=8 microbatch=2 global_batch=16 precision=fp16 zero_stage=1 recompute=full",
    "dp=8 microbatch=2 global_batch=16 zero_stage=2 recompute=selective optimizer=adam_8bit",
    "dp=8 microbatch=2 global_batch=32 zero_stage=3 offload=optimizer_and_params",
    "dp=4 microbatch=1 global_batch=4 compression=powersgd compression_rank=4",
    "dp=4 microbatch=1 global_batch=8 sync_period=8 optimizer=sgd",
    "dp=4 microbatch=1 global_batch=8 sync_period=8 zero_stage=1",
    "dp=4 microbatch=1 global_batch=8 sync_period=8 zero_stage=3",
    "microbatch=4 global_batch=8 precision=tf32",
    "dp=2 tp=4 microbatch=1 global_batch=8 sequence_parallel=true recompute=full",
    "tp=2 microbatch=1 global_batch=8",
    "dp=2 pp=4 interleave=2 microbatch=1 global_batch=16",
    "pp=4 microbatch=1 global_batch=16 recompute=full optimizer=adam_8bit precision=fp32",
    "dp=2 tp=4 microbatch=1 global_batch=8 recompute=selective optimizer=adam_8bit",
)


def snippets(text, name="dgx-h100", **facts):
    plan = strategy(text)
    return launch_snippets(plan, cluster(name, num_accelerators=plan.num_accelerators), **facts)


def script_of(text):
    (found,) = (each.code for each in snippets(text) if each.target == "torch")
    return found


def codes(found):
    return "\n".join(each.code for each in found)


def test_hosts_that_accelerators_do_not_fill_evenly_are_counted():
    found = snippets("dp=12 microbatch=1 global_batch=12")  # 8 a host: 6 on each of two
    assert ("--nnodes=2" in found[0].code, found[0].unsupported) == (True, ())
    found = snippets("dp=11 microbatch=1 global_batch=11")
    assert "--nnodes=11 --nproc-per-node=1" in found[0].code
    assert any("2 hosts of 8" in each and "11 hosts" in each for each in found[0].unsupported)
    assert not any(
        "hosts of" in each for each in snippets("dp=16 microbatch=1 global_batch=16")[0].unsupported
    )


@pytest.mark.parametrize(
    ("about", "trained", "adapted", "bridge"),
    [
        # diffusers names them so (train_dreambooth_lora_sdxl.py), transformers' decoders so; Megatron-Bridge's LoRA is
        # on every linear layer unless told otherwise, and its CanonicalLoRA has queries and values apart.
        ("sdxl", "lora", {"to_q", "to_k", "to_v", "to_out.0"}, None),
        ("llama31_8b", "lora", {"q_proj", "k_proj", "v_proj", "o_proj"}, {"linear_qkv", "linear_proj"}),
        ("llama31_8b", "qlora", "all-linear", None),
        ("llama31_8b", "lora lora_targets=all_linear", "all-linear", None),
        ("nemotron_h_56b", "lora lora_targets=all_linear", "all-linear", None),
        ("llama31_8b", "lora lora_targets=query_value", {"q_proj", "v_proj"}, {"linear_q", "linear_v"}),
        ("llama31_8b", "qlora lora_targets=attention", {"q_proj", "k_proj", "v_proj", "o_proj"}, None),
    ],
)
def test_adapters_are_on_the_layers_that_the_plan_counts(about, trained, adapted, bridge):
    found = snippets(
        f"dp=2 microbatch=1 global_batch=2 trained={trained} lora_rank=16", workload=workload(about)
    )
    (code,) = (each.code for each in found if each.file == "adapters.py")
    calls = [each for each in ast.walk(ast.parse(code)) if isinstance(each, ast.Call)]
    (config,) = (each for each in calls if each.func.id == "LoraConfig")
    stated = {each.arg: ast.literal_eval(each.value) for each in config.keywords}
    assert stated["r"] == 16
    # PEFT raises where they lie on the output projection of a state space (huggingface/peft#2562).
    assert stated.get("exclude_modules", []) == (["out_proj"] if about == "nemotron_h_56b" else [])
    named = stated["target_modules"]
    if about == "sdxl":  # its attention to the text has projections of its own
        assert adapted <= set(named)
    else:
        assert (named if isinstance(adapted, str) else set(named)) == adapted
    if bridge is not None:
        (nemo,) = (each.code for each in found if each.file == "nemo.yaml")
        assert set(re.findall(r"linear_\w+", nemo)) == bridge
        assert ("CanonicalLoRA" in nemo) == ("linear_q" in bridge)


def test_batches_of_preferences_are_written_in_pairs():
    pairs = replace(workload("llama31_8b"), samples_per_example=2)
    of_pairs, plain = (
        {each.target: each for each in snippets(text, workload=about)}
        for text, about in (
            ("dp=8 microbatch=4 global_batch=128", pairs),
            ("dp=8 microbatch=2 global_batch=64", workload("llama31_8b")),
        )
    )
    programs = (
        "Megatron-LM",
        "torchtitan",
        "DeepSpeed",
        "accelerate",
        "Trainer",
        "NeMo (Megatron-Bridge)",
        "torch",
    )
    assert {*programs} <= {*of_pairs}
    for name in programs:
        if name != "DeepSpeed":  # whose file states what it lacks
            assert of_pairs[name].code == plain[name].code, name
        assert any("DPO" in each for each in of_pairs[name].unsupported), name
    assert '"train_batch_size": 64' in of_pairs["DeepSpeed"].code


@pytest.mark.parametrize("text", SCRIPTS)
def test_scripts_are_python_for_eighty_columns(text):
    code = script_of(text)
    assert max(map(len, code.splitlines())) <= 80
    nodes = list(ast.walk(ast.parse(code)))
    bound = {each.asname or each.name for node in nodes for each in getattr(node, "names", ())}
    bound |= {each.name for each in nodes if isinstance(each, (ast.FunctionDef, ast.ClassDef))}
    bound |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    used = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    bound |= {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    assert used
    assert used <= bound | set(dir(builtins)) | {"__name__"}


RUN = (
    "dp=2 microbatch=2 global_batch=8 precision=fp32 implementation=eager compression=fp16",
    # On processors states have no accelerator to leave.
    "dp=2 microbatch=2 global_batch=8 implementation=eager zero_stage=3 recompute=selective offload=optimizer",
    "dp=4 microbatch=2 global_batch=16 implementation=eager zero_stage=3 dp_replicate=2",
    "tp=2 microbatch=2 global_batch=4 implementation=eager sequence_parallel=true",
    "pp=2 microbatch=2 global_batch=8 implementation=eager recompute=selective",
)


@pytest.mark.parametrize("text", RUN)
def test_scripts_train_on_their_ranks(text, tmp_path):
    pytest.importorskip("torch")
    script, plan = tmp_path / "train.py", strategy(text)
    script.write_text(script_of(text).replace("NUM_STEPS = 10", "NUM_STEPS = 2"))
    agent = [prepared_python(), "-m", "torch.distributed.run", "--nnodes=1"]
    agent.append(f"--nproc-per-node={plan.num_accelerators}")
    address = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    ran = subprocess.run(
        [*agent, *address, str(script)],
        env={
            **os.environ,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHON_EXEC": prepared_python(),  # of torchrun
        },
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


@pytest.mark.parametrize("count", [4, 24])
def test_torchrun_s_parser_takes_its_commands(count):
    parser = pytest.importorskip("torch.distributed.run").get_args_parser()
    first = snippets(f"dp={count} microbatch=1 global_batch={count}")[0]
    program, *words = shlex.split(first.code.replace("\\\n", " "))
    found = parser.parse_args(words)
    assert (program, found.training_script) == ("torchrun", "train.py")
    assert int(found.nproc_per_node) * int(found.nnodes.split(":")[-1]) == count


def test_one_accelerator_needs_no_launcher():
    found = snippets("microbatch=4 global_batch=8")
    assert found[0].code == "python train.py\n"
    assert "init_process_group" not in codes(found)


def test_a_script_that_joins_a_group_is_launched_on_one_accelerator_too():
    """Weights in the host's memory are shards of FSDP, and `init_process_group` asks for what torchrun sets."""
    found = snippets("microbatch=4 global_batch=8 offload=optimizer")
    assert "init_process_group" in codes(found)
    assert found[0].code == "torchrun --standalone --nproc-per-node=1 train.py\n"
    trainer = next(each for each in found if each.target == "Trainer")
    assert "fsdp" not in trainer.code


def test_hosts_meet_at_one_of_them():
    found = {each.target: each for each in snippets("dp=24 microbatch=1 global_batch=24")}
    first, slurm = found["torchrun"], found["Slurm"]
    assert "--nnodes=3 --nproc-per-node=8" in first.code
    assert '--rdzv-endpoint="$HEAD:29500"' in first.code
    assert {"#SBATCH --nodes=3", "#SBATCH --ntasks-per-node=1", "#SBATCH --gpus-per-node=8"} <= set(
        slurm.code.splitlines()
    )


def test_slurm_is_asked_for_the_processors_of_whole_hosts():
    # sbatch's manual: without --cpus-per-task it tries to allocate one processor per task, here one per host.
    whole, part = (
        next(each for each in snippets(text) if each.target == "Slurm")
        for text in ("dp=24 microbatch=1 global_batch=24", "dp=4 microbatch=1 global_batch=4")
    )
    assert "#SBATCH --exclusive" in whole.code.splitlines()
    assert "--exclusive" not in part.code
    assert [each for each in part.unsupported if "--cpus-per-task" in each]
    assert not [each for each in whole.unsupported if "--cpus-per-task" in each]


def test_jobs_of_slurm_that_share_a_host_meet_at_ports_of_their_own():
    found = {each.target: each for each in snippets("dp=24 microbatch=1 global_batch=24")}
    stubs = 'scontrol() { echo h1; }; srun() { echo "$@"; }; SLURM_JOB_NODELIST=h1\n'
    ports = []
    for job in ("4711", "4712", "67043328"):  # the last is the highest that Slurm gives
        ran = subprocess.run(
            ["bash", "-c", f"SLURM_JOB_ID={job}; {stubs}{found['Slurm'].code}"],
            capture_output=True,
            text=True,
            check=True,
        )
        ports.append(int(ran.stdout.split("h1:")[1].split()[0]))
    assert len({*ports}) == 3
    assert all(1024 <= port < 32768 for port in ports)  # neither privileged nor of those that Linux hands out


def test_a_rack_of_fast_links_is_many_hosts():
    plan = strategy("dp=72 microbatch=1 global_batch=72")
    assert ranks_per_host(cluster("gb200-nvl72", num_accelerators=72), plan) == 4


def test_microbatches_before_the_last_exchange_nothing():
    several = codes(snippets("dp=2 microbatch=2 global_batch=16"))
    assert "NUM_MICROBATCHES = 4" in several
    assert "no_sync()" in several
    assert "no_sync()" not in codes(snippets("dp=2 microbatch=8 global_batch=16"))


@pytest.mark.parametrize(("stage", "again"), [(2, False), (3, True)])
def test_the_zero_stage_sets_whether_weights_are_gathered_again(stage, again):
    found = codes(snippets(f"dp=8 microbatch=1 global_batch=8 zero_stage={stage}"))
    assert f"reshard_after_forward={again}" in found


def test_one_accelerator_drops_weights_of_the_host_after_each_pass():
    # Kept on the accelerator until the way back they would lie there whole.
    found = codes(snippets("microbatch=1 global_batch=8 offload=optimizer_and_params"))
    assert "reshard_after_forward=True" in found
    assert "CPUOffloadPolicy" in found


def test_a_model_that_is_cut_comes_with_options_of_frameworks():
    llama = workload("llama31_405b")
    found = snippets(
        "dp=2 tp=8 pp=9 cp=2 interleave=2 microbatch=1 global_batch=36 sequence_parallel=true", workload=llama
    )
    programs = {each.target: each for each in found}
    megatron, torchtitan = programs["Megatron-LM"], programs["torchtitan"]
    assert "--num-virtual-stages-per-pipeline-rank 2" in megatron.code
    assert "Interleaved1F1B" in torchtitan.code
    assert "torch.compile" in " ".join(megatron.unsupported)
    # No script of ours trains it: what starts processes starts the first program that can.
    assert "torch" not in programs
    assert "pretrain_gpt.py" in found[0].code
    assert found[0].code.endswith('"$@"\n')


def test_adapters_over_a_model_that_is_cut_have_no_options_there():
    found = snippets("dp=2 tp=4 microbatch=1 global_batch=8 trained=lora lora_rank=8")
    programs = {each.target: each for each in found}
    for each in (programs["Megatron-LM"], programs["torchtitan"]):
        assert each.code == ""
        assert each.title.startswith("Not ")
        assert "adapters" in each.unsupported[0]


def test_a_script_that_is_not_written_is_said_to_be_missing():
    cut = "dp=8 tp=2 cp=4 microbatch=1 global_batch=8 sequence_parallel=true trained=lora lora_rank=16"
    found = snippets(cut)
    assert "train.py" not in {each.file for each in found}
    started = [each for each in found if each.target in {"torchrun", "Slurm", "SkyPilot"}]
    assert len(started) == 3
    for each in started:
        assert "train.py" in " ".join(each.unsupported)


def test_models_without_layers_of_attention_have_no_such_frameworks():
    found = snippets("dp=2 pp=4 microbatch=1 global_batch=16", workload=workload("resnet50"))
    assert not {each.target for each in found} & {"Megatron-LM", "torchtitan", "NeMo (Megatron-Bridge)"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dp=2 pp=4 microbatch=1 global_batch=16 zero_stage=1", ["ZeRO stage 1", "compilation"]),
        ("dp=2 tp=4 microbatch=1 global_batch=16", ["ZeRO stage 0"]),
        ("dp=8 microbatch=1 global_batch=16 compression=topk", ["top-k"]),
        ("dp=8 microbatch=1 global_batch=16 offload=optimizer", ["optimizer alone"]),
    ],
)
def test_what_a_script_leaves_out_is_listed(text, words):
    (script,) = (each for each in snippets(text) if each.title.startswith("train.py"))
    missing = " / ".join(script.unsupported)
    assert all(word in missing for word in words)


def test_scripts_compute_in_the_precision_of_the_plan():
    for axis in ("pp=2", "tp=2", "dp=2"):
        text = f"{axis} microbatch=2 global_batch=8"
        assert "dtype=torch.bfloat16" in script_of(text)
        assert "bfloat16" not in script_of(f"{text} precision=fp32")


def test_adapters_and_narrow_products_name_their_libraries():
    found = snippets("dp=2 microbatch=1 global_batch=2 trained=lora lora_rank=16 precision=fp8_rowwise")
    assert "LoraConfig(r=16" in codes(found)
    assert 'from_recipe_name("rowwise")' in codes(found)


def test_every_snippet_has_a_reason_and_shell_lines_fit_a_terminal():
    for text in ("dp=24 microbatch=1 global_batch=24", "dp=2 tp=8 pp=2 microbatch=1 global_batch=8"):
        found = snippets(text)
        assert found
        for each in found:
            assert each.why
            assert each.target
            assert each.code.endswith("\n") or each.unsupported
            if each.language == "bash" and each.code:
                assert max(map(len, each.code.splitlines())) <= 80


def test_hosts_share_ranks_equally():
    plan = strategy("dp=12 microbatch=1 global_batch=12")
    assert ranks_per_host(cluster("dgx-h100", num_accelerators=12), plan) == 6
    assert "--nnodes=2 --nproc-per-node=6" in snippets("dp=12 microbatch=1 global_batch=12")[0].code


def test_accelerators_that_torch_does_not_start_are_refused():
    with pytest.raises(SpecError, match=r"tpu-v4.*tpu"):
        launch_snippets(strategy("dp=4 microbatch=1 global_batch=4"), cluster("tpu-v4", num_accelerators=4))


def test_files_are_written_all_or_none_and_the_users_own_are_kept(tmp_path):
    (tmp_path / "train.py").write_text("my own\n")
    (tmp_path / "launch.sh").mkdir()
    with pytest.raises(UsageError):
        write_launch_files(tmp_path, {"train.py": "new\n", "launch.sh": "new\n", "settings.sh": "new\n"})
    assert (tmp_path / "train.py").read_text() == "my own\n"
    assert {each.name for each in tmp_path.iterdir()} == {"train.py", "launch.sh"}
    write_launch_files(tmp_path, {"train.py": "new\n", "settings.sh": "new\n"})
    assert [(tmp_path / name).read_text() for name in ("train.py", "settings.sh")] == ["new\n", "new\n"]


@pytest.mark.parametrize(
    ("software", "started", "is_written_here"),
    [
        # As their documentation starts them: torchtitan's README, Megatron-LM's examples, DeepSpeed's Getting Started
        # (`--deepspeed_config`), TRL's scripts (`--config`).
        ("torchtitan", "-m torchtitan.train", False),
        ("megatron_core", "pretrain_gpt.py", False),
        ("deepspeed", "train.py \\\n    --deepspeed_config deepspeed.json", False),
        ("hf", "train.py \\\n    --config trainer.yaml", False),
        ("fsdp", "train.py", True),
        (None, "train.py", True),
    ],
)
def test_the_program_that_the_user_names_is_started(software, started, is_written_here):
    plan = "dp=16 microbatch=1 global_batch=16 zero_stage=3"
    found = snippets(plan, software=software, is_asked_for=software is not None)
    for each in (found[0], *(other for other in found if other.file == "job.sbatch")):
        assert f" {started}" in each.code
        # Of a library the script is the user's.
        assert any(lack.startswith("train.py") for lack in each.unsupported) == (
            software in {"deepspeed", "hf"}
        )
    files = {each.file for each in found}
    assert ("train.py" in files) == is_written_here
    assert {"deepspeed.json", "trainer.yaml", "torchtitan.sh", "megatron.sh"} <= files


def test_software_that_no_file_here_starts_is_said():
    for plan in (
        "dp=16 microbatch=1 global_batch=16 zero_stage=3",
        "dp=2 tp=4 pp=2 microbatch=1 global_batch=16",
    ):
        found = snippets(plan, software="jax", is_asked_for=True)
        assert any("JAX" in each for each in found[0].unsupported)
        assert not any("JAX" in each for each in snippets(plan, software="jax")[0].unsupported)


def test_a_task_of_skypilot_is_spot_where_the_answer_is():
    # docs.skypilot.co, reference/yaml-spec: resources.use_spot.
    tasks = {
        is_spot: next(
            each
            for each in snippets("dp=8 microbatch=1 global_batch=8", is_spot=is_spot)
            if each.file == "sky.yaml"
        )
        for is_spot in (False, True)
    }
    assert ["use_spot: true" in each.code for each in tasks.values()] == [False, True]
    assert len(tasks[True].unsupported) == len(tasks[False].unsupported) + 1


def test_weights_of_4_bits_are_sharded_as_they_are_stored():
    # huggingface.co/docs/bitsandbytes, FSDP-QLoRA: quant_storage of the dtype of all else. Parameters that hold all
    # experts of a layer are not of a linear layer, which alone is quantized (bitsandbytes, issue 1849).
    def adapters(text, about):
        found = snippets(
            f"dp=4 microbatch=1 global_batch=4 trained=qlora lora_rank=16 {text}", workload=about
        )
        return next(each for each in found if each.file == "adapters.py")

    dense, mixture = workload("llama31_8b"), workload("qwen3_30b_a3b")
    assert "bnb_4bit_quant_storage" in adapters("zero_stage=3", dense).code
    assert "bnb_4bit_quant_storage" not in adapters("zero_stage=0", dense).code
    assert len(adapters("", mixture).unsupported) == len(adapters("", dense).unsupported) + 1


@pytest.mark.parametrize(("software", "is_set"), [(None, True), ("megatron_core", True), ("hf", False)])
def test_one_connection_is_of_megatron_alone(software, is_set):
    plan = strategy("tp=2 microbatch=1 global_batch=4")
    found = runtime_settings(cluster("dgx-h100", num_accelerators=2), plan, software=software)
    assert any(each.name == "CUDA_DEVICE_MAX_CONNECTIONS" for each in found) == is_set

"""The commands and the code that run one option of a plan: torchrun, Slurm, environment, training script."""

from shlex import quote

from equipoise.advice.launch.frameworks import (
    MEGATRON_PAGE,
    TORCHTITAN_PAGE,
    megatron_options,
    torchtitan_options,
)
from equipoise.advice.launch.model_parallel_code import pipeline_script, tensor_script
from equipoise.advice.launch.settings import Setting, runtime_settings
from equipoise.advice.launch.snippet import Snippet
from equipoise.advice.launch.training_code import is_sharded, training_script
from equipoise.advice.plans.planned import Option
from equipoise.errors import SpecError
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import Strategy

TORCHRUN_PAGE = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_SRUN_PAGE = "https://slurm.schedmd.com/srun.html"
_DDP_PAGE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
_FSDP_PAGE = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
_TENSOR_PAGE = "https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html"
_PIPELINE_PAGE = "https://docs.pytorch.org/docs/stable/distributed.pipelining.html"
_AVERAGING_PAGE = "https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html"
_PEFT_PAGE = "https://huggingface.co/docs/peft/en/package_reference/lora"
_TORCHAO_PAGE = "https://github.com/pytorch/ao/tree/main/torchao/float8"
# Domains of the fast links that are larger span hosts; those of NVL72 have four accelerators a tray.
_LARGEST_HOST, _TRAY = 16, 4
# Kinds of accelerator whose frameworks torchrun starts.
_STARTED = frozenset({"gpu", "cpu"})
_PORT = 29500


def launch_snippets(option: Option, cluster: Cluster, *, script: str = "train.py") -> tuple[Snippet, ...]:
    """What to run and paste for an option: the command first, then environment and code, then the rest.

    cluster: the machine it is for; of as many accelerators as there are. script: name of the training script.
    Raises SpecError for accelerators that torch's launcher does not start (TPUs, IPUs).
    """
    plan, chip = option.strategy, cluster.accelerator
    if chip.kind not in _STARTED:
        raise SpecError(
            f"accelerator {chip.slug!r} is a {chip.kind}: commands are known for gpu and cpu, which "
            "torch's own launcher starts; see its maker's guide"
        )
    share = option.memory_bytes / chip.memory_bytes if chip.memory_bytes else None
    settings = runtime_settings(cluster, plan, memory_share=share)
    return (
        *_commands(plan, ranks_per_host(cluster, plan), quote(script), kind=chip.kind),
        *_environment(settings),
        *_code(plan, script),
        *_extras(plan),
        *_large(plan),
    )


def ranks_per_host(cluster: Cluster, plan: Strategy) -> int:
    """Ranks that one host starts: as many as it has accelerators, or as the strategy takes."""
    size = cluster.node_size if cluster.node_size <= _LARGEST_HOST else _TRAY
    return min(size, plan.num_accelerators)


def _commands(plan: Strategy, ranks: int, script: str, *, kind: str) -> tuple[Snippet, ...]:
    count = plan.num_accelerators
    if count == 1 and not is_sharded(plan):
        return (Snippet(title="Command", code=f"python {script}\n", why="One accelerator: no launcher."),)
    hosts = -(-count // ranks)
    if hosts == 1:
        code = f"torchrun --standalone --nproc-per-node={ranks} {script}\n"
        why = f"One process for each of {count} accelerators of one host ({TORCHRUN_PAGE})."
        return (Snippet(title="Command", code=code, why=why),)
    several = (
        f"torchrun --nnodes={hosts} --nproc-per-node={ranks} \\\n"
        "  --rdzv-id=equipoise --rdzv-backend=c10d \\\n"
        f'  --rdzv-endpoint="$HEAD:{_PORT}" {script}\n'
    )
    head = 'export HEAD="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"\n'
    devices = f" --gpus-per-node={ranks}" if kind == "gpu" else ""
    srun = (
        f"srun --nodes={hosts} --ntasks-per-node=1{devices} \\\n"
        f"  torchrun --nnodes={hosts} --nproc-per-node={ranks} \\\n"
        '  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d \\\n'
        f'  --rdzv-endpoint="$HEAD:{_PORT}" {script}\n'
    )
    return (
        Snippet(
            title=f"Command, on each of {hosts} hosts",
            code=several,
            why=f"HEAD is the name of one of them, that the others reach ({TORCHRUN_PAGE}).",
        ),
        Snippet(
            title="The same under Slurm",
            code=head + srun,
            why=f"Inside a job: one launcher a host, {ranks} processes each ({_SRUN_PAGE}).",
        ),
    )


def _environment(settings: tuple[Setting, ...]) -> tuple[Snippet, ...]:
    exports = [each for each in settings if each.is_variable and each.value is not None]
    if not exports:
        return ()
    code = "".join(
        f"export {each.name}={each.value}{'  # for the first run alone' if each.is_for_a_look else ''}\n"
        for each in exports
    )
    why = "Each has its reason and how to check it among the settings; nothing else has a ground here."
    return (Snippet(title="Environment", code=code, why=why),)


def _code(plan: Strategy, script: str) -> tuple[Snippet, ...]:
    """The training script, where torch says the strategy in one page."""
    if plan.cp > 1 or plan.ep > 1 or (plan.tp > 1 and plan.pp > 1):
        return ()
    if plan.tp > 1:
        code, page = tensor_script(plan), _TENSOR_PAGE
        why = "parallelize_module cuts products over tp"
        if plan.dp > 1:
            why += "; fully_shard shards weights over dp, which replicas without shards do not need"
    elif plan.pp > 1:
        code, page = pipeline_script(plan), _PIPELINE_PAGE
        why = "a rank for each stage, micro-batches one forward, one back"
    else:
        code = training_script(plan)
        page, why = _data_parallel_why(plan)
    title = f"{script}: runs as it stands; put your model and data in"
    return (Snippet(title=title, code=code, why=f"{why} ({page}).", language="python"),)


def _data_parallel_why(plan: Strategy) -> tuple[str, str]:
    if is_sharded(plan):
        moved = "weights are gathered for each pass" if plan.shard_state == 3 else "weights stay gathered"  # noqa: PLR2004 - a ZeRO stage
        what = ", with states in the host's memory" if plan.offload != "none" else ""
        return _FSDP_PAGE, f"fully_shard, ZeRO stage {max(2, plan.shard_state)}: {moved}{what}"
    if plan.dp == 1:
        return _DDP_PAGE, "one device: nothing to exchange; this is what two would wrap"
    if plan.sync_period > 1:
        return _AVERAGING_PAGE, f"ranks train alone and average weights every {plan.sync_period} steps"
    parts = ["gradients travel in buckets during the backward pass"]
    if plan.num_microbatches > 1:
        parts.append(f"once in {plan.num_microbatches} micro-batches (no_sync)")
    if plan.compression in {"fp16", "powersgd"}:
        parts.append(f"compressed ({plan.compression} hook)")
    if plan.shard_state == 1:
        parts.append("each rank keeps its share of the optimizer (ZeRO stage 1)")
    return _DDP_PAGE, ", ".join(parts)


def _extras(plan: Strategy) -> tuple[Snippet, ...]:
    """What a strategy asks of libraries beside torch."""
    found = []
    if plan.trained != "full":
        quantised = "# qlora: load the model in 4 bits first (BitsAndBytesConfig)\n"
        found.append(
            Snippet(
                title="Adapters, after the model is made",
                code=(
                    "from peft import LoraConfig, get_peft_model  # pip install peft\n\n"
                    f"{quantised if plan.trained == 'qlora' else ''}"
                    f'config = LoraConfig(r={plan.lora_rank}, target_modules="all-linear")\n'
                    "model = get_peft_model(model, config)\n"
                ),
                why=f"Only adapters of rank {plan.lora_rank} are trained and exchanged ({_PEFT_PAGE}).",
                language="python",
            )
        )
    if plan.precision in {"fp8", "fp8_rowwise", "mxfp8", "fp4"}:
        found.append(_narrow_products(plan))
    if plan.compression == "topk":
        found.append(
            Snippet(
                title="Top-k gradients",
                code=f"equipoise bench WORKLOAD --strategy topk:{1 / max(1, plan.compression_rank):g}\n",
                why="torch has no hook for them; `bench` measures its own, with error feedback.",
            )
        )
    return tuple(found)


def _narrow_products(plan: Strategy) -> Snippet:
    if plan.precision in {"fp8", "fp8_rowwise"}:
        recipe = "rowwise" if plan.precision == "fp8_rowwise" else "tensorwise"
        code = (
            "from torchao.float8 import Float8LinearConfig, convert_to_float8_training\n\n"
            f'config = Float8LinearConfig.from_recipe_name("{recipe}")\n'
            "convert_to_float8_training(model, config=config)  # before torch.compile\n"
        )
        return Snippet(
            title="Products in 8 bits, before sharding",
            code=code,
            why=f"Scales by {'row' if recipe == 'rowwise' else 'tensor'} ({_TORCHAO_PAGE}).",
            language="python",
        )
    recipe = "MXFP8BlockScaling" if plan.precision == "mxfp8" else "NVFP4BlockScaling"
    return Snippet(
        title="Narrow products, in Transformer Engine's layers",
        code=(
            "import transformer_engine.pytorch as te\n"
            f"from transformer_engine.common.recipe import {recipe}\n\n"
            f"with te.autocast(enabled=True, recipe={recipe}()):\n"
            "    loss = loss_of(model(x), y)\n"
        ),
        why="https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/fp8_primer.html",
        language="python",
    )


def _large(plan: Strategy) -> tuple[Snippet, ...]:
    """The knobs in the words of frameworks for large transformers, where the model itself is cut."""
    if plan.tp * plan.pp * plan.cp * plan.ep == 1:
        return ()
    return (
        Snippet(
            title="The same strategy in Megatron-LM (pretrain_gpt.py)",
            code=megatron_options(plan),
            why=f"For large transformers ({MEGATRON_PAGE}).",
        ),
        Snippet(
            title="The same strategy in torchtitan (run_train.sh)",
            code=torchtitan_options(plan),
            why=f"Names of its TOML configuration, as options ({TORCHTITAN_PAGE}).",
        ),
    )

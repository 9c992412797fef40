"""The commands and the code that run a strategy: torchrun, Slurm, environment, training script."""

from shlex import quote

from equipoise.bench.models import known_name
from equipoise.errors import SpecError
from equipoise.launch.bench import bench_command
from equipoise.launch.data_parallel import training_script
from equipoise.launch.megatron import Translation, megatron_options
from equipoise.launch.model_parallel import (
    not_in_pipeline_scripts,
    not_in_tensor_scripts,
    pipeline_script,
    tensor_script,
)
from equipoise.launch.scripts import is_sharded, not_in_training_scripts, rendered
from equipoise.launch.settings import Setting, runtime_settings
from equipoise.launch.snippet import Snippet
from equipoise.launch.torchtitan import torchtitan_options
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import Workload

TORCHRUN_PAGE = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_SRUN_PAGE = "https://slurm.schedmd.com/srun.html"
_DDP_PAGE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
_FSDP_PAGE = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
_TENSOR_PAGE = "https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html"
_PIPELINE_PAGE = "https://docs.pytorch.org/docs/stable/distributed.pipelining.html"
_AVERAGING_PAGE = "https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html"
_PEFT_PAGE = "https://huggingface.co/docs/peft/en/package_reference/lora"
_MEGATRON_PAGE = "https://github.com/NVIDIA/Megatron-LM (megatron/training/arguments.py)"
_TORCHTITAN_PAGE = "https://github.com/pytorch/torchtitan (torchtitan/config/configs.py)"
_TORCHAO_PAGE = "https://github.com/pytorch/ao/tree/main/torchao/float8"
# Domains of the fast links that are larger span hosts; those of NVL72 have four accelerators a tray.
_LARGEST_HOST, _TRAY = 16, 4
# Kinds of accelerator whose frameworks torchrun starts.
_STARTED = frozenset({"gpu", "cpu"})
_PORT = 29500
# What takes commands in the tests, and what runs a script of each kind there.
_TORCHRUN = "torchrun's own parser, torch 2.13"
_TORCH = "scripts of its kind: torch 2.13, two ranks over gloo"


def launch_snippets(
    strategy: Strategy,
    cluster: Cluster,
    *,
    workload: Workload | None = None,
    memory_bytes: float | None = None,
    script: str = "train.py",
) -> tuple[Snippet, ...]:
    """What to run and paste for a strategy: the command first, then environment and code, then the rest.

    cluster: the machine it is for; of as many accelerators as there are. workload: what is trained, for
    options that depend on its layers and experts. memory_bytes: what the fullest accelerator needs.
    script: name of the training script.
    Raises SpecError for accelerators that torch's launcher does not start (TPUs, IPUs).
    """
    chip = cluster.accelerator
    if chip.kind not in _STARTED:
        raise SpecError(
            f"accelerator {chip.slug!r} is a {chip.kind}: commands are known for gpu and cpu, which "
            "torch's own launcher starts; see its maker's guide"
        )
    share = memory_bytes / chip.memory_bytes if chip.memory_bytes and memory_bytes is not None else None
    settings = runtime_settings(cluster, strategy, memory_share=share)
    return (
        *_commands(strategy, ranks_per_host(cluster, strategy), quote(script), kind=chip.kind),
        *_environment(settings),
        *_code(strategy, script),
        *_extras(strategy, workload),
        *_large(strategy, workload),
    )


def ranks_per_host(cluster: Cluster, strategy: Strategy) -> int:
    """Ranks that one host starts: as many as it has accelerators, or as the strategy takes."""
    size = cluster.node_size if cluster.node_size <= _LARGEST_HOST else _TRAY
    return min(size, strategy.num_accelerators)


def _commands(strategy: Strategy, ranks: int, script: str, *, kind: str) -> tuple[Snippet, ...]:
    count = strategy.num_accelerators
    if count == 1 and not is_sharded(strategy):
        alone = Snippet(
            title="Command",
            target="python",
            code=f"python {script}\n",
            why="One accelerator: no launcher.",
        )
        return (alone,)
    hosts = -(-count // ranks)
    if hosts == 1:
        one = Snippet(
            title="Command",
            target="torchrun",
            code=f"torchrun --standalone --nproc-per-node={ranks} {script}\n",
            why=f"One process for each of {count} accelerators of one host ({TORCHRUN_PAGE}).",
            checked_with=_TORCHRUN,
        )
        return (one,)
    values = {"hosts": hosts, "ranks": ranks, "port": _PORT, "script": script}
    devices = f" --gpus-per-node={ranks}" if kind == "gpu" else ""
    return (
        Snippet(
            title=f"Command, on each of {hosts} hosts",
            target="torchrun",
            code=rendered("torchrun", **values),
            why=f"HEAD is the name of one of them, that the others reach ({TORCHRUN_PAGE}).",
            checked_with=_TORCHRUN,
        ),
        Snippet(
            title="The same under Slurm",
            target="srun",
            code=rendered("srun", devices=devices, **values),
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
    return (Snippet(title="Environment", target="shell", code=code, why=why),)


def _code(strategy: Strategy, script: str) -> tuple[Snippet, ...]:
    """The training script, where torch says the strategy in one page."""
    if strategy.cp > 1 or strategy.ep > 1 or (strategy.tp > 1 and strategy.pp > 1):
        return ()
    if strategy.tp > 1:
        code, page = tensor_script(strategy), _TENSOR_PAGE
        why = "parallelize_module cuts products over tp"
        missing = not_in_tensor_scripts(strategy)
        if strategy.dp > 1:
            why += "; fully_shard shards weights over dp"
    elif strategy.pp > 1:
        code, page = pipeline_script(strategy), _PIPELINE_PAGE
        why = "a rank for each stage, micro-batches one forward, one back"
        missing = not_in_pipeline_scripts(strategy)
    else:
        code = training_script(strategy)
        page, why = _data_parallel_why(strategy)
        missing = not_in_training_scripts(strategy)
    snippet = Snippet(
        title=f"{script}: runs as it stands; put your model and data in",
        target="torch",
        code=code,
        why=f"{why} ({page}).",
        language="python",
        inexpressible=missing,
        checked_with=_TORCH,
    )
    return (snippet,)


def _data_parallel_why(strategy: Strategy) -> tuple[str, str]:
    if is_sharded(strategy):
        moved = "weights are gathered for each pass" if strategy.zero_stage == 3 else "weights stay gathered"  # noqa: PLR2004 - a ZeRO stage
        what = ", with states in the host's memory" if strategy.offload != "none" else ""
        return _FSDP_PAGE, f"fully_shard, ZeRO stage {max(2, strategy.zero_stage)}: {moved}{what}"
    if strategy.dp == 1:
        return _DDP_PAGE, "one device: nothing to exchange; this is what two would wrap"
    if strategy.sync_period > 1:
        return _AVERAGING_PAGE, f"ranks train alone and average weights every {strategy.sync_period} steps"
    parts = ["gradients travel in buckets during the backward pass"]
    if strategy.num_microbatches > 1:
        parts.append(f"once in {strategy.num_microbatches} micro-batches (no_sync)")
    if strategy.compression in {"fp16", "powersgd"}:
        parts.append(f"compressed ({strategy.compression} hook)")
    if strategy.zero_stage == 1:
        parts.append("each rank keeps its share of the optimizer (ZeRO stage 1)")
    return _DDP_PAGE, ", ".join(parts)


def _extras(strategy: Strategy, workload: Workload | None) -> tuple[Snippet, ...]:
    """What a strategy asks of libraries beside torch."""
    found = []
    if strategy.trained != "full":
        quantised = "# qlora: load the model in 4 bits first (BitsAndBytesConfig)\n"
        found.append(
            Snippet(
                title="Adapters, after the model is made",
                target="peft",
                code=rendered(
                    "adapters",
                    quantised=quantised if strategy.trained == "qlora" else "",
                    rank=strategy.lora_rank,
                ),
                why=f"Only adapters of rank {strategy.lora_rank} are trained and exchanged ({_PEFT_PAGE}).",
                language="python",
            )
        )
    if strategy.precision in {"fp8", "fp8_rowwise", "mxfp8", "fp4"}:
        found.append(_narrow_products(strategy))
    if strategy.compression == "topk" and workload is not None and _is_benched(workload.slug):
        found.append(bench_command(strategy, workload.slug))
    return tuple(each for each in found if each.code)


def _is_benched(name: str) -> bool:
    """Whether `bench` trains a model of that name: one of its zoo, or a function of the user's."""
    return ":" in name or known_name(name)


def _narrow_products(strategy: Strategy) -> Snippet:
    if strategy.precision in {"fp8", "fp8_rowwise"}:
        recipe = "rowwise" if strategy.precision == "fp8_rowwise" else "tensorwise"
        return Snippet(
            title="Products in 8 bits, before sharding",
            target="torchao",
            code=rendered("float8", recipe=recipe),
            why=f"Scales by {'row' if recipe == 'rowwise' else 'tensor'} ({_TORCHAO_PAGE}).",
            language="python",
        )
    recipe = "MXFP8BlockScaling" if strategy.precision == "mxfp8" else "NVFP4BlockScaling"
    return Snippet(
        title="Narrow products, in Transformer Engine's layers",
        target="Transformer Engine",
        code=rendered("transformer_engine", recipe=recipe),
        why="https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/fp8_primer.html",
        language="python",
    )


def _large(strategy: Strategy, workload: Workload | None) -> tuple[Snippet, ...]:
    """The strategy in the options of frameworks for large transformers, where the model itself is cut."""
    if strategy.tp * strategy.pp * strategy.cp * strategy.ep == 1:
        return ()
    model = None if workload is None else workload.transformer
    if workload is not None and model is None:
        return ()
    return (
        _framework(
            "Megatron-LM",
            "pretrain_gpt.py",
            megatron_options(strategy, model),
            why=f"For large transformers ({_MEGATRON_PAGE}).",
            checked_with="rules of its parser at 000c4ac; megatron-core 0.16.1",
        ),
        _framework(
            "torchtitan",
            "torchtitan.train",
            torchtitan_options(strategy, model),
            why=f"After --module and --config, which name the model ({_TORCHTITAN_PAGE}).",
            checked_with="rules of its parser, torchtitan 0.3.0",
        ),
    )


def _framework(name: str, program: str, found: Translation, *, why: str, checked_with: str) -> Snippet:
    """A translation as a snippet, its title by how much of the strategy it has."""
    if not found.code:
        title = f"Not expressible in {name} ({program})"
    elif found.inexpressible:
        title = f"The nearest in {name} ({program})"
    else:
        title = f"The same strategy in {name} ({program})"
    return Snippet(
        title=title,
        target=name,
        code=found.code,
        why=why,
        inexpressible=found.inexpressible,
        checked_with=checked_with if found.code else "",
    )

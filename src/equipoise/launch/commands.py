"""The commands that run a strategy.

Torchrun, Slurm, environment, `equipoise bench`, and the training script.
"""

from shlex import quote

from msgspec import Struct

from equipoise.bench.models import known_name
from equipoise.bench.trial import PRECISIONS
from equipoise.errors import SpecError
from equipoise.launch.settings import Setting, runtime_settings
from equipoise.launch.trainer_options import Translation, megatron_options, torchtitan_options
from equipoise.launch.training_scripts import (
    is_sharded,
    not_in_pipeline_scripts,
    not_in_tensor_scripts,
    not_in_training_scripts,
    pipeline_script,
    rendered,
    tensor_script,
    training_script,
)
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import Strategy
from equipoise.spec.workload import Workload


class Snippet(Struct, frozen=True, kw_only=True):
    """What to run or paste.

    target: the program it is for. code: empty where the target cannot run the strategy at all. why: what it
    does, and where that is documented. language: bash or python. unsupported: what the plan assumes and the
    target cannot express. checked_with: the program, or the table of its rules, that accepted such text in
    the tests; empty where nothing did.
    """

    title: str
    target: str
    code: str
    why: str
    language: str = "bash"
    unsupported: tuple[str, ...] = ()
    checked_with: str = ""


def bench_command(
    strategy: Strategy, workload: str, *, num_accelerators: int | None = None, out: str | None = None
) -> Snippet:
    """The command that times a strategy's steps, with its micro-batch, accumulation and precision.

    workload: a model of the zoo or module:function. num_accelerators: ranks to time it on, each with the work
    it has in the plan; as many as the strategy takes unless given. out: the folder that keeps the sweep.
    No command where the model itself is cut: `bench` has the data axis alone.
    """
    size = strategy.num_accelerators if num_accelerators is None else num_accelerators
    cut = [axis for axis in ("tp", "pp", "cp", "ep") if getattr(strategy, axis) > 1]
    missing = [f"{axis}={getattr(strategy, axis)}: bench supports data parallelism only" for axis in cut]
    if cut:
        return _snippet("", tuple(missing))
    method, unmet = _method(strategy, size)
    precision = strategy.precision if strategy.precision in PRECISIONS else "bf16"
    # `bench` counts the samples of one pass over all ranks; `accumulate:K` makes K passes an update.
    parts = [
        f"equipoise bench {quote(workload)}",
        f"--sizes {size}",
        f"--batch {size * strategy.microbatch_samples}",
        f"--strategy {method}",
        f"--precision {precision}",
        *(() if out is None else (f"--out {quote(out)}",)),
    ]
    return _snippet(" ".join(parts) + "\n", (*unmet, *_unmet(strategy)))


def _snippet(code: str, unsupported: tuple[str, ...]) -> Snippet:
    return Snippet(
        title="Time its steps",
        target="equipoise bench",
        code=code,
        why="Micro-batch, accumulation and precision of the plan; gradients of a rank are summed as there.",
        unsupported=unsupported,
        checked_with="equipoise's own parser" if code else "",
    )


def _method(strategy: Strategy, size: int) -> tuple[str, tuple[str, ...]]:
    """The way to train of `bench`, and what of the exchange it leaves out."""
    accumulated = strategy.num_microbatches
    waits = f"accumulation of {accumulated} micro-batches: "
    if size == 1:
        return "single", ((waits + "every micro-batch is an update",) if accumulated > 1 else ())
    compressed = {
        "fp16": "fp16",
        "powersgd": f"powersgd:{max(1, strategy.compression_rank)}",
        "topk": f"topk:{1 / max(1, strategy.compression_rank):g}",
    }
    special = None
    if strategy.shards_weights:
        special = "fsdp"
    elif strategy.sync_period > 1:
        special = f"localsgd:{strategy.sync_period}"
    elif strategy.compression != "none":
        special = compressed[strategy.compression]
    if special is not None:
        unmet = (f"{waits}{special} exchanges after every one",) if accumulated > 1 else ()
        return special, unmet
    return ("ddp" if accumulated == 1 else f"accumulate:{accumulated}"), ()


def _unmet(strategy: Strategy) -> tuple[str, ...]:
    missing = []
    if strategy.precision not in PRECISIONS:
        missing.append(f"{strategy.precision}: it computes in fp32, tf32 or bf16; bf16 is printed")
    if strategy.zero_stage in {1, 2} and strategy.dp > 1:
        missing.append(f"ZeRO stage {strategy.zero_stage}: each rank keeps complete states")
    if strategy.implementation == "compiled":
        missing.append("compilation: models run eagerly; compile in your own module:function")
    if strategy.recompute != "none":
        missing.append(f"{strategy.recompute} recomputation: use checkpoint in your own module:function")
    if strategy.optimizer != "sgd":
        missing.append(f"{strategy.optimizer}: the optimizer of the workload updates the weights")
    if not strategy.master_weights:
        missing.append("weights without a master copy: convert the model in your own module:function")
    if strategy.offload != "none":
        missing.append("offloading to the host's memory")
    if strategy.trained != "full":
        missing.append(f"{strategy.trained} adapters: make them in your own module:function")
    return tuple(missing)


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
    settings: tuple[Setting, ...] | None = None,
    script: str = "train.py",
) -> tuple[Snippet, ...]:
    """What to run and paste for a strategy: the command first, then environment and code, then the rest.

    cluster: the machine it is for; of as many accelerators as there are. workload: what is trained, for
    options that depend on its layers and experts. settings: whose variables are exported; those of
    `runtime_settings` for the cluster unless given. script: name of the training script.
    Raises SpecError for accelerators that torch's launcher does not start (TPUs, IPUs).
    """
    chip = cluster.accelerator
    if chip.kind not in _STARTED:
        raise SpecError(
            f"accelerator {chip.slug!r} is a {chip.kind}: commands are known for gpu and cpu, which "
            "torch's own launcher starts; see its vendor's guide"
        )
    return (
        *_commands(strategy, ranks_per_host(cluster, strategy), quote(script), kind=chip.kind),
        *_environment(runtime_settings(cluster, strategy) if settings is None else settings),
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
            why=f"HEAD is the name of one of them that the others can reach ({TORCHRUN_PAGE}).",
            checked_with=_TORCHRUN,
        ),
        Snippet(
            title="The same under Slurm",
            target="srun",
            code=rendered("srun", devices=devices, **values),
            why=f"Inside a job: one launcher per host, {ranks} processes each ({_SRUN_PAGE}).",
        ),
    )


def _environment(settings: tuple[Setting, ...]) -> tuple[Snippet, ...]:
    exports = [each for each in settings if each.is_variable and each.value is not None]
    if not exports:
        return ()
    code = "".join(
        f"export {each.name}={each.value}{'  # for the first run only' if each.is_for_first_run else ''}\n"
        for each in exports
    )
    why = "The settings list the reason for each and how to check it; no other setting is recommended."
    return (Snippet(title="Environment", target="shell", code=code, why=why),)


def _code(strategy: Strategy, script: str) -> tuple[Snippet, ...]:
    """The training script, where one page of torch can express the strategy."""
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
        title=f"{script}: runs as it is; insert your model and data",
        target="torch",
        code=code,
        why=f"{why} ({page}).",
        language="python",
        unsupported=missing,
        checked_with=_TORCH,
    )
    return (snippet,)


def _data_parallel_why(strategy: Strategy) -> tuple[str, str]:
    if is_sharded(strategy):
        moved = "weights are gathered for each pass" if strategy.shards_weights else "weights stay gathered"
        what = ", with states in the host's memory" if strategy.offload != "none" else ""
        return _FSDP_PAGE, f"fully_shard, ZeRO stage {max(2, strategy.zero_stage)}: {moved}{what}"
    if strategy.dp == 1:
        return _DDP_PAGE, "one device: nothing to communicate; on two, this would be wrapped"
    if strategy.sync_period > 1:
        return (
            _AVERAGING_PAGE,
            f"ranks train independently and average weights every {strategy.sync_period} steps",
        )
    parts = ["gradients travel in buckets during the backward pass"]
    if strategy.num_microbatches > 1:
        parts.append(f"once per {strategy.num_microbatches} micro-batches (no_sync)")
    if strategy.compression in {"fp16", "powersgd"}:
        parts.append(f"compressed ({strategy.compression} hook)")
    if strategy.zero_stage == 1:
        parts.append("each rank keeps its share of the optimizer (ZeRO stage 1)")
    return _DDP_PAGE, ", ".join(parts)


def _extras(strategy: Strategy, workload: Workload | None) -> tuple[Snippet, ...]:
    """What a strategy needs of libraries other than torch."""
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
        title="Low-precision matrix products, in Transformer Engine's layers",
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
        title = f"Not possible in {name} ({program})"
    elif found.unsupported:
        title = f"The closest in {name} ({program})"
    else:
        title = f"The same strategy in {name} ({program})"
    return Snippet(
        title=title,
        target=name,
        code=found.code,
        why=why,
        unsupported=found.unsupported,
        checked_with=checked_with if found.code else "",
    )

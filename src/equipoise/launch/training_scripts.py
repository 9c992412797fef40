"""Training scripts for every strategy, rendered from the files in templates/. Text only: imports no torch."""

from functools import cache
from pathlib import Path
from string import Template
from textwrap import indent

from equipoise.spec.strategy import Strategy

WEIGHTS_SHARDED = 3  # the ZeRO stage from which weights are sharded too
GRADIENTS_SHARDED = 2
# Below 16 bits, products are narrowed by a library of their own inside a bf16 network.
_HALVES = {"fp16": "float16"}
_TEMPLATES = Path(__file__).with_name("templates")


@cache
def _template(name: str) -> Template:
    return Template((_TEMPLATES / f"{name}.tmpl").read_text(encoding="utf-8"))


def rendered(name: str, **values: object) -> str:
    """A template of templates/ with its placeholders filled."""
    return _template(name).substitute(values)


def compute_dtype(strategy: Strategy) -> str:
    """The dtype of torch that products run in outside libraries for fewer than 16 bits."""
    if strategy.precision in {"fp32", "tf32"}:
        return "float32"
    return _HALVES.get(strategy.precision, "bfloat16")


def is_sharded(strategy: Strategy) -> bool:
    """Whether gradients or weights are, or lie in the host's memory: what `fully_shard` does."""
    return strategy.zero_stage >= GRADIENTS_SHARDED or strategy.offload != "none"


def whole_script(*parts: str, main: str) -> str:
    """A script of these parts, two blank lines between them, and a `main` that it runs."""
    body = indent(main, "    ")
    return "\n\n".join((*parts, f"def main():\n{body}", 'if __name__ == "__main__":\n    main()\n'))


def recompute_class(strategy: Strategy) -> str:
    """The wrapper of a layer that is recomputed."""
    call = "checkpoint(self.layer, *inputs, use_reentrant=False)"
    if strategy.recompute == "selective":
        call = rendered("selective_call").rstrip()
    return rendered("recomputed", call=call)


def recompute_imports(strategy: Strategy) -> str:
    """What the wrapper of recomputed layers imports from torch; empty where nothing is recomputed."""
    if strategy.recompute == "none":
        return ""
    if strategy.recompute == "full":
        return "from torch.utils.checkpoint import checkpoint\n"
    names = "    checkpoint,\n    create_selective_checkpoint_contexts,\n"
    return f"from torch.utils.checkpoint import (\n{names})\n"


def recompute_constants(strategy: Strategy) -> str:
    """What selective recomputation keeps: results of products and of fused attention."""
    return rendered("kept") if strategy.recompute == "selective" else ""


def recomputing(strategy: Strategy) -> str:
    """The line that wraps every layer."""
    if strategy.recompute == "none":
        return ""
    return "model.blocks = nn.ModuleList(Recomputed(block) for block in model.blocks)\n"


def optimizer_arguments(strategy: Strategy) -> tuple[str, str]:
    """The class of the optimizer and its settings, as text."""
    return {
        "adam": ("torch.optim.AdamW", "lr=1e-3"),
        "adam_8bit": ("AdamW8bit", "lr=1e-3"),
        "sgd": ("torch.optim.SGD", "lr=1e-2, momentum=0.9"),
    }[strategy.optimizer]


def optimizer_imports(strategy: Strategy) -> str:
    """What the optimizer imports besides torch."""
    if strategy.optimizer != "adam_8bit":
        return ""
    return "from torchao.optim import AdamW8bit  # pip install torchao\n"


def tf32_line(strategy: Strategy) -> str:
    """What lets products of 32 bits run in tf32; nothing for fp32."""
    if strategy.precision == "fp32":
        return ""
    return 'torch.set_float32_matmul_precision("high")  # tf32 in what stays 32 bits\n'


def not_in_training_scripts(strategy: Strategy) -> tuple[str, ...]:
    """What no training script here does, for a plan that assumes it."""
    missing = []
    if strategy.compression == "topk":
        missing.append("top-k gradients: torch has no communication hook for them")
    if strategy.compression != "none" and (is_sharded(strategy) or strategy.sync_period > 1):
        missing.append(f"{strategy.compression} gradients: only DistributedDataParallel takes a hook")
    if strategy.offload == "optimizer":
        missing.append("offloading of the optimizer alone: CPUOffloadPolicy moves weights and gradients too")
    return tuple(missing)


def training_script(strategy: Strategy) -> str:
    """A whole script that trains with the data axis alone, as the strategy says; it runs as it stands."""
    alone = strategy.dp == 1 and not is_sharded(strategy)
    wrapped = (_compiled if alone else _sharded if is_sharded(strategy) else _replicated)(strategy)
    body = [
        rendered("begin_alone" if alone else "begin"),
        tf32_line(strategy),
        "model = Model().to(device)\n",
        recomputing(strategy),
        wrapped,
        _optimizer(strategy),
        _scaler(strategy),
        "" if alone else "# Each rank draws other samples.\ntorch.manual_seed(1 + dist.get_rank())\n",
        _loop(strategy, alone=alone),
        ""
        if alone
        else "dist.barrier()  # none leaves while another still sends\ndist.destroy_process_group()\n",
    ]
    wrapper = (recompute_class(strategy),) if strategy.recompute != "none" else ()
    heads = (f"{_imports(strategy, alone=alone)}\n{_constants(strategy)}", rendered("model"), *wrapper)
    return whole_script(*heads, main="".join(body))


def _imports(strategy: Strategy, *, alone: bool) -> str:
    lines = (
        []
        if alone or is_sharded(strategy) or strategy.num_microbatches == 1 or strategy.sync_period > 1
        else ["import contextlib"]
    )
    lines += ["import functools"] if strategy.recompute == "selective" else []
    lines += ["" if alone else "import os", "import time"]
    lines += ["", "import torch", "" if alone else "import torch.distributed as dist", "from torch import nn"]
    if not alone:
        lines += _wrapper_imports(strategy)
    kept = [line for place, line in enumerate(lines) if line or place == lines.index("import time") + 1]
    return "\n".join(kept) + "\n" + recompute_imports(strategy) + optimizer_imports(strategy)


def _wrapper_imports(strategy: Strategy) -> list[str]:
    if is_sharded(strategy):
        names = ["MixedPrecisionPolicy", "fully_shard"]
        if strategy.offload != "none":
            names.insert(0, "CPUOffloadPolicy")
        listed = "".join(f"    {name},\n" for name in names)
        return [
            "from torch.distributed.device_mesh import init_device_mesh",
            f"from torch.distributed.fsdp import (\n{listed})",
        ]
    if strategy.sync_period > 1:
        place = "torch.distributed.algorithms.model_averaging.averagers"
        return [f"from {place} import (\n    PeriodicModelAverager,\n)"]
    lines = []
    if strategy.compression == "powersgd":
        lines.append("from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook")
    if strategy.compression == "fp16":
        lines.append("from torch.distributed.algorithms.ddp_comm_hooks import default_hooks")
    if strategy.zero_stage == 1:
        lines.append("from torch.distributed.optim import ZeroRedundancyOptimizer")
    return [*lines, "from torch.nn.parallel import DistributedDataParallel"]


def _constants(strategy: Strategy) -> str:
    lines = [
        "NUM_STEPS = 10",
        f"MICROBATCH = {strategy.microbatch_samples}  # samples a rank takes at a time",
        f"NUM_MICROBATCHES = {strategy.num_microbatches}  # between two exchanges of gradients",
    ]
    if strategy.sync_period > 1:
        lines.append(f"SYNC_PERIOD = {strategy.sync_period}  # steps between two averagings")
    text = "\n".join(lines) + "\n"
    return text + recompute_constants(strategy)


def _compiled(strategy: Strategy) -> str:
    return "model = torch.compile(model)\n" if strategy.implementation == "compiled" else ""


def _replicated(strategy: Strategy) -> str:
    if strategy.sync_period > 1:
        return f"averager = PeriodicModelAverager(period=SYNC_PERIOD)\n{_compiled(strategy)}"
    # Over gloo, PowerSGD's hook hangs where there are several buckets: all gradients in one.
    cap = 4096 if strategy.compression == "powersgd" else 25
    static = (
        "    static_graph=True,  # every step uses the same weights\n"
        if strategy.num_microbatches == 1
        else ""
    )
    text = rendered("replicated", bucket_mib=cap, static=static)
    if strategy.compression == "fp16":
        text += "model.register_comm_hook(None, default_hooks.fp16_compress_hook)\n"
    if strategy.compression == "powersgd":
        text += (
            "state = powerSGD_hook.PowerSGDState(\n"
            f"    None, matrix_approximation_rank={max(1, strategy.compression_rank)}\n)\n"
            "model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)\n"
        )
    return text + _compiled(strategy)


def _sharded(strategy: Strategy) -> str:
    again = strategy.zero_stage >= WEIGHTS_SHARDED
    offload = ",\n    offload_policy=CPUOffloadPolicy()" if strategy.offload != "none" else ""
    note = "gathered again on the way back" if again else "stay gathered until the way back"
    shards = rendered("sharded", dtype=compute_dtype(strategy), again=again, offload=offload, note=note)
    return shards + _compiled(strategy)


def _optimizer(strategy: Strategy) -> str:
    name, settings = optimizer_arguments(strategy)
    if strategy.zero_stage == 1 and strategy.dp > 1 and not is_sharded(strategy):
        return (
            "optimizer = ZeroRedundancyOptimizer(\n"
            f"    model.parameters(), optimizer_class={name}, {settings}\n)\n"
        )
    return f"optimizer = {name}(model.parameters(), {settings})\n"


def _scaler(strategy: Strategy) -> str:
    return "scaler = torch.amp.GradScaler(device.type)\n" if strategy.precision == "fp16" else ""


def _loop(strategy: Strategy, *, alone: bool) -> str:
    """Steps: micro-batches that exchange nothing, and a last one that does."""
    waits = strategy.num_microbatches > 1 and not alone and strategy.sync_period == 1
    quiet = waits and not is_sharded(strategy)
    lines = ["for step in range(NUM_STEPS):", "    begun = time.perf_counter()", "    optimizer.zero_grad()"]
    lines.append("    for place in range(NUM_MICROBATCHES):")
    if waits:
        lines.append("        is_last = place == NUM_MICROBATCHES - 1")
    if waits and not quiet:
        lines.append("        model.set_requires_gradient_sync(is_last)")
    lines.append("        x, y = make_batch(MICROBATCH, device)")
    if quiet:
        lines.append("        with contextlib.nullcontext() if is_last else model.no_sync():")
    lines += [f"{' ' * (12 if quiet else 8)}{line}" for line in _passes(strategy)]
    lines += _update(strategy)
    if strategy.sync_period > 1 and not alone:
        lines.append("    averager.average_parameters(model.parameters())")
    lines.append("    value = loss.item()  # waits for the device")
    lines.append("    took_s = time.perf_counter() - begun")
    show = 'print(f"step {step}: loss {value:.3f}, {took_s:.4f} s")'
    lines += [f"    {show}"] if alone else ["    if dist.get_rank() == 0:", f"        {show}"]
    return "\n".join(lines) + "\n"


def _passes(strategy: Strategy) -> list[str]:
    """One micro-batch forward and back."""
    loss = "nn.functional.cross_entropy(model(x), y)"
    backward = "scaler.scale(loss / NUM_MICROBATCHES).backward()"
    if strategy.precision != "fp16":
        backward = "(loss / NUM_MICROBATCHES).backward()"
    if is_sharded(strategy) or compute_dtype(strategy) == "float32":
        return [f"loss = {loss}", backward]
    return [
        f"with torch.autocast(device.type, dtype=torch.{compute_dtype(strategy)}):",
        f"    loss = {loss}",
        backward,
    ]


def _update(strategy: Strategy) -> list[str]:
    if strategy.precision == "fp16":
        return ["    scaler.step(optimizer)", "    scaler.update()"]
    return ["    optimizer.step()"]


_SHARDED_STAGES = (2, 3)


def tensor_script(strategy: Strategy) -> str:
    """A whole script that cuts each layer's products over `tp` ranks, and shards weights over `dp`."""
    compiled = "model = torch.compile(model)\n" if strategy.implementation == "compiled" else ""
    main = rendered("begin") + tf32_line(strategy)
    main += rendered(
        "tensor",
        plan=rendered(f"tensor_plan_{'sequence' if strategy.sequence_parallel else 'whole'}").rstrip(),
        ends=rendered("tensor_ends_sequence") if strategy.sequence_parallel else "",
        recomputing=recomputing(strategy),
        weights=_weights(strategy),
        compiled=compiled,
        optimizer=_model_parallel_optimizer(strategy, "model.parameters()"),
        waits=_waits(strategy),
        loss=_loss(strategy),
    )
    constants = (
        f"NUM_STEPS = 10\nDP, TP = {strategy.dp}, {strategy.tp}\n"
        f"MICROBATCH = {strategy.microbatch_samples}  # samples a copy takes at a time\n"
        f"NUM_MICROBATCHES = {strategy.num_microbatches}\n{recompute_constants(strategy)}"
    )
    wrapper = (recompute_class(strategy),) if strategy.recompute != "none" else ()
    return whole_script(_tensor_imports(strategy), constants, rendered("model"), *wrapper, main=main)


def pipeline_script(strategy: Strategy) -> str:
    """A whole script that puts a model's layers on `pp` ranks and sends micro-batches through them."""
    looped = strategy.interleave > 1
    schedule = "ScheduleInterleaved1F1B" if looped else "Schedule1F1B"
    dtype = compute_dtype(strategy)
    main = rendered("begin") + tf32_line(strategy)
    main += rendered(
        "pipeline",
        schedule=schedule,
        chunks="range(rank, PP * CHUNKS, PP)" if looped else "(rank,)",
        stages="stages" if looped else "stages[0]",
        recomputing=recomputing(strategy),
        optimizer=_model_parallel_optimizer(strategy, "weights"),
    )
    constants = (
        f"NUM_STEPS = 10\nDP, PP, CHUNKS = {strategy.dp}, {strategy.pp}, {strategy.interleave}\n"
        f"MICROBATCH = {strategy.microbatch_samples}\n"
        f"NUM_MICROBATCHES = {strategy.num_microbatches}\n{recompute_constants(strategy)}"
    )
    imports = rendered(
        "pipeline_imports",
        first=_first_imports(strategy),
        schedule=schedule,
        rest=recompute_imports(strategy) + optimizer_imports(strategy),
    )
    part = rendered(
        "pipeline_part", cast="enabled=False" if dtype == "float32" else f"dtype=torch.{dtype}", sent=dtype
    )
    wrapper = (recompute_class(strategy),) if strategy.recompute != "none" else ()
    return whole_script(imports, constants, rendered("model"), *wrapper, part, main=main)


def not_in_tensor_scripts(strategy: Strategy) -> tuple[str, ...]:
    """What the script for tensor parallelism does not do, for a plan that assumes it."""
    missing = []
    if strategy.dp > 1 and strategy.zero_stage not in _SHARDED_STAGES:
        missing.append(f"ZeRO stage {strategy.zero_stage}: beside tp the script shards gradients (stage 2)")
    if strategy.tp_overlap:
        missing.append("overlap of tensor-parallel communication with products")
    return (*missing, *_in_neither(strategy))


def not_in_pipeline_scripts(strategy: Strategy) -> tuple[str, ...]:
    """What the script for pipelines does not do, for a plan that assumes it."""
    missing = []
    if strategy.zero_stage > 0 and strategy.dp > 1:
        missing.append(f"ZeRO stage {strategy.zero_stage}: each copy of a stage keeps whole states")
    if strategy.implementation == "compiled":
        missing.append("compilation: stages run eagerly")
    return (*missing, *_in_neither(strategy))


def _in_neither(strategy: Strategy) -> tuple[str, ...]:
    missing = []
    if strategy.precision == "fp16":
        missing.append("loss scaling of fp16: use bf16 or a gradient scaler of your own")
    if strategy.offload != "none":
        missing.append("offloading to the host's memory")
    if strategy.compression not in {"none", "topk"}:
        missing.append(f"{strategy.compression} gradients: only DistributedDataParallel takes a hook")
    if strategy.sync_period > 1:
        missing.append("averaging of weights instead of gradients")
    return tuple(missing)


def _first_imports(strategy: Strategy) -> str:
    return "import functools\n" if strategy.recompute == "selective" else ""


def _tensor_imports(strategy: Strategy) -> str:
    sequence = strategy.sequence_parallel
    sharding = "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n"
    return rendered(
        "tensor_imports",
        first=_first_imports(strategy),
        sharding=sharding if strategy.dp > 1 else "",
        shard=", Shard" if sequence else "",
        ends="    PrepareModuleInput,\n    PrepareModuleOutput,\n" if sequence else "",
        sequence="    SequenceParallel,\n" if sequence else "",
        rest=recompute_imports(strategy) + optimizer_imports(strategy),
    )


def _weights(strategy: Strategy) -> str:
    if strategy.dp == 1:
        return ""
    again = strategy.zero_stage >= WEIGHTS_SHARDED
    return rendered("tensor_shards", dtype=compute_dtype(strategy), again=again)


def _loss(strategy: Strategy) -> str:
    line = "loss = nn.functional.cross_entropy(model(x), y)\n"
    dtype = compute_dtype(strategy)
    if strategy.dp > 1 or dtype == "float32":  # fully_shard narrows by itself
        return f"        {line}"
    return f"        with torch.autocast(device.type, dtype=torch.{dtype}):\n            {line}"


def _waits(strategy: Strategy) -> str:
    if strategy.dp == 1 or strategy.num_microbatches == 1:
        return ""
    return "        model.set_requires_gradient_sync(place == NUM_MICROBATCHES - 1)\n"


def _model_parallel_optimizer(strategy: Strategy, weights: str) -> str:
    name, settings = optimizer_arguments(strategy)
    return f"optimizer = {name}({weights}, {settings})"

"""Training scripts for data parallelism: one device, DistributedDataParallel, sharded weights, local SGD.

Text only: nothing here imports torch. A test runs what is written here on two ranks.
"""

from equipoise.launch.scripts import (
    WEIGHTS_SHARDED,
    compute_dtype,
    is_sharded,
    optimizer_arguments,
    optimizer_imports,
    recompute_class,
    recompute_constants,
    recompute_imports,
    recomputing,
    rendered,
    tf32_line,
    whole_script,
)
from equipoise.spec.strategy import Strategy


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

"""Training scripts for data parallelism: one device, DistributedDataParallel, sharded weights, local SGD.

Text only: nothing here imports torch. A test runs what is written here on two ranks.
"""

from textwrap import indent

from equipoise.spec.strategy import Strategy

WEIGHTS_SHARDED = 3  # the ZeRO stage from which weights are sharded too
GRADIENTS_SHARDED = 2
# Below 16 bits, products are narrowed by a library of their own inside a bf16 network.
_HALVES = {"fp16": "float16"}

STAND_IN = '''\
class Block(nn.Module):
    """Stands in for a layer of your model."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Stands in for your model; its layers are in `blocks`."""

    def __init__(self, width=64, num_blocks=4, num_classes=10):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


def make_batch(num_samples, device):
    """Stands in for your data: each rank needs other samples."""
    x = torch.randn(num_samples, 16, 64, device=device)
    return x, torch.randint(10, (num_samples,), device=device)
'''

RECOMPUTED = '''\
class Recomputed(nn.Module):
    """A layer whose activations are computed again on the way back."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs):
        return {call}
'''

# What selective recomputation keeps: results of products and of fused attention.
_KEPT = (
    "KEPT = [\n"
    "    torch.ops.aten.mm.default,\n"
    "    torch.ops.aten.addmm.default,\n"
    "    torch.ops.aten._scaled_dot_product_flash_attention.default,\n"
    "    torch.ops.aten._scaled_dot_product_efficient_attention.default,\n"
    "]\n"
)

BEGIN = """\
local_rank = int(os.environ.get("LOCAL_RANK", "0"))
on_gpu = torch.cuda.is_available()
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(0)  # alike on all ranks: they begin with the same weights
"""

_BEGIN_ALONE = """\
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
"""


def accumulated(plan: Strategy) -> int:
    """Micro-batches between two exchanges of gradients."""
    return plan.global_batch_samples // (plan.dp * plan.microbatch_samples)


def narrow(plan: Strategy) -> str:
    """The dtype of torch that products run in outside libraries for fewer than 16 bits."""
    if plan.precision in {"fp32", "tf32"}:
        return "float32"
    return _HALVES.get(plan.precision, "bfloat16")


def is_sharded(plan: Strategy) -> bool:
    """Whether gradients or weights are, or lie in the host's memory: what `fully_shard` does."""
    return plan.shard_state >= GRADIENTS_SHARDED or plan.offload != "none"


def training_script(plan: Strategy) -> str:
    """A whole script that trains with the data axis alone, as the strategy says; it runs as it stands."""
    alone = plan.dp == 1 and not is_sharded(plan)
    wrapped = _alone(plan) if alone else _sharded(plan) if is_sharded(plan) else _replicated(plan)
    body = [
        _BEGIN_ALONE if alone else BEGIN,
        _tf32(plan),
        "model = Model().to(device)\n",
        recomputing(plan),
        wrapped,
        _optimizer(plan),
        _scaler(plan),
        "" if alone else "# Each rank draws other samples.\ntorch.manual_seed(1 + dist.get_rank())\n",
        _loop(plan, alone=alone),
        "" if alone else "dist.destroy_process_group()\n",
    ]
    wrapper = (recompute_class(plan),) if plan.recompute != "none" else ()
    heads = (f"{_imports(plan, alone=alone)}\n{_constants(plan)}", STAND_IN, *wrapper)
    return whole_script(*heads, main="".join(body))


def whole_script(*parts: str, main: str) -> str:
    """A script of these parts, two blank lines between them, and a `main` that it runs."""
    body = indent(main, "    ")
    return "\n\n".join((*parts, f"def main():\n{body}", 'if __name__ == "__main__":\n    main()\n'))


def _imports(plan: Strategy, *, alone: bool) -> str:
    lines = (
        []
        if alone or is_sharded(plan) or accumulated(plan) == 1 or plan.sync_period > 1
        else ["import contextlib"]
    )
    lines += ["import functools"] if plan.recompute == "selective" else []
    lines += ["" if alone else "import os", "import time"]
    lines += ["", "import torch", "" if alone else "import torch.distributed as dist", "from torch import nn"]
    if not alone:
        lines += _wrapper_imports(plan)
    if plan.recompute == "full":
        lines.append("from torch.utils.checkpoint import checkpoint")
    if plan.recompute == "selective":
        names = "    checkpoint,\n    create_selective_checkpoint_contexts,\n"
        lines.append(f"from torch.utils.checkpoint import (\n{names})")
    if plan.optimizer == "adam_8bit":
        lines.append("from torchao.optim import AdamW8bit  # pip install torchao")
    kept = [line for place, line in enumerate(lines) if line or place == lines.index("import time") + 1]
    return "\n".join(kept) + "\n"


def _wrapper_imports(plan: Strategy) -> list[str]:
    if is_sharded(plan):
        names = ["MixedPrecisionPolicy", "fully_shard"]
        if plan.offload != "none":
            names.insert(0, "CPUOffloadPolicy")
        listed = "".join(f"    {name},\n" for name in names)
        return [
            "from torch.distributed.device_mesh import init_device_mesh",
            f"from torch.distributed.fsdp import (\n{listed})",
        ]
    if plan.sync_period > 1:
        place = "torch.distributed.algorithms.model_averaging.averagers"
        return [f"from {place} import (\n    PeriodicModelAverager,\n)"]
    lines = []
    if plan.compression == "powersgd":
        lines.append("from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook")
    if plan.compression == "fp16":
        lines.append("from torch.distributed.algorithms.ddp_comm_hooks import default_hooks")
    if plan.shard_state == 1:
        lines.append("from torch.distributed.optim import ZeroRedundancyOptimizer")
    return [*lines, "from torch.nn.parallel import DistributedDataParallel"]


def _constants(plan: Strategy) -> str:
    lines = [
        "NUM_STEPS = 10",
        f"MICROBATCH = {plan.microbatch_samples}  # samples a rank takes at a time",
        f"NUM_MICROBATCHES = {accumulated(plan)}  # between two exchanges of gradients",
    ]
    if plan.sync_period > 1:
        lines.append(f"SYNC_PERIOD = {plan.sync_period}  # steps between two averagings")
    text = "\n".join(lines) + "\n"
    return text + _KEPT if plan.recompute == "selective" else text


def recompute_class(plan: Strategy) -> str:
    """The wrapper of a layer that is recomputed."""
    if plan.recompute != "selective":
        return RECOMPUTED.format(call="checkpoint(self.layer, *inputs, use_reentrant=False)")
    return RECOMPUTED.format(
        call=(
            "checkpoint(\n"
            "            self.layer,\n"
            "            *inputs,\n"
            "            use_reentrant=False,\n"
            "            context_fn=functools.partial(\n"
            "                create_selective_checkpoint_contexts, KEPT\n"
            "            ),\n"
            "        )"
        )
    )


def recomputing(plan: Strategy) -> str:
    """The line that wraps every layer."""
    if plan.recompute == "none":
        return ""
    return "model.blocks = nn.ModuleList(Recomputed(block) for block in model.blocks)\n"


def _tf32(plan: Strategy) -> str:
    if plan.precision == "fp32":
        return ""
    return 'torch.set_float32_matmul_precision("high")  # tf32 in what stays 32 bits\n'


def _compiled(plan: Strategy) -> str:
    return "model = torch.compile(model)\n" if plan.implementation == "compiled" else ""


def _alone(plan: Strategy) -> str:
    return _compiled(plan)


def _replicated(plan: Strategy) -> str:
    if plan.sync_period > 1:
        return f"averager = PeriodicModelAverager(period=SYNC_PERIOD)\n{_compiled(plan)}"
    # Over gloo, PowerSGD's hook hangs where there are several buckets: all gradients in one.
    cap = 4096 if plan.compression == "powersgd" else 25
    text = (
        "model = DistributedDataParallel(\n"
        "    model,\n"
        "    device_ids=[local_rank] if on_gpu else None,\n"
        f"    bucket_cap_mb={cap},\n"
        "    gradient_as_bucket_view=True,  # saves a copy of each gradient\n"
    )
    if accumulated(plan) == 1:
        text += "    static_graph=True,  # every step uses the same weights\n"
    text += ")\n"
    if plan.compression == "fp16":
        text += "model.register_comm_hook(None, default_hooks.fp16_compress_hook)\n"
    if plan.compression == "powersgd":
        text += (
            "state = powerSGD_hook.PowerSGDState(\n"
            f"    None, matrix_approximation_rank={max(1, plan.compression_rank)}\n)\n"
            "model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)\n"
        )
    return text + _compiled(plan)


def _sharded(plan: Strategy) -> str:
    again = plan.shard_state >= WEIGHTS_SHARDED
    offload = ",\n    offload_policy=CPUOffloadPolicy()" if plan.offload != "none" else ""
    note = "gathered again on the way back" if again else "stay gathered until the way back"
    return (
        "world = (dist.get_world_size(),)\n"
        'mesh = init_device_mesh(device.type, world, mesh_dim_names=("dp",))\n'
        "policy = MixedPrecisionPolicy(\n"
        f"    param_dtype=torch.{narrow(plan)}, reduce_dtype=torch.float32\n)\n"
        "shard = dict(\n"
        "    mesh=mesh,\n"
        "    mp_policy=policy,\n"
        f"    reshard_after_forward={again}{offload},\n"
        f")  # weights {note}\n"
        "for block in model.blocks:\n"
        "    fully_shard(block, **shard)\n"
        f"fully_shard(model, **shard)\n{_compiled(plan)}"
    )


def _optimizer(plan: Strategy) -> str:
    name, settings = {
        "adam": ("torch.optim.AdamW", "lr=1e-3"),
        "adam_8bit": ("AdamW8bit", "lr=1e-3"),
        "sgd": ("torch.optim.SGD", "lr=1e-2, momentum=0.9"),
    }[plan.optimizer]
    if plan.shard_state == 1 and plan.dp > 1 and not is_sharded(plan):
        return (
            "optimizer = ZeroRedundancyOptimizer(\n"
            f"    model.parameters(), optimizer_class={name}, {settings}\n)\n"
        )
    return f"optimizer = {name}(model.parameters(), {settings})\n"


def _scaler(plan: Strategy) -> str:
    return "scaler = torch.amp.GradScaler(device.type)\n" if plan.precision == "fp16" else ""


def _loop(plan: Strategy, *, alone: bool) -> str:
    """Steps: micro-batches that exchange nothing, and a last one that does."""
    waits = accumulated(plan) > 1 and not alone and plan.sync_period == 1
    quiet = waits and not is_sharded(plan)
    lines = ["for step in range(NUM_STEPS):", "    begun = time.perf_counter()", "    optimizer.zero_grad()"]
    lines.append("    for place in range(NUM_MICROBATCHES):")
    if waits:
        lines.append("        is_last = place == NUM_MICROBATCHES - 1")
    if waits and not quiet:
        lines.append("        model.set_requires_gradient_sync(is_last)")
    lines.append("        x, y = make_batch(MICROBATCH, device)")
    if quiet:
        lines.append("        with contextlib.nullcontext() if is_last else model.no_sync():")
    lines += [f"{' ' * (12 if quiet else 8)}{line}" for line in _passes(plan)]
    lines += _update(plan)
    if plan.sync_period > 1 and not alone:
        lines.append("    averager.average_parameters(model.parameters())")
    lines.append("    value = loss.item()  # waits for the device")
    lines.append("    took_s = time.perf_counter() - begun")
    show = 'print(f"step {step}: loss {value:.3f}, {took_s:.4f} s")'
    lines += [f"    {show}"] if alone else ["    if dist.get_rank() == 0:", f"        {show}"]
    return "\n".join(lines) + "\n"


def _passes(plan: Strategy) -> list[str]:
    """One micro-batch forward and back."""
    loss = "nn.functional.cross_entropy(model(x), y)"
    backward = "scaler.scale(loss / NUM_MICROBATCHES).backward()"
    if plan.precision != "fp16":
        backward = "(loss / NUM_MICROBATCHES).backward()"
    if is_sharded(plan) or narrow(plan) == "float32":
        return [f"loss = {loss}", backward]
    return [f"with torch.autocast(device.type, dtype=torch.{narrow(plan)}):", f"    loss = {loss}", backward]


def _update(plan: Strategy) -> list[str]:
    if plan.precision == "fp16":
        return ["    scaler.step(optimizer)", "    scaler.update()"]
    return ["    optimizer.step()"]

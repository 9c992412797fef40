"""Training scripts that cut the model itself: tensor and sequence parallelism, pipelines. Text only."""

from equipoise.launch.scripts import (
    WEIGHTS_SHARDED,
    compute_dtype,
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
        optimizer=_optimizer(strategy, "model.parameters()"),
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
        optimizer=_optimizer(strategy, "weights"),
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


def _optimizer(strategy: Strategy, weights: str) -> str:
    name, settings = optimizer_arguments(strategy)
    return f"optimizer = {name}({weights}, {settings})"

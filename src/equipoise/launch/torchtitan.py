"""A strategy in options of torchtitan; the rules of its parser are in tests/launch."""

from collections.abc import Iterator

from equipoise.launch.program import (
    Expressed,
    FieldRule,
    Model,
    Option,
    Program,
    adapters,
    averaging,
    compression,
    master_weights_rule,
    no_activation_offload,
    stage_layers,
)
from equipoise.spec.strategy import Strategy

# Virtual stages a rank of an interleaved schedule, unless layers a stage are given.
_DEFAULT_LOOPED_STAGES = 2
_CONVERTERS = {
    "fp8": "Float8LinearConverter",
    "fp8_rowwise": "Float8LinearConverter with its rowwise recipe",
    "mxfp8": "MXFP8LinearConverter",
    "fp4": "NVFP4LinearConverter",
}


def _refused(strategy: Strategy, _: Model) -> Iterator[str]:
    if strategy.trained != "full":
        yield f"{adapters(strategy)}: a converter in the model's configuration, not an option"


def _batch(strategy: Strategy, _: Model) -> Expressed:
    # A pipeline cuts a rank's batch into its micro-batches; else each is a pass of accumulation.
    passes = strategy.num_microbatches if strategy.pp > 1 else 1
    yield Option("training.local_batch_size", strategy.microbatch_samples * passes)
    yield Option("training.global_batch_size", strategy.global_batch_samples)


def _precision(strategy: Strategy, _: Model) -> Expressed:
    narrow = "float32" if strategy.precision in {"fp32", "tf32"} else "bfloat16"
    yield Option("training.mixed_precision_param", narrow)
    if strategy.precision in _CONVERTERS:
        yield f"{strategy.precision}: a {_CONVERTERS[strategy.precision]} in the model's configuration"
    if strategy.precision == "fp16":
        yield "fp16: it computes in bfloat16 or float32; bfloat16 is printed"
    if strategy.precision == "tf32":
        yield "tf32 products: set NVIDIA_TF32_OVERRIDE or torch's matmul precision"


def _graphs(_: Strategy, __: Model) -> Expressed:
    # They are on by default, refused with pipelines, and the performance model counts launches from the host.
    yield Option("training.disable_cuda_graphs")


def _states(strategy: Strategy, _: Model) -> Expressed:
    if strategy.offload != "none":
        yield Option("training.enable_cpu_offload")
    is_sharded = strategy.zero_stage > 0
    replicas = strategy.dp_replicate if is_sharded else strategy.dp
    yield Option("parallelism.data_parallel_replicate_degree", replicas)
    yield Option("parallelism.data_parallel_shard_degree", strategy.dp // replicas)
    if is_sharded:
        # In a pipeline weights stay gathered after a way back, whatever is asked; the model counts them so.
        reshards = "always" if strategy.shards_weights and strategy.pp == 1 else "never"
        yield Option("parallelism.fsdp_reshard_after_forward", reshards)
    if strategy.zero_stage == 1:
        yield "ZeRO stage 1: gradients are sharded too (stage 2)"
    if strategy.offload == "optimizer":
        yield "offloading of the optimizer alone: weights and gradients are moved too"
    if strategy.offload != "none" and not strategy.shards_gradients and strategy.dp > 1:
        yield "offloading with unsharded states: it is part of FSDP"


def _tensor(strategy: Strategy, _: Model) -> Expressed:
    if strategy.tp > 1:
        yield Option("parallelism.tensor_parallel_degree", strategy.tp)
        prefix = "" if strategy.sequence_parallel else "no_"
        yield Option(f"parallelism.{prefix}enable_sequence_parallel")


def _context(strategy: Strategy, _: Model) -> Expressed:
    if strategy.cp > 1:
        yield Option("parallelism.context_parallel_degree", strategy.cp)
        if not strategy.shards_weights:
            yield "unsharded weights with context parallelism: they are sharded over its ranks"


def _experts(strategy: Strategy, _: Model) -> Expressed:
    if strategy.ep == 1:
        return
    yield Option("parallelism.expert_parallel_degree", strategy.ep)
    sharded = strategy.num_shards if strategy.zero_stage > 0 else strategy.cp
    if sharded * strategy.tp % strategy.ep:
        yield f"ep={strategy.ep} with replicas: experts are spread over sharded ranks only"


def _pipeline(strategy: Strategy, model: Model) -> Expressed:
    if strategy.pp == 1:
        if strategy.interleave > 1:
            yield f"{strategy.interleave} chunks per rank without a pipeline"
        if strategy.schedule != "1f1b":
            yield f"schedule={strategy.schedule} without a pipeline"
        return
    schedule = "Interleaved1F1B" if strategy.interleave > 1 else "1F1B"
    if strategy.schedule == "dualpipe_v":
        schedule = "DualPipeV"
        if strategy.ep > 1 and strategy.recompute != "none":
            yield f"recompute={strategy.recompute} with DualPipeV and experts on several ranks"
    elif strategy.schedule != "1f1b":
        yield f"schedule={strategy.schedule}: of DualPipe it has the V"
    yield Option("parallelism.pipeline_parallel_degree", strategy.pp)
    yield Option("parallelism.pipeline_parallel_schedule", schedule)
    yield Option("parallelism.pipeline_parallel_microbatch_size", strategy.microbatch_samples)
    # By default the ends have a layer less each, to make up for the embedding and the loss.
    yield Option("parallelism.pipeline_parallel_first_stage_less_layers", 0)
    counts = () if model is None else stage_layers(model.layers, strategy.pp, strategy.interleave)
    # Its stages are equal but for what the last one lacks.
    fewer = counts[0] - counts[-1] if counts and set(counts[:-1]) == {counts[0]} else 0
    yield Option("parallelism.pipeline_parallel_last_stage_less_layers", fewer)
    if len(set(counts)) > 1 and not fewer:
        yield f"{sum(counts)} layers on {len(counts)} stages: it has the fuller ones first, one layer apart"
    if strategy.interleave in {1, _DEFAULT_LOOPED_STAGES}:
        return
    # It cuts the layers into stages of so many, which have to be as many stages as the strategy has.
    if counts and -(-(sum(counts) + fewer) // counts[0]) == len(counts):
        yield Option("parallelism.pipeline_parallel_layers_per_stage", counts[0])
    else:
        yield f"{strategy.interleave} chunks per rank: the layers of the model do not give as many stages"


def _compiler(strategy: Strategy, _: Model) -> Expressed:
    is_compiled = strategy.implementation == "compiled"
    yield Option("compile.enable" if is_compiled else "compile.no_enable")
    if strategy.tp_overlap and is_compiled:
        yield Option("compile.enable_async_tensor_parallel")
    elif strategy.tp_overlap:
        yield "overlap of tensor-parallel communication: it needs the compiler"


def _optimizer(strategy: Strategy, _: Model) -> Expressed:
    if strategy.optimizer != "adam":
        yield f"{strategy.optimizer}: the optimizer is part of the model's configuration, AdamW there"


def _kernels(strategy: Strategy, _: Model) -> Expressed:
    if not strategy.fused_attention:
        yield "unfused attention: its models have fused attention"
    if not strategy.fused_loss:
        yield "an unfused loss: ChunkedLossWrapper is part of the model's configuration"


def _recompute(strategy: Strategy, _: Model) -> Expressed:
    # A subcommand of its parser: options stand before it, none after.
    yield Option(f"activation-checkpoint:{strategy.recompute}", None)


TORCHTITAN = Program(
    name="torchtitan",
    file="torchtitan.sh",
    form="options",
    version="0.3.0",
    source="https://github.com/pytorch/torchtitan (torchtitan/config/configs.py)",
    rules=(
        FieldRule(fields=("microbatch_samples", "global_batch_samples"), express=_batch),
        FieldRule(fields=("precision",), express=_precision),
        FieldRule(fields=(), express=_graphs),
        FieldRule(fields=("dp", "zero_stage", "dp_replicate", "offload"), express=_states),
        FieldRule(fields=("tp", "sequence_parallel"), express=_tensor),
        FieldRule(fields=("cp",), express=_context),
        FieldRule(fields=("ep",), express=_experts),
        FieldRule(fields=("pp", "interleave", "schedule"), express=_pipeline),
        FieldRule(fields=("implementation", "tp_overlap"), express=_compiler),
        FieldRule(fields=("optimizer",), express=_optimizer),
        master_weights_rule("set the dtype of its training configuration to bfloat16"),
        FieldRule(fields=("fused_attention", "fused_loss"), express=_kernels),
        FieldRule(fields=("compression", "compression_rank"), express=compression),
        FieldRule(fields=("sync_period",), express=averaging),
        FieldRule(fields=("trained", "lora_rank"), derived="refused: adapters are configuration in code"),
        FieldRule(fields=("activation_offload",), express=no_activation_offload),
        FieldRule(fields=("recompute",), express=_recompute),
    ),
    refuse=_refused,
    entry=("-m", "torchtitan.train"),
    is_for_transformers=True,
    use='source torchtitan.sh, then -m torchtitan.train --module M --config C "${OPTIONS[@]}"',
    checked_with="torchtitan 0.3.0's own parser, and a table of its rules",
)

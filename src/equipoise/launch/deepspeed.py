"""A strategy as a configuration of DeepSpeed."""

from equipoise.launch.program import (
    Expressed,
    FieldRule,
    Model,
    Option,
    Program,
    adapters_in_code,
    averaging,
    compression,
    kernels_in_code,
    master_weights_rule,
    refuse_pipeline,
)
from equipoise.spec.strategy import Strategy

_OPTIMIZERS = {"adam": "AdamW", "adam_8bit": "AdamW", "sgd": "SGD"}


def _batch(strategy: Strategy, _: Model) -> Expressed:
    yield Option("train_batch_size", strategy.global_batch_samples)
    yield Option("train_micro_batch_size_per_gpu", strategy.microbatch_samples)
    yield Option("gradient_accumulation_steps", strategy.num_microbatches)


def _precision(strategy: Strategy, _: Model) -> Expressed:
    if strategy.precision == "fp16":
        yield Option("fp16.enabled")
    elif strategy.precision not in {"fp32", "tf32"}:
        yield Option("bf16.enabled")
    if strategy.precision == "tf32":
        yield 'tf32 products: call torch.set_float32_matmul_precision("high")'
    elif strategy.precision not in {"fp32", "fp16", "bf16"}:
        yield f"{strategy.precision}: its configuration has no products below 16 bits; bf16 is written"


def _states(strategy: Strategy, _: Model) -> Expressed:
    yield Option("zero_optimization.stage", strategy.zero_stage)
    if strategy.zero_stage:
        yield Option("zero_optimization.overlap_comm")
    if strategy.dp_replicate > 1:
        yield (
            f"dp_replicate={strategy.dp_replicate}: states are sharded over all ranks; "
            "zero_hpz_partition_size keeps a second copy of the weights alone in a group"
        )
    if strategy.offload == "none":
        return
    if strategy.zero_stage == 0:
        yield f"offload={strategy.offload} at ZeRO stage 0: it offloads sharded states (stage 1 and above)"
        return
    yield Option("zero_optimization.offload_optimizer.device", "cpu")
    yield Option("zero_optimization.offload_optimizer.pin_memory")
    if strategy.offload == "optimizer_and_params":
        if strategy.shards_weights:
            yield Option("zero_optimization.offload_param.device", "cpu")
            yield Option("zero_optimization.offload_param.pin_memory")
        else:
            yield f"offloading of weights at ZeRO stage {strategy.zero_stage}: it needs stage 3"


def _optimizer(strategy: Strategy, _: Model) -> Expressed:
    yield Option("optimizer.type", _OPTIMIZERS[strategy.optimizer])
    # Those of the scripts: yours replace them.
    if strategy.optimizer == "sgd":
        yield Option("optimizer.params.lr", 1e-2)
        yield Option("optimizer.params.momentum", 0.9)
    else:
        yield Option("optimizer.params.lr", 1e-3)
    if strategy.optimizer == "adam_8bit":
        yield "8-bit Adam: pass one (torchao, bitsandbytes) to deepspeed.initialize; AdamW is written"


def _tensor(strategy: Strategy, _: Model) -> Expressed:
    if strategy.tp > 1:
        yield Option("tensor_parallel.autotp_size", strategy.tp)
    if strategy.tp_overlap:
        yield Option("tensor_parallel.tp_overlap_comm")
    if strategy.sequence_parallel:
        yield "sequence parallelism of tp: it cuts attention and feed-forward products only"


def _context(strategy: Strategy, _: Model) -> Expressed:
    if strategy.cp > 1:
        yield Option("sequence_parallel_size", strategy.cp)
        yield f"cp={strategy.cp} as a ring: it exchanges heads instead (Ulysses)"


def _experts(strategy: Strategy, _: Model) -> Expressed:
    if strategy.ep > 1:
        yield Option("expert_parallel.enabled")
        yield Option("expert_parallel.autoep_size", strategy.ep)
        # The performance model keeps each expert whole.
        yield Option("expert_parallel.expert_tensor_parallel_size", 1)


def _compression(strategy: Strategy, model: Model) -> Expressed:
    if strategy.compression == "fp16":
        yield Option("communication_data_type", "fp16")
    else:
        yield from compression(strategy, model)


def _activations(strategy: Strategy, _: Model) -> Expressed:
    if strategy.activation_offload:
        yield Option("activation_checkpointing.cpu_checkpointing")
        yield "activations in the host's memory: of layers that call deepspeed.checkpointing.checkpoint"


def _in_code(strategy: Strategy, _: Model) -> Expressed:
    if strategy.recompute != "none":
        yield (
            f"{strategy.recompute} recomputation: the code of your model calls it, "
            "e.g. gradient_checkpointing_enable()"
        )
    if strategy.implementation == "compiled":
        yield "compilation: call engine.compile() after deepspeed.initialize"


DEEPSPEED = Program(
    name="DeepSpeed",
    file="deepspeed.json",
    form="json",
    version="0.19.8",
    source="https://www.deepspeed.ai/docs/config-json",
    rules=(
        FieldRule(fields=("microbatch_samples", "global_batch_samples"), express=_batch),
        FieldRule(fields=("dp",), derived="processes over tp x cp; the batch states it too"),
        FieldRule(fields=("precision",), express=_precision),
        FieldRule(fields=("zero_stage", "dp_replicate", "offload"), express=_states),
        FieldRule(fields=("optimizer",), express=_optimizer),
        master_weights_rule("its optimizer keeps one"),
        FieldRule(fields=("tp", "sequence_parallel", "tp_overlap"), express=_tensor),
        FieldRule(fields=("cp",), express=_context),
        FieldRule(fields=("ep",), express=_experts),
        FieldRule(fields=("pp", "interleave", "schedule"), derived="refused: pipelines are modules in code"),
        FieldRule(fields=("compression", "compression_rank"), express=_compression),
        FieldRule(fields=("sync_period",), express=averaging),
        FieldRule(fields=("activation_offload",), express=_activations),
        FieldRule(fields=("recompute", "implementation"), express=_in_code),
        FieldRule(fields=("fused_attention", "fused_loss"), express=kernels_in_code),
        FieldRule(fields=("trained", "lora_rank"), express=adapters_in_code),
    ),
    refuse=refuse_pipeline,
    use="deepspeed.initialize(config=...), --deepspeed_config of a script, or deepspeed= of the Trainer",
    checked_with="DeepSpeed 0.19.8's DeepSpeedConfig",
)

"""The same strategy in the words of Megatron-LM and torchtitan, for what torch alone takes many lines to say.

Names of options were read in the pages that MEGATRON_PAGE and TORCHTITAN_PAGE name.
"""

from equipoise.spec.strategy import Strategy

MEGATRON_PAGE = (
    "https://docs.nvidia.com/megatron-core/developer-guide/latest/user-guide/parallelism-guide.html"
)
TORCHTITAN_PAGE = "https://github.com/pytorch/torchtitan (torchtitan/config/job_config.py)"
_ZERO_WORDS = {2: "optim_grads", 3: "optim_grads_params"}


def megatron_options(plan: Strategy) -> str:
    """Options of Megatron-LM's pretrain scripts that set the strategy, one a line."""
    lines = [
        f"--tensor-model-parallel-size {plan.tp}",
        f"--pipeline-model-parallel-size {plan.pp}",
    ]
    if plan.cp > 1:
        lines.append(f"--context-parallel-size {plan.cp}")
    if plan.ep > 1:
        lines.append(f"--expert-model-parallel-size {plan.ep}")
    if plan.interleave > 1:
        lines.append(f"--num-virtual-stages-per-pipeline-rank {plan.interleave}")
    if plan.sequence_parallel:
        lines.append("--sequence-parallel")
    if plan.tp_overlap:
        lines.append("--tp-comm-overlap")
    lines += [
        f"--micro-batch-size {plan.microbatch_samples}",
        f"--global-batch-size {plan.global_batch_samples}",
        *_megatron_states(plan),
        *_megatron_work(plan),
    ]
    return " \\\n".join(lines) + "\n"


def _megatron_states(plan: Strategy) -> list[str]:
    if plan.shard_state in _ZERO_WORDS:
        return ["--use-megatron-fsdp", f"--data-parallel-sharding-strategy {_ZERO_WORDS[plan.shard_state]}"]
    if plan.dp > 1:
        states = ["--use-distributed-optimizer", "--overlap-param-gather"] if plan.shard_state == 1 else []
        return [*states, "--overlap-grad-reduce"]
    return []


def _megatron_work(plan: Strategy) -> list[str]:
    lines = []
    if plan.recompute == "full":
        lines.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    if plan.recompute == "selective":
        lines.append("--recompute-granularity selective")
    if plan.precision == "fp16":
        lines.append("--fp16")
    elif plan.precision not in {"fp32", "tf32"}:
        lines.append("--bf16")
    if plan.precision in {"fp8", "mxfp8"}:
        recipe = "mxfp8" if plan.precision == "mxfp8" else "delayed"
        lines.append(f"--fp8-format hybrid --fp8-recipe {recipe}")
    if plan.fused_attention:
        lines.append("--attention-backend flash")
    if plan.offload != "none":
        lines.append("--optimizer-cpu-offload")
    return lines


def torchtitan_options(plan: Strategy) -> str:
    """Options of torchtitan's `run_train.sh` that set the strategy, one a line."""
    replicas, shards = (plan.dp, 1) if plan.shard_state < 1 else (1, plan.dp)
    group = "parallelism"
    lines = [
        f"--training.local_batch_size {plan.microbatch_samples * _pipelined(plan)}",
        f"--training.global_batch_size {plan.global_batch_samples}",
        f"--{group}.data_parallel_replicate_degree {replicas}",
        f"--{group}.data_parallel_shard_degree {shards}",
    ]
    if plan.shard_state >= 1:
        keeps = "always" if plan.shard_state == max(_ZERO_WORDS) else "never"
        lines.append(f"--{group}.fsdp_reshard_after_forward {keeps}")
    degrees = {"tensor": plan.tp, "pipeline": plan.pp, "context": plan.cp, "expert": plan.ep}
    lines += [f"--{group}.{name}_parallel_degree {size}" for name, size in degrees.items() if size > 1]
    if plan.pp > 1:
        schedule = "Interleaved1F1B" if plan.interleave > 1 else "1F1B"
        lines += [
            f"--{group}.pipeline_parallel_schedule {schedule}",
            f"--{group}.pipeline_parallel_microbatch_size {plan.microbatch_samples}",
        ]
    if plan.tp_overlap:
        lines.append(f"--{group}.enable_async_tensor_parallel")
    lines.append(f"--activation_checkpoint.mode {plan.recompute}")
    if plan.implementation == "compiled":
        lines.append("--compile.enable")
    return " \\\n".join(lines) + "\n"


def _pipelined(plan: Strategy) -> int:
    """Micro-batches that a rank's batch is cut into: all of a step where there is a pipeline."""
    return plan.num_microbatches if plan.pp > 1 else 1

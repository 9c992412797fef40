"""The strategy that a row states: axes and batches in columns, options in words. Assumptions are noted."""

import math
import re
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration.published.models import Model, stated_words
from equipoise.calibration.published.quantities import (
    MAX_ACCELERATORS,
    WORDS,
    count,
    count_at,
    count_in,
    stated,
)
from equipoise.errors import DataError
from equipoise.runs.readers.cells import MAX_TEXT, TextRow, echo
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import Accelerator
from equipoise.spec.strategy import (
    GRADIENTS_SHARDED,
    USUAL_LORA_RANK,
    WEIGHTS_SHARDED,
    WHOLE_EXPERTS,
    Implementation,
    LoraTargets,
    Offload,
    Optimizer,
    Precision,
    Recompute,
    Schedule,
    Strategy,
    Trained,
    software,
)
from equipoise.units import BF16_BYTES, plural

# Size of the cache: tables repeat few set-ups.
_MOST_KEPT = 4096


def collective_of(text: str) -> str | None:
    """The collective operation that a text names; None if it names none.

    >>> collective_of("nccl-tests all_reduce 8GiB")
    'all_reduce'
    """
    for operation, words in WORDS.collectives.items():
        if re.search(rf"(?<![a-z0-9])(?:{words})(?:_perf)?(?![a-z0-9])", text.lower()):
            return operation
    return None


def is_matrix_product(text: str) -> bool:
    """Whether a text names a benchmark of matrix products."""
    return (
        re.search(r"\b(?:matmul|gemm|matrix (?:product|multiply|multiplication))\b", text.lower()) is not None
    )


# Megatron-LM has FlashAttention (Dao et al. 2022) since February 2023 (--use-flash-attn).
_LAST_UNFUSED_CHIP_YEAR = software("megatron").last_chip_year
_MAX_CHUNKS = 1000
_NO = "no|false|off|0"
_NOT_DENIED = r"(?<!no )(?<!not )(?<!without )"
_GRAPHS = r"(?<!no )(?<!without )(?:cuda|hip)[-_ ]?graphs?(?! (?:off|none|not|flag|false|disabled|unknown))"
# One graph of a whole step (Megatron-Core's `full_iteration`), for which experts' activations are paged.
_FULL_GRAPHS = rf"{_NOT_DENIED}(?:full(?:[- ]iteration)? (?:cuda|hip)[-_ ]?graphs?|paged[- ]stash(?:ing)?)"
_COMPILED = rf"(?:torch\.)?compiled?|{_GRAPHS}|jit|xla|(?:torch-)?neuronx?(?:-distributed)?|oneflow"
_FUSED_BETWEEN = rf"{_NOT_DENIED}(?:unsloth|fused[- ]kernels|transformer[- ]?engine)"
_NOT_COMPILED = (
    r"eager(?! attention)|(?:no|not|without)[- ](?:torch[. ]?)?compiled?"
    r"|compile(?:=(?:no|false|0)| (?:is )?(?:off|disabled))"
)
_MAY_BE_COMPILED = r"\bcompile (?:is |was )?not (?:stated|known|in the [a-z]+)\b"
# Next to these, `eager` only means that there is no compiler: `fused RMSNorm, rotary and SwiGLU; eager`.
_FUSED_BY_HAND = (
    rf"{_NOT_DENIED}fused (?:(?:rms)?norms?|layer-?norms?)(?:, | and )"
    r"(?:rot(?:ary|ations?)|rope|swiglu|activations?)(?! off)"
)
_LIGER = rf"{_NOT_DENIED}liger(?:[- ]kernels?)?"


class StrategyWords(Struct, frozen=True, kw_only=True):
    """Options of a strategy stated in words; None if not stated.

    shard_group: number of ranks over which states are sharded, if not all of dp. shards_in_nodes: states are
    sharded within nodes, without a stated number. replicates_experts: data ranks with the same experts each
    hold all of their states. is_interleaved: several chunks per pipeline rank, possibly of unstated number.
    recomputed_layers: layers per chunk, if only a number is stated. splits_sequences: sequence parallelism of
    tensor ranks. accumulates_unsharded: gradients of micro-batches are accumulated before they are sharded.
    copies_gradients: the software that keeps fp32 copies of 16-bit gradients. is_narrow: weights, gradients
    and moments have no fp32 copies. rank, targets: of adapters. keeps_in_pipelines: parameters gathered by
    FSDP are kept between the micro-batches of a pipeline.
    """

    precision: Precision | None
    recompute: Recompute | None
    recomputed_layers: int | None
    chunks_loss: bool
    is_loss_plain: bool
    is_attention_native: bool
    zero_stage: int
    keeps_in_pipelines: bool
    accumulates_unsharded: bool
    copies_gradients: str | None
    shard_group: int | None
    shards_in_nodes: bool
    replicates_experts: bool
    is_interleaved: bool
    interleave: int | None
    schedule: Schedule
    exchanges_heads: bool
    copies_tokens: bool
    records_graphs: bool
    records_steps: bool
    splits_sequences: bool | None
    tp_overlap: bool
    implementation: Implementation
    optimizer: Optimizer
    is_narrow: bool
    offload: Offload
    offloads_activations: bool
    trained: Trained
    rank: int | None
    targets: LoraTargets
    num_accumulated: str | None


_RANK = re.compile(r"(?<![a-z0-9])(?:lora[- _])?(?:rank|r)[ =]+(\d{1,4})(?![\d.])")
# Losses that never materialise the logits of all tokens.
_CHUNKED_LOSS = (
    rf"{_NOT_DENIED}(?:{_LIGER}|(?:cut|chunked)[- ](?:cross[- ]entropy|loss)|loss chunks"
    r"|(?:fused[- ]|recomputed |(?<!fused[- ])(?<!recomputed ))linear[-_ ]cross[-_ ]entropy"
    r"|(?:loss|cross[- ]entropy) in chunks|chunked[-_ ]nll)"
)
_OFFLOAD = r"(?:cpu[- ]|optimizer[- ])?offload(?:ing|ed)?|zero-offload"
_OPTIMIZER_OFFLOAD = (
    r"optimizer(?: states?)?[- ]offload(?:ing|ed)?|offload(?:ed|ing)? (?:of )?optimizer|zero-offload"
)
_PARAMS = r"(?:param(?:eter)?s|weights)"
_EVERYTHING_OFFLOAD = (
    rf"offload(?:ing|ed)? (?:of )?{_PARAMS}(?:,| and)(?: [a-z0-9]+){{0,3}} optimizer"
    rf"|{_PARAMS}(?:,| and)(?: [a-z0-9]+){{0,3}} (?:optimizer|states) offload(?:ing|ed)?"
)
# `shard 8`, as next to `replicate 2`; not `hybrid shard 16 GPUs`, which does not state the size of a group.
_SHARD_GROUP = (
    r"(?<![a-z0-9])(?<!hybrid[-_ ])(?<!no )shard(?:[ =]|ed over | size )(\d{1,5})(?![\d.]| ?(?:x|nodes?)\b)"
)
_HYBRID = r"hsdp|hybrid[-_ ]shard(?:ing|ed)?"
_NO_OFFLOAD = (
    r"\b(?:no|without)(?:[ -][a-z]+){0,2}[ -]offload(?:ing)?|offload(?:ing)?[ =:]+(?:no|none|false|off)\b"
)
_NO_SHARDING = (
    r"\b(?:no|not|without) (?:zero(?:[-_ ]?(?:stage[-_ ]?)?\d(?:/\d)*)?|fsdp[12]?)"
    r"(?=\s*(?:[;,.)]|and\b|or\b|$))"
)
_ACTIVATION_OFFLOAD = (
    r"(?:activations?|checkpoints?)(?: of (?:the )?[a-z]+)?[- ]"
    r"(?:offload(?:ing|ed)?|moved to (?:the )?(?:host|cpu))"
    r"|(?:activation|gradient)[-_ ]checkpointing(?: with| to|:|=)? ?(?:cpu )?offload(?:ing|ed)?"
    r"|offload(?:ing)? of (?:activations|checkpoints)"
)
# Attention kernels that use the asynchronous instructions of Hopper and Blackwell.
_NATIVE_ATTENTION = (
    rf"{_NOT_DENIED}(?<!instead of )"
    r"(?:flash[-_ ]?attention[-_ ]?[34]|fa[34]|cudnn(?:[-_ ](?:attention|sdpa))?)"
)
_SCHEDULES: dict[Schedule, str] = {
    "dualpipe_v": r"dual[- ]?pipe[-_ ]?v",
    "dualpipe": r"dual[- ]?pipe",
    "1f1b_overlap": (
        r"(?:1f1b[- ])?(?:a2a|all-to-all)[- ]overlap|1f1b[- ]overlap"
        r"|overlap[-_]moe[-_]expert[-_]parallel[-_]comm"
        r"|overlap of experts?'? (?:communication|traffic)(?! off)"
    ),
}
# Token dispatchers that send each token once per expert: an all-to-all or all-gather of NCCL.
_COPIED_TOKENS = (
    r"(?:alltoall|all-to-all|all-?gather)(?: token)?[- ]dispatch(?:er|ing)?|standard ep all-to-all"
)
_LAST_CHIP_YEAR_WITHOUT_GRAPHS = 2023
_EIGHT_BIT_ADAM = r"8[- ]?bit[- ](?:paged[- ])?(?:adamw?|optimi[sz]er)|adamw?[-_ ]?(?:bnb[-_])?8[- ]?bit"
# Lion keeps one moment (Chen et al. 2023, algorithm 2), as SGD with momentum does.
_ONE_MOMENT = rf"{_NOT_DENIED}(?:sgd|lion)"
# torchtune converts the whole model to bf16 ("dtype: bf16" of its recipes).
_STATE_BYTES = 16.0
_NARROW_STATES = (
    r"torchtune|pure[- ](?:bf16|fp16)|(?:bf16|16)-true|gradients and adamw? in (?:bf16|fp16)"
    r"|all in (?:bf16|fp16)"
    r"|weights and (?:gradients|(?:adamw? |optimi[sz]er )?(?:states|moments)) (?:are )?in (?:bf16|fp16)"
    r"|(?:bf16|fp16) weights and (?:states|(?:adam )?moments)|(?:no|without) (?:amp|autocast)"
    # PyTorch's optimizers keep moments in the type of their parameters.
    r"|adamw? on (?:bf16|fp16) (?:param(?:eter)?s|weights)|(?:bf16|fp16) adamw?"
    # MS-AMP keeps all of them in 8 and 16 bits (Peng et al. 2023, section 2.2).
    r"|fp8 gradients"
)
# Words that state the width of optimizer states, or that there are fewer states than Adam's.
_STATED_STATES = (
    r"(?:fp32|float32) (?:masters?|weights|states|moments)|masters? weights|lomo|adafactor|galore|badam|lisa"
    r"|sgd|lion|muon|last layers?"
)
_WHOLE_GRADIENTS = (
    r"no_sync|gradients? (?:reduced|synchroni[sz]ed|synced) (?:once a step|on the last micro[- ]?batch)"
)
_COPYING = ("deepspeed", "megatron")
# Software that recomputes by default: hiyouga/LLaMA-Factory, hparams/model_args.py
# (disable_gradient_checkpointing is false).
_RECOMPUTING = r"llama[- ]?factory"
_RECOMPUTE_WORDS = (
    r"(?P<how>full|selective|no|without)[ -]+(?:activation[ -]+)?(?:recompute|recomputation|checkpointing|ac)"
)
# Recomputation of some layers of every chunk of a pipeline rank, as by Megatron's --recompute-num-layers.
_RECOMPUTED_LAYERS = re.compile(
    r"(?<![a-z0-9])recompute(?:[-_ ]num[-_ ]layers ?[=:]? ?| of )(?P<layers>\d{1,4})(?![\d.]| of )"
)
# torchtitan recomputes selectively by default (config/job_config.py, ActivationCheckpoint); its
# configurations recompute whole layers of Llama 3, Qwen 3 and gpt-oss from 14B on, but not of DeepSeek's
# models (torchtitan/models/*/config_registry.py).
_RECOMPUTED_BY_TITAN = 13.5e9  # parameters


@lru_cache(maxsize=_MOST_KEPT)
def strategy_words(
    config: str, precision: str, recompute: str, chip_year: int | None = None
) -> StrategyWords:
    """Parse three cells of a row: parallel configuration, precision, and recomputation.

    chip_year: release year of the accelerator, if known.
    Raises DataError for an unknown precision, sharding stage or recomputation.
    """
    for name, text in (("parallel_config", config), ("precision", precision), ("recompute", recompute)):
        if len(text) > MAX_TEXT:
            raise DataError(f"column {name}: {len(text):,} characters; at most {MAX_TEXT:,} are read")
    text = " ".join(config.lower().replace("interleaved1f1b", "interleaved 1f1b").split())
    text = re.sub(_NO_OFFLOAD, " ", text)
    text = re.sub(_NO_SHARDING, " ", text)
    nemo = _has(text, r"nemo(?![- ]?auto[- ]?model)|megatron[- ]bridge")
    tensor_titan = _has(text, r"fsdp2|asynctp|async[- ]tp|torchtitan")
    # On chips newer than the Megatron-LM of 2021, the name means Megatron-Core, whose kernels are fused.
    is_core = (chip_year or 0) > _LAST_UNFUSED_CHIP_YEAR and _has(text, "megatron(?:-lm)?")
    is_modern = nemo or tensor_titan or _has(text, "megatron[- ]core") or is_core
    stage, group = _sharding(text)
    interleaved, chunks = _interleaving(text)
    splits = _flag(text, r"seq(?:uence)?[-_ ]?par(?:allel)?(?:ism)?|sp")
    return StrategyWords(
        precision=_precision(precision, text),
        recompute=_recompute(recompute, text),
        recomputed_layers=int(some["layers"]) if (some := _RECOMPUTED_LAYERS.search(text)) else None,
        chunks_loss=_has(text, _CHUNKED_LOSS),
        is_loss_plain=_has(text, "plain loss"),
        is_attention_native=_has(text, _NATIVE_ATTENTION),
        # Megatron-Bridge's recipes use the distributed optimizer, and with tensor parallelism split sequences
        # and overlap its collectives: github.com/NVIDIA-NeMo/Megatron-Bridge, docs/training and
        # scripts/performance.
        zero_stage=max(stage, 1) if nemo else stage,
        # torchtitan's fsdp_reshard_after_forward: `default` keeps them in pipelines (parallelize_llama.py).
        keeps_in_pipelines=_has(text, "torchtitan") and not _has(text, _FREEING),
        accumulates_unsharded=_has(text, _WHOLE_GRADIENTS),
        copies_gradients=next((each for each in _COPYING if _has(text, each)), None),
        shard_group=group,
        # PyTorch's HYBRID_SHARD shards within a node by default (torch.distributed.fsdp).
        shards_in_nodes=_has(text, _HYBRID),
        replicates_experts=_has(text, rf"{_NOT_DENIED}experts replicated(?: over data ranks)?"),
        is_interleaved=interleaved,
        interleave=chunks,
        schedule=next((name for name, words in _SCHEDULES.items() if _has(text, words)), "1f1b"),
        exchanges_heads=_has(text, "ulysses"),
        # torchtitan's `standard` dispatcher is also an all-to-all (models/moe).
        copies_tokens=_has(text, _COPIED_TOKENS)
        or (_has(text, "torchtitan") and not _has(text, "deep-?ep|hybrid-?ep")),
        # NVIDIA's recipes record graphs from Blackwell on: Megatron-Bridge, scripts/performance/configs.
        records_graphs=_has(text, _GRAPHS)
        or (
            (chip_year or 0) > _LAST_CHIP_YEAR_WITHOUT_GRAPHS and _has(text, r"nemo container|container nemo")
        ),
        records_steps=_has(text, _FULL_GRAPHS),
        # torchtitan's plan for tensor parallelism always splits sequences between its blocks.
        splits_sequences=True if splits is None and (nemo or tensor_titan) else splits,
        tp_overlap=nemo or _has(text, r"async[- ]?tp|tp[-_ ]overlap|tp[-_ ]comm[-_ ]overlap"),
        implementation=_implementation(text, is_modern=is_modern),
        optimizer=_optimizer(text),
        is_narrow=_has(text, _NARROW_STATES) or _has(precision.lower(), _NARROW_STATES),
        offload=_offload(re.sub(_ACTIVATION_OFFLOAD, " ", text), stage),
        offloads_activations=_has(text, _ACTIVATION_OFFLOAD),
        trained=_trained(text, precision.lower()),
        rank=int(rank[1]) if (rank := _RANK.search(text)) else None,
        targets=_lora_targets(text),
        num_accumulated=_value(text, r"(?:grad(?:ient)?[-_ ])?acc(?:um|umulation)?(?:[-_ ]steps)?"),
    )


def _optimizer(text: str) -> Optimizer:
    """The optimizer by its moments; Adam's unless stated otherwise."""
    if _has(text, _EIGHT_BIT_ADAM):
        return "adam_8bit"
    return "sgd" if _has(text, _ONE_MOMENT) else "adam"


def _offload(text: str, stage: int) -> Offload:
    """What is offloaded to host memory. FSDP can only offload parameters, gradients and states together
    (PyTorch, CPUOffload and CPUOffloadPolicy), which torchtune and others call `CPU offload`.
    """
    if not _has(text, _OFFLOAD):
        return "none"
    by_fsdp = _has(text, "fsdp[12]?|torchtitan|torchtune") and not _has(text, _OPTIMIZER_OFFLOAD)
    of_all = by_fsdp or _has(text, _EVERYTHING_OFFLOAD)
    return "optimizer_and_params" if of_all and stage >= WEIGHTS_SHARDED else "optimizer"


# DoRA adds a vector of magnitudes to LoRA's matrices (Liu et al. 2024), and is treated as LoRA.
_ADAPTERS = r"(?:q-?)?(?:lora|dora)"
_FOUR_BIT_WEIGHTS = (
    rf"{_NOT_DENIED}(?:nf4|4[- ]?bit)[- ]"
    r"(?:weights?|base|backbone|quanti[sz](?:ed|ation))(?! off)"
)


def _trained(text: str, precision: str) -> Trained:
    """What is trained: adapters on 4-bit weights, adapters, or all weights."""
    if not _has(text, _ADAPTERS):
        return "full"
    in_four_bits = _has(text, "q-?(?:lora|dora)") or any(
        _has(each, _FOUR_BIT_WEIGHTS) for each in (text, precision)
    )
    return "qlora" if in_four_bits else "lora"


_MODULES: dict[LoraTargets, str] = {
    "all_linear": (
        r"all(?: \d{1,2})?[-_ ]linears?(?:[-_ ](?:layers|modules))?"
        r"|(?:gate|up|down)_proj|linear_fc[12](?:_up|_gate)?"
    ),
    "attention": r"q ?[,/] ?k ?[,/] ?v ?[,/] ?o(?:ut)?|(?:k|o)_proj|linear_(?:qkv|proj|k)",
    "query_value": r"q ?, ?v|[qv]_proj|linear_[qv]",
}


def _lora_targets(text: str) -> LoraTargets:
    """The layers with adapters: the widest set that a text names."""
    return next((name for name, words in _MODULES.items() if _has(text, words)), "usual")


def _implementation(text: str, *, is_modern: bool) -> Implementation:
    """Whether operations were fused by a compiler (JAX always trains through XLA), launched as graphs, or
    fused by hand-written kernels between matrix products (Unsloth: norms, rotations, adapters, loss; Liger:
    norms, rotations, activations, loss, but not adapters); otherwise they are assumed to run as written.

    Source: Hsu et al. 2024 (Liger Kernel), section 3.
    """
    text = re.sub(_MAY_BE_COMPILED, " ", text)
    if _has(text, _FUSED_BY_HAND):
        return "compiled"
    if _has(text, _NOT_COMPILED):
        return "eager"
    of_xla = software("jax").is_named_in(text)
    by_liger = _has(text, _LIGER) and not _has(text, _ADAPTERS)
    compiled = is_modern or of_xla or by_liger or _has(text, _COMPILED) or _has(text, _FUSED_BETWEEN)
    return "compiled" if compiled else "eager"


def _has(text: str, words: str) -> bool:
    return re.search(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", text) is not None


def _value(text: str, name: str) -> str | None:
    """The text after `name=`, up to the next separator."""
    match = re.search(rf"(?<![a-z0-9])(?:{name})\s*[=:]\s*([^;+]+)", text)
    return match[1].strip() if match else None


def _flag(text: str, name: str) -> bool | None:
    """The value of a switch: its name alone means on, a negated name off; None if absent."""
    denied = r"(?P<denied>(?:no|not|without)[- ])?"
    match = re.search(
        rf"(?<![a-z0-9]){denied}(?:{name})(?![a-z0-9])(?:\s*[=:]\s*(?P<given>[a-z0-9]+))?", text
    )
    if match is None:
        return None
    return not (match["denied"] or (match["given"] and re.fullmatch(_NO, match["given"])))


# `fp32 (no TF32 in products)`, `fp32 (TF32 off)`, `fp32 (no mixed precision; TF32 not stated)`
_DENIED_PRECISION = (
    r"\b(?:no|not|without) (?:(?:tf|fp|bf)\d+|mixed(?:[- ]precision)?|amp|autocast)\b"
    r"|\b(?:tf|fp|bf)\d+ (?:is )?(?:off|disabled|false)\b|\btf32 (?:is )?not (?:set|stated)\b"
)
_DENIED_TF32 = re.compile(
    r"\b(?:no|without) tf32\b(?! in (?:mat|gemm|prod))|\btf32 (?:is )?(?:off|disabled|false)\b",
    re.IGNORECASE,
)


def denies_tf32(row: TextRow) -> bool:
    """Whether a row says that nothing is multiplied in TF32, neither in matrix products nor in others."""
    return _DENIED_TF32.search(stated(row, "precision")) is not None


def _precision(precision: str, config: str) -> Precision | None:
    given = re.sub(_DENIED_PRECISION, " ", precision.lower())
    for source in (given, config):
        for meaning, words in WORDS.precisions.items():
            # In a configuration only 4- and 8-bit words indicate a precision: `full`, `mixed` and `half` may
            # refer to other things.
            if _has(source, words) and (source is given or meaning.startswith(("fp8", "mxfp8", "fp4"))):
                return meaning
        if source is given and given:
            raise DataError(
                f"column precision: {echo(precision)} is not known; expected e.g. bf16, fp16, fp8 or TF32"
            )
    return None


def _recompute(recompute: str, config: str) -> Recompute | None:
    given = recompute.lower()
    if not given:
        match = re.search(_RECOMPUTE_WORDS, config)
        if match is None:
            return "full" if _has(config, _RECOMPUTING) else None
        given = match["how"]
    share = re.search(r"(\d{1,4}) of (\d{1,4})\b", given)
    if share is not None:  # recomputation of some layers is rounded to none or all
        given = "full" if 2 * int(share[1]) > int(share[2]) else "none"
    # `per-op selective` and `full (use_checkpoint=true)`: text in brackets is an explanation.
    plain = re.sub(r"\([^()]*\)", " ", given)
    for meaning, words in WORDS.recomputes.items():
        if _has(plain, words):
            return meaning
    raise DataError(
        f"column recompute: {echo(recompute)} is not known; expected none, selective or full "
        "(of every layer: that some are recomputed is not modelled)"
    )


def _usual_recompute(words: StrategyWords, row: TextRow, model: Model, *, num_chunks: int) -> Recompute:
    """The recomputation of a row that does not state its kind.

    A number of layers is rounded to none or all of a chunk; otherwise it is the default of the software.
    num_chunks: number of chunks of the pipeline, over all ranks.
    """
    if model.transformer is None:
        return "none"
    if words.recomputed_layers is not None:
        return "full" if 2 * words.recomputed_layers * num_chunks > model.transformer.layers else "none"
    if not _has(stated(row, "parallel_config").lower(), "torchtitan"):
        return "none"
    is_deepseek = re.search("deepseek", stated(row, "workload"), re.IGNORECASE) is not None
    is_large = model.transformer.params >= _RECOMPUTED_BY_TITAN
    return "full" if is_large and not is_deepseek else "selective"


# Whether FSDP gathers parameters again in the backward pass. If not, states are sharded as in ZeRO-2:
# PyTorch's SHARD_GRAD_OP, and reshard_after_forward of FSDP2.
_FREEING = r"reshard[-_ ]after[-_ ]forward *[=:]? *(?:always|true|yes|1)"
_KEEPING = (
    r"shard[-_]grad[-_]op|reshard(?:[-_ ]after[-_ ]forward)? *[=:]? *(?:never|false|no|off|0)|no[- ]reshard"
)


def _sharding(text: str) -> tuple[int, int | None]:
    """The ZeRO stage over dp, and the size of the sharding group if stated."""
    match = re.search(r"(?<![a-z0-9])zero(?:[-_ ]?stage)?\s*[-_= ]?\s*(\d+)", text)
    if match:
        if match[1] not in {"0", "1", "2", "3"}:
            raise DataError(f"column parallel_config: ZeRO stage {echo(match[1])}; expected 0, 1, 2 or 3")
        return int(match[1]), None
    if _has(text, _KEEPING):
        return GRADIENTS_SHARDED, None
    group = _value(text, r"fsdp2?|hsdp")
    # `FSDP8` states the number of ranks; `FSDP1` and `FSDP2` are versions.
    ranks = re.search(r"(?<![a-z0-9])fsdp-?([3-9]|\d{2,6})(?![a-z0-9.])", text)
    if group is None and ranks is not None:
        group = ranks[1]
    if group is not None and group.isascii() and group.isdecimal() and len(group) < MAX_DIGITS:
        return (3, int(group)) if int(group) > 1 else (0, None)
    shard = re.search(_SHARD_GROUP, text)
    if _has(text, _HYBRID) and shard is not None and int(shard[1]) > 1:
        return 3, int(shard[1])
    if _has(
        text,
        rf"fsdp[12]?|{_HYBRID}|full(?:y[- ]sharded(?:[- ]data[- ]parallel)?|[- ]sharding)|zero-infinity"
        # Colossal-AI's chunks of weights, gradients and states, as in PatrickStar (Fang et al. 2022).
        r"|gemini(?: plugin)?",
    ):
        return 3, None
    return (1 if _has(text, r"distributed[- ]optimizer|dist[- ]?opt") else 0), None


MAX_DIGITS = 8


_VIRTUAL = r"vpp?|virtual[-_ ]pipeline(?:[-_ ](?:size|stages?))?"


def _interleaving(text: str) -> tuple[bool, int | None]:
    """Whether a pipeline rank holds several chunks, and their number if stated."""
    # Also `VPP 8`, as other axes are written.
    text = re.sub(rf"(?<![a-z0-9])({_VIRTUAL}) (?=\d)", r"\1=", text)
    given = _value(text, rf"interleave|interleaving|{_VIRTUAL}|chunks")
    if given is not None:
        match = re.match(r"(\d{1,4})\b", given)
        chunks = int(match[1]) if match else 1
        if not 1 <= chunks <= _MAX_CHUNKS:
            raise DataError(
                f"column parallel_config: {chunks} chunks per pipeline rank; expected 1 to {_MAX_CHUNKS}"
            )
        return chunks > 1, chunks
    negated = _has(text, r"(?:no|non|not|without)[- ]interleav(?:ing|ed)")
    return (not negated and _has(text, r"interleav(?:ing|ed)")), None


STRATEGY_CELLS = ("parallel_config", "precision", "recompute")


def named_software(row: TextRow) -> str:
    """The software from the `framework` column of a row; empty if there is none."""
    return row.cells.get("framework", "").strip()


def strategy_of(
    row: TextRow, *, num_accelerators: int, model: Model, nodes: Cluster | None = None
) -> tuple[Strategy, tuple[str, ...]]:
    """The strategy of a row, and its assumptions as sentences.

    model: the trained model, for interleaving and micro-batches that are not stated. nodes: the nodes that it
    ran on, if known.
    Raises DataError or SpecError if axes or batches are missing or contradict each other.
    """
    config, precision, recompute = _stated_strategy(row)
    chip = None if nodes is None else nodes.accelerator
    words = strategy_words(config, precision, recompute, chip.year if chip else None)
    _check_experts(config)
    _check_frozen(stated_words(row))
    tp, pp, cp, ep = (_axis(row, name) for name in ("tp", "pp", "cp", "ep"))
    dp = _data_axis(row, num_accelerators, tp * pp * cp)
    notes: list[str] = []
    layers = model.transformer.layers if model.transformer else None
    chunks = _chunks(words, pp=pp, layers=layers, notes=notes)
    recompute_of = words.recompute or _usual_recompute(words, row, model, num_chunks=pp * chunks)
    if words.recompute is None and recompute_of != "none":
        notes.append(f"recomputation not stated: {recompute_of}")
    memory_bytes = math.inf if nodes is None else nodes.accelerator.memory_bytes or math.inf
    most = _most_samples(model, recompute_of, memory_bytes=memory_bytes * tp * cp)
    micro, whole = _batches(row, words, dp=dp, pp=pp, most=most, notes=notes)
    if words.precision is None:
        notes.append("precision not stated: bf16")
    is_silent = not _has(f"{config} {precision}".lower(), _STATED_STATES)
    if num_accelerators == 1 and is_silent and _needs_narrow_states(words, model, memory_bytes=memory_bytes):
        words = replace(words, is_narrow=True)
        notes.append("weights and states in 16 bits: the accelerator does not hold them otherwise")
    held = memory_bytes * tp * pp * ep
    # A software from its own column precedes the strategy, and may be PyTorch's DDP.
    is_open = not (config.removeprefix(named_software(row)).strip() or _has(config.lower(), "ddp"))
    if dp * cp > 1 and is_open and _needs_sharding(words, model, memory_bytes=held):
        # Megatron shards only optimizer states.
        stage = 1 if _has(config.lower(), "megatron") else WEIGHTS_SHARDED
        words = replace(words, zero_stage=stage)
        notes.append(f"sharding not stated: ZeRO stage {stage}, as an accelerator does not hold all states")
    keeps = pp > 1 and words.keeps_in_pipelines
    found = Strategy(
        global_batch_samples=whole,
        microbatch_samples=micro,
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        zero_stage=min(words.zero_stage, GRADIENTS_SHARDED) if keeps else words.zero_stage,
        gradient_copies=_copies_gradients(words),
        whole_gradients=_adds_up_whole(words, ranks=dp * cp, pp=pp, num_microbatches=whole // (dp * micro)),
        dp_replicate=_replicas(words, dp=dp, ep=ep, nodes=nodes, notes=notes),
        ulysses=words.exchanges_heads and cp > 1,
        dispatch_copies=words.copies_tokens and ep > 1,
        cuda_graphs=words.records_graphs,
        full_graphs=words.records_steps,
        interleave=chunks,
        schedule=_schedule(words, pp=pp, interleave=chunks, num_microbatches=whole // (dp * micro)),
        sequence_parallel=tp > 1 and _splits_sequences(words, config, model),
        tp_overlap=words.tp_overlap and tp > 1,
        fused_attention=_fuses_attention(row, words, chip),
        fused_loss=not any(_FP32_LOGITS.search(stated(row, name)) for name in ("source", "parallel_config")),
        chunked_loss=words.chunks_loss,
        plain_loss=words.is_loss_plain,
        native_attention=words.is_attention_native,
        recompute=recompute_of,
        precision=words.precision or "bf16",
        implementation=words.implementation,
        optimizer=words.optimizer,
        master_weights=not words.is_narrow,
        offload=words.offload,
        activation_offload=words.offloads_activations,
        trained=words.trained,
        lora_rank=0 if words.trained == "full" else words.rank or USUAL_LORA_RANK,
        lora_targets="usual" if words.trained == "full" else words.targets,
    )
    return found, tuple(notes)


def _stated_strategy(row: TextRow) -> tuple[str, str, str]:
    """The cells in which a row states its strategy, in the order of STRATEGY_CELLS."""
    config, precision, recompute = (stated(row, name) for name in STRATEGY_CELLS)
    if row.cells.get("recompute", "").strip().lower() == "none":  # in this column a value
        recompute = "none"
    # Adapters may be stated with the model (`SDXL LoRA, rank 32`), or more about them (`LoRA rank 8`).
    beside = re.findall(rf"\b{_ADAPTERS}\b[^;()]*", stated(row, "workload").lower())
    return "; ".join((config, *beside)), precision, recompute


def _replicas(words: StrategyWords, *, dp: int, ep: int, nodes: Cluster | None, notes: list[str]) -> int:
    """The number of groups of data ranks that each hold all states."""
    group = words.shard_group
    if group is None and words.shards_in_nodes and nodes is not None:
        group = nodes.node_size
    if group is None and words.replicates_experts and 1 < ep < dp:
        group = ep
        notes.append(f"experts replicated over data ranks: all states treated as sharded over {ep} ranks")
    if group is None or group >= dp:
        return 1
    groups = dp // group if dp % group == 0 else 1
    if groups == 1:
        notes.append(f"sharded over groups of {group} ranks: treated as over all {dp}")
    return groups


def _splits_sequences(words: StrategyWords, config: str, model: Model) -> bool:
    """Whether tensor ranks split sequences: as stated, or if Megatron trains experts, which requires it
    (megatron/training/arguments.py: tensor parallelism next to experts).
    """
    has_experts = model.transformer is not None and model.transformer.experts > 0
    if words.splits_sequences is None and has_experts:
        return _has(config.lower(), "megatron")
    return bool(words.splits_sequences)


def _copies_gradients(words: StrategyWords) -> bool:
    """Whether 16-bit gradients have fp32 copies: with DeepSpeed if states are sharded, and in fp16 also if
    not (fp16/fused_optimizer.py, `step`); with Megatron in fp16 (Float16OptimizerWithFloat16Params; in bf16
    its gradients are fp32 from the start).
    """
    sharded = words.copies_gradients == "deepspeed" and words.zero_stage > 0
    copied = words.copies_gradients is not None and (sharded or words.precision == "fp16")
    return copied and not words.is_narrow


def _adds_up_whole(words: StrategyWords, *, ranks: int, pp: int, num_microbatches: int) -> bool:
    """Whether gradients are accumulated over several micro-batches before they are sharded among ranks."""
    sharded = words.zero_stage >= GRADIENTS_SHARDED and pp == 1 and ranks > 1
    return words.accumulates_unsharded and sharded and num_microbatches > 1


_EXPERT_TENSOR = re.compile(
    r"\b(?:etp|expert[-_ ]tp|expert[-_ ]tensor[-_ ]parallel(?:[-_ ]size)?) ?[=:]? ?(?P<size>\d{1,6})\b",
    re.IGNORECASE,
)


def _check_experts(config: str) -> None:
    """Reject experts that are split among tensor ranks. Raises DataError."""
    stated_size = _EXPERT_TENSOR.search(config)
    if stated_size is not None and int(stated_size["size"]) > 1:
        raise DataError(f"column parallel_config: {echo(stated_size[0])}: {WHOLE_EXPERTS}")


_EIGHT_BIT_WEIGHTS = re.compile(
    r"\b(?:8[- ]?bit|int8) (?:base|backbone|weights|model|quanti[sz]ation)\b|\bload[-_ ]in[-_ ]8[-_ ]?bit\b"
    r"|\bllm\.int8\b",
    re.IGNORECASE,
)


def _check_frozen(text: str) -> None:
    """Reject adapters on 8-bit weights, whose matrix products differ from those of 4- or 16-bit weights.

    Raises DataError. Source: Dettmers et al. 2022 (LLM.int8()).
    """
    found = _EIGHT_BIT_WEIGHTS.search(text)
    if found is not None:
        raise DataError(f"column parallel_config: {echo(found[0])} is not modelled; expected 4-bit or 16-bit")


def _axis(row: TextRow, name: str) -> int:
    """The size of an axis from its column, else from words such as `TP=8` or `pp4`, else one."""
    stated_size = count(row, name, most=MAX_ACCELERATORS)
    if stated_size is not None:
        return stated_size
    words = re.search(
        rf"(?<![a-z]){name} ?[=:]? ?(\d{{1,6}})(?![\d.])", stated(row, "parallel_config").lower()
    )
    return max(1, int(words[1])) if words else 1


def _data_axis(row: TextRow, num_accelerators: int, others: int) -> int:
    """The size of the data axis, as stated or as the other axes leave it."""
    given = count(row, "dp", most=MAX_ACCELERATORS)
    if given is not None and given * others != num_accelerators:
        raise DataError(
            f"dp x tp x pp x cp = {given * others}, n_gpus = {num_accelerators}; expected the same"
        )
    if num_accelerators % others:
        raise DataError(f"tp x pp x cp = {others} does not divide n_gpus = {num_accelerators}")
    return num_accelerators // others


# Bytes of 16-bit activations per token, layer and unit of width, without attention scores: Korthikanti et al.
# 2022, equation 2; with recomputation of whole layers, only their inputs.
_ACTIVATION_BYTES, _INPUT_BYTES = 34, 2
# Fraction of memory that activations may take besides weights and states, by our convention.
_ACTIVATIONS_SHARE = 0.5
_MOST_PARTS = 1_000


def _needs_narrow_states(words: StrategyWords, model: Model, *, memory_bytes: float) -> bool:
    """Whether all weights are trained on one accelerator whose memory holds their states only in 16 bits.

    Source: 16 bytes per parameter for mixed precision with Adam (Rajbhandari et al. 2020, section 3.1), or 8.
    """
    is_plain = words.trained == "full" and words.offload == "none" and words.optimizer == "adam"
    is_narrow = words.is_narrow or words.precision in {"fp32", "tf32"}
    if not is_plain or is_narrow or model.transformer is None:
        return False
    state_bytes = _STATE_BYTES * model.transformer.params
    return state_bytes / 2 <= memory_bytes < state_bytes


def _needs_sharding(words: StrategyWords, model: Model, *, memory_bytes: float) -> bool:
    """Whether states must be sharded although the row does not say so: weights fit, but not all states.

    memory_bytes: of the accelerators that hold one copy of the model.
    Source: 16 bytes per parameter for mixed precision with Adam (Rajbhandari et al. 2020, section 3.1).
    """
    if words.zero_stage or words.trained != "full" or model.transformer is None:
        return False
    params = model.transformer.params
    return BF16_BYTES * params <= memory_bytes < _STATE_BYTES * params


def _most_samples(model: Model, recompute: Recompute, *, memory_bytes: float) -> float:
    """Number of samples whose activations fit into half of the memory; infinite if sizes are unknown."""
    if model.transformer is None or model.sequence is None:
        return math.inf
    kept = _INPUT_BYTES if recompute == "full" else _ACTIVATION_BYTES
    widths = model.transformer.layers * model.transformer.hidden * model.sequence
    return _ACTIVATIONS_SHARE * memory_bytes / (kept * widths)


def _batches(
    row: TextRow, words: StrategyWords, *, dp: int, pp: int, most: float, notes: list[str]
) -> tuple[int, int]:
    """Samples per micro-batch and per step; one that is not stated follows from the other.

    most: upper bound of a micro-batch that is not stated.
    """
    micro = count_at(row, "micro_batch")
    whole = count_at(row, "global_batch")
    accumulated = None
    if words.num_accumulated is not None:
        accumulated = count_in(words.num_accumulated, row.cells.get("precision", ""))
    if micro is not None and whole is not None:
        return micro, whole
    if micro is not None:
        if pp > 1 and accumulated is None:
            raise DataError(
                f"column global_batch: empty; a pipeline of pp={pp} needs the number of micro-batches"
            )
        if accumulated is None:
            notes.append("global_batch not stated: one micro-batch per rank")
        return micro, micro * dp * (accumulated or 1)
    if whole is None:
        raise DataError("columns micro_batch and global_batch: both empty; a step is not known without one")
    if accumulated is not None:
        return max(1, whole // (dp * accumulated)), whole
    if pp > 1:
        notes.append("micro_batch not stated: 1 sample")
        return 1, whole
    if whole % dp:
        raise DataError(f"global_batch = {whole} is not a multiple of dp = {dp}")
    of_rank = whole // dp
    parts = (num for num in range(1, _MOST_PARTS) if of_rank % num == 0 and of_rank / num <= most)
    micro = of_rank // next(parts, of_rank)
    of_all = "all samples of a rank" if micro == of_rank else f"{plural(micro, 'sample')}, which memory holds"
    notes.append(f"micro_batch not stated: {of_all}")
    return micro, whole


def _schedule(words: StrategyWords, *, pp: int, interleave: int, num_microbatches: int) -> Schedule:
    """The stated schedule if it can run, else 1f1b. 1f1b_overlap can also run without a pipeline."""
    if words.schedule == "1f1b_overlap":
        can_run = interleave > 1 if pp > 1 else num_microbatches > 1
    else:
        can_run = pp > 1
    return words.schedule if can_run else "1f1b"


def _chunks(words: StrategyWords, *, pp: int, layers: int | None, notes: list[str]) -> int:
    """Chunks per pipeline rank; if only stated to be several, the fewest that divide the layers."""
    if pp == 1 or not words.is_interleaved:
        return 1
    if words.interleave is not None:
        return words.interleave
    of_rank = max(1, (layers or pp) // pp)
    chunks = next((size for size in range(2, of_rank + 1) if of_rank % size == 0), 1)
    notes.append(f"interleaved, chunks not stated: {chunks}")
    return chunks


_FLASH = r"\bflash(?!light)(?:[-_ ]?att(?:ention|n))?(?![a-z])"
_FUSED = re.compile(
    r"flash(?!light)|\bsdpa\b|\bfused[-_ ]attention(?!=(?:no|false|0))"
    r"|(?<!no )(?<!without )\bxformers\b|\bmemory[- ]efficient attention\b",
    re.IGNORECASE,
)
# Fused kernels that were not used. A version that is denied leaves the others: `SDPA (no FlashAttention 3)`.
_DENIED_KERNEL = re.compile(
    rf"\b(?:no|not|without) (?:{_FLASH}|sdpa\b|fused[-_ ]attention\b)(?![-_ ]?v?\d)"
    rf"|(?:{_FLASH}|\bsdpa)(?:[ =:]+| is | was )(?:no|not used|false|off|0|disabled|did not take effect)\b"
    r"|\bsdpa[- ]math\b|\bmath[- ]sdpa\b",
    re.IGNORECASE,
)
# PyTorch has had fused attention since 2.0 (scaled_dot_product_attention).
_UNFUSED = re.compile(
    rf"{software('ngc').words}|fused[-_ ]attention=(?:no|false|0)|\b(?:py)?torch[ =]1\.\d"
    # Its scripts have --use_flash_attention, off unless given (run_clm.py, run_lora_clm.py).
    r"|optimum[- ]habana"
    r"|(?:from[- ]scratch|own|manual|naive|eager|math|unfused|plain)"
    r" (?:(?:multi|self|softmax)[- ])*(?:head )?attention"
    r"|\battention\b[^;,()]{0,40}[ ,(]+(?:not fused|unfused|without (?:a )?fused kernels?)\b",
    re.IGNORECASE,
)
_UNFUSED_AT_FIRST = re.compile(r"megatron(?![- ](?:bridge|core|fsdp))|turing|deepspeed", re.IGNORECASE)

# torchtitan left its loss uncompiled until 2025 (train.py: "compiling loss function causes CUDA errors").
_FP32_LOGITS = re.compile(r"torchtitan\b.*_2024\d\d_|\bfp32 logits\b", re.IGNORECASE)


def _fuses_attention(row: TextRow, words: StrategyWords, chip: Accelerator | None) -> bool:
    """Whether attention is fused, i.e. scores stay on the chip.

    It is not in Megatron of 2021/22 (not on newer chips), NVIDIA's DeepLearningExamples (run in NGC
    containers: BERT's modeling.py, Transformer-XL's mem_transformer.py), PyTorch before 2, on Intel's GPUs
    (PyTorch, mkldnn/xpu/Attention.cpp: at first in no training, then in none whose heads share keys), and in
    fp16 training on chips of that time.
    """
    text = stated_words(row)
    used = _DENIED_KERNEL.sub(" ", text)
    if _FUSED.search(used):
        return True
    if chip is not None and (chip.vendor, chip.kind) == ("Intel", "gpu"):
        return False
    is_old = ((chip.year if chip else None) or 0) <= _LAST_UNFUSED_CHIP_YEAR
    if used != text or _UNFUSED.search(text) or (is_old and _UNFUSED_AT_FIRST.search(text)):
        return False
    return words.precision != "fp16" or not is_old

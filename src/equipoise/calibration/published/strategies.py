"""The strategy of a row: axes and batches from their columns, options from words; assumptions are noted."""

import re

from msgspec import Struct

from equipoise.calibration.published.quantities import count, count_at, count_in, stated
from equipoise.errors import DataError
from equipoise.runs.readers.cells import MAX_TEXT, TextRow, echo
from equipoise.spec.strategy import Implementation, Offload, Precision, Recompute, Strategy, Trained

_MAX_CHUNKS = 1000
_NO = "no|false|off|0"


class StrategyWords(Struct, frozen=True, kw_only=True):
    """What words say of a strategy; None is what they leave open.

    shard_group: ranks over which states are sharded, where that is not all of dp. is_interleaved: several
    chunks a pipeline rank, their number perhaps unsaid. splits_sequences: of tensor parallelism. framework:
    whose defaults hold.
    """

    precision: Precision | None
    recompute: Recompute
    zero_stage: int
    shard_group: int | None
    is_interleaved: bool
    interleave: int | None
    splits_sequences: bool | None
    tp_overlap: bool
    implementation: Implementation
    offload: Offload
    trained: Trained
    num_accumulated: str | None


# The first that matches holds: narrower words stand before wider ones.
_PRECISIONS: tuple[tuple[str, Precision], ...] = (
    (r"(?:fp8|float8)\b.*\browwise|rowwise\b.*\b(?:fp8|float8)", "fp8_rowwise"),
    (r"mxfp8|fp8[-_ ]?mx", "mxfp8"),
    (r"nvfp4|mxfp4|fp4|float4", "fp4"),
    (r"fp8|float8|e4m3|e5m2", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half|mixed|amp", "fp16"),
    (r"tf32|tensorfloat32", "tf32"),
    (r"fp32|float32|single|full precision", "fp32"),
)
_RECOMPUTES: tuple[tuple[str, Recompute], ...] = (
    (r"no|none|off|false|without|disabled|0", "none"),
    (r"selective|partial|sac|attention|core", "selective"),
    (r"full|yes|true|on|all|every|uniform|block|enabled|ac|1|checkpoint(?:s|ing|ed)?", "full"),
)
_RECOMPUTE_WORDS = (
    r"(?P<how>full|selective|no|without)[ -]+(?:activation[ -]+)?(?:recompute|recomputation|checkpointing|ac)"
)


def strategy_words(config: str, precision: str, recompute: str) -> StrategyWords:
    """What three cells of a row say: how it was parallelised, in which precision, and what is computed again.

    Raises DataError for a precision, stage of sharding or recomputation that is not known.
    """
    for name, text in (("parallel_config", config), ("precision", precision), ("recompute", recompute)):
        if len(text) > MAX_TEXT:
            raise DataError(f"column {name}: {len(text)} characters; at most {MAX_TEXT} are read")
    text = " ".join(config.lower().replace("interleaved1f1b", "interleaved 1f1b").split())
    nemo = _has(text, r"nemo|megatron[- ]bridge")
    tensor_titan = _has(text, r"fsdp2|asynctp|async[- ]tp|torchtitan")
    stage, group = _sharding(text)
    interleaved, chunks = _interleaving(text)
    splits = _flag(text, r"seq(?:uence)?[-_ ]?par(?:allel)?(?:ism)?|sp")
    return StrategyWords(
        precision=_precision(precision, text),
        recompute=_recompute(recompute, text),
        # Megatron-Bridge's recipes use the distributed optimizer, and with tensor parallelism split sequences
        # and overlap its collectives: github.com/NVIDIA-NeMo/Megatron-Bridge, docs/training and
        # scripts/performance.
        zero_stage=max(stage, 1) if nemo else stage,
        shard_group=group,
        is_interleaved=interleaved,
        interleave=chunks,
        # torchtitan's plan for tensor parallelism always splits sequences between its blocks.
        splits_sequences=True if splits is None and (nemo or tensor_titan) else splits,
        tp_overlap=nemo or _has(text, r"async[- ]?tp|tp[-_ ]overlap|tp[-_ ]comm[-_ ]overlap"),
        implementation=_implementation(text, is_modern=nemo or tensor_titan),
        offload="optimizer"
        if _has(text, r"(?:cpu[- ]|optimizer[- ])?offload(?:ing|ed)?|zero-offload")
        else "none",
        trained="qlora" if _has(text, "qlora") else "lora" if _has(text, "lora") else "full",
        num_accumulated=_value(text, r"(?:grad(?:ient)?[-_ ])?acc(?:um|umulation)?(?:[-_ ]steps)?"),
    )


def _implementation(text: str, *, is_modern: bool) -> Implementation:
    """Whether a compiler, or graphs of whole layers, launched the kernels; what states neither ran as
    written.
    """
    if _has(text, r"eager|(?:no|not|without)[- ]compiled?|compile=(?:no|false|0)"):
        return "eager"
    compiled = is_modern or _has(text, r"(?:torch\.)?compiled?|cuda[- ]?graphs?|jit|xla")
    return "compiled" if compiled else "eager"


def _has(text: str, words: str) -> bool:
    return re.search(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", text) is not None


def _value(text: str, name: str) -> str | None:
    """What follows `name=`, up to the next separator."""
    match = re.search(rf"(?<![a-z0-9])(?:{name})\s*[=:]\s*([^;+]+)", text)
    return match[1].strip() if match else None


def _flag(text: str, name: str) -> bool | None:
    """The value of a switch; its name alone switches on."""
    match = re.search(rf"(?<![a-z0-9])(?:{name})(?![a-z0-9])(?:\s*[=:]\s*(?P<given>[a-z0-9]+))?", text)
    if match is None:
        return None
    return not (match["given"] and re.fullmatch(_NO, match["given"]))


def _precision(precision: str, config: str) -> Precision | None:
    given = precision.lower()
    for source in (given, config):
        for words, meaning in _PRECISIONS:
            # Of a configuration only 8-bit words mean a precision: `full`, `mixed` and `half` may be of
            # other things.
            if _has(source, words) and (source is given or meaning.startswith(("fp8", "mxfp8", "fp4"))):
                return meaning
        if source is given and given:
            raise DataError(
                f"column precision: {echo(precision)} is not known; expected e.g. bf16, fp16, fp8 or TF32"
            )
    return None


def _recompute(recompute: str, config: str) -> Recompute:
    given = recompute.lower()
    if not given:
        match = re.search(_RECOMPUTE_WORDS, config)
        given = match["how"] if match else "none"
    # `per-op selective` and `full (use_checkpoint=true)`: what stands in brackets explains.
    plain = re.sub(r"\([^()]*\)", " ", given)
    for words, meaning in _RECOMPUTES:
        if _has(plain, words):
            return meaning
    raise DataError(f"column recompute: {echo(recompute)} is not known; expected none, selective or full")


def _sharding(text: str) -> tuple[int, int | None]:
    """The stage of sharding over dp, and the size of the group where it is stated."""
    match = re.search(r"(?<![a-z0-9])zero(?:[-_ ]?stage)?\s*[-_= ]?\s*(\d+)", text)
    if match:
        if match[1] not in {"0", "1", "2", "3"}:
            raise DataError(f"column parallel_config: ZeRO stage {echo(match[1])}; expected 0, 1, 2 or 3")
        return int(match[1]), None
    group = _value(text, r"fsdp2?|hsdp")
    if group is not None and group.isascii() and group.isdecimal() and len(group) < MAX_DIGITS:
        return (3, int(group)) if int(group) > 1 else (0, None)
    if _has(text, r"fsdp[12]?|hsdp|fully[- ]sharded(?:[- ]data[- ]parallel)?|zero-infinity"):
        return 3, None
    return (1 if _has(text, r"distributed[- ]optimizer|dist[- ]?opt") else 0), None


MAX_DIGITS = 8


def _interleaving(text: str) -> tuple[bool, int | None]:
    """Whether a pipeline rank holds several chunks, and how many where that is stated."""
    given = _value(text, r"interleave|interleaving|vpp?|virtual[-_ ]pipeline(?:[-_ ](?:size|stages))?|chunks")
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


MAX_ACCELERATORS = 10_000_000
_MAX_BATCH = 10**12
# Rank of adapters where a row states that they were trained, not how wide: what recipes use most.
_USUAL_RANK = 16


class StatedStrategy(Struct, frozen=True, kw_only=True):
    """A strategy, and in sentences what of it was assumed."""

    strategy: Strategy
    notes: tuple[str, ...]


def strategy_of(row: TextRow, *, num_accelerators: int, layers: int | None) -> StatedStrategy:
    """The strategy of a row.

    layers: of the model, for the chunks of an interleaved pipeline whose number is not stated.
    Raises DataError or SpecError where axes or batches are missing or contradict each other.
    """
    words = strategy_words(stated(row, "parallel_config"), stated(row, "precision"), stated(row, "recompute"))
    tp, pp, cp, ep = (_axis(row, name) for name in ("tp", "pp", "cp", "ep"))
    dp = _data_axis(row, num_accelerators, tp * pp * cp)
    notes: list[str] = []
    micro, whole = _batches(row, words, dp=dp, pp=pp, notes=notes)
    if words.precision is None:
        notes.append("precision not stated: bf16")
    groups = 1
    if words.shard_group is not None and words.shard_group < dp:
        groups = dp // words.shard_group if dp % words.shard_group == 0 else 1
        if groups == 1:
            notes.append(f"sharded over groups of {words.shard_group} ranks: treated as over all {dp}")
    found = Strategy(
        global_batch_samples=whole,
        microbatch_samples=micro,
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        zero_stage=words.zero_stage,
        dp_replicate=groups,
        interleave=_chunks(words, pp=pp, layers=layers, notes=notes),
        sequence_parallel=bool(words.splits_sequences) and tp > 1,
        tp_overlap=words.tp_overlap and tp > 1,
        fused_attention=_fuses_attention(row, words),
        fused_loss=_FP32_LOGITS.search(stated(row, "source")) is None,
        recompute=words.recompute,
        precision=words.precision or "bf16",
        implementation=words.implementation,
        offload=words.offload,
        trained=words.trained,
        lora_rank=0 if words.trained == "full" else _USUAL_RANK,
    )
    return StatedStrategy(strategy=found, notes=tuple(notes))


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


def _batches(row: TextRow, words: StrategyWords, *, dp: int, pp: int, notes: list[str]) -> tuple[int, int]:
    """Samples of a micro-batch and of a step; what one does not say follows from the other."""
    micro = count_at(row, "micro_batch", most=_MAX_BATCH)
    whole = count_at(row, "global_batch", most=_MAX_BATCH)
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
    notes.append("micro_batch not stated: all samples of a rank")
    return whole // dp, whole


def _chunks(words: StrategyWords, *, pp: int, layers: int | None, notes: list[str]) -> int:
    """Chunks a pipeline rank holds; where a row only states that there are several, the fewest that divide
    its layers.
    """
    if pp == 1 or not words.is_interleaved:
        return 1
    if words.interleave is not None:
        return words.interleave
    of_rank = max(1, (layers or pp) // pp)
    chunks = next((size for size in range(2, of_rank + 1) if of_rank % size == 0), 1)
    notes.append(f"interleaved, chunks not stated: {chunks}")
    return chunks


_FUSED = re.compile(r"flash|\bsdpa\b|fused[-_ ]attention(?!=(?:no|false|0))", re.IGNORECASE)
_UNFUSED = re.compile(
    r"megatron(?![- ]bridge)|turing|deepspeed|\bngc\b|fused[-_ ]attention=(?:no|false|0)", re.IGNORECASE
)

# torchtitan left its loss uncompiled until 2025 (train.py: "compiling loss function causes CUDA errors").
_FP32_LOGITS = re.compile(r"torchtitan\b.*_2024\d\d_", re.IGNORECASE)


def _fuses_attention(row: TextRow, words: StrategyWords) -> bool:
    """Whether scores stay on the chip: not in Megatron of 2021/22, in NVIDIA's DeepLearningExamples (whose
    models NGC containers run: BERT's modeling.py, Transformer-XL's mem_transformer.py) and in fp16 training
    of that time, else yes.
    """
    text = f"{stated(row, 'workload')} {stated(row, 'parallel_config')}"
    if _FUSED.search(text):
        return True
    return words.precision != "fp16" and _UNFUSED.search(text) is None

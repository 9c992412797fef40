"""Knobs of a strategy out of the words of a table: `FSDP2+compile`, `interleave=3;seqpar=yes`, `full (...)`.

Only whole words count. What framework a run used says some knobs too: those it always sets.
"""

import re
from dataclasses import dataclass

from equipoise.errors import DataError
from equipoise.runs.readers.cells import MAX_TEXT, echo
from equipoise.spec.strategy import Implementation, Offload, Precision, Recompute, Trained

_MAX_CHUNKS = 1000
_NO = "no|false|off|0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
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


def knobs(config: str, precision: str, recompute: str) -> Knobs:
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
    return Knobs(
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
    """Whether a compiler, or graphs of whole layers, launched the kernels; what says nothing ran as
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
    """What a switch says; its bare name switches on."""
    match = re.search(rf"(?<![a-z0-9])(?:{name})(?![a-z0-9])(?:\s*[=:]\s*(?P<said>[a-z0-9]+))?", text)
    if match is None:
        return None
    return not (match["said"] and re.fullmatch(_NO, match["said"]))


def _precision(precision: str, config: str) -> Precision | None:
    said = precision.lower()
    for source in (said, config):
        for words, meaning in _PRECISIONS:
            # Of a configuration only 8-bit words speak of precision: `full`, `mixed` and `half` may be of
            # other things.
            if _has(source, words) and (source is said or meaning.startswith(("fp8", "mxfp8", "fp4"))):
                return meaning
        if source is said and said:
            raise DataError(
                f"column precision: {echo(precision)} is not known; expected e.g. bf16, fp16, fp8 or TF32"
            )
    return None


def _recompute(recompute: str, config: str) -> Recompute:
    said = recompute.lower()
    if not said:
        match = re.search(_RECOMPUTE_WORDS, config)
        said = match["how"] if match else "none"
    # `per-op selective` and `full (use_checkpoint=true)`: what stands in brackets explains.
    plain = re.sub(r"\([^()]*\)", " ", said)
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
    """Whether a pipeline rank holds several chunks, and how many where it is said."""
    said = _value(text, r"interleave|interleaving|vpp?|virtual[-_ ]pipeline(?:[-_ ](?:size|stages))?|chunks")
    if said is not None:
        match = re.match(r"(\d{1,4})\b", said)
        chunks = int(match[1]) if match else 1
        if not 1 <= chunks <= _MAX_CHUNKS:
            raise DataError(
                f"column parallel_config: {chunks} chunks a pipeline rank; expected 1 to {_MAX_CHUNKS}"
            )
        return chunks > 1, chunks
    negated = _has(text, r"(?:no|non|not|without)[- ]interleav(?:ing|ed)")
    return (not negated and _has(text, r"interleav(?:ing|ed)")), None

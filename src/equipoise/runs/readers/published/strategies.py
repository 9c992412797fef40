"""The strategy of a row: axes and batches from their columns, knobs from words; what is assumed is said."""

import re
from dataclasses import dataclass

from equipoise.errors import DataError
from equipoise.runs.readers.cells import Row
from equipoise.runs.readers.published.knobs import Knobs, knobs
from equipoise.runs.readers.published.numbers import count, count_at, count_in, stated
from equipoise.spec.strategy import Strategy

MAX_ACCELERATORS = 10_000_000
_MAX_BATCH = 10**12
# Rank of adapters where a row says that they were trained, not how wide: what recipes use most.
_USUAL_RANK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedStrategy:
    """A strategy, and in sentences what of it was assumed."""

    strategy: Strategy
    notes: tuple[str, ...]


def strategy_of(row: Row, *, num_accelerators: int, layers: int | None) -> StatedStrategy:
    """The strategy of a row.

    layers: of the model, for the chunks of an interleaved pipeline whose number is not stated.
    Raises DataError or SpecError where axes or batches are missing or contradict each other.
    """
    words = knobs(stated(row, "parallel_config"), stated(row, "precision"), stated(row, "recompute"))
    tp, pp, cp, ep = (_axis(row, name) for name in ("tp", "pp", "cp", "ep"))
    dp = _data_axis(row, num_accelerators, tp * pp * cp)
    notes: list[str] = []
    micro, whole = _batches(row, words, dp=dp, pp=pp, notes=notes)
    if words.precision is None:
        notes.append("precision not stated: bf16")
    if words.shard_group is not None and words.shard_group < dp:
        notes.append(f"sharded over groups of {words.shard_group} ranks: taken as over all {dp}")
    found = Strategy(
        global_batch_samples=whole,
        microbatch_samples=micro,
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        zero_stage=words.zero_stage,
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


def _axis(row: Row, name: str) -> int:
    """The size of an axis from its column, else from words such as `TP=8` or `pp4`, else one."""
    stated_size = count(row, name, most=MAX_ACCELERATORS)
    if stated_size is not None:
        return stated_size
    words = re.search(
        rf"(?<![a-z]){name} ?[=:]? ?(\d{{1,6}})(?![\d.])", stated(row, "parallel_config").lower()
    )
    return max(1, int(words[1])) if words else 1


def _data_axis(row: Row, num_accelerators: int, others: int) -> int:
    """The size of the data axis, as stated or as the other axes leave it."""
    said = count(row, "dp", most=MAX_ACCELERATORS)
    if said is not None and said * others != num_accelerators:
        raise DataError(
            f"dp x tp x pp x cp = {said * others}, n_gpus = {num_accelerators}; expected the same"
        )
    if num_accelerators % others:
        raise DataError(f"tp x pp x cp = {others} does not divide n_gpus = {num_accelerators}")
    return num_accelerators // others


def _batches(row: Row, words: Knobs, *, dp: int, pp: int, notes: list[str]) -> tuple[int, int]:
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
            notes.append("global_batch not stated: one micro-batch a rank")
        return micro, micro * dp * (accumulated or 1)
    if whole is None:
        raise DataError("columns micro_batch and global_batch: both empty; a step is not known without one")
    if accumulated is not None:
        return max(1, whole // (dp * accumulated)), whole
    if pp > 1:
        notes.append("micro_batch not stated: 1 sample")
        return 1, whole
    if whole % dp:
        raise DataError(f"global_batch = {whole} is no multiple of dp = {dp}")
    notes.append("micro_batch not stated: a rank's whole share")
    return whole // dp, whole


def _chunks(words: Knobs, *, pp: int, layers: int | None, notes: list[str]) -> int:
    """Chunks a pipeline rank holds; where a row only says that there are several, the fewest that divide its
    layers.
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
    r"megatron(?![- ]bridge)|turing|deepspeed|fused[-_ ]attention=(?:no|false|0)", re.IGNORECASE
)

# torchtitan left its loss uncompiled until 2025 (train.py: "compiling loss function causes CUDA errors").
_FP32_LOGITS = re.compile(r"torchtitan\b.*_2024\d\d_", re.IGNORECASE)


def _fuses_attention(row: Row, words: Knobs) -> bool:
    """Whether scores stay on the chip: not in Megatron of 2021/22 and in fp16 training of that time, else
    yes.
    """
    text = f"{stated(row, 'workload')} {stated(row, 'parallel_config')}"
    if _FUSED.search(text):
        return True
    return words.precision != "fp16" and _UNFUSED.search(text) is None

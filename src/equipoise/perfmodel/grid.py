"""Strategies as arrays that broadcast: an open mesh for a search, flat rows for measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.spec.strategy import (
    COMPRESSIONS,
    FLAGS,
    IMPLEMENTATIONS,
    OFFLOADS,
    OPTIMIZERS,
    PRECISIONS,
    RECOMPUTES,
    TRAINED,
    Strategy,
)

Numbers: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.intp]

# Knobs that are words: their code is the position in the tuple.
CODES: dict[str, tuple[str, ...]] = {
    "recompute": RECOMPUTES,
    "precision": PRECISIONS,
    "implementation": IMPLEMENTATIONS,
    "optimizer": OPTIMIZERS,
    "offload": OFFLOADS,
    "compression": COMPRESSIONS,
    "trained": TRAINED,
}
RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Many strategies: the fields of `Strategy`, each an array that broadcasts against the others.

    Counts are float64, so that nothing overflows or divides as integers; words are integer codes (CODES).
    """

    dp: Numbers
    tp: Numbers
    pp: Numbers
    cp: Numbers
    ep: Numbers
    microbatch_samples: Numbers
    global_batch_samples: Numbers
    shard_state: Numbers
    interleave: Numbers
    sequence_parallel: Numbers
    tp_overlap: Numbers
    fused_attention: Numbers
    fused_loss: Numbers
    recompute: Codes
    precision: Codes
    implementation: Codes
    optimizer: Codes
    offload: Codes
    compression: Codes
    compression_rank: Numbers
    sync_period: Numbers
    trained: Codes
    lora_rank: Numbers

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape all fields broadcast to."""
        return np.broadcast_shapes(*(getattr(self, field.name).shape for field in fields(self)))

    @property
    def num_accelerators(self) -> Numbers:
        """Accelerators each strategy takes."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def num_microbatches(self) -> Numbers:
        """Micro-batches a dp rank goes through in a step."""
        return self.global_batch_samples / (self.dp * self.microbatch_samples)

    def strategy(self, index: int) -> Strategy:
        """The strategy at a flat index of the broadcast shape."""
        shape = self.shape
        place = np.unravel_index(index, shape)
        stated: dict[str, Any] = {}
        for field in fields(self):
            value = np.broadcast_to(getattr(self, field.name), shape)[place]
            if field.name in CODES:
                stated[field.name] = CODES[field.name][int(value)]
            elif field.name in FLAGS:
                stated[field.name] = bool(value)
            else:
                stated[field.name] = int(value)
        return Strategy(**stated)


def grid(strategies: Sequence[Strategy]) -> Grid:
    """Flat rows: every field of shape (n_strategies,)."""
    columns: dict[str, Any] = {}
    for field in fields(Grid):
        values = [getattr(each, field.name) for each in strategies]
        if field.name in CODES:
            columns[field.name] = np.array(
                [CODES[field.name].index(value) for value in values], dtype=np.intp
            )
        else:
            columns[field.name] = np.array(values, dtype=float)
    return Grid(**columns)

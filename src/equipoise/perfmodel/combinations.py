"""Legal combinations of the knobs that are no sizes, made once for all places that allow the same."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from equipoise.perfmodel.legality import (
    Limits,
    adapter_fault,
    pipeline_fault,
    precision_fault,
    sparing_fault,
    split_fault,
    state_fault,
)
from equipoise.perfmodel.sharing import Block
from equipoise.perfmodel.space import LAYER_KNOBS, STATE_KNOBS, Combinations, Space, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Legal combinations of some knobs. key: of what they depend on. reason: why there are none."""

    key: tuple[Any, ...]
    number: int
    allowed: Combinations
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """Legal combinations of the knobs that are no sizes, made once for all places alike, and numbered."""

    space: Space
    limits: Limits
    known: dict[tuple[Any, ...], Allowed] = field(default_factory=dict)
    numbers: dict[Combinations, int] = field(default_factory=dict)

    @property
    def numbered(self) -> tuple[Combinations, ...]:
        """The combinations of each number."""
        return tuple(self.numbers)

    def of_layers(self, block: Block) -> Allowed:
        """Values of LAYER_KNOBS that a block allows."""
        key = ("layers", block.tp, block.cp)
        if key not in self.known:
            choices = [self.space.values(name) for name in LAYER_KNOBS]
            reason = partial(self._layer_fault, tp=block.tp, cp=block.cp)
            self._know(key, *_legal(LAYER_KNOBS, choices, reason))
        return self.known[key]

    def of_states(self, block: Block) -> Allowed:
        """Values of STATE_KNOBS that a block allows."""
        ranks = min(block.dp * block.cp, 2)
        key = ("states", block.pp, block.of.is_whole, ranks, block.tp > 1)
        if key not in self.known:
            num_microbatches = block.pp if block.of.is_whole else 1
            free = range(1, max(1, self.limits.layers // block.pp) + 1) if block.pp > 1 else (1,)
            chunks = tuple(each for each in free if self.space.allows("interleave", each))
            others = [self.space.values(name) for name in STATE_KNOBS[1:]]
            kept, wrong = _legal(STATE_KNOBS[1:], others, partial(self._state_fault, block, ranks=ranks))
            num_others = len(kept) + wrong.total()
            legal = []
            for each in chunks:
                fault = pipeline_fault(
                    self.limits, pp=block.pp, interleave=each, num_microbatches=num_microbatches
                )
                if fault is None:
                    legal.append(each)
                else:
                    wrong[fault] += num_others
            if not chunks:
                wrong = Counter(["interleave asked for needs pp above 1, and as many layers a stage"])
            self._know(key, tuple((each, *rest) for each in legal for rest in kept), wrong)
        return self.known[key]

    def _know(self, key: tuple[Any, ...], allowed: Combinations, wrong: Counter[str]) -> None:
        """Keep what a key allows; where that is nothing, with the most frequent reason."""
        number = self.numbers.setdefault(allowed, len(self.numbers))
        reason = wrong.most_common(1)[0][0] if wrong and not allowed else None
        self.known[key] = Allowed(key=key, number=number, allowed=allowed, reason=reason)

    def _layer_fault(self, chosen: dict[str, Any], *, tp: int, cp: int) -> str | None:
        return precision_fault(self.limits, chosen["precision"]) or split_fault(
            self.limits,
            tp=tp,
            cp=cp,
            sequence_parallel=chosen["sequence_parallel"],
            tp_overlap=chosen["tp_overlap"],
        )

    def _state_fault(self, block: Block, chosen: dict[str, Any], *, ranks: int) -> str | None:
        return (
            state_fault(
                ranks=ranks, pp=block.pp, shard_state=chosen["shard_state"], offload=chosen["offload"]
            )
            or sparing_fault(
                ranks=ranks,
                shard_state=chosen["shard_state"],
                compression=chosen["compression"],
                compression_rank=chosen["compression_rank"],
                sync_period=chosen["sync_period"],
            )
            or adapter_fault(
                self.limits, tp=block.tp, trained=chosen["trained"], lora_rank=chosen["lora_rank"]
            )
        )


def _legal(
    names: tuple[str, ...], choices: list[tuple[Value, ...]], reason: Callable[[Any], str | None]
) -> tuple[Combinations, Counter[str]]:
    """The combinations without a fault, and the faults of the others with their number."""
    kept: list[tuple[Value, ...]] = []
    wrong: Counter[str] = Counter()
    for values in product(*choices):
        found = reason(dict(zip(names, values, strict=True)))
        if found is None:
            kept.append(values)
        else:
            wrong[found] += 1
    return tuple(kept), wrong

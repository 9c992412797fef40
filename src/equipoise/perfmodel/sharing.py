"""Every way to share accelerators and batches out among axes; what is illegal is counted by its reason."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from equipoise.perfmodel.grid import Numbers
from equipoise.perfmodel.legality import Limits, axes_fault, expert_fault
from equipoise.perfmodel.places import Places
from equipoise.perfmodel.space import AXES, Space

_MOST_SHOWN = 4


class Batches(NamedTuple):
    """Batches of places alike. is_whole: whether micro-batches are a multiple of the pipeline's stages."""

    is_whole: bool
    batches: Numbers
    microbatches: Numbers


class Block(NamedTuple):
    """Places of one layout whose micro-batches fill pipelines alike."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    of: Batches
    space: int
    layout: int


def blocks(
    space: Space, limits: Limits, faults: Counter[str], *, first: tuple[int, Iterator[int]]
) -> Iterator[Block]:
    """Every way to share the accelerators and the batch out; what is illegal is counted by its reason.

    first: the number of the space, and those of its layouts.
    """
    shares = [*divisors(limits.experts)] if limits.experts else [1]
    experts = [each for each in shares if space.allows("ep", each)]
    if not experts:
        faults[f"ep asked for is not among {_short(shares)}, which divide the experts"] += 1
    batches = cache(partial(_batches, space))
    by_rounds = cache(lambda dp, pp: _by_rounds(batches(dp)[0], dp, pp))
    number, layouts = first
    for dp, tp, pp, cp in _shares(space, limits, faults):
        ranks = dp * tp * cp
        for ep in experts:
            wrong = expert_fault(limits, ranks=ranks, ep=ep)
            if wrong:
                faults[wrong] += 1
                continue
            for reason, times in batches(dp)[1]:
                faults[reason] += times
            layout = next(layouts)
            for each in by_rounds(dp, pp):
                yield Block(dp, tp, pp, cp, ep, each, number, layout)


def places(blocks: Sequence[Block]) -> Places:
    """The places of all blocks, block by block."""
    counts = [len(each.of.batches) for each in blocks]

    def column(name: str, kind: type) -> Any:  # noqa: ANN401 - floats or codes
        return np.repeat(np.array([getattr(each, name) for each in blocks], dtype=kind), counts)

    return Places(
        **{name: column(name, float) for name in AXES},
        microbatch_samples=np.concatenate([each.of.microbatches for each in blocks]),
        global_batch_samples=np.concatenate([each.of.batches for each in blocks]),
        space=column("space", np.intp),
        layout=column("layout", np.intp),
    )


@lru_cache(maxsize=2**16)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, from 1 up."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(dict.fromkeys((*small, *(number // each for each in reversed(small)))))


def _batches(space: Space, dp: int) -> tuple[Numbers, tuple[tuple[str, int], ...]]:
    """Global batches and micro-batches that so many data ranks can share, a pair a row; what is left out."""
    pairs: list[tuple[int, int]] = []
    wrong: Counter[str] = Counter()
    for batch in space.global_batches:
        if batch % dp:
            wrong["dp does not divide the global batch"] += 1
            continue
        sizes = divisors(batch // dp)
        if "microbatch_samples" in space.choices:
            sizes = tuple(each for each in sizes if space.allows("microbatch_samples", each))
        if not sizes:
            wrong["microbatch asked for does not divide the samples of a data rank"] += 1
        pairs += [(batch, size) for size in sizes]
    return np.array(pairs, dtype=float).reshape(-1, 2), tuple(wrong.items())


def _by_rounds(pairs: Numbers, dp: int, pp: int) -> tuple[Batches, ...]:
    """The pairs whose micro-batches are a multiple of the pipeline's stages, and the others."""
    whole = pairs[:, 0] / (dp * pairs[:, 1]) % pp == 0
    if whole.all():
        return (Batches(True, *pairs.T),) if len(pairs) else ()
    parts = ((each, pairs[whole == each]) for each in (True, False))
    return tuple(Batches(each, *part.T) for each, part in parts if len(part))


def _shares(space: Space, limits: Limits, faults: Counter[str]) -> Iterator[tuple[int, int, int, int]]:
    """Sizes of dp, tp, pp and cp whose product is the number of accelerators."""
    total = space.num_accelerators
    any_allowed = False
    for tp in divisors(total):
        for pp in divisors(total // tp):
            for cp in divisors(total // tp // pp):
                dp = total // tp // pp // cp
                wanted = (("dp", dp), ("tp", tp), ("pp", pp), ("cp", cp))
                if not all(space.allows(name, value) for name, value in wanted):
                    continue
                any_allowed = True
                wrong = axes_fault(limits, tp=tp, pp=pp, cp=cp)
                if wrong:
                    faults[wrong] += 1
                else:
                    yield dp, tp, pp, cp
    if not any_allowed:
        names = [name for name in ("dp", "tp", "pp", "cp") if name in space.choices]
        faults[f"{', '.join(names)} asked for cannot make dp x tp x pp x cp = {total:,}"] += 1


def _short(numbers: Sequence[int]) -> str:
    """Numbers, the first and the last of many."""
    shown = [str(each) for each in numbers]
    return ", ".join(shown if len(shown) <= _MOST_SHOWN else [*shown[:_MOST_SHOWN], "...", shown[-1]])

"""The space of legal strategies: what may be chosen of each knob, laid out as open meshes without a gap."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from equipoise.errors import SpecError
from equipoise.perfmodel.grid import CODES, Grid
from equipoise.perfmodel.legality import (
    Limits,
    adapter_fault,
    axes_fault,
    expert_fault,
    pipeline_fault,
    precision_fault,
    sparing_fault,
    split_fault,
    state_fault,
)
from equipoise.spec.strategy import RECOMPUTES, Strategy

Value: TypeAlias = int | str | bool
Combinations: TypeAlias = tuple[tuple[Value, ...], ...]
_MOST_SHOWN = 4
AXES = ("dp", "tp", "pp", "cp", "ep")
# Places: how ranks share samples out. Layers: what changes a layer's time. States: what does not.
PLACE_KNOBS = (*AXES, "microbatch_samples", "global_batch_samples")
LAYER_KNOBS = (
    "sequence_parallel",
    "tp_overlap",
    "recompute",
    "fused_attention",
    "fused_loss",
    "precision",
    "implementation",
)
STATE_KNOBS = (
    "interleave",
    "shard_state",
    "optimizer",
    "offload",
    "compression",
    "compression_rank",
    "sync_period",
    "trained",
    "lora_rank",
)
# What a search tries unless told otherwise: what leaves the trained model as it is, all on the accelerator.
# Attention and loss are fused and layers compiled: each is only ever faster, and neither changes a result.
USUAL: Mapping[str, tuple[Value, ...]] = {
    "sequence_parallel": (False, True),
    "tp_overlap": (False, True),
    "recompute": RECOMPUTES,
    "fused_attention": (True,),
    "fused_loss": (True,),
    "precision": ("bf16",),
    "implementation": ("compiled",),
    "shard_state": (0, 1, 2, 3),
    "optimizer": ("adam",),
    "offload": ("none",),
    "compression": ("none",),
    "compression_rank": (0,),
    "sync_period": (1,),
    "trained": ("full",),
    "lora_rank": (0,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be chosen: so many accelerators, global batches, and values a knob.

    choices: by field of `Strategy`, the values allowed, over USUAL; axes, microbatch_samples and interleave
    are free unless named: every value that the model, the batch and the accelerators allow.
    """

    num_accelerators: int
    global_batches: tuple[int, ...]
    choices: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse spaces that hold nothing whatever the model."""
        if self.num_accelerators < 1 or not self.global_batches or min(self.global_batches) < 1:
            raise SpecError(
                f"space: num_accelerators={self.num_accelerators}, global_batches={self.global_batches}; "
                "expected at least one accelerator, and global batches of at least one sample"
            )
        known = {each.name for each in fields(Strategy)} - {"global_batch_samples"}
        for name, values in self.choices.items():
            if name not in known or not values:
                raise SpecError(f"space: {name}={values!r}; expected values of a knob of a strategy")

    def allows(self, name: str, value: Value) -> bool:
        """Whether a free knob may take a value."""
        return name not in self.choices or value in self.choices[name]

    def values(self, name: str) -> tuple[Value, ...]:
        """The values of a knob that is not free."""
        return self.choices.get(name, USUAL[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Sizes of the axes and of the batches: a point of the space that every other knob is combined with."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    microbatch_samples: int
    global_batch_samples: int

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a step on a data rank."""
        return self.global_batch_samples // (self.dp * self.microbatch_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A space laid out. meshes: of shape (places, layer knobs, state knobs), every element legal.

    faults: why places were left out, with their number. precisions_lacking: asked for, but not of the chip.
    """

    meshes: tuple[Grid, ...]
    faults: Counter[str]

    @property
    def num_legal(self) -> int:
        """Strategies in all meshes, all distinct."""
        return sum(int(np.prod(mesh.shape)) for mesh in self.meshes)


def laid(space: Space, limits: Limits, *, most_elements: int) -> Laid:
    """The legal strategies of a space as meshes of at most about `most_elements` strategies each.

    Places that allow the same combinations of the other knobs share a mesh: none has an illegal element, and
    a quantity is computed once for all strategies that share it.
    """
    faults: Counter[str] = Counter()
    alike: dict[tuple[Any, ...], list[Place]] = defaultdict(list)
    combined = _Combined(space=space, limits=limits, faults=faults)
    for place in _places(space, limits, faults):
        key = (combined.of_layers(place), combined.of_states(place))
        if all(key):
            alike[key].append(place)
    meshes: list[Grid] = []
    for (layers, states), places in alike.items():
        each = max(1, most_elements // (len(layers) * len(states)))
        meshes.extend(
            _mesh(places[start : start + each], layers, states) for start in range(0, len(places), each)
        )
    return Laid(meshes=tuple(meshes), faults=faults)


@cache
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, from 1 up."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(dict.fromkeys((*small, *(number // each for each in reversed(small)))))


def _places(space: Space, limits: Limits, faults: Counter[str]) -> Iterator[Place]:
    """Every way to share the accelerators and the batch out; what is illegal is counted by its reason."""
    shares = [*divisors(limits.experts)] if limits.experts else [1]
    experts = [each for each in shares if space.allows("ep", each)]
    if not experts:
        faults[f"ep asked for is not among {_short(shares)}, which divide the experts"] += 1
    for dp, tp, pp, cp in _shares(space, limits, faults):
        ranks = dp * tp * cp
        for ep in experts:
            wrong = expert_fault(limits, ranks=ranks, ep=ep)
            if wrong:
                faults[wrong] += 1
                continue
            for batch in space.global_batches:
                if batch % dp:
                    faults["dp does not divide the global batch"] += 1
                    continue
                sizes = [each for each in divisors(batch // dp) if space.allows("microbatch_samples", each)]
                if not sizes:
                    faults["microbatch asked for does not divide the samples of a data rank"] += 1
                for size in sizes:
                    yield Place(
                        dp=dp,
                        tp=tp,
                        pp=pp,
                        cp=cp,
                        ep=ep,
                        microbatch_samples=size,
                        global_batch_samples=batch,
                    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Combined:
    """Legal combinations of the knobs that are no sizes, made once for all places alike."""

    space: Space
    limits: Limits
    faults: Counter[str]
    known: dict[tuple[Any, ...], Combinations] = field(default_factory=dict)

    def of_layers(self, place: Place) -> Combinations:
        """Values of LAYER_KNOBS that a place allows."""
        key = ("layers", place.tp, place.cp)
        if key not in self.known:
            choices = [self.space.values(name) for name in LAYER_KNOBS]
            self.known[key] = self._legal(LAYER_KNOBS, choices, partial(self._layer_fault, place))
        return self.known[key]

    def of_states(self, place: Place) -> Combinations:
        """Values of STATE_KNOBS that a place allows."""
        ranks = place.dp * place.cp
        key = ("states", place.pp, place.num_microbatches % place.pp == 0, ranks > 1, place.tp > 1)
        if key not in self.known:
            free = range(1, max(1, self.limits.layers // place.pp) + 1) if place.pp > 1 else (1,)
            chunks = tuple(each for each in free if self.space.allows("interleave", each))
            if not chunks:
                self.faults["interleave asked for needs pp above 1, and as many layers a stage"] += 1
            choices = [chunks, *(self.space.values(name) for name in STATE_KNOBS[1:])]
            self.known[key] = self._legal(STATE_KNOBS, choices, partial(self._state_fault, place))
        return self.known[key]

    def _legal(
        self, names: tuple[str, ...], choices: list[tuple[Value, ...]], reason: Callable[[Any], str | None]
    ) -> Combinations:
        """The combinations without a fault; where none is, the most frequent reason is counted."""
        kept: list[tuple[Value, ...]] = []
        wrong: Counter[str] = Counter()
        for values in product(*choices):
            found = reason(dict(zip(names, values, strict=True)))
            if found is None:
                kept.append(values)
            else:
                wrong[found] += 1
        if not kept and wrong:
            self.faults[wrong.most_common(1)[0][0]] += 1
        return tuple(kept)

    def _layer_fault(self, place: Place, chosen: dict[str, Any]) -> str | None:
        return precision_fault(self.limits, chosen["precision"]) or split_fault(
            self.limits,
            tp=place.tp,
            cp=place.cp,
            sequence_parallel=chosen["sequence_parallel"],
            tp_overlap=chosen["tp_overlap"],
        )

    def _state_fault(self, place: Place, chosen: dict[str, Any]) -> str | None:
        ranks = place.dp * place.cp
        return (
            pipeline_fault(
                self.limits,
                pp=place.pp,
                interleave=chosen["interleave"],
                num_microbatches=place.num_microbatches,
            )
            or state_fault(
                ranks=ranks, pp=place.pp, shard_state=chosen["shard_state"], offload=chosen["offload"]
            )
            or sparing_fault(
                ranks=ranks,
                shard_state=chosen["shard_state"],
                compression=chosen["compression"],
                compression_rank=chosen["compression_rank"],
                sync_period=chosen["sync_period"],
            )
            or adapter_fault(
                self.limits, tp=place.tp, trained=chosen["trained"], lora_rank=chosen["lora_rank"]
            )
        )


def _mesh(places: list[Place], layers: Combinations, states: Combinations) -> Grid:
    """An open mesh of places, combinations of layer knobs and combinations of state knobs."""
    columns: dict[str, Any] = {}
    for name in PLACE_KNOBS:
        columns[name] = np.array([getattr(each, name) for each in places], dtype=float)[:, None, None]
    for names, combined, shape in ((LAYER_KNOBS, layers, (1, -1, 1)), (STATE_KNOBS, states, (1, 1, -1))):
        for name, values in zip(names, zip(*combined, strict=True), strict=True):
            codes = (
                np.array([CODES[name].index(str(value)) for value in values], dtype=np.intp)
                if name in CODES
                else np.array(values, dtype=float)
            )
            # A knob with one value is one element: nothing is computed per combination for its sake.
            columns[name] = (codes[:1] if len(set(values)) == 1 else codes).reshape(shape)
    return Grid(**columns)

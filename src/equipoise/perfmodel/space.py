"""The space of legal strategies: what may be chosen of each knob, laid out as open meshes without a gap."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache, partial
from itertools import count, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from equipoise.errors import SpecError
from equipoise.perfmodel.grid import CODES, Codes, Grid, Numbers
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
class Places:
    """Sizes of the axes and of the batches: points of spaces that every other knob is combined with.

    Arrays of shape (n_places,). space: which of the spaces asked for, by its position. layout: a number of
    the axes' sizes; places of one layout differ in their batches only.
    """

    dp: Numbers
    tp: Numbers
    pp: Numbers
    cp: Numbers
    ep: Numbers
    microbatch_samples: Numbers
    global_batch_samples: Numbers
    space: Codes
    layout: Codes

    def __len__(self) -> int:
        """How many places."""
        return len(self.dp)

    def taken(self, which: Codes | slice) -> "Places":
        """Some of the places, in the order given."""
        return Places(**{each.name: getattr(self, each.name)[which] for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Places that allow the same combinations of the other knobs: LAYER_KNOBS, and STATE_KNOBS."""

    places: Places
    layers: Combinations
    states: Combinations

    @property
    def num_each(self) -> int:
        """Strategies of a place."""
        return len(self.layers) * len(self.states)

    def only(self, layers: Sequence[int], states: Sequence[int]) -> "Alike":
        """The same places with some combinations, by their numbers."""
        return replace(
            self,
            layers=tuple(self.layers[each] for each in layers),
            states=tuple(self.states[each] for each in states),
        )

    def at(self, which: Codes) -> "Alike":
        """Some of the places with the same combinations."""
        return replace(self, places=self.places.taken(which))

    def strategy(self, place: int, layer: int, state: int) -> Strategy:
        """The strategy of a place and combinations, by their numbers."""
        sizes = {name: int(getattr(self.places, name)[place]) for name in PLACE_KNOBS}
        layers = dict(zip(LAYER_KNOBS, self.layers[layer], strict=True))
        states = dict(zip(STATE_KNOBS, self.states[state], strict=True))
        return Strategy(**sizes, **layers, **states)  # type: ignore[arg-type]

    def meshes(self, most_elements: int) -> Iterator[tuple[int, Places, Grid]]:
        """The strategies as meshes of at most about `most_elements` each: first place, places and mesh."""
        each = max(1, most_elements // self.num_each)
        for start in range(0, len(self.places), each):
            places = self.places.taken(slice(start, start + each))
            yield start, places, _mesh(places, self.layers, self.states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A space laid out. meshes: of shape (places, layer knobs, state knobs), every element legal.

    faults: why places were left out, with their number.
    """

    meshes: tuple[Grid, ...]
    faults: Counter[str]

    @property
    def num_legal(self) -> int:
        """Strategies in all meshes, all distinct."""
        return sum(int(np.prod(mesh.shape)) for mesh in self.meshes)


def laid(space: Space, limits: Limits, *, most_elements: int) -> Laid:
    """The legal strategies of a space as meshes of at most about `most_elements` strategies each."""
    found, (faults,) = grouped((space,), limits)
    meshes = tuple(mesh for each in found for _, _, mesh in each.meshes(most_elements))
    return Laid(meshes=meshes, faults=faults)


def grouped(spaces: Sequence[Space], limits: Limits) -> tuple[tuple[Alike, ...], tuple[Counter[str], ...]]:
    """The places of spaces by what they allow, and why places of each space were left out.

    spaces: of the same choices, at least one; they differ in their accelerators and batches.
    None of a group's combinations is illegal, and a quantity is computed once for all strategies that share
    it.
    """
    combined = _Combined(space=spaces[0], limits=limits)
    blocks: dict[tuple[int, int], list[_Block]] = defaultdict(list)
    faults = tuple(Counter[str]() for _ in spaces)
    layouts = count()
    for index, (space, wrong) in enumerate(zip(spaces, faults, strict=True)):
        told: set[tuple[Any, ...]] = set()
        for block in _blocks(space, limits, wrong, first=(index, layouts)):
            layers, states = combined.of_layers(block), combined.of_states(block)
            for each in (layers, states):
                if each.reason and each.key not in told:
                    told.add(each.key)
                    wrong[each.reason] += 1
            if layers.allowed and states.allowed:
                blocks[layers.number, states.number].append(block)
    return tuple(
        Alike(
            places=_places(of),
            layers=combined.numbered[layers],
            states=combined.numbered[states],
        )
        for (layers, states), of in blocks.items()
    ), faults


@lru_cache(maxsize=2**16)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, from 1 up."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(dict.fromkeys((*small, *(number // each for each in reversed(small)))))


class _Batches(NamedTuple):
    """Batches of places alike. is_whole: whether micro-batches are a multiple of the pipeline's stages."""

    is_whole: bool
    batches: Numbers
    microbatches: Numbers


class _Block(NamedTuple):
    """Places of one layout whose micro-batches fill pipelines alike."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    of: _Batches
    space: int
    layout: int


def _places(blocks: Sequence[_Block]) -> Places:
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


def _blocks(
    space: Space, limits: Limits, faults: Counter[str], *, first: tuple[int, Iterator[int]]
) -> Iterator[_Block]:
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
                yield _Block(dp, tp, pp, cp, ep, each, number, layout)


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


def _by_rounds(pairs: Numbers, dp: int, pp: int) -> tuple[_Batches, ...]:
    """The pairs whose micro-batches are a multiple of the pipeline's stages, and the others."""
    whole = pairs[:, 0] / (dp * pairs[:, 1]) % pp == 0
    if whole.all():
        return (_Batches(True, *pairs.T),) if len(pairs) else ()
    parts = ((each, pairs[whole == each]) for each in (True, False))
    return tuple(_Batches(each, *part.T) for each, part in parts if len(part))


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
class _Allowed:
    """Legal combinations of some knobs. key: of what they depend on. reason: why there are none."""

    key: tuple[Any, ...]
    number: int
    allowed: Combinations
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Combined:
    """Legal combinations of the knobs that are no sizes, made once for all places alike, and numbered."""

    space: Space
    limits: Limits
    known: dict[tuple[Any, ...], _Allowed] = field(default_factory=dict)
    numbers: dict[Combinations, int] = field(default_factory=dict)

    @property
    def numbered(self) -> tuple[Combinations, ...]:
        """The combinations of each number."""
        return tuple(self.numbers)

    def of_layers(self, block: _Block) -> _Allowed:
        """Values of LAYER_KNOBS that a block allows."""
        key = ("layers", block.tp, block.cp)
        if key not in self.known:
            choices = [self.space.values(name) for name in LAYER_KNOBS]
            reason = partial(self._layer_fault, tp=block.tp, cp=block.cp)
            self._know(key, *_legal(LAYER_KNOBS, choices, reason))
        return self.known[key]

    def of_states(self, block: _Block) -> _Allowed:
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
        self.known[key] = _Allowed(key=key, number=number, allowed=allowed, reason=reason)

    def _layer_fault(self, chosen: dict[str, Any], *, tp: int, cp: int) -> str | None:
        return precision_fault(self.limits, chosen["precision"]) or split_fault(
            self.limits,
            tp=tp,
            cp=cp,
            sequence_parallel=chosen["sequence_parallel"],
            tp_overlap=chosen["tp_overlap"],
        )

    def _state_fault(self, block: _Block, chosen: dict[str, Any], *, ranks: int) -> str | None:
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


def _mesh(places: Places, layers: Combinations, states: Combinations) -> Grid:
    """An open mesh of places, combinations of layer knobs and combinations of state knobs."""
    columns: dict[str, Any] = {name: getattr(places, name)[:, None, None] for name in PLACE_KNOBS}
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

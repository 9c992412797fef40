"""Strategies as arrays, and every layout of ranks and batches that a space allows."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.perfmodel.load import Numbers
from equipoise.perfmodel.space import (
    LAYER_OPTIONS,
    LAYOUT_OPTIONS,
    OVERLAPPED,
    STATE_OPTIONS,
    Combinations,
    Fault,
    LegalCombinations,
    Limits,
    Space,
    axes_fault,
    expert_fault,
)
from equipoise.spec.strategy import (
    AXES,
    BOTH_ENDS,
    CHOICES,
    GRADIENTS_SHARDED,
    LORA_TARGETS,
    TRAINED,
    WEIGHTS_SHARDED,
    Strategy,
    Value,
)

Codes: TypeAlias = NDArray[np.intp]

# Options that are words: their code is the position in the tuple.
CODES = CHOICES
_, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = range(3)
_, ONE_OVERLAP, DUALPIPE, DUALPIPE_V = range(4)
USUAL_TARGETS, QUERY_VALUE, ATTENTION, ALL_LINEAR = range(len(LORA_TARGETS))
FULL_TRAINING, LORA, QLORA = (TRAINED.index(name) for name in ("full", "lora", "qlora"))
OFFLOAD_NONE, OFFLOAD_ALL = (CODES["offload"].index(name) for name in ("none", "optimizer_and_params"))
_MOST_SHOWN = 4
# Arrays of this many elements: larger ones gain little speed and take more memory (docs/experiments/0008).
MESH_ELEMENTS = 2**17


class StrategyGrid(Struct, frozen=True, kw_only=True):
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
    zero_stage: Numbers
    whole_gradients: Numbers
    gradient_copies: Numbers
    dp_replicate: Numbers
    ulysses: Numbers
    dispatch_copies: Numbers
    interleave: Numbers
    schedule: Codes
    sequence_parallel: Numbers
    tp_overlap: Numbers
    fused_attention: Numbers
    native_attention: Numbers
    fused_loss: Numbers
    chunked_loss: Numbers
    plain_loss: Numbers
    recompute: Codes
    precision: Codes
    implementation: Codes
    cuda_graphs: Numbers
    full_graphs: Numbers
    optimizer: Codes
    master_weights: Numbers
    offload: Codes
    activation_offload: Numbers
    compression: Codes
    compression_rank: Numbers
    sync_period: Numbers
    trained: Codes
    lora_rank: Numbers
    lora_targets: Codes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape all fields broadcast to."""
        return np.broadcast_shapes(*(getattr(self, name).shape for name in self.__struct_fields__))

    @property
    def num_accelerators(self) -> Numbers:
        """Accelerators each strategy takes."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def held_stage(self) -> Numbers:
        """ZeRO stage of what a rank holds from the first micro-batch to the last: 1 at most in a pipeline.

        Source: torch.distributed.pipelining (stage.py, backward_maybe_with_nosync): of modules that FSDP
        shards, weights stay gathered after a way back, and gradients whole until the last one; Llama team
        2024, section 3.3.2 (model shards are not resharded after the way forward).
        """
        if np.max(self.pp) <= 1 or np.max(self.zero_stage) < GRADIENTS_SHARDED:
            return self.zero_stage
        return np.asarray(np.where(self.pp > 1, np.minimum(self.zero_stage, 1.0), self.zero_stage))

    @property
    def adds_up_whole(self) -> NDArray[np.bool_]:
        """Where gradients that are sharded after a step lie whole during it."""
        return np.asarray((self.whole_gradients > 0) & (self.held_stage >= GRADIENTS_SHARDED))

    @property
    def adapted_layers(self) -> Codes:
        """The layers that have adapters where any have: `spec.strategy.adapted_layers`, of arrays."""
        usual = np.where(self.trained == QLORA, ALL_LINEAR, ATTENTION)
        return np.asarray(np.where(self.lora_targets == USUAL_TARGETS, usual, self.lora_targets))

    @property
    def num_microbatches(self) -> Numbers:
        """Micro-batches a dp rank goes through in a step."""
        return self.global_batch_samples / (self.dp * self.microbatch_samples)


def grid(strategies: Sequence[Strategy]) -> StrategyGrid:
    """Flat rows: every field of shape (n_strategies,)."""
    names = StrategyGrid.__struct_fields__
    return StrategyGrid(
        **{name: _column(name, [getattr(each, name) for each in strategies]) for name in names}
    )


def _column(name: str, values: Sequence[Value]) -> NDArray[Any]:
    """Values of an option as numbers: of words their codes."""
    if name in CODES:
        return np.array([CODES[name].index(str(value)) for value in values], dtype=np.intp)
    return np.array(values, dtype=float)


class Layouts(Struct, frozen=True, kw_only=True):
    """Sizes of the axes and of the batches: points of spaces that every other option is combined with.

    Most sizes are shared by many layouts, so they are kept once. shares: by name, the sizes of AXES and
    dp_replicate, each (n_shares,); `space`, which of the spaces given, by its position; and `axes`, a number
    for the axes' sizes: layouts with the same number differ in their groups and batches only. batches:
    microbatch_samples and global_batch_samples, each (n_batches,). share, batch: which of them a layout has,
    (n_layouts,). Layouts of the same batch differ in ep and dp_replicate alone: share_of is one of the shares
    of each, (n_batches,).
    """

    shares: Mapping[str, NDArray[Any]]
    batches: Mapping[str, Numbers]
    share_of: Codes
    share: Codes
    batch: Codes

    def __len__(self) -> int:
        """How many layouts."""
        return len(self.share)

    def column(self, name: str) -> NDArray[Any]:
        """One of the sizes, the space or the number of the axes, of every layout: (n_layouts,)."""
        known = self.shares.get(name)
        return self.batches[name].take(self.batch) if known is None else known.take(self.share)

    def at(self, which: Codes | slice) -> "Layouts":
        """Some of the layouts, in the order given."""
        return replace(self, share=self.share[which], batch=self.batch[which])

    def each_share(self) -> "Layouts":
        """A layout of every share, with any batch."""
        num_shares = len(self.shares["space"])
        return replace(self, share=np.arange(num_shares), batch=np.zeros(num_shares, dtype=np.intp))

    def each_batch(self) -> "Layouts":
        """A layout of every batch."""
        return replace(self, share=self.share_of, batch=np.arange(len(self.share_of)))

    def numbered(self, names: Sequence[str], also: Numbers | None = None) -> Codes:
        """A small number for every layout, the same for those that agree in these sizes: (n_layouts,).

        also: another size of every layout, (n_layouts,).
        """
        parts = [] if also is None else [_numbered(also)]
        for sizes, which in ((self.shares, self.share), (self.batches, self.batch)):
            some = [_numbered(sizes[name]) for name in names if name in sizes]
            if some:
                of_sizes, num_different = _combined(some)
                parts.append((of_sizes.take(which), num_different))
        return _combined(parts)[0]


def _combined(parts: Sequence[tuple[Codes, int]]) -> tuple[Codes, int]:
    """One small number for each of several: equal where all are; and how many there can be."""
    numbers, num_different = parts[0]
    for places, num_values in parts[1:]:
        numbers = numbers * num_values
        numbers += places
        num_different *= num_values
    return numbers, num_different


def _numbered(sizes: Numbers) -> tuple[Codes, int]:
    """A small number for every one of some whole sizes, the same for equal ones; how many there are."""
    positions, numbers = distinct(sizes.astype(np.intp))
    return numbers, len(positions)


def joined(parts: Sequence[Layouts]) -> Layouts:
    """The layouts of all parts, of which there is at least one, one after the other."""

    def tables(sizes: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        return {name: np.concatenate([each[name] for each in sizes]) for name in sizes[0]}

    def numbers(which: Sequence[Codes], sizes: Sequence[Mapping[str, NDArray[Any]]]) -> Codes:
        firsts = np.cumsum([0, *(len(next(iter(each.values()))) for each in sizes)])
        return np.concatenate([each + first for each, first in zip(which, firsts, strict=False)])

    shares, batches = [each.shares for each in parts], [each.batches for each in parts]
    return Layouts(
        shares=tables(shares),
        batches=tables(batches),
        share_of=numbers([each.share_of for each in parts], shares),
        share=numbers([each.share for each in parts], shares),
        batch=numbers([each.batch for each in parts], batches),
    )


def distinct(numbers: Codes) -> tuple[Codes, Codes]:
    """Of numbers, at least one: a position of each different one, and which of these each number is."""
    num_possible = int(numbers.max()) + 1
    if num_possible > max(2**12, 16 * len(numbers)):  # sorting takes less than a table of all that may be
        _, positions, which = np.unique(numbers, return_index=True, return_inverse=True)
        return positions, which
    position = np.full(num_possible, -1)
    position[numbers] = np.arange(len(numbers))
    is_present = position >= 0
    return position[is_present], (np.cumsum(is_present) - 1)[numbers]


class LayoutGroup(Struct, frozen=True, kw_only=True):
    """Layouts that allow the same combinations of the other options: LAYER_OPTIONS, and STATE_OPTIONS."""

    layouts: Layouts
    layers: Combinations
    states: Combinations

    @property
    def num_each(self) -> int:
        """Strategies of a layout."""
        return len(self.layers) * len(self.states)

    def only(self, layers: Sequence[int], states: Sequence[int]) -> "LayoutGroup":
        """The same layouts with some combinations, by their numbers."""
        return replace(
            self,
            layers=tuple(self.layers[each] for each in layers),
            states=tuple(self.states[each] for each in states),
        )

    def allowing(self, values: Mapping[str, Collection[Value]]) -> "LayoutGroup":
        """The same layouts with the combinations that have one of the values of each option named, if any."""
        return replace(
            self,
            layers=_allowing(LAYER_OPTIONS, self.layers, values),
            states=_allowing(STATE_OPTIONS, self.states, values),
        )

    def with_value(self, name: str, value: Value) -> "LayoutGroup":
        """The same layouts and combinations with one value of a layer or state option, allowed or not."""
        if name in LAYER_OPTIONS:
            return replace(self, layers=_with_value(self.layers, LAYER_OPTIONS.index(name), value))
        return replace(self, states=_with_value(self.states, STATE_OPTIONS.index(name), value))

    def at(self, which: Codes) -> "LayoutGroup":
        """Some of the layouts with the same combinations."""
        return replace(self, layouts=self.layouts.at(which))

    def strategy(self, layout: int, layer: int, state: int) -> Strategy:
        """The strategy of a layout and combinations, by their numbers."""
        alone = self.layouts.at(slice(layout, layout + 1))
        sizes = {name: int(alone.column(name)[0]) for name in LAYOUT_OPTIONS}
        layers = dict(zip(LAYER_OPTIONS, self.layers[layer], strict=True))
        states = dict(zip(STATE_OPTIONS, self.states[state], strict=True))
        return Strategy(**sizes, **layers, **states)  # type: ignore[arg-type]

    def parts(self, most_elements: int) -> Iterator[tuple[slice, "LayoutGroup"]]:
        """The group in parts of at most about `most_elements` strategies: which layouts, and the part."""
        num_layouts = max(1, most_elements // self.num_each)
        for start in range(0, len(self.layouts), num_layouts):
            which = slice(start, start + num_layouts)
            yield which, replace(self, layouts=self.layouts.at(which))

    def mesh(self) -> StrategyGrid:
        """The strategies: an open mesh of layer options, of state options and of layouts."""
        return _mesh(self.layouts, self.layers, self.states)


def once_for_all(
    kinds: Sequence[Hashable],
    groups: Sequence[LayoutGroup],
    *,
    numbered: Callable[[Layouts], Codes],
    computed: Callable[[LayoutGroup], Numbers],
) -> list[tuple[Numbers, Codes]]:
    """By group, a quantity of its different layouts, and which of these each of its layouts is.

    Computed once for the layouts of all groups that share what decides it. kinds: equal for groups of which
    it is the same at the same sizes. numbered: a small number for every layout, the same for those of which
    it is the same. computed: the quantity of a group, layouts last.
    """
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds):
        alike[kind].append(number)
    found: dict[int, tuple[Numbers, Codes]] = {}
    for numbers in alike.values():
        parts = [groups[number].layouts for number in numbers]
        layouts = joined(parts)
        different, which = distinct(numbered(layouts))
        group = replace(groups[numbers[0]], layouts=layouts.at(different))
        values = np.concatenate([computed(part) for _, part in group.parts(MESH_ELEMENTS)], axis=-1)
        of_parts = np.split(which, np.cumsum([len(part) for part in parts])[:-1])
        found |= {number: (values, rows) for number, rows in zip(numbers, of_parts, strict=True)}
    return [found[number] for number in range(len(groups))]


def _allowing(
    names: tuple[str, ...], combined: Combinations, values: Mapping[str, Collection[Value]]
) -> Combinations:
    """The combinations that have one of the values of each option named."""
    asked = [(names.index(name), allowed) for name, allowed in values.items() if name in names]
    return tuple(each for each in combined if all(each[index] in allowed for index, allowed in asked))


def _with_value(combined: Combinations, index: int, value: Value) -> Combinations:
    """Combinations with one value of an option, each once."""
    return tuple(dict.fromkeys((*each[:index], value, *each[index + 1 :]) for each in combined))


def _mesh(layouts: Layouts, layers: Combinations, states: Combinations) -> StrategyGrid:
    # Layouts come last: they are many, and NumPy takes several times as long where the last axis is short.
    columns: dict[str, Any] = {name: layouts.column(name)[None, None, :] for name in LAYOUT_OPTIONS}
    columns.update(_columns(LAYER_OPTIONS, layers, (-1, 1, 1)))
    columns.update(_columns(STATE_OPTIONS, states, (1, -1, 1)))
    return StrategyGrid(**columns)


@lru_cache(maxsize=1024)
def _columns(
    names: tuple[str, ...], combined: Combinations, shape: tuple[int, ...]
) -> Mapping[str, NDArray[Any]]:
    """The values of options along one axis of a mesh, by name. Kept: groups of many layouts share them.

    An option with one value is one element: nothing is computed per combination for its sake.
    """
    columns = {}
    for name, values in zip(names, zip(*combined, strict=True), strict=True):
        codes = _column(name, values)
        columns[name] = (codes[:1] if len(set(values)) == 1 else codes).reshape(shape)
    return MappingProxyType(columns)


def flat_rows(groups: Sequence[LayoutGroup]) -> StrategyGrid:
    """The strategies of all groups one after the other: fields of shape (n_strategies,).

    An option that has one value in all groups is one element.
    """
    meshes = [(group.mesh(), (len(group.layers), len(group.states), len(group.layouts))) for group in groups]
    columns: dict[str, Any] = {}
    for name in StrategyGrid.__struct_fields__:
        values = [getattr(mesh, name) for mesh, _ in meshes]
        if name not in LAYOUT_OPTIONS and all(
            each.size == 1 and each.item() == values[0].item() for each in values
        ):
            columns[name] = values[0].reshape(1)
        else:
            shapes = (shape for _, shape in meshes)
            flat = [np.broadcast_to(*each).ravel() for each in zip(values, shapes, strict=True)]
            columns[name] = np.concatenate(flat)
    return StrategyGrid(**columns)


@lru_cache(maxsize=2)
def layout_groups(
    spaces: tuple[Space, ...], limits: Limits
) -> tuple[tuple[LayoutGroup, ...], tuple[Counter[Fault], ...]]:
    """The layouts of spaces by what they allow, and why layouts of each space were left out.

    spaces: of the same choices, at least one; they differ in their accelerators and batches.
    None of a group's combinations is illegal, and a quantity is computed once for all strategies that share
    it. Kept: bounds of the same spaces are asked for after a search.
    """
    groups: dict[_Allowed, list[tuple[int, _Block]]] = defaultdict(list)
    found = [_legal_blocks(space, limits) for space in spaces]
    for number, of_space in enumerate(found):
        for allowed, blocks in of_space.kinds:
            groups[allowed] += [(number, block) for block in blocks]
    return tuple(
        LayoutGroup(layouts=_layouts(of, len(spaces)), layers=layers, states=states)
        for (layers, states), of in groups.items()
    ), tuple(each.faults for each in found)


def forget_layouts() -> None:
    """Forget the layouts that are kept, for whoever times a search."""
    for kept in (layout_groups, _legal_blocks, _legal_combinations, _shared_batches, _by_rounds):
        kept.cache_clear()


# Systems that a question compares often have nodes of one size, and most of their spaces in common.
@lru_cache(maxsize=64)
def _legal_blocks(space: Space, limits: Limits) -> "_LegalBlocks":
    legal = _legal_combinations(replace(space, num_accelerators=1, global_batches=(1,)), limits)
    kinds: dict[tuple[int, int], tuple[_Allowed, list[_Block]]] = {}
    faults, counted = Counter[Fault](), set[tuple[Any, ...]]()
    for block in _blocks(space, limits, faults):
        layers = legal.of_layers(tp=block.tp, cp=block.cp)
        states = legal.of_states(
            tp=block.tp,
            pp=block.pp,
            ranks=block.dp * block.cp,
            has_groups=block.has_groups,
            schedule=block.of.schedule,
            num_microbatches=block.of.num_microbatches,
            kind=block.of.kind,
        )
        for each in (layers, states):
            if each.reason and each.key not in counted:
                counted.add(each.key)
                faults[each.reason] += 1
        if layers.allowed and states.allowed:
            # Equal combinations are one object, whose identity is known at once.
            key = id(layers.allowed), id(states.allowed)
            if key not in kinds:
                kinds[key] = (layers.allowed, states.allowed), []
            kinds[key][1].append(block)
    return _LegalBlocks(tuple(kinds.values()), faults)


@lru_cache(maxsize=4)
def _legal_combinations(space: Space, limits: Limits) -> LegalCombinations:
    """What the choices of a space allow, whatever its sizes."""
    return LegalCombinations(space=space, limits=limits)


class _Batches(NamedTuple):
    """Global batches and micro-batches of a schedule, which all allow the same.

    num_microbatches: of one of them. kind: a number that those of the schedule which allow the same share.
    """

    schedule: str
    num_microbatches: int
    kind: int
    batches: Numbers
    microbatches: Numbers


class _Splits(NamedTuple):
    """Values of ep and dp_replicate that so many ranks of a stage allow, and why the others are left out.

    shares: by whether the ranks make several groups, rows of ep, dp_replicate, the number of ep, and that of
    the row. num_experts: values of ep.
    """

    shares: Mapping[bool, Codes]
    num_experts: int
    faults: Counter[Fault]


class _Block(NamedTuple):
    """Layouts of the same dp, tp, pp, cp and schedule that allow the same.

    place: of the schedule and its micro-batches among those of these axes. shares: all that go with them, in
    one group or in several. axes: the number of all axes' sizes of the space with the first value of ep.
    """

    dp: int
    tp: int
    pp: int
    cp: int
    place: int
    of: _Batches
    has_groups: bool
    shares: Codes
    axes: int


_UNEQUAL_GROUPS = Fault(
    "the chosen dp_replicate does not divide dp, or leaves one rank a group", ("dp_replicate", "dp")
)
_UNEQUAL_EXPERTS = Fault(
    "ep does not divide the ranks of a group of the chosen dp_replicate", ("ep", "dp_replicate")
)
_UNEQUAL_SHARES = Fault("dp does not divide the global batch", ("dp", "global_batch_samples"))
_UNEQUAL_MICROBATCHES = Fault(
    "the chosen microbatch does not divide the samples of a data rank", ("microbatch_samples",)
)
_Allowed: TypeAlias = tuple[Combinations, Combinations]


class _LegalBlocks(NamedTuple):
    """The layouts of one space by the combinations of layer and state options that they allow, and why others
    are left out.
    """

    kinds: Sequence[tuple[_Allowed, Sequence[_Block]]]
    faults: Counter[Fault]


def _blocks(space: Space, limits: Limits, faults: Counter[Fault]) -> Iterator[_Block]:
    """Every way to share the accelerators and the batch out; what is illegal is counted by its reason."""
    shares = [*divisors(limits.experts)] if limits.experts else [1]
    experts = [each for each in shares if space.allows("ep", each)]
    if not experts and limits.experts:
        among = f"the chosen ep is not among {_short(shares)}, which divide the experts"
        faults[Fault(among, ("ep",))] += 1
    elif not experts:
        faults[Fault("the model has no experts, and ep as chosen shares them out", ("ep",))] += 1
    batches = (space.global_batches, space.choices.get("microbatch_samples"))
    schedules = space.values("schedule")
    splits = cache(partial(_splits, limits, tuple(experts)))
    for number, (dp, tp, pp, cp) in enumerate(_shares(space, limits, faults)):
        groups = _group_counts(space, limits, dp=dp, tp=tp, pp=pp, cp=cp)
        if not groups:
            faults[_UNEQUAL_GROUPS] += 1
        found = splits(dp * tp * cp, groups)
        for reason, times in _shared_batches(*batches, dp)[1]:
            faults[reason] += times * found.num_experts
        start = number * len(experts)
        for has_groups, rows in found.shares.items():
            for place, each in enumerate(_by_rounds(*batches, dp, pp, schedules)):
                yield _Block(dp, tp, pp, cp, place, each, has_groups, rows, start)
        if found.faults:
            faults.update(found.faults)


def _splits(limits: Limits, experts: Sequence[int], ranks: int, groups: Sequence[int]) -> _Splits:
    """How so many ranks of one stage are shared out among experts and groups."""
    shares: dict[bool, list[tuple[int, ...]]] = defaultdict(list)
    faults = Counter[Fault]()
    rows, num_experts = count(), 0
    for ep in experts:
        wrong = expert_fault(limits, ranks=ranks, ep=ep)
        if wrong:
            faults[wrong] += 1
            continue
        whole = [each for each in groups if ranks // each % ep == 0]
        if groups and not whole:
            faults[_UNEQUAL_EXPERTS] += 1
        for num_groups in whole:
            shares[num_groups > 1].append((ep, num_groups, num_experts, next(rows)))
        num_experts += 1
    return _Splits({kind: np.array(of) for kind, of in shares.items()}, num_experts, faults)


def _layouts(placed: Sequence[tuple[int, _Block]], num_spaces: int) -> Layouts:
    """The layouts of all blocks, each with the number of its space: by their axes, then by schedule and
    micro-batches.
    """
    blocks = [each for _, each in placed]
    block = np.repeat(np.arange(len(blocks)), [len(each.shares) for each in blocks])
    shares = np.concatenate([each.shares for each in blocks])
    of_block = np.array([(space, each.axes, each.place) for space, each in placed])[block]
    ordered = np.lexsort((of_block[:, 2], shares[:, 3], of_block[:, 1], of_block[:, 0]))
    shares, block, of_block = shares[ordered], block[ordered], of_block[ordered]
    of_each = np.array([len(each.of.batches) for each in blocks])
    first, sizes = np.cumsum(of_each) - of_each, of_each[block]
    # Batches count up within a row of axes: the layout's own number, less that of the row's first layout.
    batch = np.repeat(first[block] - (np.cumsum(sizes) - sizes), sizes)
    batch += np.arange(len(batch))
    axes = np.array([each[:4] for each in blocks], dtype=float)[block]
    share_of_block = np.empty(len(blocks), dtype=np.intp)
    share_of_block[block] = np.arange(len(block))
    return Layouts(
        shares={
            **dict(zip(AXES[:4], axes.T, strict=True)),
            "ep": shares[:, 0].astype(float),
            "dp_replicate": shares[:, 1].astype(float),
            "space": of_block[:, 0],
            "axes": (of_block[:, 1] + shares[:, 2]) * num_spaces + of_block[:, 0],
        },
        batches={
            "microbatch_samples": np.concatenate([each.of.microbatches for each in blocks]),
            "global_batch_samples": np.concatenate([each.of.batches for each in blocks]),
        },
        share_of=np.repeat(share_of_block, of_each),
        share=np.repeat(np.arange(len(block)), sizes),
        batch=batch,
    )


@lru_cache(maxsize=2**16)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, from 1 up."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(dict.fromkeys((*small, *(number // each for each in reversed(small)))))


# Spaces of different sizes have most of their batches in common.
@lru_cache(maxsize=2**12)
def _shared_batches(
    global_batches: tuple[int, ...], microbatches: tuple[Value, ...] | None, dp: int
) -> tuple[Numbers, tuple[tuple[Fault, int], ...]]:
    """Global batches and micro-batches that so many data ranks can share, a pair a row; what is left out.

    microbatches: those to choose from; None where any will do.
    """
    pairs: list[tuple[int, int]] = []
    wrong: Counter[Fault] = Counter()
    for batch in global_batches:
        if batch % dp:
            wrong[_UNEQUAL_SHARES] += 1
            continue
        sizes = divisors(batch // dp)
        if microbatches is not None:
            sizes = tuple(each for each in sizes if each in microbatches)
        if not sizes:
            wrong[_UNEQUAL_MICROBATCHES] += 1
        pairs += [(batch, size) for size in sizes]
    return np.array(pairs, dtype=float).reshape(-1, 2), tuple(wrong.items())


@lru_cache(maxsize=2**14)
def _by_rounds(
    global_batches: tuple[int, ...],
    microbatches: tuple[Value, ...] | None,
    dp: int,
    pp: int,
    schedules: tuple[Value, ...],
) -> tuple[_Batches, ...]:
    """The pairs of each schedule by what their numbers of micro-batches allow (`pipeline_fault`).

    A schedule is a group of its own: what depends on it alone is then one number a mesh.
    """
    pairs, _ = _shared_batches(global_batches, microbatches, dp)
    rounds = pairs[:, 0] / (dp * pairs[:, 1])
    found = []
    for schedule in schedules:
        if schedule in BOTH_ENDS:
            kinds = (rounds >= 2 * pp) * (2 - rounds % 2)
        else:
            needed = OVERLAPPED if schedule == "1f1b_overlap" else 1
            kinds = (rounds % pp == 0) & (rounds >= needed)
        if schedule == "1f1b" or "1f1b" not in schedules:
            parts = sorted(set(kinds.tolist()), reverse=True)
        else:  # what it cannot do, the other does
            runs = pp > 1 or schedule not in BOTH_ENDS
            parts = sorted(set(kinds[kinds > 0].tolist())) if runs else []
        for kind in parts:
            which = kinds == kind
            found.append(_Batches(str(schedule), int(rounds[which][0]), int(kind), *pairs[which].T))
    return tuple(found)


def _shares(space: Space, limits: Limits, faults: Counter[Fault]) -> Iterator[tuple[int, int, int, int]]:
    """Sizes of dp, tp, pp and cp whose product is the number of accelerators."""
    total = space.num_accelerators
    chosen = {name: space.choices[name] for name in ("dp", "tp", "pp", "cp") if name in space.choices}
    any_allowed = False
    for tp in divisors(total):
        left = divisors(total // tp)
        # What is wrong with an axis does not depend on later ones: tp comes first, then cp, then pp.
        of_cp = {cp: axes_fault(limits, tp=tp, pp=1, cp=cp) for cp in left}
        of_pp = {pp: axes_fault(limits, tp=tp, pp=pp, cp=1) for pp in left}
        for pp in left:
            for cp in divisors(total // tp // pp):
                dp = total // tp // pp // cp
                if chosen:
                    sizes = {"dp": dp, "tp": tp, "pp": pp, "cp": cp}
                    if any(sizes[name] not in values for name, values in chosen.items()):
                        continue
                any_allowed = True
                wrong = of_cp[cp] or of_pp[pp]
                if wrong:
                    faults[wrong] += 1
                else:
                    yield dp, tp, pp, cp
    if not any_allowed:
        names = ", ".join(chosen)
        # The same words at every size, so that they are one reason.
        if all(len(values) == 1 for values in chosen.values()):
            least = math.prod(int(values[0]) for values in chosen.values())
            verb = "needs" if len(chosen) == 1 else "need"
            words = f"{names} as chosen {verb} a multiple of {least:,} accelerators"
        else:
            words = f"{names} as chosen cannot make dp x tp x pp x cp the number of accelerators"
        faults[Fault(words, tuple(chosen))] += 1


def _group_counts(space: Space, limits: Limits, *, dp: int, tp: int, pp: int, cp: int) -> tuple[int, ...]:
    """Values of dp_replicate to try, from 1 up: as chosen, or 1 and those of groups in or of whole nodes.

    A free choice goes with ZeRO stage 3 and without a pipeline: lower stages
    exchange as many bytes between nodes either way, once a step, and pipelines gather little.
    Source: Zhang et al. 2022 (MiCS), section 3: groups as small as holds the states keep gathers on fast
    links.
    """
    is_chosen = "dp_replicate" in space.choices
    if not is_chosen and (pp > 1 or WEIGHTS_SHARDED not in space.values("zero_stage")):
        return (1,)
    possible = [each for each in divisors(dp) if 1 < each < dp * cp]
    if is_chosen:
        return tuple(each for each in (1, *possible) if space.allows("dp_replicate", each))
    ranks = tp * cp * dp
    return (1, *(each for each in possible if lies_well(ranks // each, ranks, limits.node_size)))


def lies_well(size: int, ranks: int, node_size: int) -> bool:
    """Whether every group of so many ranks lies in one node, or is whole nodes. ranks: of all groups."""
    return ranks <= node_size or node_size % size == 0 or size % node_size == 0


def _short(numbers: Sequence[int]) -> str:
    """Numbers, the first and the last of many."""
    shown = [str(each) for each in numbers]
    return ", ".join(shown if len(shown) <= _MOST_SHOWN else [*shown[:_MOST_SHOWN], "...", shown[-1]])

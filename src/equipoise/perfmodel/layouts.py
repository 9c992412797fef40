"""Strategies as arrays, and the enumeration of all layouts of ranks and batches that a space allows."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
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
    LegalValues,
    Limits,
    Space,
    axes_fault,
    expert_fault,
)
from equipoise.spec.strategy import (
    ALL_OFFLOADED,
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

# Categorical options: a value's code is its position in the tuple.
CODES = CHOICES
_, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = range(3)
_, ONE_OVERLAP, DUALPIPE, DUALPIPE_V = range(4)
USUAL_TARGETS, QUERY_VALUE, ATTENTION, ALL_LINEAR = range(len(LORA_TARGETS))
FULL_TRAINING, LORA, QLORA = (TRAINED.index(name) for name in ("full", "lora", "qlora"))
OFFLOAD_NONE, OFFLOAD_ALL = (CODES["offload"].index(name) for name in ("none", ALL_OFFLOADED))
_MAX_SHOWN = 4
# Elements of an array: larger arrays gain little speed and take more memory (docs/experiments/0008).
MESH_ELEMENTS = 2**17


class StrategyGrid(Struct, frozen=True, kw_only=True):
    """Many strategies: the fields of `Strategy`, each an array that broadcasts against the others.

    Counts are float64, to avoid overflow and integer division; categorical options are integer codes (CODES).
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
        """Shape to which all fields broadcast."""
        return np.broadcast_shapes(*(getattr(self, name).shape for name in self.__struct_fields__))

    @property
    def num_accelerators(self) -> Numbers:
        """Accelerators that each strategy uses."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def held_stage(self) -> Numbers:
        """ZeRO stage in effect between the first and the last micro-batch of a step: at most 1 in a pipeline.

        Source: torch.distributed.pipelining (stage.py, backward_maybe_with_nosync): in modules sharded by
        FSDP, weights stay gathered after a backward pass, and gradients unsharded until the last one; Llama
        team 2024, section 3.3.2 (model shards are not resharded after the forward pass).
        """
        if np.max(self.pp) <= 1 or np.max(self.zero_stage) < GRADIENTS_SHARDED:
            return self.zero_stage
        return np.asarray(np.where(self.pp > 1, np.minimum(self.zero_stage, 1.0), self.zero_stage))

    @property
    def accumulates_unsharded(self) -> NDArray[np.bool_]:
        """Whether gradients are accumulated unsharded during a step and sharded after it."""
        return np.asarray((self.whole_gradients > 0) & (self.held_stage >= GRADIENTS_SHARDED))

    @property
    def adapted_layers(self) -> Codes:
        """Codes of the layers with adapters: `spec.strategy.adapted_layers` for arrays."""
        usual = np.where(self.trained == QLORA, ALL_LINEAR, ATTENTION)
        return np.asarray(np.where(self.lora_targets == USUAL_TARGETS, usual, self.lora_targets))

    @property
    def num_microbatches(self) -> Numbers:
        """Micro-batches per dp rank and step."""
        return self.global_batch_samples / (self.dp * self.microbatch_samples)


def grid(strategies: Sequence[Strategy]) -> StrategyGrid:
    """Strategies as flat rows: every field of shape (n_strategies,)."""
    names = StrategyGrid.__struct_fields__
    return StrategyGrid(
        **{name: _column(name, [getattr(each, name) for each in strategies]) for name in names}
    )


def _column(name: str, values: Sequence[Value]) -> NDArray[Any]:
    """Values of an option as numbers; categorical values as their codes."""
    if name in CODES:
        return np.array([CODES[name].index(str(value)) for value in values], dtype=np.intp)
    return np.array(values, dtype=float)


class Layouts(Struct, frozen=True, kw_only=True):
    """Axis sizes and batch sizes of layouts, which every other option is combined with.

    Many layouts have sizes in common, so each combination is stored once. shares: how the accelerators are
    shared out, by name: sizes of AXES and dp_replicate, each (n_shares,); `space`, index of the space;
    `axes`,
    an identifier of the axis sizes: layouts with the same one differ only in dp_replicate and batches.
    batches: microbatch_samples and global_batch_samples, each (n_batches,). share, batch: each layout's index
    into them, (n_layouts,). Layouts with the same batch index differ only in ep and dp_replicate: share_of is
    one of their shares, (n_batches,).
    """

    shares: Mapping[str, NDArray[Any]]
    batches: Mapping[str, Numbers]
    share_of: Codes
    share: Codes
    batch: Codes

    def __len__(self) -> int:
        """Number of layouts."""
        return len(self.share)

    def column(self, name: str) -> NDArray[Any]:
        """One of the sizes, or `space` or `axes`, of every layout: (n_layouts,)."""
        known = self.shares.get(name)
        return self.batches[name].take(self.batch) if known is None else known.take(self.share)

    def at(self, which: Codes | slice) -> "Layouts":
        """The layouts at these positions, in the order given."""
        return replace(self, share=self.share[which], batch=self.batch[which])

    def each_share(self) -> "Layouts":
        """One layout for each share, with an arbitrary batch."""
        num_shares = len(self.shares["space"])
        return replace(self, share=np.arange(num_shares), batch=np.zeros(num_shares, dtype=np.intp))

    def each_batch(self) -> "Layouts":
        """One layout for each batch."""
        return replace(self, share=self.share_of, batch=np.arange(len(self.share_of)))

    def codes(self, names: Sequence[str], also: Numbers | None = None) -> Codes:
        """An integer code for every layout, equal where these sizes are equal: (n_layouts,).

        also: another size of every layout, (n_layouts,).
        """
        parts = [] if also is None else [_factorized(also)]
        for sizes, which in ((self.shares, self.share), (self.batches, self.batch)):
            some = [_factorized(sizes[name]) for name in names if name in sizes]
            if some:
                of_sizes, num_different = _combined_codes(some)
                parts.append((of_sizes.take(which), num_different))
        return _combined_codes(parts)[0]


def _combined_codes(parts: Sequence[tuple[Codes, int]]) -> tuple[Codes, int]:
    """Combine integer codes into one, equal where all are equal; and the number of possible codes."""
    numbers, num_different = parts[0]
    for places, num_values in parts[1:]:
        numbers = numbers * num_values
        numbers += places
        num_different *= num_values
    return numbers, num_different


def _factorized(sizes: Numbers) -> tuple[Codes, int]:
    """Integer codes of whole-numbered sizes, equal for equal sizes, and the number of distinct codes."""
    positions, numbers = distinct(sizes.astype(np.intp))
    return numbers, len(positions)


def concatenated(parts: Sequence[Layouts]) -> Layouts:
    """The layouts of all parts, in order; `parts` must not be empty."""

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
    """A position of each distinct number, and the index of every number among these; at least one number."""
    num_possible = int(numbers.max()) + 1
    if num_possible > max(2**12, 16 * len(numbers)):  # sorting is faster than a table of all possible numbers
        _, positions, which = np.unique(numbers, return_index=True, return_inverse=True)
        return positions, which
    position = np.full(num_possible, -1)
    position[numbers] = np.arange(len(numbers))
    is_present = position >= 0
    return position[is_present], (np.cumsum(is_present) - 1)[numbers]


class LayoutGroup(Struct, frozen=True, kw_only=True):
    """Layouts that allow the same combinations of LAYER_OPTIONS and of STATE_OPTIONS."""

    layouts: Layouts
    layers: Combinations
    states: Combinations

    @property
    def num_each(self) -> int:
        """Strategies per layout."""
        return len(self.layers) * len(self.states)

    def only(self, layers: Sequence[int], states: Sequence[int]) -> "LayoutGroup":
        """The same layouts with only the combinations at these indices."""
        return replace(
            self,
            layers=tuple(self.layers[each] for each in layers),
            states=tuple(self.states[each] for each in states),
        )

    def allowing(self, values: Mapping[str, Collection[Value]]) -> "LayoutGroup":
        """The same layouts with only the combinations that have one of the given values of each option."""
        return replace(
            self,
            layers=_allowing(LAYER_OPTIONS, self.layers, values),
            states=_allowing(STATE_OPTIONS, self.states, values),
        )

    def with_value(self, name: str, value: Value) -> "LayoutGroup":
        """The same layouts with a layer or state option set to `value` in every combination, legal or not."""
        if name in LAYER_OPTIONS:
            return replace(self, layers=_with_value(self.layers, LAYER_OPTIONS.index(name), value))
        return replace(self, states=_with_value(self.states, STATE_OPTIONS.index(name), value))

    def at(self, which: Codes) -> "LayoutGroup":
        """The layouts at these positions, with the same combinations."""
        return replace(self, layouts=self.layouts.at(which))

    def strategy(self, layout: int, layer: int, state: int) -> Strategy:
        """The strategy with this layout, layer options and state options, each given by index."""
        alone = self.layouts.at(slice(layout, layout + 1))
        sizes = {name: int(alone.column(name)[0]) for name in LAYOUT_OPTIONS}
        layers = dict(zip(LAYER_OPTIONS, self.layers[layer], strict=True))
        states = dict(zip(STATE_OPTIONS, self.states[state], strict=True))
        return Strategy(**sizes, **layers, **states)  # type: ignore[arg-type]

    def parts(self, max_elements: int) -> Iterator[tuple[slice, "LayoutGroup"]]:
        """Yield slices of layouts and the part of the group with them, of at most about `max_elements`."""
        num_layouts = max(1, max_elements // self.num_each)
        for start in range(0, len(self.layouts), num_layouts):
            which = slice(start, start + num_layouts)
            yield which, replace(self, layouts=self.layouts.at(which))

    def mesh(self) -> StrategyGrid:
        """The strategies as an open mesh: (n_layers, n_states, n_layouts)."""
        return _mesh(self.layouts, self.layers, self.states)


def computed_once(
    kinds: Sequence[Hashable],
    groups: Sequence[LayoutGroup],
    *,
    codes_of: Callable[[Layouts], Codes],
    compute: Callable[[LayoutGroup], Numbers],
) -> list[tuple[Numbers, Codes]]:
    """By group, a quantity of its distinct layouts, and the index of each of its layouts among these.

    The quantity is computed once for equal layouts of all groups. kinds: equal for groups in which equal
    sizes give equal quantities. codes_of: integer codes of layouts, equal where the quantity is. compute:
    returns the quantity of a group, layouts on the last axis.
    """
    same_kind: dict[Hashable, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds):
        same_kind[kind].append(number)
    found: dict[int, tuple[Numbers, Codes]] = {}
    for numbers in same_kind.values():
        parts = [groups[number].layouts for number in numbers]
        layouts = concatenated(parts)
        different, which = distinct(codes_of(layouts))
        group = replace(groups[numbers[0]], layouts=layouts.at(different))
        values = np.concatenate([compute(part) for _, part in group.parts(MESH_ELEMENTS)], axis=-1)
        of_parts = np.split(which, np.cumsum([len(part) for part in parts])[:-1])
        found |= {number: (values, rows) for number, rows in zip(numbers, of_parts, strict=True)}
    return [found[number] for number in range(len(groups))]


def _allowing(
    names: tuple[str, ...], combined: Combinations, values: Mapping[str, Collection[Value]]
) -> Combinations:
    """The combinations that have one of the given values of each option."""
    asked = [(names.index(name), allowed) for name, allowed in values.items() if name in names]
    return tuple(each for each in combined if all(each[index] in allowed for index, allowed in asked))


def _with_value(combined: Combinations, index: int, value: Value) -> Combinations:
    """Distinct combinations after one option is set to `value`."""
    return tuple(dict.fromkeys((*each[:index], value, *each[index + 1 :]) for each in combined))


def _mesh(layouts: Layouts, layers: Combinations, states: Combinations) -> StrategyGrid:
    # Layouts are the last axis, as the most numerous: NumPy is several times slower if the last axis is
    # short.
    columns: dict[str, Any] = {name: layouts.column(name)[None, None, :] for name in LAYOUT_OPTIONS}
    columns.update(_columns(LAYER_OPTIONS, layers, (-1, 1, 1)))
    columns.update(_columns(STATE_OPTIONS, states, (1, -1, 1)))
    return StrategyGrid(**columns)


@lru_cache(maxsize=1024)
def _columns(
    names: tuple[str, ...], combined: Combinations, shape: tuple[int, ...]
) -> Mapping[str, NDArray[Any]]:
    """The values of options along one axis of a mesh, by name; cached, because many groups share them.

    An option with a single value becomes one element, so that nothing is computed per combination for it.
    """
    columns = {}
    for name, values in zip(names, zip(*combined, strict=True), strict=True):
        codes = _column(name, values)
        columns[name] = (codes[:1] if len(set(values)) == 1 else codes).reshape(shape)
    return MappingProxyType(columns)


def flat_rows(groups: Sequence[LayoutGroup]) -> StrategyGrid:
    """The strategies of all groups in order: fields of shape (n_strategies,).

    An option with the same single value in all groups is one element.
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
    """The layouts of spaces grouped by the combinations they allow, and by space why others are illegal.

    spaces: at least one, with the same choices; they differ in their accelerators and batches.
    All combinations of a group are legal. Cached, because bounds of the same spaces are needed after a
    search.
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


def clear_layout_caches() -> None:
    """Clear all caches of layouts, so that a search can be timed."""
    for kept in (layout_groups, _legal_blocks, _legal_combinations, _shared_batches, _batches_by_schedule):
        kept.cache_clear()


# Systems compared in one question often share a node size, so most of their search spaces are identical.
@lru_cache(maxsize=64)
def _legal_blocks(space: Space, limits: Limits) -> "_LegalBlocks":
    faults = Counter[Fault]()
    experts = _expert_sizes(space, limits, faults)
    splits = cache(partial(_splits, limits, experts))
    options = _OptionsOfSizes(space, limits, faults)
    # By identity, which is faster to compare than values: equal combinations are the same object.
    layers_of: dict[int, Combinations] = {}
    kinds: dict[tuple[int, int], list[_Block]] = defaultdict(list)
    times = Counter[int]()
    for number, sizes in enumerate(_axis_sizes(space, limits, faults)):
        dp, tp, pp, cp = sizes
        groups = _group_counts(space, limits, dp=dp, tp=tp, pp=pp, cp=cp)
        if not groups:
            faults[_UNEQUAL_GROUPS] += 1
        found = splits(dp * tp * cp, groups)
        if found.faults:
            faults.update(found.faults)
        times[dp] += found.num_experts
        layers = options.of_layers(tp, cp)
        layers_of[id(layers)] = layers
        for num_groups, shares in found.shares.items():
            for of in options.of_states(dp, min(tp, 2), pp, min(dp * cp, 2), num_groups):
                if layers:
                    kinds[id(layers), id(of.states)].append(_Block(sizes, number * len(experts), shares, of))
    for dp, num_times in times.items():
        for reason, of_each in options.batch_faults(dp):
            faults[reason] += num_times * of_each
    allowed = [(layers_of[key], blocks[0].of.states) for (key, _), blocks in kinds.items()]
    return _LegalBlocks([*zip(allowed, kinds.values(), strict=True)], faults)


@lru_cache(maxsize=4)
def _legal_combinations(space: Space, limits: Limits) -> LegalCombinations:
    """Combinations that the choices of a space allow; they do not depend on its sizes."""
    return LegalCombinations(space=space, limits=limits)


class _Batches(NamedTuple):
    """Global batches and micro-batches of a schedule that all allow the same combinations.

    num_microbatches: micro-batches per step of one of them. kind: identifies, within the schedule, the
    combinations allowed.
    """

    schedule: str
    num_microbatches: int
    kind: int
    global_batches: Numbers
    microbatches: Numbers


class _Splits(NamedTuple):
    """Values of ep and dp_replicate that the ranks of a stage allow, and why the others are illegal.

    shares: by number of replica groups (2 stands for several), rows of (ep, dp_replicate, index of ep, index
    of the row).
    num_experts: number of values of ep.
    """

    shares: Mapping[int, Codes]
    num_experts: int
    faults: Counter[Fault]


class _StatesOfBatches(NamedTuple):
    """State options that batches allow with some axis sizes.

    place: index of the batches among those of these sizes.
    """

    states: Combinations
    place: int
    batches: _Batches


class _Block(Struct, frozen=True, gc=False):
    """Layouts with the same axis sizes and schedule that allow the same combinations.

    sizes: dp, tp, pp and cp. axes: identifier of these with the first value of ep. shares: rows of
    `_Splits.shares`, with one replica group or with several.
    """

    sizes: tuple[int, int, int, int]
    axes: int
    shares: Codes
    of: _StatesOfBatches


_UNEQUAL_GROUPS = Fault(
    "the chosen dp_replicate does not divide dp, or leaves one rank per group", ("dp_replicate", "dp")
)
_UNEQUAL_EXPERTS = Fault(
    "ep does not divide the ranks of a group of the chosen dp_replicate", ("ep", "dp_replicate")
)
_UNEQUAL_SHARES = Fault("dp does not divide the global batch", ("dp", "global_batch_samples"))
_UNEQUAL_MICROBATCHES = Fault(
    "the chosen microbatch does not divide the samples of a data rank", ("microbatch_samples",)
)
_Allowed: TypeAlias = tuple[Combinations, Combinations]


class _OptionsOfSizes:
    """The layer and state options that axis sizes of a space allow.

    faults: counts, once each, why sizes allow none. Results are cached by the values on which they depend,
    because a search has thousands of sizes.
    """

    def __init__(self, space: Space, limits: Limits, faults: Counter[Fault]) -> None:
        self._legal = _legal_combinations(replace(space, num_accelerators=1, global_batches=(1,)), limits)
        self._batches = (space.global_batches, space.choices.get("microbatch_samples"))
        self._schedules = space.values("schedule")
        self._faults = faults
        self._counted: set[tuple[Any, ...]] = set()
        self.of_layers = cache(self._of_layers)
        self.of_states = cache(self._of_states)

    def batch_faults(self, dp: int) -> Iterable[tuple[Fault, int]]:
        """Why batches cannot be distributed over dp ranks, and how many."""
        return _shared_batches(*self._batches, dp)[1]

    def _of_layers(self, tp: int, cp: int) -> Combinations:
        return self._allowed(self._legal.of_layers(tp=tp, cp=cp))

    def _of_states(self, dp: int, tp: int, pp: int, ranks: int, groups: int) -> list[_StatesOfBatches]:
        """The state options that the batches of these sizes allow.

        ranks: that hold the same weights. Of tp, ranks and groups, 2 stands for all larger values.
        """
        found = []
        for place, each in enumerate(_batches_by_schedule(*self._batches, dp, pp, self._schedules)):
            states = self._legal.of_states(
                tp=tp,
                pp=pp,
                ranks=ranks,
                has_groups=groups > 1,
                schedule=each.schedule,
                num_microbatches=each.num_microbatches,
                kind=each.kind,
            )
            if self._allowed(states):
                found.append(_StatesOfBatches(states.allowed, place, each))
        return found

    def _allowed(self, found: LegalValues) -> Combinations:
        if found.reason and found.key not in self._counted:
            self._counted.add(found.key)
            self._faults[found.reason] += 1
        return found.allowed


class _LegalBlocks(NamedTuple):
    """The layouts of a space by the layer and state options they allow, and why others are illegal."""

    kinds: Sequence[tuple[_Allowed, Sequence[_Block]]]
    faults: Counter[Fault]


def _expert_sizes(space: Space, limits: Limits, faults: Counter[Fault]) -> tuple[int, ...]:
    """Values of ep to try; where there are none, `faults` counts why."""
    possible = divisors(limits.experts) if limits.experts else (1,)
    experts = tuple(each for each in possible if space.allows("ep", each))
    if not experts and limits.experts:
        among = f"the chosen ep is not among {_abbreviated(possible)}, which divide the experts"
        faults[Fault(among, ("ep",))] += 1
    elif not experts:
        faults[Fault("ep is chosen above 1, but the model has no experts", ("ep",))] += 1
    return experts


def _splits(limits: Limits, experts: Sequence[int], ranks: int, groups: Sequence[int]) -> _Splits:
    """Ways to distribute the ranks of one stage over expert parallelism and replica groups."""
    shares: dict[int, list[tuple[int, ...]]] = defaultdict(list)
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
            shares[min(num_groups, 2)].append((ep, num_groups, num_experts, next(rows)))
        num_experts += 1
    return _Splits({kind: np.array(of) for kind, of in shares.items()}, num_experts, faults)


def _layouts(placed: Sequence[tuple[int, _Block]], num_spaces: int) -> Layouts:
    """The layouts of blocks, each given with its space's index, ordered by axes, schedule and micro-batch."""
    blocks = [each for _, each in placed]
    block = np.repeat(np.arange(len(blocks)), [len(each.shares) for each in blocks])
    shares = np.concatenate([each.shares for each in blocks])
    of_block = np.array([(space, each.axes, each.of.place) for space, each in placed])[block]
    ordered = np.lexsort((of_block[:, 2], shares[:, 3], of_block[:, 1], of_block[:, 0]))
    shares, block, of_block = shares[ordered], block[ordered], of_block[ordered]
    of_each = np.array([len(each.of.batches.global_batches) for each in blocks])
    first, sizes = np.cumsum(of_each) - of_each, of_each[block]
    # The batch index counts up within a row of axes: layout index minus that of the row's first layout.
    batch = np.repeat(first[block] - (np.cumsum(sizes) - sizes), sizes)
    batch += np.arange(len(batch))
    axes = np.array([each.sizes for each in blocks], dtype=float)[block]
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
            "microbatch_samples": np.concatenate([each.of.batches.microbatches for each in blocks]),
            "global_batch_samples": np.concatenate([each.of.batches.global_batches for each in blocks]),
        },
        share_of=np.repeat(share_of_block, of_each),
        share=np.repeat(np.arange(len(block)), sizes),
        batch=batch,
    )


@lru_cache(maxsize=2**16)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return tuple(dict.fromkeys((*small, *(number // each for each in reversed(small)))))


# Spaces of different sizes share most of their batches.
@lru_cache(maxsize=2**12)
def _shared_batches(
    global_batches: tuple[int, ...], microbatches: tuple[Value, ...] | None, dp: int
) -> tuple[Numbers, tuple[tuple[Fault, int], ...]]:
    """Rows of (global batch, micro-batch) that divide evenly over dp ranks, and faults of other batches.

    microbatches: allowed values; None allows all.
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
def _batches_by_schedule(
    global_batches: tuple[int, ...],
    microbatches: tuple[Value, ...] | None,
    dp: int,
    pp: int,
    schedules: tuple[Value, ...],
) -> tuple[_Batches, ...]:
    """Batches of each schedule, grouped by what their number of micro-batches allows (`pipeline_fault`).

    Each schedule has its own groups, so that quantities that depend on it alone are scalars in a mesh.
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
        else:  # 1f1b covers the batches that this schedule cannot run
            runs = pp > 1 or schedule not in BOTH_ENDS
            parts = sorted(set(kinds[kinds > 0].tolist())) if runs else []
        for kind in parts:
            which = kinds == kind
            found.append(_Batches(str(schedule), int(rounds[which][0]), int(kind), *pairs[which].T))
    return tuple(found)


def _axis_sizes(space: Space, limits: Limits, faults: Counter[Fault]) -> Iterator[tuple[int, int, int, int]]:
    """Yield sizes of dp, tp, pp and cp whose product is the number of accelerators."""
    total = space.num_accelerators
    chosen = {name: space.choices[name] for name in ("dp", "tp", "pp", "cp") if name in space.choices}
    any_allowed = False
    for tp in divisors(total):
        left = divisors(total // tp)
        # The fault of an axis does not depend on later axes; the order is tp, cp, pp.
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
        # The wording is the same at every size, so that faults are counted under one reason.
        if all(len(values) == 1 for values in chosen.values()):
            least = math.prod(int(values[0]) for values in chosen.values())
            verb = "needs" if len(chosen) == 1 else "need"
            words = f"{names} as chosen {verb} a multiple of {least:,} accelerators"
        else:
            words = f"{names} as chosen cannot make dp x tp x pp x cp the number of accelerators"
        faults[Fault(words, tuple(chosen))] += 1


def _group_counts(space: Space, limits: Limits, *, dp: int, tp: int, pp: int, cp: int) -> tuple[int, ...]:
    """Values of dp_replicate to try, ascending: the chosen ones, or 1 and those aligned with nodes.

    Without a choice, values above 1 are tried only with ZeRO stage 3 and without a pipeline: lower stages
    send the same bytes between nodes once per step either way, and pipelines gather little.
    Source: Zhang et al. 2022 (MiCS), section 3: the smallest groups that hold the states keep gathers on fast
    links.
    """
    is_chosen = "dp_replicate" in space.choices
    if not is_chosen and (pp > 1 or WEIGHTS_SHARDED not in space.values("zero_stage")):
        return (1,)
    possible = [each for each in divisors(dp) if 1 < each < dp * cp]
    if is_chosen:
        return tuple(each for each in (1, *possible) if space.allows("dp_replicate", each))
    ranks = tp * cp * dp
    return (1, *(each for each in possible if is_node_aligned(ranks // each, ranks, limits.node_size)))


def is_node_aligned(size: int, ranks: int, node_size: int) -> bool:
    """Whether every group of `size` ranks is inside one node or fills whole nodes. ranks: of all groups."""
    return ranks <= node_size or node_size % size == 0 or size % node_size == 0


def _abbreviated(numbers: Sequence[int]) -> str:
    """Numbers as text; of many only the first few and the last."""
    shown = [str(each) for each in numbers]
    return ", ".join(shown if len(shown) <= _MAX_SHOWN else [*shown[:_MAX_SHOWN], "...", shown[-1]])

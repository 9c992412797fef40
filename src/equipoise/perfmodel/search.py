"""Branch-and-bound search for the fastest strategies that fit into memory, over several spaces at once.

Some option values can never make a step shorter than another value. If a layout's fastest combination,
ignoring memory, also fits, its other combinations are not evaluated; otherwise only those that could still
win are. tests/perfmodel/test_search.py checks each of these rules.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.perfmodel.estimate import estimate, host_copies_s, layer_seconds, least_step_s
from equipoise.perfmodel.layouts import (
    CODES,
    Codes,
    LayoutGroup,
    computed_once,
    flat_rows,
    layout_groups,
)
from equipoise.perfmodel.load import Load, Numbers
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.memory import (
    Fitting,
    FittingCount,
    all_fitting,
    any_fits,
    by_activations,
    count_fitting,
    shards,
)
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.space import LAYER_OPTIONS, STATE_OPTIONS, Combinations, Fault, Space, limits
from equipoise.spec.strategy import Strategy, Value

_Values: TypeAlias = dict[str, Any]
# Selects layer options and state options of a group, each by index.
_Options: TypeAlias = Callable[[LayoutGroup, Parameters], tuple[Sequence[int], Sequence[int]]]

# Strategies evaluated in one table.
_ROWS_AT_ONCE = 2**14
# Layouts evaluated in the first round; each later round doubles the number.
_FIRST_ROUND = 1024
# Values sampled to estimate the cut-off of the lowest ones.
_SAMPLE_SIZE = 2**14
# ZeRO stages that shard no weights, fastest first: sharded states shorten the optimizer's step, sharded
# gradients do not, and traffic is the same as without ZeRO (Rajbhandari et al. 2020, section 7).
_WHOLE_WEIGHTS = (1, 2, 0)
# Sizes on which a layer's time for one micro-batch depends.
_LAYER_SIZES = ("tp", "cp", "ep", "microbatch_samples")


class SearchJob(Struct, frozen=True, kw_only=True):
    """What is trained, on which machine and with which calibration.

    load, machine: fields are scalars. num_steps: training steps by global batch, (n,) -> (n,).
    """

    load: Load
    machine: Machine
    parameters: Parameters
    num_steps: Callable[[Numbers], Numbers]

    def layout_groups(
        self, spaces: Sequence[Space]
    ) -> tuple[tuple[LayoutGroup, ...], tuple[Counter[Fault], ...]]:
        """The legal layouts of spaces with the same choices, and by space why other layouts are illegal."""
        return layout_groups(tuple(spaces), limits(self.load, self.machine).asked_by(spaces[0]))


class FoundStrategy(Struct, frozen=True, kw_only=True):
    """A strategy and the time of all training steps with it."""

    strategy: Strategy
    training_s: float


class SearchResult(Struct, frozen=True, kw_only=True):
    """Result of a search. num_legal, num_fitting: numbers of legal strategies, and of those that fit.

    best: the best strategy for each combination of axis sizes, fastest first. nearest_bytes: least memory
    needed by a strategy that does not fit; None where all fit. faults: number of illegal layouts by reason.
    """

    num_legal: int
    num_fitting: int
    best: tuple[FoundStrategy, ...]
    nearest_bytes: float | None
    faults: Counter[Fault]


def fastest(job: SearchJob, spaces: Sequence[Space], *, num_best: int = 1) -> tuple[SearchResult, ...]:
    """The strategies of each space with the shortest training time.

    spaces: at least one, with the same choices and different sizes.
    Assumes a step is never shorter with recomputation, with less overlap, with activations, optimizer states
    or weights offloaded to the host, or with unsharded optimizer states; and memory is never lower with less
    overlap or unsharded states.
    Source: branch and bound (Land and Doig 1960): a layout's lower bound is the best its options can reach.
    """
    legal, faults = job.layout_groups(spaces)
    groups = by_activations(job.load, legal)
    counts, best = _search(job, groups, len(spaces), num_best)
    return tuple(
        SearchResult(
            num_legal=counted.num_legal,
            num_fitting=counted.num_fitting,
            best=found,
            nearest_bytes=counted.nearest_bytes,
            faults=wrong,
        )
        for found, counted, wrong in zip(best, counts, faults, strict=True)
    )


def faster(
    job: SearchJob,
    spaces: Sequence[Space],
    to_beat_s: Mapping[int, float],
    *,
    name: str,
    value: Value,
    allowed: Mapping[str, Collection[Value]],
    num_best: int = 1,
) -> dict[int, tuple[FoundStrategy, ...]]:
    """The fastest strategies with another value of one option, for spaces where they beat a given time.

    spaces: as just searched by `fastest`, without this value. to_beat_s: threshold by the index of each space
    to search. allowed: values of other layer and state options; the space's own where not given. Only layouts
    whose lower bound is below the threshold are evaluated, a small part of a full search; spaces without any
    are left out of the result.
    Assumes as in `fastest`, and that the value changes no layout's legality. Source: as in `fastest`.
    """
    limit_s = np.zeros(len(spaces))
    limit_s[[*to_beat_s]] = [*to_beat_s.values()]
    changed = [
        group.at(which).with_value(name, value)
        for group in (each.allowing(allowed) for each in job.layout_groups(spaces)[0])
        if group.num_each and len(which := np.flatnonzero(limit_s.take(group.layouts.column("space")) > 0.0))
    ]
    bounded = _with_lower_bounds(job, changed, [all_fitting(group) for group in changed])
    if bounded is None:
        return {}
    spare_s = limit_s.take(bounded.space) - bounded.lower_s
    low = np.flatnonzero(spare_s > 0.0)
    of_group = bounded.group.take(low)
    left = []
    for each in _distinct(of_group):
        mine = low[of_group == each]
        group = changed[each].at(bounded.layout.take(mine))
        left.append(group.at(np.flatnonzero(_host_copies_s(job, group) < spare_s.take(mine))))
    _, best = _search(job, by_activations(job.load, left), len(spaces), num_best)
    reached = {int(each) for group in left for each in _distinct(group.layouts.column("space"))}
    return {
        each: best[each] if best[each] and best[each][0].training_s < to_beat_s[each] else ()
        for each in sorted(reached)
    }


def _host_copies_s(job: SearchJob, group: LayoutGroup) -> Numbers:
    """Least time for copying offloaded weights by layout, which lower bounds do not count."""
    mesh = group.mesh()
    copies_s = host_copies_s(job.machine, mesh, shards(job.load, mesh))
    copies_s = np.broadcast_to(copies_s, mesh.shape).min(axis=(0, 1))
    return np.asarray(copies_s * job.num_steps(group.layouts.column("global_batch_samples")))


def _search(
    job: SearchJob, groups: Sequence[LayoutGroup], num_spaces: int, num_best: int
) -> tuple[list[FittingCount], list[tuple[FoundStrategy, ...]]]:
    """By space, how many strategies fit, and the best ones. groups: from `by_activations`."""
    counts, fitting = count_fitting(
        job.load, job.machine, job.parameters, groups=groups, num_spaces=num_spaces
    )
    bounded = _with_lower_bounds(job, groups, fitting)
    if bounded is None:
        return counts, [()] * num_spaces
    candidates = _promising(job, groups, bounded, num_best)
    _evaluate_remaining(job, groups, candidates, num_best)
    return counts, [candidates.best(groups, space, num_best) for space in range(num_spaces)]


def fits(job: SearchJob, space: Space) -> bool:
    """Whether any strategy of a space fits into memory."""
    groups, _ = job.layout_groups([space])
    return any_fits(job.load, job.machine, job.parameters, by_activations(job.load, groups))


def _distinct(numbers: Codes) -> list[int]:
    """Distinct values among small non-negative integers, ascending."""
    present: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return present


class _Candidates(Struct, kw_only=True):
    """Layouts of all groups in which any strategy fits: arrays of shape (n_layouts,).

    group, layout: index of the group, and of the layout in it. lower_s: lower bound of the training time.
    value_s, layer, state: for an evaluated layout, the time of its fastest fitting strategy (infinite where
    none fits), and the indices of that strategy's layer and state options.
    """

    group: Codes
    layout: Codes
    space: Codes
    axes: Codes
    lower_s: Numbers
    value_s: Numbers
    layer: Codes
    state: Codes

    def at(self, which: Codes) -> "_Candidates":
        """Some of the layouts, in the order given."""
        return _Candidates(**{name: getattr(self, name).take(which) for name in self.__struct_fields__})

    def thresholds_s(self, known: Codes, num_best: int) -> tuple[Numbers, Numbers]:
        """Times that a layout must beat to change the result: the best by axes, and the worst kept by space.

        known: indices of the evaluated layouts.
        """
        axes, space = self.axes.take(known), self.space.take(known)
        by_axes = np.full(int(self.axes.max()) + 1, np.inf)
        np.minimum.at(by_axes, axes, self.value_s.take(known))
        space_of = np.full(len(by_axes), -1)
        space_of[axes] = space
        worst = np.full(int(self.space.max()) + 1, np.inf)
        for each in _distinct(space):
            values = by_axes[space_of == each]
            if len(values) >= num_best:
                worst[each] = np.partition(values, num_best - 1)[num_best - 1]
        return by_axes, worst

    def best(self, groups: Sequence[LayoutGroup], space: int, num_best: int) -> tuple[FoundStrategy, ...]:
        """The best strategy of a space for each combination of axis sizes, fastest first."""
        mine = np.flatnonzero((self.space == space) & np.isfinite(self.value_s))
        ordered = mine[np.argsort(self.value_s[mine], kind="stable")]
        _, firsts = np.unique(self.axes[ordered], return_index=True)
        leaders = ordered[np.sort(firsts)[:num_best]]
        return tuple(
            FoundStrategy(
                strategy=groups[self.group[each]].strategy(
                    self.layout[each], self.layer[each], self.state[each]
                ),
                training_s=float(self.value_s[each]),
            )
            for each in leaders.tolist()
        )


def _with_lower_bounds(
    job: SearchJob, groups: Sequence[LayoutGroup], fitting: Sequence[Fitting]
) -> _Candidates | None:
    """Every layout in which any strategy fits, with its lower bound, not yet evaluated; None without any.

    fitting: by group, which strategies of each layout fit.
    """
    which = [np.flatnonzero(each.with_any_layer) for each in fitting]
    numbers = [number for number, rows in enumerate(which) if len(rows)]
    if not numbers:
        return None
    some = [groups[number].at(which[number]) for number in numbers]
    states = [_smallest_bubble(group.states) for group in some]
    sizes = [len(group.layouts) for group in some]
    lower_s = np.empty(sum(sizes))
    slices = [slice(end - size, end) for end, size in zip(np.cumsum(sizes), sizes, strict=True)]
    layer_seconds_of = _layer_seconds(job, some, states)
    for place, (group, number) in enumerate(zip(some, numbers, strict=True)):
        seconds, of_layouts = layer_seconds_of[place]
        layer_s = np.full(len(group.layouts), np.inf)
        for layer, each_s in seconds.items():
            fits = fitting[number].by_layer[fitting[number].layer[layer]].take(which[number])
            np.minimum(layer_s, each_s.take(of_layouts), out=layer_s, where=fits)
        np.multiply(layer_s, _min_layer_passes(job, group, states[place]), out=lower_s[slices[place]])
    return _Candidates(
        group=np.repeat(numbers, sizes),
        layout=np.concatenate([which[number] for number in numbers]),
        space=np.concatenate([group.layouts.column("space") for group in some]),
        axes=np.concatenate([group.layouts.column("axes") for group in some]),
        lower_s=lower_s,
        value_s=np.zeros(len(lower_s)),
        layer=np.zeros(len(lower_s), dtype=np.intp),
        state=np.zeros(len(lower_s), dtype=np.intp),
    )


def _min_layer_passes(job: SearchJob, group: LayoutGroup, states: Sequence[int]) -> Numbers:
    """Lower bound of the training time by layout, as a multiple of the seconds of one layer.

    states: indices of the state options with the shortest bubble.
    """
    batches = replace(group.only([0], states), layouts=group.layouts.each_batch())
    num_layers = least_step_s(job.load, batches.mesh(), np.ones(()), job.parameters).min(axis=(0, 1))
    num_steps = job.num_steps(batches.layouts.column("global_batch_samples"))
    return np.asarray((num_layers * num_steps).take(group.layouts.batch))


def _layer_seconds(
    job: SearchJob, groups: Sequence[LayoutGroup], states: Sequence[Sequence[int]]
) -> list[tuple[dict[int, Numbers], Codes]]:
    """By group, seconds of a layer by index of its layer options, and each layout's position in them.

    states: by group, indices of the state options with the shortest bubble.
    """
    layers = [
        _undominated_layers(group.layers, hides_traffic=_hides_traffic(job.parameters)) for group in groups
    ]
    known = computed_once(
        [
            (group.layers, tuple(group.states[each][1:] for each in chosen))
            for group, chosen in zip(groups, states, strict=True)
        ],
        [group.only(kept, chosen) for group, kept, chosen in zip(groups, layers, states, strict=True)],
        codes_of=lambda layouts: layouts.codes(_LAYER_SIZES),
        compute=lambda part: layer_seconds(job.load, job.machine, part.mesh(), job.parameters).total.min(
            axis=1
        ),
    )
    return [
        (dict(zip(kept, known_s, strict=True)), rows)
        for kept, (known_s, rows) in zip(layers, known, strict=True)
    ]


def _promising(
    job: SearchJob, groups: Sequence[LayoutGroup], bounded: _Candidates, num_best: int
) -> _Candidates:
    """The layouts that could be among the best, with their fastest options evaluated regardless of memory.

    Layouts are evaluated in order of their lower bound relative to the lowest of their space, until no other
    layout's bound reaches the time it must beat.
    """
    lowest_s = np.full(int(bounded.space.max()) + 1, np.inf)
    np.minimum.at(lowest_s, bounded.space, bounded.lower_s)
    excess = bounded.lower_s / lowest_s.take(bounded.space)
    is_known = np.zeros(len(excess), dtype=bool)
    which, size = _lowest(excess, _FIRST_ROUND), _FIRST_ROUND
    while len(which):
        _evaluate(job, groups, bounded, which, _fastest)
        is_known[which] = True
        by_axes, worst = bounded.thresholds_s(np.flatnonzero(is_known), num_best)
        # Few bounds reach the worst time kept for their space; only for those is the time by axes looked up.
        left = np.flatnonzero(~is_known & (bounded.lower_s <= worst.take(bounded.space)))
        left = left[bounded.lower_s.take(left) <= by_axes.take(bounded.axes.take(left))]
        size *= 2
        which = left[_lowest(excess.take(left), size)]
    return bounded.at(np.flatnonzero(is_known))


def _lowest(values: Numbers, num: int) -> Codes:
    """Positions of about `num` of the lowest values, and no more."""
    # The cut-off is estimated from a sample, which takes a small part of the time of a full partition.
    step = max(1, len(values) // _SAMPLE_SIZE)
    sample, last = values[::step], num // step
    if last >= len(sample):
        return np.arange(len(values))
    return np.flatnonzero(values <= np.partition(sample, last)[last])[:num]


def _evaluate_remaining(
    job: SearchJob, groups: Sequence[LayoutGroup], candidates: _Candidates, num_best: int
) -> None:
    """Evaluate all undominated options of layouts that could still change the result, lowest bound first."""
    size, known = _FIRST_ROUND, np.arange(len(candidates.group))
    while True:
        by_axes, worst = candidates.thresholds_s(known, num_best)
        thresholds_s = np.minimum(by_axes.take(candidates.axes), worst.take(candidates.space))
        left = np.flatnonzero(candidates.lower_s < np.minimum(thresholds_s, candidates.value_s))
        if not len(left):
            return
        left = left[np.argsort(candidates.lower_s[left], kind="stable")[:size]]
        _evaluate(job, groups, candidates, left, _undominated)
        candidates.lower_s[left] = np.inf
        size *= 2


class _Part(Struct, frozen=True, kw_only=True):
    """Candidates of one group, with the indices of the option combinations to evaluate."""

    which: Codes
    group: LayoutGroup
    layers: Codes
    states: Codes


def _evaluate(
    job: SearchJob, groups: Sequence[LayoutGroup], candidates: _Candidates, which: Codes, options: _Options
) -> None:
    """Evaluate some candidates and record their fastest options, overall and among those that fit.

    Candidates of several groups share a table, because groups are many and most have few candidates.
    """
    parts: list[_Part] = []
    num_rows = 0
    for number in _distinct(candidates.group[which]):
        mine = which[candidates.group[which] == number]
        layers, states = options(groups[number], job.parameters)
        chosen = groups[number].at(candidates.layout[mine]).only(layers, states)
        for some, group in chosen.parts(_ROWS_AT_ONCE):
            more = len(group.layouts) * group.num_each
            if parts and num_rows + more > _ROWS_AT_ONCE:
                _evaluate_rows(job, candidates, parts)
                parts, num_rows = [], 0
            part = _Part(which=mine[some], group=group, layers=np.array(layers), states=np.array(states))
            parts.append(part)
            num_rows += more
    _evaluate_rows(job, candidates, parts)


def _evaluate_rows(job: SearchJob, candidates: _Candidates, parts: Sequence[_Part]) -> None:
    """`_evaluate` for at least one batch; all batches fit in one table."""
    rows = flat_rows([part.group for part in parts])
    estimates = estimate(job.load, job.machine, rows, job.parameters)
    time_s = estimates.step_s * job.num_steps(rows.global_batch_samples)
    allowed = np.where(estimates.memory.needed <= job.machine.memory_bytes, time_s, np.inf)
    start = 0
    for part in parts:
        shape = part.group.num_each, len(part.which)
        some = slice(start, start + shape[0] * shape[1])
        of_part, start = allowed[some].reshape(shape), some.stop
        best = of_part.argmin(axis=0)
        least_s = time_s[some].reshape(shape).min(axis=0)
        candidates.lower_s[part.which] = np.maximum(candidates.lower_s[part.which], least_s)
        candidates.value_s[part.which] = of_part[best, np.arange(shape[1])]
        candidates.layer[part.which] = part.layers[best // len(part.states)]
        candidates.state[part.which] = part.states[best % len(part.states)]


def _fastest(group: LayoutGroup, parameters: Parameters) -> tuple[Sequence[int], Sequence[int]]:
    """Indices of the layer and state options among which the fastest one is, regardless of memory."""
    layers = _fastest_layers(group.layers, hides_traffic=_hides_traffic(parameters))
    return layers, _fastest_states(group.states)


def _undominated(group: LayoutGroup, parameters: Parameters) -> tuple[Sequence[int], Sequence[int]]:
    """Indices of the layer and state options that no other option beats in both time and memory."""
    layers = _undominated_layers(group.layers, hides_traffic=_hides_traffic(parameters))
    return layers, _undominated_states(group.states)


def _hides_traffic(parameters: Parameters) -> bool:
    """Whether overlap never increases exposed tensor-parallel traffic; in some calibrations it may."""
    return bool(parameters.tp_overlap <= 1)


# Groups have few distinct combinations, so the selection is cached.
@lru_cache(maxsize=256)
def _fastest_layers(layers: Combinations, *, hides_traffic: bool) -> tuple[int, ...]:
    """Indices of the layer options among which the fastest one is, regardless of memory.

    Without offloading activations a step is fastest, and there without recomputation. If either is not
    allowed, any recomputation may be fastest: that depends on `recompute_share`, and keeping more activations
    means copying more of them.
    """
    recompute, offload = LAYER_OPTIONS.index("recompute"), LAYER_OPTIONS.index("activation_offload")
    stay = [values for values in layers if not values[offload]]
    has_none = any(values[recompute] == "none" for values in stay)
    return _first_of_each_kind(
        LAYER_OPTIONS,
        layers,
        kind=lambda values: (
            values
            | {"recompute": None if has_none else values["recompute"]}
            | {"activation_offload": None if stay else values["activation_offload"]}
            | {"tp_overlap": None if hides_traffic else values["tp_overlap"]}
        ),
        rank=lambda values: (
            values["activation_offload"],
            CODES["recompute"].index(values["recompute"]),
            not values["tp_overlap"],
        ),
    )


@lru_cache(maxsize=256)
def _undominated_layers(layers: Combinations, *, hides_traffic: bool) -> tuple[int, ...]:
    """Indices of the fastest layer option among those that differ only in overlap."""
    return _first_of_each_kind(
        LAYER_OPTIONS,
        layers,
        kind=lambda values: values | {"tp_overlap": None if hides_traffic else values["tp_overlap"]},
        rank=lambda values: (not values["tp_overlap"],),
    )


@lru_cache(maxsize=256)
def _fastest_states(states: Combinations) -> tuple[int, ...]:
    """Indices of the fastest state option among those that differ only in offloading or stages below 3."""
    return _first_of_each_kind(
        STATE_OPTIONS,
        states,
        kind=lambda values: values | {"zero_stage": values["zero_stage"] in _WHOLE_WEIGHTS, "offload": None},
        rank=lambda values: (
            CODES["offload"].index(values["offload"]),
            _zero_stage_rank(values["zero_stage"]),
        ),
    )


# State options on which a layer's passes and their matrix products depend.
_TRAINED_WEIGHTS = ("schedule", "trained", "lora_rank", "lora_targets")


@lru_cache(maxsize=256)
def _smallest_bubble(states: Combinations) -> tuple[int, ...]:
    """Indices of the state options with the shortest bubble, among those that train the same weights."""
    return _first_of_each_kind(
        STATE_OPTIONS,
        states,
        kind=lambda values: {name: values[name] for name in _TRAINED_WEIGHTS},
        rank=lambda values: (-values["interleave"],),
    )


@lru_cache(maxsize=256)
def _undominated_states(states: Combinations) -> tuple[int, ...]:
    """Indices of the state options that no other option beats in both time and memory.

    ZeRO stage 1 replaces stage 0 wherever both are allowed.
    """
    return _first_of_each_kind(
        STATE_OPTIONS,
        states,
        kind=lambda values: values | {"zero_stage": max(1, values["zero_stage"])},
        rank=lambda values: (_zero_stage_rank(values["zero_stage"]),),
    )


def _zero_stage_rank(stage: int) -> int:
    return _WHOLE_WEIGHTS.index(stage) if stage in _WHOLE_WEIGHTS else 0


def _first_of_each_kind(
    names: tuple[str, ...],
    combinations: Combinations,
    *,
    kind: Callable[[_Values], _Values],
    rank: Callable[[_Values], tuple[int, ...]],
) -> tuple[int, ...]:
    """Indices of the lowest-ranked combination of each kind, ascending."""
    least: dict[tuple[Any, ...], tuple[tuple[int, ...], int]] = {}
    for number, values in enumerate(combinations):
        named = dict(zip(names, values, strict=True))
        key, position = tuple(kind(named).values()), (rank(named), number)
        least[key] = min(least.get(key, position), position)
    return tuple(sorted(number for _, number in least.values()))

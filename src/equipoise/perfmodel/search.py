"""The fastest strategies that fit into memory, of several spaces at once, without evaluating all of them.

Some values of an option cannot make a step shorter than another value does. Where the combination that is
fastest, whatever memory it takes, also fits, nothing else of its layout is evaluated; elsewhere only what
could still win is. tests/perfmodel/test_search.py checks each of these rules.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.perfmodel.estimate import estimate, layer_seconds, least_step_s
from equipoise.perfmodel.layouts import (
    CODES,
    Codes,
    LayoutGroup,
    flat_rows,
    layout_groups,
    once_for_all,
)
from equipoise.perfmodel.load import Load, Numbers
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.memory import (
    Fitting,
    FittingCount,
    any_fits,
    by_activations,
    count_fitting,
    whatever_fits,
)
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.space import LAYER_OPTIONS, STATE_OPTIONS, Combinations, Fault, Space, limits
from equipoise.spec.strategy import Strategy, Value

_Values: TypeAlias = dict[str, Any]
# Numbers of some layer options and some state options of a group.
_Options: TypeAlias = Callable[[LayoutGroup, Parameters], tuple[Sequence[int], Sequence[int]]]

# Rows of strategies that are evaluated at once.
_ROWS = 2**14
# Layouts evaluated at first; twice as many each time after.
_FIRST_ROUND = 1024
# Bounds of which some are taken to tell which are low.
_SAMPLE = 2**14
# Of the ZeRO stages that shard no weights, the fastest first: sharded states make the optimizer's step
# shorter, sharded gradients leave it as it is; traffic is that of none (Rajbhandari et al. 2020, section 7).
_WHOLE_WEIGHTS = (1, 2, 0)
# Sizes that decide what a layer takes of a micro-batch.
_OF_A_LAYER = ("tp", "cp", "ep", "microbatch_samples")


class SearchJob(Struct, frozen=True, kw_only=True):
    """What is to be trained, on which machine, by which calibration.

    load, machine: of plain numbers. num_steps: of the training by its global batch, (n,) -> (n,).
    """

    load: Load
    machine: Machine
    parameters: Parameters
    num_steps: Callable[[Numbers], Numbers]

    def layout_groups(
        self, spaces: Sequence[Space]
    ) -> tuple[tuple[LayoutGroup, ...], tuple[Counter[Fault], ...]]:
        """The layouts of spaces of the same choices, and why others are illegal."""
        return layout_groups(tuple(spaces), limits(self.load, self.machine).asked_by(spaces[0]))


class FoundStrategy(Struct, frozen=True, kw_only=True):
    """A strategy, and what the steps of the training take with it."""

    strategy: Strategy
    training_s: float


class SearchResult(Struct, frozen=True, kw_only=True):
    """What a search found. num_legal, num_fitting: strategies of the space, and those that fit into memory.

    best: the best for each sizes of the axes, the best first. nearest_bytes: the least that any needs that
    does not fit; None where all do. faults: why layouts are illegal, with their number.
    """

    num_legal: int
    num_fitting: int
    best: tuple[FoundStrategy, ...]
    nearest_bytes: float | None
    faults: Counter[Fault]


def fastest(job: SearchJob, spaces: Sequence[Space], *, num_best: int = 1) -> tuple[SearchResult, ...]:
    """The strategies of each space with which the training takes least time.

    spaces: at least one; of the same choices and different sizes.
    Assumes that a step is no shorter with recomputation than without, with less overlap, with activations,
    optimizer states or weights that travel to the host or with optimizer states not sharded; and that memory
    gets no less by less overlap or unsharded states.
    Source: branch and bound (Land and Doig 1960): the best that a layout's options can reach bounds it.
    """
    legal, faults = job.layout_groups(spaces)
    groups = by_activations(job.load, legal)
    counts, best = _searched(job, groups, len(spaces), num_best)
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
    """The fastest strategies of some spaces with another value of one option, if they take less than so long.

    spaces: as `fastest` has just searched, which did not look at that value. to_beat_s: by the number of the
    space, of those to search. allowed: the values of other layer and state options; as the space has
    them where not given. Only layouts whose bound is low enough are looked at, so it takes a small part of a
    search.
    Assumes and source: as of `fastest`; that the value changes no layout's legality.
    """
    limit_s = np.zeros(len(spaces))
    limit_s[[*to_beat_s]] = [*to_beat_s.values()]
    changed = [
        group.at(which).with_value(name, value)
        for group in (each.allowing(allowed) for each in job.layout_groups(spaces)[0])
        if group.num_each and len(which := np.flatnonzero(limit_s.take(group.layouts.column("space")) > 0.0))
    ]
    bounded = _bounded(job, changed, [whatever_fits(group) for group in changed])
    if bounded is None:
        return {}
    low = np.flatnonzero(bounded.lower_s < limit_s.take(bounded.space))
    of_group = bounded.group.take(low)
    left = [changed[each].at(bounded.layout.take(low[of_group == each])) for each in _present(of_group)]
    _, best = _searched(job, by_activations(job.load, left), len(spaces), num_best)
    found = {each: best[each] for each in to_beat_s}
    return {each: of for each, of in found.items() if of and of[0].training_s < to_beat_s[each]}


def _searched(
    job: SearchJob, groups: Sequence[LayoutGroup], num_spaces: int, num_best: int
) -> tuple[list[FittingCount], list[tuple[FoundStrategy, ...]]]:
    """By space, how many of the groups' strategies fit, and the best. groups: of `by_activations`."""
    counts, fitting = count_fitting(
        job.load, job.machine, job.parameters, groups=groups, num_spaces=num_spaces
    )
    bounded = _bounded(job, groups, fitting)
    if bounded is None:
        return counts, [()] * num_spaces
    candidates = _promising(job, groups, bounded, num_best)
    _settle(job, groups, candidates, num_best)
    return counts, [candidates.best(groups, space, num_best) for space in range(num_spaces)]


def fits(job: SearchJob, space: Space) -> bool:
    """Whether any strategy of a space fits into memory."""
    groups, _ = job.layout_groups([space])
    return any_fits(job.load, job.machine, job.parameters, by_activations(job.load, groups))


def _present(numbers: Codes) -> list[int]:
    """The different ones of some small numbers, ascending."""
    present: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return present


class _Candidates(Struct, kw_only=True):
    """Layouts of all groups of which any strategy fits: arrays of shape (n_layouts,).

    group, layout: which of the groups, and which of its layouts. lower_s: no strategy of the layout is
    faster. Of a layout that was evaluated, value_s: the fastest of these that fits, layer and state the
    numbers of its combinations; infinite where none fits.
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

    def limits_s(self, known: Codes, num_best: int) -> tuple[Numbers, Numbers]:
        """What layouts have to stay below to change the answer: by axes the best, by space the worst kept.

        known: those evaluated.
        """
        axes, space = self.axes.take(known), self.space.take(known)
        by_axes = np.full(int(self.axes.max()) + 1, np.inf)
        np.minimum.at(by_axes, axes, self.value_s.take(known))
        space_of = np.full(len(by_axes), -1)
        space_of[axes] = space
        worst = np.full(int(self.space.max()) + 1, np.inf)
        for each in _present(space):
            values = by_axes[space_of == each]
            if len(values) >= num_best:
                worst[each] = np.partition(values, num_best - 1)[num_best - 1]
        return by_axes, worst

    def best(self, groups: Sequence[LayoutGroup], space: int, num_best: int) -> tuple[FoundStrategy, ...]:
        """The best for each sizes of the axes of a space, the best first."""
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


def _bounded(job: SearchJob, groups: Sequence[LayoutGroup], fitting: Sequence[Fitting]) -> _Candidates | None:
    """Every layout of which any strategy fits, with a bound of its time, none evaluated; None without any.

    fitting: by group, in which of its layouts any strategy fits.
    """
    which = [np.flatnonzero(each.with_any_layer) for each in fitting]
    numbers = [number for number, rows in enumerate(which) if len(rows)]
    if not numbers:
        return None
    some = [groups[number].at(which[number]) for number in numbers]
    states = [_least_bubble(group.states) for group in some]
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
        np.multiply(layer_s, _least_layers(job, group, states[place]), out=lower_s[slices[place]])
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


def _least_layers(job: SearchJob, group: LayoutGroup, states: Sequence[int]) -> Numbers:
    """How many times a layer's seconds a training takes at least by any strategy of each layout.

    states: those with the shortest bubble.
    """
    batches = replace(group.only([0], states), layouts=group.layouts.each_batch())
    num_layers = least_step_s(job.load, batches.mesh(), np.ones(()), job.parameters).min(axis=(0, 1))
    num_steps = job.num_steps(batches.layouts.column("global_batch_samples"))
    return np.asarray((num_layers * num_steps).take(group.layouts.batch))


def _layer_seconds(
    job: SearchJob, groups: Sequence[LayoutGroup], states: Sequence[Sequence[int]]
) -> list[tuple[dict[int, Numbers], Codes]]:
    """By group, seconds of a layer by the number of its options, and which of them a layout has.

    states: by group, those with the shortest bubble.
    """
    layers = [
        _unbeaten_layers(group.layers, hides_traffic=_hides_traffic(job.parameters)) for group in groups
    ]
    known = once_for_all(
        [
            (group.layers, tuple(group.states[each][1:] for each in chosen))
            for group, chosen in zip(groups, states, strict=True)
        ],
        [group.only(kept, chosen) for group, kept, chosen in zip(groups, layers, states, strict=True)],
        numbered=lambda layouts: layouts.numbered(_OF_A_LAYER),
        computed=lambda part: layer_seconds(job.load, job.machine, part.mesh(), job.parameters).total.min(
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
    """The layouts that could be among the best, with the fastest of their options, whatever memory they need.

    They are evaluated from the lowest bound of their space up, until no other has one as low as what it has
    to stay below.
    """
    lowest_s = np.full(int(bounded.space.max()) + 1, np.inf)
    np.minimum.at(lowest_s, bounded.space, bounded.lower_s)
    excess = bounded.lower_s / lowest_s.take(bounded.space)
    is_known = np.zeros(len(excess), dtype=bool)
    which, size = _lowest(excess, _FIRST_ROUND), _FIRST_ROUND
    while len(which):
        _evaluate(job, groups, bounded, which, _fastest)
        is_known[which] = True
        by_axes, worst = bounded.limits_s(np.flatnonzero(is_known), num_best)
        # Few are as low as the worst kept of their space, so the others' axes are not looked up.
        left = np.flatnonzero(~is_known & (bounded.lower_s <= worst.take(bounded.space)))
        left = left[bounded.lower_s.take(left) <= by_axes.take(bounded.axes.take(left))]
        size *= 2
        which = left[_lowest(excess.take(left), size)]
    return bounded.at(np.flatnonzero(is_known))


def _lowest(values: Numbers, num: int) -> Codes:
    """Positions of about so many of the lowest values, and no more."""
    # A sample tells about where to cut, which takes a small part of the time of sorting them apart.
    step = max(1, len(values) // _SAMPLE)
    sample, last = values[::step], num // step
    if last >= len(sample):
        return np.arange(len(values))
    return np.flatnonzero(values <= np.partition(sample, last)[last])[:num]


def _settle(job: SearchJob, groups: Sequence[LayoutGroup], candidates: _Candidates, num_best: int) -> None:
    """Evaluate in full the layouts that could still change the answer, the most promising first."""
    size, known = _FIRST_ROUND, np.arange(len(candidates.group))
    while True:
        by_axes, worst = candidates.limits_s(known, num_best)
        limits_s = np.minimum(by_axes.take(candidates.axes), worst.take(candidates.space))
        left = np.flatnonzero(candidates.lower_s < np.minimum(limits_s, candidates.value_s))
        if not len(left):
            return
        left = left[np.argsort(candidates.lower_s[left], kind="stable")[:size]]
        _evaluate(job, groups, candidates, left, _unbeaten)
        candidates.lower_s[left] = np.inf
        size *= 2


class _Part(Struct, frozen=True, kw_only=True):
    """Some candidates of one group, with the combinations of its options to evaluate, by their numbers."""

    which: Codes
    group: LayoutGroup
    layers: Codes
    states: Codes


def _evaluate(
    job: SearchJob, groups: Sequence[LayoutGroup], candidates: _Candidates, which: Codes, options: _Options
) -> None:
    """Note of some candidates the fastest of their options, and the fastest that fits.

    All are rows of few tables: groups are many, and most have few candidates.
    """
    parts: list[_Part] = []
    num_rows = 0
    for number in _present(candidates.group[which]):
        mine = which[candidates.group[which] == number]
        layers, states = options(groups[number], job.parameters)
        chosen = groups[number].at(candidates.layout[mine]).only(layers, states)
        for some, group in chosen.parts(_ROWS):
            more = len(group.layouts) * group.num_each
            if parts and num_rows + more > _ROWS:
                _evaluate_rows(job, candidates, parts)
                parts, num_rows = [], 0
            part = _Part(which=mine[some], group=group, layers=np.array(layers), states=np.array(states))
            parts.append(part)
            num_rows += more
    _evaluate_rows(job, candidates, parts)


def _evaluate_rows(job: SearchJob, candidates: _Candidates, parts: Sequence[_Part]) -> None:
    """`_evaluate` of at least one part, and no more rows than one table holds."""
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
    """The options of which one is the fastest, whatever memory it needs: numbers of layers and states."""
    layers = _fastest_layers(group.layers, hides_traffic=_hides_traffic(parameters))
    return layers, _fastest_states(group.states)


def _unbeaten(group: LayoutGroup, parameters: Parameters) -> tuple[Sequence[int], Sequence[int]]:
    """The options that none is both faster and lighter than: numbers of layers and states."""
    layers = _unbeaten_layers(group.layers, hides_traffic=_hides_traffic(parameters))
    return layers, _unbeaten_states(group.states)


def _hides_traffic(parameters: Parameters) -> bool:
    """Whether overlap leaves no more of tensor-parallel traffic than there is; a calibration may differ."""
    return bool(parameters.tp_overlap <= 1)


# Groups have few different combinations, so which of them are the fastest is kept.
@lru_cache(maxsize=256)
def _fastest_layers(layers: Combinations, *, hides_traffic: bool) -> tuple[int, ...]:
    """Numbers of the layer options of which one is the fastest, whatever memory it needs.

    Activations that stay are faster than those that travel, and recomputing nothing is fastest among those
    that stay. Where either is no choice, any way of recomputing may be: which depends on `recompute_share`,
    and the more is kept, the more travels.
    """
    recompute, offload = LAYER_OPTIONS.index("recompute"), LAYER_OPTIONS.index("activation_offload")
    stay = [values for values in layers if not values[offload]]
    has_none = any(values[recompute] == "none" for values in stay)
    return _firsts(
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
def _unbeaten_layers(layers: Combinations, *, hides_traffic: bool) -> tuple[int, ...]:
    """Numbers of the fastest layer options, among those equal but for overlap."""
    return _firsts(
        LAYER_OPTIONS,
        layers,
        kind=lambda values: values | {"tp_overlap": None if hides_traffic else values["tp_overlap"]},
        rank=lambda values: (not values["tp_overlap"],),
    )


@lru_cache(maxsize=256)
def _fastest_states(states: Combinations) -> tuple[int, ...]:
    """Numbers of the fastest state options, among those equal but for a ZeRO stage below 3 and offloading."""
    return _firsts(
        STATE_OPTIONS,
        states,
        kind=lambda values: values | {"zero_stage": values["zero_stage"] in _WHOLE_WEIGHTS, "offload": None},
        rank=lambda values: (CODES["offload"].index(values["offload"]), _order(values["zero_stage"])),
    )


# What decides the passes of a layer and their products, beside the layer options.
_TRAINED_WEIGHTS = ("schedule", "trained", "lora_rank", "lora_targets")


@lru_cache(maxsize=256)
def _least_bubble(states: Combinations) -> tuple[int, ...]:
    """Numbers of the state options with the shortest bubble, among those that train the same weights."""
    return _firsts(
        STATE_OPTIONS,
        states,
        kind=lambda values: {name: values[name] for name in _TRAINED_WEIGHTS},
        rank=lambda values: (-values["interleave"],),
    )


@lru_cache(maxsize=256)
def _unbeaten_states(states: Combinations) -> tuple[int, ...]:
    """Numbers of the state options that none is both faster and lighter than.

    ZeRO stage 1 takes the place of stage 0 wherever both are allowed.
    """
    return _firsts(
        STATE_OPTIONS,
        states,
        kind=lambda values: values | {"zero_stage": max(1, values["zero_stage"])},
        rank=lambda values: (_order(values["zero_stage"]),),
    )


def _order(stage: int) -> int:
    return _WHOLE_WEIGHTS.index(stage) if stage in _WHOLE_WEIGHTS else 0


def _firsts(
    names: tuple[str, ...],
    combinations: Combinations,
    *,
    kind: Callable[[_Values], _Values],
    rank: Callable[[_Values], tuple[int, ...]],
) -> tuple[int, ...]:
    """The numbers of the combinations of least rank among those of their kind, in order."""
    least: dict[tuple[Any, ...], tuple[tuple[int, ...], int]] = {}
    for number, values in enumerate(combinations):
        named = dict(zip(names, values, strict=True))
        key, position = tuple(kind(named).values()), (rank(named), number)
        least[key] = min(least.get(key, position), position)
    return tuple(sorted(number for _, number in least.values()))

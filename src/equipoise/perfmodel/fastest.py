"""The fastest strategies that fit, of several spaces at once: what `search` finds, for a part of its work.

Some values of a knob cannot make a step shorter than another value does. Where what is fastest whatever
memory it takes also fits, nothing else of its place is worked out; elsewhere only what could still win is.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.grid import CODES, Codes, Numbers
from equipoise.perfmodel.legality import limits
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.memory import memory
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.search import Found, Memories, Searched
from equipoise.perfmodel.space import (
    LAYER_KNOBS,
    PLACE_KNOBS,
    STATE_KNOBS,
    Alike,
    Combinations,
    Space,
    Value,
    grouped,
)
from equipoise.spec.strategy import Strategy

Mask: TypeAlias = NDArray[np.bool_]

_MESH_ELEMENTS = 2**17
# Places worked out in full at first; twice as many each time after.
_FIRST_ROUND = 4096
# Of the ZeRO stages that shard no weights, the fastest first: sharded states make the optimizer's step
# shorter, sharded gradients leave it as it is; traffic is that of none (Rajbhandari et al. 2020, section 7).
_WHOLE_WEIGHTS = (1, 2, 0)
# What changes no byte of memory.
_WEIGHTLESS = ("tp_overlap", "compression", "compression_rank", "sync_period")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be trained, on what, by which calibration.

    load, machine: of plain numbers. num_steps: of the training by its global batch, (n,) -> (n,).
    """

    load: Load
    machine: Machine
    parameters: Parameters
    num_steps: Callable[[Numbers], Numbers]


def fastest(job: Job, spaces: Sequence[Space], *, num_best: int = 1) -> tuple[Searched, ...]:
    """What `search` finds in each space, the time of the training its only objective.

    spaces: at least one; of the same choices and different sizes.
    Assumes that a step gets no shorter by recomputing, by overlapping less or by not sharding optimizer
    states, and that memory gets no less by the latter two (tests/perfmodel/test_fastest.py holds both).
    Source: branch and bound (Land and Doig 1960): what a place's knobs can at best reach bounds it.
    """
    groups, faults = grouped(spaces, limits(job.load, job.machine))
    census, fitting = _census(job, groups, len(spaces))
    field = _led(job, groups, fitting)
    if field is None:
        best: list[tuple[Found, ...]] = [()] * len(spaces)
    else:
        _settle(job, groups, field, num_best)
        best = [field.best(groups, space, num_best) for space in range(len(spaces))]
    return tuple(
        Searched(
            num_legal=counted.num_legal,
            num_fitting=counted.num_fitting,
            best=found,
            front=found[:1],
            memories=counted.memories(),
            faults=wrong,
        )
        for found, counted, wrong in zip(best, census, faults, strict=True)
    )


def _strategy(group: Alike, place: int, layer: int, state: int) -> Strategy:
    """The strategy of one place by the combinations of those numbers."""
    sizes = {name: int(getattr(group.places, name)[place]) for name in PLACE_KNOBS}
    layers = dict(zip(LAYER_KNOBS, group.layers[layer], strict=True))
    states = dict(zip(STATE_KNOBS, group.states[state], strict=True))
    return Strategy(**sizes, **layers, **states)  # type: ignore[arg-type]


@dataclass(slots=True, kw_only=True)
class _Field:
    """All places of all groups: arrays of shape (n_places,).

    lower_s: what no strategy of the place is faster than. value_s: the fastest that fits of those worked
    out, layer and state the numbers of its combinations; infinite where none fits.
    """

    group: Codes
    place: Codes
    space: Codes
    layout: Codes
    lower_s: Numbers
    value_s: Numbers
    layer: Codes
    state: Codes

    def limits_s(self, num_best: int) -> Numbers:
        """What a place has to stay below to change the answer: its layout's best, and the worst told."""
        by_layout = np.full(int(self.layout.max()) + 1, np.inf)
        np.minimum.at(by_layout, self.layout, self.value_s)
        home = np.zeros(len(by_layout), dtype=np.intp)
        home[self.layout] = self.space
        worst = np.full(int(self.space.max()) + 1, np.inf)
        for space in np.unique(self.space):
            values = by_layout[home == space]
            if len(values) >= num_best:
                worst[space] = np.partition(values, num_best - 1)[num_best - 1]
        return np.asarray(np.minimum(by_layout[self.layout], worst[self.space]))

    def best(self, groups: Sequence[Alike], space: int, num_best: int) -> tuple[Found, ...]:
        """The best of each layout of a space, the best first."""
        mine = np.flatnonzero((self.space == space) & np.isfinite(self.value_s))
        ordered = mine[np.argsort(self.value_s[mine], kind="stable")]
        _, firsts = np.unique(self.layout[ordered], return_index=True)
        leaders = ordered[np.sort(firsts)[:num_best]]
        return tuple(
            Found(
                strategy=_strategy(
                    groups[self.group[each]], self.place[each], self.layer[each], self.state[each]
                ),
                worth=(float(self.value_s[each]),),
            )
            for each in leaders.tolist()
        )


def _led(job: Job, groups: Sequence[Alike], fitting: Sequence[Mask]) -> _Field | None:
    """Every place with the fastest of its knobs, whatever they hold; None without places.

    fitting: by group, which places have a strategy that fits.
    """
    found = []
    for number, group in enumerate(groups):
        able = replace(group, places=group.places.taken(np.flatnonzero(fitting[number])))
        if len(able.places):
            worked = _worked(job, able, _fastest_layers(group, job), _fastest_states(group))
            found.append((number, np.flatnonzero(fitting[number]), able.places, worked))
    if not found:
        return None
    return _Field(
        group=np.concatenate([np.full(len(place), number) for number, place, _, _ in found]),
        place=np.concatenate([place for _, place, _, _ in found]),
        space=np.concatenate([places.space for _, _, places, _ in found]),
        layout=np.concatenate([places.layout for _, _, places, _ in found]),
        lower_s=np.concatenate([worked.lower_s for *_, worked in found]),
        value_s=np.concatenate([worked.value_s for *_, worked in found]),
        layer=np.concatenate([worked.layer for *_, worked in found]),
        state=np.concatenate([worked.state for *_, worked in found]),
    )


def _settle(job: Job, groups: Sequence[Alike], field: _Field, num_best: int) -> None:
    """Work out in full the places that could still change the answer, the most promising first."""
    size = _FIRST_ROUND
    while True:
        limit_s = np.minimum(field.limits_s(num_best), field.value_s)
        left = np.flatnonzero(field.lower_s < limit_s)
        if not len(left):
            return
        left = left[np.argsort(field.lower_s[left], kind="stable")[:size]]
        for number in np.unique(field.group[left]).tolist():
            mine, group = left[field.group[left] == number], groups[number]
            part = replace(group, places=group.places.taken(field.place[mine]))
            worked = _worked(job, part, _unbeaten_layers(group, job), _unbeaten_states(group))
            field.value_s[mine], field.lower_s[mine] = worked.value_s, np.inf
            field.layer[mine], field.state[mine] = worked.layer, worked.state
        size *= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worked:
    """Of some combinations of each place: the fastest, whatever it holds; the fastest that fits, and which.

    Arrays of shape (n_places,).
    """

    lower_s: Numbers
    value_s: Numbers
    layer: Codes
    state: Codes


def _worked(job: Job, group: Alike, layers: Sequence[int], states: Sequence[int]) -> _Worked:
    """All combinations of some layer and state knobs, worked out at every place of a group."""
    parts = []
    cut = replace(
        group,
        layers=tuple(group.layers[each] for each in layers),
        states=tuple(group.states[each] for each in states),
    )
    for _, places, mesh in cut.meshes(_MESH_ELEMENTS):
        estimates = estimate(job.load, job.machine, mesh, job.parameters)
        steps = job.num_steps(places.global_batch_samples)[:, None]
        time_s = np.broadcast_to(estimates.step_s, mesh.shape).reshape(len(places), -1) * steps
        fits = np.broadcast_to(estimates.memory.needed <= job.machine.memory_bytes, mesh.shape)
        allowed = np.where(fits.reshape(len(places), -1), time_s, np.inf)
        chosen = np.argmin(allowed, axis=1)
        parts.append((time_s.min(axis=1), allowed[np.arange(len(places)), chosen], chosen))
    lower_s, value_s, chosen = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Worked(
        lower_s=lower_s,
        value_s=value_s,
        layer=np.array(layers, dtype=np.intp)[chosen // len(states)],
        state=np.array(states, dtype=np.intp)[chosen % len(states)],
    )


def _fastest_layers(group: Alike, job: Job) -> tuple[int, ...]:
    """The numbers of layer knobs that no others alike but for recomputation and overlap are faster than."""
    return _firsts(
        LAYER_KNOBS,
        group.layers,
        kind=lambda told: told | {"recompute": None, "tp_overlap": _overlap_kind(told, job)},
        rank=lambda told: (CODES["recompute"].index(told["recompute"]), not told["tp_overlap"]),
    )


def _unbeaten_layers(group: Alike, job: Job) -> tuple[int, ...]:
    """The numbers of layer knobs that none alike but for overlap are faster than."""
    return _firsts(
        LAYER_KNOBS,
        group.layers,
        kind=lambda told: told | {"tp_overlap": _overlap_kind(told, job)},
        rank=lambda told: (not told["tp_overlap"],),
    )


def _overlap_kind(told: dict[str, Any], job: Job) -> bool | None:
    """None where overlap leaves no more of the traffic than there is; a calibration may say otherwise."""
    return None if job.parameters.tp_overlap <= 1 else told["tp_overlap"]


def _fastest_states(group: Alike) -> tuple[int, ...]:
    """The numbers of state knobs that none alike but for a ZeRO stage of whole weights are faster than."""
    return _firsts(
        STATE_KNOBS,
        group.states,
        kind=lambda told: told | {"shard_state": told["shard_state"] in _WHOLE_WEIGHTS},
        rank=lambda told: (_order(told["shard_state"]),),
    )


def _unbeaten_states(group: Alike) -> tuple[int, ...]:
    """The numbers of state knobs that none are both faster and lighter than: whole states, if need not be."""
    return _firsts(
        STATE_KNOBS,
        group.states,
        kind=lambda told: told | {"shard_state": max(1, told["shard_state"])},
        rank=lambda told: (_order(told["shard_state"]),),
    )


def _order(stage: int) -> int:
    return _WHOLE_WEIGHTS.index(stage) if stage in _WHOLE_WEIGHTS else 0


def _firsts(
    names: tuple[str, ...],
    combinations: Combinations,
    *,
    kind: Callable[[dict[str, Any]], dict[str, Any]],
    rank: Callable[[dict[str, Any]], tuple[int, ...]],
) -> tuple[int, ...]:
    """The numbers of the combinations of least rank among those of their kind, in order."""
    least: dict[tuple[Any, ...], tuple[tuple[int, ...], int]] = {}
    for number, values in enumerate(combinations):
        told = dict(zip(names, values, strict=True))
        key, place = tuple(kind(told).values()), (rank(told), number)
        least[key] = min(least.get(key, place), place)
    return tuple(sorted(number for _, number in least.values()))


@dataclass(slots=True)
class _Census:
    """How many strategies of a space there are and fit, and what the others need."""

    num_legal: int = 0
    num_fitting: int = 0
    nearest_bytes: float = np.inf
    least_bytes: float = np.inf
    leanest: tuple[Alike, int, int, int] | None = None

    def memories(self) -> Memories | None:
        """What the strategies need of an accelerator's memory; None where there are none."""
        if self.leanest is None:
            return None
        return Memories(
            least_bytes=self.least_bytes,
            leanest=_strategy(*self.leanest),
            nearest_bytes=self.nearest_bytes,
        )


def _census(job: Job, groups: Sequence[Alike], num_spaces: int) -> tuple[list[_Census], list[Mask]]:
    """What the strategies of each space need of an accelerator's memory; where some fit, by group."""
    found = [_Census() for _ in range(num_spaces)]
    fitting = []
    for group in groups:
        able = np.zeros(len(group.places), dtype=bool)
        layers, num_layers = _by_memory(LAYER_KNOBS, group.layers)
        states, num_states = _by_memory(STATE_KNOBS, group.states)
        cut = replace(
            group,
            layers=tuple(group.layers[each] for each in layers),
            states=tuple(group.states[each] for each in states),
        )
        # As floats the counts are summed many times as fast; they stay exact to 2**53.
        times = np.outer(num_layers, num_states).ravel().astype(float)
        for start, places, mesh in cut.meshes(_MESH_ELEMENTS):
            needed = np.broadcast_to(memory(job.load, mesh, job.parameters).needed, mesh.shape)
            needed = needed.reshape(len(places), -1)
            fits = needed <= job.machine.memory_bytes
            counts = fits.astype(float) @ times
            able[start : start + len(places)] = counts > 0
            least = needed.min(axis=1)
            nearest = np.where(fits, np.inf, needed).min(axis=1)
            for space in np.unique(places.space).tolist():
                mine = np.flatnonzero(places.space == space)
                told, at = found[space], int(mine[np.argmin(least[mine])])
                told.num_legal += len(mine) * group.num_each
                told.num_fitting += int(counts[mine].sum())
                told.nearest_bytes = min(told.nearest_bytes, float(nearest[mine].min()))
                if least[at] < told.least_bytes:
                    layer, state = divmod(int(needed[at].argmin()), len(states))
                    told.least_bytes = float(least[at])
                    told.leanest = (group, start + at, layers[layer], states[state])
        fitting.append(able)
    return found, fitting


def _by_memory(names: tuple[str, ...], combinations: Combinations) -> tuple[list[int], list[int]]:
    """The numbers of combinations that hold different memory, and how many hold the same as each."""
    alike: dict[tuple[Value, ...], list[int]] = defaultdict(list)
    for number, values in enumerate(combinations):
        key = tuple(value for name, value in zip(names, values, strict=True) if name not in _WEIGHTLESS)
        alike[key].append(number)
    return [each[0] for each in alike.values()], [len(each) for each in alike.values()]

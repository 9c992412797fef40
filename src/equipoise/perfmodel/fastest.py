"""The fastest strategies that fit, of several spaces at once: what `search` finds, for a part of its work.

Some values of a knob cannot make a step shorter than another value does. Where what is fastest whatever
memory it takes also fits, nothing else of its place is worked out; elsewhere only what could still win is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.perfmodel.census import Mask, census
from equipoise.perfmodel.dominance import (
    fastest_layers,
    fastest_states,
    unbeaten_layers,
    unbeaten_states,
)
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.grid import Codes, Numbers
from equipoise.perfmodel.job import Job
from equipoise.perfmodel.laid import grouped
from equipoise.perfmodel.legality import limits
from equipoise.perfmodel.places import Alike
from equipoise.perfmodel.search import Found, Searched
from equipoise.perfmodel.space import Space

_MESH_ELEMENTS = 2**17
# Places worked out in full at first; twice as many each time after.
_FIRST_ROUND = 4096


def fastest(job: Job, spaces: Sequence[Space], *, num_best: int = 1) -> tuple[Searched, ...]:
    """What `search` finds in each space, the time of the training its only objective.

    spaces: at least one; of the same choices and different sizes.
    Returns memories of strategies that were weighed: all where none fits, else those of places where some do
    not.
    Assumes that a step gets no shorter by recomputing, by overlapping less or by not sharding optimizer
    states; that memory gets no less by the latter two, and no more by recomputing or by sharding states or
    gradients (tests/perfmodel/test_fastest.py holds them).
    Source: branch and bound (Land and Doig 1960): what a place's knobs can at best reach bounds it.
    """
    groups, faults = grouped(spaces, limits(job.load, job.machine))
    counts, fitting = census(job, groups, len(spaces))
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
        for found, counted, wrong in zip(best, counts, faults, strict=True)
    )


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
                strategy=groups[self.group[each]].strategy(
                    self.place[each], self.layer[each], self.state[each]
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
        able = group.at(np.flatnonzero(fitting[number]))
        if len(able.places):
            worked = _worked(job, able, fastest_layers(group, job.parameters), fastest_states(group))
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
            part = group.at(field.place[mine])
            worked = _worked(job, part, unbeaten_layers(group, job.parameters), unbeaten_states(group))
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
    for _, places, mesh in group.only(layers, states).meshes(_MESH_ELEMENTS):
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

"""How many strategies of spaces there are, and how many fit: by their memory alone, whatever they take."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.perfmodel.dominance import heaviest_layers, heaviest_states
from equipoise.perfmodel.grid import Codes, Numbers
from equipoise.perfmodel.job import Job
from equipoise.perfmodel.memory import memory
from equipoise.perfmodel.places import Alike, Places
from equipoise.perfmodel.search import Memories
from equipoise.perfmodel.space import LAYER_KNOBS, STATE_KNOBS, Combinations, Value

Mask: TypeAlias = NDArray[np.bool_]

_MESH_ELEMENTS = 2**17
# What changes no byte of memory.
_WEIGHTLESS = ("tp_overlap", "compression", "compression_rank", "sync_period")


@dataclass(slots=True)
class Census:
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
        group, place, layer, state = self.leanest
        return Memories(
            least_bytes=self.least_bytes,
            leanest=group.strategy(place, layer, state),
            nearest_bytes=self.nearest_bytes,
        )


def census(job: Job, groups: Sequence[Alike], num_spaces: int) -> tuple[list[Census], list[Mask]]:
    """What the strategies of each space need of an accelerator's memory; where any fits, by group of places.

    Where the heaviest strategies of a place fit, no other of it is weighed.
    """
    found = [Census() for _ in range(num_spaces)]
    fitting = []
    for group in groups:
        for space, num_places in enumerate(np.bincount(group.places.space, minlength=num_spaces)):
            found[space].num_legal += int(num_places) * group.num_each
        able = np.ones(len(group.places), dtype=bool)
        for start, places, needed in _needed(job, group, heaviest_layers(group), heaviest_states(group)):
            able[start : start + len(places)] = (needed <= job.machine.memory_bytes).all(axis=1)
        for space, num_places in enumerate(np.bincount(group.places.space[able], minlength=num_spaces)):
            found[space].num_fitting += int(num_places) * group.num_each
        _weigh(job, group, np.flatnonzero(~able), found, able)
        fitting.append(able)
    return found, fitting


def _weigh(job: Job, group: Alike, which: Codes, found: Sequence[Census], able: Mask) -> None:
    """Count what fits of some places strategy by strategy, and mark the places where any does."""
    layers, num_layers = _by_memory(LAYER_KNOBS, group.layers)
    states, num_states = _by_memory(STATE_KNOBS, group.states)
    # As floats the counts are summed many times as fast; they stay exact to 2**53.
    times = np.outer(num_layers, num_states).ravel().astype(float)
    part = group.at(which)
    for start, places, needed in _needed(job, part, layers, states):
        fits = needed <= job.machine.memory_bytes
        counts = fits.astype(float) @ times
        able[which[start : start + len(places)]] = counts > 0
        least = needed.min(axis=1)
        nearest = np.where(fits, np.inf, needed).min(axis=1)
        for space in np.unique(places.space).tolist():
            mine = np.flatnonzero(places.space == space)
            told, at = found[space], int(mine[np.argmin(least[mine])])
            told.num_fitting += int(counts[mine].sum())
            told.nearest_bytes = min(told.nearest_bytes, float(nearest[mine].min()))
            if least[at] < told.least_bytes:
                layer, state = divmod(int(needed[at].argmin()), len(states))
                told.least_bytes = float(least[at])
                told.leanest = (group, int(which[start + at]), layers[layer], states[state])


def _needed(
    job: Job, group: Alike, layers: Sequence[int], states: Sequence[int]
) -> Iterator[tuple[int, Places, Numbers]]:
    """Bytes that some combinations need, part by part: first place, places, (n_places, n_combinations)."""
    cut = group.only(layers, states)
    for start, places, mesh in cut.meshes(_MESH_ELEMENTS):
        needed = np.broadcast_to(memory(job.load, mesh, job.parameters).needed, mesh.shape)
        yield start, places, needed.reshape(len(places), -1)


def _by_memory(names: tuple[str, ...], combinations: Combinations) -> tuple[list[int], list[int]]:
    """The numbers of combinations that hold different memory, and how many hold the same as each."""
    alike: dict[tuple[Value, ...], list[int]] = defaultdict(list)
    for number, values in enumerate(combinations):
        key = tuple(value for name, value in zip(names, values, strict=True) if name not in _WEIGHTLESS)
        alike[key].append(number)
    return [each[0] for each in alike.values()], [len(each) for each in alike.values()]

"""The best legal strategies that fit, by objectives it is given; their trade-offs; why others fell out."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.perfmodel.estimate import Estimates, estimate
from equipoise.perfmodel.grid import Grid, Numbers
from equipoise.perfmodel.laid import laid
from equipoise.perfmodel.legality import limits
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.space import AXES, Space
from equipoise.spec.strategy import Strategy

# What a strategy is worth: less is better. Given the grid and its estimates; broadcasts to the grid's shape.
Objective: TypeAlias = Callable[[Grid, Estimates], Numbers]
_Mask: TypeAlias = NDArray[np.bool_]

# Arrays of this many elements: larger ones gain little speed and take more memory (docs/experiments/0008).
_MESH_ELEMENTS = 2**17


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A strategy and what it is worth, by each objective asked for, in their order."""

    strategy: Strategy
    worth: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """What strategies need of one accelerator's memory. least_bytes, leanest: the least of all, and whose.

    nearest_bytes: the least among those that do not fit; infinite where all do.
    """

    least_bytes: float
    leanest: Strategy
    nearest_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What a search found. num_legal, num_fitting: strategies of the space, and those that fit into memory.

    best: the best of each layout (sizes of the axes), the first objective's best first. front: those
    that no other beats in one objective without losing in another. memories: None where nothing is legal.
    faults: why layouts are illegal, with their number.
    """

    num_legal: int
    num_fitting: int
    best: tuple[Found, ...]
    front: tuple[Found, ...]
    memories: Memories | None
    faults: Counter[str]


def search(
    load: Load,
    machine: Machine,
    space: Space,
    parameters: Parameters,
    *,
    objectives: tuple[Objective, ...],
    num_best: int = 10,
) -> Searched:
    """The best strategies of a space by the first objective, and the Pareto front of all objectives.

    load, machine: of plain numbers. objectives: at least one.
    Assumes a strategy fits when what it needs is at most the accelerator's memory.
    Source: exhaustive; nothing is left out that is legal.
    """
    space_laid = laid(space, limits(load, machine), most_elements=_MESH_ELEMENTS)
    pool, memories = _Pool(), _Memories()
    num_fitting = 0
    for mesh in space_laid.meshes:
        estimates = estimate(load, machine, mesh, parameters)
        held = np.broadcast_to(estimates.memory.needed, mesh.shape)
        fits = held <= machine.memory_bytes
        memories.see(mesh, held, fits)
        fitting = int(np.count_nonzero(fits))
        num_fitting += fitting
        if fitting:
            worth = tuple(np.broadcast_to(each(mesh, estimates), mesh.shape) for each in objectives)
            pool.see(mesh, fits, worth)
    return Searched(
        num_legal=space_laid.num_legal,
        num_fitting=num_fitting,
        best=pool.best(num_best),
        front=pool.front(),
        memories=memories.seen(),
        faults=space_laid.faults,
    )


@dataclass(slots=True)
class _Memories:
    """The least memory seen so far."""

    least_bytes: float = np.inf
    nearest_bytes: float = np.inf
    leanest: tuple[Grid, int] | None = None

    def see(self, mesh: Grid, held: Numbers, fits: _Mask) -> None:
        """Take a mesh into account."""
        place = int(np.argmin(held))
        if held.flat[place] < self.least_bytes:
            self.least_bytes, self.leanest = float(held.flat[place]), (mesh, place)
        if not fits.all():
            self.nearest_bytes = min(self.nearest_bytes, float(np.min(held, where=~fits, initial=np.inf)))

    def seen(self) -> Memories | None:
        """What was seen of all meshes."""
        if self.leanest is None:
            return None
        mesh, place = self.leanest
        return Memories(
            least_bytes=self.least_bytes, leanest=mesh.strategy(place), nearest_bytes=self.nearest_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """An element of a mesh, with its worth."""

    worth: tuple[float, ...]
    mesh: Grid
    element: int

    def found(self) -> Found:
        """The strategy it stands for."""
        return Found(strategy=self.mesh.strategy(self.element), worth=self.worth)


@dataclass(slots=True)
class _Pool:
    """The best of every layout, and the front, of the meshes seen so far."""

    layouts: dict[tuple[float, ...], _Point] = field(default_factory=dict)
    unbeaten: list[_Point] = field(default_factory=list)

    def see(self, mesh: Grid, fits: _Mask, worth: tuple[Numbers, ...]) -> None:
        """Take a mesh into account."""
        allowed = np.where(fits, worth[0], np.inf).reshape(len(fits), -1)
        leaders = np.argmin(allowed, axis=1)
        least = np.take_along_axis(allowed, leaders[:, None], axis=1)[:, 0].tolist()
        axes = np.stack([getattr(mesh, name)[:, 0, 0] for name in AXES], axis=1).tolist()
        for place, (leader, value, layout) in enumerate(zip(leaders.tolist(), least, axes, strict=True)):
            known = self.layouts.get(tuple(layout))
            if value < (np.inf if known is None else known.worth[0]):
                element = place * allowed.shape[1] + leader
                self.layouts[tuple(layout)] = _point(mesh, element, worth)
        self._see_front(mesh, fits, worth)

    def _see_front(self, mesh: Grid, fits: _Mask, worth: tuple[Numbers, ...]) -> None:
        """Add what no point of the front so far is as good as in every objective."""
        alive = fits
        for known in self.unbeaten:
            alive = alive & _better_somewhere(worth, known.worth)
        elements = np.flatnonzero(alive)
        while len(elements):
            left = tuple(each.flat[elements] for each in worth)
            leader = _point(mesh, int(elements[np.argmin(left[0])]), worth)
            self.unbeaten = [
                each
                for each in self.unbeaten
                if any(a < b for a, b in zip(each.worth, leader.worth, strict=True))
            ]
            self.unbeaten.append(leader)
            elements = elements[_better_somewhere(left, leader.worth)]

    def best(self, num_best: int) -> tuple[Found, ...]:
        """The best of each layout, the best first."""
        ordered = sorted(self.layouts.values(), key=lambda point: point.worth[0])
        return tuple(each.found() for each in ordered[:num_best])

    def front(self) -> tuple[Found, ...]:
        """The front, the best by the first objective first."""
        return tuple(each.found() for each in sorted(self.unbeaten, key=lambda point: point.worth))


def _point(mesh: Grid, element: int, worth: tuple[Numbers, ...]) -> _Point:
    return _Point(worth=tuple(float(each.flat[element]) for each in worth), mesh=mesh, element=element)


def _better_somewhere(worth: tuple[Numbers, ...], than: tuple[float, ...]) -> _Mask:
    """Where some objective is strictly less than that of a point."""
    better = worth[0] < than[0]
    for each, bound in zip(worth[1:], than[1:], strict=True):
        better = better | (each < bound)
    return better

"""The exhaustive search: every legal strategy of a space worked out. `perfmodel.search` has to find the same.

Tests check the search against it; benchmarks time it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from equipoise.perfmodel.estimate import StepEstimates, estimate
from equipoise.perfmodel.layouts import CODES, MESH_ELEMENTS, StrategyGrid, layout_groups
from equipoise.perfmodel.load import Load, Numbers
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.search import FoundStrategy, SearchResult
from equipoise.perfmodel.space import AXES, Fault, Limits, Space, limits
from equipoise.spec.strategy import FLAGS, Strategy

# A strategy's value, less is better, from the grid and its estimates; broadcasts to the grid's shape.
Objective: TypeAlias = Callable[[StrategyGrid, StepEstimates], Numbers]
_Mask: TypeAlias = NDArray[np.bool_]


class LegalStrategies(Struct, frozen=True, kw_only=True):
    """meshes: of shape (layer options, state options, layouts), every element legal, none twice.

    faults: why layouts were left out, with their number.
    """

    meshes: tuple[StrategyGrid, ...]
    faults: Counter[Fault]

    @property
    def num_legal(self) -> int:
        """Strategies in all meshes."""
        return sum(int(np.prod(mesh.shape)) for mesh in self.meshes)


def legal_strategies(space: Space, limits: Limits, *, most_elements: int) -> LegalStrategies:
    """The legal strategies of a space as meshes of at most about `most_elements` strategies each."""
    found, (faults,) = layout_groups((space,), limits)
    meshes = tuple(part.mesh() for each in found for _, part in each.parts(most_elements))
    return LegalStrategies(meshes=meshes, faults=faults)


def strategy_at(grid: StrategyGrid, index: int) -> Strategy:
    """The strategy at a flat index of a grid's broadcast shape."""
    shape = grid.shape
    position = np.unravel_index(index, shape)
    stated: dict[str, Any] = {}
    for name in grid.__struct_fields__:
        value = np.broadcast_to(getattr(grid, name), shape)[position]
        if name in CODES:
            stated[name] = CODES[name][int(value)]
        else:
            stated[name] = bool(value) if name in FLAGS else int(value)
    return Strategy(**stated)


def search(
    load: Load,
    machine: Machine,
    space: Space,
    parameters: Parameters,
    *,
    objective: Objective,
    num_best: int = 10,
) -> SearchResult:
    """The best strategies of a space by an objective, whose value is in the place of the training's seconds.

    load, machine: of plain numbers.
    Assumes a strategy fits when what it needs is at most the accelerator's memory.
    Source: exhaustive; nothing is left out that is legal.
    """
    legal = legal_strategies(space, limits(load, machine), most_elements=MESH_ELEMENTS)
    pool = _Pool()
    num_fitting, nearest_bytes = 0, np.inf
    for mesh in legal.meshes:
        estimates = estimate(load, machine, mesh, parameters)
        needed = np.broadcast_to(estimates.memory.needed, mesh.shape)
        fits = needed <= machine.memory_bytes
        nearest_bytes = np.min(needed, where=~fits, initial=nearest_bytes)
        fitting = int(np.count_nonzero(fits))
        num_fitting += fitting
        if fitting:
            pool.add(mesh, fits, np.broadcast_to(objective(mesh, estimates), mesh.shape))
    return SearchResult(
        num_legal=legal.num_legal,
        num_fitting=num_fitting,
        best=pool.best(num_best),
        nearest_bytes=float(nearest_bytes) if np.isfinite(nearest_bytes) else None,
        faults=legal.faults,
    )


class _Point(Struct, frozen=True, kw_only=True):
    """An element of a mesh, with its value."""

    value: float
    mesh: StrategyGrid
    element: int

    def found(self) -> FoundStrategy:
        """The strategy it stands for."""
        return FoundStrategy(strategy=strategy_at(self.mesh, self.element), training_s=self.value)


class _Pool(Struct):
    """The best for each sizes of the axes, of the meshes so far."""

    by_axes: dict[tuple[float, ...], _Point] = field(default_factory=dict)

    def add(self, mesh: StrategyGrid, fits: _Mask, values: Numbers) -> None:
        """Take a mesh into account."""
        allowed = np.where(fits, values, np.inf).reshape(-1, fits.shape[-1])
        leaders = np.argmin(allowed, axis=0)
        least = np.take_along_axis(allowed, leaders[None], axis=0)[0].tolist()
        axes = np.stack([getattr(mesh, name)[0, 0] for name in AXES], axis=1).tolist()
        for number, (leader, value, sizes) in enumerate(zip(leaders.tolist(), least, axes, strict=True)):
            known = self.by_axes.get(tuple(sizes))
            if value < (np.inf if known is None else known.value):
                element = leader * allowed.shape[1] + number
                self.by_axes[tuple(sizes)] = _Point(value=value, mesh=mesh, element=element)

    def best(self, num_best: int) -> tuple[FoundStrategy, ...]:
        """The best for each sizes of the axes, the best first."""
        ordered = sorted(self.by_axes.values(), key=lambda point: point.value)
        return tuple(each.found() for each in ordered[:num_best])

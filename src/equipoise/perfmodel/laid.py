"""Legal strategies of a space laid out: places by what they allow, as meshes without a gap."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from equipoise.perfmodel.combinations import Combined
from equipoise.perfmodel.grid import Grid
from equipoise.perfmodel.legality import Limits
from equipoise.perfmodel.places import Alike
from equipoise.perfmodel.sharing import Block, blocks, places
from equipoise.perfmodel.space import Space


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
    combined = Combined(space=spaces[0], limits=limits)
    alike: dict[tuple[int, int], list[Block]] = defaultdict(list)
    faults = tuple(Counter[str]() for _ in spaces)
    layouts = count()
    for index, (space, wrong) in enumerate(zip(spaces, faults, strict=True)):
        told: set[tuple[Any, ...]] = set()
        for block in blocks(space, limits, wrong, first=(index, layouts)):
            layers, states = combined.of_layers(block), combined.of_states(block)
            for each in (layers, states):
                if each.reason and each.key not in told:
                    told.add(each.key)
                    wrong[each.reason] += 1
            if layers.allowed and states.allowed:
                alike[layers.number, states.number].append(block)
    return tuple(
        Alike(
            places=places(of),
            layers=combined.numbered[layers],
            states=combined.numbered[states],
        )
        for (layers, states), of in alike.items()
    ), faults

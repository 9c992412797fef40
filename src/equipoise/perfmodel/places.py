"""Places of a space: how ranks share samples out, and the strategies at each as open meshes without a gap."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from equipoise.perfmodel.grid import CODES, Codes, Grid, Numbers
from equipoise.perfmodel.space import LAYER_KNOBS, PLACE_KNOBS, STATE_KNOBS, Combinations
from equipoise.spec.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Sizes of the axes and of the batches: points of spaces that every other knob is combined with.

    Arrays of shape (n_places,). space: which of the spaces asked for, by its position. layout: a number of
    the axes' sizes; places of one layout differ in their batches only.
    """

    dp: Numbers
    tp: Numbers
    pp: Numbers
    cp: Numbers
    ep: Numbers
    microbatch_samples: Numbers
    global_batch_samples: Numbers
    space: Codes
    layout: Codes

    def __len__(self) -> int:
        """How many places."""
        return len(self.dp)

    def taken(self, which: Codes | slice) -> "Places":
        """Some of the places, in the order given."""
        return Places(**{each.name: getattr(self, each.name)[which] for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Places that allow the same combinations of the other knobs: LAYER_KNOBS, and STATE_KNOBS."""

    places: Places
    layers: Combinations
    states: Combinations

    @property
    def num_each(self) -> int:
        """Strategies of a place."""
        return len(self.layers) * len(self.states)

    def only(self, layers: Sequence[int], states: Sequence[int]) -> "Alike":
        """The same places with some combinations, by their numbers."""
        return replace(
            self,
            layers=tuple(self.layers[each] for each in layers),
            states=tuple(self.states[each] for each in states),
        )

    def at(self, which: Codes) -> "Alike":
        """Some of the places with the same combinations."""
        return replace(self, places=self.places.taken(which))

    def strategy(self, place: int, layer: int, state: int) -> Strategy:
        """The strategy of a place and combinations, by their numbers."""
        sizes = {name: int(getattr(self.places, name)[place]) for name in PLACE_KNOBS}
        layers = dict(zip(LAYER_KNOBS, self.layers[layer], strict=True))
        states = dict(zip(STATE_KNOBS, self.states[state], strict=True))
        return Strategy(**sizes, **layers, **states)  # type: ignore[arg-type]

    def meshes(self, most_elements: int) -> Iterator[tuple[int, Places, Grid]]:
        """The strategies as meshes of at most about `most_elements` each: first place, places and mesh."""
        each = max(1, most_elements // self.num_each)
        for start in range(0, len(self.places), each):
            places = self.places.taken(slice(start, start + each))
            yield start, places, _mesh(places, self.layers, self.states)


def _mesh(places: Places, layers: Combinations, states: Combinations) -> Grid:
    """An open mesh of places, combinations of layer knobs and combinations of state knobs."""
    columns: dict[str, Any] = {name: getattr(places, name)[:, None, None] for name in PLACE_KNOBS}
    for names, combined, shape in ((LAYER_KNOBS, layers, (1, -1, 1)), (STATE_KNOBS, states, (1, 1, -1))):
        for name, values in zip(names, zip(*combined, strict=True), strict=True):
            codes = (
                np.array([CODES[name].index(str(value)) for value in values], dtype=np.intp)
                if name in CODES
                else np.array(values, dtype=float)
            )
            # A knob with one value is one element: nothing is computed per combination for its sake.
            columns[name] = (codes[:1] if len(set(values)) == 1 else codes).reshape(shape)
    return Grid(**columns)

"""What a workload takes on each number of accelerators: searched once, whatever money and time are worth.

The best strategy of a size is its fastest, and money and energy go with the time: a change of objective,
deadline, budget or rates needs no new search.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from equipoise.advice.plans.planned import Option
from equipoise.advice.plans.setting import Setting
from equipoise.perfmodel.search import Searched
from equipoise.scaling.law import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """What a search at one size found. best: the best strategy in full; None where nothing fits.

    drawn_s: (n_draws,) equally likely times of the training by the best.
    """

    num_accelerators: int
    found: Searched
    best: Option | None
    drawn_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """A setting, and what was found at each size, from the smallest. search_s: what finding it took."""

    ground: Setting
    sized: tuple[Sized, ...] = ()
    search_s: float = 0.0

    def at(self, sizes: Collection[int]) -> tuple[Sized, ...]:
        """What was found at some sizes, from the smallest."""
        return tuple(each for each in self.sized if each.num_accelerators in sizes)


def surveyed(landscape: Landscape, sizes: Collection[int]) -> Landscape:
    """The landscape with these sizes; only those not yet in it are searched, all at once."""
    missing = sorted(set(sizes) - {each.num_accelerators for each in landscape.sized})
    if not missing:
        return landscape
    began = time.perf_counter()
    sized = sorted(
        (*landscape.sized, *_sized(landscape.ground, missing)), key=lambda each: each.num_accelerators
    )
    spent_s = time.perf_counter() - began
    return replace(landscape, sized=tuple(sized), search_s=landscape.search_s + spent_s)


def _sized(ground: Setting, sizes: Sequence[int]) -> list[Sized]:
    """What a search finds at each size."""
    found = ground.surveyed(sizes)
    timed = ground.timed([each.best[0].strategy for each in found if each.best])
    best = iter(zip(timed.options, timed.drawn_s.T, strict=True))
    nothing = (None, np.empty(0))
    sized = []
    for size, each in zip(sizes, found, strict=True):
        option, drawn_s = next(best) if each.best else nothing
        sized.append(Sized(num_accelerators=size, found=each, best=option, drawn_s=drawn_s))
    return sized

"""What a workload takes on each number of accelerators: searched once, whatever money and time are worth.

The best strategy of a size is its fastest, and money and energy go with the time: a change of objective,
deadline, budget or rates needs no new search.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from equipoise.advice.plans.planned import Option
from equipoise.advice.plans.setting import Setting
from equipoise.perfmodel.search import Searched
from equipoise.scaling.law import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """What a search at one size found: the best strategy first, then the best of the other layouts.

    drawn_s: (n_draws,) equally likely times of the training by the best; None where nothing fits.
    """

    num_accelerators: int
    found: Searched
    options: tuple[Option, ...]
    drawn_s: FloatArray | None


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
    timed = ground.timed([best.strategy for each in found for best in each.best])
    options, drawn = iter(timed.options), iter(timed.drawn_s.T)
    sized = []
    for size, each in zip(sizes, found, strict=True):
        times_s = list(islice(drawn, len(each.best)))
        sized.append(
            Sized(
                num_accelerators=size,
                found=each,
                options=tuple(islice(options, len(each.best))),
                drawn_s=times_s[0] if times_s else None,
            )
        )
    return sized

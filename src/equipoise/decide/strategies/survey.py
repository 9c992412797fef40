"""What a training takes on each number of accelerators: searched once, whatever money and time are worth.

The best strategy of a size is its fastest, and money and energy go with the time: a change of objective,
deadline, budget or prices needs no new search. `SURVEYS` keeps the last ones for who asks again.
"""

import time
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

import numpy as np

from equipoise.advice.validation.calibrated_model import USER_CALIBRATION
from equipoise.decide.field import MAX_SIZES
from equipoise.decide.strategies.problem import Problem, TimedStrategy
from equipoise.perfmodel.search import Searched
from equipoise.scaling.law import FloatArray

# Beyond so many sizes a survey forgets those that the last question did not need.
_MOST_SIZES: Final = 2 * MAX_SIZES
# Two batches identify a law of samples against batch.
_SOME_BATCH: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSearch:
    """What a search at one size found. best: the best strategy in full; None where nothing fits.

    drawn_s: (n_draws,) equally likely times of the training by the best.
    """

    num_accelerators: int
    found: Searched
    best: TimedStrategy | None
    drawn_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A problem, and what was found at each size, from the smallest. search_s: what finding it took."""

    problem: Problem
    sizes: tuple[SizeSearch, ...] = ()
    search_s: float = 0.0

    def at(self, sizes: Collection[int]) -> tuple[SizeSearch, ...]:
        """What was found at some sizes, from the smallest."""
        return tuple(each for each in self.sizes if each.num_accelerators in sizes)


def surveyed(survey: Survey, sizes: Collection[int]) -> Survey:
    """The survey with these sizes; only those not yet in it are searched, all at once."""
    missing = sorted(set(sizes) - {each.num_accelerators for each in survey.sizes})
    if not missing:
        return survey
    began = time.perf_counter()
    searched = sorted(
        (*survey.sizes, *_searched(survey.problem, missing)), key=lambda each: each.num_accelerators
    )
    spent_s = time.perf_counter() - began
    return replace(survey, sizes=tuple(searched), search_s=survey.search_s + spent_s)


def _searched(problem: Problem, sizes: Sequence[int]) -> list[SizeSearch]:
    """What a search finds at each size."""
    found = problem.surveyed(sizes)
    timed = problem.timed([each.best[0].strategy for each in found if each.best])
    best = iter(zip(timed.strategies, timed.drawn_s.T, strict=True))
    nothing = (None, np.empty(0))
    searches = []
    for size, each in zip(sizes, found, strict=True):
        fastest, drawn_s = next(best) if each.best else nothing
        searches.append(SizeSearch(num_accelerators=size, found=each, best=fastest, drawn_s=drawn_s))
    return searches


class Surveys:
    """The surveys asked for last, at most so many, each of a bounded number of sizes; thread-safe.

    What a server is asked again with other money, deadlines or sizes is searched once.
    """

    def __init__(self, most: int = 64) -> None:
        """most: how many to keep; about 0.2 MB each."""
        self._most = most
        self._kept: OrderedDict[Hashable, Survey] = OrderedDict()
        self._lock = Lock()

    def surveyed(self, problem: Problem, sizes: Collection[int]) -> Survey:
        """The survey of a problem with these sizes and no others."""
        key = _key(problem)
        with self._lock:
            known = self._kept.get(key) if key is not None else None
        found = surveyed(known or Survey(problem=problem), sizes)
        if key is not None:
            with self._lock:
                kept = found if len(found.sizes) <= _MOST_SIZES else replace(found, sizes=found.at(sizes))
                self._kept[key] = kept
                self._kept.move_to_end(key)
                while len(self._kept) > self._most:
                    self._kept.popitem(last=False)
        return replace(found, problem=problem, sizes=found.at(sizes))

    def clear(self) -> None:
        """Forget them all."""
        with self._lock:
            self._kept.clear()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)


def _key(problem: Problem) -> Hashable | None:
    """What a survey depends on; None with the user's own measurements in the model: those are not kept."""
    training, model = problem.training, problem.model
    if model.links is not None or model.calibration.name == USER_CALIBRATION:
        return None
    budget = training.budget
    return (
        training.workload,
        training.global_batch_samples,
        budget.work,
        budget.batches,
        None if budget.samples is None else budget.samples_at(1),
        None if budget.samples is None else budget.samples_at(_SOME_BATCH),
        problem.cluster,
        model.calibration.name,
        frozenset(problem.choices.items()),
        problem.num_best,
    )


SURVEYS: Final = Surveys()

"""Landscapes kept between questions: what a server is asked again with other money, deadlines or sizes."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import polars as pl

from equipoise.advice.forecast.answer import MAX_SIZES, Terms
from equipoise.advice.plans.landscape import Landscape, surveyed
from equipoise.advice.plans.plan import answered, landscape, refuse, tried
from equipoise.advice.plans.planned import Length, Plan, Question

# Beyond so many sizes a landscape forgets those that the last question did not need.
_MOST_SIZES = 2 * MAX_SIZES


@dataclass(slots=True, kw_only=True)
class _Kept:
    """A landscape, once made. scores: of which it was; held, so that no other table takes their number."""

    scores: pl.DataFrame | None
    lock: Lock = field(default_factory=Lock)
    landscape: Landscape | None = None


class Landscapes:
    """The landscapes asked about last, at most so many, each of a bounded number of sizes; thread-safe."""

    def __init__(self, most: int = 64) -> None:
        """most: how many to keep; about 0.2 MB each."""
        self._most = most
        self._kept: OrderedDict[tuple[Any, ...], _Kept] = OrderedDict()
        # With the table it is of, so that no other takes the number.
        self._lengths: OrderedDict[tuple[Any, ...], tuple[pl.DataFrame | None, Length]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def plan(
        self, question: Question, *, terms: Terms | None = None, scores: pl.DataFrame | None = None
    ) -> Plan:
        """What `plan` answers; of what is searched, only sizes that no question has asked before.

        Raises as `plan`.
        """
        kept = self._of(question, scores)
        with kept.lock:
            flat = kept.landscape or self._flat(question, scores)
            refuse(question, flat.ground, terms or Terms())
            sizes = tried(question, flat.ground)
            found = surveyed(flat, sizes)
            if len(found.sized) > _MOST_SIZES:
                found = replace(found, sized=found.at(sizes))
            kept.landscape = found
        return answered(found, question, terms=terms, scores=scores)

    def _flat(self, question: Question, scores: pl.DataFrame | None) -> Landscape:
        """A landscape with nothing searched yet; the length of a training is that on any accelerator."""
        key = (question.workload, question.training_samples, question.training_tokens, id(scores))
        with self._lock:
            _, length = self._lengths.get(key, (None, None))
        found = landscape(question, scores=scores, length=length)
        with self._lock:
            self._lengths[key] = (scores, found.ground.length)
            while len(self._lengths) > self._most:
                self._lengths.popitem(last=False)
        return found

    def _of(self, question: Question, scores: pl.DataFrame | None) -> _Kept:
        """What is kept of a question's workload and accelerator; the one used longest ago makes room."""
        key = (
            question.workload,
            question.accelerator,
            question.global_batch_samples,
            question.training_samples,
            question.training_tokens,
            frozenset(question.choices.items()),
            frozenset(question.node.items()),
            question.power_cap_w,
            question.profile,
            question.collectives,
            question.num_best,
            id(scores),
        )
        with self._lock:
            kept = self._kept.setdefault(key, _Kept(scores=scores))
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return kept

"""Exact arithmetic on spans of time: whole nanoseconds, so that parts sum to their whole."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Nanoseconds: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Spans of time that may overlap, each from start up to but not including end; both (n_spans,)."""

    start: Nanoseconds
    end: Nanoseconds


def merged(spans: Spans) -> Spans:
    """The same moments as spans that neither overlap nor touch, in order.

    >>> whole = merged(Spans(start=np.array([5, 0, 3]), end=np.array([9, 2, 6])))
    >>> whole.start.tolist(), whole.end.tolist()
    ([0, 3], [2, 9])
    """
    kept = spans.end > spans.start
    start, end = spans.start[kept], spans.end[kept]
    if start.size == 0:
        return Spans(start=start, end=end)
    order = np.argsort(start, kind="stable")
    start, reached = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Spans(start=start[first], end=reached[last])


def union(one: Spans, other: Spans) -> Spans:
    """Moments that are in either, merged."""
    return merged(
        Spans(
            start=np.concatenate([one.start, other.start]),
            end=np.concatenate([one.end, other.end]),
        )
    )


def covered_ns(whole: Spans, windows: Spans) -> Nanoseconds:
    """How much of each window is covered, in nanoseconds: (n_windows,).

    whole: merged. windows: in any order; they may overlap.

    >>> whole = Spans(start=np.array([0, 10]), end=np.array([4, 20]))
    >>> covered_ns(whole, Spans(start=np.array([2, 0, 4]), end=np.array([12, 100, 10]))).tolist()
    [4, 14, 0]
    """
    return _covered_before(whole, windows.end) - _covered_before(whole, windows.start)


def _covered_before(whole: Spans, moment: Nanoseconds) -> Nanoseconds:
    """Nanoseconds covered before each moment."""
    if whole.start.size == 0:
        return np.zeros(moment.shape, dtype=np.int64)
    total = np.concatenate([[0], np.cumsum(whole.end - whole.start)])
    place = np.searchsorted(whole.start, moment, side="right")
    last = np.maximum(place - 1, 0)
    inside = np.clip(moment, whole.start[last], whole.end[last]) - whole.start[last]
    return np.where(place > 0, total[last] + inside, 0)

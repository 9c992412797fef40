"""Intervals between `*_start` and `*_stop` events whose ranks repeat and interleave, and their unions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from equipoise.runs.readers.mlperf.dialects import Event, event_time_s, finite

Span: TypeAlias = tuple[float, float]

# Real logs hold below 10,000 spans; more than this is not kept, and then no total is stated.
MAX_SPANS = 200_000
# What says which start a stop belongs to: the first that an event states.
_PAIR_KEYS = ("epoch_num", "first_epoch_num", "samples_count", "step_num", "step")


def _pair_key(event: Event) -> float | None:
    metadata = event.get("metadata")
    if isinstance(metadata, dict):
        for key in _PAIR_KEYS:
            if key in metadata:
                value = metadata[key]
                return value if type(value) is int else finite(value)
    return None


@dataclass(slots=True)
class SpanTracker:
    """Spans found so far. A start while its span is open and a stop without a start change nothing."""

    spans: list[Span] = field(default_factory=list)
    overflow: bool = False
    _open_s: dict[float | None, float] = field(default_factory=dict)

    def start(self, event: Event) -> None:
        """Open the span of an event's epoch, samples or step."""
        time_s = event_time_s(event)
        if time_s is None:
            return
        if len(self._open_s) + len(self.spans) >= MAX_SPANS:
            self.overflow = True
            return
        self._open_s.setdefault(_pair_key(event), time_s)

    def stop(self, event: Event) -> None:
        """Close the span of the same key; where starts and stops are numbered apart, the one open longest."""
        time_s = event_time_s(event)
        if time_s is None or not self._open_s:
            return
        key = _pair_key(event)
        if key not in self._open_s:
            key = next(iter(self._open_s))
        start_s = self._open_s.pop(key)
        if time_s >= start_s:
            self.spans.append((start_s, time_s))


def union(spans: Sequence[Span], *, within: Span) -> list[Span]:
    """The spans cut to an interval, overlaps merged, in order.

    >>> union([(0, 2), (1, 3), (5, 9)], within=(0, 6))
    [(0, 3), (5, 6)]
    """
    low_s, high_s = within
    merged: list[Span] = []
    for start_s, stop_s in sorted((max(start, low_s), min(stop, high_s)) for start, stop in spans):
        if stop_s <= start_s:
            continue
        if merged and start_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop_s))
        else:
            merged.append((start_s, stop_s))
    return merged


def total_s(spans: Sequence[Span], *, within: Span) -> float:
    """Seconds that the spans cover inside an interval; time covered twice counts once."""
    return sum(stop_s - start_s for start_s, stop_s in union(spans, within=within))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockShares:
    """Seconds inside the official clock; None where the log has no such spans."""

    eval_s: float | None = None
    eval_outside_s: float | None = None
    train_block_s: float | None = None


def clock_shares(evals: SpanTracker, blocks: SpanTracker, clock: Span) -> ClockShares:
    """How much of the clock is evaluation, evaluation outside training blocks, and training blocks."""
    eval_s = total_s(evals.spans, within=clock) if evals.spans and not evals.overflow else None
    block_s = total_s(blocks.spans, within=clock) if blocks.spans and not blocks.overflow else None
    if eval_s is None or not block_s:
        return ClockShares(eval_s=eval_s, train_block_s=block_s)
    both_s = total_s([*evals.spans, *blocks.spans], within=clock)
    return ClockShares(eval_s=eval_s, eval_outside_s=max(both_s - block_s, 0.0), train_block_s=block_s)

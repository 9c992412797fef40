"""Is a series of step times steady, and which of its values are outliers? No numpy."""

from collections.abc import Sequence
from itertools import combinations
from math import erfc, pi, sqrt
from statistics import median

# 12 values: the smallest number for which the normal approximation of Kendall's S is used in textbooks is 10.
WINDOW_STEPS = 12
_LEVEL = 0.05
# A trend that changes steps by less over a window is no reason to wait, however sure it is.
_TREND_FRACTION = 0.03
# Halves that differ by more are unsteady even where scatter hides a trend, unless it explains them.
_HALVES_FRACTION = 0.05
_OUTLIER_SCORE = 3.5
_MAD_TO_SIGMA = 0.6745


def is_steady(step_s: Sequence[float], kinds: Sequence[object] | None = None) -> bool:
    """Whether the last steps show no trend and no jump that matters and that scatter does not explain.

    step_s: (n_steps,) in order of time; fewer than a window are never steady. kinds: what each step did; only
    steps of one kind are compared, so that a method may exchange in every eighth. Not steady is a window with
    a rank correlation with time that is significant at 5 % and changes steps by over 3 %, or with halves that
    differ in their medians by over 5 % and by twice the standard error of that difference.
    Assumes steps are independent but for a trend; the two fractions keep chance and autocorrelation from
    delaying a start (docs/measure/phases.md gives the rates).
    Source: Mann 1945, Kendall 1975, for kinds Hirsch et al. 1982: S of pairs within a kind, normal
    approximation, two-sided; Sen 1968: the median slope.

    >>> is_steady([1.0, 1.01] * 6), is_steady([2.0 - 0.1 * step for step in range(12)])
    (True, False)
    """
    if len(step_s) < WINDOW_STEPS:
        return False
    num_steps = max(WINDOW_STEPS, len(step_s) // 2)  # a slow start among scatter shows in a long window only
    window = step_s[-num_steps:]
    kept = [None] * num_steps if kinds is None else list(kinds[-num_steps:])
    by_kind = {kind: [at for at, each in enumerate(kept) if each == kind] for kind in kept}
    centre = {kind: median(window[at] for at in places) for kind, places in by_kind.items()}
    relative = [value / centre[kind] for value, kind in zip(window, kept, strict=True)]
    return not _drifts(relative, list(by_kind.values())) and not _jumps(relative)


def _drifts(values: Sequence[float], groups: Sequence[Sequence[int]]) -> bool:
    """Whether values follow time, surely and by enough. groups: places of those that can be compared."""
    pairs = [
        (values[early], values[late], late - early)
        for places in groups
        for early, late in combinations(places, 2)
    ]
    if not pairs:
        return False
    score = sum((later > earlier) - (later < earlier) for earlier, later, _ in pairs)
    variance = sum(len(each) * (len(each) - 1) * (2 * len(each) + 5) / 18 for each in groups)
    chance = erfc(max(0, abs(score) - 1) / sqrt(variance) / sqrt(2))
    slope = median((later - earlier) / steps for earlier, later, steps in pairs)
    return chance < _LEVEL and abs(slope) * (len(values) - 1) > _TREND_FRACTION


def _jumps(values: Sequence[float]) -> bool:
    """Whether the halves of a window differ, by enough and by more than their scatter explains."""
    half = len(values) // 2
    halves = values[:half], values[half:]
    first, second = median(halves[0]), median(halves[1])
    scatter = median([abs(value - median(part)) for part in halves for value in part]) / _MAD_TO_SIGMA
    # The median of n normal values has the standard error sqrt(pi / 2 n) sigma.
    explained = 2 * scatter * sqrt(pi / half)
    return abs(first - second) > max(_HALVES_FRACTION, explained)


def outliers(values: Sequence[float]) -> tuple[bool, ...]:
    """Which values are outliers; they are marked, never dropped.

    values: (n_values,). Returns (n_values,); none where half of the values are equal.
    Assumes the rest is about normal.
    Source: Iglewicz and Hoaglin 1993: modified z-score 0.6745 (x - median) / MAD above 3.5.

    >>> outliers([1.0, 1.1, 0.9, 1.05, 9.0])
    (False, False, False, False, True)
    """
    centre = median(values)
    spread = median(abs(value - centre) for value in values)
    return tuple(
        spread > 0 and abs(value - centre) * _MAD_TO_SIGMA / spread > _OUTLIER_SCORE for value in values
    )

"""Is a series of step times steady, and which of its values are outliers? No numpy."""

from collections.abc import Sequence
from math import erfc, sqrt
from statistics import median

# 12 values: the smallest number for which the normal approximation of Kendall's S is used in textbooks is 10.
WINDOW_STEPS = 12
_LEVEL = 0.05
# Halves of a window that differ by more are unsteady even where scatter hides a trend.
_HALVES_FRACTION = 0.05
_OUTLIER_SCORE = 3.5
_MAD_TO_SIGMA = 0.6745


def is_steady(step_s: Sequence[float]) -> bool:
    """Whether the last steps show no trend: no rank correlation with time, and halves that agree within 5 %.

    step_s: (n_steps,) in order of time; fewer than a window are never steady.
    Assumes steps are independent but for a trend.
    Source: Mann 1945, Kendall 1975: S of all pairs, normal approximation, two-sided at 5 %.

    >>> is_steady([1.0, 1.01] * 6), is_steady([2.0 - 0.1 * step for step in range(12)])
    (True, False)
    """
    window = step_s[-WINDOW_STEPS:]
    if len(window) < WINDOW_STEPS:
        return False
    pairs = [(window[i], later) for i in range(len(window)) for later in window[i + 1 :]]
    score = sum((later > earlier) - (later < earlier) for earlier, later in pairs)
    deviation = sqrt(WINDOW_STEPS * (WINDOW_STEPS - 1) * (2 * WINDOW_STEPS + 5) / 18)
    chance = erfc(max(0, abs(score) - 1) / deviation / sqrt(2))
    half = WINDOW_STEPS // 2
    first, second = median(window[:half]), median(window[half:])
    return chance >= _LEVEL and abs(first - second) <= _HALVES_FRACTION * second


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

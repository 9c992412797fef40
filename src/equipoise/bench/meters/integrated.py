"""Energy from readings: counters that begin again, and power over time. Pure."""

from collections.abc import Sequence
from itertools import pairwise


def counted_j(readings_j: Sequence[float], range_j: float) -> float:
    """Joules between the first and the last reading of a counter.

    readings_j: in order of time. range_j: the counter begins again at zero beyond it.
    Assumes it begins again at most once between two readings.
    Source: Linux Documentation/power/powercap, max_energy_range_uj.

    >>> counted_j([90.0, 98.0, 4.0, 10.0], 100.0)
    20.0
    """
    return sum(
        later - earlier if later >= earlier else later - earlier + range_j
        for earlier, later in pairwise(readings_j)
    )


def integrated_j(moments_s: Sequence[float], power_w: Sequence[float]) -> float:
    """Joules under power readings, which are joined by straight lines.

    moments_s, power_w: (n_readings,), in order of time.
    Assumes readings are of the moment; sensors that average over a while lag behind it.
    Source: the trapezoidal rule.

    >>> integrated_j([0.0, 2.0, 3.0], [100.0, 200.0, 0.0])
    400.0
    """
    points = zip(moments_s, power_w, strict=True)
    return sum((end - begun) * (low + high) / 2 for (begun, low), (end, high) in pairwise(points))


def disagreement(counter_j: float, polled_j: float) -> float:
    """How far polled power is from the counter, as a fraction of the counter.

    Assumes a counter above zero. Source: definition.

    >>> disagreement(200.0, 150.0)
    0.25
    """
    return abs(polled_j - counter_j) / counter_j

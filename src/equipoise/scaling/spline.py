"""A smooth curve through values at even steps. Arrays only."""

from collections.abc import Callable

import numpy as np

from equipoise.scaling.law import FloatArray

_FEWEST = 4


def cubic_spline(first: float, step: float, values: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """The twice smooth piecewise cubic through values at first, first + step, ...

    values: (n_curves, n_knots), at least 4 knots. The function takes (n,) places, beyond the knots too, and
    returns (n_curves, n).
    Assumes that the two pieces at either end are one cubic ("not a knot").
    Source: de Boor 1978, A Practical Guide to Splines, chapter IV, for slopes at the knots.

    >>> cube = cubic_spline(0.0, 1.0, np.arange(5.0)[None] ** 3)
    >>> cube(np.array([2.5])).round(9).tolist()
    [[15.625]]
    """
    num_knots = values.shape[1]
    assert num_knots >= _FEWEST
    rises = np.diff(values) / step
    system = 4.0 * np.eye(num_knots) + np.eye(num_knots, k=1) + np.eye(num_knots, k=-1)
    right = np.empty_like(values)
    right[:, 1:-1] = 3.0 * (rises[:, :-1] + rises[:, 1:])
    system[[0, -1]] = 0.0
    system[0, [0, 2]] = system[-1, [-3, -1]] = 1.0, -1.0
    right[:, 0] = 2.0 * (rises[:, 0] - rises[:, 1])
    right[:, -1] = 2.0 * (rises[:, -2] - rises[:, -1])
    slopes = np.linalg.solve(system, right.T).T

    def curves(at: FloatArray) -> FloatArray:
        places = (np.asarray(at) - first) / step
        piece = np.clip(np.floor(places), 0, num_knots - 2).astype(np.intp)
        # Powers of the share of a piece passed, t: Hermite's form.
        passed = places - piece
        rise, begin, end = (
            each[:, at] for each, at in ((rises, piece), (slopes, piece), (slopes, piece + 1))
        )
        bend = 3.0 * rise - 2.0 * begin - end
        twist = begin + end - 2.0 * rise
        return np.asarray(
            values[:, piece] + step * passed * (begin + passed * (bend + passed * twist)), dtype=float
        )

    return curves

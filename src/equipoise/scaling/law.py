"""What a law is: a formula of time against size, and which of its curves are plausible before any data.

The formulas stand in laws.py, fitting in fit.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """The range of sizes that was measured: fewest and most accelerators."""

    smallest: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A formula of the time for a fixed amount of training against the number of accelerators.

    params: names; those in `_s` are in seconds and scale with the amount of training, the others are ratios.
    predict_s: (num_accelerators, *params) -> seconds; arrays broadcast.
    plausible: (unit, domain) -> params for a job of about one second. unit: (n, num_shapes) in 0..1; even
    there is what is plausible before any data: it does the work of bounds and of starting points.
    """

    name: str
    params: tuple[str, ...]
    predict_s: Callable[..., FloatArray]
    plausible: Callable[[FloatArray, Domain], tuple[FloatArray, ...]]
    assumes: str
    source: str

    @property
    def num_shapes(self) -> int:
        """Parameters that decide the shape of the curve, its overall scale left out."""
        return len(self.params) - 1

    def at(self, unit: FloatArray, domain: Domain) -> FloatArray:
        """The parameters of curves of a job of about one second: (n, num_shapes) -> (n, num_params)."""
        return np.stack(self.plausible(unit, domain), axis=1)

    def scaled(self, values: FloatArray, scale: FloatArray) -> FloatArray:
        """The parameters of the same curve for a job `scale` times as long.

        values: (n, num_params). scale: (n,). Returns (n, num_params).
        """
        in_seconds = np.array([name.endswith("_s") for name in self.params])
        return np.where(in_seconds, values * scale[:, None], values)

    def times_s(self, values: FloatArray, num_accelerators: FloatArray) -> FloatArray:
        """Seconds of each curve at each size: (n, num_params) and (n_sizes,) -> (n, n_sizes)."""
        columns = (column[:, None] for column in values.T)
        return np.broadcast_to(
            self.predict_s(num_accelerators, *columns), (len(values), len(num_accelerators))
        ).astype(np.float64)

"""The seam of validation: what turns rows of measurements into predictions that were fitted to some of
them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.perfmodel.parameters import Parameters
from equipoise.runs.readers.published.rows import PublishedRow

Indices: TypeAlias = NDArray[np.intp]
Seconds: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Parameters that were fitted before, how wrong they were, and the files they were fitted to.

    log_half_width: of the 90 % interval of the logarithm of a time.
    """

    name: str
    parameters: Parameters
    log_half_width: float
    file_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """Predicted seconds of all rows of a task, and how uncertain they are before any row is known.

    seconds: (n_rows,), NaN where a row is not expressed. prior_log_sd: (n_rows,), of the logarithm; what the
    beliefs about every parameter leave open where nothing was fitted, else NaN or None.
    further_log_sd: (n_rows,), what parameters leave open of a row beyond what they do of the rows fitted to.
    memory_bytes: (n_rows,), what frameworks report on the fullest accelerator; None where none is foretold.
    bases: what each row rests on where that was fitted before; None where it is rows or beliefs.
    """

    seconds: Seconds
    prior_log_sd: Seconds | None = None
    further_log_sd: Seconds | None = None
    memory_bytes: NDArray[np.float64] | None = None
    bases: tuple[Basis | None, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Rows as one predictor sees them.

    reasons: a row each; why it is not expressed, None where it is. given: rows that others are foretold from,
    and that are not foretold themselves. foretell: fits to the rows of some indices, or to none, and
    foretells all.
    """

    reasons: tuple[str | None, ...]
    foretell: Callable[[Indices], Foretold]
    given: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """One way to foretell rows: its name, which of all rows are its own, and how it begins with those."""

    name: str
    claims: Callable[[Sequence[PublishedRow]], Sequence[bool]]
    begin: Callable[[Sequence[PublishedRow]], Task]


def cluster_weights(clusters: NDArray[np.intp]) -> NDArray[np.float64]:
    """Weights with which every cluster counts once: one over the rows it has, shape as the clusters'."""
    _, inverse, counts = np.unique(clusters, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[inverse])

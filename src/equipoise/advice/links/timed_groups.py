"""Timed collectives of one operation over one group: files and repetitions of a size together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.advice.links.collectives import LARGE_BYTES
from equipoise.advice.links.spoken import Spoken
from equipoise.bench.collectives.timing import Run
from equipoise.perfmodel.collectives import NOISE_LOG_SD, Timings, timings
from equipoise.perfmodel.machine import Group

Numbers: TypeAlias = NDArray[np.float64]

# More sizes say nothing more; beyond, they are thinned evenly.
MOST_SIZES = 200
# Around a ring or along trees: of these the law knows the steps of short messages too.
RINGS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One operation over one group: sizes from the smallest, the median time of each; (n_sizes,)."""

    operation: str
    group: Group
    payload_bytes: Numbers
    seconds: Numbers
    log_error: Numbers
    spread: float
    runs: tuple[Run, ...]

    @property
    def is_inside(self) -> bool:
        """Whether it stayed inside a node."""
        return float(self.group.num_nodes) <= 1

    def points(self) -> Timings | None:
        """What the law is fitted to, as one row of points; None where the law says nothing of them."""
        kept = (self.operation in RINGS) | (self.payload_bytes >= LARGE_BYTES)
        if not kept.any():
            return None
        return timings(
            self.operation,
            self.payload_bytes[kept],
            self.seconds[kept],
            ranks_per_node=self.group.ranks_per_node,
            num_nodes=self.group.num_nodes,
            log_error=self.log_error[kept],
        )


def pooled(heard: Spoken) -> tuple[Timed, ...]:
    """Runs of one operation over one group together, in order: files may come in any."""
    together: dict[tuple[str, float, float], list[Run]] = {}
    groups: dict[tuple[str, float, float], Group] = {}
    for each in heard.used:
        key = (each.run.operation, float(each.group.ranks_per_node), float(each.group.num_nodes))
        together.setdefault(key, []).append(each.run)
        groups[key] = each.group
    return tuple(_of_group(key[0], groups[key], together[key]) for key in sorted(together))


def _of_group(operation: str, group: Group, runs: Sequence[Run]) -> Timed:
    rows = [
        (float(timing.payload_bytes), seconds, timing.resolution)
        for run in runs
        for timing in run.timings
        for seconds in timing.seconds
    ]
    payload, seconds, resolution = np.array(rows).T
    sizes = np.unique(payload)
    if sizes.size > MOST_SIZES:
        sizes = sizes[np.unique(np.linspace(0, sizes.size - 1, MOST_SIZES).astype(int))]
    alike = [payload == size for size in sizes]
    medians = np.array([np.median(seconds[each]) for each in alike])
    left = np.concatenate(
        [np.log(seconds[each] / middle) for each, middle in zip(alike, medians, strict=True)]
    )
    return Timed(
        operation=operation,
        group=group,
        payload_bytes=sizes,
        seconds=medians,
        log_error=np.array([np.median(resolution[each]) for each in alike]),
        spread=float(np.hypot(NOISE_LOG_SD, np.sqrt(np.mean(left**2)))),
        runs=tuple(runs),
    )

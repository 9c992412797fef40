"""K-means groups of the systems of one workload: how many, how stable, and what each one is in words."""

from dataclasses import dataclass

from equipoise.stats import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group of systems; `cluster` is its number in the entries' column of that name, smallest systems first."""

    cluster: int
    num_entries: int
    min_accelerators: int
    max_accelerators: int
    min_s: float
    max_s: float
    median_relative_efficiency: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """The groups of one workload's systems, with how they were found.

    features: what the distance is measured in, e.g. `log2 accelerators`. scaling: what was done to each feature.
    silhouettes: (k, mean silhouette) for each k tried; empty when k was given.
    stability: adjusted Rand index between these groups and those of bootstrap resamples; 1 is always the same.
    """

    features: tuple[str, ...]
    scaling: str
    k: int
    chosen_by: str
    silhouettes: tuple[tuple[int, float], ...]
    stability: Interval
    num_resamples: int
    groups: tuple[Group, ...]
    words: str

"""K-means groups of the systems of one workload: how many, how stable, and what each one is in words."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from equipoise.errors import EvidenceError, UsageError
from equipoise.scaling.metrics import MEASURED
from equipoise.stats import Interval, percentile_interval
from equipoise.units import format_count, format_duration

# The two axes of the study's figure. Time is not a third feature: on a log scale it is fixed by these two
# (T = T_ref N_ref / (E' N)) and would weigh one direction twice.
FEATURES = ("log2 accelerators", "log2 E'")
SCALING = "each feature to mean 0 and standard deviation 1 over the workload's systems"

# More groups than this cannot be kept apart in a figure or named in words.
MAX_GROUPS = 8
# Beyond these an efficiency is a slip of the pen, and its logarithm would outweigh everything else.
MIN_EFFICIENCY = 1e-12
NUM_STARTS = 10
NUM_RESAMPLES = 100
LEVEL = 0.9

# Above this the groups come back in a resample; Steinley 2004 calls 0.65 moderate and 0.8 good recovery.
STABLE_RAND_INDEX = 0.8
LOOSE_RAND_INDEX = 0.65


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group of systems; `cluster` is its number in the entries' column of that name, smallest first."""

    cluster: int
    num_entries: int
    min_accelerators: int
    max_accelerators: int
    min_s: float
    max_s: float
    median_relative_efficiency: float
    accelerators: tuple[str, ...]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """The groups of one workload's systems, with how they were found.

    features: what the distance is measured in. scaling: what was done to each feature.
    silhouettes: (k, mean silhouette) for each k tried; empty when k was given.
    stability: adjusted Rand index between these groups and those of bootstrap resamples; 1 is always the
    same.
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


def grouped(entries: pl.DataFrame, *, k: int | None = None, seed: int = 0) -> tuple[Grouping, pl.DataFrame]:
    """The groups of the systems, and the entries with the number of each one's group in the column `cluster`.

    entries: a frame `with_metrics` returned, of one round, workload and division.
    k: number of groups; None chooses the highest mean silhouette (ties: fewer groups).
    Raises EvidenceError when fewer than three systems differ in size or efficiency, UsageError when k < 2.
    Assumes groups are round in the features; `stability` says how far that can be trusted.
    Source: Lloyd 1982; Rousseeuw 1987 (silhouette); Hubert and Arabie 1985 (adjusted Rand index).
    """
    if k is not None and k <= 1:
        raise UsageError(f"k={k}: expected at least 2 groups; leave it out to choose by silhouette")
    rows = (
        entries.with_row_index("_row")
        .filter(MEASURED & pl.col("relative_efficiency").is_between(MIN_EFFICIENCY, 1 / MIN_EFFICIENCY))
        .sort("entry_id")
    )
    points = _scaled(
        rows.select(pl.col("num_accelerators").log(2), pl.col("relative_efficiency").log(2)).to_numpy()
    )
    num_distinct = len(np.unique(points.round(9), axis=0))
    if num_distinct < max(3, k or 0):
        raise EvidenceError(
            f"{num_distinct} systems that differ in accelerators or efficiency; {k or 2} groups need at "
            f"least {max(3, k or 0)}",
            missing=("more systems with an official score in this round and workload",),
        )
    with _light_sklearn():
        silhouettes = () if k else _silhouettes(points, num_distinct=num_distinct, seed=seed)
        chosen = k or max(silhouettes, key=lambda tried: (tried[1], -tried[0]))[0]
        clusters = _by_size(_clusters(points, chosen, seed=seed), points)
        stability = _stability(points, clusters, seed=seed)
    labelled = rows.with_columns(cluster=pl.Series(clusters, dtype=pl.Int64))
    groups = _groups(labelled)
    grouping = Grouping(
        features=FEATURES,
        scaling=SCALING,
        k=chosen,
        chosen_by="given" if k else "the highest mean silhouette",
        silhouettes=silhouettes,
        stability=stability,
        num_resamples=NUM_RESAMPLES,
        groups=groups,
        words=_grouping_words(groups, stability),
    )
    cluster_of_row = labelled.select("_row", "cluster")
    marked = entries.with_row_index("_row").join(cluster_of_row, on="_row", how="left", maintain_order="left")
    return grouping, marked.drop("_row")


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each column at mean 0 and standard deviation 1; a constant column becomes zeros."""
    spread = values.std(axis=0)
    centred: NDArray[np.float64] = values - values.mean(axis=0)
    return centred / np.where(spread > 1e-12, spread, 1.0)  # noqa: PLR2004 - rounding of equal logarithms


@contextmanager
def _light_sklearn() -> Iterator[None]:
    """scikit-learn on one thread and without checking its arguments anew at each of hundreds of tiny fits.

    Threads that spin for each other on a busy machine made grouping 29 systems seven times slower.
    """
    from sklearn import config_context
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1), config_context(assume_finite=True, skip_parameter_validation=True):
        yield


def _clusters(points: NDArray[np.float64], k: int, *, seed: int) -> NDArray[np.int64]:
    from sklearn.cluster import KMeans

    model = KMeans(n_clusters=k, n_init=NUM_STARTS, random_state=seed)
    return np.asarray(model.fit_predict(points), dtype=np.int64)


def _silhouettes(
    points: NDArray[np.float64], *, num_distinct: int, seed: int
) -> tuple[tuple[int, float], ...]:
    from sklearn.metrics import silhouette_score

    largest = min(MAX_GROUPS, num_distinct - 1)
    return tuple(
        (k, float(silhouette_score(points, _clusters(points, k, seed=seed)))) for k in range(2, largest + 1)
    )


def _by_size(clusters: NDArray[np.int64], points: NDArray[np.float64]) -> NDArray[np.int64]:
    """The same groups, numbered 1.. by mean size, then mean efficiency: K-means numbers at random."""
    order = sorted(
        set(clusters.tolist()), key=lambda cluster: tuple(points[clusters == cluster].mean(axis=0))
    )
    number = {cluster: position for position, cluster in enumerate(order, start=1)}
    return np.array([number[cluster] for cluster in clusters.tolist()], dtype=np.int64)


def _stability(points: NDArray[np.float64], clusters: NDArray[np.int64], *, seed: int) -> Interval:
    """How alike the groups of bootstrap resamples are to these, as an adjusted Rand index over all systems.

    Each resample is grouped anew; every system then joins the nearest of its centres.
    Source: Hennig 2007, bootstrap assessment of clusters.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score

    k = int(clusters.max())
    rng = np.random.default_rng(seed)
    alike: list[float] = []
    while len(alike) < NUM_RESAMPLES:
        resample = points[rng.integers(0, len(points), size=len(points))]
        num_distinct = len(np.unique(resample, axis=0))
        # A resample of few systems may repeat one so often that it cannot hold k groups: it gets as many as
        # it can.
        model = KMeans(n_clusters=min(k, num_distinct), n_init=3, random_state=len(alike)).fit(resample)
        alike.append(float(adjusted_rand_score(clusters, model.predict(points))))
    return percentile_interval(alike, value=float(np.median(alike)), level=LEVEL)


def _groups(labelled: pl.DataFrame) -> tuple[Group, ...]:
    rows = (
        labelled.group_by("cluster")
        .agg(
            num_entries=pl.len(),
            min_accelerators=pl.col("num_accelerators").min(),
            max_accelerators=pl.col("num_accelerators").max(),
            min_s=pl.col("score_s").min(),
            max_s=pl.col("score_s").max(),
            median_relative_efficiency=pl.col("relative_efficiency").median(),
            accelerators=pl.col("accelerator").drop_nulls().unique().sort(),
        )
        .sort("cluster")
        .to_dicts()
    )
    efficiencies = [row["median_relative_efficiency"] for row in rows]
    return tuple(
        Group(
            **{**row, "accelerators": tuple(row["accelerators"])},
            words=f"{_members_words(row)}: {_place_words(rows, position, efficiencies)}",
        )
        for position, row in enumerate(rows)
    )


def _members_words(row: dict[str, float]) -> str:
    """What the members have in common: `16 systems of 8-64 accelerators, 3.0-9.1 min, median E' 4.2`."""
    noun = "system" if row["num_entries"] == 1 else "systems"
    sizes = _range_words(format_count(row["min_accelerators"]), format_count(row["max_accelerators"]))
    # One unit for both ends, or a reader compares seconds with minutes.
    low, high = format_duration(row["min_s"]), format_duration(row["max_s"])
    if low.split()[-1] == high.split()[-1]:
        low = low.split()[0]
    return (
        f"{row['num_entries']} {noun} of {sizes} accelerators, {_range_words(low, high)}, median E' "
        f"{row['median_relative_efficiency']:.3g}"
    )


def _range_words(low: str, high: str) -> str:
    return high if low == high.partition(" ")[0] else f"{low}-{high}"


def _place_words(rows: Sequence[dict[str, float]], position: int, efficiencies: Sequence[float]) -> str:
    """Where a group stands among the others, from its members' sizes and efficiency."""
    size = "the smallest" if position == 0 else "the largest" if position == len(rows) - 1 else "in between"
    efficiency = efficiencies[position]
    if efficiency == max(efficiencies):
        return f"{size}, and the most efficient"
    if efficiency == min(efficiencies):
        return f"{size}, and the least efficient"
    return f"{size}, at {efficiency / max(efficiencies):.2g} of the best group's efficiency"


def _grouping_words(groups: Sequence[Group], stability: Interval) -> str:
    if stability.value >= STABLE_RAND_INDEX:
        trust = "the groups come back in most resamples"
    elif stability.value >= LOOSE_RAND_INDEX:
        trust = "the groups come back only roughly in resamples"
    else:
        trust = "the groups change from resample to resample: read them as a drawing, not as a finding"
    return (
        f"{len(groups)} groups; {trust} (adjusted Rand index {stability.value:.2f}, {stability.low:.2f} to "
        f"{stability.high:.2f})."
    )

"""K-means groups of one workload's systems, and systems with results in several workloads."""

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
import polars as pl
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.errors import EvidenceError, UsageError
from equipoise.intervals import LEVEL, Interval
from equipoise.scaling.laws import FloatArray
from equipoise.scaling.metrics import MEASURED
from equipoise.stats import percentile_interval
from equipoise.units import format_count, format_duration, plural

# The two axes of the study's figure. Time is not a third feature: on a log scale it is fixed by these two
# (T = T_ref N_ref / (E' N)) and would weigh one direction twice.
FEATURES = ("log2 accelerators", "log2 E'")
SCALING = "each feature to mean 0 and standard deviation 1 over the workload's systems"

# More groups cannot be distinguished in a figure or in text.
MAX_GROUPS = 8
# An efficiency outside this range is a mistake, and its logarithm would dominate all others.
MIN_EFFICIENCY = 1e-12
_SEED = 0
NUM_STARTS = 50
NUM_RESAMPLES = 100
_RESAMPLE_STARTS = 5
_MAX_ITERATIONS = 300  # of Lloyd's algorithm, which usually converges after a few

# Above this, groups are stable in resamples; Steinley 2004 calls 0.65 moderate and 0.8 good recovery.
STABLE_RAND_INDEX = 0.8
LOOSE_RAND_INDEX = 0.65


class SystemGroup(Struct, frozen=True, kw_only=True):
    """One group of systems. cluster: its number in the entries' column `cluster`, smallest systems first."""

    cluster: int
    num_entries: int
    min_accelerators: int
    max_accelerators: int
    min_s: float
    max_s: float
    median_relative_efficiency: float
    accelerators: tuple[str, ...]
    words: str


class Grouping(Struct, frozen=True, kw_only=True):
    """The groups of one workload's systems, and the method.

    features: in which distances are measured. scaling: applied to each feature. silhouettes: (k, mean
    silhouette) for each k tried; empty if k was given. stability: adjusted Rand index with groups of
    bootstrap resamples; 1 if always equal.
    """

    features: tuple[str, ...]
    scaling: str
    k: int
    chosen_by: str
    silhouettes: tuple[tuple[int, float], ...]
    stability: Interval
    num_resamples: int
    groups: tuple[SystemGroup, ...]
    words: str


def grouped(entries: pl.DataFrame, *, k: int | None = None) -> tuple[Grouping, pl.DataFrame]:
    """The groups of the systems, and the entries with their group's number in the column `cluster`.

    entries: from `with_metrics`, of one round, workload and division.
    k: number of groups; None chooses the highest mean silhouette (ties: fewer groups).
    Raises EvidenceError if fewer than three systems differ in size or efficiency, UsageError if k < 2.
    Assumes spherical groups in the features; `stability` shows how reliable they are.
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
    silhouettes = () if k else _silhouettes(points, num_distinct=num_distinct)
    chosen = k or max(silhouettes, key=lambda tried: (tried[1], -tried[0]))[0]
    clusters = _by_size(_clusters(points, chosen), points)
    stability = _stability(points, clusters)
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


def _scaled(values: FloatArray) -> FloatArray:
    """Columns standardised to mean 0 and standard deviation 1; a constant column becomes zeros."""
    spread = values.std(axis=0)
    centred: FloatArray = values - values.mean(axis=0)
    return centred / np.where(spread > 1e-12, spread, 1.0)  # noqa: PLR2004 - rounding of equal logarithms


def _squares(points: FloatArray, centres: FloatArray) -> FloatArray:
    """Squared distances of every point (..., n, d) from every centre (..., k, d): (..., n, k)."""
    return np.asarray(((points[..., :, None, :] - centres[..., None, :, :]) ** 2).sum(axis=-1))


def k_means(samples: FloatArray, k: int, *, num_starts: int, rng: np.random.Generator) -> FloatArray:
    """The k centres of each sample, (n_samples, n, d) -> (n_samples, k, d), with the least squared distances.

    num_starts: number of starts, of which the best is used. A sample of fewer than k distinct points has
    repeated centres.
    Source: Lloyd 1982; starts by Arthur and Vassilvitskii 2007 (greedy k-means++).
    """
    num_samples, num_points, _ = samples.shape
    points = samples[:, None]  # the starts of a sample share its points
    shape = (num_samples, num_starts)
    num_tries = 2 + int(np.log(k))  # candidates per further centre, of which the best is used
    chosen = rng.integers(0, num_points, size=shape)
    centres = np.empty((*shape, k, samples.shape[2]))
    at_sample = np.arange(num_samples)[:, None]
    centres[:, :, 0] = samples[at_sample, chosen]
    nearest = _squares(points, centres[:, :, :1])[..., 0]
    for i in range(1, k):
        summed = nearest.cumsum(axis=-1)
        drawn = rng.random((*shape, num_tries)) * summed[..., -1:]
        tried = np.minimum((summed[..., None, :] <= drawn[..., None]).sum(axis=-1), num_points - 1)
        candidates = samples[at_sample[..., None], tried]
        left = np.minimum(nearest[..., None], _squares(points, candidates))
        best = left.sum(axis=-2).argmin(axis=-1)[..., None]
        centres[:, :, i] = np.take_along_axis(candidates, best[..., None], axis=-2)[:, :, 0]
        nearest = np.take_along_axis(left, best[..., None, :], axis=-1)[..., 0]
    held = None
    for _ in range(_MAX_ITERATIONS):
        clusters = _squares(points, centres).argmin(axis=-1)
        if held is not None and (clusters == held).all():
            break
        held = clusters
        member = (clusters[..., None] == np.arange(k)).astype(float)
        counts = member.sum(axis=-2)[..., None]
        means = member.swapaxes(-1, -2) @ points / np.maximum(counts, 1.0)
        centres = np.where(counts > 0.0, means, centres)  # a centre without points stays
    lost = _squares(points, centres).min(axis=-1).sum(axis=-1)
    return np.asarray(centres[np.arange(num_samples), lost.argmin(axis=-1)])


def _clusters(points: FloatArray, k: int) -> NDArray[np.int64]:
    centres = k_means(points[None], k, num_starts=NUM_STARTS, rng=np.random.default_rng(_SEED))[0]
    return np.asarray(_squares(points, centres).argmin(axis=-1), dtype=np.int64)


def silhouette(points: FloatArray, clusters: NDArray[np.int64]) -> float:
    """The mean silhouette of points (n, d), from -1 to 1; a point alone in its group counts as 0.

    Source: Rousseeuw 1987.
    """
    member = (clusters[:, None] == np.unique(clusters)).astype(float)
    counts = member.sum(axis=0)
    summed = np.sqrt(_squares(points, points)) @ member  # sum of distances from each point to each group
    own = (summed * member).sum(axis=1) / np.maximum(member @ counts - 1.0, 1.0)
    other = np.where(member > 0.0, np.inf, summed / counts).min(axis=1)
    most = np.maximum(own, other)
    values = np.where((member @ counts > 1.0) & (most > 0.0), (other - own) / np.where(most > 0, most, 1), 0)
    return float(values.mean())


def _silhouettes(points: FloatArray, *, num_distinct: int) -> tuple[tuple[int, float], ...]:
    largest = min(MAX_GROUPS, num_distinct - 1)
    return tuple((k, silhouette(points, _clusters(points, k))) for k in range(2, largest + 1))


def _by_size(clusters: NDArray[np.int64], points: FloatArray) -> NDArray[np.int64]:
    """The groups renumbered from 1 by mean size, then mean efficiency; K-means numbers them arbitrarily."""
    order = sorted(
        set(clusters.tolist()), key=lambda cluster: tuple(points[clusters == cluster].mean(axis=0))
    )
    number = {cluster: position for position, cluster in enumerate(order, start=1)}
    return np.array([number[cluster] for cluster in clusters.tolist()], dtype=np.int64)


def _stability(points: FloatArray, clusters: NDArray[np.int64]) -> Interval:
    """Adjusted Rand index, over all systems, between these groups and those of bootstrap resamples.

    Each resample is clustered, and every system is assigned to the nearest of its centres.
    Source: Hennig 2007, bootstrap assessment of clusters.
    """
    k = int(clusters.max())
    rng = np.random.default_rng(_SEED)
    resamples = points[rng.integers(0, len(points), size=(NUM_RESAMPLES, len(points)))]
    centres = k_means(resamples, k, num_starts=_RESAMPLE_STARTS, rng=rng)
    agreement = adjusted_rand_indices(clusters, _squares(points, centres).argmin(axis=-1))
    return percentile_interval(agreement, value=float(np.median(agreement)), level=LEVEL)


def adjusted_rand_indices(clusters: NDArray[np.int64], others: NDArray[np.int64]) -> FloatArray:
    """Adjusted Rand index of one grouping (n,) with each of others (n_others, n): 1 if equal, 0 by chance.

    Source: Hubert and Arabie 1985, equation 5.
    """

    def pairs(counts: FloatArray) -> FloatArray:
        return counts * (counts - 1.0) / 2.0

    member = (clusters[:, None] == np.unique(clusters)).astype(float)
    other = (others[..., None] == np.unique(others)).astype(float)
    together = pairs(member.T @ other).sum(axis=(-2, -1))
    of_one, of_other = pairs(member.sum(axis=0)).sum(), pairs(other.sum(axis=-2)).sum(axis=-1)
    by_chance = of_one * of_other / math.comb(len(clusters), 2)
    most = (of_one + of_other) / 2.0
    same = most == by_chance
    return np.where(same, 1.0, (together - by_chance) / np.where(same, 1.0, most - by_chance))


def _groups(labelled: pl.DataFrame) -> tuple[SystemGroup, ...]:
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
        SystemGroup(
            **{**row, "accelerators": tuple(row["accelerators"])},
            words=f"{_members_words(row)}: {_place_words(rows, position, efficiencies)}",
        )
        for position, row in enumerate(rows)
    )


def _members_words(row: dict[str, float]) -> str:
    """Summary of the members: `16 systems of 8-64 accelerators, 3.0-9.1 min, median E' 4.2`."""
    noun = "system" if row["num_entries"] == 1 else "systems"
    sizes = _range_words(format_count(row["min_accelerators"]), format_count(row["max_accelerators"]))
    # The unit is omitted from the low end only if both ends have the same one.
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
    """Comparison of a group with the others by size and efficiency, as text."""
    size = "the smallest" if position == 0 else "the largest" if position == len(rows) - 1 else "in between"
    efficiency = efficiencies[position]
    if efficiency == max(efficiencies):
        return f"{size}, and the most efficient"
    if efficiency == min(efficiencies):
        return f"{size}, and the least efficient"
    return f"{size}, at {efficiency / max(efficiencies):.2g} of the best group's efficiency"


def _grouping_words(groups: Sequence[SystemGroup], stability: Interval) -> str:
    if stability.value >= STABLE_RAND_INDEX:
        trust = "the groups come back in most resamples"
    elif stability.value >= LOOSE_RAND_INDEX:
        trust = "the groups come back only roughly in resamples"
    else:
        trust = "the groups change from resample to resample: treat them as an illustration, not as a finding"
    return (
        f"{len(groups)} groups; {trust} (adjusted Rand index {stability.value:.2f}, {stability.low:.2f} to "
        f"{stability.high:.2f})."
    )


class SharedSystems(Struct, frozen=True, kw_only=True):
    """Systems with a score in every chosen workload, and machine families with the same sizes in every one.

    table: per system and workload: submitter, system, accelerator, num_accelerators, workload, score_s,
    relative_efficiency, like_for_like_efficiency, rank (1 = shortest time among the shared systems).
    families: from `families`. num_published: number of systems in the study; None where it does not cover
    these workloads.
    """

    num_systems: int
    table: pl.DataFrame
    families: pl.DataFrame
    num_published: int | None
    words: str


def shared_systems(
    entries_by_workload: Mapping[str, pl.DataFrame], *, num_published: int | None = None
) -> SharedSystems:
    """The systems present in all of the workloads.

    entries_by_workload: frames from `with_metrics` by slug.
    A system is identified by submitter and folder name; names that include the software differ between
    workloads.
    """
    names = ("submitter", "system")
    present = [entries.filter(MEASURED).select(names).unique() for entries in entries_by_workload.values()]
    in_all = reduce(lambda left, right: left.join(right, on=names, how="semi", nulls_equal=True), present)
    systems = (
        pl.concat(
            entries.filter(MEASURED)
            .join(in_all, on=names, how="semi", nulls_equal=True)
            .select(
                *names, "accelerator", "num_accelerators", pl.lit(workload).alias("workload"), "score_s",
                "relative_efficiency", "like_for_like_efficiency",
            )
            for workload, entries in entries_by_workload.items()
        )
        .with_columns(rank=pl.col("score_s").rank("min").over("workload").cast(pl.Int64))
        .sort(*names, "workload")
    )  # fmt: skip
    return SharedSystems(
        num_systems=in_all.height,
        table=systems,
        families=families(entries_by_workload),
        num_published=num_published,
        words=_words(systems, in_all.height, len(entries_by_workload), num_published),
    )


def families(entries_by_workload: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Scaling of each machine family over the same range of sizes in every workload.

    A family is one submitter's systems of one accelerator. The range is from the smallest to the largest size
    that the family has in all workloads; families without two such sizes are omitted.
    Returns submitter, accelerator, from_accelerators, to_accelerators, workload, efficiency (best score at
    either end: speedup / growth in accelerators), from_id, to_id; most workload-independent comparison first:
    widest range.
    """
    family = ("submitter", "accelerator")
    sizes = (*family, "num_accelerators")
    best = {workload: _best_by_family(entries) for workload, entries in entries_by_workload.items()}
    common = reduce(lambda left, right: left.join(right.select(sizes), on=sizes, how="semi"), best.values())
    ranges = (
        common.group_by(family)
        .agg(
            from_accelerators=pl.col("num_accelerators").min(),
            to_accelerators=pl.col("num_accelerators").max(),
        )
        .filter(pl.col("from_accelerators") < pl.col("to_accelerators"))
    )
    rows = []
    for workload, frame in best.items():
        start = frame.rename(
            {"num_accelerators": "from_accelerators", "score_s": "_from_s", "entry_id": "from_id"}
        )
        end = frame.rename({"num_accelerators": "to_accelerators", "score_s": "_to_s", "entry_id": "to_id"})
        rows.append(
            ranges.join(start, on=(*family, "from_accelerators"))
            .join(end, on=(*family, "to_accelerators"))
            .with_columns(
                workload=pl.lit(workload),
                efficiency=pl.col("_from_s") * pl.col("from_accelerators")
                / (pl.col("_to_s") * pl.col("to_accelerators")),
            )
            .select(
                *family, "from_accelerators", "to_accelerators", "workload", "efficiency", "from_id", "to_id"
            )
        )  # fmt: skip
    growth = pl.col("to_accelerators") / pl.col("from_accelerators")
    return pl.concat(rows).sort(growth, *family, "workload", descending=[True, False, False, False])


def _best_by_family(entries: pl.DataFrame) -> pl.DataFrame:
    """The best entry of each family at each size."""
    size = ("submitter", "accelerator", "num_accelerators")
    return (
        entries.filter(MEASURED & pl.col("accelerator").is_not_null())
        .sort("score_s", "entry_id")
        .unique(size, keep="first", maintain_order=True)
        .select(*size, "score_s", "entry_id")
    )


def _words(systems: pl.DataFrame, num_systems: int, num_workloads: int, num_published: int | None) -> str:
    if num_workloads == 1:
        return "One workload was chosen: there is nothing to compare across."
    have = "has" if num_systems == 1 else "have"
    counted = f"{plural(num_systems, 'system')} {have} a score in all {num_workloads} workloads"
    if num_published is not None and num_published != num_systems:
        counted += f" (the study counts {num_published}, and does not list them)"
    if num_systems <= 1:
        return f"{counted}."
    order = systems.group_by("submitter", "system").agg(
        spread=pl.col("rank").max() - pl.col("rank").min(), first=(pl.col("rank") == 1).sum()
    )
    winner = order.sort("first", "submitter", "system", descending=[True, False, False]).row(0, named=True)
    moves = float(np.median(order["spread"].to_numpy()))
    return (
        f"{counted}; {winner['submitter']}/{winner['system']} is the fastest of them in {winner['first']} of "
        f"{num_workloads}; the median system changes its rank by {moves:.3g} between its best and its worst "
        "workload."
    )

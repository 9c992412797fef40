"""Speedup, E', like-for-like E and energy per sample: a `scores` frame in, the same with columns out."""

import polars as pl

# What `equipoise.scores()` returns and `equipoise scores --json` prints, in this order.
SCORE_COLUMNS = (
    "round", "division", "availability", "submitter", "system", "workload", "accelerator", "num_accelerators",
    "num_nodes", "score_s", "lenient_s", "unscaled_s", "convergence_scaling", "num_runs", "num_failed",
    "num_missing", "min_s", "max_s", "global_batch_samples", "samples_to_target", "energy_j", "speedup",
    "relative_efficiency", "like_for_like_efficiency", "like_for_like_baseline", "source_uri", "source_line",
    "reason", "samples_per_s_per_accelerator",
)  # fmt: skip

# What the entries of a study carry besides: identity, context, and what the study computed.
ENTRY_COLUMNS = (
    *SCORE_COLUMNS,
    "entry_id", "is_reference", "like_for_like_baseline_id", "framework", "samples_per_s", "eval_s", "init_s",
    "energy_j_per_sample", "cluster",
    "generation", "statistical", "throughput", "training", "overhead", "rules", "factors_missing",
)  # fmt: skip

# One reference for each of these. A division is its own world: open entries may train another model to
# another target.
PEERS = ("campaign", "workload", "division")

# Where the metrics are defined: a score, and accelerators to divide by (CPU entries count none).
_DEFINED = (
    pl.col("score_s").is_finite()
    & (pl.col("score_s") > 0)
    & (pl.col("num_accelerators") > 0)
).fill_null(value=False)  # fmt: skip

# Rows that `with_metrics` could measure: those to compare.
MEASURED = pl.col("speedup").is_not_null()


def with_metrics(scores: pl.DataFrame) -> pl.DataFrame:
    """The entries with speedup, efficiencies, reference and baseline, and energy and throughput per unit.

    scores: a frame of the table `scores`; every round and workload in it gets its own reference.
    Returns the rows in their order, with columns added: speedup, relative_efficiency, is_reference,
    reference_id, like_for_like_efficiency, like_for_like_baseline (submitter/system),
    like_for_like_baseline_id, samples_per_s_per_accelerator, energy_j_per_sample. Null where an entry has no
    score or no accelerators.
    Assumes official scores: convergence scaling is inside.
    Source: arXiv 2509.03263 equations 1-3; the like-for-like baseline is DESIGN's definition.
    """
    baseline_name = pl.concat_str("submitter", "system", separator="/", ignore_nulls=True)
    ordered = (
        scores.with_row_index("_row")
        # Fewest accelerators first; among those the slowest is the reference.
        .sort("num_accelerators", "score_s", "entry_id", descending=[False, True, False], nulls_last=True)
        .with_columns(
            reference_id=_first("entry_id", over=PEERS),
            _reference_s=_first("score_s", over=PEERS),
            _reference_accelerators=_first("num_accelerators", over=PEERS),
        )
        # The smallest of the same accelerator; among those the fastest is the baseline.
        .sort("num_accelerators", "score_s", "entry_id", nulls_last=True)
        .with_columns(
            like_for_like_baseline=_first(baseline_name, over=(*PEERS, "accelerator")),
            like_for_like_baseline_id=_first("entry_id", over=(*PEERS, "accelerator")),
            _baseline_s=_first("score_s", over=(*PEERS, "accelerator")),
            _baseline_accelerators=_first("num_accelerators", over=(*PEERS, "accelerator")),
        )
    )
    alike = _DEFINED & pl.col("accelerator").is_not_null()
    speedup = pl.col("_reference_s") / pl.col("score_s")
    like_for_like_speedup = pl.col("_baseline_s") / pl.col("score_s")
    return (
        ordered.with_columns(
            speedup=pl.when(_DEFINED).then(speedup),
            relative_efficiency=pl.when(_DEFINED).then(
                speedup * pl.col("_reference_accelerators") / pl.col("num_accelerators")
            ),
            like_for_like_efficiency=pl.when(alike).then(
                like_for_like_speedup * pl.col("_baseline_accelerators") / pl.col("num_accelerators")
            ),
            like_for_like_baseline=pl.when(alike).then("like_for_like_baseline"),
            like_for_like_baseline_id=pl.when(alike).then("like_for_like_baseline_id"),
            is_reference=_DEFINED & (pl.col("entry_id") == pl.col("reference_id")),
            samples_per_s_per_accelerator=pl.when(pl.col("num_accelerators") > 0).then(
                pl.col("samples_per_s") / pl.col("num_accelerators")
            ),
            energy_j_per_sample=pl.when(pl.col("samples_to_target") > 0).then(
                pl.col("energy_j") / pl.col("samples_to_target")
            ),
        )
        .sort("_row")
        .drop("_row", "_reference_s", "_reference_accelerators", "_baseline_s", "_baseline_accelerators")
    )


def curves(entries: pl.DataFrame) -> pl.DataFrame:
    """The like-for-like curve of each accelerator: its best score at each size, smallest size first.

    entries: a frame `with_metrics` returned, of one round, workload and division.
    Returns accelerator, num_accelerators, score_s, relative_efficiency, like_for_like_efficiency, entry_id,
    submitter, system; accelerators seen at one size only are in it too.
    """
    return (
        entries.filter(MEASURED & pl.col("accelerator").is_not_null())
        .sort("accelerator", "num_accelerators", "score_s", "entry_id")
        .unique(["accelerator", "num_accelerators"], keep="first", maintain_order=True)
        .select(
            "accelerator", "num_accelerators", "score_s", "relative_efficiency", "like_for_like_efficiency",
            "entry_id", "submitter", "system",
        )
    )  # fmt: skip


def spots(entries: pl.DataFrame) -> pl.DataFrame:
    """How many systems share each place of the map of accelerators against sizes.

    Returns accelerator, num_accelerators, cluster, num_systems, systems (names, sorted), smallest sizes
    first.
    """
    return (
        entries.filter(MEASURED)
        .group_by("accelerator", "num_accelerators", "cluster")
        .agg(
            num_systems=pl.len(),
            systems=pl.concat_str("submitter", "system", separator="/", ignore_nulls=True).sort(),
        )
        .sort("num_accelerators", "accelerator", "cluster", nulls_last=True)
    )


def _first(value: str | pl.Expr, *, over: tuple[str, ...]) -> pl.Expr:
    """The value of the first comparable row of each group, in the order of the frame."""
    expression = pl.col(value) if isinstance(value, str) else value
    return expression.filter(_DEFINED).first().over(*over)

"""Adds speedup, E', like-for-like E, energy per sample, and the factors of E to a `scores` frame."""

from typing import Any, Literal, TypeAlias

import polars as pl
from msgspec import Struct

# Columns of `equipoise.scores()` and `equipoise scores --json`, in this order.
SCORE_COLUMNS = (
    "round", "division", "availability", "submitter", "system", "workload", "accelerator", "num_accelerators",
    "num_nodes", "score_s", "lenient_s", "unscaled_s", "convergence_scaling", "num_runs", "num_failed",
    "num_missing", "min_s", "max_s", "global_batch_samples", "samples_to_target", "energy_j", "speedup",
    "relative_efficiency", "like_for_like_efficiency", "like_for_like_baseline", "source_uri", "source_line",
    "reason", "samples_per_s_per_accelerator",
)  # fmt: skip

# Columns of a study's entries: in addition identity, context, and values computed by the study.
ENTRY_COLUMNS = (
    *SCORE_COLUMNS,
    "entry_id", "is_reference", "like_for_like_baseline_id", "framework", "samples_per_s", "eval_s", "init_s",
    "energy_j_per_sample", "cluster",
    "generation", "statistical", "throughput", "training", "overhead", "rules", "factors_missing",
)  # fmt: skip

# Columns whose values share one reference. Divisions are separate: open entries may train another model to
# another target.
PEERS = ("campaign", "workload", "division")

# Rows with metrics: those with a score and accelerators (CPU entries have none).
_DEFINED = (
    pl.col("score_s").is_finite()
    & (pl.col("score_s") > 0)
    & (pl.col("num_accelerators") > 0)
).fill_null(value=False)  # fmt: skip

_SYSTEM_NAME = pl.concat_str("submitter", "system", separator="/", ignore_nulls=True)

# Rows for which `with_metrics` computed metrics.
MEASURED = pl.col("speedup").is_not_null()


def with_metrics(scores: pl.DataFrame) -> pl.DataFrame:
    """The entries with speedup, efficiencies, reference and baseline, and energy and throughput per unit.

    scores: a frame of the table `scores`; every round and workload has its own reference.
    Returns the rows in order, with the columns speedup, relative_efficiency, is_reference, reference_id,
    like_for_like_efficiency, like_for_like_baseline (submitter/system), like_for_like_baseline_id,
    samples_per_s_per_accelerator, energy_j_per_sample added. Null for entries without score or accelerators.
    Assumes official scores, which include convergence scaling.
    Source: arXiv 2509.03263 equations 1-3; the like-for-like baseline is DESIGN's definition.
    """
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
            like_for_like_baseline=_first(_SYSTEM_NAME, over=(*PEERS, "accelerator")),
            like_for_like_baseline_id=_first("entry_id", over=(*PEERS, "accelerator")),
            _baseline_s=_first("score_s", over=(*PEERS, "accelerator")),
            _baseline_accelerators=_first("num_accelerators", over=(*PEERS, "accelerator")),
        )
    )
    is_comparable = _DEFINED & pl.col("accelerator").is_not_null()
    speedup = pl.col("_reference_s") / pl.col("score_s")
    like_for_like_speedup = pl.col("_baseline_s") / pl.col("score_s")
    return (
        ordered.with_columns(
            speedup=pl.when(_DEFINED).then(speedup),
            relative_efficiency=pl.when(_DEFINED).then(
                speedup * pl.col("_reference_accelerators") / pl.col("num_accelerators")
            ),
            like_for_like_efficiency=pl.when(is_comparable).then(
                like_for_like_speedup * pl.col("_baseline_accelerators") / pl.col("num_accelerators")
            ),
            like_for_like_baseline=pl.when(is_comparable).then("like_for_like_baseline"),
            like_for_like_baseline_id=pl.when(is_comparable).then("like_for_like_baseline_id"),
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

    entries: from `with_metrics`, of one round, workload and division.
    Returns accelerator, num_accelerators, score_s, relative_efficiency, like_for_like_efficiency, entry_id,
    submitter, system, also for accelerators with a single size.
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
    """The number of systems by accelerator, size and cluster.

    Returns accelerator, num_accelerators, cluster, num_systems, systems (names, sorted), smallest sizes
    first.
    """
    return (
        entries.filter(MEASURED)
        .group_by("accelerator", "num_accelerators", "cluster")
        .agg(
            num_systems=pl.len(),
            systems=_SYSTEM_NAME.sort(),
        )
        .sort("num_accelerators", "accelerator", "cluster", nulls_last=True)
    )


def _first(value: str | pl.Expr, *, over: tuple[str, ...]) -> pl.Expr:
    """The value of each group's first row with metrics, in the order of the frame."""
    expression = pl.col(value) if isinstance(value, str) else value
    return expression.filter(_DEFINED).first().over(*over)


FACTORS = ("generation", "statistical", "throughput", "training", "overhead", "rules")

# The parts in `losses`; throughput replaces training and overhead where the log does not separate them.
LOSSES = ("statistical", "training", "overhead", "throughput", "rules", "unattributed")

# Quantities compared with those of the baseline.
_INPUTS = (
    "num_accelerators", "score_s", "unscaled_s", "relative_efficiency", "samples_to_target", "eval_s",
    "eval_outside_s", "train_block_s",
)  # fmt: skip

# Evaluation counts as outside the training blocks if at least this share of it is: time stamps are in whole
# milliseconds, and some logs close a block just after the evaluation starts.
OUTSIDE_FRACTION = 0.99


def with_factors(entries: pl.DataFrame) -> pl.DataFrame:
    """The entries with the factors of their efficiency as columns.

    entries: from `with_metrics`; baselines must be among its rows.
    Returns the rows in order, with added columns:
      generation: E' of the baseline: the contribution of the accelerator;
      statistical: samples to target of the baseline / here: the cost of batch growth;
      throughput: samples per second per accelerator here / of the baseline, including evaluation and set-up;
      training, overhead: the two parts of throughput, inside and outside the training blocks;
      rules: convergence scaling (official score / unscaled mean) of the baseline / here;
      factors_missing: why statistical and throughput, or training and overhead, are null; else null.
    Assumes samples and durations are means over the same runs, so that their ratio is a rate.
    Source: DESIGN, "Decomposition"; the products are exact, by construction.
    """
    baselines = entries.select(
        pl.col("entry_id").alias("like_for_like_baseline_id"), pl.col(_INPUTS).name.prefix("_baseline_")
    )
    matched = entries.join(baselines, on="like_for_like_baseline_id", how="left", maintain_order="left")
    block_usable = _block_usable("") & _block_usable("_baseline_")
    is_known = pl.col("statistical").is_not_null()
    known = pl.col("like_for_like_baseline_id").is_not_null()
    return (
        matched.with_columns(
            generation=pl.col("_baseline_relative_efficiency"),
            statistical=_positive(pl.col("_baseline_samples_to_target") / pl.col("samples_to_target")),
            rules=_positive(_against("unscaled_s") / _against("score_s")),
        )
        .with_columns(throughput=pl.when(is_known).then(_positive(_rate_against("unscaled_s"))))
        .with_columns(
            training=pl.when(is_known & block_usable).then(_positive(_rate_against("train_block_s")))
        )
        .with_columns(
            overhead=pl.when(pl.col("training").is_not_null()).then(
                _against("train_block_s") / _against("unscaled_s")
            ),
            factors_missing=pl.when(~known)
            .then(pl.lit(None, pl.String))
            .when(~is_known)
            .then(pl.lit("the logs do not show how many samples were needed, here or in the baseline"))
            .when(pl.col("training").is_null())
            .then(_split_reason()),
        )
        .select(*entries.columns, *FACTORS, "factors_missing")
    )


def log_loss_shares(entries: pl.DataFrame) -> pl.DataFrame:
    """Share of each factor in the loss of like-for-like efficiency, for entries with a loss.

    Returns entry_id, num_accelerators, like_for_like_efficiency, statistical_fraction, throughput_fraction,
    rules_fraction; the fractions sum to 1, and may be outside 0..1 if a factor is a gain.
    Assumes losses multiply, so that their logarithms add: share = log factor / log E.
    """
    efficiency = pl.col("like_for_like_efficiency")
    return entries.filter((efficiency < 1) & pl.col("statistical").is_not_null()).select(
        "entry_id", "num_accelerators", "like_for_like_efficiency",
        *((pl.col(factor).log() / efficiency.log()).alias(f"{factor}_fraction")
          for factor in ("statistical", "throughput", "rules")),
    )  # fmt: skip


def losses(entries: pl.DataFrame) -> pl.DataFrame:
    """The loss of each entry by cause, in doublings: -log2 of its efficiency and of each factor.

    entries: from `with_factors`; those without a like-for-like efficiency are omitted.
    Returns accelerator, num_accelerators, entry_id, efficiency, lost_doublings, its parts (LOSSES) and
    factors_missing. A part is negative for a gain, and null where the log does not separate it; throughput is
    null where training and overhead replace it; unattributed is the part that no factor explains.
    The parts that are not null sum to lost_doublings.
    Assumes losses multiply, so that their logarithms add: -log2 E = the sum of -log2 of the factors.
    """
    split, is_known = pl.col("training").is_not_null(), pl.col("statistical").is_not_null()
    lost = {name: (1.0 / pl.col(name)).log(2) for name in (*FACTORS, "like_for_like_efficiency")}
    rules = pl.col("rules").is_not_null()
    whole = is_known & rules & pl.col("throughput").is_not_null()
    return entries.filter(pl.col("like_for_like_efficiency").is_not_null()).select(
        "accelerator", "num_accelerators", "entry_id",
        efficiency="like_for_like_efficiency",
        lost_doublings=lost["like_for_like_efficiency"],
        statistical=pl.when(whole).then(lost["statistical"]),
        training=pl.when(whole & split).then(lost["training"]),
        overhead=pl.when(whole & split).then(lost["overhead"]),
        throughput=pl.when(whole & ~split).then(lost["throughput"]),
        rules=pl.when(rules).then(lost["rules"]),
        unattributed=pl.when(~whole).then(
            lost["like_for_like_efficiency"] - pl.when(rules).then(lost["rules"]).otherwise(0.0)
        ),
        factors_missing="factors_missing",
    )  # fmt: skip


def _against(column: str) -> pl.Expr:
    return pl.col(column) / pl.col(f"_baseline_{column}")


def _rate_against(duration: str) -> pl.Expr:
    """Samples per `duration` per accelerator, relative to the baseline."""
    return _against("samples_to_target") / _against(duration) / _against("num_accelerators")


def _positive(value: pl.Expr) -> pl.Expr:
    """The value if it can be a factor, else null: logs may state zero samples or an empty block."""
    return pl.when(value.is_finite() & (value > 0)).then(value)


def _block_usable(prefix: str) -> pl.Expr:
    """Whether the training blocks of a log include no evaluation."""
    evaluation, outside = pl.col(f"{prefix}eval_s"), pl.col(f"{prefix}eval_outside_s")
    return ((evaluation > 0) & (outside >= OUTSIDE_FRACTION * evaluation)).fill_null(value=False)


def _split_reason() -> pl.Expr:
    inside = pl.col("eval_outside_s") < OUTSIDE_FRACTION * pl.col("eval_s")
    baseline_inside = pl.col("_baseline_eval_outside_s") < OUTSIDE_FRACTION * pl.col("_baseline_eval_s")
    return (
        pl.when((inside | baseline_inside).fill_null(value=False))
        .then(pl.lit("evaluation lies inside the training blocks of the log, here or in the baseline"))
        .otherwise(
            pl.lit("the log has no training blocks with evaluation between them, here or in the baseline")
        )
    )


Purpose: TypeAlias = Literal["speed", "efficiency", "between"]

RULE = (
    "speed: the shortest time; efficiency: the least accelerator-time (highest E'); between: of the entries "
    "that none beats in both, the one nearest to the best of both, each measured logarithmically from its "
    "best to the value at the other extreme"
)


class Pointer(Struct, frozen=True, kw_only=True):
    """One notable configuration and its purpose; `words` state the reason."""

    workload: str
    purpose: Purpose
    entry_id: str
    submitter: str
    system: str
    accelerator: str | None
    num_accelerators: int
    score_s: float
    relative_efficiency: float
    like_for_like_efficiency: float | None
    words: str


def pointers(entries: pl.DataFrame, workload: str) -> tuple[Pointer, ...]:
    """The notable entries, fastest first; fewer than three if one serves several purposes.

    entries: from `with_metrics`, of one round, workload and division. Ties are resolved to fewer
    accelerators.
    """
    front = _front(entries)
    if front.is_empty():
        return ()
    fastest, frugal = front.row(0, named=True), front.row(-1, named=True)
    chosen: list[tuple[Purpose, dict[str, Any]]] = [("speed", fastest)]
    if front.height > 2:  # noqa: PLR2004 - an entry in between needs two extremes
        chosen.append(("between", _nearest_to_both(front)))
    if front.height > 1:
        chosen.append(("efficiency", frugal))
    return tuple(_pointer(purpose, row, workload, front=front) for purpose, row in chosen)


def _front(entries: pl.DataFrame) -> pl.DataFrame:
    """The Pareto front of time and accelerator-time, fastest first."""
    return (
        entries.filter(MEASURED)
        .with_columns(_accelerator_s=pl.col("num_accelerators") * pl.col("score_s"))
        .sort("score_s", "_accelerator_s", "entry_id")
        .filter(
            (pl.col("_accelerator_s") < pl.col("_accelerator_s").cum_min().shift(1)).fill_null(value=True)
        )
    )


def _nearest_to_both(front: pl.DataFrame) -> dict[str, Any]:
    """The entry of the front, without its ends, nearest to the best time and the best accelerator-time."""

    def lost(column: str) -> pl.Expr:
        value = pl.col(column).log()
        return (value - value.min()) / (value.max() - value.min())

    distance = (lost("score_s") ** 2 + lost("_accelerator_s") ** 2).alias("_distance")
    inner = front.with_columns(distance).slice(1, front.height - 2)
    return inner.sort("_distance", "num_accelerators").row(0, named=True)


def _pointer(purpose: Purpose, row: dict[str, Any], workload: str, *, front: pl.DataFrame) -> Pointer:
    fastest = front.row(0, named=True)
    words = "The shortest time of all" + (", and the least accelerator-time." if front.height == 1 else ".")
    if purpose != "speed":
        slower = row["score_s"] / fastest["score_s"]
        cheaper = row["_accelerator_s"] / fastest["_accelerator_s"]
        least = ", the least of all" if purpose == "efficiency" else ""
        words = f"{slower:.3g} times the shortest time for {cheaper:.2g} of its accelerator-time{least}."
    return Pointer(
        workload=workload,
        purpose=purpose,
        entry_id=row["entry_id"],
        submitter=row["submitter"],
        system=row["system"],
        accelerator=row["accelerator"],
        num_accelerators=row["num_accelerators"],
        score_s=row["score_s"],
        relative_efficiency=row["relative_efficiency"],
        like_for_like_efficiency=row["like_for_like_efficiency"],
        words=words,
    )

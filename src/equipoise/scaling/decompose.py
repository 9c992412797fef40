"""Where the efficiency of an entry comes from: an identity of factors against its like-for-like baseline.

E' = generation x E;  E = statistical x throughput x rules;  throughput = training x overhead where the log
allows it.
"""

import polars as pl

FACTORS = ("generation", "statistical", "throughput", "training", "overhead", "rules")

# The parts that `losses` tells apart; throughput stands for training and overhead where no log splits it.
LOSSES = ("statistical", "training", "overhead", "throughput", "rules", "untold")

# The quantities that the factors compare with the baseline's.
_INPUTS = (
    "num_accelerators", "score_s", "unscaled_s", "relative_efficiency", "samples_to_target", "eval_s",
    "eval_outside_s", "train_block_s",
)  # fmt: skip

# Evaluation counts as outside the training blocks when at least this share of it is: stamps are in whole
# milliseconds
# and some logs close a block a moment after the evaluation has begun.
OUTSIDE_FRACTION = 0.99


def with_factors(entries: pl.DataFrame) -> pl.DataFrame:
    """The entries with the factors of their efficiency as columns, and what cannot be kept apart.

    entries: a frame `with_metrics` returned (it has like_for_like_baseline_id); baselines must be among its
    rows.
    Returns the rows in their order, with added columns:
      generation: E' of the baseline: what the kind of accelerator contributes;
      statistical: samples to target of the baseline / here: what batch growth costs;
      throughput: samples per second per accelerator here / of the baseline, evaluation and set-up included;
      training, overhead: the two parts of throughput, inside and outside the training blocks;
      rules: convergence scaling (official score / unscaled mean) of the baseline / here;
      factors_missing: why statistical and throughput, or training and overhead, are null; null when nothing
      is.
    Assumes samples and durations are means over the same runs, so that their ratio is a rate.
    Source: DESIGN, "Decomposition"; the products hold exactly, by construction.
    """
    baselines = entries.select(
        pl.col("entry_id").alias("like_for_like_baseline_id"), pl.col(_INPUTS).name.prefix("_baseline_")
    )
    joined = entries.join(baselines, on="like_for_like_baseline_id", how="left", maintain_order="left")
    block_usable = _block_usable("") & _block_usable("_baseline_")
    told = pl.col("statistical").is_not_null()
    known = pl.col("like_for_like_baseline_id").is_not_null()
    return (
        joined.with_columns(
            generation=pl.col("_baseline_relative_efficiency"),
            statistical=_positive(_against("samples_to_target", inverted=True)),
            rules=_positive(_against("unscaled_s") / _against("score_s")),
        )
        .with_columns(throughput=pl.when(told).then(_positive(_rate_against("unscaled_s"))))
        .with_columns(training=pl.when(told & block_usable).then(_positive(_rate_against("train_block_s"))))
        .with_columns(
            overhead=pl.when(pl.col("training").is_not_null()).then(
                _against("train_block_s") / _against("unscaled_s")
            ),
            factors_missing=pl.when(~known)
            .then(pl.lit(None, pl.String))
            .when(~told)
            .then(pl.lit("the logs do not tell how many samples were needed, here or in the baseline"))
            .when(pl.col("training").is_null())
            .then(_split_reason()),
        )
        .select(*entries.columns, *FACTORS, "factors_missing")
    )


def log_loss_shares(entries: pl.DataFrame) -> pl.DataFrame:
    """Which share of the loss of like-for-like efficiency each factor has, for entries that lose any.

    Returns entry_id, num_accelerators, like_for_like_efficiency, statistical_fraction, throughput_fraction,
    rules_fraction; the fractions sum to 1 and may lie outside 0..1 where a factor gained while the whole
    lost.
    Assumes losses multiply, so that their logarithms add: share = log factor / log E.
    """
    efficiency = pl.col("like_for_like_efficiency")
    return entries.filter((efficiency < 1) & pl.col("statistical").is_not_null()).select(
        "entry_id", "num_accelerators", "like_for_like_efficiency",
        *((pl.col(factor).log() / efficiency.log()).alias(f"{factor}_fraction")
          for factor in ("statistical", "throughput", "rules")),
    )  # fmt: skip


def losses(entries: pl.DataFrame) -> pl.DataFrame:
    """What each entry lost by cause, in doublings: -log2 of its efficiency and of each factor of it.

    entries: as `with_factors` returned them; those without a like-for-like efficiency are left out.
    Returns accelerator, num_accelerators, entry_id, efficiency, lost_doublings, its parts (LOSSES) and
    factors_missing. A part is negative where the entry gained, null where the log does not tell it apart;
    throughput is null where training and overhead tell it, untold is what no factor explains. The parts that
    are not null sum to lost_doublings.
    Assumes losses multiply, so that their logarithms add: -log2 E = the sum of -log2 of the factors.
    """
    split, told = pl.col("training").is_not_null(), pl.col("statistical").is_not_null()
    lost = {name: (1.0 / pl.col(name)).log(2) for name in (*FACTORS, "like_for_like_efficiency")}
    rules = pl.col("rules").is_not_null()
    whole = told & rules & pl.col("throughput").is_not_null()
    return entries.filter(pl.col("like_for_like_efficiency").is_not_null()).select(
        "accelerator", "num_accelerators", "entry_id",
        efficiency="like_for_like_efficiency",
        lost_doublings=lost["like_for_like_efficiency"],
        statistical=pl.when(whole).then(lost["statistical"]),
        training=pl.when(whole & split).then(lost["training"]),
        overhead=pl.when(whole & split).then(lost["overhead"]),
        throughput=pl.when(whole & ~split).then(lost["throughput"]),
        rules=pl.when(rules).then(lost["rules"]),
        untold=pl.when(~whole).then(
            lost["like_for_like_efficiency"] - pl.when(rules).then(lost["rules"]).otherwise(0.0)
        ),
        factors_missing="factors_missing",
    )  # fmt: skip


def _against(column: str, *, inverted: bool = False) -> pl.Expr:
    here, baseline = pl.col(column), pl.col(f"_baseline_{column}")
    return baseline / here if inverted else here / baseline


def _rate_against(duration: str) -> pl.Expr:
    """Samples per `duration` per accelerator, here against the baseline."""
    return _against("samples_to_target") / _against(duration) / _against("num_accelerators")


def _positive(value: pl.Expr) -> pl.Expr:
    """The value where it can be a factor, else null: logs may state zero samples or an empty block."""
    return pl.when(value.is_finite() & (value > 0)).then(value)


def _block_usable(prefix: str) -> pl.Expr:
    """Whether the training blocks of a log hold training only: its evaluation spans lie outside."""
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

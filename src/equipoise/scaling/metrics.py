"""Speedup, E', like-for-like E and energy per sample of entries: a `scores` frame in, the same with columns out."""

# What `scores()` returns and `equipoise scores --json` prints, in this order (reference: docs/json.md).
SCORE_COLUMNS = (
    "round", "division", "availability", "submitter", "system", "workload", "accelerator", "num_accelerators",
    "num_nodes", "score_s", "lenient_s", "unscaled_s", "convergence_scaling", "num_runs", "num_failed", "num_missing",
    "min_s", "max_s", "global_batch_samples", "samples_to_target", "energy_j", "speedup", "relative_efficiency",
    "like_for_like_efficiency", "like_for_like_baseline", "source_uri", "source_line", "reason",
    "samples_per_s_per_accelerator",
)  # fmt: skip

# What the entries of a study carry besides: identity, context, and what the study computed.
ENTRY_COLUMNS = (
    *SCORE_COLUMNS,
    "entry_id", "framework", "samples_per_s", "eval_s", "init_s", "energy_j_per_sample", "cluster",
    "generation", "statistical", "throughput", "training", "overhead", "rules", "factors_missing",
)  # fmt: skip

"""Samples that a run needed to reach its target, from what its log states; the catalogue knows the units."""

from equipoise.runs.readers.mlperf.log import LogFacts, Progress
from equipoise.spec.workload import samples_to_target

# Stable Diffusion stops officially at the first checkpoint that meets both targets, wherever training went.
# Source: MLPerf Training rules v3.1. The metrics are measured after training, so logged apart, in any order.
_CHECKPOINT_TARGETS = {"FID": (0.0, 90.0), "CLIP": (0.15, 1.0)}


def _checkpoint(log: LogFacts) -> Progress | None:
    """The first checkpoint with all metrics within their targets; None where no metrics are logged apart."""
    results: dict[float, dict[str, float]] = {}
    reached: dict[float, Progress] = {}
    for metric in log.metrics:
        at = metric.progress.samples_count
        at = metric.progress.step_num if at is None else at
        if at is not None and metric.name in _CHECKPOINT_TARGETS:
            results.setdefault(at, {})[metric.name] = metric.value
            reached[at] = metric.progress
    for at in sorted(results):
        if all(
            name in results[at] and low <= results[at][name] <= high
            for name, (low, high) in _CHECKPOINT_TARGETS.items()
        ):
            return reached[at]
    return None


def stated_progress(log: LogFacts) -> dict[str, float]:
    """What a log states about the end of training, by the names of its own keys."""
    progress = _checkpoint(log) or log.progress
    stated = {
        "samples_count": progress.samples_count if progress else None,
        "epoch_num": progress.epoch_num if progress else None,
        "step_num": progress.step_num if progress else None,
        "epoch": _early_epoch(log),
        "train_samples": log.train_samples,
    }
    return {key: value for key, value in stated.items() if value is not None}


def _early_epoch(log: LogFacts) -> float | None:
    """The last epoch of a v0.5 log, counted from 0: some number evaluations one behind, some start at 1."""
    seen = [log.last_train_epoch, log.progress.epoch if log.progress else None]
    epochs = [epoch for epoch in seen if epoch is not None]
    if not epochs:
        return None
    return max(epochs) - (log.first_train_epoch if log.first_train_epoch == 1 else 0)


def converged_samples(log: LogFacts, workload: str, round_number: float) -> float | None:
    """Training samples until the target; None where the log does not say or the workload counts nothing."""
    return samples_to_target(
        workload,
        stated_progress(log),
        round_number=round_number,
        global_batch_samples=log.global_batch,
    )

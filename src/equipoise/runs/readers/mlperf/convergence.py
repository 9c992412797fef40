"""Samples a run needed to reach its target, from what its log states; the catalogue knows the units."""

from equipoise.runs.readers.mlperf.log import LogFacts, Progress

# Stable Diffusion stops officially at the first checkpoint that meets both targets, wherever training went.
# Source: MLPerf Training rules v3.1. The metrics are measured after training, so logged apart, in any order.
_CHECKPOINT_TARGETS = {"FID": (0.0, 90.0), "CLIP": (0.15, 1.0)}


def _checkpoint(log: LogFacts) -> Progress | None:
    """The first checkpoint with all metrics within their targets; None where no metrics are logged apart."""
    results: dict[float, dict[str, float]] = {}
    reached: dict[float, Progress] = {}
    for metric in log.metrics:
        at = metric.progress.get("samples_count", metric.progress.get("step_num"))
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
    stated = dict(_checkpoint(log) or log.progress or {})
    epochs = _early_epochs(log)
    if epochs is not None:
        stated["epoch_num"] = epochs
    if log.train_samples is not None:
        stated["train_samples"] = log.train_samples
    return stated


def _early_epochs(log: LogFacts) -> float | None:
    """Epochs trained, where they are numbered by `epoch` (v0.5): from 0 or 1, some evaluations one behind."""
    numbered = log.progress.get("epoch") if log.progress else None
    if numbered is None:
        return None
    last = numbered if log.last_train_epoch is None else max(numbered, log.last_train_epoch)
    return last if log.first_train_epoch == 1 else last + 1

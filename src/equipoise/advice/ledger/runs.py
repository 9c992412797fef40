"""Runs held against the predictions of a ledger: which run speaks of which prediction."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from equipoise.advice.ledger.kept import Ledger
from equipoise.advice.ledger.prediction import Measured, Prediction, is_amount
from equipoise.errors import SpecError
from equipoise.spec.strategy import strategy as strategy_of

# The ways of `bench` that a strategy states too, by what they shard.
_SHARD_STATES = {"ddp": (0,), "static_graph": (0,), "fsdp": (2, 3)}


def matches(ledger: Ledger, runs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Measured]]:
    """What rows of the table `runs` say of the ledger's current predictions, new ones alone.

    A row speaks of a prediction where workload, accelerator and number are the same, and strategy and batch
    where both state them. A row of several quantities speaks of each.
    """
    known = {each.id: {one.source for one in each.measured} for each in ledger.entries}
    by_size = sorted(ledger.current(), key=lambda each: each.prediction.num_accelerators)
    sized = {
        size: list(some) for size, some in groupby(by_size, key=lambda each: each.prediction.num_accelerators)
    }
    for row in runs:
        if row["status"] != "success":
            continue
        for entry in sized.get(row["num_accelerators"], ()):
            value = _measured_value(row, entry.prediction)
            if value is not None and row["run_id"] not in known[entry.id]:
                known[entry.id].add(row["run_id"])
                yield (
                    entry.id,
                    Measured(quantity=entry.prediction.quantity, value=value, source=row["run_id"]),
                )


def _measured_value(row: Mapping[str, Any], prediction: Prediction) -> float | None:
    """What a run says of a prediction; None where it is of another set-up or does not tell."""
    same = all(row[name] == getattr(prediction, name) for name in ("workload", "accelerator"))
    batches = {row["global_batch_samples"], prediction.global_batch_samples} - {None}
    if not same or len(batches) > 1 or not _is_way(row["strategy"], prediction.strategy):
        return None
    if prediction.quantity == "step_s":
        batch, rate = row["global_batch_samples"], row["samples_per_s"]
        value = batch / rate if batch and rate else None
    else:
        value = row[prediction.quantity]
    return value if value is not None and is_amount(value) else None


def _is_way(ran: str | None, predicted: str | None) -> bool:
    """Whether a run was parallelised as predicted, so far as both say.

    ran: text of a strategy, or a way to train as `bench` names it. What `bench` does beside plain and sharded
    data parallelism no strategy states.
    """
    if ran is None or predicted is None or ran == predicted:
        return True
    try:
        stated = strategy_of(predicted)
    except SpecError:
        return False
    is_data_parallel = stated.dp == stated.num_accelerators and stated.compression == "none"
    return is_data_parallel and stated.shard_state in _SHARD_STATES.get(ran, ())

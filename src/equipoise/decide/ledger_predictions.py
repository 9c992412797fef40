"""The predictions that a ledger keeps of an answer, and of the times that `predict` gives."""

from typing import Any

from equipoise.calibration.forecasts import WORK
from equipoise.decide.answer import Answer, Candidate
from equipoise.decide.ledger import RecordedPrediction
from equipoise.decide.prediction import Prediction
from equipoise.errors import UsageError
from equipoise.stats import Interval


def answer_predictions(found: Answer, *, verb: str) -> tuple[RecordedPrediction, ...]:
    """The time of the recommended candidate, and its rate; nothing where none is recommended.

    The rate is left out where published results have weight in the time: those include evaluation and
    start-up, which no measured rate does.
    """
    best = found.recommended
    if best is None or best.time_s is None:
        return ()
    set_up = _set_up(best, workload=found.workload.slug, accelerator=best.accelerator, verb=verb)
    time = _recorded(best.time_s, quantity="time_to_train_s", **set_up)
    has_published = any(each.estimator == "published" and each.weight > 0.0 for each in best.estimates)
    if best.step_s is None or best.global_batch_samples is None or has_published:
        return (time,)
    batch, step = best.global_batch_samples, best.step_s
    rate = Interval(value=batch / step.value, low=batch / step.high, high=batch / step.low, level=step.level)
    return (time, _recorded(rate, quantity="samples_per_s", **set_up))


def time_predictions(found: Prediction) -> tuple[RecordedPrediction, ...]:
    """The time at each size that `predict` gives.

    Raises UsageError where they are not times of whole trainings: no later run states what they were for.
    """
    if found.answer is None and found.work != WORK:
        raise UsageError(
            f"--record: these times are for {found.work}; the ledger keeps those of whole trainings: "
            "give a column time_to_train_h"
        )
    return tuple(
        _recorded(
            each.time_s,
            quantity="time_to_train_s",
            **_set_up(each, workload=found.workload, accelerator=found.accelerator, verb="predict"),
        )
        for each in found.candidates
        if each.time_s is not None
    )


def _set_up(
    candidate: Candidate, *, workload: str | None, accelerator: str | None, verb: str
) -> dict[str, Any]:
    """Of what a prediction is, and the estimator with most weight in it."""
    heaviest = max(candidate.estimates, key=lambda each: each.weight)
    return {
        "verb": verb,
        "workload": workload,
        "accelerator": accelerator,
        "num_accelerators": candidate.num_accelerators,
        "kind": heaviest.estimator,
        "strategy": candidate.strategy_text,
        "global_batch_samples": candidate.global_batch_samples,
        "ref": heaviest.name,
    }


def _recorded(amount: Interval, **set_up: Any) -> RecordedPrediction:  # noqa: ANN401 - fields of a prediction
    return RecordedPrediction(
        value=amount.value, low=amount.low, high=amount.high, level=amount.level, **set_up
    )

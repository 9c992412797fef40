"""The predictions that answers make, as a ledger keeps them."""

from typing import Any

from equipoise.advice.answer.advice import Advice
from equipoise.advice.forecast.answer import Forecast
from equipoise.advice.forecast.published import WORK
from equipoise.advice.ledger.prediction import Prediction, PredictionKind
from equipoise.advice.plans.planned import Plan
from equipoise.errors import UsageError
from equipoise.stats import Interval


def of_forecast(found: Forecast, *, global_batch_samples: float | None = None) -> tuple[Prediction, ...]:
    """The time at each size asked.

    global_batch_samples: where the times are for that batch. Raises UsageError where the times are not those
    of whole trainings: no later run says what they were for.
    """
    ground = found.ground
    if ground.work != WORK:
        raise UsageError(
            f"--record: these times are for {ground.work}; the ledger keeps those of whole trainings: "
            "give a column time_to_train_h"
        )
    own = all(each.kind == "measured" for each in ground.evidence)
    kind: PredictionKind = "measured" if own else "published"
    batch = None
    if global_batch_samples is not None and float(global_batch_samples).is_integer():
        batch = int(global_batch_samples)
    return tuple(
        _foretold(
            each.time,
            verb="predict",
            workload=found.workload,
            accelerator=found.accelerator,
            num_accelerators=each.num_accelerators,
            quantity="time_to_train_s",
            kind=kind,
            ref=f"law {ground.law.name}{f', {ground.round}' if ground.round else ''}",
            global_batch_samples=batch,
        )
        for each in ground.foretold
    )


def of_plan(found: Plan) -> tuple[Prediction, ...]:
    """The time and the rate of what is recommended; nothing where nothing is.

    The interval of the rate is as wide as that of the time, which is wider than a step alone would have.
    """
    best = found.recommended
    if best is None:
        return ()
    batch, time = best.strategy.global_batch_samples, best.time
    set_up = {
        "verb": "plan",
        "workload": found.workload.slug,
        "accelerator": best.accelerator,
        "num_accelerators": best.num_accelerators,
        "kind": "modelled",
        "strategy": best.strategy.text(),
        "global_batch_samples": batch,
        "ref": f"calibration {found.basis.name}",
    }
    samples_per_s = batch / best.step_s
    speed = Interval(
        value=samples_per_s,
        low=samples_per_s * time.value / time.high,
        high=samples_per_s * time.value / time.low,
        level=time.level,
    )
    rate = _foretold(speed, quantity="samples_per_s", **set_up)
    if not found.length.is_whole or found.length.batches is None:
        return (rate,)
    return (_foretold(time, quantity="time_to_train_s", **set_up), rate)


def of_advice(found: Advice) -> tuple[Prediction, ...]:
    """The time of what is recommended; nothing where nothing is, or the time is only that of a unit."""
    best = found.recommended
    if best is None or not found.standing.length.is_whole:
        return ()
    heaviest = max(best.evidence, key=lambda each: each.weight)
    option = best.option
    return (
        _foretold(
            best.time,
            verb="advise",
            workload=found.workload,
            accelerator=best.accelerator,
            num_accelerators=best.num_accelerators,
            quantity="time_to_train_s",
            kind=heaviest.kind,
            strategy=None if option is None else option.strategy.text(),
            global_batch_samples=None if option is None else option.strategy.global_batch_samples,
            ref=heaviest.name,
        ),
    )


def _foretold(amount: Interval, **set_up: Any) -> Prediction:  # noqa: ANN401 - fields of a prediction
    """The prediction of an amount, of a set-up."""
    return Prediction(value=amount.value, low=amount.low, high=amount.high, level=amount.level, **set_up)

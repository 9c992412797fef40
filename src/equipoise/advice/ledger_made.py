"""The predictions that an answer makes, as a ledger keeps them."""

from equipoise.advice.forecast.answer import Forecast
from equipoise.advice.forecast.published import WORK
from equipoise.advice.ledger import Prediction, PredictionKind
from equipoise.advice.plans.planned import Plan
from equipoise.errors import UsageError


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
        Prediction(
            verb="predict",
            workload=found.workload,
            accelerator=found.accelerator,
            num_accelerators=each.num_accelerators,
            quantity="time_to_train_s",
            value=each.time.value,
            low=each.time.low,
            high=each.time.high,
            level=each.time.level,
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
    steps_per_s = best.strategy.global_batch_samples / best.step_s
    low, high = best.time.low / best.time.value, best.time.high / best.time.value
    rate = Prediction(
        verb="plan",
        workload=found.workload.slug,
        accelerator=best.accelerator,
        num_accelerators=best.num_accelerators,
        quantity="samples_per_s",
        value=steps_per_s,
        low=steps_per_s / high,
        high=steps_per_s / low,
        level=best.time.level,
        kind="modelled",
        strategy=best.strategy.text(),
        global_batch_samples=best.strategy.global_batch_samples,
        ref=f"calibration {found.basis.name}",
    )
    if not found.length.is_whole or found.length.batches is None:
        return (rate,)
    whole = Prediction(
        verb="plan",
        workload=rate.workload,
        accelerator=rate.accelerator,
        num_accelerators=rate.num_accelerators,
        quantity="time_to_train_s",
        value=best.time.value,
        low=best.time.low,
        high=best.time.high,
        level=rate.level,
        kind=rate.kind,
        strategy=rate.strategy,
        global_batch_samples=rate.global_batch_samples,
        ref=rate.ref,
    )
    return (whole, rate)

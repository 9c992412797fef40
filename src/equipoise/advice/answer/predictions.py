"""The prediction that an advice makes, as a ledger keeps it."""

from equipoise.advice.answer.advice import Advice
from equipoise.advice.ledger import Prediction


def of_advice(found: Advice) -> tuple[Prediction, ...]:
    """The time of what is recommended; nothing where nothing is, or the time is only that of a unit."""
    best = found.recommended
    if best is None or not found.standing.length.is_whole:
        return ()
    heaviest = max(best.evidence, key=lambda each: each.weight)
    option = best.option
    return (
        Prediction(
            verb="advise",
            workload=found.workload,
            accelerator=best.accelerator,
            num_accelerators=best.num_accelerators,
            quantity="time_to_train_s",
            value=best.time.value,
            low=best.time.low,
            high=best.time.high,
            level=best.time.level,
            kind=heaviest.kind,
            strategy=None if option is None else option.strategy.text(),
            global_batch_samples=None if option is None else option.strategy.global_batch_samples,
            ref=heaviest.name,
        ),
    )

"""Plans side by side: one workload on several accelerators, and which of them serves the objective best."""

from collections.abc import Callable, Sequence

from equipoise.advice.plans.planned import Comparison, ObjectiveName, Option, Plan


def comparison(plans: Sequence[Plan]) -> Comparison:
    """The plans, and the index of the one to take.

    plans: at least one, of one objective. With the objective `balance` the cheapest recommended training wins
    where all prices are known, else the fastest.
    """
    able = [index for index, each in enumerate(plans) if each.recommended is not None]
    if not able:
        return Comparison(plans=tuple(plans), best=None)
    worth = _worth(plans[0].question.objective)
    options = [plans[index].recommended for index in able]
    known = all(option is not None and worth(option) is not None for option in options)

    def value(index: int) -> float:
        option = plans[index].recommended
        assert option is not None
        return (worth(option) if known else None) or option.time.value

    return Comparison(plans=tuple(plans), best=min(able, key=value))


def _worth(objective: ObjectiveName) -> Callable[[Option], float | None]:
    """What an objective counts of an option; None where it is not known."""
    if objective == "time":
        return lambda option: option.time.value
    if objective == "energy":
        return lambda option: option.bill.energy_j
    return lambda option: option.bill.usd

"""What choosing by prediction costs: the strategy foretold fastest against the one that was."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from equipoise.runs.readers.published.rows import PublishedRow

# Among fewer strategies there is little to choose.
FEWEST_CHOICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Time of the strategy that was foretold fastest over that of the fastest, less one, over groups.

    A group is the same model, batch and number of accelerators under at least FEWEST_CHOICES strategies.
    """

    num_groups: int
    mean: float
    largest: float


def regret(rows: Sequence[PublishedRow], predicted_s: Sequence[float]) -> Regret | None:
    """The regret over all groups of some executions; None where no group is large enough.

    Assumes that of one strategy measured several times the mean counts.
    """
    groups: dict[Hashable, dict[Hashable, list[tuple[float, float]]]] = {}
    for row, foretold_s in zip(rows, predicted_s, strict=True):
        if row.kind != "step" or row.strategy is None or row.model is None or row.seconds is None:
            continue
        job = (row.workload, row.model.transformer, row.model.sequence, row.hardware, row.num_accelerators)
        of_job = groups.setdefault((*job, row.strategy.global_batch_samples), {})
        of_job.setdefault(row.strategy, []).append((foretold_s, row.seconds))
    costs = [_cost(choices) for choices in groups.values() if len(choices) >= FEWEST_CHOICES]
    if not costs:
        return None
    return Regret(num_groups=len(costs), mean=sum(costs) / len(costs), largest=max(costs))


def _cost(choices: dict[Hashable, list[tuple[float, float]]]) -> float:
    """Regret of one group."""
    means = [
        (sum(told for told, _ in seen) / len(seen), sum(was for _, was in seen) / len(seen))
        for seen in choices.values()
    ]
    chosen_s = min(means)[1]
    return chosen_s / min(was for _, was in means) - 1.0

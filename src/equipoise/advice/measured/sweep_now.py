"""A sweep read from its folder, whether it runs or has ended: how far it is, and what it says so far."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.advice.measured.sweep_words import Swept, swept
from equipoise.bench.cell import Cell
from equipoise.bench.store import Finished, Store
from equipoise.bench.summary import Spread, Summary, spread
from equipoise.bench.under_way import UnderWay, under_way


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The ends of the trainings of one configuration, one a seed: medians with their intervals.

    accuracy: None where the workload has none.
    """

    cell: Cell
    num_seeds: int
    num_samples: int
    seconds: Spread
    loss: Spread
    accuracy: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One reason why cells failed. cell: the first of them."""

    cell: Cell
    reason: str
    num_cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepNow:
    """One sweep as it is now."""

    under_way: UnderWay
    swept: Swept
    trained: tuple[Trained, ...]
    failures: tuple[Failure, ...]


def sweep_now(folder: Path) -> SweepNow:
    """What the folder of a sweep tells now.

    Raises DataError where a file of it is damaged, or repetitions ran under unlike conditions.
    """
    store = Store(folder)
    now = under_way(folder)
    found = swept(folder, store.finished(), num_planned=now.num_planned, settings=store.settings())
    return SweepNow(
        under_way=now,
        swept=found,
        trained=tuple(_trained(each.summary) for each in found.judgements if each.summary.trained),
        failures=_failures(found.failed),
    )


def _trained(summary: Summary) -> Trained:
    runs = summary.trained
    accuracies = [run.accuracy for run in runs if run.accuracy is not None]
    return Trained(
        cell=summary.cell,
        num_seeds=len(runs),
        num_samples=runs[0].num_samples,
        seconds=spread([run.seconds for run in runs]),
        loss=spread([run.loss for run in runs]),
        accuracy=spread(accuracies) if len(accuracies) == len(runs) else None,
    )


def _failures(failed: Sequence[Finished]) -> tuple[Failure, ...]:
    """Each reason of each way to train once, in the order of the plan."""
    first: dict[tuple[str, int, int, str], Finished] = {}
    counts = Counter[tuple[str, int, int, str]]()
    for one in failed:
        key = (one.cell.method, one.cell.num_ranks, one.cell.batch_samples, one.reason or "no reason given")
        first.setdefault(key, one)
        counts[key] += 1
    return tuple(Failure(cell=one.cell, reason=key[-1], num_cells=counts[key]) for key, one in first.items())

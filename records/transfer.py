"""How wrong results carried to another chip are: whole chips held out of all published data. What ships.

    python records/transfer.py

holds them out and writes data/transfer.json.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from msgspec import Struct, to_builtins
from plans import modelled, published_problem, recent_rounds
from threadpoolctl import threadpool_limits
from written import write_of_dataset

from equipoise.calibration.curves import CurveQuestion
from equipoise.calibration.forecasts import results_of
from equipoise.decide.estimators.model import (
    NAME,
    NearChip,
    Nearness,
    TransferRecord,
    is_of_other_software,
    is_ordered,
    nearest_chips,
    order_bounds,
    violated_bound,
)
from equipoise.decide.estimators.published import (
    carried_by_model,
    published_estimates,
    published_evidence,
)
from equipoise.decide.evidence import Estimates
from equipoise.errors import EvidenceError, InputError
from equipoise.intervals import DEVIATE
from equipoise.runs import embedded
from equipoise.scaling.laws import FloatArray
from equipoise.spec.catalogue import shipped
from equipoise.spec.cluster import Cluster
from equipoise.spec.mlperf import Entries, Scores, accelerators_of, best_per_size, round_key

_P90 = 0.9


class HeldOutChip(Struct, frozen=True, kw_only=True):
    """One result of a chip that was held out, what was carried over to it, and the model alone.

    modelled_s: None where the samples to target are not known without the chip.
    """

    nearness: Nearness
    chip: str
    actual_s: float
    carried_s: float
    modelled_s: float | None


def records(found: Sequence[HeldOutChip]) -> tuple[TransferRecord, ...]:
    """The record of each nearness."""
    kinds: tuple[Nearness, ...] = ("chip", "maker")
    return tuple(
        _record(kind, [each for each in found if each.nearness == kind])
        for kind in kinds
        if any(each.nearness == kind for each in found)
    )


def _record(kind: Nearness, found: Sequence[HeldOutChip]) -> TransferRecord:
    carried = np.array([math.log(each.carried_s / each.actual_s) for each in found])
    model = np.array([each.modelled_s / each.actual_s - 1.0 for each in found if each.modelled_s is not None])
    chips = np.array([each.chip for each in found])
    inside = [
        abs(error) <= DEVIATE * _log_sd(carried[chips != chip])
        for error, chip in zip(carried, chips, strict=True)
        if (chips != chip).any()
    ]
    return TransferRecord(
        nearness=kind,
        num_held_out=len(found),
        num_chips=len(set(chips.tolist())),
        log_sd=_log_sd(carried),
        median=float(np.median(np.abs(np.expm1(carried)))),
        p90=float(np.quantile(np.abs(np.expm1(carried)), _P90)),
        coverage=float(np.mean(inside)) if inside else math.nan,
        modelled_median=float(np.median(np.abs(model))),
        modelled_p90=float(np.quantile(np.abs(model), _P90)),
    )


def _log_sd(errors: FloatArray) -> float:
    """Source: a tenth of the errors lies beyond 1.645 standard deviations."""
    return float(np.quantile(np.abs(errors), _P90)) / DEVIATE


def held_out_chips(scores: Scores) -> Iterator[HeldOutChip]:
    """Every result of the recent rounds, carried over from other chips' results of its round or earlier.

    Nothing of the chip itself is known: no result, no samples, no batch.
    """
    best = best_per_size(scores.entries)
    rounds = sorted({each.campaign for each in best}, key=round_key)
    kept = [each for each in best if each.campaign in recent_rounds(rounds)]
    for campaign, slug in dict.fromkeys((each.campaign, each.accelerator) for each in kept):
        until = rounds[: rounds.index(campaign) + 1]
        known = Scores(
            tuple(each for each in scores.entries if each.accelerator != slug and each.campaign in until)
        )
        others = results_of(known).best
        mine = (each for each in kept if (each.campaign, each.accelerator) == (campaign, slug))
        for workload, of_workload in groupby(mine, lambda each: each.workload):
            rows = tuple(of_workload)
            sizes = [each.num_accelerators for each in rows]
            for near in nearest_chips(others, workload, shipped().accelerator(slug), sizes, shipped()):
                found = list(_of_group(known, near, rows))
                if found:
                    yield from found
                    break


def _of_group(known: Scores, near: NearChip, rows: Entries) -> Iterator[HeldOutChip]:
    """The held-out results of one workload on one chip in one round, carried over as an answer does it.

    known: published results without the chip. rows: the chip's results.
    """
    sizes = [each.num_accelerators for each in rows]
    workload, slug = rows[0].workload, rows[0].accelerator
    question = CurveQuestion(workload=workload, accelerator=near.chip.slug, sizes=tuple(sizes))
    try:
        evidence = published_evidence(known, question)
        published, both = published_estimates(evidence), sorted({*sizes, *evidence.at_size})
        posed = published_problem(workload, slug, known)
        here = modelled(posed, both)
        there = modelled(published_problem(workload, near.chip.slug, known), both)
    except (InputError, EvidenceError):
        return
    if here is None or there is None or published is None:
        return
    there_s = {size: each.time_s.value for size, each in there.by_size.items()}
    published_s = {size: each.time_s.value for size, each in published.by_size.items()}
    if all(is_of_other_software(published_s[size], there_s[size]) for size in {*published_s} & {*there_s}):
        return
    carried = carried_by_model(published, there)
    bounds = order_bounds(
        posed.cluster,
        list(_in_order(known, posed.cluster, workload, sizes, here)),
        modelled_s={size: each.time_s.value for size, each in here.by_size.items()},
    )
    for size, actual_s in ((each.num_accelerators, each.score_s) for each in rows):
        if size in here.by_size and size in there.by_size and size in carried.by_size:
            here_s = here.by_size[size].time_s.value
            carried_s = carried.by_size[size].time_s.value * here_s / there_s[size]
            bound = violated_bound(carried_s, bounds.get(size, ()))
            yield HeldOutChip(
                nearness=near.nearness,
                chip=slug,
                actual_s=actual_s,
                carried_s=carried_s if bound is None else bound.time_s,
                modelled_s=None if posed.training.budget.samples is None else here_s,
            )


def _in_order(
    known: Scores, nodes: Cluster, workload: str, sizes: Sequence[int], here: Estimates
) -> Iterator[tuple[Cluster, Estimates]]:
    """The chips with results that are better or worse than the one held out, with their estimates."""
    for name in accelerators_of(known.of(workload)):
        other = shipped().cluster(name)
        if not (is_ordered(nodes, other, 1) or is_ordered(other, nodes, 1)):
            continue
        question = CurveQuestion(workload=workload, accelerator=name, sizes=tuple(sizes))
        found = published_estimates(published_evidence(known, question))
        if found is not None:
            yield other, carried_by_model(found, here)


def main() -> int:
    """Hold every chip out and write the file next to the embedded tables."""
    with threadpool_limits(limits=1):
        made = records(tuple(held_out_chips(embedded.scores())))
    write_of_dataset(NAME, {"records": [to_builtins(each) for each in made]})
    return 0


if __name__ == "__main__":
    sys.exit(main())

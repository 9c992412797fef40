"""Errors of results carried over to another chip, with whole chips held out of all published data.

    python records/transfer.py

holds them out and writes data/transfer.json.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from msgspec import Struct, to_builtins
from plans import recent_rounds
from threadpoolctl import threadpool_limits
from written import write_of_dataset

from equipoise.decide.collect import collect_candidates
from equipoise.decide.estimators.model import TRANSFER_RECORD_NAME, Nearness, TransferRecord
from equipoise.errors import EvidenceError, InputError
from equipoise.intervals import DEVIATE
from equipoise.library.decisions import given_fields, read_question
from equipoise.runs import embedded
from equipoise.scaling.laws import FloatArray
from equipoise.spec.catalogue import shipped
from equipoise.spec.mlperf import Entries, Scores, best_per_size, round_key

_P90 = 0.9


class HeldOutChip(Struct, frozen=True, kw_only=True):
    """One result of a held-out chip, the time carried over from other chips, and the model's alone.

    modelled_s: None where the samples to target are not known without the chip.
    """

    nearness: Nearness
    chip: str
    actual_s: float
    carried_s: float
    modelled_s: float | None


def records(found: Sequence[HeldOutChip]) -> tuple[TransferRecord, ...]:
    """The records by nearness."""
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
    """Yield every result of recent rounds, with predictions from other chips' results of its round or
    earlier.

    Nothing of the chip itself is used: no results, samples or batches.
    """
    best = best_per_size(scores.entries)
    rounds = sorted({each.campaign for each in best}, key=round_key)
    kept = [each for each in best if each.campaign in recent_rounds(rounds)]
    for campaign, slug in dict.fromkeys((each.campaign, each.accelerator) for each in kept):
        until = rounds[: rounds.index(campaign) + 1]
        known = Scores(
            tuple(each for each in scores.entries if each.accelerator != slug and each.campaign in until)
        )
        mine = (each for each in kept if (each.campaign, each.accelerator) == (campaign, slug))
        for _, of_workload in groupby(mine, lambda each: each.workload):
            yield from _of_group(known, tuple(of_workload))


def _of_group(known: Scores, rows: Entries) -> Iterator[HeldOutChip]:
    """Yield the held-out results of one workload on one chip in one round, as an answer predicts them.

    known: published results without the chip. rows: the chip's results.
    """
    sizes = [each.num_accelerators for each in rows]
    given = {"accelerator": rows[0].accelerator, "accelerators": sizes}
    question = read_question(given_fields("advise", rows[0].workload, given), verb="advise")
    try:
        (one,) = collect_candidates(question, shipped(), known).systems
    except (InputError, EvidenceError):
        return
    near = one.assessment.transferred
    if near is None:
        return
    carried_s = {each.num_accelerators: each.work_s.value for each in one.candidates}
    modelled = next((each for each in one.assessment.estimates if each.estimator == "model"), None)
    modelled_s = {} if modelled is None else {n: each.time_s.value for n, each in modelled.by_size.items()}
    for row in rows:
        if row.num_accelerators in carried_s:
            yield HeldOutChip(
                nearness=near.nearness,
                chip=row.accelerator,
                actual_s=row.score_s,
                carried_s=carried_s[row.num_accelerators],
                modelled_s=modelled_s.get(row.num_accelerators),
            )


def main() -> int:
    """Hold out every chip, and write the record next to the embedded tables."""
    with threadpool_limits(limits=1):
        made = records(tuple(held_out_chips(embedded.scores())))
    write_of_dataset(TRANSFER_RECORD_NAME, {"records": [to_builtins(each) for each in made]})
    return 0


if __name__ == "__main__":
    sys.exit(main())

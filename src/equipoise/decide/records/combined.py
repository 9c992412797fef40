"""How wrong published results, the model and both combined are about times nobody ran: the record that ships.

`python -m equipoise.decide.records.combined` compares them with results and writes data/combined.json.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np
from msgspec import Struct, to_builtins
from threadpoolctl import threadpool_limits

from equipoise.decide.combine import COMBINED_RECORD_NAME, CombinedRecord, Jump, ModelKind, Planned, combine
from equipoise.decide.records.plans import kind_of, modelled, planned, published_problem, write_record
from equipoise.errors import EvidenceError, InputError
from equipoise.runs import embedded
from equipoise.runs.results import Scores, best_per_size
from equipoise.scaling.backtest import HeldOut, backtest
from equipoise.scaling.laws import FloatArray
from equipoise.stats import DEVIATE, Interval, log_sd

_MOST_DOUBLINGS = 6
_JUMPS = (0.0, 2.0, 4.0, math.inf)
_P90 = 0.9


class HeldOutTime(Struct, frozen=True, kw_only=True):
    """One held-out result, and what the pooled law and the model say of it.

    jump: its size over the largest known of its group.
    """

    kind: ModelKind
    jump: float
    actual_s: float
    published: Interval
    modelled: Interval


def record_of(
    found: Sequence[HeldOutTime], carried_log_sd: Sequence[float], num_carried: int
) -> CombinedRecord:
    """The record of held-out results, and of times carried (as `CombinedRecord.carried_log_sd`)."""
    published: FloatArray = np.array([math.log(each.published.value / each.actual_s) for each in found])
    model: FloatArray = np.array([math.log(each.modelled.value / each.actual_s) for each in found])
    stated = np.array([log_sd(each.published) for each in found])
    by_jump = _by_jump(np.array([each.jump for each in found]), published / stated, model)
    kinds = np.array([each.kind for each in found])
    spread: dict[ModelKind, float] = {
        name: _rms(model[kinds == name]) for name in ("transformer", "other") if (kinds == name).any()
    }
    joint = []
    for each, sd in zip(found, stated, strict=True):
        errors = next(one for one in by_jump if one.most is None or each.jump <= one.most)
        both = combine((each.published, each.modelled), (errors.published_scale * sd, errors.modelled_log_sd))
        joint.append((both.time, each.actual_s))
    off = np.array([abs(time.value / actual_s - 1.0) for time, actual_s in joint])
    return CombinedRecord(
        num_held_out=len(found),
        by_jump=by_jump,
        modelled_log_sd=spread,
        correlation=float(np.corrcoef(published, model)[0, 1]),
        carried_log_sd=tuple(carried_log_sd),
        num_carried=num_carried,
        median=float(np.median(off)),
        p90=float(np.quantile(off, _P90)),
        coverage=float(np.mean([time.low <= actual_s <= time.high for time, actual_s in joint])),
        published_median=float(np.median(np.abs(np.expm1(published)))),
        published_p90=float(np.quantile(np.abs(np.expm1(published)), _P90)),
        modelled_median=float(np.median(np.abs(np.expm1(model)))),
    )


def _by_jump(jumps: FloatArray, scaled: FloatArray, model: FloatArray) -> tuple[Jump, ...]:
    """The errors by jump. scaled: errors of published times in stated standard deviations; all (n,)."""
    found = []
    for above, most in pairwise(_JUMPS):
        inside = (above < jumps) & (jumps <= most)
        found.append(
            Jump(
                most=None if math.isinf(most) else most,
                num_held_out=int(inside.sum()),
                published_scale=_rms(scaled[inside]),
                modelled_log_sd=_rms(model[inside]),
            )
        )
    return tuple(found)


def _rms(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def carried_log_sds(found: Sequence[Planned]) -> tuple[tuple[float, ...], int]:
    """How wrong times carried to another size by the model are, by doublings; and the number of pairs.

    found: published trainings with their plans. Pairs are of one group: round, workload, accelerator.
    Source: a tenth of the pairs lies beyond 1.645 standard deviations; made never to fall with distance.
    """
    groups: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    for each in found:
        if each.planned_s is not None:
            ratio = math.log(each.published_s / each.planned_s)
            groups.setdefault(each.group, []).append((each.num_accelerators, ratio))
    by_doublings: dict[int, list[float]] = {}
    for members in groups.values():
        for (size, ratio), (other, theirs) in combinations(members, 2):
            doublings = min(_MOST_DOUBLINGS, round(abs(math.log2(other / size))))
            by_doublings.setdefault(doublings, []).append(abs(ratio - theirs))
    spread = [
        float(np.quantile(by_doublings[place], _P90)) / DEVIATE if place in by_doublings else 0.0
        for place in range(_MOST_DOUBLINGS + 1)
    ]
    rising = np.maximum.accumulate(spread)
    return tuple(rising.tolist()), sum(map(len, by_doublings.values()))


def _held_out(results: Sequence[HeldOut], scores: Scores) -> Iterator[HeldOutTime]:
    """The held-out results that the model estimates too."""
    for each in results:
        model = _modelled(each, scores)
        if model is not None:
            yield HeldOutTime(
                kind=kind_of(each.workload),
                jump=each.jump,
                actual_s=each.actual_s,
                published=Interval(value=each.predicted_s, low=each.low_s, high=each.high_s, level=0.9),
                modelled=model,
            )


def _modelled(held: HeldOut, scores: Scores) -> Interval | None:
    """The modelled time at the batch that an answer would choose; None where there is none."""
    try:
        posed = published_problem(held.workload, held.accelerator, scores)
        found = modelled(posed, [held.num_accelerators])
    except (InputError, EvidenceError):
        return None
    if found is None or posed.training.budget.samples is None:
        return None
    return found.by_size[held.num_accelerators].time_s


def main() -> int:
    """Compare all estimates with results and write the file next to the embedded tables."""
    scores = embedded.scores()
    with threadpool_limits(limits=1):
        found = list(_held_out(backtest(best_per_size(scores.entries), protocol="largest").groups, scores))
        carried, num_carried = carried_log_sds(list(planned(scores)))
    write_record(COMBINED_RECORD_NAME, {"record": to_builtins(record_of(found, carried, num_carried))})
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How wrong published results, the model and both combined are, about times and the number to take.

The records that ship, of times nobody ran and of sizes held out of published groups.

    python records/combined.py [advice]

compares times with results and writes data/combined.json; with `advice` it advises again and writes
data/combined_advice.json.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

import numpy as np
from calibrations import advice_document
from msgspec import Struct, to_builtins
from msgspec.structs import replace
from plans import Planned, kind_of, modelled, planned, published_problem
from threadpoolctl import threadpool_limits
from written import write_of_dataset, write_record

from equipoise.calibration.advice_backtest import Curves, held_out_advice, pooled_curves
from equipoise.calibration.curves import COMBINED
from equipoise.decide.combine import (
    COMBINED_RECORD_NAME,
    CombinedRecord,
    Jump,
    ModelKind,
    combine,
    combined_curves,
    combined_record,
)
from equipoise.decide.estimators.model import at_published_level, published_levels
from equipoise.decide.evidence import LEAST_LOG_SD, DrawnCurves, Estimate, Estimates
from equipoise.errors import EvidenceError, InputError
from equipoise.intervals import DEVIATE, Interval, log_sd, with_log_sd
from equipoise.runs import embedded
from equipoise.scaling.backtest import HeldOut, backtest
from equipoise.scaling.laws import Domain, FloatArray
from equipoise.scaling.pooled import PooledLaw, Question
from equipoise.spec.mlperf import Entries, Scores, best_per_size

_MAX_DOUBLINGS = 6
_JUMP_BOUNDS = (0.0, 2.0, 4.0, math.inf)
_P90 = 0.9


class HeldOutTime(Struct, frozen=True, kw_only=True):
    """One held-out result, and its predictions by the pooled law and the model.

    jump: its size over the largest known size of its group. modelled: by the model, scaled to the group's
    known results. alone_s: by the model alone.
    """

    kind: ModelKind
    jump: float
    actual_s: float
    published: Interval
    modelled: Interval
    alone_s: float


def record_of(
    found: Sequence[HeldOutTime], carried_log_sd: Sequence[float], num_carried: int
) -> CombinedRecord:
    """The record of held-out results, and of times carried over (`CombinedRecord.carried_log_sd`)."""
    published: FloatArray = np.array([math.log(each.published.value / each.actual_s) for each in found])
    model: FloatArray = np.array([math.log(each.modelled.value / each.actual_s) for each in found])
    stated = np.array([log_sd(each.published) for each in found])
    by_jump = _by_jump(np.array([each.jump for each in found]), published / stated, model)
    alone = np.array([math.log(each.alone_s / each.actual_s) for each in found])
    kinds = np.array([each.kind for each in found])
    spread: dict[ModelKind, float] = {
        name: _rms(alone[kinds == name]) for name in ("transformer", "other") if (kinds == name).any()
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
        alone_median=float(np.median(np.abs(np.expm1(alone)))),
    )


def _by_jump(jumps: FloatArray, scaled: FloatArray, model: FloatArray) -> tuple[Jump, ...]:
    """The errors by jump. scaled: errors of published times over their stated sd; all (n,)."""
    found = []
    for above, most in pairwise(_JUMP_BOUNDS):
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
    """Sd of log times that the model extrapolates to another size, by doublings; and the number of pairs.

    found: published trainings with their plans. Both of a pair have the same round, workload and accelerator.
    Source: a tenth of the pairs lies beyond 1.645 standard deviations; made non-decreasing with distance.
    """
    groups: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    for each in found:
        if each.planned_s is not None:
            ratio = math.log(each.published_s / each.planned_s)
            groups.setdefault(each.group, []).append((each.num_accelerators, ratio))
    by_doublings: dict[int, list[float]] = {}
    for members in groups.values():
        for (size, ratio), (other, theirs) in combinations(members, 2):
            doublings = min(_MAX_DOUBLINGS, round(abs(math.log2(other / size))))
            by_doublings.setdefault(doublings, []).append(abs(ratio - theirs))
    spread = [
        float(np.quantile(by_doublings[place], _P90)) / DEVIATE if place in by_doublings else 0.0
        for place in range(_MAX_DOUBLINGS + 1)
    ]
    rising = np.maximum.accumulate(spread)
    return tuple(rising.tolist()), sum(map(len, by_doublings.values()))


def _held_out(results: Sequence[HeldOut], scores: Scores) -> Iterator[HeldOutTime]:
    """The held-out results for which the model also has an estimate."""
    best = best_per_size(scores.entries)
    for each in results:
        group = (each.round, each.workload, each.accelerator)
        known = [one for one in best if one.group == group and one.num_accelerators < each.num_accelerators]
        model = _modelled(each, known, scores)
        if model is not None:
            yield HeldOutTime(
                kind=kind_of(each.workload),
                jump=each.jump,
                actual_s=each.actual_s,
                published=Interval(value=each.predicted_s, low=each.low_s, high=each.high_s, level=0.9),
                modelled=model[0],
                alone_s=model[1],
            )


def _modelled(held: HeldOut, known: Entries, scores: Scores) -> tuple[Interval, float] | None:
    """The modelled time at the batch that an answer would choose: scaled to the group's known results, and
    alone.

    None where the model has no estimate.
    """
    size, results = held.num_accelerators, {each.num_accelerators: each.score_s for each in known}
    try:
        posed = published_problem(held.workload, held.accelerator, scores)
        found = modelled(posed, [*results, size])
    except (InputError, EvidenceError):
        return None
    if found is None or posed.training.budget.samples is None or size not in found.by_size:
        return None
    published = _results(results)
    at_level = at_published_level(found, published, published_levels(published, found, [*results]))
    return at_level.by_size[size].time_s, found.by_size[size].time_s.value


class CombinedCurves(Struct, frozen=True, kw_only=True):
    """The curves from which a number of accelerators is chosen. scores: all published results.

    As in an answer, groups without an estimate by the model use the curves of published results alone.
    """

    scores: Scores

    def __call__(self, law: PooledLaw, known: Entries, domain: Domain) -> Curves:
        """Curves as in `CurvesOf`, also with samples to target, from earlier rounds and the known rows only.

        Assumes the model's profiles are known, although they were fitted to steps of all years.
        """
        model = self._modelled(law, known, domain)
        if model is None:
            return pooled_curves(law, known, domain)
        published = _published(law, known, domain)
        sizes = [each.num_accelerators for each in known]
        levels = published_levels(published, model, sizes)
        estimators = (published, at_published_level(model, published, levels))
        found = combined_curves(estimators, domain=domain)
        assert found is not None
        return about_combined(found[0], estimators)

    def _modelled(self, law: PooledLaw, known: Entries, domain: Domain) -> Estimates | None:
        """The model's estimates for the sizes of the domain, and twice the largest."""
        first, last = known[0], known[-1]
        entries = tuple(
            each
            for each in self.scores.entries
            if each.campaign in law.rounds
            or (each.group == first.group and each.num_accelerators <= last.num_accelerators)
        )
        try:
            return modelled(
                published_problem(first.workload, first.accelerator, Scores(entries)), _sizes(domain)
            )
        except (InputError, EvidenceError):
            return None


def about_combined(curves_s: Curves, estimators: Sequence[Estimates]) -> Curves:
    """The curves centred on the combined time of each size, as an answer uses them to choose a number.

    Source: scaled by combined time over median, interpolated linearly between sizes in both logarithms.
    """
    times = {}
    for size in sorted({size for each in estimators for size in each.by_size}):
        found = [each.by_size[size] for each in estimators if size in each.by_size]
        times[size] = combine([each.time_s for each in found], [each.log_sd for each in found]).time.value
    sizes = np.array([float(size) for size in times])
    ratios = np.log(np.array(list(times.values())) / np.median(curves_s(sizes), axis=0))

    def moved_s(at: FloatArray) -> FloatArray:
        return np.asarray(curves_s(at) * np.exp(np.interp(np.log(at), np.log(sizes), ratios)))

    return moved_s


def taken_sizes(domain: Domain) -> tuple[int, ...]:
    """The sizes from which an answer chooses: both ends of the domain, and powers of two between."""
    return tuple(size for size in _sizes(domain) if domain.smallest <= size <= domain.largest)


def _sizes(domain: Domain) -> tuple[int, ...]:
    """Both ends of the domain, twice the larger, and powers of two between."""
    low, high = round(domain.smallest), round(domain.largest)
    powers = {2**step for step in range((2 * high).bit_length())}
    return tuple(sorted({low, high, 2 * high} | {each for each in powers if low <= each <= 2 * high}))


def _published(law: PooledLaw, known: Entries, domain: Domain) -> Estimates:
    """Estimates by published results: the known ones unchanged, other sizes predicted by the pooled law.

    Source: data/combined.json, by the ratio of a size to the largest known one.
    """
    first = known[0]
    results = {each.num_accelerators: each.score_s for each in known}
    largest = max(results)
    found = law.predict_all(
        known,
        [
            Question(workload=first.workload, accelerator=first.accelerator, num_accelerators=size)
            for size in _sizes(domain)
        ],
    )
    by_size = {}
    for each in found:
        size = each.question.num_accelerators
        spread = combined_record().at(size / largest).published_scale * log_sd(each.time_s)
        by_size[size] = _estimate(each.time_s, spread)
    submitted = _results(results)
    by_size |= submitted.by_size
    return replace(
        submitted,
        by_size={size: by_size[size] for size in sorted(by_size)},
        grade=dict.fromkeys(by_size, "published"),
        curves=DrawnCurves(time_s=pooled_curves(law, known, domain), domain=domain),
    )


def _results(score_s: Mapping[int, float]) -> Estimates:
    """Results by size, each with the sd between submissions of one system."""
    found = {size: _estimate(with_log_sd(each, LEAST_LOG_SD), LEAST_LOG_SD) for size, each in score_s.items()}
    return Estimates(
        estimator="published",
        name="published results",
        by_size=found,
        grade=dict.fromkeys(found, "published"),
    )


def _estimate(time_s: Interval, spread: float) -> Estimate:
    return Estimate(estimator="published", name="published results", time_s=time_s, log_sd=spread, why="")


def _advise() -> None:
    """Recompute the advice for every group, and write the record.

    Cost is omitted: it is not an equilibrium of these curves, and its record is that of published results.
    """
    scores = embedded.scores()
    results = held_out_advice(scores.entries, curves_of=CombinedCurves(scores=scores), sizes_of=taken_sizes)
    document = advice_document([each for each in results if each.objective != "cost"])
    write_record(COMBINED, document)


def _compare() -> None:
    """Compare all estimates with results, and write the record next to the embedded tables."""
    scores = embedded.scores()
    with threadpool_limits(limits=1):
        found = list(_held_out(backtest(best_per_size(scores.entries), protocol="largest").groups, scores))
        carried, num_carried = carried_log_sds(list(planned(scores)))
    write_of_dataset(COMBINED_RECORD_NAME, {"record": to_builtins(record_of(found, carried, num_carried))})


if __name__ == "__main__":
    (_advise if sys.argv[1:] == ["advice"] else _compare)()

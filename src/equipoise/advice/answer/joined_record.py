"""How wrong each kind of evidence is about times nobody ran, and their joint answer: the record that ships.

`python -m equipoise.advice.answer.joined_record` holds them against results and writes data/joined.json.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import orjson
import polars as pl
from threadpoolctl import threadpool_limits

from equipoise.advice.answer.weighed import log_sd, weighed
from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.length import DEVIATE
from equipoise.advice.plans.plan_record import ModelKind, Planned
from equipoise.advice.plans.planned import Question
from equipoise.advice.plans.replanned import kind_of, planned
from equipoise.advice.plans.setting import setting
from equipoise.errors import DataError, EvidenceError, InputError
from equipoise.runs import embedded
from equipoise.scaling.backtest import HeldOut, backtest
from equipoise.scaling.law import FloatArray
from equipoise.stats import Interval
from equipoise.units import significant

NAME = "joined.json"
_NUM_DIGITS = 4
_MOST_DOUBLINGS = 6
_JUMPS = (0.0, 2.0, 4.0, math.inf)
_P90 = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """Errors at sizes up to `most` times the largest known; None: without end.

    published_scale: root mean square error of the pooled law over the standard deviation that its interval
    stands for. modelled_log_sd: root mean square error of plans.
    """

    most: float | None
    num_held_out: int
    published_scale: float
    modelled_log_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRecord:
    """Errors of logarithms of time on the largest size of a group, held out, where a plan tells it too.

    by_jump: errors by how many times the largest size known the size is. modelled_log_sd: root mean square
    error of plans that choose their batch, by kind of model, of all. correlation: between the two errors.
    carried_log_sd: of a published time carried by the model over so many doublings, from 0. median, p90,
    coverage: of the joint answer, errors as |joint / published - 1|; published_median, published_p90,
    modelled_median: of each alone.
    """

    num_held_out: int
    by_jump: tuple[Jump, ...]
    modelled_log_sd: Mapping[ModelKind, float]
    correlation: float
    carried_log_sd: tuple[float, ...]
    num_carried: int
    median: float
    p90: float
    coverage: float
    published_median: float
    published_p90: float
    modelled_median: float

    def at(self, jump: float) -> Jump:
        """The errors at a size so many times the largest known."""
        return next(each for each in self.by_jump if each.most is None or jump <= each.most)

    def carried(self, num_doublings: float) -> float:
        """The error of carrying a time over so many doublings, straight between whole numbers of them."""
        places = np.arange(len(self.carried_log_sd))
        return float(np.interp(num_doublings, places, self.carried_log_sd))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One held-out result beside what the pooled law and the model say of it."""

    kind: ModelKind
    jump: float
    actual_s: float
    published: Interval
    modelled: Interval


@cache
def joined_record() -> JoinedRecord:
    """The record that ships. Raises DataError where its file is missing or not what `main` writes."""
    path = files("equipoise") / "data" / NAME
    try:
        found = orjson.loads(path.read_bytes())["record"]
        jumps = tuple(Jump(**each) for each in found["by_jump"])
        return JoinedRecord(**(found | {"by_jump": jumps, "carried_log_sd": tuple(found["carried_log_sd"])}))
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(
            f"{path}: {err!r}; expected the record of joint answers: `make profiles` writes it"
        ) from err


def record_of(pairs: Sequence[Pair], carried: Sequence[float], num_carried: int) -> JoinedRecord:
    """The record of held-out results, and of times carried (as `JoinedRecord.carried_log_sd`)."""
    published: FloatArray = np.array([math.log(each.published.value / each.actual_s) for each in pairs])
    modelled: FloatArray = np.array([math.log(each.modelled.value / each.actual_s) for each in pairs])
    stated = np.array([log_sd(each.published) for each in pairs])
    jumps = np.array([each.jump for each in pairs])
    by_jump = []
    for above, most in pairwise(_JUMPS):
        inside = (above < jumps) & (jumps <= most)
        by_jump.append(
            Jump(
                most=None if math.isinf(most) else most,
                num_held_out=int(inside.sum()),
                published_scale=_rms(published[inside] / stated[inside]),
                modelled_log_sd=_rms(modelled[inside]),
            )
        )
    kinds = np.array([each.kind for each in pairs])
    spread: dict[ModelKind, float] = {
        name: _rms(modelled[kinds == name]) for name in ("transformer", "other") if (kinds == name).any()
    }
    joint = []
    for each, sd in zip(pairs, stated, strict=True):
        place = next(one for one in by_jump if one.most is None or each.jump <= one.most)
        joint.append(
            weighed((each.published, each.modelled), (place.published_scale * sd, place.modelled_log_sd))
        )
    told = list(zip([each.time for each in joint], [each.actual_s for each in pairs], strict=True))
    errors = np.array([abs(time.value / actual_s - 1.0) for time, actual_s in told])
    held = [time.low <= actual_s <= time.high for time, actual_s in told]
    return JoinedRecord(
        num_held_out=len(pairs),
        by_jump=tuple(by_jump),
        modelled_log_sd=spread,
        correlation=float(np.corrcoef(published, modelled)[0, 1]),
        carried_log_sd=tuple(carried),
        num_carried=num_carried,
        median=float(np.median(errors)),
        p90=float(np.quantile(errors, _P90)),
        coverage=float(np.mean(held)),
        published_median=float(np.median(np.abs(np.expm1(published)))),
        published_p90=float(np.quantile(np.abs(np.expm1(published)), _P90)),
        modelled_median=float(np.median(np.abs(np.expm1(modelled)))),
    )


def _rms(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def carried_log_sds(found: Sequence[Planned]) -> tuple[tuple[float, ...], int]:
    """What carrying a published time to another size by the model misses, by doublings; the number of pairs.

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


def _pairs(held: Sequence[HeldOut], scores: pl.DataFrame) -> Iterator[Pair]:
    """The held-out results that a plan tells of too."""
    for each in held:
        modelled = _modelled(each, scores)
        if modelled is not None:
            yield Pair(
                kind=kind_of(each.workload),
                jump=each.jump,
                actual_s=each.actual_s,
                published=Interval(value=each.predicted_s, low=each.low_s, high=each.high_s, level=0.9),
                modelled=modelled,
            )


def _modelled(held: HeldOut, scores: pl.DataFrame) -> Interval | None:
    """What a plan says that chooses its own batch, as an advice does."""
    size = held.num_accelerators
    try:
        ground = setting(
            Question(
                workload=held.workload, accelerator=held.accelerator, fewest=size, most=size, num_best=1
            ),
            Terms(),
            scores,
        )
    except (InputError, EvidenceError):
        return None
    best = ground.searched(size).best
    return ground.timed([best[0].strategy]).options[0].time if best else None


def main() -> int:
    """Hold everything against results and write the file beside the embedded tables."""
    scores = embedded.load().scores
    with threadpool_limits(limits=1):
        pairs = list(_pairs(backtest(scores, protocol="largest").groups, scores))
        carried, num_carried = carried_log_sds(list(planned(scores)))
    document = {"dataset": embedded.version(), "record": asdict(record_of(pairs, carried, num_carried))}
    path = Path(str(files("equipoise") / "data" / NAME))
    encoded = orjson.dumps(
        significant(document, _NUM_DIGITS), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
    path.write_bytes(encoded)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The fastest way to train a model on this machine, in few trials: predicted for all, measured for few."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import median

from equipoise.advice.measured.exchange_costs import ExchangeCosts
from equipoise.advice.measured.foretold_steps import ForetoldStep, OneDevice, foretold, one_device
from equipoise.advice.measured.ways import Refused, Space, alone_cells, candidates, effect
from equipoise.bench.cell import Cell
from equipoise.bench.store import SUCCESS, Finished
from equipoise.bench.timed_run import timed_run
from equipoise.errors import EvidenceError, UsageError
from equipoise.stats import Interval, ratio_interval

LEVEL = 0.9
# Once a method was measured at one batch, others of it are predicted by that error, within this factor.
_SEEN_HALF_LOG = 0.12
# Measured speeds that lie closer than this are measured again.
_NEAR = 0.93
_MOST_FINALISTS = 3

Measure = Callable[[Sequence[Cell]], Sequence[Finished]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to train: what it does to learning, what was predicted of it, and what was measured.

    predicted_step: None where the evidence was too thin, `not_predicted` says why. runs: samples per
    second of each repetition.
    """

    cell: Cell
    effect: str
    predicted_step: ForetoldStep | None
    not_predicted: str | None = None
    runs: tuple[float, ...] = ()
    failed: str | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Measured samples per second, the median over repetitions; None where none succeeded."""
        return median(self.runs) if self.runs else None

    @property
    def error_log(self) -> float | None:
        """Logarithm of measured over predicted samples per second; None without both."""
        speed = self.samples_per_s
        if speed is None or self.predicted_step is None:
            return None
        return log(speed / self.predicted_step.samples_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found. tried: every candidate, fastest first, those measured before those predicted.

    best: the fastest measured, one device alone among them. alone, plain: the fastest of one device and of
    plain ddp; None where none ran. over_alone, over_plain: the best's samples per second over theirs; None
    where nothing was repeated. num_trials: runs on several ranks. stopped: why no more were tried.
    folder: where runs are kept.
    """

    space: Space
    tried: tuple[Candidate, ...]
    refused: tuple[Refused, ...]
    best: Candidate
    alone: Candidate
    plain: Candidate | None
    over_alone: Interval | None
    over_plain: Interval | None
    num_trials: int
    stopped: str
    folder: Path | None = None

    @property
    def median_error_fraction(self) -> float | None:
        """Median error of the predicted speeds of what was tried on several ranks; None without any."""
        errors = [
            abs(exp(-each.error_log) - 1.0)
            for each in self.tried
            if each.cell.num_ranks > 1 and each.error_log is not None
        ]
        return median(errors) if errors else None


def search(
    space: Space,
    measure: Measure,
    costs: Mapping[int, ExchangeCosts],
    *,
    num_trials: int,
    num_repetitions: int,
) -> Found:
    """The fastest of the space that was found in so many runs on several ranks.

    measure: runs cells, or remembers what they gave. costs: of messages, by number of ranks.
    Foretells every candidate, measures the most promising, learns from each how wrong it was, and stops when
    no other can be faster by its predicted interval; then repeats the best few, plain ddp and one device.
    Raises EvidenceError where not even one device could be measured.
    """
    if num_trials < 1:
        raise UsageError(f"{num_trials} trials; expected at least 1")
    cells, refused = candidates(space)
    alone = measure(alone_cells(space))
    one = one_device(alone)
    known = {each.cell_id: _foretold_candidate(each, one, costs) for each in cells}
    for finished in alone:
        _learn(known, finished)
    trials, stopped = _explored(known, measure, num_trials)
    trials += _repeated(known, measure, num_trials - trials, num_repetitions)
    return _judged(space, known, refused, trials, stopped)


def _foretold_candidate(cell: Cell, one: OneDevice, costs: Mapping[int, ExchangeCosts]) -> Candidate:
    step, reason = None, None
    try:
        step = foretold(
            cell.method,
            num_ranks=cell.num_ranks,
            batch_samples=cell.batch_samples,
            one=one,
            # Costs of another number of ranks are refused there, with what is missing.
            costs=costs.get(cell.num_ranks) or next(iter(costs.values())),
        )
    except EvidenceError as err:
        reason = str(err)
    return Candidate(cell=cell, effect=effect(cell.method), predicted_step=step, not_predicted=reason)


def _learn(known: dict[str, Candidate], finished: Finished) -> None:
    """Add what a run gave to its candidate."""
    key = replace(finished.cell, repetition=1).cell_id
    if key not in known:
        return
    run = timed_run(finished)
    if finished.status != SUCCESS or run is None:
        known[key] = replace(known[key], failed=finished.reason or "no step was timed")
        return
    speed = finished.cell.batch_samples / run.step_s
    known[key] = replace(known[key], runs=(*known[key].runs, speed))


def _explored(known: dict[str, Candidate], measure: Measure, num_trials: int) -> tuple[int, str]:
    """Measure the most promising until no other can be faster; the runs spent, and why it ended."""
    spent = 0
    baseline = _most_promising(known, _untried(known, only="ddp"))
    while spent < num_trials:
        left = _untried(known)
        if not left:
            return spent, "everything was tried"
        best = max(each.samples_per_s or 0.0 for each in known.values())
        following = baseline if baseline and not spent else _most_promising(known, left)
        assert following is not None
        if following is not baseline and max(_bounds(known, each)[1] for each in left) < best:
            return spent, "by their intervals no other is faster"
        for finished in measure([following.cell]):
            _learn(known, finished)
        spent += 1
    return spent, f"{num_trials} trials were spent"


def _untried(known: Mapping[str, Candidate], only: str | None = None) -> list[Candidate]:
    return [
        each
        for each in known.values()
        if not each.runs
        and each.failed is None
        and each.cell.num_ranks > 1
        and (only is None or each.cell.method == only)
    ]


def _most_promising(known: Mapping[str, Candidate], left: Sequence[Candidate]) -> Candidate | None:
    """The one with the highest predicted speed; those of which nothing could be predicted come first."""
    return max(left, key=lambda each: _bounds(known, each)[0], default=None)


def _bounds(known: Mapping[str, Candidate], of: Candidate) -> tuple[float, float]:
    """Samples per second predicted, corrected by what was learned of the method, and the most they may be."""
    if of.predicted_step is None:
        return float("inf"), float("inf")
    alike = [
        each.error_log
        for each in known.values()
        if each.error_log is not None
        and each.cell.method == of.cell.method
        and each.cell.num_ranks == of.cell.num_ranks
    ]
    step = of.predicted_step
    half = _SEEN_HALF_LOG if alike else log(step.step_s.value / step.step_s.low)
    expected = step.samples_per_s * exp(median(alike) if alike else 0.0)
    return expected, expected * exp(half)


def _repeated(known: dict[str, Candidate], measure: Measure, num_left: int, num_repetitions: int) -> int:
    """Run the fastest few, plain ddp and one device again; the runs spent on several ranks."""
    measured = sorted((each for each in known.values() if each.runs), key=_speed, reverse=True)
    if not measured:
        return 0
    near = [each for each in measured if _speed(each) >= _NEAR * _speed(measured[0])][:_MOST_FINALISTS]
    plain, alone = (_fastest(measured, name) for name in ("ddp", "single"))
    finalists = {each.cell.cell_id: each.cell for each in (*near, plain, alone) if each is not None}
    spent = 0
    for repetition in range(2, num_repetitions + 1):
        for cell in finalists.values():
            if cell.num_ranks > 1 and spent >= num_left:
                continue
            spent += cell.num_ranks > 1
            for finished in measure([replace(cell, repetition=repetition)]):
                _learn(known, finished)
    return spent


def _speed(candidate: Candidate) -> float:
    return candidate.samples_per_s or 0.0


def _fastest(measured: Iterable[Candidate], name: str) -> Candidate | None:
    """The fastest candidate of a method; None where none ran."""
    return max(
        (each for each in measured if each.runs and each.cell.method == name), key=_speed, default=None
    )


def _repeated_if_any(measured: list[Candidate]) -> list[Candidate]:
    """Those that ran several times: one lucky run does not outdo what was looked at twice."""
    return [each for each in measured if len(each.runs) > 1] or measured


def _judged(
    space: Space, known: Mapping[str, Candidate], refused: tuple[Refused, ...], trials: int, stopped: str
) -> Found:
    measured = [each for each in known.values() if each.runs]
    alone, plain = (
        _fastest(_repeated_if_any([each for each in measured if each.cell.method == name]), name)
        for name in ("single", "ddp")
    )
    if alone is None:
        raise EvidenceError("no run on one device succeeded", missing=("a run on one device",))
    best = max((alone, *_repeated_if_any([each for each in measured if each.cell.num_ranks > 1])), key=_speed)
    ordered = sorted(
        known.values(), key=lambda each: (not each.runs, -(_speed(each) or _bounds(known, each)[0]))
    )
    return Found(
        space=space,
        tried=tuple(ordered),
        refused=refused,
        best=best,
        alone=alone,
        plain=plain,
        over_alone=_gain(best, alone),
        over_plain=_gain(best, plain),
        num_trials=trials,
        stopped=stopped,
    )


def _gain(best: Candidate, other: Candidate | None) -> Interval | None:
    """Samples per second of the best over another's; None where either ran only once."""
    if other is None or min(len(best.runs), len(other.runs)) < 2:  # noqa: PLR2004 - one run has no spread
        return None
    return ratio_interval(best.runs, other.runs, level=LEVEL)

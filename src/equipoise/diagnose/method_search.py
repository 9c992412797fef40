"""Search for the fastest training method on this machine in few trials: predict all, measure a few."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import median
from typing import get_args

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from equipoise.bench.summary import timed_run
from equipoise.bench.sweep import AdaptiveSweep
from equipoise.bench.training import Effect, method
from equipoise.bench.trial import SUCCESS, FinishedTrial, Trial
from equipoise.diagnose.predicted_steps import (
    ExchangeCosts,
    OneDevice,
    PredictedStep,
    exchange_costs,
    needed,
    one_device,
    predict_step,
)
from equipoise.errors import EvidenceError, UsageError
from equipoise.intervals import LEVEL, Interval
from equipoise.stats import ratio_interval

EXACT, LARGER_BATCH, LOSSY, OTHER = get_args(Effect)
# Methods searched by default: exact ones, and ones that were observed to reach the same loss.
EXACT_METHODS = ("ddp", "ddp:1", "static_graph", "fsdp")
EVIDENCED_METHODS = ("fp16", "bf16", "accumulate:2", "localsgd:8", "localsgd_fp16:32")
EVIDENCE = "docs/experiments/0013-convergence.md"


class MethodSpace(Struct, frozen=True, kw_only=True):
    """The search space. methods: of several ranks, in text form. batches: samples per step over all ranks."""

    workload: str
    methods: tuple[str, ...]
    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    precision: str = "fp32"
    device: str = "cpu"
    backend: str = "gloo"
    num_steps: int = 20
    seed: int = 0


class Refused(Struct, frozen=True, kw_only=True):
    """A combination that cannot run here, and why."""

    method: str
    num_ranks: int
    batch_samples: int | None
    reason: str


def effect(text: str) -> str:
    """The effect of a method on the training result.

    >>> effect("fp16"), effect("ddp"), effect("localsgd:8")
    ('lossy', 'exact', 'changes the algorithm')
    """
    return method(text)[0].effect


def default_methods(*, exact_only: bool) -> tuple[str, ...]:
    """The methods that are searched by default."""
    return EXACT_METHODS if exact_only else (*EXACT_METHODS, *EVIDENCED_METHODS)


def candidates(space: MethodSpace) -> tuple[tuple[Trial, ...], tuple[Refused, ...]]:
    """Every combination that can run here, including one device, and those that cannot, with the reason."""
    trials: dict[str, Trial] = {}
    refused = []
    for size, text, batch in product(space.sizes, ("single", *space.methods), space.batches):
        if (size == 1) != (text == "single"):
            continue
        reason = method(text)[0].why_not(size, space.backend)
        if reason is not None:
            refused.append(Refused(method=text, num_ranks=size, batch_samples=None, reason=reason))
            continue
        if batch % size:
            reason = f"a batch of {batch} cannot be shared equally by {size} ranks"
            refused.append(Refused(method=text, num_ranks=size, batch_samples=batch, reason=reason))
            continue
        trial = _trial(space, text, size, batch)
        trials[trial.trial_id] = trial
    return tuple(trials.values()), tuple(dict.fromkeys(refused))


def _trial(space: MethodSpace, text: str, size: int, batch: int) -> Trial:
    return Trial(
        workload=space.workload,
        method=text,
        num_ranks=size,
        batch_samples=batch,
        precision=space.precision,
        device=space.device,
        num_steps=space.num_steps,
        seed=space.seed,
    )


def one_device_trials(space: MethodSpace) -> tuple[Trial, ...]:
    """The runs on one device that predictions need: smallest and largest share, and all of its batches."""
    shares = sorted({batch // size for size, batch in product(space.sizes, space.batches) if batch >= size})
    wanted = {shares[0], shares[-1], *(space.batches if 1 in space.sizes else ())}
    return tuple(_trial(space, "single", 1, batch) for batch in sorted(wanted))


# Log half-width of predictions for a method measured at another batch, after correction by its error.
_SEEN_HALF_LOG = 0.12
# Methods within this fraction of the fastest measured speed are measured again.
_NEAR = 0.93
_MOST_FINALISTS = 3

Measure = Callable[[Sequence[Trial]], Sequence[FinishedTrial]]


class MethodCandidate(Struct, frozen=True, kw_only=True):
    """One candidate method: its effect on the training result, its prediction, and its measurements.

    predicted_step: None if evidence is insufficient, with the reason in `not_predicted`. runs: samples per
    second of each repetition.
    """

    trial: Trial
    effect: str
    predicted_step: PredictedStep | None
    not_predicted: str | None = None
    runs: tuple[float, ...] = ()
    failed: str | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Measured samples per second, the median over repetitions; None if none succeeded."""
        return median(self.runs) if self.runs else None

    @property
    def error_log(self) -> float | None:
        """Log of measured over predicted samples per second; None unless both are known."""
        speed = self.samples_per_s
        if speed is None or self.predicted_step is None:
            return None
        return log(speed / self.predicted_step.samples_per_s)


class FoundMethod(Struct, frozen=True, kw_only=True):
    """The result of a search. tried: every candidate, measured ones first, each part fastest first.

    best: the fastest measured candidate, possibly on one device. alone, plain: the fastest on one device and
    with plain ddp; None if none ran. over_alone, over_plain: samples per second of `best` over theirs; None
    without repetitions. num_trials: runs on several ranks. stopped: why the search ended.
    folder: of the runs.
    """

    space: MethodSpace
    tried: tuple[MethodCandidate, ...]
    refused: tuple[Refused, ...]
    best: MethodCandidate
    alone: MethodCandidate
    plain: MethodCandidate | None
    over_alone: Interval | None
    over_plain: Interval | None
    num_trials: int
    stopped: str
    folder: Path | None = None

    @property
    def median_error_fraction(self) -> float | None:
        """Median error of predicted speeds over candidates on several ranks; None if there are none."""
        errors = [
            abs(exp(-each.error_log) - 1.0)
            for each in self.tried
            if each.trial.num_ranks > 1 and each.error_log is not None
        ]
        return median(errors) if errors else None


def search_methods(
    space: MethodSpace,
    measure: Measure,
    costs: Mapping[int, ExchangeCosts],
    *,
    num_trials: int,
    num_repetitions: int,
) -> FoundMethod:
    """The fastest method found in at most `num_trials` runs on several ranks.

    measure: runs trials, or returns their cached results. costs: of messages, by number of ranks.
    Predicts every candidate, measures the most promising one, corrects predictions by its error, and stops
    when the interval of no other exceeds the best; then repeats the best few, plain ddp and one device.
    Raises EvidenceError if not even one device could be measured.
    """
    if num_trials < 1:
        raise UsageError(f"{num_trials} trials; expected at least 1")
    trials, refused = candidates(space)
    alone = measure(one_device_trials(space))
    one = one_device(alone)
    known = {each.trial_id: _predicted_candidate(each, one, costs) for each in trials}
    for finished in alone:
        _add_result(known, finished)
    num_spent, stopped = _explore(known, measure, num_trials)
    num_spent += _repeat(known, measure, num_trials - num_spent, num_repetitions)
    return _found(space, known, refused, num_spent, stopped)


def _predicted_candidate(trial: Trial, one: OneDevice, costs: Mapping[int, ExchangeCosts]) -> MethodCandidate:
    step, reason = None, None
    try:
        step = predict_step(
            trial.method,
            num_ranks=trial.num_ranks,
            batch_samples=trial.batch_samples,
            one=one,
            # `predict_step` rejects costs of another number of ranks and says what is missing.
            costs=costs.get(trial.num_ranks) or next(iter(costs.values())),
        )
    except EvidenceError as err:
        reason = str(err)
    return MethodCandidate(
        trial=trial, effect=effect(trial.method), predicted_step=step, not_predicted=reason
    )


def _add_result(known: dict[str, MethodCandidate], finished: FinishedTrial) -> None:
    """Add the result of a run to its candidate."""
    key = replace(finished.trial, repetition=1).trial_id
    if key not in known:
        return
    run = timed_run(finished)
    if finished.status != SUCCESS or run is None:
        known[key] = replace(known[key], failed=finished.reason or "no step was timed")
        return
    speed = finished.trial.batch_samples / run.step_s
    known[key] = replace(known[key], runs=(*known[key].runs, speed))


def _explore(known: dict[str, MethodCandidate], measure: Measure, num_trials: int) -> tuple[int, str]:
    """Measure the most promising until no other can be faster; return the number of runs and why it ended."""
    spent = 0
    baseline = _most_promising(known, _untried(known, only="ddp"))
    while spent < num_trials:
        untried = _untried(known)
        if not untried:
            return spent, "every candidate was measured"
        best = max(each.samples_per_s or 0.0 for each in known.values())
        following = baseline if baseline and not spent else _most_promising(known, untried)
        assert following is not None
        if following is not baseline and max(_bounds(known, each)[1] for each in untried) < best:
            return spent, "no other candidate is faster by its interval"
        for finished in measure([following.trial]):
            _add_result(known, finished)
        spent += 1
    return spent, f"the limit of {num_trials} trials was reached"


def _untried(known: Mapping[str, MethodCandidate], only: str | None = None) -> list[MethodCandidate]:
    return [
        each
        for each in known.values()
        if not each.runs
        and each.failed is None
        and each.trial.num_ranks > 1
        and (only is None or each.trial.method == only)
    ]


def _most_promising(
    known: Mapping[str, MethodCandidate], untried: Sequence[MethodCandidate]
) -> MethodCandidate | None:
    """The candidate with the highest predicted speed; candidates without a prediction come first."""
    return max(untried, key=lambda each: _bounds(known, each)[0], default=None)


def _bounds(known: Mapping[str, MethodCandidate], of: MethodCandidate) -> tuple[float, float]:
    """Predicted samples per second, corrected by the method's observed errors, and their upper bound."""
    if of.predicted_step is None:
        return float("inf"), float("inf")
    similar = [
        each.error_log
        for each in known.values()
        if each.error_log is not None
        and each.trial.method == of.trial.method
        and each.trial.num_ranks == of.trial.num_ranks
    ]
    step = of.predicted_step
    half = _SEEN_HALF_LOG if similar else log(step.step_s.value / step.step_s.low)
    expected = step.samples_per_s * exp(median(similar) if similar else 0.0)
    return expected, expected * exp(half)


def _repeat(known: dict[str, MethodCandidate], measure: Measure, num_left: int, num_repetitions: int) -> int:
    """Repeat the fastest few, plain ddp and one device; return the number of runs on several ranks."""
    measured = sorted((each for each in known.values() if each.runs), key=_speed, reverse=True)
    if not measured:
        return 0
    near = [each for each in measured if _speed(each) >= _NEAR * _speed(measured[0])][:_MOST_FINALISTS]
    plain, alone = (_fastest(measured, name) for name in ("ddp", "single"))
    finalists = {each.trial.trial_id: each.trial for each in (*near, plain, alone) if each is not None}
    spent = 0
    for repetition in range(2, num_repetitions + 1):
        for trial in finalists.values():
            if trial.num_ranks > 1 and spent >= num_left:
                continue
            spent += trial.num_ranks > 1
            for finished in measure([replace(trial, repetition=repetition)]):
                _add_result(known, finished)
    return spent


def _speed(candidate: MethodCandidate) -> float:
    return candidate.samples_per_s or 0.0


def _fastest(measured: Iterable[MethodCandidate], name: str) -> MethodCandidate | None:
    """The fastest candidate of a method; None if none ran."""
    return max(
        (each for each in measured if each.runs and each.trial.method == name), key=_speed, default=None
    )


def _prefer_repeated(measured: list[MethodCandidate]) -> list[MethodCandidate]:
    """The repeated candidates, if any, so that a single run that was fast by chance does not win."""
    return [each for each in measured if len(each.runs) > 1] or measured


def _found(
    space: MethodSpace,
    known: Mapping[str, MethodCandidate],
    refused: tuple[Refused, ...],
    num_trials: int,
    stopped: str,
) -> FoundMethod:
    measured = [each for each in known.values() if each.runs]
    alone, plain = (
        _fastest(_prefer_repeated([each for each in measured if each.trial.method == name]), name)
        for name in ("single", "ddp")
    )
    if alone is None:
        raise EvidenceError("no run on one device succeeded", missing=("a run on one device",))
    best = max(
        (alone, *_prefer_repeated([each for each in measured if each.trial.num_ranks > 1])), key=_speed
    )
    ordered = sorted(
        known.values(), key=lambda each: (not each.runs, -(_speed(each) or _bounds(known, each)[0]))
    )
    return FoundMethod(
        space=space,
        tried=tuple(ordered),
        refused=refused,
        best=best,
        alone=alone,
        plain=plain,
        over_alone=_gain(best, alone),
        over_plain=_gain(best, plain),
        num_trials=num_trials,
        stopped=stopped,
    )


def _gain(best: MethodCandidate, other: MethodCandidate | None) -> Interval | None:
    """Samples per second of the best over another's; None if either ran only once."""
    if other is None or min(len(best.runs), len(other.runs)) < 2:  # noqa: PLR2004 - one run has no spread
        return None
    return ratio_interval(best.runs, other.runs, level=LEVEL)


def tuned(
    space: MethodSpace, sweep: AdaptiveSweep, *, num_trials: int, num_repetitions: int, resume: bool
) -> FoundMethod:
    """Search for the fastest method here, keeping all measurements in the folder of the trials.

    Raises UsageError if only one device is to be tried or the folder holds other trials, EvidenceError if
    nothing could be measured, DataError if results cannot be stored.
    """
    sizes = [size for size in space.sizes if size > 1]
    if not sizes:
        raise UsageError("--find with one device: expected --sizes with at least 2, such as 1,2")
    settings = {**to_builtins(space), "num_trials": num_trials, "num_repetitions": num_repetitions}
    sweep.begin({**settings, "launcher": sweep.launch_with.name}, resume=resume)
    gradient_bytes = one_device(sweep.measured(one_device_trials(space))).gradient_bytes
    costs = {}
    for size in sizes:
        task = needed(space.methods, num_ranks=size, device=space.device, gradient_bytes=gradient_bytes)
        costs[size] = exchange_costs(sweep.costs(task), str(sweep.folder))
    found = search_methods(
        space, sweep.measured, costs, num_trials=num_trials, num_repetitions=num_repetitions
    )
    return replace(found, folder=sweep.folder)

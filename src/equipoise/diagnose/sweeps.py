"""Findings of a sweep, during or after it: speedup over one device, its losses, whether more devices pay."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from msgspec import Struct

from equipoise.bench.counters import MOST_OTHERS
from equipoise.bench.phases import EXPOSED, PARTS
from equipoise.bench.summary import (
    LEVEL,
    UNEVEN,
    ConfigurationSummary,
    Spread,
    TimedRun,
    spread,
    summaries,
    timed_run,
)
from equipoise.bench.sweep import ALONE, Scaling
from equipoise.bench.trial import FinishedTrial, Store, SweepProgress, Trial, failed, sweep_progress
from equipoise.intervals import Interval
from equipoise.stats import by_key, proportion_interval, ratio_interval
from equipoise.units import format_count, format_percent, plural

_FEWEST_WITH_SPREAD = 2
_WHOLE_RATE = 100.0  # samples per second, from which on tables show whole numbers
PLAIN = "ddp"


class Judgement(Struct, frozen=True, kw_only=True):
    """One configuration, compared with the same work on one device and with plain data parallelism.

    speedup, over_plain: ratios of samples per second; None without such a run. lost: seconds per step above
    perfect scaling, by phase; empty on one device or without a run on one.
    """

    summary: ConfigurationSummary
    speedup: Spread | None
    over_plain: Spread | None
    lost: dict[str, float]

    @property
    def efficiency(self) -> float | None:
        """Speedup over the number of ranks."""
        return None if self.speedup is None else self.speedup.value / self.summary.trial.num_ranks

    @property
    def subject(self) -> tuple[str, str, str]:
        """What it trained: workload, precision and device."""
        trial = self.summary.trial
        return (trial.workload, trial.precision, trial.device)

    @property
    def is_alone(self) -> bool:
        """Whether it ran on one device."""
        return self.summary.trial.num_ranks == 1


class FalseDifferences(Struct, frozen=True, kw_only=True):
    """The number of pairs of equal arms that were called different, and its rate with an interval.

    are_arms: whether the arms were run as such, rather than being halves of repetitions.
    """

    num_different: int
    num_compared: int
    rate: Interval
    are_arms: bool


def judged(summaries: Sequence[ConfigurationSummary], *, scaling: Scaling) -> tuple[Judgement, ...]:
    """Each configuration with its comparisons, in the given order.

    scaling: the same work is the same batch over all ranks (`strong`) or the same batch per rank (`weak`).
    Source: docs/measure/bench.md.
    """
    return tuple(_judgement(each, summaries, scaling) for each in summaries)


def _judgement(
    summary: ConfigurationSummary, everyone: Sequence[ConfigurationSummary], scaling: Scaling
) -> Judgement:
    alone = _match(summary, everyone, scaling, 1, ALONE)
    plain = _match(summary, everyone, scaling, summary.trial.num_ranks, PLAIN)
    return Judgement(
        summary=summary,
        speedup=None if alone is None else over(summary, alone),
        over_plain=None if plain is None else over(summary, plain),
        lost={} if alone is None or summary.trial.num_ranks == 1 else lost_s(summary, alone),
    )


def _match(
    summary: ConfigurationSummary,
    everyone: Sequence[ConfigurationSummary],
    scaling: Scaling,
    num_ranks: int,
    way: str,
) -> ConfigurationSummary | None:
    """The configuration with `num_ranks` ranks and method `way` that does the same work."""

    def work(trial: Trial) -> tuple[object, ...]:
        batch = trial.batch_samples if scaling == "strong" else trial.rank_batch_samples
        return (trial.workload, trial.precision, trial.device, trial.train_samples, trial.num_steps, batch)

    same_work = (
        each
        for each in everyone
        if (each.trial.num_ranks, each.trial.method) == (num_ranks, way)
        and work(each.trial) == work(summary.trial)
    )
    return next(same_work, None)


def over(summary: ConfigurationSummary, other: ConfigurationSummary) -> Spread | None:
    """Ratio of samples per second of two configurations; None if either has no timings.

    Source: stats.ratio_interval over repetitions.
    """
    theirs, ours = (
        [run.step_s / each.trial.batch_samples for run in each.timed] for each in (other, summary)
    )
    if not theirs or not ours or summary.samples_per_s is None or other.samples_per_s is None:
        return None
    if summary is other:
        return Spread(value=1.0)
    if min(len(theirs), len(ours)) < _FEWEST_WITH_SPREAD:
        return Spread(value=summary.samples_per_s.value / other.samples_per_s.value)
    found = ratio_interval(theirs, ours, level=LEVEL)
    return Spread(value=found.value, low=found.low, high=found.high)


def lost_s(summary: ConfigurationSummary, alone: ConfigurationSummary) -> dict[str, float]:
    """Seconds per step above perfect scaling, by phase; they sum to the total loss of the step.

    Assumes perfect scaling divides every phase by the number of ranks at the same work.
    Source: definition; phases sum to the step.
    """
    ours, theirs = summary.phases, alone.phases
    if not ours or not theirs:
        return {}
    share = summary.trial.rank_batch_samples / alone.trial.batch_samples
    return {name: ours.get(name, 0.0) - share * theirs.get(name, 0.0) for name in PARTS}


def false_differences(summaries: Sequence[ConfigurationSummary]) -> FalseDifferences | None:
    """How often equal arms were called different; None if no configuration has two arms with a spread.

    Two arms are called different if the interval of their ratio at LEVEL excludes 1, which is expected in
    1 - LEVEL of the cases. Arms are run as such (A/A), or are the odd and even ones of four repetitions or
    more.
    Assumes configurations are independent.
    Source: docs/measure/bench.md.
    """
    arms_run = [_arms(each) for each in summaries]
    steps_s = [[run.step_s for run in each.timed] for each in summaries]
    halves = [(each[::2], each[1::2]) for each in steps_s]
    for arms, are_arms in ((arms_run, True), (halves, False)):
        compared = [
            called_different(first, second)
            for first, second in arms
            if min(len(first), len(second)) >= _FEWEST_WITH_SPREAD
        ]
        if compared:
            return FalseDifferences(
                num_different=sum(compared),
                num_compared=len(compared),
                rate=proportion_interval(sum(compared), len(compared), level=LEVEL),
                are_arms=are_arms,
            )
    return None


def _arms(summary: ConfigurationSummary) -> tuple[list[float], list[float]]:
    """Step times of the timed repetitions of each of the two arms."""
    timed = [(one.trial.arm, run.step_s) for one in summary.finished if (run := timed_run(one)) is not None]
    first, second = ([step_s for arm, step_s in timed if arm == wanted] for wanted in (1, 2))
    return first, second


def called_different(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether two sets of repetitions, (n,) and (m,), are called different at LEVEL.

    Assumes and Source: as in stats.ratio_interval.
    """
    found = ratio_interval(first, second, level=LEVEL)
    return found.low > 1.0 or found.high < 1.0


_CAUSES = {
    "input": "input",
    "forward": "the forward pass",
    "backward": "the backward pass",
    EXPOSED: "exposed communication",
    "optimizer": "the optimizer",
    "rest": "the time between phases",
}


class Trained(Struct, frozen=True, kw_only=True):
    """The results of the trainings of one configuration, one per seed: medians with their intervals.

    accuracy: None if the workload has none.
    """

    trial: Trial
    num_seeds: int
    num_samples: int
    seconds: Spread
    loss: Spread
    accuracy: Spread | None


class Failure(Struct, frozen=True, kw_only=True):
    """One reason why trials failed. trial: the first one that did."""

    trial: Trial
    reason: str
    num_trials: int


class Swept(Struct, frozen=True, kw_only=True):
    """The findings of a sweep so far. meanings: sentences."""

    progress: SweepProgress
    settings: Mapping[str, str]
    finished: tuple[FinishedTrial, ...]
    judgements: tuple[Judgement, ...]
    false_differences: FalseDifferences | None
    meanings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the sweep's folder."""
        return self.progress.folder.resolve().name

    @property
    def trained(self) -> tuple[Trained, ...]:
        """The results of the configurations that were trained."""
        return tuple(filter(None, (trained(each.summary) for each in self.judgements)))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures by method and reason, in the order of the plan."""
        alike = by_key(
            ((one.trial.method, one.trial.num_ranks, one.trial.batch_samples, _reason(one)), one)
            for one in self.failed
        )
        return tuple(
            Failure(trial=each[0].trial, reason=_reason(each[0]), num_trials=len(each))
            for each in alike.values()
        )

    @property
    def failed(self) -> tuple[FinishedTrial, ...]:
        """Trials that failed."""
        return failed(self.finished)

    @property
    def refusal(self) -> str | None:
        """Why the sweep provides no evidence; None if a run succeeded."""
        if len(self.failed) < len(self.finished):
            return None
        return f"every run failed, the first: {_reason(self.failed[0])}"


def _reason(failed: FinishedTrial) -> str:
    return failed.reason or "no reason given"


def sweep_now(folder: Path) -> Swept:
    """The current findings of a sweep's folder.

    Raises DataError if a file is damaged, or if repetitions ran under different conditions.
    """
    store = Store(folder)
    return swept(sweep_progress(folder), store.finished(), settings=store.settings())


def swept(
    progress: SweepProgress, finished: Sequence[FinishedTrial], *, settings: Mapping[str, str]
) -> Swept:
    """Findings of the finished trials of a sweep. settings: `scaling` decides what is the same work.

    Raises DataError if repetitions of one configuration ran under different conditions.
    """
    configurations = summaries(finished)
    is_weak = settings.get("scaling") == "weak"
    judgements = judged(configurations, scaling="weak" if is_weak else "strong")
    # The launcher that ran the trials, if `auto` was chosen.
    launcher = next((one.conditions.get("launcher") for one in finished), None)
    return Swept(
        progress=progress,
        settings={**settings, **({"launcher": str(launcher)} if launcher else {})},
        finished=tuple(finished),
        judgements=judgements,
        false_differences=false_differences(configurations),
        meanings=(*disturbances(configurations), *meanings(judgements)),
    )


def disturbances(summaries: Sequence[ConfigurationSummary]) -> tuple[str, ...]:
    """Sentences on runs disturbed by other programs and on stalled steps, if any."""
    timed = [run for each in summaries for run in each.timed]
    return (*_busy(timed), *_stalled(timed))


def _stalled(timed: Sequence[TimedRun]) -> tuple[str, ...]:
    ratios = [ratio for run in timed if (ratio := run.step_s / run.median_step_s) > UNEVEN]
    if not ratios:
        return ()
    said = (
        f"Some steps stalled in {len(ratios):,} of {plural(len(timed), 'timed run')}: they took up to "
        f"{max(ratios):.1f} times their median on average, and that mean is used."
    )
    return (said,)


def _busy(timed: Sequence[TimedRun]) -> tuple[str, ...]:
    disturbed = [run for run in timed if run.was_disturbed]
    if not disturbed:
        return ()
    shares = {
        "of the ranks' cores": max(run.others_cpu_fraction or 0.0 for run in disturbed),
        "of an accelerator before a run": max(run.others_accelerator_fraction or 0.0 for run in disturbed),
    }
    taken = [f"up to {format_percent(share)} {of}" for of, share in shares.items() if share > MOST_OTHERS]
    if any(run.num_others_on_accelerators for run in disturbed):
        taken.append("memory of an accelerator")
    said = (
        f"The machine was busy during {len(disturbed):,} of {plural(len(timed), 'timed run')}: other "
        f"programs took {' and '.join(taken)}, so times may be too long; measure again on an idle machine."
    )
    return (said,)


def meanings(judgements: Sequence[Judgement]) -> tuple[str, ...]:
    """A few sentences for each workload, precision and device."""
    timed = [each for each in judgements if each.summary.timed]
    grouped = (
        list(group) for _, group in groupby(sorted(timed, key=attrgetter("subject")), attrgetter("subject"))
    )
    return tuple(
        f"{group[0].summary.trial.workload} in {group[0].summary.trial.precision}: {' '.join(sentences)}"
        for group in grouped
        if (sentences := list(_findings_of(group)))
    )


def _findings_of(group: Sequence[Judgement]) -> Iterator[str]:
    """The findings of one workload."""
    several = [each for each in group if not each.is_alone]
    if not several:
        return
    compared = [each for each in several if each.speedup is not None]
    if not compared:
        yield "no run of the same work on one device succeeded, so there is no speedup."
        return
    best = max(compared, key=_speedup)
    worst = min(compared, key=_speedup)
    yield _best_words(best)
    if best.lost:
        yield _loss_words(best)
    most = max(each.summary.trial.num_ranks for each in compared)
    if best.summary.trial.num_ranks < most:
        at_most = max((each for each in compared if each.summary.trial.num_ranks == most), key=_speedup)
        yield f"{most} ranks are no faster: at best {ranged(at_most.speedup)} of one device."
    if is_slower(worst) and not is_slower(best):
        yield f"Slower than one device: {_trial_words(worst)}, {ranged(worst.speedup)}."
    fastest = max(group, key=_rate)
    if _rate(fastest) > _rate(best):
        found = _rate(fastest)
        rate = format_count(round(found) if found >= _WHOLE_RATE else found)
        yield f"Highest throughput: {rate} samples/s with {_trial_words(fastest)}."


def _best_words(best: Judgement) -> str:
    """The best use of several devices, and whether it beats one."""
    speedup = best.speedup
    reached = f"{_trial_words(best)} reaches {ranged(speedup)} of one device's throughput"
    if speedup is None or speedup.low is None or speedup.high is None:
        return f"{reached}, measured once: repeat it before relying on it (--repeat)."
    if speedup.low > 1.0:
        return f"several devices are faster than one: {reached}."
    if speedup.high < 1.0:
        return f"several devices are slower than one: at best {reached}."
    return f"no significant gain over one device: at best {reached}; --repeat narrows the interval."


def _loss_words(best: Judgement) -> str:
    """Which phase accounts for most of the loss against perfect scaling."""
    lost = sum(best.lost.values())
    phase = max(best.lost, key=lambda name: best.lost[name])
    if lost <= 0:
        return "That is perfect scaling."
    step_s = best.summary.step_s
    share = lost / step_s.value if step_s else 0.0
    # Only over the phases that take longer; others may take less than under perfect scaling.
    slower_s = sum(seconds for seconds in best.lost.values() if seconds > 0)
    of_it = best.lost[phase] / slower_s
    part = "most of it" if of_it > 0.5 else "the largest part of it"  # noqa: PLR2004 - what most means
    return (
        f"{format_percent(share)} of that step is above perfect scaling, {part} in {_CAUSES[phase]} "
        f"({format_percent(of_it)})."
    )


def _trial_words(each: Judgement) -> str:
    trial = each.summary.trial
    where = "one device" if trial.num_ranks == 1 else f"{trial.num_ranks} ranks"
    return f"{trial.method} on {where} at batch {trial.batch_samples}"


def is_slower(each: Judgement) -> bool:
    """Whether a configuration is significantly slower than one device."""
    speedup = each.speedup
    if speedup is None:
        return False
    return (speedup.value if speedup.high is None else speedup.high) < 1.0


def _rate(each: Judgement) -> float:
    rate = each.summary.samples_per_s
    return rate.value if rate else 0.0


def _speedup(each: Judgement) -> float:
    return each.speedup.value if each.speedup else 0.0


def ranged(spread: Spread | None) -> str:
    r"""A ratio, with its interval if there is one.

    >>> ranged(Spread(value=1.234, low=1.1, high=1.3)).replace("\N{EN DASH}", "-")
    '1.23x (1.10-1.30)'
    """
    if spread is None:
        return "-"
    within = "" if spread.low is None else f" ({spread.low:.2f}\N{EN DASH}{spread.high:.2f})"
    return f"{spread.value:.2f}x{within}"


def false_difference_words(found: FalseDifferences) -> str:
    """The result of an A/A test, in a sentence."""
    arms = "identical arms" if found.are_arms else "halves (odd, even) of identical runs"
    return (
        f"{found.num_different} of {found.num_compared} pairs of {arms} differed significantly: "
        f"{format_percent(found.rate.value)} ({format_percent(found.rate.low)} to "
        f"{format_percent(found.rate.high)}); {format_percent(1 - LEVEL)} is expected."
    )


def trained(summary: ConfigurationSummary) -> Trained | None:
    """The results of the trainings of a configuration; None if nothing was trained."""
    runs = summary.trained
    if not runs:
        return None
    accuracies = [run.accuracy for run in runs if run.accuracy is not None]
    return Trained(
        trial=summary.trial,
        num_seeds=len(runs),
        num_samples=runs[0].num_samples,
        seconds=spread([run.seconds for run in runs]),
        loss=spread([run.loss for run in runs]),
        accuracy=spread(accuracies) if len(accuracies) == len(runs) else None,
    )

"""Repetitions combined: steadiness, outliers, medians with intervals; and the tables that keep a sweep.

Other measurements write the same tables from rows of their own: `run_row`, `step_rows`, `write`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import erfc, fsum, pi, sqrt
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from equipoise.bench.counters import MOST_OTHERS
from equipoise.bench.environment import refuse_unlike, refuse_unlike_nodes
from equipoise.bench.phases import LONGEST_S, OVERLAPPED, PARTS, SHORTEST_S, STEP, TOTAL
from equipoise.bench.training import method
from equipoise.bench.trial import SUCCESS, FinishedTrial, Trial, failed, finished_in
from equipoise.errors import DataError
from equipoise.runs.store import (
    RUNS,
    SCORES,
    STEPS,
    Tables,
    frame_of,
    unscored_entries,
    write_table,
    write_tables,
)
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.stats import by_key, log_t_interval, median_interval, series_mean_interval

# 12 values: the smallest number for which the normal approximation of Kendall's S is used in textbooks is 10.
WINDOW_STEPS = 12
# Steadiness is checked every so many steps, since every rank then waits for the slowest; after MOST_WARM_UP
# steps are taken as they are, and marked.
CHECKED_EVERY, MOST_WARM_UP = 4, 120
_LEVEL = 0.05
# A trend that changes steps by less over a window is no reason to wait, however sure it is.
_TREND_FRACTION = 0.03
# Halves that differ by more are unsteady even where scatter hides a trend, unless it explains them.
_HALVES_FRACTION = 0.05
_OUTLIER_SCORE = 3.5
_MAD_TO_SIGMA = 0.6745


def is_steady(step_s: Sequence[float], kinds: Sequence[object] | None = None) -> bool:
    """Whether the last steps show no trend and no jump that matters and that scatter does not explain.

    step_s: (n_steps,) in order of time; fewer than a window are never steady. kinds: what each step did; only
    steps of one kind are compared, so that a method may exchange in every eighth. Not steady is a window with
    a rank correlation with time that is significant at 5 % and changes steps by over 3 %, or with halves that
    differ in their medians by over 5 % and by twice the standard error of that difference.
    Assumes steps are independent but for a trend; the two fractions keep chance and autocorrelation from
    delaying a start (docs/measure/phases.md gives the rates).
    Source: Mann 1945, Kendall 1975, for kinds Hirsch et al. 1982: S of pairs within a kind, normal
    approximation, two-sided; Sen 1968: the median slope.

    >>> is_steady([1.0, 1.01] * 6), is_steady([2.0 - 0.1 * step for step in range(12)])
    (True, False)
    """
    if len(step_s) < WINDOW_STEPS:
        return False
    num_steps = max(WINDOW_STEPS, len(step_s) // 2)  # a slow start among scatter shows in a long window only
    window = step_s[-num_steps:]
    step_kinds = [None] * num_steps if kinds is None else list(kinds[-num_steps:])
    by_kind = {kind: [at for at, each in enumerate(step_kinds) if each == kind] for kind in step_kinds}
    centre = {kind: median(window[at] for at in places) for kind, places in by_kind.items()}
    relative = [value / centre[kind] for value, kind in zip(window, step_kinds, strict=True)]
    return not _drifts(relative, list(by_kind.values())) and not _jumps(relative)


def _drifts(values: Sequence[float], groups: Sequence[Sequence[int]]) -> bool:
    """Whether values follow time, surely and by enough. groups: places of those that can be compared."""
    pairs = [
        (values[early], values[late], late - early)
        for places in groups
        for early, late in combinations(places, 2)
    ]
    if not pairs:
        return False
    score = sum((later > earlier) - (later < earlier) for earlier, later, _ in pairs)
    variance = sum(len(each) * (len(each) - 1) * (2 * len(each) + 5) / 18 for each in groups)
    chance = erfc(max(0, abs(score) - 1) / sqrt(variance) / sqrt(2))
    slope = median((later - earlier) / steps for earlier, later, steps in pairs)
    return chance < _LEVEL and abs(slope) * (len(values) - 1) > _TREND_FRACTION


def _jumps(values: Sequence[float]) -> bool:
    """Whether the halves of a window differ, by enough and by more than their scatter explains."""
    half = len(values) // 2
    halves = values[:half], values[half:]
    first, second = median(halves[0]), median(halves[1])
    scatter = median([abs(value - median(part)) for part in halves for value in part]) / _MAD_TO_SIGMA
    # The median of n normal values has the standard error sqrt(pi / 2 n) sigma.
    explained = 2 * scatter * sqrt(pi / half)
    return abs(first - second) > max(_HALVES_FRACTION, explained)


def outliers(values: Sequence[float]) -> tuple[bool, ...]:
    """Which values are outliers; they are marked, never dropped.

    values: (n_values,). Returns (n_values,); none where half of the values are equal.
    Assumes the rest is about normal.
    Source: Iglewicz and Hoaglin 1993: modified z-score 0.6745 (x - median) / MAD above 3.5.

    >>> outliers([1.0, 1.1, 0.9, 1.05, 9.0])
    (False, False, False, False, True)
    """
    centre = median(values)
    spread = median(abs(value - centre) for value in values)
    return tuple(
        spread > 0 and abs(value - centre) * _MAD_TO_SIGMA / spread > _OUTLIER_SCORE for value in values
    )


class TimedRun(Struct, frozen=True, kw_only=True):
    """One run of timed steps; None is not measured.

    step_s: the mean, as steps add up to a training; median_step_s: over cycles, of a cycle's mean. shares:
    each phase's fraction of the time of all marked steps; the parts sum to 1. parts_sum: whether they do so
    in each of them, within 5 %. memory_bytes: of the rank that took most. energy_j: of one step, on all
    nodes. others_cpu_fraction: of the ranks' cores, what other programs took; others_accelerator_fraction: of
    accelerators before the ranks computed; num_others_on_accelerators: programs on them at the end.
    """

    step_s: float
    median_step_s: float
    shares: Mapping[str, float]
    num_steps: int
    num_outliers: int
    num_warm_up: int | None
    is_steady: bool
    parts_sum: bool
    memory_bytes: int | None
    cpu_fraction: float | None
    accelerator_fraction: float | None
    network_byte_per_s: float | None
    energy_j: float | None
    energy_reason: str | None
    others_cpu_fraction: float | None
    others_accelerator_fraction: float | None
    num_others_on_accelerators: int | None

    @property
    def was_disturbed(self) -> bool:
        """Whether other programs took a part of the machine that matters."""
        fractions = (self.others_cpu_fraction, self.others_accelerator_fraction)
        return any((each or 0.0) > MOST_OTHERS for each in fractions) or bool(self.num_others_on_accelerators)


# What a run took of its machines, by fields of `TimedRun`.
UTILISATION = (
    "cpu_fraction",
    "accelerator_fraction",
    "network_byte_per_s",
    "others_cpu_fraction",
    "others_accelerator_fraction",
    "num_others_on_accelerators",
)


class TrainedRun(Struct, frozen=True, kw_only=True):
    """One training: held-out loss and accuracy at its end, and the seconds spent on training."""

    num_samples: int
    seconds: float
    loss: float
    accuracy: float | None


def timed_run(finished: FinishedTrial) -> TimedRun | None:
    """The timed steps of a trial; None where it failed or trained.

    Raises DataError for a result that no worker leaves.
    Source: definitions in docs/measure/bench.md.
    """
    steps: Sequence[Mapping[str, float]] = finished.result.get("steps") or ()
    if finished.status != SUCCESS or not steps:
        return None
    if not isinstance(steps, list) or not all(map(_is_split, steps)):
        raise DataError(
            f"{finished.file}: steps whose phases are no seconds that a step takes; delete it to measure "
            "the trial again"
        )
    period: int = finished.result.get("period") or 1
    cycles = [steps[first : first + period] for first in range(0, len(steps) - period + 1, period)]
    cycle_s = [_mean_s(cycle) for cycle in cycles or [steps]]
    # Marks take time of short steps, of which most are then timed as a whole: these stall as often.
    unmarked_s = [_mean_s(cycle) for cycle in cycles if all(len(step) == 1 for step in cycle)]
    counted_s = unmarked_s if 2 * len(unmarked_s) > len(cycle_s) else cycle_s
    marked = [step for step in steps if len(step) > 1]  # the others were timed as a whole
    whole_s = fsum(step[STEP] for step in marked)
    named = [name for name in (*PARTS, TOTAL, OVERLAPPED) if all(name in step for step in marked)]
    use: Mapping[str, Any] = finished.result.get("utilisation") or {}
    energy: Mapping[str, Any] = finished.result.get("energy") or {}
    energy_j = energy.get("energy_j")
    return TimedRun(
        step_s=fsum(counted_s) / len(counted_s),
        median_step_s=median(cycle_s),
        shares={name: fsum(step[name] for step in marked) / whole_s for name in named if marked},
        num_steps=len(steps),
        num_outliers=sum(outliers(cycle_s)),
        num_warm_up=finished.result.get("num_warm_up"),
        is_steady=bool(finished.result.get("steady")),
        parts_sum=(finished.result.get("sums") or {}).get("hold") is not False,
        memory_bytes=max(finished.result.get("memory_bytes") or (), default=None),
        energy_j=None if energy_j is None else energy_j / len(steps),
        energy_reason=energy.get("reason"),
        **{name: use.get(name) for name in UTILISATION},
    )


def _mean_s(steps: Sequence[Mapping[str, float]]) -> float:
    return fsum(step[STEP] for step in steps) / len(steps)


def _is_split(step: object) -> bool:
    if not isinstance(step, dict) or STEP not in step:
        return False
    seconds = step.values()
    return all(type(each) in {int, float} and 0 <= each <= LONGEST_S for each in seconds) and (
        step[STEP] >= SHORTEST_S
    )


def trained_run(finished: FinishedTrial) -> TrainedRun | None:
    """The end of a trial's training; None where it failed or only timed steps."""
    curve: Sequence[Mapping[str, Any]] = finished.result.get("curve") or ()
    if finished.status != SUCCESS or not curve:
        return None
    last = curve[-1]
    return TrainedRun(
        num_samples=last["samples"],
        seconds=last["seconds"],
        loss=last["loss"],
        accuracy=last.get("accuracy"),
    )


LEVEL = 0.95
# From so many repetitions on, order statistics give an interval at the level without assuming a shape.
_FEWEST_FOR_ORDER = 6
# The median deviation of three or four values is often tiny by chance.
_FEWEST_FOR_OUTLIERS = 5
ORDER_STATISTICS = "order statistics of the repetitions"
STUDENT = "Student's t on the logarithms of the repetitions"


class Spread(Struct, frozen=True, kw_only=True):
    """The median over repetitions, and its interval; None with one repetition, which has no spread."""

    value: float
    low: float | None = None
    high: float | None = None

    def rate(self, amount: float) -> "Spread":
        """That amount over the value: samples per second, of seconds."""
        low = None if self.high is None else amount / self.high
        high = None if self.low is None else amount / self.low
        return Spread(value=amount / self.value, low=low, high=high)


class ConfigurationSummary(Struct, frozen=True, kw_only=True):
    """All repetitions of one configuration.

    trial: one of them, for what they share. timed and trained: of those that succeeded, in order.
    """

    trial: Trial
    finished: tuple[FinishedTrial, ...]
    timed: tuple[TimedRun, ...]
    trained: tuple[TrainedRun, ...]

    @property
    def failed(self) -> tuple[FinishedTrial, ...]:
        """The repetitions that failed."""
        return failed(self.finished)

    @property
    def step_s(self) -> Spread | None:
        """Seconds of a step; None where no repetition timed one."""
        return spread([run.step_s for run in self.timed]) if self.timed else None

    @property
    def samples_per_s(self) -> Spread | None:
        """Samples of all ranks trained in a second."""
        return None if self.step_s is None else self.step_s.rate(self.trial.batch_samples)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase: median shares of the timed time, of the median step; the parts sum to it."""
        step_s = self.step_s
        if step_s is None:
            return {}
        named = [name for name in self.timed[0].shares if all(name in run.shares for run in self.timed)]
        shares = {name: median(run.shares[name] for run in self.timed) for name in named}
        # Medians of shares need not sum to 1.
        whole = sum(shares[name] for name in named if name in PARTS)
        return {name: share / whole * step_s.value for name, share in shares.items()}

    @property
    def is_steady(self) -> bool:
        """Whether every repetition became steady before it was timed."""
        return all(run.is_steady for run in self.timed)

    @property
    def parts_sum(self) -> bool:
        """Whether the phases of every repetition sum to its steps within 5 %."""
        return all(run.parts_sum for run in self.timed)

    @property
    def num_disturbed(self) -> int:
        """How many of the timed repetitions other programs disturbed."""
        return sum(run.was_disturbed for run in self.timed)

    @property
    def outlying(self) -> tuple[bool, ...]:
        """Which of the timed repetitions are outliers, and kept; none of a few, whose spread is uncertain."""
        if len(self.timed) < _FEWEST_FOR_OUTLIERS:
            return (False,) * len(self.timed)
        return outliers([run.step_s for run in self.timed])

    def median_of(self, quantity: str) -> float | None:
        """The median of a field of runs over the repetitions that measured it; None where none did."""
        values = [value for run in self.timed if (value := getattr(run, quantity)) is not None]
        return median(values) if values else None


def summaries(finished: Iterable[FinishedTrial]) -> tuple[ConfigurationSummary, ...]:
    """One summary a configuration, ordered by workload, precision, batch, ranks and method.

    Raises DataError naming the field where repetitions of one configuration ran under unlike conditions.
    """
    by_configuration = by_key((one.trial.configuration, one) for one in finished)
    return tuple(sorted(map(_summary, by_configuration.values()), key=_sort_key))


def _summary(repetitions: Sequence[FinishedTrial]) -> ConfigurationSummary:
    ordered = sorted(repetitions, key=lambda one: (one.trial.repetition, one.trial.arm))
    where = ordered[0].trial.configuration_id
    succeeded = [one for one in ordered if one.status == SUCCESS]
    refuse_unlike([one.conditions for one in succeeded], where)
    refuse_unlike_nodes([one.result.get("nodes") or () for one in succeeded], where)
    return ConfigurationSummary(
        trial=ordered[0].trial,
        finished=tuple(ordered),
        timed=tuple(run for run in map(timed_run, ordered) if run),
        trained=tuple(run for run in map(trained_run, ordered) if run),
    )


def _sort_key(summary: ConfigurationSummary) -> tuple[object, ...]:
    trial = summary.trial
    return (
        trial.workload,
        trial.precision,
        trial.batch_samples,
        trial.num_ranks,
        trial.method,
        trial.trial_id,
    )


def spread(values: Sequence[float]) -> Spread:
    """The median over repetitions and its interval at LEVEL.

    values: (n_repetitions,). Student's interval where repetitions are too few for order statistics; none of
    one, or where one of a few has no logarithm.
    Assumes repetitions are independent: each ran in fresh processes.
    Source: stats.median_interval, stats.log_t_interval.
    """
    is_few = len(values) < _FEWEST_FOR_ORDER
    if len(values) == 1 or (is_few and min(values) <= 0):
        return Spread(value=median(values))
    interval = log_t_interval if is_few else median_interval
    found = interval(values, level=LEVEL)
    return Spread(value=found.value, low=found.low, high=found.high)


def interval_method(num_repetitions: int) -> str | None:
    """What the interval of so many repetitions rests on; None where there is none."""
    if num_repetitions <= 1:
        return None
    return ORDER_STATISTICS if num_repetitions >= _FEWEST_FOR_ORDER else STUDENT


ORIGIN = "measured"
# A score is the time to a stated target; steps and trainings of a stated length have none.
NO_SCORE = "measured steps; no training to a target"


# So many times the median, a mean is of stalls that most steps do not have.
UNEVEN = 1.5
# Fewer values of a series have no interval of their mean.
FEWEST_OF_SERIES = 6


def spread_of_steps(step_s: Sequence[float]) -> Spread:
    """The mean of the steps of one run and its interval at LEVEL; none where they are few.

    step_s: (n_steps,) in order of time. Steps add up to a training, so that stalls that recur count.
    Source: stats.series_mean_interval.
    """
    if len(step_s) < FEWEST_OF_SERIES:
        return Spread(value=fsum(step_s) / len(step_s))
    found = series_mean_interval(step_s, level=LEVEL)
    return Spread(value=found.value, low=found.low, high=found.high)


def uneven(step_s: Sequence[float]) -> float | None:
    """How many times their median steps take on average, where that is far more."""
    ratio = fsum(step_s) / len(step_s) / median(step_s)
    return ratio if ratio > UNEVEN else None


def run_row(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `runs`: every column, null where the facts do not say."""
    return {**dict.fromkeys(RUNS.names), "origin": ORIGIN, **facts}


def step_rows(run_id: str, steps: Iterable[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Rows of `steps`: one a phase of each timed step, in order."""
    return [
        {"run_id": run_id, "repetition": number, "phase": phase, "seconds": seconds}
        for number, step in enumerate(steps, 1)
        for phase, seconds in step.items()
    ]


def write(folder: Path, runs: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> None:
    """Write the three tables into a folder, each atomically; `scores` has an entry per configuration.

    Raises DataError when rows break the schema, share a name, or cannot be written.
    """
    entries = [{**entry, "entry_id": _entry_id(entry)} for entry in unscored_entries(runs, NO_SCORE)]
    write_table(frame_of(steps, STEPS), folder / f"{STEPS.name}.parquet", STEPS)
    write_tables(Tables(runs=frame_of(runs, RUNS), scores=frame_of(entries, SCORES)), folder)


def _entry_id(entry: Mapping[str, Any]) -> str:
    """A name made of every part of the configuration that is known, so that no two entries share it."""
    named = ("workload", "strategy", "precision", "accelerator")
    words = [entry[name] for name in named if entry[name] is not None]
    words.append(f"{entry['num_accelerators']}x{entry['global_batch_samples']}")
    counted = {"num_nodes": "nodes", "sequence_tokens": "tokens"}
    words += [f"{entry[name]:.0f} {what}" for name, what in counted.items() if entry[name] is not None]
    return "/".join(map(str, (entry["campaign"], entry["system"], "-".join(words))))


def write_sweep_tables(folder: Path, catalogue: Catalogue | None = None) -> None:
    """Write the tables of the trials that are finished in a sweep's folder. Raises DataError, as `write`.

    Of a search (`bench --find`), those of its runs. catalogue: what names of devices mean; the shipped one
    unless given.
    """
    finished = finished_in(folder)
    runs = sweep_rows(folder, finished, catalogue)
    steps = [
        row
        for run, one in zip(runs, finished, strict=True)
        for row in step_rows(run["run_id"], one.result.get("steps") or ())
    ]
    write(folder, runs, steps)


def sweep_rows(
    folder: Path, finished: Sequence[FinishedTrial], catalogue: Catalogue | None = None
) -> list[dict[str, Any]]:
    """The rows of `runs` of a sweep's finished trials; nothing is written. catalogue: as above."""
    campaign, known = folder.resolve().name, catalogue or shipped()
    return [_run(one, campaign, known) for one in finished]


def run_id(campaign: str, finished: FinishedTrial) -> str:
    """The name of a trial's run in the tables."""
    return f"{campaign}/{finished.trial.trial_id}"


def _run(finished: FinishedTrial, campaign: str, catalogue: Catalogue) -> dict[str, Any]:
    trial, result = finished.trial, finished.result
    timed, trained = timed_run(finished), trained_run(finished)
    rate = None
    if timed is not None:
        rate = trial.batch_samples / timed.step_s
    elif trained is not None and trained.seconds > 0:
        rate = trained.num_samples / trained.seconds
    machine = next(iter(result.get("nodes") or ()), finished.conditions)
    trained_by, argument = method(trial.method)
    return run_row(
        {
            "run_id": run_id(campaign, finished),
            "campaign": campaign,
            "system": machine.get("host"),
            "workload": trial.workload,
            "accelerator": accelerator_of(trial.device, machine, catalogue),
            "num_accelerators": trial.num_ranks,
            "num_nodes": len(result.get("nodes") or ()) or 1,
            "framework": "pytorch",
            "precision": trial.precision,
            "strategy": None if trial.num_ranks == 1 else trial.method,
            "global_batch_samples": trial.batch_samples * trained_by.num_accumulated(argument),
            "status": finished.status if finished.status == SUCCESS else f"failed: {finished.reason}",
            "samples_per_s": rate,
            "energy_j": (result.get("energy") or {}).get("energy_j"),
            "source_uri": finished.file,
        }
    )


def accelerator_of(device: str, machine: Mapping[str, Any], catalogue: Catalogue | None = None) -> str | None:
    """The slug of what the ranks computed on; its raw name where the catalogue does not have it."""
    raw = machine.get("processor") if device == "cpu" else machine.get("accelerator")
    return None if not raw else (catalogue or shipped()).accelerator_slug(str(raw)) or str(raw)

"""Summaries of repetitions (steadiness, outliers, medians with intervals) and the tables of a sweep.

Other measurements write the same tables from their own rows with `run_row`, `step_rows` and `write`.
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

# Textbooks use the normal approximation of Kendall's S for 10 or more values.
WINDOW_STEPS = 12
# Steadiness is checked only every CHECKED_EVERY steps, because every rank then waits for the slowest. After
# MOST_WARM_UP steps, timing starts regardless and the run is marked as not steady.
CHECKED_EVERY, MOST_WARM_UP = 4, 120
_SIGNIFICANCE = 0.05
# A trend that changes steps by less over a window is ignored, even if it is significant.
_TREND_FRACTION = 0.03
# A larger difference between the halves of a window is unsteady, unless scatter explains it.
_HALVES_FRACTION = 0.05
_OUTLIER_SCORE = 3.5
_MAD_TO_SIGMA = 0.6745


def is_steady(step_s: Sequence[float], kinds: Sequence[object] | None = None) -> bool:
    """Return whether the last steps show neither a relevant trend nor a relevant jump.

    step_s: (n_steps,) in order of time; fewer than a window are never steady. kinds: the kind of each step;
    only steps of one kind are compared, because a method may exchange in every eighth step only. A window is
    unsteady if its rank correlation with time is significant at 5 % and the trend changes steps by over 3 %,
    or if the medians of its halves differ by over 5 % and by over twice the standard error of that
    difference.
    Assumes steps are independent apart from a trend. The two fractions prevent chance and autocorrelation
    from delaying the start (docs/measure/phases.md gives the rates).
    Source: Mann 1945, Kendall 1975, for kinds Hirsch et al. 1982: S of pairs within a kind, normal
    approximation, two-sided; Sen 1968: the median slope.

    >>> is_steady([1.0, 1.01] * 6), is_steady([2.0 - 0.1 * step for step in range(12)])
    (True, False)
    """
    if len(step_s) < WINDOW_STEPS:
        return False
    num_steps = max(WINDOW_STEPS, len(step_s) // 2)  # only a long window reveals a slow start amid scatter
    window = step_s[-num_steps:]
    step_kinds = [None] * num_steps if kinds is None else list(kinds[-num_steps:])
    by_kind = {kind: [at for at, each in enumerate(step_kinds) if each == kind] for kind in step_kinds}
    centre = {kind: median(window[at] for at in places) for kind, places in by_kind.items()}
    relative = [value / centre[kind] for value, kind in zip(window, step_kinds, strict=True)]
    return not _drifts(relative, list(by_kind.values())) and not _jumps(relative)


def _drifts(values: Sequence[float], groups: Sequence[Sequence[int]]) -> bool:
    """Return whether values have a significant and relevant trend. groups: indices of comparable values."""
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
    return chance < _SIGNIFICANCE and abs(slope) * (len(values) - 1) > _TREND_FRACTION


def _jumps(values: Sequence[float]) -> bool:
    """Return whether the halves of a window differ relevantly and by more than their scatter explains."""
    half = len(values) // 2
    halves = values[:half], values[half:]
    first, second = median(halves[0]), median(halves[1])
    scatter = median([abs(value - median(part)) for part in halves for value in part]) / _MAD_TO_SIGMA
    # The median of n normal values has the standard error sqrt(pi / 2 n) sigma.
    explained = 2 * scatter * sqrt(pi / half)
    return abs(first - second) > max(_HALVES_FRACTION, explained)


def outliers(values: Sequence[float]) -> tuple[bool, ...]:
    """Return which values are outliers; they are marked, never dropped.

    values: (n_values,). Returns (n_values,); all False if half of the values are equal.
    Assumes the other values are approximately normal.
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
    """One run of timed steps; None means not measured.

    step_s: the mean, because the time of a training is the sum of its steps. median_step_s: the median over
    cycles of the mean step. shares: each phase's fraction of the time of all marked steps; PARTS sum to 1.
    parts_sum: whether the phases sum to their step within 5 %, in every marked step. memory_bytes: on the
    rank that used most. energy_j: per step, over all nodes. others_cpu_fraction: the fraction of the ranks'
    cores used by other programs. others_accelerator_fraction: utilisation of accelerators before the ranks
    computed. num_others_on_accelerators: other programs on them at the end.
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
        """Return whether other programs used a relevant part of the machine."""
        fractions = (self.others_cpu_fraction, self.others_accelerator_fraction)
        return any((each or 0.0) > MOST_OTHERS for each in fractions) or bool(self.num_others_on_accelerators)


# The resource use of a run, as fields of `TimedRun`.
UTILISATION = (
    "cpu_fraction",
    "accelerator_fraction",
    "network_byte_per_s",
    "others_cpu_fraction",
    "others_accelerator_fraction",
    "num_others_on_accelerators",
)


class TrainedRun(Struct, frozen=True, kw_only=True):
    """One training: held-out loss and accuracy at its end, and the seconds of training."""

    num_samples: int
    seconds: float
    loss: float
    accuracy: float | None


def timed_run(finished: FinishedTrial) -> TimedRun | None:
    """Return the timed steps of a trial; None if it failed or was a training.

    Raises DataError if the result is not one that a worker writes.
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
    # Marks slow short steps, most of which are then timed as a whole. Unmarked steps stall equally often.
    unmarked_s = [_mean_s(cycle) for cycle in cycles if all(len(step) == 1 for step in cycle)]
    counted_s = unmarked_s if 2 * len(unmarked_s) > len(cycle_s) else cycle_s
    marked = [step for step in steps if len(step) > 1]  # the others have no phases
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
    """Return the end of a trial's training; None if it failed or only timed steps."""
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
# With this many repetitions, order statistics give an interval at LEVEL without assuming a distribution.
_MIN_FOR_ORDER = 6
# The median absolute deviation of three or four values is often tiny by chance.
_MIN_FOR_OUTLIERS = 5
ORDER_STATISTICS = "order statistics of the repetitions"
STUDENT = "Student's t on the logarithms of the repetitions"


class Spread(Struct, frozen=True, kw_only=True):
    """A median over repetitions and its interval, which is None for a single repetition."""

    value: float
    low: float | None = None
    high: float | None = None

    def rate(self, amount: float) -> "Spread":
        """Return `amount` divided by the value, e.g. samples per second from seconds."""
        low = None if self.high is None else amount / self.high
        high = None if self.low is None else amount / self.low
        return Spread(value=amount / self.value, low=low, high=high)


class ConfigurationSummary(Struct, frozen=True, kw_only=True):
    """All repetitions of one configuration.

    trial: one of them, for the shared fields. timed and trained: of the successful ones, in order.
    """

    trial: Trial
    finished: tuple[FinishedTrial, ...]
    timed: tuple[TimedRun, ...]
    trained: tuple[TrainedRun, ...]

    @property
    def failed(self) -> tuple[FinishedTrial, ...]:
        """Return the repetitions that failed."""
        return failed(self.finished)

    @property
    def step_s(self) -> Spread | None:
        """Seconds per step; None if no repetition timed steps."""
        return spread([run.step_s for run in self.timed]) if self.timed else None

    @property
    def samples_per_s(self) -> Spread | None:
        """Samples per second over all ranks."""
        return None if self.step_s is None else self.step_s.rate(self.trial.batch_samples)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase: median shares of the step time, scaled so that PARTS sum to `step_s`."""
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
        """Return whether every repetition was steady before it was timed."""
        return all(run.is_steady for run in self.timed)

    @property
    def parts_sum(self) -> bool:
        """Return whether the phases of every repetition sum to its steps within 5 %."""
        return all(run.parts_sum for run in self.timed)

    @property
    def num_disturbed(self) -> int:
        """Number of timed repetitions that other programs disturbed."""
        return sum(run.was_disturbed for run in self.timed)

    @property
    def outlying(self) -> tuple[bool, ...]:
        """Which timed repetitions are outliers; none if there are too few to estimate the spread."""
        if len(self.timed) < _MIN_FOR_OUTLIERS:
            return (False,) * len(self.timed)
        return outliers([run.step_s for run in self.timed])

    def median_of(self, quantity: str) -> float | None:
        """Return the median of a TimedRun field over the repetitions that measured it; None if none did."""
        values = [value for run in self.timed if (value := getattr(run, quantity)) is not None]
        return median(values) if values else None


def summaries(finished: Iterable[FinishedTrial]) -> tuple[ConfigurationSummary, ...]:
    """Return one summary per configuration, ordered by workload, precision, batch, ranks and method.

    Raises DataError naming the field if repetitions of one configuration ran under different conditions.
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
    """Return the median over repetitions and its interval at LEVEL.

    values: (n_repetitions,). With too few repetitions for order statistics, Student's interval of the
    logarithms is used. There is no interval for a single value, or if one of few values is not positive.
    Assumes repetitions are independent: each ran in fresh processes.
    Source: stats.median_interval, stats.log_t_interval.
    """
    is_few = len(values) < _MIN_FOR_ORDER
    if len(values) == 1 or (is_few and min(values) <= 0):
        return Spread(value=median(values))
    interval = log_t_interval if is_few else median_interval
    found = interval(values, level=LEVEL)
    return Spread(value=found.value, low=found.low, high=found.high)


def interval_method(num_repetitions: int) -> str | None:
    """Return the method of the interval for this number of repetitions; None if there is no interval."""
    if num_repetitions <= 1:
        return None
    return ORDER_STATISTICS if num_repetitions >= _MIN_FOR_ORDER else STUDENT


ORIGIN = "measured"
# A score is the time to a quality target; timed steps and trainings of a fixed length have none.
NO_SCORE = "measured steps; no training to a target"


# A mean of more than this many times the median is dominated by stalls that most steps do not have.
UNEVEN = 1.5
# The mean of a series of fewer values has no interval.
FEWEST_OF_SERIES = 6


def spread_of_steps(step_s: Sequence[float]) -> Spread:
    """Return the mean step of one run and its interval at LEVEL, which is None for few steps.

    step_s: (n_steps,) in order of time. The mean is used because recurring stalls are part of a training's
    time.
    Source: stats.series_mean_interval.
    """
    if len(step_s) < FEWEST_OF_SERIES:
        return Spread(value=fsum(step_s) / len(step_s))
    found = series_mean_interval(step_s, level=LEVEL)
    return Spread(value=found.value, low=found.low, high=found.high)


def uneven(step_s: Sequence[float]) -> float | None:
    """Return the ratio of the mean step to the median step if it exceeds UNEVEN; None otherwise."""
    ratio = fsum(step_s) / len(step_s) / median(step_s)
    return ratio if ratio > UNEVEN else None


def run_row(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `runs` with every column; columns missing from `facts` are null."""
    return {**dict.fromkeys(RUNS.names), "origin": ORIGIN, **facts}


def step_rows(run_id: str, steps: Iterable[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return rows of `steps`: one per phase of each timed step, in order."""
    return [
        {"run_id": run_id, "repetition": number, "phase": phase, "seconds": seconds}
        for number, step in enumerate(steps, 1)
        for phase, seconds in step.items()
    ]


def write(folder: Path, runs: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> None:
    """Write the three tables into a folder, each atomically; `scores` has one entry per configuration.

    Raises DataError if rows violate the schema, share a name, or cannot be written.
    """
    entries = [{**entry, "entry_id": _entry_id(entry)} for entry in unscored_entries(runs, NO_SCORE)]
    write_table(frame_of(steps, STEPS), folder / f"{STEPS.name}.parquet", STEPS)
    write_tables(Tables(runs=frame_of(runs, RUNS), scores=frame_of(entries, SCORES)), folder)


def _entry_id(entry: Mapping[str, Any]) -> str:
    """Return a unique name of an entry, made of every known part of its configuration."""
    named = ("workload", "strategy", "precision", "accelerator")
    words = [entry[name] for name in named if entry[name] is not None]
    words.append(f"{entry['num_accelerators']}x{entry['global_batch_samples']}")
    counted = {"num_nodes": "nodes", "sequence_tokens": "tokens"}
    words += [f"{entry[name]:.0f} {what}" for name, what in counted.items() if entry[name] is not None]
    return "/".join(map(str, (entry["campaign"], entry["system"], "-".join(words))))


def write_sweep_tables(folder: Path, catalogue: Catalogue | None = None) -> None:
    """Write the tables of a sweep's finished trials into its folder. Raises DataError as `write` does.

    folder: of a sweep, or of a search (`bench --find`). catalogue: resolves names of devices; the shipped one
    by default.
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
    """Return the rows of `runs` for a sweep's finished trials. catalogue: as for `write_sweep_tables`."""
    campaign, known = folder.resolve().name, catalogue or shipped()
    return [_run(one, campaign, known) for one in finished]


def run_id(campaign: str, finished: FinishedTrial) -> str:
    """Return the name of a trial's run in the tables."""
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
    """Return the slug of the device that the ranks used; its raw name if the catalogue does not list it."""
    raw = machine.get("processor") if device == "cpu" else machine.get("accelerator")
    return None if not raw else (catalogue or shipped()).accelerator_slug(str(raw)) or str(raw)

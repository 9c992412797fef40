"""Score and energy of an entry from its runs, as MLPerf Training computes them. No files, no names.

Power logs have readings for a node and a single estimate for a switch. MLPerf does not integrate over the
run: it multiplies the mean power between the meter's own start and stop by the official time.
Source: MLPerf Training rules, with the appendix on power, as applied by the official result summarizer
(mlperf-logging).
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec import DecodeError, Struct, json

from equipoise.spec.workload import MlperfRules

SUCCESS = "success"
# Reasons that disqualify a run although it reached the target; the lenient score ignores them.
CORRUPT_LINE = "corrupt_line"
SLOW_INIT = "slow_init"
FORGIVABLE = frozenset({CORRUPT_LINE, SLOW_INIT})


class RunOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of one run: official time in seconds (None if unknown), and `success` or the failure."""

    time_s: float | None
    status: str


class Score(Struct, frozen=True, kw_only=True):
    """The score of an entry; `counted` holds the indices of the runs whose mean is the score.

    reason: why there is no score; None if there is one.
    """

    score_s: float | None
    reason: str | None
    unscaled_s: float | None
    lenient_s: float | None
    num_failed: int
    num_missing: int
    min_s: float | None
    max_s: float | None
    counted: tuple[int, ...] = ()


def olympic_runs(times_s: Sequence[float], *, num_failed: int, num_dropped_each_end: int) -> tuple[int, ...]:
    """Return the indices of the runs that remain after dropping the fastest and slowest, fastest first.

    times_s: of the successful runs. Failed runs count as the slowest, so they are dropped first.
    Empty if nothing remains or more runs failed than are dropped.
    Source: MLPerf Training rules, section on result calculation (olympic mean).

    >>> olympic_runs([3.0, 1.0, 2.0, 5.0], num_failed=0, num_dropped_each_end=1)
    (2, 0)
    >>> olympic_runs([3.0, 1.0, 2.0, 5.0], num_failed=1, num_dropped_each_end=1)
    (2, 0, 3)
    """
    if num_failed > num_dropped_each_end:
        return ()
    by_time = sorted(range(len(times_s)), key=lambda index: (times_s[index], index))
    return tuple(by_time[num_dropped_each_end : len(by_time) - (num_dropped_each_end - num_failed)])


class _Olympic(Struct, frozen=True):
    """An olympic mean: the counted runs, their mean, and the number of runs treated as failed."""

    counted: tuple[int, ...]
    mean_s: float | None
    num_failed: int


def _olympic(outcomes: Sequence[RunOutcome], rules: MlperfRules, *, forgiven: frozenset[str]) -> _Olympic:
    """Return the olympic mean over the runs that succeeded or failed only for forgiven reasons."""
    good = [
        index
        for index, outcome in enumerate(outcomes)
        if outcome.time_s is not None and (outcome.status == SUCCESS or outcome.status in forgiven)
    ]
    num_failed = len(outcomes) - len(good)
    if rules.num_counted is not None:  # v0.5 NCF: the first successes count, however many runs failed between
        enough = len(good) >= rules.num_counted
        good, dropped = (good[: rules.num_counted] if enough else []), 0
    else:
        dropped = num_failed
    times_s = [time_s for index in good if (time_s := outcomes[index].time_s) is not None]
    counted = olympic_runs(times_s, num_failed=dropped, num_dropped_each_end=rules.num_dropped_each_end)
    mean_s = sum(times_s[index] for index in counted) / len(counted) if counted else None
    return _Olympic(counted=tuple(good[index] for index in counted), mean_s=mean_s, num_failed=num_failed)


def _num_missing(outcomes: Sequence[RunOutcome], rules: MlperfRules) -> int:
    """Return the number of required logs that were not found; 0 if the workload's rules are not known."""
    return max(rules.num_runs_required - len(outcomes), 0) if rules.known else 0


def _reason(
    outcomes: Sequence[RunOutcome], rules: MlperfRules, olympic: _Olympic, *, gaps: bool, scaled: bool
) -> str | None:
    """Return why there is no official score, or None."""
    num_missing = _num_missing(outcomes, rules)
    if not outcomes and not num_missing:
        return "no logs found"
    if num_missing and (gaps or not outcomes):
        return f"{num_missing} of {rules.num_runs_required} logs missing"
    if rules.num_counted is None and olympic.num_failed > rules.max_failed:
        causes = sorted({outcome.status for outcome in outcomes if outcome.status != SUCCESS})
        return (
            f"{olympic.num_failed} of {len(outcomes)} runs failed ({', '.join(causes)}); "
            f"at most {rules.max_failed} may"
        )
    if olympic.mean_s is None:
        if num_missing:
            return f"{num_missing} of {rules.num_runs_required} logs missing"
        needed = rules.num_counted or rules.num_runs_required
        return f"{len(outcomes) - olympic.num_failed} successful runs; {needed} are needed"
    return None if scaled else "scaling.json states no factor from 1 up: the convergence scaling is not known"


def score(
    outcomes: Sequence[RunOutcome],
    rules: MlperfRules,
    *,
    convergence_scaling: float | None = 1.0,
    gaps: bool = False,
) -> Score:
    """Return the official and the lenient score of an entry, with their counts.

    outcomes: of all logs found, in the order of their numbers.
    convergence_scaling: factor of the reference convergence points; None if stated but unreadable.
    gaps: whether the numbering of the logs has gaps, in which case missing logs were lost. Without gaps, too
    few logs are scored as submitted, because the official summarizer does not check their number.
    Source: MLPerf Training rules; mlperf-logging, result_summarizer.
    """
    strict = _olympic(outcomes, rules, forgiven=frozenset())
    lenient = _olympic(outcomes, rules, forgiven=FORGIVABLE)
    reason = _reason(outcomes, rules, strict, gaps=gaps, scaled=convergence_scaling is not None)
    times_s = [
        outcome.time_s for outcome in outcomes if outcome.status == SUCCESS and outcome.time_s is not None
    ]
    official = reason is None and strict.mean_s is not None
    factor = 1.0 if convergence_scaling is None else convergence_scaling
    return Score(
        score_s=strict.mean_s * factor if official and strict.mean_s is not None else None,
        reason=reason,
        unscaled_s=strict.mean_s if official else None,
        lenient_s=None if lenient.mean_s is None else lenient.mean_s * factor,
        num_failed=strict.num_failed,
        num_missing=_num_missing(outcomes, rules),
        min_s=min(times_s, default=None),
        max_s=max(times_s, default=None),
        counted=strict.counted if official else (),
    )


_TOKEN = b":::MLLOG"
_START = "power_measurement_start"
_STOP = "power_measurement_stop"
_READING = "power_reading"
_EFFICIENCY = "conversion_eff"
_ESTIMATE = "interconnect_power_est"
_KEYS = frozenset({_START, _STOP, _READING, _EFFICIENCY, _ESTIMATE})

# No training system draws more power.
_MAX_POWER_W = 100_000_000.0


class _Event(Struct, frozen=True, kw_only=True):
    """One line of a power log. time_ms: since the epoch. value: a power if it is a number."""

    time_ms: float
    key: str
    value: float | bool | str | list[Any] | dict[str, Any] | None = None


_LINES = json.Decoder(_Event)


def _events(data: bytes) -> list[_Event]:
    """Return the events of a log in file order; corrupt lines are skipped, as in the official code."""
    found = []
    for line in data.splitlines():
        if _TOKEN in line:
            with suppress(DecodeError, ValueError, RecursionError):
                found.append(_LINES.decode(line.rpartition(_TOKEN)[2]))
    return [event for event in found if event.key in _KEYS]


def _efficiency(events: Sequence[_Event]) -> float:
    """Return the last stated conversion efficiency, watts at the plug per logged watt; 1.0 by default."""
    stated = [event.value for event in events if event.key == _EFFICIENCY and type(event.value) is float]
    return stated[-1] if stated else 1.0


def node_power_w(data: bytes) -> float | None:
    """Return the mean power of one `node_K.txt`; None if it cannot be used.

    It is efficiency x sum(reading x time since the previous one) / (stop - start). Readings after the stop do
    not count. If the stop is missing or has the time of the start, the last reading ends the measurement;
    this occurs in some v4.0 submissions, for which the official code divides by zero.
    Assumes each reading applies since the previous one.
    Source: MLPerf Training rules, appendix on power.
    """
    events = sorted(_events(data), key=lambda event: event.time_ms)
    starts = [event.time_ms for event in events if event.key == _START]
    if not starts:
        return None
    start_ms = starts[-1]
    stops = [event.time_ms for event in events if event.key == _STOP]
    stop_ms = stops[-1] if stops and stops[-1] != start_ms else math.inf
    readings = [
        (event.time_ms, event.value)
        for event in events
        if event.key == _READING and type(event.value) is float and start_ms <= event.time_ms <= stop_ms
    ]
    before_ms, sum_w_ms = start_ms, 0.0
    for time_ms, power_w in readings:
        sum_w_ms += power_w * (time_ms - before_ms)
        before_ms = time_ms
    end_ms = before_ms if math.isinf(stop_ms) else stop_ms
    if not readings or end_ms <= start_ms:
        return None
    return _checked(_efficiency(events) * sum_w_ms / (end_ms - start_ms))


def switch_power_w(data: bytes) -> float | None:
    """Return the power of one `sw_K.txt`: efficiency x the first estimate of the interconnect's power.

    None if it cannot be used. A log with events but no estimate counts as 0 W even if it has readings,
    because the official code ignores them (v4.1 Dell logs about 700 W for its switch, which the published
    energy excludes).
    Source: MLPerf Training rules, appendix on power.
    """
    events = _events(data)
    for position, event in enumerate(events):
        if event.key == _ESTIMATE and type(event.value) is float:
            return _checked(_efficiency(events[:position]) * event.value)
    return 0.0 if events else None


def _checked(power_w: float) -> float | None:
    return power_w if 0 <= power_w <= _MAX_POWER_W else None


def run_energy_j(
    nodes_w: Sequence[float | None], switches_w: Sequence[float | None], time_to_train_s: float | None
) -> float | None:
    """Return the energy of one run: the power of all meters times its official time, without scaling.

    nodes_w, switches_w: of each meter; None for an unusable one.
    None if the run has no time, no node is metered, or a meter is unusable, because a partial sum would
    understate the energy.
    """
    power_w = [each for each in (*nodes_w, *switches_w) if each is not None]
    if time_to_train_s is None or not nodes_w or len(power_w) < len(nodes_w) + len(switches_w):
        return None
    return sum(power_w) * time_to_train_s


def entry_energy_j(counted: Sequence[float | None], convergence_scaling: float) -> float | None:
    """Return the official energy of an entry, the scaled mean over the counted runs; None if any lacks it."""
    joules = [energy_j for energy_j in counted if energy_j is not None]
    if not joules or len(joules) < len(counted):
        return None
    return math.fsum(joules) / len(joules) * convergence_scaling

"""Scores of entries from the times of their runs, as MLPerf Training computes them. No files, no names."""

from collections.abc import Sequence

from msgspec import Struct

from equipoise.spec.workload import MlperfRules

SUCCESS = "success"
# Reasons that disqualify a run by rule although it trained to the target: a lenient score forgives them.
CORRUPT_LINE = "corrupt_line"
SLOW_INIT = "slow_init"
FORGIVABLE = frozenset({CORRUPT_LINE, SLOW_INIT})


class RunOutcome(Struct, frozen=True, kw_only=True):
    """How one run ended: official time in seconds (None without a clock), and `success` or why it failed."""

    time_s: float | None
    status: str


class Score(Struct, frozen=True, kw_only=True):
    """What an entry's runs amount to; `counted` holds the indices of the runs whose mean is the score.

    reason: why there is no score; None when there is one.
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
    """Indices of the runs that remain when the fastest and the slowest are dropped, fastest first.

    times_s: of the successful runs. Failed runs are the slowest of all, so they are dropped first.
    Empty when nothing remains or more runs failed than are dropped.
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
    """One way of counting: the runs in its mean, and how many failed in its eyes."""

    counted: tuple[int, ...]
    mean_s: float | None
    num_failed: int


def _olympic(outcomes: Sequence[RunOutcome], rules: MlperfRules, *, forgiven: frozenset[str]) -> _Olympic:
    """The olympic mean over the runs that succeeded, or failed only for forgiven reasons."""
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
    """Logs required and not found; none where the rules of the workload are not known."""
    return max(rules.num_runs_required - len(outcomes), 0) if rules.known else 0


def _reason(
    outcomes: Sequence[RunOutcome], rules: MlperfRules, olympic: _Olympic, *, gaps: bool, scaled: bool
) -> str | None:
    """Why there is no official score, or None."""
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
    return None if scaled else "scaling.json cannot be read: the convergence scaling is not known"


def score(
    outcomes: Sequence[RunOutcome],
    rules: MlperfRules,
    *,
    convergence_scaling: float | None = 1.0,
    gaps: bool = False,
) -> Score:
    """The official score of an entry, the lenient one, and the counts behind both.

    outcomes: of all logs found, in the order of their numbers.
    convergence_scaling: factor of the reference convergence points; None when it is there but unreadable.
    gaps: whether the logs found are numbered with gaps, so that a short count means that logs were lost.
    Without gaps a short count is what was submitted, scored as the official summarizer does, which does not
    count.
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

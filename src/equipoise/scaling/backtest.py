"""Backtest of the pooled law: held-out sizes of every round, predicted from earlier rounds alone.

Field names are those of the command's JSON.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace
from numpy.typing import ArrayLike

from equipoise.errors import EvidenceError
from equipoise.scaling import pooled
from equipoise.scaling.laws import FloatArray
from equipoise.spec.mlperf import Entries, ScoredEntry, round_key

Protocol: TypeAlias = Literal["largest", "new_round"]

# `largest` needs two sizes below the held-out one, because a power law has two parameters.
_MIN_SIZES: Mapping[Protocol, int] = {"largest": 3, "new_round": 2}
# Name of each range of jumps, its exclusive lower and its inclusive upper bound.
JUMPS: tuple[tuple[str, float, float], ...] = (
    ("up to 2x", 0.0, 2.0),
    ("2x to 4x", 2.0, 4.0),
    ("up to 4x", 0.0, 4.0),
    ("beyond 4x", 4.0, np.inf),
)


class HeldOut(Struct, frozen=True, kw_only=True):
    """One held-out entry and its prediction. jump: its size over the largest known size.

    Samples are None where unknown; power_law_s where there are too few points.
    """

    round: str
    workload: str
    accelerator: str
    num_accelerators: int
    jump: float
    actual_s: float
    predicted_s: float
    low_s: float
    high_s: float
    actual_samples: float | None
    predicted_samples: float | None
    perfect_s: float
    power_law_s: float | None


# A power law needs two known sizes, so it is no baseline where only one is known.
_BASELINES: Mapping[str, Callable[[HeldOut], float | None]] = {
    "perfect": lambda one: one.perfect_s,
    "power_law": lambda one: one.power_law_s,
}


class Errors(Struct, frozen=True, kw_only=True):
    """Statistics of errors |predicted / actual - 1| as fractions; None without any.

    coverage: of the 90 % interval; None without an interval.
    """

    num_groups: int
    median_abs_error: float | None = None
    mean_abs_error: float | None = None
    p90_abs_error: float | None = None
    coverage: float | None = None


class BacktestRecord(Struct, frozen=True, kw_only=True):
    """The errors of one predictor. coverage: of the 90 % interval; None without an interval."""

    num_groups: int
    median_abs_error: float
    mean_abs_error: float
    p90_abs_error: float
    coverage: float | None
    by_workload: dict[str, Errors]
    by_jump: dict[str, Errors]
    by_round: dict[str, Errors]
    by_cause: dict[str, Errors]


class BacktestSummary(Struct, frozen=True, kw_only=True):
    """The errors of the pooled law and of the baselines on the same entries."""

    protocol: Protocol
    given_batch: bool
    pooled_law: BacktestRecord
    baselines: dict[str, BacktestRecord]


class Backtest(BacktestSummary, frozen=True, kw_only=True):
    """The errors, and all held-out entries."""

    groups: tuple[HeldOut, ...]


def backtest(
    best: Entries,
    *,
    protocol: Protocol = "largest",
    rounds: Sequence[str] | None = None,
    given_batch: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Backtest:
    """The errors of the pooled law on held-out entries, predicted from earlier rounds and known sizes.

    best: from `spec.mlperf.best_per_size`. protocol: `largest` holds out the largest size of every (round,
    workload, accelerator) group of three sizes or more; `new_round` all but the smallest. rounds: to test;
    all by default. given_batch: whether the held-out entry's batch is an input. progress: called with each
    round.
    Raises EvidenceError if there is no such group.
    """
    tasks = {
        campaign: list(_tasks(tuple(of_round), protocol, given_batch=given_batch))
        for campaign, of_round in groupby(best, lambda each: each.campaign)
        if rounds is None or campaign in rounds
    }
    wanted = [campaign for campaign, found in tasks.items() if found]
    held_out = [
        _predicted(law, own, target)
        for campaign, law in past_laws(best, wanted, given_batch=given_batch, progress=progress)
        for own, target in tasks[campaign]
    ]
    if not held_out:
        raise EvidenceError(
            "no group has enough sizes to hold one out",
            missing=(f"a round with a group of {_MIN_SIZES[protocol]} sizes of one accelerator",),
        )
    return Backtest(
        protocol=protocol,
        given_batch=given_batch,
        pooled_law=_record(held_out, lambda one: one.predicted_s, with_interval=True),
        baselines={
            name: _record(held_out, predicted_s)
            for name, predicted_s in _BASELINES.items()
            if any(predicted_s(one) is not None for one in held_out)
        },
        groups=tuple(held_out),
    )


def past_laws(
    best: Entries,
    rounds: Sequence[str],
    *,
    given_batch: bool = False,
    progress: Callable[[str], None] | None,
) -> Iterator[tuple[str, pooled.PooledLaw]]:
    """Yield each round, oldest first, with the pooled law of strictly earlier rounds.

    best, progress: as in `backtest`.
    """
    law: pooled.PooledLaw | None = None
    for campaign in sorted(rounds, key=round_key):
        if progress is not None:
            progress(campaign)
        earlier = [each for each in best if round_key(each.campaign) < round_key(campaign)]
        # The search starts from settings fitted to earlier data, so nothing later enters.
        law = pooled.fit(earlier, given_batch=given_batch, start=law)
        yield campaign, law


def _tasks(best: Entries, protocol: Protocol, *, given_batch: bool) -> Iterator[tuple[Entries, ScoredEntry]]:
    """Yield the known entries of a group and the held-out entry, for every held-out entry of one round."""
    for _, of_group in groupby(best, lambda each: each.group):
        rows = tuple(of_group)
        if len(rows) < _MIN_SIZES[protocol]:
            continue
        num_known = len(rows) - 1 if protocol == "largest" else 1
        for target in rows[num_known:]:
            if target.global_batch_samples is not None or not given_batch:
                yield rows[:num_known], target


def _predicted(law: pooled.PooledLaw, own: Entries, target: ScoredEntry) -> HeldOut:
    """The prediction of a held-out entry from its size, accelerator, workload and optionally batch."""
    size = target.num_accelerators
    found = law.predict(
        own,
        pooled.Question(
            workload=target.workload,
            accelerator=target.accelerator,
            num_accelerators=size,
            global_batch_samples=target.global_batch_samples if law.given_batch else None,
        ),
    )
    sizes = np.array([each.num_accelerators for each in own], dtype=float)
    times = np.array([each.score_s for each in own])
    return HeldOut(
        round=target.campaign,
        workload=target.workload,
        accelerator=target.accelerator,
        num_accelerators=size,
        jump=size / float(sizes[-1]),
        actual_s=target.score_s,
        predicted_s=found.time_s.value,
        low_s=found.time_s.low,
        high_s=found.time_s.high,
        actual_samples=target.samples_to_target,
        predicted_samples=found.samples_to_target,
        perfect_s=float(times[-1] * sizes[-1] / size),
        power_law_s=float(line_through_logs(sizes, times)(size)) if len(sizes) > 1 else None,
    )


def line_through_logs(sizes: FloatArray, times_s: FloatArray) -> Callable[[ArrayLike], FloatArray]:
    """A function from sizes to seconds: a line fitted to log time by log size, at two sizes or more."""
    slope, level = np.polyfit(np.log(sizes), np.log(times_s), 1)
    return lambda at: np.exp(level + slope * np.log(at))


def _record(
    held_out: Sequence[HeldOut],
    predicted_s: Callable[[HeldOut], float | None],
    *,
    with_interval: bool = False,
) -> BacktestRecord:
    def errors(kept: Sequence[HeldOut]) -> Errors:
        ratios = [value / one.actual_s for one in kept if (value := predicted_s(one)) is not None]
        found = _errors(ratios)
        if not (with_interval and kept):
            return found
        held = [one.low_s <= one.actual_s <= one.high_s for one in kept]
        return replace(found, coverage=float(np.mean(held)))

    return BacktestRecord(
        **asdict(errors(held_out)),  # at least one result is predicted, so no error is None
        by_workload=_by(held_out, lambda one: one.workload, errors),
        by_jump={
            name: errors([one for one in held_out if above < one.jump <= most]) for name, above, most in JUMPS
        },
        by_round=_by(held_out, lambda one: one.round, errors),
        by_cause=_by_cause(held_out) if with_interval else {},
    )


def _by(
    held_out: Sequence[HeldOut],
    key: Callable[[HeldOut], str],
    errors: Callable[[Sequence[HeldOut]], Errors],
) -> dict[str, Errors]:
    names = dict.fromkeys(key(one) for one in held_out)
    return {name: errors([one for one in held_out if key(one) == name]) for name in names}


def _by_cause(held_out: Sequence[HeldOut]) -> dict[str, Errors]:
    """Errors of the two parts of time: samples to target, and seconds per sample."""
    known = [
        (one.predicted_samples / one.actual_samples, one.predicted_s / one.actual_s)
        for one in held_out
        if one.predicted_samples is not None and one.actual_samples is not None
    ]
    return {
        "samples_to_target": _errors([samples for samples, _ in known]),
        "throughput": _errors([time / samples for samples, time in known]),
    }


def _errors(ratios: Sequence[float]) -> Errors:
    if not ratios:
        return Errors(num_groups=0)
    sizes = np.abs(np.asarray(ratios) - 1.0)
    return Errors(
        num_groups=len(ratios),
        median_abs_error=float(np.median(sizes)),
        mean_abs_error=float(np.mean(sizes)),
        p90_abs_error=float(np.quantile(sizes, 0.9)),
    )

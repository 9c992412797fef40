"""The pooled law: time to train at any size, from all earlier rounds of a workload and a group's own sizes.

Curves of a workload share their shape across accelerators and rounds. Time is predicted directly, and as
samples to target over throughput, and the two are averaged. The law predicts the best submitter at each size;
other submitters differ from it by `SubmitterSpread`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import DataError, EvidenceError, UsageError
from equipoise.intervals import DEVIATE, LEVEL, Interval
from equipoise.scaling.gaussian_process import (
    CurveBlock,
    Hierarchy,
    Points,
    Predicted,
    Trend,
    fit_hierarchy,
    points,
    prior_log_deviations,
)
from equipoise.scaling.laws import FloatArray
from equipoise.scaling.posterior import even_deviates
from equipoise.spec.mlperf import Entries, round_key
from equipoise.stats import by_key
from equipoise.units import format_count

# Beyond this factor, accuracy was not tested: docs/experiments/0002-pooled-law.md.
_MAX_JUMP = 4.0
_NUM_EVIDENCE = 8
# Weight of the direct prediction; equal, because there are too few curves to fit weights.
_DIRECT_SHARE = 0.5

# Random curves are drawn on this grid and interpolated, so that they do not depend on the sizes requested.
_GRID_LOG2 = np.arange(0.0, 20.25, 0.25)
# Square roots of primes, whose multiples modulo 1 fill the unit interval evenly and independently.
_IRRATIONALS = tuple(np.sqrt((2.0, 3.0, 5.0, 7.0, 11.0, 13.0)))
_NUM_CURVES = 500
_NUM_COMPONENTS = len(_IRRATIONALS)

Part: TypeAlias = Literal["time", "samples", "rate"]

# By part: the mean of all values (None without any), and the trend after each iteration of the fit.
KeptTrends: TypeAlias = Mapping[Part, tuple[float | None, list[list[float]]]]

# Prior trends: accelerator time grows by a tenth per doubling, and by another tenth per doubling beyond 64.
_TRENDS: Mapping[Part, Trend] = {
    "time": Trend(per_doubling=0.1, beyond=0.1),
    "samples": Trend(per_doubling=0.03, beyond=0.05),
    "rate": Trend(per_doubling=0.07, beyond=0.05),
}


class Question(Struct, frozen=True, kw_only=True):
    """A size for which to predict time. global_batch_samples: only for a law fitted with batches."""

    workload: str
    accelerator: str
    num_accelerators: int
    global_batch_samples: float | None = None

    def __post_init__(self) -> None:
        """Reject impossible sizes and batches."""
        if self.num_accelerators < 1:
            raise UsageError(f"num_accelerators={self.num_accelerators}; expected 1 or more")
        batch = self.global_batch_samples
        if batch is not None and not (np.isfinite(batch) and batch > 0):
            raise UsageError(f"global_batch_samples={batch}; expected a positive number")


class WeightedEntry(Struct, frozen=True, kw_only=True):
    """An entry used in a prediction. weight: its share of all. is_same_group: of the predicted group."""

    entry_id: str
    num_accelerators: int
    weight: float
    is_same_group: bool


class PooledPrediction(Struct, frozen=True, kw_only=True):
    """Predicted time at one size, its parts, and the evidence by decreasing weight.

    samples_to_target, samples_per_s: None where no batch or convergence of the group is known.
    outside: why the prediction is an extrapolation; None inside the tested domain.
    """

    question: Question
    time_s: Interval
    samples_to_target: float | None
    samples_per_s: float | None
    outside: str | None
    evidence: tuple[WeightedEntry, ...]


class _Sizes(Struct, frozen=True, kw_only=True):
    """Questions about one group. sizes: (n_sizes,). batches: samples, (n_sizes,) or (1,); None: no input."""

    workload: str
    accelerator: str
    sizes: FloatArray
    batches: FloatArray | None


def _sizes(questions: Sequence[Question], *, given_batch: bool) -> _Sizes:
    batches = [question.global_batch_samples for question in questions]
    if given_batch and None in batches:
        raise UsageError("this law was fitted with batches; expected global_batch_samples; give one")
    return _Sizes(
        workload=questions[0].workload,
        accelerator=questions[0].accelerator,
        sizes=np.array([question.num_accelerators for question in questions], dtype=float),
        batches=np.array(batches, dtype=float) if given_batch else None,
    )


class _Expected(Struct, frozen=True, kw_only=True):
    """Log accelerator-seconds at each size, and their parts; samples: None where unknown."""

    mean: FloatArray
    time: Predicted
    samples: Predicted | None


class PooledLaw(Struct, frozen=True, kw_only=True):
    """The law fitted to earlier rounds of every workload by `fit`.

    entries: the best per size. rounds: their campaigns, oldest first.
    """

    entries: Entries
    rounds: tuple[str, ...]
    given_batch: bool
    parts: Mapping[Part, Hierarchy]

    def predict(self, own: Entries, question: Question) -> PooledPrediction:
        """The time at the question's size, from the law's entries and the group's own.

        own: entries of the same workload and accelerator, newer than the law's rounds; may be empty.
        Raises UsageError if the law needs a batch and none is given; EvidenceError without any evidence.
        Assumes the predicted entry is as good as the best at its size usually is.
        """
        return self.predict_all(own, [question])[0]

    def predict_all(self, own: Entries, questions: Sequence[Question]) -> tuple[PooledPrediction, ...]:
        """`predict` for several questions about one group, which differ in size and batch only."""
        wanted = _sizes(questions, given_batch=self.given_batch)
        past = self._past(own, wanted.workload)
        expected = self._expected(own, wanted, smooth=False)
        found = []
        for i, question in enumerate(questions):
            time_s = float(np.exp(expected.mean[i])) / question.num_accelerators
            spread = float(np.exp(DEVIATE * expected.time.deviation[i]))
            samples = None if expected.samples is None else float(np.exp(expected.samples.mean[i]))
            found.append(
                PooledPrediction(
                    question=question,
                    time_s=Interval(value=time_s, low=time_s / spread, high=time_s * spread, level=LEVEL),
                    samples_to_target=samples,
                    samples_per_s=None if samples is None else samples / time_s,
                    outside=_outside(past, own, question),
                    evidence=_evidence(past, own, expected.time.weights[i]),
                )
            )
        return tuple(found)

    def curves_s(self, own: Entries, question: Question, sizes: FloatArray) -> FloatArray:
        """Equally likely curves of time over size: (500, n_sizes); the same curves at every call.

        question: its size is ignored. sizes: (n_sizes,), from 1 to 2**20 accelerators.
        Curves are smooth: they exclude irregular variation from size to size and noise of entries.
        Assumes log times are jointly normal, with a covariance of few leading components.
        Source: the Karhunen-Loeve expansion of a Gaussian process (Rasmussen and Williams 2006).
        """
        wanted = replace(_sizes([question], given_batch=self.given_batch), sizes=2.0**_GRID_LOG2)
        self._past(own, wanted.workload)
        expected = self._expected(own, wanted, smooth=True)
        values, vectors = np.linalg.eigh(expected.time.covariance)
        vectors = vectors[:, -_NUM_COMPONENTS:]
        # The signs of eigenvectors differ between builds of LAPACK.
        vectors = vectors * np.where(vectors[-1] < 0.0, -1.0, 1.0)
        curves = vectors * np.sqrt(np.maximum(values[-_NUM_COMPONENTS:], 0.0))
        deviates = np.column_stack([even_deviates(_NUM_CURVES, irrational) for irrational in _IRRATIONALS])
        log_work = expected.mean + deviates @ curves.T
        where = np.log2(np.asarray(sizes, dtype=float))
        # As np.interp, for all curves at once.
        left = np.clip(np.searchsorted(_GRID_LOG2, where, side="right") - 1, 0, len(_GRID_LOG2) - 2)
        width, start = _GRID_LOG2[left + 1] - _GRID_LOG2[left], log_work[:, left]
        slope = (log_work[:, left + 1] - start) / width
        at_sizes = slope * (where - _GRID_LOG2[left]) + start
        return np.asarray(np.exp(at_sizes) / sizes, dtype=np.float64)

    def settings(self) -> dict[str, list[float]]:
        """The fitted log sd by part, with which `fit` skips the search."""
        return {part: hierarchy.log_deviations.tolist() for part, hierarchy in self.parts.items()}

    def trends(self) -> KeptTrends:
        """The centre and the trends of each part, with which `fit` can omit the other workloads."""
        return {part: (each.centre, each.trends.tolist()) for part, each in self.parts.items()}

    def _past(self, own: Entries, workload: str) -> Entries:
        """The law's entries of a workload. Raises EvidenceError if there are no own entries either."""
        past = [each for each in self.entries if each.workload == workload]
        if not past and not own:
            raise EvidenceError(
                f"nothing is known about {workload!r}: no entry in the data and no point given",
                missing=("a time to train at one size or more",),
            )
        return past

    def _expected(self, own: Entries, wanted: _Sizes, *, smooth: bool) -> _Expected:
        """Log accelerator-seconds at every size, averaged with the prediction by parts where known."""
        at = points(
            [wanted.accelerator] * len(wanted.sizes),
            wanted.sizes,
            np.full(len(wanted.sizes), float(len(self.rounds))),
        )
        time = self._part("time", own, wanted, at, smooth=smooth)
        if not _known(own, "samples", given_batch=self.given_batch):
            return _Expected(mean=time.mean, time=time, samples=None)
        samples, rate = (self._part(part, own, wanted, at, smooth=smooth) for part in ("samples", "rate"))
        mean = _DIRECT_SHARE * time.mean + (1.0 - _DIRECT_SHARE) * (samples.mean + rate.mean)
        return _Expected(mean=mean, time=time, samples=samples)

    def _part(self, part: Part, own: Entries, wanted: _Sizes, at: Points, *, smooth: bool) -> Predicted:
        known = _known(own, part, given_batch=self.given_batch)
        if wanted.batches is not None and part != "time":
            batches = np.broadcast_to(wanted.batches, len(at))
            batch = batches / wanted.sizes if part == "rate" else batches
            at = replace(at, batch_log2=np.log2(batch))
        now = float(len(self.rounds))
        block = _block(known, np.full(len(known), now), part, given_batch=self.given_batch)
        hierarchy = self.parts[part]
        if hierarchy.centre is None and len(known):
            # Without any earlier round, the mean of the group's own values is the centre.
            hierarchy = replace(hierarchy, centre=float(np.mean(block.values)))
        return hierarchy.predict(wanted.workload, block, at, smooth=smooth)


def fit(
    entries: Entries,
    *,
    given_batch: bool = False,
    settings: Mapping[str, Sequence[float]] | None = None,
    start: PooledLaw | None = None,
    kept: KeptTrends | None = None,
    workload: str | None = None,
) -> PooledLaw:
    """The pooled law of the best results of every group at every size.

    entries: from `spec.mlperf.best_per_size`. given_batch: whether batches are inputs of the law.
    settings: of an earlier law (`PooledLaw.settings`), used without search, in a tenth of the time.
    start: a law of earlier rounds, whose settings are the initial values of the search.
    kept: trends of the law of the same entries and settings (`PooledLaw.trends`); with them, fitting one
    workload gives the same law for it as fitting all.
    Raises DataError for a campaign that is not a round.
    """
    rounds = tuple(sorted({each.campaign for each in entries}, key=round_key))
    age_of = {campaign: float(age) for age, campaign in enumerate(rounds)}
    by_workload = by_key((each.workload, each) for each in entries if workload in {None, each.workload})
    hierarchies: dict[Part, Hierarchy] = {}
    for part, trend in _TRENDS.items():
        blocks = {}
        for name, of_workload in by_workload.items():
            known = _known(of_workload, part, given_batch=given_batch)
            if known:
                ages = np.array([age_of[each.campaign] for each in known])
                blocks[name] = _block(known, ages, part, given_batch=given_batch)
        values = [block.values for block in blocks.values()]
        prior = prior_log_deviations(with_batch=given_batch and part != "time")
        begin = None if start is None else start.parts[part].log_deviations
        if settings is not None:
            begin = _valid_settings(settings, part, len(prior))
        hierarchies[part] = fit_hierarchy(
            blocks,
            trend,
            centre=kept[part][0] if kept else float(np.mean(np.concatenate(values))) if values else None,
            prior=prior,
            start=begin,
            search=settings is None,
            trends=np.array(kept[part][1]) if kept else None,
        )
    return PooledLaw(entries=entries, rounds=rounds, given_batch=given_batch, parts=hierarchies)


def _valid_settings(settings: Mapping[str, Sequence[float]], part: Part, num_deviations: int) -> FloatArray:
    """The settings of one part. Raises DataError if they are of another law."""
    found = np.asarray(settings.get(part, ()), dtype=float)
    if found.shape != (num_deviations,) or not np.isfinite(found).all():
        raise DataError(
            f"settings of the pooled law: {part} has {found.size} numbers; expected {num_deviations}; "
            "they are of another version or of a law without batches: make them again"
        )
    return found


def _known(entries: Entries, part: Part, *, given_batch: bool) -> Entries:
    """The entries with the values that a part needs."""
    if part == "time":
        return entries
    return [
        each
        for each in entries
        if (each.samples_to_target or 0) > 0 and (not given_batch or (each.global_batch_samples or 0) > 0)
    ]


def _block(entries: Entries, ages: FloatArray, part: Part, *, given_batch: bool) -> CurveBlock:
    """Points and values of a part: log accelerator-seconds, samples, or accelerator-seconds per sample."""
    sizes = np.array([each.num_accelerators for each in entries], dtype=float)
    work = np.log(np.array([each.score_s for each in entries], dtype=float) * sizes)
    batch = None
    if part != "time":
        samples = np.log(np.array([each.samples_to_target for each in entries], dtype=float))
        work = samples if part == "samples" else work - samples
        if given_batch:
            global_batch = np.array([each.global_batch_samples for each in entries], dtype=float)
            batch = global_batch if part == "samples" else global_batch / sizes
    accelerators = [each.accelerator for each in entries]
    return CurveBlock(points=points(accelerators, sizes, ages, batch=batch), values=work)


def _outside(past: Entries, own: Entries, question: Question) -> str | None:
    """Why a question is outside the tested domain, in words; None inside."""
    size = question.num_accelerators
    if not own:
        return "no measurement of this group; only other accelerators or rounds of the workload"
    sizes = [each.num_accelerators for each in own]
    largest, smallest = max(sizes), min(sizes)
    if size > _MAX_JUMP * largest:
        return f"more than {_MAX_JUMP:g} times the largest of the group, {format_count(largest)}"
    if size < smallest / _MAX_JUMP:
        return f"fewer than 1/{_MAX_JUMP:g} of the smallest of the group, {format_count(smallest)}"
    if not past and not smallest <= size <= largest:
        return f"no earlier entry of {question.workload}; only the group's own points"
    return None


def _evidence(past: Entries, own: Entries, weights: FloatArray) -> tuple[WeightedEntry, ...]:
    """The entries with the largest weights in the time. weights: of the past entries, then of the own."""
    entries = [*past, *own]
    shares = np.abs(weights) / np.abs(weights).sum()
    heaviest = np.argsort(-shares, kind="stable")[:_NUM_EVIDENCE]
    return tuple(
        WeightedEntry(
            entry_id=entries[i].entry_id,
            num_accelerators=entries[i].num_accelerators,
            weight=float(shares[i]),
            is_same_group=bool(i >= len(past)),
        )
        for i in heaviest
    )


class SubmitterSpread(Struct, frozen=True, kw_only=True):
    """Log-normal distribution of a submitter's time over the best time of the others.

    factor: the median. log_sd: LEVEL of the results are within DEVIATE times log_sd of it. coverage: of the
    interval from strictly earlier rounds, on num_held_out results; None without any.
    """

    factor: float
    log_sd: float
    num_results: int
    num_held_out: int
    coverage: float | None

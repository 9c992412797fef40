"""Forecasts from the pooled law of published results and the group's own sizes or the user's own times."""

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.calibration import EvidenceSource, HeldOutErrors
from equipoise.calibration.curves import (
    CurveQuestion,
    LawUsed,
    PredictedTime,
    TimeCurve,
    fitted_curve,
    shipped_forecasts,
    sizes_of_interest,
)
from equipoise.errors import EvidenceError, SpecError
from equipoise.files import shipped_record
from equipoise.intervals import scaled
from equipoise.notes import Note
from equipoise.scaling import pooled
from equipoise.scaling.convergence import BatchGrowth, batch_growth
from equipoise.scaling.fit import MeasuredTimes, measured_times
from equipoise.scaling.gaussian_process import chip_facts
from equipoise.scaling.laws import Domain, FloatArray, Law, law_named
from equipoise.scaling.pooled import PooledLaw, Question
from equipoise.scaling.posterior import PUBLISHED_NOISE, CubicSpline, cubic_spline
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.mlperf import (
    Entries,
    ScoredEntry,
    Scores,
    accelerators_of,
    before,
    best_per_size,
    is_round,
    round_key,
    round_name,
)
from equipoise.units import MOST_LISTED, format_amount, format_count, listed

if TYPE_CHECKING:
    from equipoise.runs.readers.measurements import Measurements

# The campaign name of a user's own entries.
YOURS = "yours"


def user_entries(own: "Measurements", workload: str, accelerator: str) -> tuple[ScoredEntry, ...]:
    """The user's measurements as entries, with the median time of each size."""
    entries = []
    for size in np.unique(own.num_accelerators):
        here = own.num_accelerators == size
        batch = np.median(own.global_batch_samples[here])
        entries.append(
            ScoredEntry(
                entry_id=f"{own.where}: {format_count(size)} accelerators",
                campaign=YOURS,
                workload=workload,
                accelerator=accelerator,
                num_accelerators=int(size),
                score_s=float(np.median(own.time_s[here])),
                global_batch_samples=int(batch) if np.isfinite(batch) else None,
                source_uri=own.where,
            )
        )
    return tuple(entries)


def when_published(known: Entries, group: Entries) -> tuple[Note, ...]:
    """Notes that compare the user's times with the best published ones of the accelerator at the same size.

    known: the user's entries in order of size.
    """
    best_s = {each.num_accelerators: each.score_s for each in _best_of_all(group)}
    return tuple(
        Note(
            f"At {format_count(each.num_accelerators)} accelerators your time is "
            f"{format_amount(each.score_s / best_s[each.num_accelerators], digits=2)} times "
            "the best published one."
        )
        for each in known
        if each.num_accelerators in best_s
    )


def user_level(law: PooledLaw, known: Entries, question: Question) -> float:
    """Ratio of the user's times to those that the law predicts for the best system.

    known: the user's entries. question: for the same group; its size is ignored.
    Source: the median over the sizes.
    """
    expected = law.predict_all((), _at_sizes(question, known))
    ratios = [one.score_s / each.time_s.value for one, each in zip(known, expected, strict=True)]
    return float(np.median(ratios))


POOLED = "pooled"
WORK = "the complete training"
_NUM_EVIDENCE = 8
_KNOT_LOG2 = 0.25
_MOST_LAWS = 8
TRENDS: Final = "trends.json"
_HASH_CHARS = 16
_LARGEST_CURVE = 2.0**19  # the pooled law draws curves to 2**20 accelerators
_ASSUMES = (
    "curves of a workload share their shape across accelerators and rounds; this system "
    "performs as the best of its size usually do"
)
_ASSUMES_OWN = (
    "curves of a workload share their shape across accelerators and rounds; yours has its own level, which "
    "stays the same at every size"
)

_NOT_FOLLOWED = Note(
    "The law treats a measured time as an outlier and gives it less weight. If you "
    "trust that time more than the others, fit only the measured times, e.g. --law amdahl."
)


def workload_in(held: Container[str], name: str, catalogue: Catalogue) -> str:
    """The name of a workload in the data: `name` itself, or its slug. held: workloads in the data."""
    if name in held:
        return name
    return catalogue.workload_slug(name) or name


class Results(Struct, frozen=True, kw_only=True):
    """Published results of MLPerf rounds: the best per size of every group.

    laws: cache of pooled laws, by the round that they precede (None: fitted to all rounds), whether batches
    are given, and the workload (None: all).
    """

    best: tuple[ScoredEntry, ...]
    laws: dict[tuple[str | None, bool, str | None], pooled.PooledLaw] = field(default_factory=dict)

    def law_before(self, round_: str | None, workload: str, *, given_batch: bool) -> pooled.PooledLaw:
        """The pooled law of strictly earlier rounds, with the shipped settings, for one workload."""
        for name in (workload, None):
            if (round_, given_batch, name) in self.laws:
                return self.laws[round_, given_batch, name]
        entries = self.before(round_)
        settings = shipped_forecasts().settings(given_batch=given_batch)
        kept = kept_fits().trends.get(fingerprint(entries, settings, given_batch=given_batch))
        name = workload if kept else None
        law = pooled.fit(entries, given_batch=given_batch, settings=settings, kept=kept, workload=name)
        self.laws[round_, given_batch, name] = law
        return law

    @property
    def workloads(self) -> frozenset[str]:
        """The workloads with a result."""
        return frozenset(each.workload for each in self.best)

    def before(self, round_: str | None) -> tuple[ScoredEntry, ...]:
        """The entries of strictly earlier rounds; all entries if no round is given."""
        return self.best if round_ is None else before(self.best, round_)


def fingerprint(entries: Entries, settings: Mapping[str, Sequence[float]], *, given_batch: bool) -> str:
    """A hash of everything that determines the trends of a pooled law: entries, chip facts, settings."""
    return entries_hash(entries, repr((given_batch, settings, chip_facts(accelerators_of(entries)))))


def entries_hash(entries: Entries, text: str = "") -> str:
    """A hash of the contents of the entries and of `text`."""
    found = sha256(text.encode())
    for names in zip(*(each.group for each in entries), strict=True):
        found.update("\n".join(names).encode())
    numbers = [
        (each.num_accelerators, each.score_s, each.samples_to_target, each.global_batch_samples)
        for each in entries
    ]
    found.update(np.array(numbers, dtype=float).T.tobytes())  # missing values are NaN
    return found.hexdigest()[:_HASH_CHARS]


class KeptFits(Struct, frozen=True, kw_only=True):
    """Contents of TRENDS: fits keyed by a hash of their inputs, so that they serve only for equal inputs.

    trends: of pooled laws, by `fingerprint`. stretches: of laws of samples against batch.
    """

    trends: Mapping[str, pooled.KeptTrends]
    stretches: Mapping[str, tuple[float, ...]]


@cache
def kept_fits() -> KeptFits:
    """The shipped fits to published results."""
    return shipped_record(TRENDS, KeptFits, made_by="dataset")


def published_growth(entries: Entries) -> BatchGrowth:
    """Growth of a workload's samples to target with the batch, fitted to all its results.

    Raises EvidenceError, naming what to add, if the batches differ too little.
    """
    return batch_growth(entries, stretch=kept_fits().stretches.get(entries_hash(entries)))


def published_curve(
    results: Results, question: CurveQuestion, *, own: "Measurements | None" = None
) -> TimeCurve:
    """Times of an accelerator at the sizes of a question, from the results of a workload.

    question: names a workload and the slug of an accelerator. own: the user's times, used as the group's
    newest points. Without them, the group's best results of each size are used: of the given round, or of all
    rounds (a time once reached can be reached again) as if from the newest; for a single named law, only of
    the newest round with enough sizes.
    Raises SpecError for names that the data do not have, EvidenceError for a group without a result.
    """
    accelerator = str(question.accelerator)
    workload = _workload(results, question)
    of_workload = [each for each in results.best if each.workload == workload]
    group = [each for each in of_workload if each.accelerator == accelerator]
    one_law = None
    if question.law is not None and question.law != POOLED:
        one_law = law_named(question.law, also=(POOLED,))
    if own is not None:
        newest = None
        known = user_entries(own, workload, accelerator)
    else:
        newest = _round(group, of_workload, question, workload=workload, accelerator=accelerator)
        # A single law has a single level, so results of several rounds are not one curve.
        if question.round is None and one_law is not None:
            newest = _enough_for(one_law, group) or newest
        mixes = question.round is None and one_law is None
        known = _best_of_all(group) if mixes else tuple(each for each in group if each.campaign == newest)
    sizes = question.sizes or sizes_of_interest(np.array([each.num_accelerators for each in known]))
    notes = () if own is None else (*own.notes, *when_published(known, group))
    if one_law is not None:
        return _by_one_law(known, sizes, question, newest)
    return _by_pooled_law(results, known, sizes, question, round_=newest, notes=notes)


def _enough_for(law: Law, group: Entries) -> str | None:
    """The newest round with more sizes than the law has parameters; None if there is none.

    group: as returned by `best_per_size`, one entry per size and round.
    """
    counts = Counter(each.campaign for each in group)
    enough = [name for name, count in counts.items() if count > len(law.params)]
    return max(enough, key=round_key, default=None)


def _best_of_all(group: Entries) -> tuple[ScoredEntry, ...]:
    """The best result of each size over all rounds, in order of size, without sizes that others beat."""
    best: dict[int, ScoredEntry] = {}
    for each in sorted(group, key=lambda each: (each.score_s, each.entry_id)):
        best.setdefault(each.num_accelerators, each)
    beaten = beaten_sizes({size: each.score_s for size, each in best.items()})
    return tuple(best[size] for size in sorted(best) if size not in beaten)


# Replicates of one submission differ by less in time. Fewer accelerators can also be slower for lack of
# memory, but only 8 of 711 results (best of chip and size over all rounds) take this many times the hours.
_MOST_TIMES_AS_LONG, _MOST_TIMES_THE_HOURS = 1.1, 1.5


def beaten_sizes(best_s: Mapping[int, float]) -> dict[int, int]:
    """Sizes of a chip whose best result is beaten by another size, mapped to a size that beats it.

    A larger size could leave accelerators idle to match a smaller one, and the work is the same on fewer
    accelerators, so such results say more about the submitter than about the size: 19 of 711 in v0.5 to v5.1.
    best_s: best time by number of accelerators.
    """
    found: dict[int, int] = {}
    for size, time_s in best_s.items():
        fewer = ((other_s, other) for other, other_s in best_s.items() if other < size)
        more = ((other * other_s / size, other) for other, other_s in best_s.items() if other > size)
        for factor, others in ((_MOST_TIMES_AS_LONG, fewer), (_MOST_TIMES_THE_HOURS, more)):
            least_s, other = min(others, default=(math.inf, 0))
            if time_s > factor * least_s:
                found.setdefault(size, other)
    return found


def _by_one_law(
    known: Entries, sizes: Sequence[int], question: CurveQuestion, newest: str | None
) -> TimeCurve:
    """One law of time against size, fitted to the group's own points."""
    notes = []
    if question.global_batch_samples is not None:
        notes.append(Note("--global-batch was not used: only the pooled law depends on the batch."))
    if newest is not None and question.round is None:
        notes.append(
            Note(
                f"Fitted to the {len(known)} results of {newest} only, the newest round with enough "
                "sizes for this law (--round for another)."
            )
        )
    own = fitted_curve(
        measured_times(
            [each.num_accelerators for each in known],
            [each.score_s for each in known],
            entry=[each.entry_id for each in known],
        ),
        sizes,
        law=question.law,
        noise=PUBLISHED_NOISE,
        work=WORK,
        evidence_of=lambda kept: _evidence_at(known, kept),
        notes=tuple(notes),
    )
    return replace(own, round=newest)


def _evidence_at(known: Entries, kept: MeasuredTimes) -> tuple[EvidenceSource, ...]:
    """The entries to which a law was fitted; rejected outliers are not evidence for it."""
    points = set(zip(kept.num_accelerators.tolist(), kept.time_s.tolist(), strict=True))
    return tuple(
        _evidence(each, None, is_same_group=True)
        for each in known
        if (float(each.num_accelerators), each.score_s) in points
    )


def _by_pooled_law(
    results: Results,
    known: Entries,
    sizes: Sequence[int],
    question: CurveQuestion,
    *,
    round_: str | None,
    notes: tuple[Note, ...],
) -> TimeCurve:
    """The curve of the pooled law of earlier rounds, conditioned on the group's own points.

    A user's system may be slower than the best of its size by any factor, so that only the shape of the
    user's times is compared with other results; their level is kept.
    """
    given_batch = question.global_batch_samples is not None
    first = known[0]
    law = results.law_before(round_, first.workload, given_batch=given_batch)
    past = [each for each in results.before(round_) if each.workload == first.workload]
    questions = [
        pooled.Question(
            workload=first.workload,
            accelerator=first.accelerator,
            num_accelerators=size,
            global_batch_samples=question.global_batch_samples,
        )
        for size in sizes
    ]
    level = user_level(law, known, questions[0]) if first.campaign == YOURS else 1.0
    levelled = [replace(each, score_s=each.score_s / level) for each in known]
    predicted = law.predict_all(levelled, (*questions, *_at_sizes(questions[0], levelled)))
    found, at_known = predicted[: len(questions)], predicted[len(questions) :]
    disbelieved = _outlier_words(levelled, at_known)
    group = [each for each in past if each.accelerator == first.accelerator]
    measured = [each.num_accelerators for each in (*group, *known)]
    domain = Domain(smallest=float(min(measured)), largest=min(float(max(measured)), _LARGEST_CURVE))
    energy_j = {each.num_accelerators: each.energy_j for each in known if (each.energy_j or 0) > 0}
    return TimeCurve(
        law=LawUsed(
            name=POOLED,
            assumes=_ASSUMES if level == 1.0 else _ASSUMES_OWN,
            source="a Gaussian process with variance components: docs/experiments/0002-pooled-law.md",
        ),
        work=WORK,
        round=round_,
        domain=domain,
        predictions=tuple(
            PredictedTime(
                num_accelerators=each.question.num_accelerators,
                time=scaled(each.time_s, level),
                outside=disbelieved.get(each.question.num_accelerators, each.outside),
                record=_held_out_errors(known, each.question.num_accelerators, given_batch=given_batch),
                energy_j=energy_j.get(each.question.num_accelerators),
            )
            for each in found
        ),
        curves_s=SmoothCurves(law, levelled, questions[0], domain, level),
        evidence=_weighted((*past, *known), found),
        notes=(*notes, _NOT_FOLLOWED) if disbelieved else notes,
    )


def _outlier_words(known: Entries, predicted: Sequence[pooled.PooledPrediction]) -> dict[int, str]:
    """The group's own sizes whose measured time lies outside its predicted range, each with a message.

    predicted: the prediction at the size of each entry.
    """
    words = {}
    for one, each in zip(known, predicted, strict=True):
        if not each.time_s.low <= one.score_s <= each.time_s.high:
            size, side = one.num_accelerators, "above" if one.score_s > each.time_s.high else "below"
            words[size] = (
                f"the time measured at {format_count(size)} lies {side} the range: other results "
                "do not support it"
            )
    return words


def _at_sizes(question: Question, known: Entries) -> list[Question]:
    return [replace(question, num_accelerators=each.num_accelerators) for each in known]


class SplineCurves(Struct, frozen=True, eq=False):
    """Curves of log time against log size as cubic splines. level: a factor on all times."""

    spline: CubicSpline
    level: float

    def __call__(self, at: FloatArray) -> FloatArray:
        """Seconds at some sizes: (n_curves, n_sizes)."""
        return np.asarray(self.level * np.exp(self.spline(np.log2(at))))


class SmoothCurves(Struct, frozen=True, eq=False, dict=True):
    """Equally likely curves of the pooled law, to a doubling beyond the domain; drawn once, on first use.

    Cubic splines with knots every quarter octave, because the extremes of a polygon lie at its corners.
    """

    law: PooledLaw
    known: Entries
    question: pooled.Question
    domain: Domain
    level: float = 1.0

    @cached_property
    def drawn(self) -> SplineCurves:
        """The drawn curves, which do not refer to the law."""
        first = math.floor(math.log2(self.domain.smallest))
        last = math.ceil(math.log2(2.0 * self.domain.largest))
        knots_log2 = np.arange(first, last + _KNOT_LOG2 / 2.0, _KNOT_LOG2)
        log_times = np.log(self.law.curves_s(self.known, self.question, 2.0**knots_log2))
        return SplineCurves(cubic_spline(float(first), _KNOT_LOG2, log_times), self.level)

    def __call__(self, at: FloatArray) -> FloatArray:
        """Seconds at some sizes: (n_curves, n_sizes)."""
        return self.drawn(at)

    def __reduce__(self) -> tuple[type[SplineCurves], tuple[CubicSpline, float]]:
        """Pickle only the drawn curves: the law contains functions and all earlier results."""
        return SplineCurves, (self.drawn.spline, self.level)


def _held_out_errors(known: Entries, size: int, *, given_batch: bool) -> HeldOutErrors | None:
    """Errors of predictions this far beyond a group's own sizes; None if none was held out."""
    own = [each.num_accelerators for each in known]
    if size < min(own):
        return None
    return shipped_forecasts().record(
        "largest" if len(own) > 1 else "new_round", jump=size / max(own), given_batch=given_batch
    )


def _weighted(entries: Entries, found: Sequence[pooled.PooledPrediction]) -> tuple[EvidenceSource, ...]:
    """The entries with the most weight over all sizes, heaviest first, and all of the user's own entries."""
    weights = {each.entry_id: 0.0 for each in entries if each.campaign == YOURS}
    own, yours = {*weights}, [*weights]
    for prediction in found:
        for each in prediction.evidence:
            weights[each.entry_id] = weights.get(each.entry_id, 0.0) + each.weight / len(found)
            own |= {each.entry_id} if each.is_same_group else set()
    heaviest = sorted(weights, key=lambda entry_id: -weights[entry_id])[:_NUM_EVIDENCE]
    rows = {each.entry_id: each for each in entries}
    return tuple(
        _evidence(rows[entry_id], weights[entry_id], is_same_group=entry_id in own)
        for entry_id in dict.fromkeys((*heaviest, *yours))
    )


def _evidence(row: ScoredEntry, weight: float | None, *, is_same_group: bool) -> EvidenceSource:
    return EvidenceSource(
        kind="measured" if row.campaign == YOURS else "published",
        ref=row.entry_id,
        num_accelerators=row.num_accelerators,
        time_s=row.score_s,
        share=weight,
        is_same_group=is_same_group,
        source_uri=row.source_uri,
        source_line=row.source_line,
    )


@lru_cache(maxsize=_MOST_LAWS)
def results_of(scores: Scores) -> Results:
    """The published results among entries. Cached with the laws fitted to them, as every question needs them.

    Only MLPerf rounds are used, because the order of other campaigns is unknown.
    """
    return Results(best=best_per_size(each for each in scores.entries if is_round(each.campaign)))


def _workload(results: Results, question: CurveQuestion) -> str:
    name, catalogue = str(question.workload), question.catalogue
    held = results.workloads
    found = workload_in(held, name, catalogue)
    if found in held:
        return found
    if catalogue.workload_slug(name) is None:
        raise SpecError(f"workload {name!r} is not in the data, which have {', '.join(sorted(held))}")
    raise EvidenceError(
        f"the data have no scored closed entry of {found}",
        missing=(f"times to train of {found} on three numbers of accelerators: --runs FILE.csv",),
    )


def _round(
    group: Entries,
    of_workload: Entries,
    question: CurveQuestion,
    *,
    workload: str,
    accelerator: str,
) -> str:
    """The round to start from. Raises if the group has no result, or none in the given round."""
    rounds = sorted({each.campaign for each in group}, key=round_key)
    if not rounds:
        others = [name for name, _ in Counter(each.accelerator for each in of_workload).most_common()]
        raise EvidenceError(
            f"no scored closed entry of {workload} on {accelerator}; it has results on "
            f"{listed(others, MOST_LISTED)}",
            missing=(f"a time to train {workload} on {accelerator} at one size or more: --runs FILE.csv",),
        )
    if question.round is None:
        return rounds[-1]
    wanted = round_name(question.round)
    if wanted not in rounds:
        raise SpecError(
            f"round {question.round!r} has no scored closed entry of {workload} on {accelerator}; "
            f"{', '.join(rounds)} have"
        )
    return wanted


def evidence_of_times(data: MeasuredTimes, where: str) -> tuple[EvidenceSource, ...]:
    """The user's own times as evidence, with the median of each size."""
    return tuple(
        EvidenceSource(
            kind="measured",
            ref=where,
            num_accelerators=int(size),
            time_s=float(np.median(data.time_s[data.num_accelerators == size])),
            is_same_group=True,
        )
        for size in data.sizes
    )

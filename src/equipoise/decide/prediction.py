"""Predicts times at given sizes: the candidates of an answer, or a law fitted to the user's times alone.

Also makes the predictions that the ledger records for an answer or for such times.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration import EvidenceSource
from equipoise.calibration.curves import (
    CurveQuestion,
    LawUsed,
    PredictedTime,
    TimeCurve,
    fitted_curve,
    sizes_of_interest,
)
from equipoise.calibration.forecasts import (
    POOLED,
    WORK,
    evidence_of_times,
    published_curve,
    results_of,
    workload_in,
)
from equipoise.decide.answer import Answer, Candidate, TimeValue, about_fixed
from equipoise.decide.assessment import Assessment, Inputs, shortfall
from equipoise.decide.candidates import amount_limits, timed_candidate, too_wide
from equipoise.decide.collect import collect_candidates
from equipoise.decide.decision import answer_of, select_from
from equipoise.decide.estimators.measured import OF_RUNS
from equipoise.decide.evidence import Estimate
from equipoise.decide.ledger import RecordedPrediction
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.systems import RequestedSystem, rates_of, requested_systems
from equipoise.decide.select import rule_of, time_values, timed_figures
from equipoise.decide.strategies.size_searches import SEARCH_CACHE, ExtraSizes, SizeRange, expect_slices
from equipoise.decide.user_evidence.runs import UserRuns
from equipoise.economics import Rates
from equipoise.errors import EvidenceError, FitError, UsageError
from equipoise.intervals import LEVEL, Interval, log_sd
from equipoise.notes import Note
from equipoise.scaling.equilibrium import TWO_SIZES_NEEDED, Equilibrium, equilibria
from equipoise.scaling.fit import measured_times
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.catalogue import catalogue as catalogue_of
from equipoise.spec.mlperf import Scores
from equipoise.stats import by_key, one_thread
from equipoise.units import format_amount, listed

if TYPE_CHECKING:
    from equipoise.runs.readers.measurements import Measurements

_UNNAMED_SYSTEM: Final = "your accelerators"
# For the ids of runs in a line of the ledger, which has at most 64 KiB.
_MAX_RUN_ID_BYTES: Final = 48 * 1024


class Prediction(Struct, frozen=True, kw_only=True):
    """Predicted times by size. work: what they are for. candidates: at the sizes asked about, ascending.

    outside: by size, why a time is an extrapolation, in words; other sizes lie in the domain. law: of the
    curve through published or own times; None without one. answer: the whole answer with these candidates;
    None if only a law was fitted. trainings: the user's own times that were used; None without any.
    left_out: sizes asked about without a candidate, and why; also in `notes`.
    """

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("trainings", "left_out")

    question: TrainingQuery
    workload: str | None
    accelerator: str | None
    work: str
    round: str | None
    candidates: tuple[Candidate, ...]
    outside: dict[int, str]
    equilibria: tuple[Equilibrium, ...]
    no_equilibria: str | None
    time_values: tuple[TimeValue, ...]
    law: LawUsed | None
    evidence: tuple[EvidenceSource, ...]
    notes: tuple[Note, ...]
    answer: Answer | None = None
    trainings: "Measurements | None" = None
    left_out: Mapping[int, str] = {}


def predict(query: TrainingQuery, *, scores: Scores | None, catalogue: Catalogue | None = None) -> Prediction:
    """The predicted times at the sizes asked about, with money, energy and equilibria.

    Uses every estimator, as an answer does. Uses only the user's own times if a file of them is given that
    cannot be combined with published results, and only one law if that is named.
    Raises EvidenceError if the evidence does not suffice for a number with an interval.
    """
    known = catalogue or catalogue_of(query.hardware, query.workloads)
    if len(query.systems) > 1:
        raise UsageError(
            f"--accelerator {','.join(query.systems)}: predict takes one system; ask for each, or compare "
            "them with advise"
        )
    with one_thread():
        own = _user_times(query, known)
        is_of_law = query.law not in {None, POOLED}
        if query.fixed and (own is not None or is_of_law):
            raise UsageError(
                "--fix sets a strategy, and laws of time against size have none; leave out --from and --law"
            )
        if query.submitter == "new" and (own is not None or is_of_law):
            raise UsageError(
                "--submitter new needs published results and the pooled law; leave out --from and --law, or "
                "--submitter"
            )
        if own is not None and not _combines(query, own, scores, known):
            if query.law == POOLED:
                raise UsageError(
                    f"--law {POOLED} needs published results in addition to {own.where}: give --workload and "
                    "--accelerator that have some, and times of complete trainings"
                )
            return replace(_predict_by_curve(query, known, _user_curve(query, own)), trainings=own)
        if not query.workload or not query.systems:
            raise UsageError("predict needs --workload and --accelerator, or --from FILE, or all three")
        if is_of_law:
            return _predict_by_curve(query, known, _law_curve(query, known, scores))
        return _predict_by_answer(query, known, scores, own)


def _user_times(query: TrainingQuery, catalogue: Catalogue) -> "Measurements | None":
    if query.times_from is None:
        if query.rows or query.columns:
            raise UsageError(
                "--strategy and --column apply to a file of times; give it with --from, or leave them out"
            )
        return None
    from equipoise.runs.readers.exports import columns_of  # noqa: PLC0415 - as below
    from equipoise.runs.readers.measurements import read_measurements  # noqa: PLC0415 - only where a file is given

    own = read_measurements(
        query.times_from,
        workload=query.workload or None,
        accelerator=query.systems[0] if query.systems else None,
        strategy=query.rows,
        precision=_one_precision(query),
        global_batch_samples=query.global_batch_samples,
        columns=columns_of(query.columns),
        catalogue=catalogue,
    )
    return replace(own, notes=(*own.notes, *_notes_on_unlike_times(own)))


def _notes_on_unlike_times(own: "Measurements") -> Iterator[Note]:
    """A note on the size and batch whose times differ most, if they differ widely."""
    from equipoise.decide.user_evidence.usable import unlike  # noqa: PLC0415 - only where a file is given

    batches = (None if math.isnan(each) else int(each) for each in own.global_batch_samples.tolist())
    set_ups = zip(map(int, own.num_accelerators.tolist()), batches, strict=True)
    by_set_up = by_key(zip(set_ups, own.time_s.tolist(), strict=True))
    (size, batch), times_s = max(by_set_up.items(), key=lambda each: max(each[1]) / min(each[1]))
    yield from unlike(size, batch, len(times_s), ratio=max(times_s) / min(times_s))


def _one_precision(query: TrainingQuery) -> str | None:
    """The precision of the rows to use. Raises UsageError for several, since a curve has one."""
    if len(query.precision) > 1:
        raise UsageError(f"--precision {','.join(query.precision)} with --from: expected one precision")
    return query.precision[0] if query.precision else None


def _combines(query: TrainingQuery, own: "Measurements", scores: Scores | None, catalogue: Catalogue) -> bool:
    """Whether the user's times can be combined with published ones."""
    if scores is None or not query.workload or not query.systems:
        return False
    if not own.is_time_to_train or query.law not in {None, POOLED}:
        return False
    held = results_of(scores).workloads
    return workload_in(held, query.workload, catalogue) in held


def _user_curve(query: TrainingQuery, own: "Measurements") -> TimeCurve:
    """The curve fitted to the user's measurements alone."""
    data = measured_times(own.num_accelerators, own.time_s, entry=own.entry)
    notes = [*own.notes]
    if query.workload and not own.is_time_to_train:
        notes.append(
            Note(f"Published results were not used: {own.where} has no times of complete trainings.")
        )
    sizes = sizes_of_interest(data.sizes) if query.sizes is None else query.sizes.doublings
    try:
        return fitted_curve(
            data,
            sizes,
            law=query.law,
            work=own.work,
            evidence_of=lambda kept: evidence_of_times(kept, own.where),
            notes=tuple(notes),
        )
    except FitError as err:
        # The rows left out, which the notes name, may be those that the fit lacks.
        message = " ".join((f"{own.where}: {str(err).rstrip('.')}.", *map(str, notes)))
        raise FitError(message.rstrip("."), missing=err.missing) from err


def _law_curve(query: TrainingQuery, catalogue: Catalogue, scores: Scores | None) -> TimeCurve:
    """The curve of one law fitted to the accelerator's published results."""
    if scores is None:
        raise EvidenceError(
            "published results are excluded by the question",
            missing=("your measured times: --from FILE.csv",),
        )
    question = CurveQuestion(
        workload=query.workload,
        accelerator=catalogue.cluster(query.systems[0]).accelerator.slug,
        sizes=() if query.sizes is None else query.sizes.doublings,
        global_batch_samples=query.global_batch_samples,
        law=query.law,
        round=query.round,
        catalogue=catalogue,
    )
    return published_curve(results_of(scores), question)


def _predict_by_answer(
    query: TrainingQuery, catalogue: Catalogue, scores: Scores | None, own: "Measurements | None"
) -> Prediction:
    """The candidates of an answer at the sizes asked about."""
    runs = None if own is None else UserRuns(where=own.where, trainings=own, notes=own.notes)
    sizes = () if query.sizes is None else query.sizes.listed
    # Assess all sizes: the equilibria must not depend on which times are asked for.
    collected = collect_candidates(
        replace(query, sizes=None), catalogue, scores, runs=runs, extra=ExtraSizes(sizes=sizes)
    )
    found, assessment = answer_of(collected, select_from(collected)), collected.systems[0].assessment
    if query.sizes is not None and not query.sizes.is_range and assessment.system.cluster is not None:
        expect_slices(sizes, assessment.system.cluster)
    curve = None if assessment.published is None else assessment.published.curve
    wanted = _wanted_sizes(query, assessment.sizes)
    candidates = [each for each in found.candidates if each.system == assessment.system.name]
    # A law gives no time for sizes with results or runs of the user.
    of_law = wanted - {each.num_accelerators for each in candidates if each.published}
    of_law -= frozenset() if own is None else {*own.num_accelerators.astype(int).tolist()}
    shown = tuple(each for each in candidates if each.num_accelerators in wanted)
    left_out: dict[int, str] = {}
    if query.sizes is not None and not query.sizes.is_range:
        left_out = _why_left_out(collected.inputs, wanted, shown, assessment)
    title = assessment.system.title
    unknown = [f"No time can be estimated on {size:,} x {title}: {why}" for size, why in left_out.items()]
    if unknown and not shown:
        raise EvidenceError("; ".join(unknown), missing=(_ask_instead(query, wanted, candidates),))
    group = found.systems[0].equilibria
    return Prediction(
        question=query,
        workload=found.workload.slug,
        accelerator=assessment.system.accelerator,
        work=found.work,
        round=None if curve is None else curve.round,
        candidates=shown,
        outside={
            each.num_accelerators: each.outside
            for each in (() if curve is None else curve.predictions)
            if each.outside and each.num_accelerators in of_law
        },
        equilibria=group,
        no_equilibria=None if group else TWO_SIZES_NEEDED,
        time_values=found.time_values,
        law=None if curve is None else curve.law,
        evidence=tuple(
            dict.fromkeys(
                (
                    *(source for each in shown for one in each.estimates for source in one.sources),
                    *(source for one in assessment.estimates for source in one.sources),
                )
            )
        ),
        notes=tuple(
            dict.fromkeys(
                (
                    *(() if curve is None else curve.notes),
                    *found.notes,
                    *(Note(f"{each}.") for each in unknown),
                )
            )
        ),
        answer=found,
        trainings=own,
        left_out=left_out,
    )


def _why_left_out(
    inputs: Inputs, wanted: frozenset[int], shown: Sequence[Candidate], assessment: Assessment
) -> dict[int, str]:
    """The reason for each size asked for that has no candidate."""
    return {
        size: _why_nothing_runs(inputs, assessment, size) or "no evidence applies to that size"
        for size in sorted(wanted - {each.num_accelerators for each in shown})
    }


def _why_nothing_runs(inputs: Inputs, assessment: Assessment, size: int) -> str | None:
    """Why no strategy runs at a size: lack of memory, else the faults; None if some do."""
    if assessment.searches is None:
        return None
    needs = shortfall(inputs, assessment, size)
    known = assessment.searches.problem
    found = SEARCH_CACHE.searches(known, (size,)).sizes[0].found
    if needs is not None or found.num_legal:
        return None if needs is None else f"it {needs}"
    faults = about_fixed([*found.faults], inputs.query)
    return f"no strategy is legal: {'; '.join(each.words for each in faults)}"


def _ask_instead(query: TrainingQuery, wanted: Collection[int], candidates: Sequence[Candidate]) -> str:
    """What to ask instead of sizes that have no time: the nearest sizes that do, or another strategy."""
    sizes = [each.num_accelerators for each in candidates]
    below = {max((each for each in sizes if each < size), default=0) for size in wanted}
    above = {min((each for each in sizes if each > size), default=0) for size in wanted}
    near = sorted((below | above) - {0})
    if near:
        has = "have" if len(near) > 1 else "has"
        return f"another size with --at: {listed([f'{each:,}' for each in near])} {has} a time"
    return "another strategy with --fix" if query.fixed else "another size with --at: none has a time"


def _wanted_sizes(query: TrainingQuery, sizes: SizeRange) -> frozenset[int]:
    if query.sizes is None:
        return frozenset(sizes.tried)
    if not query.sizes.is_range:
        return frozenset(query.sizes.listed)
    return frozenset(filter(query.sizes.holds, sizes.tried))


def _predict_by_curve(query: TrainingQuery, catalogue: Catalogue, curve: TimeCurve) -> Prediction:
    """The times of a curve as candidates, without a strategy; interruptions are included in the times."""
    system = (
        requested_systems(query, catalogue)[0]
        if query.systems
        else RequestedSystem(
            name=_UNNAMED_SYSTEM,
            title=_UNNAMED_SYSTEM,
            cluster=None,
            usd_per_accelerator_hour=dict(query.price).get(""),
        )
    )
    rates = rates_of(query, system, system.terms[0])
    timed = (_on_curve(system, rates, each, curve) for each in curve.predictions)
    candidates = tuple(replace(each, constraints=tuple(amount_limits(query, each))) for each in timed)
    within = [each for each in candidates if each.num_accelerators <= 2 * curve.domain.largest]
    found: tuple[Equilibrium, ...] = ()
    if curve.domain.smallest < curve.domain.largest:
        found = equilibria(curve.curves_s, curve.domain, level=LEVEL)
    return Prediction(
        question=query,
        workload=query.workload or None,
        accelerator=None if system.cluster is None else system.accelerator,
        work=curve.work,
        round=curve.round,
        candidates=candidates,
        outside={each.num_accelerators: each.outside for each in curve.predictions if each.outside},
        equilibria=found,
        no_equilibria=None if found else TWO_SIZES_NEEDED,
        time_values=time_values(timed_figures(within), rule_of(query)),
        law=curve.law,
        evidence=curve.evidence,
        notes=curve.notes,
    )


def _on_curve(system: RequestedSystem, rates: Rates, found: PredictedTime, curve: TimeCurve) -> Candidate:
    is_measured = any(each.kind == "measured" for each in curve.evidence)
    record = found.record
    return timed_candidate(
        system,
        rates,
        num_accelerators=found.num_accelerators,
        estimate=Estimate(
            estimator="measured" if is_measured else "published",
            name=f"{curve.law.name} law of {'your measured times' if is_measured else 'published results'}",
            time_s=found.time,
            log_sd=log_sd(found.time),
            why=""
            if record is None
            else f"{record.of}: off by {format_amount(float(f'{100 * record.median_abs_error:.2g}'))} %",
            weight=1.0,
        ),
        grade="measured" if is_measured else "carried",
        energy_j=found.energy_j,
        why_not=too_wide(found.time),
    )


def answer_predictions(found: Answer, *, verb: str) -> tuple[RecordedPrediction, ...]:
    """The time of the recommended candidate and its rate, to record; empty if none is recommended.

    The rate is left out if published results or the user's whole trainings have weight in the time: those
    include evaluation and start-up, which a measured rate does not.
    """
    best = found.recommended
    if best is None or best.time_s is None:
        return ()
    trainings = found.system.trainings
    set_up = _set_up(best, trainings, workload=found.workload.slug, accelerator=best.accelerator, verb=verb)
    if set_up["global_batch_samples"] != best.global_batch_samples:
        # The time is that of the user's trainings, but another batch is recommended: either may be run.
        set_up["global_batch_samples"] = None
    of_size = (each for each in found.system.user_runs if each.num_accelerators == best.num_accelerators)
    rated = (run_id for each in of_size for run_id in each.run_ids)
    set_up["from_runs"] = _as_many_as_fit((*rated, *set_up["from_runs"]))
    time = _recorded(best.time_s, quantity="time_to_train_s", **set_up)
    is_of_whole = any(
        each.weight > 0.0 and (each.estimator == "published" or _is_of_trainings(each, trainings))
        for each in best.estimates
    )
    if best.step_s is None or best.global_batch_samples is None or is_of_whole:
        return (time,)
    # The rate of the steps alone, as a run reports it: a pretraining takes longer than its steps.
    batch, step = best.global_batch_samples * (found.system.time_per_step_time or 1.0), best.step_s
    rate = Interval(value=batch / step.value, low=batch / step.high, high=batch / step.low, level=step.level)
    return (time, _recorded(rate, quantity="samples_per_s", **set_up))


def time_predictions(found: Prediction) -> tuple[RecordedPrediction, ...]:
    """The time at each size given by `predict`, to record.

    Raises UsageError if they are not times of whole trainings, since no later run could be compared.
    """
    if found.answer is None and found.work != WORK:
        raise UsageError(
            f"--record: these times are for {found.work}; the ledger records times of complete "
            "trainings: give a column time_to_train_h"
        )
    return tuple(
        _recorded(
            each.time_s,
            quantity="time_to_train_s",
            **_set_up(
                each,
                found.trainings,
                workload=found.workload,
                accelerator=found.accelerator,
                verb="predict",
            ),
        )
        for each in found.candidates
        if each.time_s is not None
    )


def _set_up(
    candidate: Candidate,
    trainings: "Measurements | None",
    *,
    workload: str | None,
    accelerator: str | None,
    verb: str,
) -> dict[str, Any]:
    """The set-up of a prediction, the estimator with the most weight, and the trainings it was made from.

    If the user's own trainings have the most weight, strategy and batch are theirs, not the model's.
    """
    heaviest = max(candidate.estimates, key=lambda each: each.weight)
    strategy, batch = candidate.strategy_text, candidate.global_batch_samples
    if trainings is not None and _is_of_trainings(heaviest, trainings):
        strategy, batch = trainings.strategy, trainings.common_batch_samples
    return {
        "verb": verb,
        "workload": workload,
        "accelerator": accelerator,
        "num_accelerators": candidate.num_accelerators,
        "kind": heaviest.estimator,
        "strategy": strategy,
        "global_batch_samples": batch,
        "ref": heaviest.name,
        "from_runs": _as_many_as_fit(
            () if trainings is None else trainings.runs_nearest(candidate.num_accelerators)
        ),
    }


def _as_many_as_fit(run_ids: Sequence[str]) -> tuple[str, ...]:
    """The first run ids, as many as fit into a line of the ledger."""
    ends = accumulate(len(json.dumps(each)) + len(", ") for each in run_ids)
    return tuple(each for each, end in zip(run_ids, ends, strict=True) if end <= _MAX_RUN_ID_BYTES)


def _is_of_trainings(estimate: Estimate, trainings: "Measurements | None") -> bool:
    """Whether an estimate comes from the user's whole trainings rather than from rates of runs."""
    return trainings is not None and estimate.estimator == "measured" and estimate.name != OF_RUNS


def _recorded(amount: Interval, **set_up: Any) -> RecordedPrediction:  # noqa: ANN401 - fields of a prediction
    return RecordedPrediction(
        value=amount.value, low=amount.low, high=amount.high, level=amount.level, **set_up
    )

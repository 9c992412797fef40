"""What all witnesses of a kind of machine are made of: plan, forecast, what was fitted to own runs."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import polars as pl

from equipoise.advice.answer.about import Subject
from equipoise.advice.answer.asked import Request
from equipoise.advice.answer.checked_traces import TraceCheck, checks, ran_elsewhere
from equipoise.advice.answer.like_results import LikeResults, like_results
from equipoise.advice.answer.machines import Machine
from equipoise.advice.answer.own_files import OwnFiles
from equipoise.advice.answer.own_fit import OwnFit, own_fit
from equipoise.advice.answer.own_level import OwnLevel, own_level
from equipoise.advice.answer.own_runs import OwnRun, OwnRuns
from equipoise.advice.answer.own_steps import own_steps
from equipoise.advice.forecast.answer import MAX_ACCELERATORS, Forecast, Inquiry, Terms
from equipoise.advice.forecast.forecast import forecast
from equipoise.advice.plans.landscape import Landscape, surveyed
from equipoise.advice.plans.length import TRAINING_ALONE, stated_length, target_words, training_length
from equipoise.advice.plans.plan import answered, landscape, tried
from equipoise.advice.plans.planned import Length, Plan, Question
from equipoise.errors import EvidenceError, SpecError
from equipoise.scaling.metrics import COMPARABLE
from equipoise.scaling.points import round_key
from equipoise.spec.cluster import Cluster

_NUM_LAYOUTS = 3
_MODEL_ALONE = (
    "The model's times are of training steps alone; published ones hold evaluation and start-up too."
)
_NO_SAMPLES = (
    "How many samples the target takes, results do not tell: steps and the model tell strategies, and how "
    "times change with size, but no time. --samples or --tokens states another length."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """All that witnesses are made of.

    nodes: with links as the tables state them. own: what the user's steps make of the model: its parameters,
    or a level; None where they say nothing of it. like: where the chip has no result of its own, those of the
    nearest that has. traces: beside the model before it learnt from the user. has_samples: whether anything
    tells how many samples the training takes: where results only say how long, steps tell no time of it.
    """

    nodes: Cluster
    length: Length
    has_samples: bool
    plan: Plan | None
    flat: Landscape | None
    own: OwnFit | OwnLevel | None
    forecast: Forecast | None
    like: LikeResults | None
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    traces: tuple[TraceCheck, ...] = ()


def is_to_target(request: Request) -> bool:
    """Whether the published target is meant: published times are of no other length."""
    return request.training_samples is None and request.training_tokens is None


def ground(
    request: Request,
    about: Subject,
    machine: Machine,
    *,
    nodes: Cluster,
    sizes: Sequence[int],
    scores: pl.DataFrame | None,
    own: OwnRuns | None,
    files: OwnFiles,
) -> Ground:
    """The plan and the forecast, as far as there is ground for them, and the length of the training."""
    missing: list[str] = []
    chip = nodes.accelerator
    notes = [*ran_elsewhere(files.traces, chip.slug, chip.title)]
    planned: Plan | None = None
    flat: Landscape | None = None
    told: Forecast | None = None
    like: LikeResults | None = None
    learnt: OwnFit | OwnLevel | None = None
    traced = checks(files.traces, None, nodes, None)
    try:
        question = _question(request, about, machine, sizes, files)
        flat = landscape(question, scores=scores)
        before = flat.ground.model.parameters
        traced = checks(files.traces, flat.ground.load, nodes, before)
        learnt = _learnt(flat, nodes, () if own is None else own.on(nodes.accelerator.slug))
        if isinstance(learnt, OwnFit):
            flat = landscape(question, scores=scores, model=learnt.model, length=flat.ground.length)
        flat = surveyed(flat, tried(question, flat.ground))
        planned = answered(flat, question, terms=request.terms, scores=scores)
        notes += (_MODEL_ALONE if note == TRAINING_ALONE else note for note in planned.notes)
    except (EvidenceError, SpecError) as err:  # what nothing states of the chip: others may tell times
        missing += err.missing if isinstance(err, EvidenceError) and err.missing else [str(err)]
        notes.append(f"No strategy was searched: {err}.")
    if is_to_target(request) and _is_published(scores, about):
        try:
            told = _forecast(request, about, nodes.accelerator.slug, sizes, scores=scores, own=own)
        except EvidenceError as err:
            missing += (each.replace("--from FILE", "--runs FILE") for each in err.missing)
            if planned is not None and scores is not None:
                like = like_results(planned, nodes.accelerator, sizes, scores)
    length = planned.length if planned is not None else length_of(request, about, scores)
    has_samples = length.is_whole or (told is None and like is None)
    if not has_samples:
        # Published times are of whole trainings, the model's of a unit: of the target only the former.
        notes = [each for each in notes if each not in length.notes]
        notes.append(_NO_SAMPLES)
        length = replace(length, words=target_words(about.workload), is_whole=True, missing=(), notes=())
    return Ground(
        nodes=nodes,
        length=length,
        has_samples=has_samples,
        plan=planned,
        flat=flat,
        own=learnt,
        forecast=told,
        like=like,
        missing=tuple(dict.fromkeys(missing)),
        notes=tuple(notes),
        traces=traced,
    )


def _learnt(flat: Landscape, nodes: Cluster, runs: Sequence[OwnRun]) -> OwnFit | OwnLevel | None:
    """What the user's steps make of the model that would be searched with."""
    start = flat.ground.model
    steps = own_steps(runs, flat.ground.load, nodes, start.parameters)
    if steps is None:
        return None
    found = own_fit(steps, start)
    return own_level(steps, start, found) if isinstance(found, str) else found


def _is_published(scores: pl.DataFrame | None, about: Subject) -> bool:
    return scores is not None and about.workload.slug in scores["workload"]


def _question(
    request: Request, about: Subject, machine: Machine, sizes: Sequence[int], files: OwnFiles
) -> Question:
    """What the model is asked: every size; deadline and budget are held to the joint times."""
    return Question(
        workload=request.workload,
        accelerator=machine.name,
        node=machine.node,
        fewest=sizes[0],
        most=sizes[-1],
        sizes=tuple(sizes) if len(sizes) > 1 else (),
        global_batch_samples=request.global_batch_samples or about.global_batch_samples,
        training_samples=request.training_samples,
        training_tokens=request.training_tokens,
        choices={"precision": request.precision} if request.precision else {},
        collectives=files.collectives,
        num_best=_NUM_LAYOUTS,
    )


def _forecast(
    request: Request,
    about: Subject,
    slug: str,
    sizes: Sequence[int],
    *,
    scores: pl.DataFrame | None,
    own: OwnRuns | None,
) -> Forecast:
    """What published results say of the sizes, and the user's own whole trainings among them.

    Of the newest round that tells a time of any size with a record: the latest may hold other sizes alone.
    """
    assert scores is not None
    batch = request.global_batch_samples
    inquiry = Inquiry(
        workload=about.workload.slug,
        accelerator=slug,
        sizes=tuple(sorted({*sizes, min(2 * sizes[-1], MAX_ACCELERATORS)})),
        global_batch_samples=None if batch is None else float(batch),
    )
    trainings = None if own is None else own.trainings
    newest = forecast(scores, inquiry, own=trainings, terms=Terms())
    if batch is not None:
        return newest
    found = newest
    for name in _earlier_rounds(scores, about, slug, newest.ground.round, most=2 * sizes[-1]):
        if _tells(found):
            return found
        with suppress(EvidenceError):
            found = forecast(scores, replace(inquiry, round=name), own=trainings, terms=Terms())
    return found if _tells(found) else newest


def _tells(found: Forecast) -> bool:
    """Whether it has a time of any size, with a record."""
    return any(each.record is not None for each in found.ground.foretold)


def _earlier_rounds(
    scores: pl.DataFrame, about: Subject, slug: str, newest: str | None, *, most: int
) -> list[str]:
    """Rounds before one with a result of the workload on at most so many accelerators, the latest first."""
    if newest is None:
        return []
    rows = scores.filter(
        COMPARABLE
        & (pl.col("division") == "closed")
        & (pl.col("workload") == about.workload.slug)
        & (pl.col("accelerator") == slug)
        & (pl.col("num_accelerators") <= most)
    )
    held = sorted(rows["campaign"].unique(), key=round_key, reverse=True)
    return [name for name in held if round_key(name) < round_key(newest)]


def length_of(request: Request, about: Subject, scores: pl.DataFrame | None) -> Length:
    """How many samples the training takes."""
    stated = stated_length(about.workload, samples=request.training_samples, tokens=request.training_tokens)
    return training_length(about.workload, scores, stated_samples=stated)

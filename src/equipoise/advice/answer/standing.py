"""One kind of machine for a request: its witnesses, the joint time of every size, and the size to take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import polars as pl

from equipoise.advice.answer.about import Subject
from equipoise.advice.answer.advice import Choice, Standing
from equipoise.advice.answer.asked import USUAL_MOST, Request
from equipoise.advice.answer.chosen import chosen, kept, obstacle
from equipoise.advice.answer.evidence import Evidence, Witness
from equipoise.advice.answer.joined import joined_curves
from equipoise.advice.answer.machines import Machine
from equipoise.advice.answer.measured_witness import measured_witness
from equipoise.advice.answer.own_level import calibrated_witness, own_level
from equipoise.advice.answer.own_runs import OwnRun, OwnRuns
from equipoise.advice.answer.weighed import chance_within, weighed
from equipoise.advice.answer.witnesses import (
    beside_published,
    carried,
    modelled_witness,
    published_witness,
    without_beyond,
)
from equipoise.advice.forecast.answer import LEVEL, MAX_ACCELERATORS, MAX_SIZES, Forecast, Inquiry, Terms
from equipoise.advice.forecast.forecast import forecast
from equipoise.advice.plans.landscape import Landscape, surveyed
from equipoise.advice.plans.length import TRAINING_ALONE, stated_length, training_length
from equipoise.advice.plans.mixed import rates
from equipoise.advice.plans.plan import answered, landscape, tried
from equipoise.advice.plans.planned import Length, Option, Plan, Question
from equipoise.economics import Rates, bill
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.scaling.equilibrium import Equilibrium, default_answer, equilibria
from equipoise.scaling.metrics import COMPARABLE
from equipoise.spec.cluster import Cluster, cluster
from equipoise.spec.hardware import Accelerator
from equipoise.spec.workload import Workload

_NUM_LAYOUTS = 3
_MODEL_ALONE = (
    "The model's times are of training steps alone; published ones hold evaluation and start-up too."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """All that witnesses are made of."""

    nodes: Cluster
    length: Length
    plan: Plan | None
    flat: Landscape | None
    forecast: Forecast | None
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def standing(
    request: Request,
    about: Subject,
    machine: Machine,
    *,
    scores: pl.DataFrame | None,
    own: OwnRuns | None,
) -> Standing:
    """What is known of a machine for a request, and the size to take of it.

    Raises EvidenceError, naming what is missing, where nothing tells any time.
    """
    nodes = cluster(machine.name, **machine.node)
    chip = nodes.accelerator
    published = _published_sizes(scores, about.workload, chip) if _is_to_target(request) else ()
    most = request.most or machine.most or max((USUAL_MOST, *published))
    sizes = _sizes(nodes, most, published)
    ground = _ground(request, about, machine, nodes=nodes, sizes=sizes, scores=scores, own=own)
    witnesses = _witnesses(ground, about, sizes, own=own, most=most)
    prices = rates(chip, request.terms)
    _refuse_budget_without_price(request, prices, chip)
    choices = _choices(request, ground, witnesses, prices=prices, own=own)
    able = [each for each in choices if each.num_accelerators <= most]
    if not able:
        _refuse(ground, about, machine)
    points = _points(witnesses, able)
    answer = default_answer(points) if points else None
    best = chosen(request, able, answer)
    beyond = {each.num_accelerators: each for each in choices if each.num_accelerators > most}
    return Standing(
        accelerator=chip.slug,
        title=chip.title,
        cluster=nodes,
        plan=ground.plan,
        forecast=ground.forecast,
        rates=prices,
        length=ground.length,
        choices=tuple(able),
        beyond=beyond,
        recommended=best,
        layouts=_layouts(ground, best),
        obstacle=None if kept(request, able) else obstacle(request, able, [*beyond.values()]),
        points=points,
        answer=answer,
        notes=(*machine.notes, *ground.notes),
    )


def _is_to_target(request: Request) -> bool:
    """Whether the published target is meant: published times are of no other length."""
    return request.training_samples is None and request.training_tokens is None


def _is_published(scores: pl.DataFrame | None, about: Subject) -> bool:
    return scores is not None and about.workload.slug in scores["workload"]


def _published_sizes(scores: pl.DataFrame | None, about: Workload, chip: Accelerator) -> tuple[int, ...]:
    """The sizes with a published result of the workload on the accelerator."""
    if scores is None:
        return ()
    rows = scores.filter(
        COMPARABLE
        & (pl.col("division") == "closed")
        & (pl.col("workload") == about.slug)
        & (pl.col("accelerator") == chip.slug)
    )
    return tuple(sorted(rows["num_accelerators"].unique().to_list()))


def _sizes(nodes: Cluster, most: int, published: Sequence[int]) -> tuple[int, ...]:
    """Sizes to choose from: powers of two and those of whole nodes, and the most that may be taken.

    Where results are published, from the smaller of a node and the smallest size published.
    """
    least = min(nodes.node_size, published[0]) if published else 1
    steps = range(math.ceil(math.log2(most)) + 1)
    powers = {2**step for step in steps} | {nodes.node_size * 2**step for step in steps}
    found = sorted({each for each in powers if min(least, most) <= each <= most} | {most})
    return tuple(found[-(MAX_SIZES - 1) :])


def _ground(
    request: Request,
    about: Subject,
    machine: Machine,
    *,
    nodes: Cluster,
    sizes: Sequence[int],
    scores: pl.DataFrame | None,
    own: OwnRuns | None,
) -> _Ground:
    """The plan and the forecast, as far as there is ground for them, and the length of the training."""
    missing: list[str] = []
    notes: list[str] = []
    planned: Plan | None = None
    flat: Landscape | None = None
    told: Forecast | None = None
    try:
        question = _question(request, about, machine, sizes)
        flat = landscape(question, scores=scores)
        flat = surveyed(flat, tried(question, flat.ground))
        planned = answered(flat, question, terms=request.terms, scores=scores)
        notes += (_MODEL_ALONE if note == TRAINING_ALONE else note for note in planned.notes)
    except (EvidenceError, SpecError) as err:  # what nothing states of the chip: others may tell times
        missing += err.missing if isinstance(err, EvidenceError) and err.missing else [str(err)]
        notes.append(f"No strategy was searched: {err}.")
    if _is_to_target(request) and _is_published(scores, about):
        try:
            told = _forecast(request, about, nodes.accelerator.slug, sizes, scores=scores, own=own)
        except EvidenceError as err:
            missing += err.missing
    length = planned.length if planned is not None else length_of(request, about, scores)
    return _Ground(
        nodes=nodes,
        length=length,
        plan=planned,
        flat=flat,
        forecast=told,
        missing=tuple(dict.fromkeys(missing)),
        notes=tuple(notes),
    )


def _question(request: Request, about: Subject, machine: Machine, sizes: Sequence[int]) -> Question:
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
    """What published results say of the sizes, and the user's own whole trainings among them."""
    assert scores is not None
    batch = request.global_batch_samples
    inquiry = Inquiry(
        workload=about.workload.slug,
        accelerator=slug,
        sizes=tuple(sorted({*sizes, min(2 * sizes[-1], MAX_ACCELERATORS)})),
        global_batch_samples=None if batch is None else float(batch),
    )
    trainings = None if own is None else own.trainings
    return forecast(scores, inquiry, own=trainings, terms=Terms())


def length_of(request: Request, about: Subject, scores: pl.DataFrame | None) -> Length:
    """How many samples the training takes."""
    stated = stated_length(about.workload, samples=request.training_samples, tokens=request.training_tokens)
    return training_length(about.workload, scores, stated_samples=stated)


def _witnesses(
    ground: _Ground, about: Subject, sizes: Sequence[int], *, own: OwnRuns | None, most: int
) -> list[Witness]:
    """Everybody who can tell a time, the surest kind first."""
    found: list[Witness | None] = []
    runs = () if own is None else own.on(ground.nodes.accelerator.slug)
    if runs:
        found.append(
            measured_witness(
                runs,
                ground.length,
                (*sizes, 2 * sizes[-1]),
                cluster=ground.nodes,
                workload=about.workload,
            )
        )
    published = None if ground.forecast is None else published_witness(ground.forecast)
    modelled = None if ground.plan is None else modelled_witness(ground.plan)
    if published is not None and modelled is not None and ground.forecast is not None:
        modelled = beside_published(modelled, ground.forecast)
        published = carried(published, modelled)
    found.append(published)
    if ground.plan is not None:
        level = own_level(runs, ground.plan) if runs and modelled is not None else None
        if modelled is not None and level is not None:
            modelled = calibrated_witness(modelled, ground.plan, level)
        found.append(modelled)
    return [without_beyond(each, most) for each in found if each is not None]


def _choices(
    request: Request,
    ground: _Ground,
    witnesses: Sequence[Witness],
    *,
    prices: Rates,
    own: OwnRuns | None,
) -> list[Choice]:
    """Every size that somebody tells of, from the smallest."""
    options = {} if ground.plan is None else {each.num_accelerators: each for each in ground.plan.by_size}
    slug = ground.nodes.accelerator.slug
    runs = () if own is None else own.on(slug)
    sizes = sorted({size for each in witnesses for size in each.times})
    return [
        replace(
            joint_choice(request, slug, witnesses, prices, size=size, run=fastest_of(runs, size)),
            option=options.get(size),
        )
        for size in sizes
    ]


def joint_choice(
    request: Request,
    accelerator: str,
    witnesses: Sequence[Witness],
    prices: Rates,
    *,
    size: int,
    run: OwnRun | None,
) -> Choice:
    """So many accelerators, with what all witnesses say of them joined.

    run: the user's own set-up of the size, if any.
    """
    told = [each for each in witnesses if size in each.times]
    joint = weighed([each.times[size] for each in told], [each.log_sds[size] for each in told])
    chance = None
    if not math.isinf(request.deadline_s):
        chance = chance_within(joint.time, request.deadline_s)
    return Choice(
        accelerator=accelerator,
        num_accelerators=size,
        option=None,
        run=run,
        time=joint.time,
        evidence=tuple(
            Evidence(
                kind=each.kind,
                name=each.name,
                time=each.times[size],
                weight=weight,
                why=each.why[size],
                sources=each.sources,
            )
            for each, weight in zip(told, joint.weights, strict=True)
        ),
        disagreement=joint.disagreement,
        bill=bill(size, joint.time, prices),
        chance_in_time=chance,
    )


def fastest_of(runs: Sequence[OwnRun], size: int) -> OwnRun | None:
    """The set-up of most samples a second among those measured on so many."""
    here = [each for each in runs if each.num_accelerators == size]
    return max(here, key=lambda each: each.samples_per_s, default=None)


def _points(witnesses: Sequence[Witness], able: Sequence[Choice]) -> tuple[Equilibrium, ...]:
    """Equilibria of the joint curve."""
    middle = able[len(able) // 2]
    found = joined_curves(witnesses, middle.time, middle.num_accelerators)
    if found is None:
        return ()
    curves_s, domain = found
    return equilibria(curves_s, domain, level=LEVEL)


def _layouts(ground: _Ground, best: Choice | None) -> tuple[Option, ...]:
    """The best layouts at the size to take."""
    if ground.flat is None or best is None:
        return ()
    found = [one.strategy for each in ground.flat.at((best.num_accelerators,)) for one in each.found.best]
    return ground.flat.ground.timed(found[:_NUM_LAYOUTS]).options


def _refuse_budget_without_price(request: Request, prices: Rates, chip: Accelerator) -> None:
    if prices.price is None and not math.isinf(request.budget_usd):
        raise UsageError(f"--budget needs a price of {chip.slug}: give --price")


def _refuse(ground: _Ground, about: Subject, machine: Machine) -> NoReturn:
    """Say what is missing, where nobody can tell a time."""
    if ground.plan is not None and ground.plan.remedy is not None:
        raise EvidenceError(
            f"{about.workload.title} on {machine.title}: no size fits: it {ground.plan.remedy}",
            missing=("more accelerators, or a way to train that needs less memory",),
        )
    raise EvidenceError(
        f"nothing tells how long {about.workload.title} takes on {machine.title}",
        missing=ground.missing
        or (f"a measured step: equipoise bench {about.workload.slug} --out DIR, then --runs DIR",),
    )

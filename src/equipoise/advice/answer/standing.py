"""One kind of machine for a request: its witnesses, the joint time of every size, and the size to take."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import polars as pl

from equipoise.advice.answer.about import Subject
from equipoise.advice.answer.advice import Choice, Standing
from equipoise.advice.answer.asked import USUAL_MOST, Request
from equipoise.advice.answer.chosen import chosen, kept, obstacle
from equipoise.advice.answer.evidence import Evidence, Witness
from equipoise.advice.answer.ground import Ground, ground, is_to_target
from equipoise.advice.answer.heard import heard
from equipoise.advice.answer.joined import joined_curves
from equipoise.advice.answer.machines import Machine
from equipoise.advice.answer.own_evidence import own_notes
from equipoise.advice.answer.own_files import OwnFiles
from equipoise.advice.answer.own_runs import OwnRun, OwnRuns
from equipoise.advice.answer.weighed import chance_within, weighed
from equipoise.advice.forecast.answer import LEVEL, MAX_SIZES
from equipoise.advice.plans.mixed import rates
from equipoise.advice.plans.planned import Option
from equipoise.economics import Rates, bill
from equipoise.errors import EvidenceError, UsageError
from equipoise.scaling.equilibrium import Equilibrium, default_answer, equilibria
from equipoise.scaling.metrics import COMPARABLE
from equipoise.spec.cluster import Cluster, cluster
from equipoise.spec.hardware import Accelerator
from equipoise.spec.workload import Workload

_NUM_LAYOUTS = 3


def standing(
    request: Request,
    about: Subject,
    machine: Machine,
    *,
    scores: pl.DataFrame | None,
    own: OwnRuns | None,
    files: OwnFiles,
) -> Standing:
    """What is known of a machine for a request, and the size to take of it.

    Raises EvidenceError, naming what is missing, where nothing tells any time.
    """
    nodes = cluster(machine.name, **machine.node)
    chip = nodes.accelerator
    is_usual = is_to_target(request) and request.global_batch_samples is None
    published = _published_sizes(scores, about.workload, chip) if is_usual else ()
    most = request.most or machine.most or max((USUAL_MOST, *published))
    sizes = _sizes(nodes, most, published)
    known = ground(request, about, machine, nodes=nodes, sizes=sizes, scores=scores, own=own, files=files)
    witnesses = heard(known, about, sizes, own=own, most=most)
    prices = rates(chip, request.terms)
    _refuse_budget_without_price(request, prices, chip)
    choices = _choices(request, known, witnesses, prices=prices, own=own)
    able = [each for each in choices if each.num_accelerators <= most]
    if not able:
        _refuse(known, about, machine)
    points = _points(witnesses, able)
    answer = default_answer(points) if points else None
    best = chosen(request, able, answer)
    beyond = {each.num_accelerators: each for each in choices if each.num_accelerators > most}
    return Standing(
        accelerator=chip.slug,
        title=chip.title,
        cluster=nodes,
        plan=known.plan,
        forecast=known.forecast,
        rates=prices,
        length=known.length,
        choices=tuple(able),
        beyond=beyond,
        recommended=best,
        layouts=_layouts(known, best),
        obstacle=None if kept(request, able) else obstacle(request, able, [*beyond.values()]),
        points=points,
        answer=answer,
        notes=(*machine.notes, *known.notes, *own_notes(known.plan, known.traces)),
        traces=known.traces,
        like=None if known.like is None else known.like.like,
        learnt=None if known.own is None else known.own.sentence,
    )


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


def _choices(
    request: Request,
    known: Ground,
    witnesses: Sequence[Witness],
    *,
    prices: Rates,
    own: OwnRuns | None,
) -> list[Choice]:
    """Every size that somebody tells of, from the smallest."""
    options = {} if known.plan is None else {each.num_accelerators: each for each in known.plan.by_size}
    slug = known.nodes.accelerator.slug
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
    counted = [each for each in told if not each.is_beside] or told
    joint = weighed([each.times[size] for each in counted], [each.log_sds[size] for each in counted])
    weights = dict(zip([each.name for each in counted], joint.weights, strict=True))
    chance = None
    if not math.isinf(request.deadline_s):
        chance = chance_within(joint.time, request.within_s)
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
                weight=weights.get(each.name, 0.0),
                why=each.why[size],
                sources=each.sources,
            )
            for each in told
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


def _layouts(known: Ground, best: Choice | None) -> tuple[Option, ...]:
    """The best layouts at the size to take."""
    if known.flat is None or best is None:
        return ()
    found = [one.strategy for each in known.flat.at((best.num_accelerators,)) for one in each.found.best]
    return known.flat.ground.timed(found[:_NUM_LAYOUTS]).options


def _refuse_budget_without_price(request: Request, prices: Rates, chip: Accelerator) -> None:
    if prices.price is None and not math.isinf(request.budget_usd):
        raise UsageError(f"--budget needs a price of {chip.slug}: give --price")


def _refuse(known: Ground, about: Subject, machine: Machine) -> NoReturn:
    """Say what is missing, where nobody can tell a time."""
    if known.plan is not None and known.plan.remedy is not None:
        raise EvidenceError(
            f"{about.workload.title} on {machine.title}: no size fits: it {known.plan.remedy}",
            missing=("more accelerators, or a way to train that needs less memory",),
        )
    raise EvidenceError(
        f"nothing tells how long {about.workload.title} takes on {machine.title}",
        missing=known.missing
        or (f"a measured step: equipoise bench {about.workload.slug} --out DIR, then --runs DIR",),
    )

"""Everybody who can tell a time of one kind of machine, each beside the others: the surest kind first."""

from collections.abc import Sequence
from dataclasses import replace

from equipoise.advice.answer.about import Subject
from equipoise.advice.answer.evidence import Witness
from equipoise.advice.answer.ground import Ground
from equipoise.advice.answer.measured_witness import measured_witness
from equipoise.advice.answer.own_fit import OwnFit
from equipoise.advice.answer.own_level import fitted_witness, levelled_witness
from equipoise.advice.answer.own_runs import OwnRuns
from equipoise.advice.answer.own_steps import recasts
from equipoise.advice.answer.witnesses import (
    at_own_level,
    beside_published,
    carried,
    modelled_witness,
    published_witness,
    without_beyond,
)


def heard(
    ground: Ground, about: Subject, sizes: Sequence[int], *, own: OwnRuns | None, most: int
) -> list[Witness]:
    """What the user's runs, published results and the model say, as far as each has something to say.

    sizes: asked about. most: no curve goes on beyond it.
    """
    measured = _measured(ground, about, sizes, own) if ground.has_samples else None
    modelled = None if ground.plan is None else modelled_witness(ground.plan)
    published = None if ground.forecast is None else published_witness(ground.forecast)
    if published is not None and modelled is not None and ground.forecast is not None:
        modelled = beside_published(modelled, ground.forecast)
        published = carried(published, modelled)
    if published is None and ground.like is not None and modelled is not None:
        published = ground.like.witness(modelled)
        # The model carried them over: what it says by itself of their level would count twice.
        modelled = replace(modelled, is_beside=published is not None and ground.own is None)
    if not ground.has_samples:  # ratios of its times may carry published ones; they are of another length
        modelled = None
    if published is not None and measured is not None and own is not None:
        ran = {each.num_accelerators for each in own.on(ground.nodes.accelerator.slug)}
        published = at_own_level(published, measured, sorted(ran))
    if modelled is not None and ground.plan is not None and ground.own is not None:
        if isinstance(ground.own, OwnFit):
            modelled = fitted_witness(modelled, ground.plan, ground.own)
        else:
            modelled = levelled_witness(modelled, ground.plan, ground.own)
    return [without_beyond(each, most) for each in (measured, published, modelled) if each is not None]


def _measured(ground: Ground, about: Subject, sizes: Sequence[int], own: OwnRuns | None) -> Witness | None:
    """What the user's steps say; beyond the sizes that ran only where the model was not fitted to them."""
    runs = () if own is None else own.on(ground.nodes.accelerator.slug)
    if not runs:
        return None
    learnt = ground.own
    links = None if ground.plan is None else ground.plan.links
    nodes = ground.nodes if links is None else links.on(ground.nodes)
    if learnt is None or ground.plan is None or ground.flat is None:
        wanted: tuple[int, ...] = (*sizes, 2 * sizes[-1])
        return measured_witness(runs, ground.length, wanted, cluster=nodes, workload=about.workload)
    advised = recasts(learnt.steps, ground.plan, ground.flat.ground.model)
    if not isinstance(learnt, OwnFit):
        return measured_witness(
            runs,
            ground.length,
            (*sizes, 2 * sizes[-1]),
            cluster=nodes,
            workload=about.workload,
            recasts=advised,
        )
    # Of other sizes, and of the curve, a model fitted to the runs tells more than the runs by themselves.
    found = measured_witness(runs, ground.length, (), cluster=None, workload=None, recasts=advised)
    return None if found is None else replace(found, curves_s=None, domain=None)

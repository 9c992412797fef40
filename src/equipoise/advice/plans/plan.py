"""The best strategies for a workload on a cluster, and where more accelerators stop paying, by the model."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from equipoise import economics
from equipoise.advice.forecast.answer import LEVEL, Evidence, Terms
from equipoise.advice.plans.choice import chosen, kept, pareto
from equipoise.advice.plans.landscape import Landscape, Sized, surveyed
from equipoise.advice.plans.link_doubt import link_doubt
from equipoise.advice.plans.mixed import rates
from equipoise.advice.plans.modelled import Model
from equipoise.advice.plans.notes import notes
from equipoise.advice.plans.planned import Length, Option, Plan, Question, Rejection
from equipoise.advice.plans.remedy import remedy
from equipoise.advice.plans.seen import seen
from equipoise.advice.plans.setting import Setting, setting
from equipoise.economics import Rates
from equipoise.errors import UsageError
from equipoise.scaling.equilibrium import Equilibrium, default_answer, equilibria
from equipoise.scaling.law import Domain, FloatArray

# Where the number of accelerators is given: sizes so many doublings below and above show what more would do.
_DOUBLINGS_AROUND = 3


def plan(
    question: Question,
    *,
    terms: Terms | None = None,
    scores: pl.DataFrame | None = None,
    model: Model | None = None,
) -> Plan:
    """The recommended strategy, alternatives, the trade-off between time and money, and the equilibria.

    scores: the table `scores`, of which samples against batch are learnt. model: a calibration in place of
    the profile that the question names, or that was measured on the accelerator.
    Raises SpecError for names that are not known, EvidenceError where no global batch can be chosen.
    """
    flat = landscape(question, scores=scores, model=model)
    refuse(question, flat.ground, terms or Terms())
    return answered(surveyed(flat, tried(question, flat.ground)), question, terms=terms, scores=scores)


def landscape(
    question: Question,
    *,
    scores: pl.DataFrame | None = None,
    model: Model | None = None,
    length: Length | None = None,
) -> Landscape:
    """The landscape of a question's workload and accelerator, with nothing searched yet.

    length: of the training, where it is known from another question. Raises as `plan`.
    """
    return Landscape(ground=setting(question, Terms(), scores, model=model, length=length))


def tried(question: Question, ground: Setting) -> frozenset[int]:
    """The sizes that answering a question takes: those asked for, and those about them."""
    return frozenset((*_asked(question, ground), *_around(question)))


def answered(
    found: Landscape,
    question: Question,
    *,
    terms: Terms | None = None,
    scores: pl.DataFrame | None = None,
) -> Plan:
    """The plan that a landscape holds the answer to; nothing is searched.

    found: of the question's workload and accelerator, with the sizes of `tried`. scores: to tell what was
    published of the recommended training.
    Raises UsageError as `refuse`.
    """
    ground = found.ground
    paid = refuse(question, ground, terms or Terms())
    sized = found.at(tried(question, ground))
    fitting = [each for each in sized if each.best is not None]
    by_size = _priced([each.best for each in fitting if each.best], paid)
    drawn_s = np.array([each.drawn_s for each in fitting]).T
    points = _equilibria(by_size, drawn_s, sized[-1].num_accelerators)
    answer = default_answer(points) if points else None
    asked = [each for each in sized if question.asks(each.num_accelerators)]
    best = [each for each in by_size if question.asks(each.num_accelerators)]
    within, refused = kept(question, best)
    taken = chosen(question, within, answer)
    others = _others(ground, sized, taken, paid)
    return Plan(
        question=question,
        workload=ground.workload,
        cluster=replace(ground.cluster, num_accelerators=question.most),
        rates=paid,
        length=ground.length,
        basis=ground.model.basis,
        record=ground.record,
        recommended=taken,
        alternatives=others,
        by_size=by_size,
        drawn_s=drawn_s,
        pareto=pareto(best),
        points=points,
        answer=answer,
        seen=_seen(ground, scores, taken),
        rejected=(*refused, *_rejections(ground, asked)),
        remedy=None if best else remedy(ground, question.most),
        leanest=None if best else _leanest(ground, asked),
        parameters=ground.model.parameters,
        notes=tuple(notes(question, ground, taken, others)),
        num_considered=sum(each.found.num_legal for each in sized),
        num_fitting=sum(each.found.num_fitting for each in sized),
        search_s=found.search_s,
        links=ground.model.links,
        link_doubt=None if taken is None else link_doubt(ground, taken.strategy),
    )


def refuse(question: Question, ground: Setting, terms: Terms) -> Rates:
    """The rates to answer a question by; raises UsageError for what no search can answer."""
    paid = rates(ground.cluster.accelerator, terms)
    if paid.price is None and not math.isinf(question.budget_usd):
        raise UsageError(f"--budget needs a price of {ground.cluster.accelerator.slug}: give --price")
    _refuse_batches_beyond(question, ground)
    return paid


def _priced(options: Sequence[Option], paid: Rates) -> tuple[Option, ...]:
    """The options with their bills by these rates."""
    return tuple(
        replace(each, bill=economics.bill(each.num_accelerators, each.time, paid)) for each in options
    )


def _others(
    ground: Setting, sized: Sequence[Sized], chosen: Option | None, paid: Rates
) -> tuple[Option, ...]:
    """The best of the other layouts on as many accelerators as are recommended."""
    if chosen is None:
        return ()
    found = next(each.found for each in sized if each.num_accelerators == chosen.num_accelerators)
    return _priced(ground.timed([each.strategy for each in found.best[1:]]).options, paid)


def _refuse_batches_beyond(question: Question, ground: Setting) -> None:
    """Refuse a global batch of more samples than the whole training has: no step is made of a part."""
    batch = question.global_batch_samples
    if batch is None or not ground.length.is_whole:
        return
    samples = float(ground.length.samples(np.array([float(batch)]))[0])
    if batch > samples:
        most = f"{math.floor(samples):,}"
        raise UsageError(
            f"--global-batch {batch:,} exceeds the {most} samples of the whole training: give at most that"
        )


def _asked(question: Question, ground: Setting) -> frozenset[int]:
    """The sizes to choose from: those given, or both ends, powers of two, and those of nodes between them."""
    if question.sizes:
        return frozenset(question.sizes)
    steps = range(math.ceil(math.log2(question.most)) + 1)
    sizes = {2**step for step in steps} | {ground.cluster.node_size * 2**step for step in steps}
    between = {each for each in sizes if question.fewest <= each <= question.most}
    return frozenset({question.fewest, question.most} | between)


def _around(question: Question) -> Iterator[int]:
    """Sizes that only show where more stop paying: doublings about a given number, or one beyond the most."""
    if question.fewest < question.most:
        yield 2 * question.most
        return
    for step in range(-_DOUBLINGS_AROUND, _DOUBLINGS_AROUND + 1):
        size = question.most * 2.0**step
        if size.is_integer() and size >= 1:
            yield int(size)


def _equilibria(best: Sequence[Option], drawn_s: FloatArray, largest: int) -> tuple[Equilibrium, ...]:
    """Equilibria of the curve through the best strategy of each size, up to half the largest size tried.

    drawn_s: (n_draws, n_best) equally likely times.
    Assumes that between two sizes tried the logarithm of time is a straight line in that of the size, and
    that where a size has no strategy, or a smaller one is faster, the accelerators beyond that stand idle.
    """
    faster = _ever_faster(best)
    sizes = np.array([best[index].num_accelerators for index in faster], dtype=float)
    if not len(sizes) or largest < 2 * sizes[0]:
        return ()
    logs = np.log(drawn_s[:, faster])

    def curves_s(wanted: FloatArray) -> FloatArray:
        return np.exp([np.interp(np.log(wanted), np.log(sizes), each) for each in logs])

    domain = Domain(smallest=float(sizes[0]), largest=largest / 2.0)
    return tuple(_as_tried(each) for each in equilibria(curves_s, domain, level=LEVEL))


def _ever_faster(best: Sequence[Option]) -> list[int]:
    """Which options, from the smallest size, are faster than all at smaller sizes."""
    found: list[int] = []
    for index, each in enumerate(best):
        if not found or each.time.value < best[found[-1]].time.value:
            found.append(index)
    return found


def _as_tried(point: Equilibrium) -> Equilibrium:
    """The point, whose doubling was tried too."""
    return replace(point, next_doubling=replace(point.next_doubling, extrapolated=False))


def _leanest(ground: Setting, sized: Sequence[Sized]) -> Option | None:
    """Where nothing fits, what needs the least memory on the most accelerators; None if nothing is legal."""
    memories = sized[-1].found.memories
    if memories is None:
        return None
    return ground.timed([memories.leanest]).options[0]


def _rejections(ground: Setting, sized: Sequence[Sized]) -> tuple[Rejection, ...]:
    """Why strategies at the sizes asked fell out: memory first, then what the model forbids."""
    faults: Counter[str] = Counter()
    for each in sized:
        faults += each.found.faults
    too_large = sum(each.found.num_legal - each.found.num_fitting for each in sized)
    nearest = [each.found.memories.nearest_bytes for each in sized if each.found.memories]
    memory = Rejection(
        reason="memory_bytes",
        needed=min(nearest, default=None),
        available=ground.cluster.accelerator.memory_bytes,
        count=too_large,
    )
    illegal = tuple(
        Rejection(reason=reason, needed=None, available=None, count=count)
        for reason, count in faults.most_common()
    )
    return (*((memory,) if too_large else ()), *illegal)


def _seen(ground: Setting, scores: pl.DataFrame | None, chosen: Option | None) -> Evidence | None:
    """What was published of the recommended training; nothing where its length is not the published one."""
    if scores is None or chosen is None or ground.length.batches is None:
        return None
    return seen(scores, ground.workload.slug, chosen)

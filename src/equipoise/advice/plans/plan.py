"""The best strategies for a workload on a cluster, and where more accelerators stop paying, by the model."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from equipoise import economics
from equipoise.advice.forecast.answer import LEVEL, Evidence, Terms
from equipoise.advice.plans.landscape import Landscape, Sized, surveyed
from equipoise.advice.plans.mixed import kinds, rates, speed_shares_gain
from equipoise.advice.plans.modelled import Model
from equipoise.advice.plans.planned import Length, Option, Plan, Question, Rejection
from equipoise.advice.plans.remedy import remedy
from equipoise.advice.plans.seen import seen
from equipoise.advice.plans.setting import Setting, setting
from equipoise.economics import Rates
from equipoise.errors import UsageError
from equipoise.scaling.equilibrium import Equilibrium, default_answer, equilibria
from equipoise.scaling.law import Domain, FloatArray
from equipoise.units import format_percent

# Where the number of accelerators is given: sizes so many doublings below and above show what more would do.
_DOUBLINGS_AROUND = 3
# Estimates of memory miss the rows that state it by up to some percent (benchmarks/accuracy.py).
_NEARLY_FULL = 0.95


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
    kept, refused = _kept(question, best)
    chosen = _chosen(question, kept, answer)
    others = _others(ground, sized, chosen, paid)
    return Plan(
        question=question,
        workload=ground.workload,
        cluster=replace(ground.cluster, num_accelerators=question.most),
        rates=paid,
        length=ground.length,
        basis=ground.model.basis,
        record=ground.record,
        recommended=chosen,
        alternatives=others,
        by_size=by_size,
        drawn_s=drawn_s,
        pareto=pareto(best),
        points=points,
        answer=answer,
        seen=_seen(ground, scores, chosen),
        rejected=(*refused, *_rejections(ground, asked)),
        remedy=None if best else remedy(ground, question.most),
        leanest=None if best else _leanest(ground, asked),
        parameters=ground.model.parameters,
        notes=(
            *ground.length.notes,
            *_notes(question, ground),
            *_mixed_notes(ground, question, chosen),
            *_full_notes(ground, chosen, others),
        ),
        num_considered=sum(each.found.num_legal for each in sized),
        num_fitting=sum(each.found.num_fitting for each in sized),
        search_s=found.search_s,
        links=ground.model.links,
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


def _kept(question: Question, best: Sequence[Option]) -> tuple[list[Option], tuple[Rejection, ...]]:
    """The sizes that keep deadline and budget; what the others would have needed."""
    kept: list[Option] = []
    late: list[float] = []
    dear: list[float] = []
    for each in best:
        usd = each.bill.usd
        if each.time.value > question.deadline_s:
            late.append(each.time.value)
        elif usd is not None and usd > question.budget_usd:
            dear.append(usd)
        else:
            kept.append(each)
    refused = [
        Rejection(reason=reason, needed=min(values), available=limit, count=len(values))
        for reason, values, limit in (
            ("deadline_s", late, question.deadline_s),
            ("budget_usd", dear, question.budget_usd),
        )
        if values
    ]
    return kept, tuple(refused)


def _chosen(question: Question, kept: Sequence[Option], answer: Equilibrium | None) -> Option | None:
    """The size that serves the objective best; fewer accelerators where two serve alike."""
    if not kept:
        return None
    if question.objective == "balance":
        limit = kept[0].num_accelerators if answer is None else answer.num_accelerators
        below = [each for each in kept if each.num_accelerators <= limit]
        return min(below, key=lambda each: each.time.value) if below else kept[0]
    if question.objective == "time":
        return min(kept, key=lambda each: each.time.value)
    if question.objective == "cost":
        return min(kept, key=lambda each: each.bill.accelerator_hours)
    return min(kept, key=lambda each: each.bill.energy_j or each.bill.accelerator_hours)


def pareto(options: Sequence[Option]) -> tuple[Option, ...]:
    """Of the options, those that no other is as good as in time, money and energy and better in one."""
    worth = {id(each): _worth(each) for each in options}
    front = [
        each
        for each in options
        if not any(_beats(worth[id(other)], worth[id(each)]) for other in options if other is not each)
    ]
    return tuple(sorted(front, key=lambda each: each.time.value))


def _worth(option: Option) -> tuple[float, ...]:
    hours = option.bill.accelerator_hours
    usd, energy_j = option.bill.usd, option.bill.energy_j
    return (option.time.value, hours if usd is None else usd, hours if energy_j is None else energy_j)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


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


def _mixed_notes(ground: Setting, question: Question, chosen: Option | None) -> Iterator[str]:
    """Of unequal accelerators: what sharing out by speed would gain."""
    if chosen is None or len(kinds(ground.cluster.accelerator)) == 1:
        return
    gain = speed_shares_gain(question, ground.cluster, ground.load, ground.model.parameters, chosen)
    yield (
        "Equal shares go at the pace of the slower accelerator; samples shared out by speed would make a "
        f"step at most {format_percent(round(gain, 3))} shorter."
    )


def _full_notes(ground: Setting, chosen: Option | None, others: Sequence[Option]) -> Iterator[str]:
    """Where the memory is all but full: what to take if the estimate of it is a little too low."""
    held = ground.cluster.accelerator.memory_bytes
    if chosen is None or held is None or chosen.memory_bytes <= _NEARLY_FULL * held:
        return
    share = format_percent(round(chosen.memory_bytes / held, 3))
    lean = [each for each in others if each.memory_bytes <= _NEARLY_FULL * held]
    instead = f"; else take {lean[0].strategy.text()!r}" if lean else ""
    yield f"It fills {share} of the memory, which estimates miss by some percent: try it first{instead}."


def _notes(question: Question, ground: Setting) -> Iterator[str]:
    """What the answer does not show by itself."""
    length, batch = ground.length, question.global_batch_samples
    if length.batches is None and batch is None:
        yield (
            "The global batch is the usual one of language models, 4 Mi tokens: no published result tells "
            "how many more samples a larger one needs. Give --global-batch for another."
        )
    elif length.batches is None and length.is_whole:
        yield "The number of samples is taken to be the same at every global batch."
    elif length.batches and batch and not length.batches[0] <= batch <= length.batches[1]:
        yield (
            f"A global batch of {batch:,} lies outside those of published results, {length.batches[0]:,} to "
            f"{length.batches[1]:,}: its samples are an extrapolation."
        )
    if question.objective in {"cost", "energy"} and math.isinf(question.deadline_s):
        yield f"Without --deadline the least {question.objective} is nearly always at the fewest that fit."
    if ground.rates.price is None:
        yield f"No price of {ground.cluster.accelerator.slug} is known: give --price."

"""The first screen of an answer: the recommendation, its time and cost, and what was chosen by default."""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

from equipoise.decide.answer import (
    ACCELERATORS,
    LIKELY,
    Alternative,
    Answer,
    Candidate,
    MemoryUse,
    SaferStrategy,
    beside_balance_words,
)
from equipoise.perfmodel.generation import RolloutSplit
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    LEAST_ROWS,
    Block,
    Code,
    Facts,
    Labelled,
    Span,
    Strong,
    bullets,
    facts,
    more_note,
    note,
    prose,
)
from equipoise.report.format import TIMES, capital, count, listed, printable, sentence, written_in
from equipoise.report.pages.answer.candidates import (
    GRADES,
    alternative_spans,
    chip_of,
    flip_words,
    groups,
    offer_title,
    queue_within,
    sizes_table,
    takes,
    unpriced_blocks,
)
from equipoise.report.pages.answer.costs import (
    buying_words,
    larger,
    money_spans,
    named_beside,
    noticed_start_s,
    paid_for,
    values_around,
)
from equipoise.report.pages.answer.refusal import (
    illegal_headline,
    is_of_memory,
    no_room_headline,
    refusal_blocks,
)
from equipoise.scaling.equilibrium import default_answer, returns_words
from equipoise.units import MINUTE_S, format_count, format_percent, format_si, format_stated, plural

_LEAST_GOODPUT_SHOWN: Final = 0.99
# Parts of a default choice that only the list of assumptions shows: hints such as "(--precision for others)",
# and sources.
_HINT: Final = re.compile(r" \(--[^)]*\)|(?<=as published) \([^)]*\)")
# Hosts on the market have at most 16 accelerators, or 64 if a rack is one host.
_MOST_OF_ONE_HOST: Final = 64
# Ratio from which two sizes count as different.
_OTHER_AMOUNT: Final = 2.0
_SAME_TOKENS: Final = 0.01
# For one screen: systems named in a line, systems on which nothing fits, rows of sizes, and rows of systems
# if the systems for rent are compared.
_MOST_NAMED: Final = 3
_MOST_UNFIT: Final = 2
_MOST_SIZES: Final = 5
_MOST_SYSTEMS: Final = 8
_MOST_ALTERNATIVES: Final = 2
_MOST_NOTES: Final = 2


def about(answer: Answer) -> str:
    """The question. A single system is named in the headline, and many systems in the tables."""
    names = [chip_of(each.title) for each in answer.systems]
    where = listed(names) if len(names) <= _MOST_NAMED else f"{len(names)} systems"
    on = f" on {where}" if len(names) > 1 or answer.recommended is None else ""
    return sentence(f"{answer.workload.title}{on}, to {answer.work}")


def title(answer: Answer) -> str:
    """The headline, preceded by the workload."""
    return f"{printable(answer.workload.title)}: {headline(answer)}"


def absence(answer: Answer) -> str:
    """Why sections of the page are omitted."""
    return "for lack of data" if answer.refusal is None else "as nothing is recommended"


def closing(answer: Answer) -> tuple[str, ...]:
    """A caveat that applies to every answer, and the version of the data."""
    return (
        "Times that nobody has measured are predictions: try the first steps before you book machines.",
        f"Dataset {printable(answer.dataset)}.",
    )


def written(answer: Answer) -> AbstractContextManager[None]:
    """Context for amounts in the question's currency, with enough digits to show which keep its limits."""
    usd = (each.usd.value for each in answer.candidates if each.usd is not None)
    question = answer.question
    return written_in(
        question.own_currency, limit_usd=question.budget_usd, usd=usd, limit_s=question.within_s
    )


def headline(answer: Answer) -> str:
    """The recommendation, or that nothing fits or meets the limits; whether the time is unmeasured."""
    best = answer.recommended
    if best is None:
        if answer.refusal is None:
            return "No time can be estimated"
        return no_room_headline(answer) or illegal_headline(answer) or "No configuration meets your limits"
    nodes = f" ({plural(best.num_nodes, _node(answer))})" if best.num_nodes is not None else ""
    guess = f" ({GRADES[best.grade][0]})" if best.grade == "priors" else ""
    return f"Take {offer_title(best)}{nodes}: {takes(best)}{guess}"


def _node(answer: Answer) -> str:
    """The word for a node of the system: accelerators of many hosts on one torus form a pod."""
    nodes = answer.system.cluster
    is_pod = nodes is not None and nodes.topology == "torus" and nodes.node_size > _MOST_OF_ONE_HOST
    return "pod" if is_pod else "node"


def _facts(answer: Answer, best: Candidate, *, is_brief: bool, is_tight: bool = False) -> Iterator[Labelled]:
    yield "Time", tuple(_time(answer, best))
    yield "Money", tuple(money_spans(answer, best))
    yield from paid_for(answer, best, is_brief=is_brief)
    energy, mass = amounts.usable(best.energy_j), amounts.usable(best.carbon_kg)
    # With several systems, their rows need the lines, except the line that the question is about.
    needs_rows = is_brief and (is_tight or len(answer.systems) >= _MOST_NAMED)
    if energy is not None and not (needs_rows and answer.question.objective != "energy"):
        carbon = "" if mass is None else f", {amounts.mass(mass.value)} of CO2"
        yield "Energy", f"{amounts.energy(energy.value)}{carbon}"
    if best.strategy is not None:
        text, shown = best.strategy.text(), (best.strategy.implementation, best.strategy.precision)
        how = ", ".join(each for each in shown if f"={each}" not in text)
        yield ("Strategy", (Code(sentence(text)), f"; {how}" if how else ""))
    elif best.user_run is not None:
        run = best.user_run
        rate = f"{format_si(run.samples_per_s)} samples/s at batch {count(run.global_batch_samples)}"
        yield "Strategy", (sentence(run.strategy or "one device"), f", as measured: {rate}")
    yield from _step_facts(answer, best, is_brief=is_brief)
    chosen = "; ".join(_chosen(answer, best))
    if chosen:
        yield "Chosen", capital(sentence(chosen))
    step = larger(answer)
    if step is not None:
        yield "Larger?", step
    for first in answer.doubts:
        yield first.label.removesuffix(": "), sentence(first.words)
    if not (is_brief and answer.question.compares_rentable):
        # On one screen, charges, rollouts or a published training replace the line on returns if there is
        # one on the larger size; a published training only if that line states whose limit applies.
        is_published = answer.limited_by is not None and _published_words(answer, best) is not None
        takes_line = bool(best.charges or answer.rollout) or is_published
        is_said = is_brief and takes_line and step is not None
        yield from _trade_offs(
            answer,
            best,
            is_brief=is_brief,
            with_returns=not (needs_rows or is_said),
            with_hours=not (is_brief and is_tight),
        )
    yield "Evidence", capital(evidence_words(answer, best))


def _trade_offs(
    answer: Answer, best: Candidate, *, is_brief: bool, with_returns: bool, with_hours: bool
) -> Iterator[Labelled]:
    """Where returns diminish, the value of an hour, and the return of buying."""
    if with_returns:
        beside = None
        if answer.question.objective == "balance":
            beside = beside_balance_words(best, answer.system.balance_size, answer.candidates)
        words = f"{returns_words(answer.equilibria, subject='they')}{_among_words(answer, best)}"
        yield "Returns", capital(f"{words}; {beside}" if beside else words)
    hours = values_around(answer, best)
    # On one screen, charges take its line, unless the question states the value of an hour.
    is_asked = answer.question.objective == "value_of_time"
    is_about_money = answer.question.objective != "energy" and (is_asked or not best.charges)
    is_shown = is_asked or (with_hours and (is_about_money or not is_brief))
    if hours is not None and is_shown:
        yield "If time", hours
    if answer.ownership is not None:
        yield "Buying", buying_words(answer.ownership)
    for each in answer.notes_of("not_bought"):
        yield "Buying", f"Not compared: {sentence(each.words)}"


def _among_words(answer: Answer, best: Candidate) -> str:
    """The sizes considered for diminishing returns, if the question states sizes."""
    asked = answer.question.sizes
    is_stated = asked is not None or answer.question.num_nodes is not None
    if not is_stated or not answer.equilibria or not default_answer(answer.equilibria).is_found:
        return ""
    if asked is not None and len(asked.listed) > 1:
        return f", among the sizes of {asked}"
    return f", among doublings of {count(best.num_accelerators)}"


def _step_facts(answer: Answer, best: Candidate, *, is_brief: bool) -> Iterator[Labelled]:
    if best.global_batch_samples is not None:
        yield "Batch", "; ".join(_batch(answer, best, is_brief=is_brief))
    if answer.rollout is not None:
        yield "Rollouts", _rollout_words(answer.rollout)


def _rollout_words(split: RolloutSplit) -> str:
    """Time for generation and training per step as modelled, and a split into two pools."""
    engine = f"engines of {count(split.ranks_per_engine)}"
    whole = (
        f"generation {amounts.duration(split.generation_s)} ({engine}), then training "
        f"{amounts.duration(split.training_s)} per step as modelled"
    )
    if split.pooled_step_s is None or split.num_generating is None or split.num_training is None:
        return f"{whole}; two separate pools do not fit"
    ratio = split.shared_step_s / split.pooled_step_s
    return (
        f"{whole}. Two pools ({count(split.num_generating)} + {count(split.num_training)}), "
        f"one step behind: {ratio:.2f}x as fast"
    )


def _chosen(answer: Answer, best: Candidate) -> Iterator[str]:
    """Defaults chosen where the question leaves a choice open, except those that other lines show."""
    strategy = best.strategy
    shown = [] if strategy is None else [f"precision {strategy.precision}", f"{strategy.implementation} code"]
    shown.append(f"software {answer.system.software}")
    for each in answer.chosen_for_you:
        words = _HINT.sub("", each).rstrip(".")
        if words not in shown:
            yield words


def evidence_words(answer: Answer, best: Candidate) -> str:
    """The grade of the evidence, and the software that was measured if that is known."""
    software, factor = answer.system.software, answer.system.time_per_step_time
    full = f"{GRADES[best.grade][1]}{_conversion_words(answer, best)}"
    if best.grade == "priors":
        return "; ".join(filter(None, (full, _step_words(answer))))
    is_of_steps = best.grade == "measured" and answer.system.trainings is None
    if is_of_steps and factor is not None and factor != 1.0:
        return f"{full}, their step time \u00d7 {factor:.2f}"
    if software is None or best.grade != "calibrated":
        return full
    if answer.system.runs_on is not None:
        return f"model of {software}, scaled by your runs on {answer.system.runs_on}"
    return f"model of {software}{_model_words(answer, best)}"


def _model_words(answer: Answer, best: Candidate) -> str:
    """What supplements the model: a published training of the same model, or the factor derived from such."""
    factor = answer.system.time_per_step_time
    published = None if answer.question.is_to_target else _published_words(answer, best)
    if published is not None:
        return f"; published {published}"
    if factor is None or factor == 1.0:
        return f", step time only; {_nearest_words(answer, best)}"
    if answer.workload.rollout is not None:
        return f", its step time \u00d7 {factor:.2f}, as in published steps"
    of_model = answer.system.time_per_step_time_of
    if of_model is not None:
        return f", its step time \u00d7 {factor:.2f}, as in published {of_model}"
    return f", its step time \u00d7 {factor:.2f}; {_nearest_words(answer, best)}"


def _nearest_words(answer: Answer, best: Candidate) -> str:
    """A published step of the same model; without one, that no run of this kind or training is known."""
    trained = answer.workload.trained if best.strategy is None else best.strategy.trained
    is_unlike = answer.workload.is_unlike_published(trained)
    lacks = "no published run of its kind" if is_unlike else "no run of this training"
    return _step_words(answer) or lacks


def _conversion_words(answer: Answer, best: Candidate) -> str:
    """A note if all the user's runs state their precision and none is that of the answer; else empty."""
    if best.grade != "measured" or best.strategy is None:
        return ""
    own, precision = answer.system.trainings, best.strategy.precision
    ran = {each.precision for each in answer.system.user_runs} if own is None else {own.precision}
    stated = sorted(each for each in ran if each is not None)
    is_converted = stated and len(stated) == len(ran) and precision not in ran
    return f" in {listed(stated)}, converted to {precision}" if is_converted else ""


def _published_words(answer: Answer, best: Candidate) -> str | None:
    """Accelerator-hours of a published pretraining of the same model and chip, relative to the answer's.

    If they are outside the answer's range, also what differs between the two. None if none is published.
    """
    from equipoise.decide.explanation.published_nearby import published_itself  # noqa: PLC0415 - of few answers

    found = published_itself(answer)
    if found is None:
        return None
    number = found.num_accelerators
    on = f" on {count(number)}" if number is not None else ""
    tokens = answer.question.training_tokens or found.tokens
    per = "" if abs(tokens / found.tokens - 1.0) < _SAME_TOKENS else " per token"
    words = f"{found.title}{on}: {1.0 / found.answer_ratio:.2g}x this answer's accelerator-hours{per}"
    planned = None if best.strategy is None else best.strategy.precision
    differs = [f"in {found.precision}, not {planned}"] if found.precision not in {None, planned} else []
    if found.is_in_range:
        return f"{words}{', ' if differs else ''}{listed(differs)}"
    if number is not None and max(number, best.num_accelerators) >= _OTHER_AMOUNT * min(
        number, best.num_accelerators
    ):
        differs.append(f"not on {count(best.num_accelerators)}")
    return f"{words}, {_side_words(found.answer_ratio)} ({listed(differs or ['other software'])})"


def _step_words(answer: Answer) -> str | None:
    """The time per sample of a published step of the model, relative to the answer; None without one."""
    from equipoise.decide.explanation.published_nearby import published_step  # noqa: PLC0415 - of few answers

    found = None if answer.question.is_to_target else published_step(answer)
    if found is None:
        return None
    outside = "" if found.is_in_range else f", {_side_words(found.answer_ratio)}"
    ratio = f"{1.0 / found.answer_ratio:.2g}x this answer's time per sample"
    form = "" if found.other_form is None else f" \N{MULTIPLICATION SIGN} {chip_of(found.other_form)}"
    return f"a published step on {count(found.num_accelerators)}{form}: {ratio}{outside}"


def _side_words(answer_ratio: float) -> str:
    """On which side of the answer's range a published value is. answer_ratio: the answer over it."""
    return f"{'below' if answer_ratio > 1.0 else 'above'} its range"


def _time(answer: Answer, best: Candidate) -> Iterator[Span]:
    time = best.known_time_s
    yield Strong(amounts.duration(time.value))
    yield f" ({amounts.duration_range(time)}, {format_percent(time.level)} range)"
    if noticed_start_s(answer, best):
        yield f", after {amounts.duration(answer.question.start_s)} of start-up"
    elif time.value < MINUTE_S:
        yield "; start-up takes longer"  # machines, data, weights and compiling come before the first step
    if best.goodput is not None and best.goodput.value < _LEAST_GOODPUT_SHOWN:
        yield f", goodput {amounts.share(best.goodput.value)}"
    for each in best.constraints:
        if each.name == "deadline_s" and each.probability is not None:
            chance = amounts.probability(each.probability)
            yield f"; deadline {format_stated(each.limit)}{queue_within(answer.question)}: {chance} chance"
            yield from _likelier_size(answer, best, each.probability)


def _likelier_size(answer: Answer, best: Candidate, chance: float) -> Iterator[str]:
    """The smallest larger size that likely keeps a deadline which the choice may miss.

    Omitted with several systems, because their rows need the line.
    """
    if chance >= LIKELY or len(answer.systems) >= _MOST_NAMED:
        return
    likely = [
        (each.num_accelerators, limit.probability)
        for each in answer.candidates
        if each.group == best.group and each.num_accelerators > best.num_accelerators
        for limit in each.constraints
        if limit.name == "deadline_s" and limit.probability is not None and limit.probability >= LIKELY
    ]
    if likely:
        size, found = min(likely)
        yield f", {amounts.probability(found)} on {count(size)}"


def _batch(answer: Answer, best: Candidate, *, is_brief: bool) -> Iterator[str]:
    batch = best.global_batch_samples
    assert batch is not None
    step = "" if best.step_s is None else f" per step of {amounts.duration(best.step_s.value)}"
    factor = None if answer.question.is_to_target else answer.system.time_per_step_time
    if best.step_s is not None and factor is not None and factor != 1.0 and answer.rollout is None:
        alone = amounts.duration(best.step_s.value / factor)
        published = answer.system.time_per_step_time_of
        like = "whole runs" if published is None else f"published {published}"
        step += f" ({factor:.2f} {amounts.TIMES} {alone}, as in {like})"
    each = answer.workload.samples_per_example
    pairs = f" ({format_count(batch // each)} pairs)" if each > 1 else ""
    yield f"{format_count(batch)} {'sample' if batch == 1 else 'samples'}{pairs}{step}"
    if best.mfu is not None:
        yield f"MFU {amounts.share(best.mfu)} of the {best.mfu_precision} peak"
    if best.memory is not None:
        yield _memory(best.memory)
    # On one screen, other systems or the line on rollouts need the room.
    has_room = not is_brief or (len(answer.systems) == 1 and answer.rollout is None)
    if answer.safer is not None and has_room:
        yield _safer_words(best, answer.safer)


def _memory(planned: MemoryUse) -> str:
    """The planned memory per accelerator, and the probability that it fits unless that is near certain."""
    held = planned.available_bytes
    if held is None:
        return f"{amounts.memory(planned.needed_bytes)} memory"
    needed, whole = amounts.apart(planned.needed_bytes, held, "B")
    chance = planned.fits_probability
    if chance is None or chance >= LIKELY:
        return f"{needed} of {whole} memory"
    return f"{needed} of {whole}, {amounts.probability(chance)} likely to fit"


def _safer_words(best: Candidate, safer: SaferStrategy) -> str:
    """How to change the recommended strategy if it does not fit, and the time after the change."""
    assert best.strategy is not None
    time_s = best.known_time_s.value
    ours, theirs = amounts.duration(time_s), amounts.duration(safer.time_ratio * time_s)
    takes = ", as fast" if theirs == ours else f": {theirs}"
    return f"else {best.strategy.changes_to(safer.strategy)}{takes}"


def answer_blocks(answer: Answer, *, is_brief: bool = False, is_tight: bool = False) -> tuple[Block, ...]:
    """The figures of the recommended candidate, and the lines that explain this size.

    is_tight: without the lines that may be replaced by others.
    """
    best = answer.recommended
    return () if best is None else (facts(_facts(answer, best, is_brief=is_brief, is_tight=is_tight)),)


def around_choice(answer: Answer, num_rows: int) -> tuple[Candidate, ...]:
    """At most `num_rows` candidates: the recommended one, the best of other systems, neighbouring sizes.

    If the question leaves the system open: for each other system the fewest accelerators that keep the
    limits, for the `_MOST_SYSTEMS` cheapest of these. Otherwise at most `_MOST_SIZES` rows.
    """
    best = answer.recommended
    if best is not None and answer.question.compares_rentable:
        kept = [each for each in answer.candidates if each.time_s is not None and not each.broken]
        fewest = [members[0] for members in groups(kept).values()]
        fewest.sort(key=lambda each: math.inf if each.usd is None else each.usd.value)
        others = [each.id for each in fewest if each.group != best.group]
        chosen = {best.id, *others[: min(num_rows - 1, _MOST_SYSTEMS)]}
        return tuple(each for each in answer.candidates if each.id in chosen)
    num_rows = min(num_rows, max(_MOST_SIZES, len(answer.offers)))
    if best is None:
        refusal = answer.refusal
        shown = () if refusal is None else (refusal.cheapest, refusal.fastest)
        chosen = {each.id for each in shown if each is not None}
        chosen |= {
            each.candidate for each in (() if refusal is None else refusal.relaxations) if each.candidate
        }
    else:
        others = [each.candidate for each in answer.offers if each.group != best.group]
        near = sorted(
            (each for each in answer.listed if each.group == best.group),
            key=lambda each: _distance(each, best),
        )
        # Candidates that the lines above mention come first.
        named = named_beside(answer, best)
        ordered = dict.fromkeys((best.id, *others, *named, *(each.id for each in near)))
        chosen = set([*ordered][:num_rows])
    return tuple(each for each in answer.candidates if each.id in chosen)[:num_rows]


def _distance(each: Candidate, best: Candidate) -> float:
    ratio = each.num_accelerators / best.num_accelerators
    return max(ratio, 1.0 / ratio)


def screen(answer: Answer, num_rows: int) -> tuple[Block, ...]:
    """The answer on one screen: figures, sizes around the choice, the nearest flip or the alternatives."""
    is_tight = num_rows < LEAST_ROWS
    shown = around_choice(answer, max(num_rows, LEAST_ROWS))
    alternatives = [each for each in answer.alternatives if not _is_shown(answer, each)][:_MOST_ALTERNATIVES]
    change: Block = bullets(alternative_spans(answer, each) for each in alternatives)
    # The effect of more accelerators is shown at "Larger?".
    flip = next((each for each in answer.flips if each.unit != ACCELERATORS), None)
    if flip is not None:
        change = prose(Strong("Would change it: "), f"{flip_words(answer, flip)}.")
    # If another system is recommended, a system on which nothing fits has its own line below.
    has_no_room = answer.refusal is not None and is_of_memory(answer)
    is_said = answer.refusal is None or has_no_room
    # Without a recommendation, no other line mentions evidence that was rejected or looks wrong.
    why = answer.notes_of(
        "not_compared",
        *(() if is_said else ("nothing_fits",)),
        *(("not_used", "check") if answer.recommended is None else ()),
    )[:_MOST_NOTES]
    further = [each for each in answer.notes if each not in why]
    if has_no_room:  # the first lines contain what such notes say
        further = [each for each in further if each.kind != "nothing_fits"]
    known = {each.system for each in answer.candidates}
    others = known - {each.system for each in shown} if len(shown) > 1 else ()
    unfit = [chip_of(each.title) for each in answer.systems if each.name not in known and not answer.refusal]
    where = listed(unfit) if len(unfit) <= _MOST_UNFIT else f"{len(unfit)} systems"
    figures = answer_blocks(answer, is_brief=True, is_tight=is_tight)
    unshown = _left_out(answer, figures)
    strategies = answer.system.best_strategies
    counted = ((len(answer.candidates), "candidate"), "how to run it" if answer.is_launched else "")
    return (
        *(refusal_blocks(answer) if answer.recommended is None else ()),
        *(note(sentence(str(each))) for each in why),
        *figures,
        *((sizes_table(answer, shown, is_brief=True, is_tight=is_tight),) if len(shown) > 1 else ()),
        *((prose(f"Nothing fits on {where}: see the notes."),) if unfit else ()),
        *(() if answer.refusal else _sizes_that_do_not_fit(answer, known)),
        *unpriced_blocks(answer),
        *(() if is_tight else (change,)),
        more_note(
            unshown,
            plural(len(strategies), "strategy", "strategies") if answer.question.states_strategies else "",
            (len(others), "other system"),
            (len(further), "note"),
            (0 if unshown else len(answer.reasons), "reason"),  # one line has no room for both
            *(() if unshown and others else counted),  # nor for these
        ),
    )


def _left_out(answer: Answer, shown: Sequence[Block]) -> str:
    """The labels of the figures that the short form omits. shown: the blocks of the short form."""
    labels = {label for block in shown if isinstance(block, Facts) for label, _ in block.items}
    every = () if answer.recommended is None else _facts(answer, answer.recommended, is_brief=False)
    return ", ".join(label for label, _ in every if label not in labels)


def _sizes_that_do_not_fit(answer: Answer, known: Collection[str]) -> Iterator[Block]:
    """The sizes in the question on which nothing runs. known: systems on which other sizes do run."""
    asked = answer.question.sizes
    if asked is None or asked.is_range:
        return
    listed_sizes = [
        (each, one)
        for each in answer.systems
        if each.name in known
        for one in each.unfit
        if one.num_accelerators in asked.listed
    ]
    for words, is_of_room in (("Does not fit", True), ("No strategy", False)):
        unfit: dict[str, list[int]] = {}
        for each, one in listed_sizes:
            if (one.needed_bytes is not None) is is_of_room:
                unfit.setdefault(each.title, []).append(one.num_accelerators)
        if len(unfit) > _MOST_UNFIT:
            all_sizes = sorted({size for sizes in unfit.values() for size in sizes})
            some = f"on some of {len(answer.systems)} systems"
            yield prose(f"{words}: {listed([*map(count, all_sizes)])} {some}.")
        elif unfit:
            named = (
                f"{listed([*map(count, sizes)])} {TIMES} {chip_of(title)}" for title, sizes in unfit.items()
            )
            yield prose(f"{words}: {'; '.join(named)}.")


def _is_shown(answer: Answer, each: Alternative) -> bool:
    """Whether other lines already show when an alternative is better, or that it never is."""
    valued = {value.candidate for value in answer.time_values}
    one, best = each.candidate, answer.recommended
    is_same = best is not None and one.group == best.group
    is_cheaper = best is not None and best.usd and one.usd and one.usd.value <= best.usd.value
    return one.id in valued or bool(one.broken) or bool(valued and (is_same or is_cheaper))

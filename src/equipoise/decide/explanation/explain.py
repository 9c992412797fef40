"""What accompanies a recommendation: offers of each system, alternatives, measurements to make, notes."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from msgspec.structs import replace

from equipoise.decide.answer import (
    ACCELERATORS,
    Alternative,
    Candidate,
    Flip,
    Measurement,
    SystemAnswer,
    SystemOffer,
    price_that_wins,
)
from equipoise.decide.assessment import Assessment, Inputs, is_batch_beyond_published
from equipoise.decide.candidates import SystemCandidates
from equipoise.decide.collect import is_unpriced
from equipoise.decide.combine import distance_log_sd, nearest_size
from equipoise.decide.estimators.published import beaten_at_size
from equipoise.decide.evidence import LEAST_LOG_SD, Group
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.systems import RequestedSystem, kinds
from equipoise.decide.select import (
    Figures,
    Rule,
    choose,
    excess_of,
    figures_of,
    is_feasible,
    objective_value,
    relaxations,
    time_values,
    timed_figures,
)
from equipoise.decide.strategies.size_searches import (
    SEARCH_CACHE,
    StrategySearches,
    beyond_hosts,
    may_offload,
    moves_weights,
    offloads_weights,
    on_host,
    units_beyond,
)
from equipoise.decide.strategies.strategy_search import Problem
from equipoise.decide.user_evidence.fit import UserLevel
from equipoise.intervals import DEVIATE, LEVEL, Interval, log_sd, with_log_sd
from equipoise.notes import Note
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.machine import machine
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.strategy import ALL_OFFLOADED, PRECISIONS, Strategy
from equipoise.stats import by_key
from equipoise.units import HOUR_S, format_duration, format_percent, listed, plural, tenths, whole_percent

NUM_ALTERNATIVES: Final = 4
NUM_STEPS: Final = 50
# A measurement is suggested if it narrows the range at least to this fraction.
_LEAST_NARROWING: Final = 0.9
# Estimates of memory are off by some percent from published figures (benchmarks/accuracy.py).
_NEARLY_FULL: Final = 0.95
# Interruptions that take less than this share of the time are not mentioned.
_NOTICED_LOSS: Final = 0.02


def system_offers(
    candidates: Sequence[Candidate], best: Candidate | None, rule: Rule, balance: Mapping[Group, int | None]
) -> tuple[SystemOffer, ...]:
    """The candidate that each system on each kind of terms offers, by the rule of the selection, best first.

    Each is what would be chosen if those before it were not available. balance: by system and terms, the size
    beyond which more stops paying, which the system offers under the objective `balance`. Systems that keep
    no limits come last, the closest to the limits first.
    """
    by_id = {each.id: each for each in candidates}
    groups = by_key((each.group, each) for each in timed_figures(candidates))
    able: list[Candidate] = []
    while taken := choose([each for members in groups.values() for each in members], rule, balance):
        able.append(by_id[taken])
        del groups[able[-1].group]
    unable = [min((by_id[each.id] for each in members), key=_excess) for members in groups.values()]
    return tuple(_offer(each, best, rule) for each in (*able, *sorted(unable, key=_excess)))


def _compared_figures(each: Candidate, rule: Rule) -> Figures:
    """The figures of a candidate as the rule compares them."""
    return figures_of(each).with_start(rule.start_s)


def _excess(each: Candidate) -> tuple[float, int, str]:
    """Sort key: distance of a candidate from the limits that it breaks, then size and id."""
    steps = relaxations(each)
    return (math.inf if steps is None else excess_of(steps), each.num_accelerators, each.id)


def _offer(each: Candidate, best: Candidate | None, rule: Rule) -> SystemOffer:
    return SystemOffer(
        candidate=each.id,
        system=each.system,
        terms=each.terms,
        is_feasible=each.feasible,
        grade=each.grade,
        break_even_usd_per_hour=(
            None
            if best is None or not each.feasible
            else _break_even_usd_per_hour(_compared_figures(best, rule), _compared_figures(each, rule))
        ),
    )


def _break_even_usd_per_hour(best: Figures, other: Figures) -> float | None:
    """The value of an hour at which two candidates cost the same; None if one is no worse in time and money.

    Source: usd + value x hours, equal for both.
    """
    if best.usd is None or other.usd is None:
        return None
    saved_h = (best.time_s - other.time_s) / HOUR_S
    more_usd = other.usd - best.usd
    return more_usd / saved_h if saved_h * more_usd > 0.0 else None


def alternatives(
    candidates: Sequence[Candidate],
    best: Candidate,
    rule: Rule,
    offered: Sequence[SystemOffer],
    flips: Sequence[Flip],
) -> tuple[Alternative, ...]:
    """The best other candidates by the objective: neighbouring sizes of the same system, offers of others.

    flips: changes of the choice, for the prices at which another candidate is chosen. Only candidates that
    would be chosen at some value of an hour, price or limit, or without the recommended system.
    """
    figures = {each.id: each for each in timed_figures(candidates) if each.id != best.id}
    others = [each for each in offered if each.group != best.group]
    chosen = dict.fromkeys(each.candidate for each in others if each.is_feasible)
    same = [each for each in figures.values() if each.group == best.group]
    smaller = [
        each for each in same if each.num_accelerators < best.num_accelerators and is_feasible(each, rule)
    ]
    larger = [each for each in same if each.num_accelerators > best.num_accelerators]
    if smaller:
        chosen[max(smaller, key=lambda each: each.num_accelerators).id] = None
    if larger:
        chosen[min(larger, key=lambda each: each.num_accelerators).id] = None
    by_id = {each.id: each for each in candidates}
    ordered = sorted(chosen, key=lambda name: _distance(figures[name], best, rule))
    feasible = [figures_of(best), *(each for each in figures.values() if is_feasible(each, rule))]
    next_best = next((name for name in ordered if by_id[name].system != best.system), None)
    without = (
        {} if next_best is None else {next_best: Alternative(candidate=by_id[next_best], case="without")}
    )
    found = (_alternative(best, by_id[name], rule, feasible, flips) or without.get(name) for name in ordered)
    return tuple(islice((each for each in found if each is not None), NUM_ALTERNATIVES))


def _distance(each: Figures, best: Candidate, rule: Rule) -> float:
    """Ratio of a candidate's objective value to the best one's; `balance` uses time if a price is missing."""
    objective = rule.objective
    if objective == "balance" and (each.usd is None or best.usd is None):
        objective = "time"
    ours = objective_value(_compared_figures(best, rule), objective, rule.value_of_time_usd_per_hour)
    theirs = objective_value(each.with_start(rule.start_s), objective, rule.value_of_time_usd_per_hour)
    return theirs / ours if math.isfinite(theirs) and ours > 0.0 else math.inf


# A range whose ends are closer may have both written alike, and is not shown.
_MIN_RANGE_RATIO: Final = 1.01


def _alternative(
    best: Candidate, other: Candidate, rule: Rule, feasible: Sequence[Figures], flips: Sequence[Flip]
) -> Alternative | None:
    """When another candidate would be chosen; None if never. feasible: all that keep the limits."""
    if any(each.to == other.id and each.unit == ACCELERATORS for each in flips):
        return Alternative(candidate=other, case="size")
    saved_h = (best.known_time_s.value - other.known_time_s.value) / HOUR_S
    ours, theirs = figures_of(best), figures_of(other)
    is_priced = ours.usd is not None and theirs.usd is not None
    if not is_priced:
        ours, theirs, *feasible = (each.in_accelerator_hours() for each in (ours, theirs, *feasible))
    more = (theirs.with_start(rule.start_s).usd or 0.0) - (ours.with_start(rule.start_s).usd or 0.0)
    if saved_h > 0.0 >= more:
        return Alternative(candidate=other, case="faster", is_priced=is_priced)
    is_worse = saved_h <= 0.0 <= more
    low, high = (None if is_worse else _hour_values(theirs, feasible, rule)) or (None, None)
    if (low, high) != (None, None) and not (low and high and high <= _MIN_RANGE_RATIO * low):
        return Alternative(candidate=other, case="hour", low=low, high=high, is_priced=is_priced)
    price = price_that_wins(other.id, flips)
    return None if price is None else Alternative(candidate=other, case="price", high=price)


def _hour_values(
    other: Figures, feasible: Sequence[Figures], rule: Rule
) -> tuple[float | None, float | None] | None:
    """The range of the value of an hour in which a candidate costs least, time included; None if empty.

    Deadline, budget and the candidate's own size limit are ignored. An end is None if unbounded.
    """
    unlimited = replace(rule, deadline_s=math.inf, spend_usd=math.inf)
    found = time_values([*feasible, other._replace(is_within_size=True)], unlimited)
    place = next((place for place, each in enumerate(found) if each.candidate == other.id), None)
    if place is None:
        return None
    ends = (*(each.from_usd_per_hour for each in found[1:]), None)
    return ends[place - 1] if place else None, ends[place]


def to_measure(inputs: Inputs, assessment: Assessment, best: Candidate) -> Iterator[Measurement]:
    """Measurements of steps on one node and at the recommended size, if they would narrow the range."""
    if best.time_s is None:
        return
    node = 1 if assessment.cluster is None else assessment.cluster.node_size
    measured = {
        source.num_accelerators
        for each in best.estimates
        if each.estimator == "measured"
        for source in each.sources
    }
    for size in sorted({min(node, best.num_accelerators), best.num_accelerators} - measured):
        expected_time_s = _expected_range(inputs, best, best.time_s, size)
        if log_sd(expected_time_s) > _LEAST_NARROWING * log_sd(best.time_s):
            continue
        took = (
            ""
            if best.step_s is None or size != best.num_accelerators
            else (f" (about {format_duration(NUM_STEPS * best.step_s.value)})")
        )
        yield Measurement(
            words=(
                f"{NUM_STEPS} steps on {plural(size, 'accelerator')}{took}: "
                f"the {format_percent(LEVEL)} range of the time would narrow from {_spread(best.time_s)} to "
                f"about {_spread(expected_time_s)}."
            ),
            command=_bench_command(inputs, best, size),
            expected_time_s=expected_time_s,
        )


def _expected_range(inputs: Inputs, best: Candidate, time: Interval, size: int) -> Interval:
    """The interval of the time after a measurement of steps on `size` accelerators.

    Assumes that the new steps agree with the estimate and that their errors are independent.
    Source: precisions of independent normal errors add.
    """
    batch = float(best.global_batch_samples or 1)
    new = math.hypot(
        LEAST_LOG_SD,
        inputs.training.budget.log_sd(batch),
        distance_log_sd(math.log2(best.num_accelerators / size)),
    )
    old = max(log_sd(time), LEAST_LOG_SD)
    return with_log_sd(time.value, 1.0 / math.hypot(1.0 / new, 1.0 / old))


def _spread(time: Interval) -> str:
    low, high = (whole_percent(abs(end / time.value - 1.0)) for end in (time.low, time.high))
    return f"-{low} +{high}"


def _bench_command(inputs: Inputs, best: Candidate, size: int) -> str:
    """The command for a measurement: `bench` if it can run the model, else `watch` in any training loop."""
    if ":" in inputs.query.workload and best.strategy is not None:
        from equipoise.launch import bench_command  # noqa: PLC0415 - only for the user's own model

        snippet = bench_command(best.strategy, inputs.query.workload, num_accelerators=size, out="runs")
        if snippet.code:
            return snippet.code.strip()
    return "equipoise.watch(model) in your training loop, then: equipoise advise ... --runs runs"


def notes(inputs: Inputs, assessment: Assessment, best: Candidate | None) -> Iterator[Note]:
    """Notes on what the figures do not show: guesses, extrapolation, little room."""
    yield from assessment.notes
    if assessment.searches is not None and assessment.searches.problem.model.links is not None:
        yield from assessment.searches.problem.model.links.notes
    yield from map(Note, (note for each in assessment.traces for note in each.trace.notes))
    yield from _beaten_results(inputs, assessment, best)
    searched = () if assessment.searches is None else assessment.searches.at(assessment.sizes.tried)
    if searched and all(each.best is None for each in searched):
        yield from (Note(words, "check") for words in _uneven_batches(inputs, assessment))
    yield from map(Note, _remarks(inputs, assessment, best))


def _remarks(inputs: Inputs, assessment: Assessment, best: Candidate | None) -> Iterator[str]:
    batch, budget = inputs.query.global_batch_samples, inputs.training.budget
    if budget.batches and batch and not budget.batches[0] <= batch <= budget.batches[1]:
        yield (
            f"A global batch of {batch:,} is outside the range of published runs, {budget.batches[0]:,} to "
            f"{budget.batches[1]:,}: the samples that it needs are extrapolated"
            f"{', and no published time is used' if is_batch_beyond_published(inputs) else ''}."
        )
    if best is None:
        return
    if best.price is None:
        yield f"No price of {best.accelerator} is known: give --price {best.system}=USD."
    yield from _unknown_power(assessment)
    yield from _order_bound_words(inputs, best)
    yield from _poor_results(assessment, best)
    yield from _uneven_batches(inputs, assessment)
    yield from _unequal_shares(inputs, assessment, best)
    yield from _nearly_full(best)
    if best.interrupted is not None:
        lost = sum(best.interrupted.lost.values())
        if lost >= _NOTICED_LOSS:
            taken = whole_percent(lost)
            yield f"Interruptions take {taken} of the time; every figure shown includes them."


def _uneven_batches(inputs: Inputs, assessment: Assessment) -> Iterator[str]:
    """Words on batches that would divide evenly at the sizes asked about."""
    for size in dict.fromkeys((assessment.sizes.most, *(assessment.sizes.listed or ()))):
        uneven = uneven_batch(inputs, assessment.searches, size)
        if uneven is not None:
            yield f"{uneven} (--global-batch)."


def _unknown_power(assessment: Assessment) -> Iterator[str]:
    """Words on what is assumed for an accelerator of unknown power."""
    cluster = assessment.cluster
    chip = None if cluster is None else cluster.accelerator
    # TPUs have a fixed clock, so their power is not needed.
    if chip is None or chip.power_w is not None or chip.achievable_is_measured or chip.kind == "tpu":
        return
    yield (
        f"The power of {chip.title} is not known (power_w): its large matrix products are assumed to reach "
        f"{format_percent(chip.achievable_fraction)} of the peak, as on accelerators with little power per "
        "FLOP/s, and no energy is stated."
    )


def _order_bound_words(inputs: Inputs, best: Candidate) -> Iterator[str]:
    """Words on the time of another chip, or of fewer accelerators, that bounds this time."""
    bound = best.order_bound
    if bound is None:
        return
    other = inputs.catalogue.accelerator(bound.accelerator).title
    time = f"{format_duration(bound.time_s)}, {'published' if bound.grade == 'published' else 'estimated'}"
    if bound.num_accelerators < best.num_accelerators:
        yield (
            f"The time is at most that of {bound.num_accelerators:,} x {other} ({time}), because any "
            "further accelerators may be left idle."
        )
        return
    better, lesser, word = (
        (best.title, other, "most") if bound.kind == "at_most" else (other, best.title, "least")
    )
    yield (
        f"The time is at {word} that of {bound.num_accelerators:,} x {other} ({time}): {better} is at least "
        f"as good as {lesser} in every stated fact."
    )


def _beaten_results(inputs: Inputs, assessment: Assessment, best: Candidate | None) -> Iterator[Note]:
    """Notes on results that do not count because others beat them; to check if that size is recommended."""
    if inputs.scores is None or assessment.published is None:
        return
    slug = inputs.training.workload.slug
    beaten = beaten_at_size(inputs.scores, slug, assessment.system.accelerator)
    for size in sorted({*beaten} & {*assessment.sizes.tried}):
        result, other = beaten[size].result, beaten[size].other
        words = (
            f"The published result on {size:,} ({format_duration(result.score_s)}, {result.round}) is not "
            f"used: the one on {beaten[size].other_size:,} took {format_duration(other.score_s)}, so that "
            "submission is slow, not the size."
        )
        yield Note(words, "check") if best is not None and best.num_accelerators == size else Note(words)


def _poor_results(assessment: Assessment, best: Candidate) -> Iterator[str]:
    """Words on results at the recommended size, or the next one with results, that are slower than those of
    larger sizes suggest. Empty if memory may be the reason.

    Source: work is conserved. Fewer accelerators with the same batch, if memory needs no other strategy, take
    at most longer by the ratio of the sizes.
    """
    best_s = assessment.results_s
    following = min((size for size in best_s if size > best.num_accelerators), default=None)
    for size in (each for each in (best.num_accelerators, following) if each in best_s):
        at_most = min(((more / size * best_s[more], more) for more in best_s if more > size), default=None)
        if (
            at_most is None
            or best_s[size] <= at_most[0] * math.exp(_REPLICATES_LOG)
            or not _is_plain(assessment, size)
        ):
            continue
        yield (
            f"{size:,} accelerators have {plural(len(assessment.results[size]), 'published result')}, "
            f"{format_duration(best_s[size])} at best, though {at_most[1]:,} took "
            f"{format_duration(best_s[at_most[1]])}: with the same total work, {size:,} should need at most "
            f"{format_duration(at_most[0])}. Measure runs of your own to decide (--runs)."
        )


# Results of a system are called slow if all take at least this many times the modelled time: 90 % of times
# carried from another chip were off by less (data/transfer.json).
_SLOW_RATIO: Final = 1.5


def slow_results(compared: Sequence[Assessment]) -> Iterator[Note]:
    """Notes on systems whose results all took far longer than modelled, perhaps because of their software.

    Either so long that they do not count, or less if another system in the comparison has no results of its
    own, and so does not share that software.
    """
    without = [each.system.title for each in compared if each.estimates and not each.results_s]
    for each in compared:
        if each.slow_ratio is not None:
            yield Note(
                f"Published results for {each.system.title} took {each.slow_ratio:.1f} times as long as "
                "modelled, which suggests software that others do not use: they are not used.",
                "check",
            )
        results_s, searches = each.results_s, each.searches
        searched = () if searches is None else searches.at(results_s)
        if without and results_s and searches is not None and searches.sizes and not searched:
            # No searched size has a result: use the size from which the largest one's time is carried.
            nearest = nearest_size(results_s, max(one.num_accelerators for one in searches.sizes))
            searched = SEARCH_CACHE.searches(searches.problem, (nearest,)).sizes
        ratios = [
            results_s[one.num_accelerators] / one.best.work_s.value
            for one in searched
            if one.best is not None
        ]
        least = min(ratios, default=0.0)
        if without and least >= _SLOW_RATIO:
            yield Note(
                f"Published results for {each.system.title} took {least:.1f} times as long as modelled, and "
                f"there are none for {' and '.join(without)}: software may differ more than the "
                "accelerators do.",
                "check",
            )


def measured_on_some(inputs: Inputs, compared: Sequence[Assessment]) -> Iterator[Note]:
    """Notes that the user's runs cover only some of the systems compared, and how they affect the others."""
    known = [(each, bool(inputs.runs_on(each.system.accelerator))) for each in compared if each.estimates]
    ran = [each for each, has_runs in known if has_runs]
    others = [each for each, has_runs in known if not has_runs]
    elsewhere = [each.run_fit.ran_on for each in others if isinstance(each.run_fit, UserLevel)]
    on = listed(dict.fromkeys([each.system.title for each in ran] or filter(None, elsewhere)))
    if not on:
        yield from _unused_elsewhere(inputs, compared)
    if not on or not others:
        return
    levels = [each.run_fit for each in ran if isinstance(each.run_fit, UserLevel)]
    took = f" (steps took {levels[0].largest_factor:.2g} times the modelled time)" if len(levels) == 1 else ""
    scaled = dict.fromkeys(
        f"{each.system.title} by {each.run_fit.largest_factor:.2g}"
        for each in others
        if isinstance(each.run_fit, UserLevel)
    )
    left = dict.fromkeys(each.system.title for each in others if each.run_fit is None)
    ends = [f"they scale the modelled times of {listed(scaled)}"] if scaled else []
    ends += [f"{listed(left)} may differ from the model as much"] if left else []
    yield Note(f"Your runs are on {on} only{took}; {'; '.join(ends)}.", "check")


def _unused_elsewhere(inputs: Inputs, compared: Sequence[Assessment]) -> Iterator[Note]:
    """A note that the user's runs are on accelerators that are not asked about, and scale none of those."""
    set_ups = () if inputs.user.runs is None else inputs.user.runs.set_ups
    asked = {None, *(each.system.accelerator for each in compared)}
    slugs = sorted(each for each in {each.accelerator for each in set_ups} - asked if each is not None)
    if slugs:
        on = listed(inputs.catalogue.accelerator(each).title for each in slugs)
        yield Note(
            f"Your runs are on {on} only, and the model can represent none of their steps, so they do not "
            "scale the times of other accelerators: do they state precision and strategy?",
            "not_used",
        )


# Log ratio of two results that 95 % of pairs of replicates do not exceed.
_REPLICATES_LOG: Final = DEVIATE * math.sqrt(2.0) * LEAST_LOG_SD


def _is_plain(assessment: Assessment, size: int) -> bool:
    """Whether the best strategy at a size needs no model parallelism, recomputation or offload."""
    searched = () if assessment.searches is None else assessment.searches.at((size,))
    return any(
        each.best is not None
        and each.best.strategy.tp * each.best.strategy.pp * each.best.strategy.cp == 1
        and each.best.strategy.recompute == "none"
        and each.best.strategy.offload == "none"
        for each in searched
    )


# The factor of a batch that data parallelism may leave to other axes without a note.
_MAX_LEFT_OUT: Final = 2


def uneven_batch(inputs: Inputs, searches: StrategySearches | None, size: int) -> str | None:
    """Words on batches that would divide evenly among `size` accelerators; None if the stated batch does.

    With fewer samples than accelerators, several may share a sample: only sizes that share hardly any factor
    with the batch are named. None if the model is split whatever the batch.
    """
    batch = inputs.training.fixed_batch_samples
    if batch is None or size == 1 or not batch % size:
        return None
    lower = batch // size * size
    if not lower and math.gcd(batch, size) > batch // _MAX_LEFT_OUT:
        return None
    if searches is not None and not _takes_samples_alone(searches.problem, lower or size, size):
        return None
    near = f"batches of {lower:,} or {lower + size:,}" if lower else f"a batch of {size:,}"
    return (
        f"A global batch of {batch:,} does not divide among {size:,} accelerators: {near} would let data "
        "parallelism use all of them"
    )


def _takes_samples_alone(known: Problem, batch: int, size: int) -> bool:
    """Whether the fastest strategy for a batch is data parallel over all accelerators."""
    asked = replace(known, training=replace(known.training, global_batch_samples=batch))
    best = SEARCH_CACHE.searches(asked, (size,)).sizes[0].best
    return best is not None and best.strategy.dp == size


def _unequal_shares(inputs: Inputs, assessment: Assessment, best: Candidate) -> Iterator[str]:
    """Words on the possible gain of dividing samples by speed among unequal accelerators."""
    if best.strategy is None or assessment.searches is None or assessment.cluster is None:
        return
    if len(kinds(assessment.cluster.accelerator)) == 1:
        return
    gain = _speed_shares_gain(assessment.searches.problem, best.strategy, inputs.catalogue)
    yield (
        "With equal shares, a step takes as long as on the slower accelerator; dividing samples by speed "
        f"would make it at most {tenths(gain)} shorter."
    )


def _nearly_full(best: Candidate) -> Iterator[str]:
    """Words on memory that is nearly full, since its estimate may be a little too low."""
    share = None if best.memory is None else best.memory.share
    if share is not None and share > _NEARLY_FULL:
        filled = tenths(share)
        yield f"It fills {filled} of the memory, and memory estimates are off by a few percent: try it first."


def _speed_shares_gain(problem: Problem, chosen: Strategy, catalogue: Catalogue) -> float:
    """The fraction by which a step would shorten if samples were divided by speed; 0 for equal chips.

    Assumes data parallel ranks of one kind each, and equal traffic: an upper bound.
    Source: equal shares take as long as the slowest chip, shares by speed the harmonic mean.
    """
    nodes = replace(problem.cluster, num_accelerators=chosen.num_accelerators)
    steps = []
    for slug in kinds(nodes.accelerator):
        uniform = replace(nodes, accelerator=catalogue.accelerator(slug))
        found = estimate(problem.load, machine(uniform), grid([chosen]), problem.model.parameters)
        steps.append(float(found.step_s.max()))
    return 1.0 - len(steps) / sum(1.0 / each for each in steps) / max(steps)


def outside_of_budgets(query: TrainingQuery, found: Sequence[SystemCandidates]) -> Sequence[str]:
    """Words on systems whose budget cannot be checked because their price is unknown."""
    if query.budget_usd is None:
        return []
    return [
        f"No price of {one.system.accelerator} is known, so the budget cannot be checked: give "
        f"--price {one.system.name}=USD."
        for one in found
        if is_unpriced(one)
    ]


def lacks_energy(candidates: Sequence[Candidate]) -> bool:
    """Whether some candidates have a time but none has an energy."""
    timed = [each for each in candidates if each.time_s is not None]
    return bool(timed) and all(each.energy_j is None for each in timed)


def without_energy(query: TrainingQuery, found: Sequence[SystemCandidates]) -> Iterator[Note]:
    """Notes on systems that cannot be compared by energy because their power is unknown."""
    unknown = [one for one in found if query.objective == "energy" and lacks_energy(one.candidates)]
    for one in unknown:
        yield Note(
            f"{one.system.accelerator}, whose power is not known: give power_w in a file for --hardware.",
            "not_compared",
        )


def electricity_unused(query: TrainingQuery, candidates: Sequence[Candidate]) -> Iterator[str]:
    """Words on a stated price of electricity that affects no cost; empty if it does."""
    is_owned = any(each.is_owned for each in candidates)
    if query.electricity_usd_per_kwh is not None and not (is_owned or query.is_buying):
        yield (
            "--electricity has no effect: rental prices include electricity. For your own machine give "
            "--price SYSTEM=0 or --buy."
        )


def quotes_unused(query: TrainingQuery, systems: Iterable[RequestedSystem]) -> Iterator[str]:
    """Words on quotes that do not count because the question states a price for the same system."""
    for each in systems:
        if each.quotes and each.usd_per_accelerator_hour is not None:
            yield f"The quotes of {query.quotes} for {each.title} are not used: --price states its price."


def does_not_fit(systems: Iterable[SystemAnswer]) -> Iterator[Note]:
    """A note for each system on which nothing fits, with what the training needs there."""
    for each in systems:
        if each.shortfall is not None:
            yield Note(f"{each.title}: it {each.shortfall}.", "nothing_fits")


# Other sizes and precisions are searched only below this MFU: the strategy may be the only one that fits.
_LOW_MFU: Final = 0.1
# Another size or precision is mentioned only if it is more than this many times as fast.
_FAR_FASTER: Final = 3.0


def experts_in_4_bits(searches: StrategySearches | None, best: Candidate | None) -> Iterator[Note]:
    """A note that experts are counted in 4 bits, which not every library for adapters supports.

    Source: bitsandbytes quantizes linear layers; since transformers 5, one parameter holds all experts of a
    layer.
    """
    if searches is None or best is None or best.strategy is None or best.strategy.trained != "qlora":
        return
    if float(searches.problem.load.experts):
        yield Note(
            "experts are counted in 4 bits, but bitsandbytes leaves the experts of transformers 5 in 16 "
            "bits, four times as many bytes. Use a library that quantizes experts, or --train lora.",
            "check",
        )


def far_faster(searches: StrategySearches | None, best: Candidate | None) -> Iterator[Note]:
    """A note that another precision, a neighbouring usual size or weights on the host are far faster.

    This happens if hardly any strategy fits into memory. By the model alone.
    """
    if searches is None or best is None or best.mfu is None or best.mfu > _LOW_MFU:
        return
    known, size = searches.problem, best.num_accelerators
    own = SEARCH_CACHE.searches(known, (size,)).sizes[0].best
    if own is None:
        return
    usual = units_beyond(known.cluster, known).usual(size // 2, 2 * size)
    near = [each for each in usual if each != size and each <= 2 * size]
    others = {
        f"{each.num_accelerators:,} accelerators": each for each in SEARCH_CACHE.searches(known, near).sizes
    }
    for each in PRECISIONS:
        if each not in known.choices.get("precision", ()):
            changed = replace(known, choices={**known.choices, "precision": (each,)})
            others[f"--precision {each}"] = SEARCH_CACHE.searches(changed, (size,)).sizes[0]
    if may_offload(known, "offload") and not moves_weights(known) and offloads_weights(known):
        changed = replace(known, choices={**known.choices, "offload": (ALL_OFFLOADED,)})
        moved = SEARCH_CACHE.searches(changed, (size,)).sizes[0]
        if moved.best is not None and beyond_hosts(changed, moved.best.strategy) is None:
            others[f"--fix offload={ALL_OFFLOADED}"] = moved
    ratios = {
        name: own.work_s.value / each.best.work_s.value
        for name, each in others.items()
        if each.best is not None
    }
    named = [f"{name} ({ratio:.0f} times as fast)" for name, ratio in ratios.items() if ratio > _FAR_FASTER]
    if named:
        yield Note(f"Far faster by the model: {listed(named)}.", "check")


def stated_on_host(
    query: TrainingQuery, best: Candidate | None, searches: StrategySearches | None
) -> Iterator[Note]:
    """Notes on the amounts that the question offloads to hosts, and on hosts without enough memory."""
    if best is None or best.strategy is None or searches is None:
        return
    too_much = beyond_hosts(searches.problem, best.strategy)
    if too_much is not None:
        yield Note(f"{too_much}.", "check")
    for option, words in on_host(searches.problem, best.strategy).items():
        if option in query.fixed_names:
            yield Note(f"{words[:1].upper()}{words[1:]}.")

"""Answers a question: collects the candidates of every system, selects among them, explains the choice."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from equipoise.decide.answer import LIKELY, Answer, Candidate, Refusal, Relaxation, Renting, SystemAnswer
from equipoise.decide.assessment import Assessment, Inputs, nothing_fits, rejections, unfit_sizes
from equipoise.decide.beyond_limits import (
    least_beyond_limits,
    least_beyond_usual,
    may_keep_budget_on_spot,
    near_sizes,
    with_larger_hosts,
    with_sizes_beyond_limits,
)
from equipoise.decide.candidates import SystemCandidates, safer_strategy, with_strategy, with_terms
from equipoise.decide.collect import Collected, Progress, collect_candidates
from equipoise.decide.combine import PlannedPretraining
from equipoise.decide.explanation.explain import (
    alternatives,
    does_not_fit,
    electricity_unused,
    experts_in_4_bits,
    far_faster,
    lacks_energy,
    measured_on_some,
    notes,
    outside_of_budgets,
    quotes_unused,
    slow_results,
    stated_on_host,
    system_offers,
    to_measure,
    without_energy,
)
from equipoise.decide.explanation.reasons import chosen_for_you, reasons, records
from equipoise.decide.question.query import USUAL_HORIZON_MONTHS, TrainingQuery
from equipoise.decide.question.systems import LARGE_SYSTEM, is_assumed_host, rates_of
from equipoise.decide.select import (
    Selection,
    beats,
    flips,
    goes_on,
    rule_of,
    select,
    time_values,
    timed_figures,
    tornado_of,
)
from equipoise.decide.strategies.size_searches import (
    SEARCH_CACHE,
    ExtraSizes,
    SizesBySystem,
    StrategySearches,
    raised_sizes,
)
from equipoise.decide.user_evidence.fit import UserLevel
from equipoise.economics import price
from equipoise.economics.ownership import USUAL_UTILISATION, Ownership, ownership, purchase
from equipoise.errors import EvidenceError, UsageError
from equipoise.intervals import LEVEL, Interval, exact
from equipoise.notes import Note
from equipoise.perfmodel.generation import RolloutSplit
from equipoise.runs import embedded
from equipoise.scaling.equilibrium import default_answer
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.catalogue import catalogue as catalogue_of
from equipoise.spec.hardware import TERMS
from equipoise.spec.mlperf import Scores
from equipoise.stats import one_thread

# Most sizes tried between an offered size and the next one tried on either side.
_MAX_SIZES_BETWEEN: Final = 8


def answer(
    query: TrainingQuery,
    *,
    scores: Scores | None,
    catalogue: Catalogue | None = None,
    progress: Progress | None = None,
) -> Answer:
    """The recommendation for a question, or why no candidate keeps its limits.

    scores: published results; None if none may be used. catalogue: resolves the names in the question;
    read from the question's files unless given.
    Raises EvidenceError, naming what is missing, if no system has an estimate; SpecError and UsageError
    for unknown names and questions that cannot be answered.
    """
    known = catalogue or catalogue_of(query.hardware, query.workloads)

    def selected(extra: ExtraSizes) -> tuple[Collected, Selection]:
        found = collect_candidates(query, known, scores, extra=extra, progress=progress)
        selection = select_from(found)
        better = {**dict(extra.up_to), **_better_beyond_usual(found, selection)}
        if better == dict(extra.up_to):
            return found, selection
        return selected(replace(extra, up_to=tuple(better.items())))

    with one_thread():
        extra = ExtraSizes() if query.objective == "balance" else ExtraSizes(between=None)
        found, selection = selected(extra)
        sizes = _with_sizes_between(found, selection, extra)
        if sizes != extra:
            extra = sizes
            found, selection = selected(extra)
        has_time = any(each.time_s is not None for each in found.candidates)
        _expect_known_energy(found)
        if not has_time and not _is_short_of_memory(selection.refusal):
            return _with_near_sizes(answer_of(found, selection), found, scores)
        for further in (partial(_with_sizes_beyond_usual, scores=scores), _with_sizes_beside_offers):
            sizes = further(found, selection, extra)
            if sizes != extra:
                extra = sizes
                found, selection = selected(extra)
        if selection.refusal is not None:
            found = with_sizes_beyond_limits(found, least_beyond_limits(found, scores), scores)
            selection = select_from(found)
        elif any(is_assumed_host(one.system, query) for one in found.systems):
            found = with_larger_hosts(found)
        given = answer_of(found, selection)
        if given.refusal is None or not may_keep_budget_on_spot(found):
            return given
        offered = _best_on_spot(query, scores, known)
        return replace(given, refusal=replace(given.refusal, on_spot=offered))


def _expect_known_energy(found: Collected) -> None:
    """Raises EvidenceError if the objective is energy and the energy of no candidate is known."""
    if found.inputs.query.objective != "energy" or not lacks_energy(found.candidates):
        return
    titles = dict.fromkeys(one.system.title for one in found.systems)
    raise EvidenceError(
        f"--objective energy: the power of {' and '.join(titles)} is not known",
        missing=("power_w in a file for --hardware",),
    )


def _best_on_spot(query: TrainingQuery, scores: Scores | None, catalogue: Catalogue) -> Candidate | None:
    """The recommendation on spot terms; None if spot does not keep all limits either."""
    try:
        asked = answer(replace(query, terms=(("", ("spot",)),)), scores=scores, catalogue=catalogue)
    except (EvidenceError, UsageError):  # a system has no such terms
        return None
    return asked.recommended


def select_from(found: Collected) -> Selection:
    """The choice among all candidates of all systems."""
    curves = {group: curve for one in found.systems for group, curve in one.curves.items()}
    selection = select(found.candidates, rule_of(found.inputs.query), curves)
    return selection if found.candidates else replace(selection, refusal=_nothing_runs(found.systems))


def _better_beyond_usual(found: Collected, selection: Selection) -> dict[str, int]:
    """Per system, the largest size just beyond the usual ones that is better than the recommendation.

    Such a size is displayed to show what more accelerators would do. If neither the question nor a stock
    limits the size, it becomes eligible, so that no recommendation is slower and costlier than a displayed
    size, and the search for the least time or the best value of time does not end too early.
    """
    query, best = found.inputs.query, selection.recommended
    if query.compares_rentable:
        return {}
    rule = rule_of(query)
    better: dict[str, int] = {}
    for one in found.systems:
        sizes = one.assessment.sizes
        if sizes.limited_by != "catalogue" or one.system.is_desktop:
            continue
        is_last = sizes.most < LARGE_SYSTEM and goes_on(one.candidates, sizes.most, rule)
        for each in one.candidates:
            is_better = is_last or (best is not None and beats(each, best, rule))
            if each.num_accelerators > sizes.most and is_better:
                better[one.system.name] = max(each.num_accelerators, better.get(one.system.name, 0))
    return better


def _with_sizes_between(found: Collected, selection: Selection, extra: ExtraSizes) -> ExtraSizes:
    """The extra sizes to try: those between usual sizes that a limit or a larger batch makes worthwhile."""
    if extra.between is None:
        return extra
    return ExtraSizes(between=_limited_systems(found, selection), beside=_raised_batches(found, selection))


def _limited_systems(found: Collected, selection: Selection) -> frozenset[str]:
    """Names of systems whose offered size is decided by the deadline or the budget.

    These are systems whose offer is not their balance size, breaks a limit, or is too unlikely to keep the
    limits. For them, sizes between the usual ones are worth trying.
    """
    query, best = found.inputs.query, selection.recommended
    if (query.deadline_s or query.budget_usd) is None:
        return frozenset()
    balance = {one.system.name: selection.balance.get(one.first_group) for one in found.systems}
    by_id = {each.id: each for each in found.candidates}
    limited = set()
    for each in system_offers(found.candidates, best, rule_of(query), selection.balance):
        offered = by_id[each.candidate]
        is_unsure = offered.probability is not None and offered.probability < LIKELY
        if not each.is_feasible or is_unsure or offered.num_accelerators != balance[each.system]:
            limited.add(each.system)
    return frozenset(limited)


def _raised_batches(found: Collected, selection: Selection) -> SizesBySystem:
    """Per system, sizes just beyond its balance size that a larger batch allows, as a deadline would find."""
    raised = []
    for one in found.systems:
        searches, balance = one.assessment.searches, selection.balance.get(one.first_group)
        if searches is None or balance is None:
            continue
        for each in searches.at((balance,)):
            grown = () if each.best is None else raised_sizes(searches.problem, each.best.strategy)
            raised.append((one.system.name, frozenset(filter(one.assessment.sizes.holds, grown))))
    return tuple((name, sizes) for name, sizes in raised if sizes)


def _with_sizes_beyond_usual(
    found: Collected, selection: Selection, extra: ExtraSizes, *, scores: Scores | None
) -> ExtraSizes:
    """The extra sizes, up to the smallest beyond the usual ones to keep the limits, if no usual one does."""
    if all(one.keeps_limits for one in found.systems):
        return extra
    farther = least_beyond_usual(found, scores, is_refused=selection.refusal is not None)
    up_to = tuple((name, each.num_accelerators) for name, each in farther.items())
    return replace(extra, up_to=up_to) if up_to else extra


def _with_sizes_beside_offers(found: Collected, selection: Selection, extra: ExtraSizes) -> ExtraSizes:
    """The extra sizes, with those between each size offered or named by a refusal and its tried neighbours.

    Only for systems whose sizes between the usual ones are tried. Those are up to a fifth apart, so a size
    that divides the batch better, or the largest size under a lower limit, may lie next to the best of them.
    """
    query, by_id = found.inputs.query, {each.id: each for each in found.candidates}
    offers = system_offers(found.candidates, selection.recommended, rule_of(query), selection.balance)
    changes = () if selection.refusal is None else selection.refusal.relaxations
    named = (*(each.candidate for each in offers), *(each.candidate for each in changes))
    taken = [by_id[each] for each in named if each is not None]
    nearer = []
    for one in found.systems:
        name, sizes = one.system.name, one.assessment.sizes
        has_between = extra.between is None or name in extra.between
        if sizes.units is None or sizes.listed or not has_between:
            continue
        for size in {each.num_accelerators for each in taken if each.system == name}:
            low = max((each for each in sizes.tried if each < size), default=size)
            high = min((each for each in sizes.tried if each > size), default=size)
            between = {
                *sizes.units.between(low, size, _MAX_SIZES_BETWEEN),
                *sizes.units.between(size, high, _MAX_SIZES_BETWEEN),
            }
            nearer.append((name, frozenset(filter(sizes.holds, between))))
    return replace(extra, beside=(*extra.beside, *(each for each in nearer if each[1])))


def answer_of(collected: Collected, selection: Selection) -> Answer:
    """The answer for the collected candidates and the selection that `select_from` made among them."""
    inputs, found = collected.inputs, collected.systems
    query, rule, candidates = inputs.query, rule_of(inputs.query), collected.candidates
    best = selection.recommended
    own = next((one for one in found if best is not None and one.system.name == best.system), found[0])
    equilibria = () if best is None else selection.equilibria.get(best.group, ())
    bought, unbought = _compare_buying(query, own, best)
    searches = own.assessment.searches
    systems = {one.system.name: _system_answer(inputs, one, selection, best) for one in found}
    offered = system_offers(candidates, best, rule, selection.balance)
    sizes_beside = {one.system.name: one.assessment.sizes.beside for one in found}
    beside = {each.id for each in candidates if each.num_accelerators in sizes_beside[each.system]}
    changes = () if best is None else flips(candidates, rule, selection.balance, best, beside=beside)
    return Answer(
        question=query,
        dataset=embedded.version(),
        workload=inputs.training.workload,
        work=inputs.training.budget.work,
        systems=tuple(systems.values()),
        candidates=candidates,
        recommended=best,
        refusal=selection.refusal,
        equilibria=equilibria,
        limited_by=default_answer(equilibria).limited_by if equilibria else None,
        frontier=selection.frontier,
        flips=changes,
        time_values=time_values(timed_figures(candidates), rule),
        offers=offered,
        alternatives=() if best is None else alternatives(candidates, best, rule, offered, changes),
        rejected=tuple(each for one in systems.values() for each in one.rejected),
        reasons=() if best is None else reasons(inputs, own, selection, best),
        to_measure=() if best is None else tuple(to_measure(inputs, own.assessment, best)),
        records=systems[own.system.name].records,
        sensitivity=None if best is None else tornado_of(best),
        renting=() if best is None else tuple(_renting_options(inputs, own.assessment, best)),
        ownership=bought,
        rollout=None if best is None else _rollout_split(own.assessment, best),
        safer=None if best is None else safer_strategy(own.assessment, best),
        chosen_for_you=chosen_for_you(inputs, own.assessment, best, [one.assessment for one in found]),
        notes=tuple(
            dict.fromkeys(
                (
                    *_notes_of_all(collected, own, best),
                    *does_not_fit(systems.values()),
                    *_notes_on_unused_inputs(collected),
                    *(Note(each, "not_bought") for each in unbought),
                )
            )
        ),
        num_considered=sum(each.num_considered for each in systems.values()),
        search_s=0.0 if searches is None else searches.search_s,
    )


def _notes_of_all(collected: Collected, own: SystemCandidates, best: Candidate | None) -> Iterator[Note]:
    """Notes on all systems: what the figures do not show. own: the system of the best candidate."""
    inputs, searches = collected.inputs, own.assessment.searches
    assessments = [one.assessment for one in collected.systems]
    yield from map(Note, inputs.training.budget.notes)
    for each in assessments:
        yield from notes(inputs, each, best if each is own.assessment else None)
    yield from () if inputs.user.runs is None else inputs.user.runs.notes
    yield from _without_score(inputs, [each.system.accelerator for each in assessments])
    yield from far_faster(searches, best)
    yield from experts_in_4_bits(searches, best)
    yield from stated_on_host(inputs.query, best, searches)
    yield from measured_on_some(inputs, assessments)
    yield from slow_results(assessments)


def _notes_on_unused_inputs(collected: Collected) -> Iterator[Note]:
    """Notes on prices and limits that have no effect, and on systems that are not compared."""
    query, found = collected.inputs.query, collected.systems
    yield from map(Note, electricity_unused(query, collected.candidates))
    yield from (Note(each, "not_used") for each in quotes_unused(query, [one.system for one in found]))
    yield from map(Note, outside_of_budgets(query, found))
    yield from without_energy(query, found)
    yield from (Note(f"{each}.", "not_compared") for each in collected.refused)


def _without_score(inputs: Inputs, accelerators: Sequence[str]) -> Iterator[Note]:
    """Notes on runs in the --also folders that have no score."""
    folders = [each for each in inputs.query.also if each != inputs.query.runs]
    if folders:
        from equipoise.decide.user_evidence.folders import (  # noqa: PLC0415 - only where a folder is given
            without_score,
        )

        yield from without_score(folders, inputs.training.workload.slug, accelerators)


def _time_per_step_time(
    searches: StrategySearches | None, best: Candidate | None
) -> tuple[float | None, PlannedPretraining | None]:
    """Ratio of training time to the time of its steps, and the published pretraining that sets it, if any.

    Relative to measured steps if the candidate rests on these, else to the model's steps.
    """
    if searches is None:
        return None, None
    known = searches.problem
    if best is not None and best.grade == "measured":
        return known.time_per_own_step_time, None
    return known.time_per_step_time, known.quick_pretraining


def _rollout_split(assessment: Assessment, best: Candidate) -> RolloutSplit | None:
    """How the recommended accelerators share generation and training; None if nothing is generated."""
    searches, batch = assessment.searches, best.global_batch_samples
    if searches is None or batch is None or best.model is None:
        return None
    return searches.problem.rollout_split(best.num_accelerators, batch, best.model.step_s)


def _nothing_runs(found: Sequence[SystemCandidates]) -> Refusal:
    """The refusal if no strategy fits: names the memory needed by the system that comes closest."""
    short = [
        Relaxation(
            constraint="memory_bytes",
            limit=each.available,
            needed=each.needed,
            candidate=None,
        )
        for one in found
        for each in rejections(one.assessment)
        if each.fault is None and each.needed is not None and each.available is not None
    ]
    closest = min(short, key=lambda each: each.needed / each.limit, default=None)
    return Refusal(cheapest=None, fastest=None, relaxations=() if closest is None else (closest,))


def _is_short_of_memory(refusal: Refusal | None) -> bool:
    return refusal is not None and any(each.constraint == "memory_bytes" for each in refusal.relaxations)


def _with_near_sizes(first: Answer, found: Collected, scores: Scores | None) -> Answer:
    """An answer in which no size has a time, with the nearest sizes that have one added."""
    asked = max(one.assessment.sizes.most for one in found.systems)
    near = near_sizes(asked, found, scores)
    if first.refusal is not None:
        steps = tuple(
            Relaxation(constraint="max_accelerators", limit=float(asked), needed=float(size), candidate=None)
            for size in near
        )
        return replace(first, refusal=replace(first.refusal, relaxations=steps))
    if not near:
        return first
    sizes = " and ".join(f"{size:,}" for size in near)
    return replace(
        first, notes=(*first.notes, Note(f"The nearest sizes that have a time: {sizes} (--accelerators)."))
    )


def _system_answer(
    inputs: Inputs, one: SystemCandidates, selection: Selection, best: Candidate | None
) -> SystemAnswer:
    assessment = one.assessment
    system, searches = assessment.system, assessment.searches
    considered, fitting = _num_considered(assessment)
    is_best = best is not None and best.system == system.name
    longer, quick = _time_per_step_time(searches, best if is_best else None)
    return SystemAnswer(
        name=system.name,
        title=system.title,
        cluster=assessment.cluster,
        topology=system.topology,
        node_size=None if assessment.cluster is None else assessment.cluster.node_size,
        stock=system.stock,
        rates=one.rates,
        estimates=assessment.estimates,
        equilibria=selection.equilibria.get(one.first_group, ()),
        balance_size=selection.balance.get(one.first_group),
        best_strategies=_best_strategies(inputs, one, best) if is_best and best is not None else (),
        user_runs=inputs.runs_on(system.accelerator),
        trainings=inputs.trainings_on(system.accelerator),
        rejected=tuple(rejections(assessment)),
        unfit=tuple(unfit_sizes(assessment, {each.num_accelerators for each in one.candidates})),
        records=tuple(records(inputs, assessment, best if is_best else None)),
        calibration=None if searches is None else searches.problem.model.calibration,
        software=None if searches is None or (ran := searches.problem.software) is None else ran.name,
        time_per_step_time=longer,
        time_per_step_time_of=None if quick is None else quick.title,
        transferred_from=None if assessment.transferred is None else assessment.transferred.chip.title,
        run_fit=None if assessment.run_fit is None else assessment.run_fit.sentence,
        runs_on=assessment.run_fit.ran_on if isinstance(assessment.run_fit, UserLevel) else None,
        num_considered=considered,
        num_fitting=fitting,
        search_s=0.0 if searches is None else searches.search_s,
        notes=assessment.notes,
        shortfall=nothing_fits(inputs, assessment),
    )


def _best_strategies(inputs: Inputs, one: SystemCandidates, best: Candidate) -> tuple[Candidate, ...]:
    """The recommended strategy, the best of other layouts at that size, and plain data parallelism."""
    searches = one.assessment.searches
    if searches is None or best.strategy is None:
        return ()
    rivals = SEARCH_CACHE.compared(searches, best.strategy, num_found=max(inputs.query.num_strategies, 1))
    rates = rates_of(inputs.query, one.system, best.terms)
    found = (with_strategy(inputs, one.assessment, best, each, rates) for each in rivals)
    return tuple(sorted(found, key=lambda each: each.work_s.value))


def _num_considered(assessment: Assessment) -> tuple[int, int]:
    if assessment.searches is None:
        return 0, 0
    found = [each.found for each in assessment.searches.at(assessment.sizes.tried)]
    return sum(each.num_legal for each in found), sum(each.num_fitting for each in found)


def _renting_options(inputs: Inputs, assessment: Assessment, best: Candidate) -> Sequence[Renting]:
    """The recommended candidate on all terms with a price; only on its own if the user states the price."""
    if assessment.system.usd_per_accelerator_hour is not None or assessment.cluster is None:
        return [Renting(candidate=best, tornado=None)]
    found = [best if terms == best.terms else with_terms(inputs, assessment, best, terms) for terms in TERMS]
    return [Renting(candidate=each, tornado=tornado_of(each)) for each in found if each.price is not None]


def _compare_buying(
    query: TrainingQuery, own: SystemCandidates, best: Candidate | None
) -> tuple[Ownership | None, tuple[str, ...]]:
    """The comparison of buying with renting, if asked for, or notes on why there is none."""
    if not query.is_buying or best is None or best.time_s is None:
        return None, ()
    cluster, time = own.assessment.cluster, best.time_s
    if cluster is None:
        return None, (f"{best.accelerator} is not in the catalogue (--hardware FILE.toml).",)
    rent = price(cluster.accelerator.slug, terms=best.terms) if best.is_owned else best.price
    rates = replace(own.rates[best.terms], price=rent)
    try:
        bought = purchase(
            cluster.accelerator,
            user_usd=query.purchase_usd,
            hosting_usd_per_month=query.hosting_usd_per_month,
        )
        if bought is None:
            return None, (f"no purchase price of {best.accelerator} is known (--purchase USD).",)
        return (
            ownership(
                bought,
                rates,
                utilisation=USUAL_UTILISATION if query.utilisation is None else exact(query.utilisation),
                horizon_months=query.horizon_months or USUAL_HORIZON_MONTHS,
                speed_error=Interval(
                    value=1.0, low=time.low / time.value, high=time.high / time.value, level=LEVEL
                ),
            ),
            (),
        )
    except EvidenceError as err:
        missing = f": give {', '.join(err.missing)}" if err.missing else ""
        return None, (f"{err}{missing}.",)

"""A question to its answer, in the order of reading: training, systems, estimates, candidates, choice."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from equipoise.decide.answer import (
    LIKELY,
    Answer,
    Candidate,
    Refusal,
    Relaxation,
    Renting,
    SystemAnswer,
    about_fixed,
)
from equipoise.decide.assess import (
    Assessment,
    Inputs,
    assess,
    measuring,
    nothing_fits,
    rejections,
    unfit_sizes,
)
from equipoise.decide.candidates import (
    SystemCandidates,
    safer_strategy,
    system_candidates,
    with_strategy,
    with_terms,
)
from equipoise.decide.estimators.model import software_ratios, usual_precision_ratio
from equipoise.decide.evidence import CHECK, NOT_COMPARED, NOTHING_FITS, UserRun
from equipoise.decide.explanation.explain import (
    alternatives,
    notes,
    records,
    slow_results,
    system_offers,
    to_measure,
    uneven_batch,
)
from equipoise.decide.explanation.reasons import reasons
from equipoise.decide.question.field import MAX_ACCELERATORS, MAX_SIZES, Sizes
from equipoise.decide.question.query import FIELDS, USUAL_HORIZON_MONTHS, TrainingQuery, without_choice
from equipoise.decide.question.systems import (
    LARGE_SYSTEM,
    RequestedSystem,
    is_assumed_host,
    rates_of,
    requested_systems,
    with_number,
)
from equipoise.decide.question.training import batch_words, training, unrestricted
from equipoise.decide.select import (
    Rule,
    Selection,
    choose,
    flips,
    select,
    time_values,
    timed_figures,
    tornado_of,
)
from equipoise.decide.strategies.strategy_search import STAYS, Problem
from equipoise.decide.strategies.surveys import (
    NO_OTHERS,
    SURVEYS,
    AlsoTried,
    SizesBeyond,
    Survey,
    beyond_hosts,
    least_fitting,
    on_host,
    sizes_beyond,
)
from equipoise.decide.user_evidence import UserEvidence, unusable, user_evidence
from equipoise.decide.user_evidence.runs import UserRuns
from equipoise.economics import price
from equipoise.economics.ownership import USUAL_UTILISATION, Ownership, ownership, purchase
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.intervals import LEVEL, Interval, exact
from equipoise.perfmodel.generation import RolloutSplit
from equipoise.runs import embedded
from equipoise.scaling.equilibrium import default_answer
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.catalogue import catalogue as catalogue_of
from equipoise.spec.hardware import TERMS
from equipoise.spec.mlperf import Scores
from equipoise.spec.strategy import SOFTWARE, Strategy, value_text
from equipoise.units import format_count, format_si

if TYPE_CHECKING:
    from equipoise.spec.cluster import Cluster

_MOST_ASSESSED: Final = 64
_MOST_NAMED: Final = 5
# Beyond the size that perfect scaling would need, where a refusal looks for one that keeps the limits: one
# at first, since each larger size takes longer to search, then up to LARGE_SYSTEM.
_DOUBLINGS_BEYOND: Final = (1, None)
Progress: TypeAlias = Callable[[str, int, int], None]  # the system, how many are done, of how many


def answer(
    query: TrainingQuery,
    *,
    scores: Scores | None,
    catalogue: Catalogue | None = None,
    progress: Progress | None = None,
) -> Answer:
    """What to do, or why nothing keeps the limits.

    scores: published results; None where none may be used. catalogue: what names mean; that
    of the question's files unless given.
    Raises EvidenceError, naming what is missing, where no system has any estimate; SpecError and UsageError
    for what names nothing or cannot be answered.
    """
    known = catalogue or catalogue_of(query.hardware, query.workloads)
    with threadpool_limits(limits=1):  # the matrices are small: threads would only wait for each other
        also = AlsoTried(between=query.objective != "balance")
        found = collect_candidates(query, known, scores, also=also, progress=progress)
        first = answer_of(found)
        if not also.between and _is_limited(first):
            also = AlsoTried(between=True)
            found = collect_candidates(query, known, scores, also=also, progress=progress)
            first = answer_of(found)
        if all(each.time_s is None for each in first.candidates) and not _needs_memory(first.refusal):
            return _with_near_sizes(first, found, scores)
        if first.refusal is None:
            return first
        least = _least_beyond_limits(found, scores)
        needed = _size_beyond_usual(found, least)
        if needed is not None:
            also = replace(also, sizes=(needed,))
            found = collect_candidates(query, known, scores, also=also, progress=progress)
            first = answer_of(found)
            if first.refusal is None:
                return first
        farther = _with_sizes_beyond_limits(found, least, scores)
        last = first if farther is found else answer_of(farther)
        if last.refusal is None:
            return last
        return replace(last, refusal=replace(last.refusal, on_spot=_on_spot(farther)))


class Collected(Struct, frozen=True, kw_only=True):
    """The candidates of a question before any choice. refused: why systems have none."""

    inputs: Inputs
    systems: tuple[SystemCandidates, ...]
    refused: tuple[EvidenceError, ...]


def collect_candidates(
    query: TrainingQuery,
    catalogue: Catalogue,
    scores: Scores | None,
    *,
    runs: UserRuns | None = None,
    also: AlsoTried = NO_OTHERS,
    progress: Progress | None = None,
) -> Collected:
    """The candidates of every system of a question.

    runs: of the user's own, in place of those of the question's folder.
    Raises as `answer` does.
    """
    if runs is None and not query.rests_on_files:
        systems = _systems(query, catalogue)
        inputs, assessments = _assessed_alike(without_choice(query), catalogue, scores, also, progress)
        inputs = replace(inputs, query=query)
        assessments = tuple(replace(one, system=each) for one, each in zip(assessments, systems, strict=True))
    else:
        inputs, assessments = _assessed(query, catalogue, scores, also, progress, runs=runs)
    found: list[SystemCandidates] = []
    refused: list[EvidenceError] = []
    for assessment in assessments:
        candidates = system_candidates(inputs, assessment)
        # Where memory is what is short, or another size runs, the answer says so.
        lacks_memory = any(each.reason == "memory_bytes" for each in rejections(assessment))
        if not (candidates.candidates or lacks_memory or _runs_on_another_size(assessment)):
            refused.append(_no_estimate(inputs, assessment))
        else:
            found.append(candidates)
    if not found:
        _refuse(refused, unusable(inputs.user.traces))
    pays = "--budget" if query.budget_usd is not None else "--value-of-time"
    if (query.budget_usd or query.value_of_time_usd_per_hour) is not None and all(map(_is_unpriced, found)):
        system = found[0].system
        raise UsageError(f"{pays} needs a price of {system.accelerator}: give --price {system.name}=USD")
    return Collected(inputs=inputs, systems=tuple(found), refused=tuple(refused))


def _is_limited(found: Answer) -> bool:
    """Whether a limit of time or money keeps a system from its size of balance, or may not be kept there.

    One size is then the best that keeps the limit, and sizes between the usual ones are tried too; where
    returns diminish is judged by steps between usual sizes.
    """
    query, best = found.question, found.recommended
    if (query.deadline_s or query.budget_usd) is None:
        return False
    if best is not None and best.probability is not None and best.probability < LIKELY:
        return True
    balance = {each.name: each.balance_size for each in found.systems}
    return found.refusal is not None or any(
        not each.is_feasible or found.candidate(each.candidate).num_accelerators != balance[each.system]
        for each in found.offers
    )


def _systems(query: TrainingQuery, catalogue: Catalogue) -> tuple[RequestedSystem, ...]:
    """The systems of a question; an error about their names also says where that of the workload is wrong."""
    try:
        return requested_systems(query, catalogue)
    except SpecError as err:
        if ":" in query.workload or query.config is not None:
            raise
        try:
            catalogue.workload(query.workload)
        except SpecError as other:
            raise SpecError(f"{other.message}. {err.message}", remedy=err.remedy) from err
        raise


@lru_cache(maxsize=_MOST_ASSESSED)
def _assessed_alike(
    query: TrainingQuery,
    catalogue: Catalogue,
    scores: Scores | None,
    also: AlsoTried,
    progress: Progress | None,
) -> tuple[Inputs, tuple[Assessment, ...]]:
    """As `_assessed`, kept for the next question that differs in its choice alone, as when a slider moves.

    query: `without_choice`, so that nothing in an assessment can depend on it.
    """
    return _assessed(query, catalogue, scores, also, progress)


def _assessed(
    query: TrainingQuery,
    catalogue: Catalogue,
    scores: Scores | None,
    also: AlsoTried,
    progress: Progress | None,
    *,
    runs: UserRuns | None = None,
) -> tuple[Inputs, tuple[Assessment, ...]]:
    """What a question is answered with, and its systems assessed; arguments as `collect_candidates`."""
    systems = _systems(query, catalogue)
    about = training(query, catalogue, scores)
    accelerators = [each.accelerator for each in systems]
    user = (
        user_evidence(query, about.workload, accelerators, catalogue)
        if query.has_measurements
        else UserEvidence()
    )
    user = user if runs is None else replace(user, runs=runs)
    inputs = Inputs(
        query=query,
        training=about,
        unrestricted=unrestricted(about, query),
        catalogue=catalogue,
        scores=scores,
        user=user,
        also=also,
    )
    assessments = []
    for number, system in enumerate(systems):
        if progress is not None:
            progress(system.title, number, len(systems))
        assessments.append(assess(inputs, system))
    return inputs, tuple(assessments)


# By the name of a system, sizes beyond its limit.
_Beyond: TypeAlias = Mapping[str, frozenset[int]]


def _least_beyond_limits(found: Collected, scores: Scores | None) -> dict[str, Candidate]:
    """The smallest size of each system, by name, beyond those that may be taken, that keeps all other limits.

    Of one where none does, the smallest that keeps the deadline, whatever it costs; else the fastest. Of one
    of which no size that may be taken fits, at least the smallest that does. Where a size is known to keep
    the other limits, no time is searched for.
    """
    fitting = {one.system.name: size for one in found.systems if (size := _first_to_fit(one))}
    beyond: _Beyond = fitting
    tried = _tried_beyond(found, fitting, scores)
    least = {one.system.name: each for one in tried.systems if (each := _least_kept(one)) is not None}
    if not least:
        beyond, tried = _tried_in_time(found, beyond, scores)
        looked = {name for name in beyond if beyond[name] != fitting.get(name)}
        least = {
            one.system.name: each
            for one in tried.systems
            if one.system.name in {*looked, *fitting} and (each := _least_beyond(one)) is not None
        }
    opened = _open_systems(found)  # of which all sizes up to the next usual one are tried afterwards
    while True:
        mosts = {one.system.name: one.assessment.sizes.most for one in tried.systems}
        nearest = min((each.num_accelerators / mosts[name] for name, each in least.items()), default=0.0)
        finer = {
            name: sizes
            for one in tried.systems
            if (name := one.system.name) in {*least} - opened
            and (sizes := _finer(one, least[name], fitting))
            and min(sizes) < nearest * mosts[name]  # of the others nothing smaller would be named
        }
        if not finer:
            return least
        beyond = _joined(beyond, finer)
        tried = _tried_beyond(found, beyond, scores)
        known = {one.system.name: _least_kept(one) for one in tried.systems if one.system.name in finer}
        least |= {name: each for name, each in known.items() if each is not None}


def _joined(beyond: _Beyond, more: _Beyond) -> dict[str, frozenset[int]]:
    """The sizes of both, by system."""
    return {name: beyond.get(name, frozenset()) | more.get(name, frozenset()) for name in {**beyond, **more}}


def _tried_in_time(found: Collected, beyond: _Beyond, scores: Scores | None) -> tuple[_Beyond, Collected]:
    """Sizes beyond, and those among which one may keep the deadline, as far as one that keeps all limits."""
    query = found.inputs.query
    tried = _tried_beyond(found, beyond, scores)
    if not 0.0 < query.within_s < math.inf:
        return beyond, tried
    for doublings in _DOUBLINGS_BEYOND:
        larger = {
            one.system.name: sizes
            for one in tried.systems
            if _breaks_more_than_size(_least_beyond(one)) and (sizes := _in_time(query, one, doublings))
        }
        if not larger:
            break
        beyond = _joined(beyond, larger)
        tried = _tried_beyond(found, beyond, scores)
    return beyond, tried


def _tried_beyond(found: Collected, beyond: _Beyond, scores: Scores | None) -> Collected:
    """What was collected, with sizes beyond limits, each as the question that has it as its limit would."""
    query, inputs = found.inputs.query, found.inputs
    if beyond:
        also = replace(
            inputs.also, beyond=tuple((name, tuple(sorted(beyond[name]))) for name in sorted(beyond))
        )
        found = collect_candidates(query, inputs.catalogue, scores, runs=inputs.user.runs, also=also)
    if not any(is_assumed_host(one.system, query) for one in found.systems):
        return found
    return replace(found, systems=tuple(_in_one_host(found.inputs, one) for one in found.systems))


def _in_one_host(inputs: Inputs, one: SystemCandidates) -> SystemCandidates:
    """A system, with cards beyond a stock that is taken to be one host in one too, where one takes them."""
    if not is_assumed_host(one.system, inputs.query):
        return one
    sizes = one.assessment.sizes
    shown = [each for each in one.candidates if each.num_accelerators <= sizes.most]
    hosts: dict[Cluster | None, list[int]] = {}
    for size in {each.num_accelerators for each in one.candidates} | sizes.beyond:
        if size > sizes.most:
            nodes = with_number(one.system, size, inputs.query, inputs.catalogue).cluster
            hosts.setdefault(nodes, []).append(size)
    for nodes, members in hosts.items():
        there = system_candidates(inputs, assess(inputs, replace(one.system, cluster=nodes)))
        shown += [each for each in there.candidates if each.num_accelerators in members]
    return replace(one, candidates=tuple(shown))


def _first_to_fit(one: SystemCandidates) -> frozenset[int]:
    """The fewest accelerators of a system on which something fits, where more than may be taken are needed.

    Empty where fewer have a time, and where nothing says that a few more are enough.
    """
    survey, sizes = one.assessment.survey, one.assessment.sizes
    is_open = sizes.fewest <= sizes.most and one.candidates
    if survey is None or not is_open or any(each.time_s is not None for each in one.allowed):
        return frozenset()
    size = least_fitting(survey.problem, sizes.most)
    return frozenset() if size is None else frozenset({size})


def _beyond_own(one: SystemCandidates) -> list[Candidate]:
    """The candidates of a system beyond those that may be taken that have a time."""
    most = one.assessment.sizes.most
    return [each for each in one.candidates if each.time_s is not None and each.num_accelerators > most]


def _least_kept(one: SystemCandidates) -> Candidate | None:
    """The smallest size beyond those of a system that keeps all limits but that of size; None without one."""
    kept = [each for each in _beyond_own(one) if not _breaks_more_than_size(each)]
    return min(kept, key=lambda each: (each.num_accelerators, each.id), default=None)


def _finer(one: SystemCandidates, least: Candidate, fitting: _Beyond) -> frozenset[int]:
    """Smaller sizes that may be enough too: down to the next that was tried; empty where all were."""
    size, nodes = least.num_accelerators, one.assessment.cluster
    sizes = one.assessment.sizes
    is_least = size in fitting.get(one.system.name, ()) or sizes.fewest > sizes.most
    if nodes is None or is_least or _breaks_more_than_size(least):
        return frozenset()
    low = max(each for each in {*sizes.tried, sizes.most} if each < size)
    return frozenset(_grid(one).between(low, size))


def _grid(one: SystemCandidates) -> SizesBeyond:
    """What is tried beyond the limit of a system that the catalogue has."""
    nodes, survey = one.assessment.cluster, one.assessment.survey
    assert nodes is not None
    return sizes_beyond(nodes, {} if survey is None else survey.problem.choices)


def _breaks_more_than_size(each: Candidate | None) -> bool:
    """Whether a candidate, or there being none, leaves another limit broken than that of size."""
    return each is None or any(one.name != "max_accelerators" for one in each.broken)


def _in_time(query: TrainingQuery, one: SystemCandidates, doublings: int | None) -> frozenset[int]:
    """Sizes of a system among which to look for one that keeps the deadline; empty where fewer would.

    doublings: beyond the size that perfect scaling would need; None for as many as LARGE_SYSTEM.
    """
    sizes = one.assessment.sizes
    timed = [each for each in one.allowed if each.time_s is not None]
    most = sizes.most if timed else max((each.num_accelerators for each in _beyond_own(one)), default=0)
    times = [each.known_time_s.value for each in timed or _beyond_own(one)]
    is_host = is_assumed_host(one.system, query)  # few cards: nobody has hundreds of them
    if not times or is_host or one.assessment.cluster is None or sizes.fewest > sizes.most:
        return frozenset()
    ideal = most * min(times) / query.within_s  # at perfect scaling
    if ideal <= most or most >= LARGE_SYSTEM:
        return frozenset()
    if doublings is None or ideal > LARGE_SYSTEM:
        end = LARGE_SYSTEM
    else:
        end = min(LARGE_SYSTEM, 1 << math.ceil(math.log2(ideal) + doublings))
    return frozenset(_grid(one).usual(sizes.most, end))


def _least_beyond(one: SystemCandidates) -> Candidate | None:
    """The smallest size beyond those of a system that keeps most of the limits; None without one.

    The fastest where none keeps the deadline, unless a size of the system is as fast.
    """
    larger = _beyond_own(one)
    in_time = [each for each in larger if all(limit.name != "deadline_s" for limit in each.broken)]
    least = _least_kept(one) or min(in_time, key=lambda each: (each.num_accelerators, each.id), default=None)
    if least is not None:
        return least
    timed = [*(each for each in one.allowed if each.time_s is not None), *larger]
    fastest = min(
        timed, key=lambda each: (each.known_time_s.value, each.num_accelerators, each.id), default=None
    )
    return fastest if fastest in larger else None


def _size_beyond_usual(found: Collected, least: Mapping[str, Candidate]) -> int | None:
    """Up to how many accelerators to estimate where the question leaves that open; None where it does not.

    least: as `_least_beyond_limits`. The least that keeps all limits; else as many as a refusal has to know
    of all systems. Of desktop cards few are tried, whatever the deadline.
    """
    sizes = {name: each for name, each in least.items() if name in _open_systems(found)}
    kept = [each.num_accelerators for each in sizes.values() if not _breaks_more_than_size(each)]
    return min(kept) if kept else max((each.num_accelerators for each in sizes.values()), default=None)


def _open_systems(found: Collected) -> set[str]:
    """The systems, by name, of which neither the question nor what they are limits the number."""
    query = found.inputs.query
    is_stated = any(each is not None for each in (query.max_accelerators, query.sizes, query.num_nodes))
    if is_stated or query.compares_rentable:
        return set()
    systems = (one.system for one in found.systems)
    return {each.name for each in systems if each.stock is None and not each.is_desktop}


def _with_sizes_beyond_limits(
    found: Collected, least: Mapping[str, Candidate], scores: Scores | None
) -> Collected:
    """What was collected, with the sizes that break the limit of size alone, or are the first to fit.

    least: as `_least_beyond_limits`. Where no limit is stated they were tried before.
    """
    opened = _open_systems(found)
    no_time = {one.system.name for one in found.systems if all(each.time_s is None for each in one.allowed)}
    shown = {
        name: frozenset({each.num_accelerators})
        for name, each in least.items()
        if name not in opened and (name in no_time or not _breaks_more_than_size(each))
    }
    return _tried_beyond(found, shown, scores)


def _on_spot(found: Collected) -> Candidate | None:
    """What would be taken on spot capacity, which costs less, where that keeps all limits.

    None too where no budget is broken, or the question states terms or prices of its own.
    """
    query = found.inputs.query
    if query.budget_usd is None or query.terms or query.quotes is not None:
        return None
    moved = [
        with_terms(found.inputs, one.assessment, each, "spot")
        for one in found.systems
        if one.assessment.cluster is not None and one.system.usd_per_accelerator_hour is None
        for each in one.candidates
        if any(limit.name == "budget_usd" for limit in each.broken)
    ]
    kept = {each.id: each for each in moved if each.time_s is not None and not each.broken}
    best = choose(timed_figures(kept.values()), rule_of(query), {})
    return None if best is None else kept[best]


def rule_of(query: TrainingQuery) -> Rule:
    """What is best for a question, and within which limits."""
    return Rule(
        objective=query.objective,
        value_of_time_usd_per_hour=query.value_of_time_usd_per_hour or 0.0,
        deadline_s=math.inf if query.deadline_s is None else query.deadline_s,
        queue_s=query.queue_s or 0.0,
        start_s=query.start_s,
        spend_usd=query.spend_usd,
        currency=query.own_currency or ("USD", 1.0),
    )


def answer_of(collected: Collected) -> Answer:
    """The answer of all systems' candidates."""
    inputs, found, refused = collected.inputs, collected.systems, collected.refused
    query, rule = inputs.query, rule_of(inputs.query)
    candidates = tuple(each for one in found for each in one.candidates)
    curves = {group: curve for one in found for group, curve in one.curves.items()}
    selection = select(candidates, rule, curves)
    best = selection.recommended
    own = next((one for one in found if best is not None and one.system.name == best.system), found[0])
    equilibria = () if best is None else selection.equilibria.get(best.group, ())
    bought, unbought = _bought(query, own, best)
    survey = own.assessment.survey
    offered = system_offers(candidates, best, rule, selection.balance)
    changes = () if best is None else flips(candidates, rule, selection.balance, best)
    return Answer(
        question=query,
        dataset=embedded.version(),
        workload=inputs.training.workload,
        work=inputs.training.budget.work,
        systems=tuple(_system(inputs, one, selection, best) for one in found),
        candidates=candidates,
        recommended=best,
        refusal=selection.refusal or (None if candidates else _nothing_runs(found)),
        equilibria=equilibria,
        limited_by=default_answer(equilibria).limited_by if equilibria else None,
        frontier=selection.frontier,
        flips=changes,
        time_values=time_values(timed_figures(candidates), rule),
        offers=offered,
        alternatives=() if best is None else alternatives(candidates, best, rule, offered, changes),
        rejected=tuple(each for one in found for each in rejections(one.assessment)),
        reasons=()
        if best is None
        else reasons(inputs, own.assessment, selection, best, own.rates[best.terms]),
        to_measure=() if best is None else tuple(to_measure(inputs, own.assessment, best)),
        records=tuple(records(inputs, own.assessment, best)),
        sensitivity=None if best is None else tornado_of(best),
        renting=() if best is None else tuple(_renting(inputs, own.assessment, best)),
        ownership=bought,
        rollout=None if best is None else _rollout_split(own.assessment, best),
        safer=None if best is None else safer_strategy(own.assessment, best),
        chosen_for_you=_chosen_for_you(inputs, own.assessment, best),
        notes=tuple(
            dict.fromkeys(
                (
                    *inputs.training.budget.notes,
                    *(
                        note
                        for one in found
                        for note in notes(inputs, one.assessment, best if one is own else None)
                    ),
                    *(() if inputs.user.runs is None else inputs.user.runs.notes),
                    *_stated_on_host(query, best, survey),
                    *slow_results([one.assessment for one in found]),
                    *_does_not_fit(found),
                    *_electricity_unused(query, candidates),
                    *_outside_of_budgets(query, found),
                    *(f"{NOT_COMPARED}{each}." for each in refused),
                    *unbought,
                )
            )
        ),
        num_considered=sum(_num_considered(one.assessment)[0] for one in found),
        search_s=0.0 if survey is None else survey.search_s,
    )


def _time_per_step_time(known: Problem, best: Candidate | None) -> float:
    """Time of the training over that of its steps; of steps that were measured, not of the model's."""
    if best is not None and best.grade == "measured" and known.training.workload.rollout is None:
        return known.time_per_own_step_time
    return known.time_per_step_time


def _rollout_split(assessment: Assessment, best: Candidate) -> RolloutSplit | None:
    """How the recommended accelerators generate and train; None where nothing is generated."""
    survey, batch = assessment.survey, best.global_batch_samples
    if survey is None or batch is None or best.model is None:
        return None
    return survey.problem.rollout_split(best.num_accelerators, batch, best.model.step_s)


def _nothing_runs(found: Sequence[SystemCandidates]) -> Refusal:
    """The refusal where no strategy is legal and fits: the memory that would do, of the closest system."""
    short = [
        Relaxation(
            constraint="memory_bytes",
            limit=each.available,
            needed=each.needed,
            candidate=None,
        )
        for one in found
        for each in rejections(one.assessment)
        if each.reason == "memory_bytes" and each.needed is not None and each.available is not None
    ]
    closest = min(short, key=lambda each: each.needed / each.limit, default=None)
    return Refusal(cheapest=None, fastest=None, relaxations=() if closest is None else (closest,))


def _runs_on_another_size(assessment: Assessment) -> bool:
    """Whether a strategy runs on the power of two below the number asked for, or the one above."""
    if assessment.survey is None:
        return False
    asked = assessment.sizes.most
    below = 1 << (asked.bit_length() - 1)
    sizes = tuple(size for size in (below, 2 * below) if size != asked)
    return any(each.best for each in assessment.survey.problem.surveyed(sizes))


def _needs_memory(refusal: Refusal | None) -> bool:
    """Whether what is refused would fit into more memory."""
    return refusal is not None and any(each.constraint == "memory_bytes" for each in refusal.relaxations)


def _with_near_sizes(first: Answer, found: Collected, scores: Scores | None) -> Answer:
    """An answer without any time, with the sizes nearest to the number asked for that have one."""
    asked = max(one.assessment.sizes.most for one in found.systems)
    near = _near_sizes(asked, found, scores)
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
        first, notes=(*first.notes, f"The nearest sizes that have a time: {sizes} (--accelerators).")
    )


def _near_sizes(asked: int, found: Collected, scores: Scores | None) -> tuple[int, ...]:
    """The size below a number of accelerators and the one above that have a time, as far as there are any.

    Tried are multiples of powers of two next to it, which are shared out more easily the larger the power,
    and the powers of two up to the next; and the number itself, whose uncertainty may be that of more.
    """
    powers = [1 << each for each in range(asked.bit_length() + 1)]
    sizes = {asked // each * each for each in powers} | {-(-asked // each) * each for each in powers}
    tried = sorted(each for each in {*sizes, *powers} if 1 <= each <= MAX_ACCELERATORS)[-MAX_SIZES:]
    query = replace(
        found.inputs.query, sizes=Sizes(listed=tuple(tried)), num_nodes=None, max_accelerators=None
    )
    try:
        others = collect_candidates(query, found.inputs.catalogue, scores, runs=found.inputs.user.runs)
    except (EvidenceError, UsageError):
        return ()
    timed = {
        each.num_accelerators for one in others.systems for each in one.allowed if each.time_s is not None
    }
    below, above = [each for each in timed if each < asked], [each for each in timed if each > asked]
    return (*sorted(below)[-1:], *sorted(above)[:1])


def _chosen_for_you(inputs: Inputs, assessment: Assessment, best: Candidate | None) -> tuple[str, ...]:
    """What the question left open and was chosen, in words."""
    chosen = [*inputs.training.chosen_for_you, *assessment.system.chosen_for_you]
    least = {"cost": "money", "energy": "energy"}.get(inputs.query.objective)
    if least is not None and inputs.query.deadline_s is None:
        chosen.append(f"no deadline: few accelerators take the least {least} (--deadline)")
    if best is None:
        return tuple(chosen)
    chosen += _host_words(assessment)
    chosen += batch_words(
        inputs.training,
        best.global_batch_samples,
        is_published=best.has_published_batch,
        is_of_runs=best.strategy is None and best.grade == "measured",
    )
    chosen += _other_batch_words(inputs, assessment, best)
    if best.strategy is not None:
        chosen += _strategy_words(best.strategy, inputs.query, assessment.survey)
    uneven = uneven_batch(inputs, assessment.survey, best.num_accelerators)
    if uneven is not None:
        chosen.append(f"{uneven[:1].lower()}{uneven[1:]}")  # a note of other sizes begins with it
    # Other terms than the usual ones stand beside the name of what is recommended.
    is_usual = best.terms == "on_demand" and best.price is not None and not best.price.is_owned
    if not inputs.query.terms and is_usual:
        chosen.append("rented on demand (--terms)")
    return tuple(chosen)


def _host_words(assessment: Assessment) -> Iterator[str]:
    """The hosts that desktop cards are taken to sit in, where more may be taken than one holds."""
    system, nodes = assessment.system, assessment.cluster
    is_ours = system.is_desktop and system.name == system.accelerator and "node_size" not in system.node
    if nodes is not None and is_ours and assessment.sizes.most > nodes.node_size:
        rate = format_si(8 * nodes.node_size * nodes.inter.byte_per_s, "bit/s")
        yield f"hosts of {nodes.node_size}, joined by {rate} (--node-size)"


def _other_batch_words(inputs: Inputs, assessment: Assessment, best: Candidate) -> Iterator[str]:
    """That the user's runs are of other batches than what is recommended, and what carries them to it."""
    batches = sorted({each.global_batch_samples for each in inputs.runs_on(best.accelerator)})
    if batches and best.global_batch_samples not in {None, *batches}:
        how = (
            "the model carries them to it"
            if assessment.run_fit is not None
            else "only the range has what it changes"
        )
        ran = ", ".join(format_count(each) for each in batches)
        yield f"your runs are of batch {ran}: {how}"


# Of the time, what another precision takes at most for it to be named.
_NOTICED_RATIO: Final = 0.98


def _strategy_words(chosen: Strategy, query: TrainingQuery, survey: Survey | None) -> Iterator[str]:
    """What of a strategy was chosen though the question does not ask for it: what computes, and where."""
    stated = query.fixed_names
    if "precision" not in stated:
        yield f"precision {chosen.precision} (--precision for others)"
    elif survey is not None and (ratio := usual_precision_ratio(survey.problem, chosen)) < _NOTICED_RATIO:
        yield f"{chosen.precision} as stated, though bf16 takes {ratio:.2f}x the time by the model"
    if "implementation" not in stated:
        yield f"{chosen.implementation} code (--fix implementation=eager,compiled)"
    if query.software is None and survey is not None:
        yield from _software_words(survey.problem, chosen)
        if "schedule" not in stated:
            yield from _schedule_words(survey.problem, chosen)
    if survey is not None:
        for option, words in on_host(survey.problem, chosen).items():
            if option not in stated:
                yield f"{words} (--fix {option}={value_text(STAYS[option])})"


def _stated_on_host(query: TrainingQuery, best: Candidate | None, survey: Survey | None) -> Iterator[str]:
    """How much lies on the host of what the question moves there, and that hosts have less where they do."""
    if best is None or best.strategy is None or survey is None:
        return
    too_much = beyond_hosts(survey.problem, best.strategy)
    if too_much is not None:
        yield f"{CHECK}{too_much}."
    for option, words in on_host(survey.problem, best.strategy).items():
        if option in query.fixed_names:
            yield f"{words[:1].upper()}{words[1:]}."


def _software_words(known: Problem, chosen: Strategy) -> Iterator[str]:
    """The software that was chosen, and what others would make of a strategy."""
    if known.software is not None:
        ratios = software_ratios(known, chosen)
        others = ", ".join(f"{other} {ratio:.2f}x the time" for other, ratio in ratios.items())
        yield f"software {known.software.name} (--software{f': {others}' if others else ''})"


def _schedule_words(known: Problem, chosen: Strategy) -> Iterator[str]:
    """Where the pipeline's schedule is one that the software whose times are taken does not run: who does."""
    if known.software is None or chosen.schedule in known.software.options["schedule"]:
        return
    name = known.software.name
    others = [each.name for each in SOFTWARE if each.is_current and each.can_run(chosen)]
    yield f"{chosen.schedule} of {', '.join(others)}, not {name} (--software {name})"


def _system(
    inputs: Inputs, one: SystemCandidates, selection: Selection, best: Candidate | None
) -> SystemAnswer:
    assessment = one.assessment
    system, survey = assessment.system, assessment.survey
    first = (system.name, system.terms[0])
    considered, fitting = _num_considered(assessment)
    is_best = best is not None and best.system == system.name
    return SystemAnswer(
        name=system.name,
        title=system.title,
        cluster=assessment.cluster,
        topology=system.topology,
        node_size=None if assessment.cluster is None else assessment.cluster.node_size,
        stock=system.stock,
        rates=one.rates,
        estimates=assessment.estimates,
        equilibria=selection.equilibria.get(first, ()),
        balance_size=selection.balance.get(first),
        best_strategies=_best_strategies(inputs, one, best) if is_best and best is not None else (),
        user_runs=inputs.runs_on(system.accelerator),
        trainings=None if inputs.user.runs is None else inputs.user.runs.trainings_on(system.accelerator),
        rejected=tuple(rejections(assessment)),
        unfit=tuple(unfit_sizes(assessment, {each.num_accelerators for each in one.candidates})),
        records=tuple(records(inputs, assessment, best if is_best else None)),
        calibration=None if survey is None else survey.problem.model.calibration,
        software=None if survey is None or (ran := survey.problem.software) is None else ran.name,
        time_per_step_time=None
        if survey is None
        else _time_per_step_time(survey.problem, best if is_best else None),
        transferred_from=None if assessment.transferred is None else assessment.transferred.chip.title,
        run_fit=None if assessment.run_fit is None else assessment.run_fit.sentence,
        num_considered=considered,
        num_fitting=fitting,
        search_s=0.0 if survey is None else survey.search_s,
        notes=assessment.notes,
    )


def _best_strategies(inputs: Inputs, one: SystemCandidates, best: Candidate) -> tuple[Candidate, ...]:
    """The recommended strategy, the best of other layouts of that size, and plain data parallelism."""
    survey = one.assessment.survey
    if survey is None or best.strategy is None:
        return ()
    rivals = SURVEYS.compared(survey, best.strategy, num_found=max(inputs.query.num_strategies, 1))
    rates = rates_of(inputs.query, one.system, best.terms)
    found = (with_strategy(inputs, one.assessment, best, each, rates) for each in rivals)
    return tuple(sorted(found, key=lambda each: each.work_s.value))


def _num_considered(assessment: Assessment) -> tuple[int, int]:
    if assessment.survey is None:
        return 0, 0
    searches = [each.found for each in assessment.survey.at(assessment.sizes.tried)]
    return sum(each.num_legal for each in searches), sum(each.num_fitting for each in searches)


def _renting(inputs: Inputs, assessment: Assessment, best: Candidate) -> Sequence[Renting]:
    """The recommended candidate on each terms that have a price; on its own where the price is the user's."""
    if assessment.system.usd_per_accelerator_hour is not None or assessment.cluster is None:
        return [Renting(candidate=best, tornado=None)]
    found = [best if terms == best.terms else with_terms(inputs, assessment, best, terms) for terms in TERMS]
    return [Renting(candidate=each, tornado=tornado_of(each)) for each in found if each.price is not None]


def _bought(
    query: TrainingQuery, own: SystemCandidates, best: Candidate | None
) -> tuple[Ownership | None, tuple[str, ...]]:
    """Buying against renting where that was asked, or why it was not compared."""
    if not query.is_buying or best is None or best.time_s is None:
        return None, ()
    cluster, time = own.assessment.cluster, best.time_s
    if cluster is None:
        return None, (
            f"Buying was not compared: {best.accelerator} is not in the catalogue (--hardware FILE.toml).",
        )
    bought = purchase(
        cluster.accelerator, user_usd=query.purchase_usd, hosting_usd_per_month=query.hosting_usd_per_month
    )
    if bought is None:
        return None, (
            f"Buying was not compared: no purchase price of {best.accelerator} is known (--purchase USD).",
        )
    is_owned = best.price is not None and best.price.is_owned
    rent = price(cluster.accelerator.slug, terms=best.terms) if is_owned else best.price
    rates = replace(own.rates[best.terms], price=rent)
    try:
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
        return None, (f"Buying was not compared: {err}{missing}.",)


def _is_unpriced(one: SystemCandidates) -> bool:
    return all(each.price is None for each in one.rates.values())


def _outside_of_budgets(query: TrainingQuery, found: Sequence[SystemCandidates]) -> Sequence[str]:
    """Systems that keep no budget because nobody knows their price."""
    if query.budget_usd is None:
        return []
    return [
        f"No price of {one.system.accelerator} is known, so the budget cannot be checked: give "
        f"--price {one.system.name}=USD."
        for one in found
        if _is_unpriced(one)
    ]


def _electricity_unused(query: TrainingQuery, candidates: Sequence[Candidate]) -> Iterator[str]:
    """That a price of electricity which the question states is in no money shown, where it is in none."""
    is_owned = any(each.price is not None and each.price.is_owned for each in candidates)
    if query.electricity_usd_per_kwh is not None and not (is_owned or query.is_buying):
        yield (
            f"A price of electricity of {query.electricity_usd_per_kwh:g} USD per kWh: it changes nothing of "
            "what is rented, whose price includes it (of your own machine: --price SYSTEM=0, or --buy)."
        )


def _does_not_fit(found: Sequence[SystemCandidates]) -> Sequence[str]:
    return [
        f"{NOTHING_FITS}{one.system.title}: it {why}."
        for one in found
        if (why := nothing_fits(one.assessment)) is not None
    ]


def _of_another_set_up(runs: Sequence[UserRun]) -> str:
    """What runs lack whose batch or precision the question excludes, and which they have."""
    batches = sorted({each.global_batch_samples for each in runs})
    precisions = sorted({each.precision for each in runs if each.precision is not None})
    words = (
        f"has the batch and precision of the question; it has batch {_first_of(map(format_count, batches))}"
    )
    return f"{words} in {_first_of(precisions)}" if precisions else words


def _first_of(names: Iterable[str]) -> str:
    """Names as a person reads them; of many, the first."""
    shown = [*names]
    return ", ".join(shown if len(shown) <= _MOST_NAMED else [*shown[:_MOST_NAMED], "..."])


# What restricts strategies and sizes.
_RESTRICTING: Final = ("fixed", "precision", "sizes", "num_nodes", "max_accelerators", "global_batch_samples")


def _restrictions(query: TrainingQuery, faults: Sequence[str]) -> str:
    """The options of a question that restrict strategies or sizes, of which other values may do."""
    names: Sequence[str] = _RESTRICTING
    if all("precision=" in each for each in faults):  # of the chip, however many there are
        names = ("precision",) if query.precision else ("fixed",)
    stated = [f"--{FIELDS[name].option}" for name in names if getattr(query, name)]
    return " or ".join(stated or ["--precision"])


def _no_estimate(inputs: Inputs, assessment: Assessment) -> EvidenceError:
    """What is missing, where no estimator has a time on a system."""
    title, system = inputs.training.workload.title, assessment.system
    faults = about_fixed([each.reason for each in rejections(assessment)], inputs.query)
    if faults:
        return EvidenceError(
            f"no strategy of {title} is possible on {system.title} as asked: "
            f"{'; '.join(faults[:_MOST_NAMED])}",
            missing=(f"other values of {_restrictions(inputs.query, faults)}, or another system",),
        )
    found = ""
    runs = inputs.user.runs
    if assessment.cluster is None:
        found = ": give your runs with --runs DIR"
        if runs is not None:
            found = f": {runs.where} holds no run of it on this system that "
            here = runs.on(system.accelerator)
            found += _of_another_set_up(here) if here else "states its batch and rate"
            elsewhere = sorted({*runs.machines} - {system.accelerator})
            found += f"; it has runs on {_first_of(elsewhere)}" if elsewhere else ""
            others = runs.other_workloads
            found += f"; other runs there are of {_first_of(others)}" if others else ""
    return EvidenceError(
        f"no estimate of how long {title} takes on {system.title}{found}",
        missing=assessment.missing or (measuring(inputs.query),),
    )


def _refuse(refused: Sequence[EvidenceError], missing_of_traces: Sequence[str]) -> NoReturn:
    if len(refused) == 1 and not missing_of_traces:
        raise refused[0]
    raise EvidenceError(
        "; ".join(map(str, refused)),
        missing=(*dict.fromkeys(item for each in refused for item in each.missing), *missing_of_traces),
    )

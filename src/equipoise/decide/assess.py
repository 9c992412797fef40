"""One system for one question: its sizes, the estimates of every estimator, and what the model was fitted to.

What a system is assessed to be depends on the question and on nothing else that is asked about (law 3).
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.calibration import Note
from equipoise.calibration.curves import CurveQuestion, shipped_forecasts
from equipoise.calibration.forecasts import results_of
from equipoise.calibration.profiles import CalibratedModel, model_for, with_links
from equipoise.decide.answer import Infeasibility, UnfitSize
from equipoise.decide.combine import combine, nearest_size, with_time
from equipoise.decide.estimators.measured import measured_estimates
from equipoise.decide.estimators.model import (
    NearChip,
    at_published_level,
    carried_over,
    is_of_other_software,
    model_estimates,
    nearest_chips,
    order_bounds,
    published_levels,
    transfer_record,
    violated_bound,
)
from equipoise.decide.estimators.published import (
    PublishedEvidence,
    Slowing,
    all_ratios,
    as_new_submitter,
    as_restricted,
    as_slow,
    at_users_level,
    carried_by_model,
    known_sizes,
    largest_known,
    of_batch,
    of_other_nodes,
    published_estimates,
    published_evidence,
    published_sizes,
    results_at_size,
    time_ratios,
)
from equipoise.decide.evidence import Estimates, OrderBound, Shortfall, UserRun
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.systems import RequestedSystem, usual_sizes
from equipoise.decide.question.training import Training
from equipoise.decide.strategies.remedies import remedy
from equipoise.decide.strategies.size_searches import (
    NO_EXTRA_SIZES,
    SEARCH_CACHE,
    ExtraSizes,
    SizeRange,
    StrategySearches,
    fixed_ranks,
    size_range,
)
from equipoise.decide.strategies.strategy_search import Problem, problem
from equipoise.decide.user_evidence import TraceCheck, UserEvidence, checks, ran_elsewhere
from equipoise.decide.user_evidence.fit import (
    UserFit,
    UserLevel,
    far_slower,
    fitted_estimates,
    levelled_estimates,
    user_fit,
    user_level,
)
from equipoise.decide.user_evidence.runs import (
    Recast,
    UserSteps,
    other_batches,
    recasts,
    user_steps,
    whole_trainings,
)
from equipoise.errors import EvidenceError, SpecError
from equipoise.perfmodel.space import Fault
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import Accelerator, at_least_as_good
from equipoise.spec.mlperf import Scores, accelerators_of
from equipoise.spec.strategy import PRIORS_ONLY

_NUM_STRATEGIES: Final = 3


class Assessment(Struct, frozen=True, kw_only=True):
    """All that is known of one system for the question.

    cluster: with links as the tables or the user's files state them. searches: None where the model cannot
    search. published: None where nothing published is asked about. run_fit: what the user's own steps made of
    the model. transferred: the chip whose results were carried over. bounds: by size, what other chips take,
    within which estimated times have to lie. missing: what would give estimates.
    """

    system: RequestedSystem
    sizes: SizeRange
    cluster: Cluster | None
    estimates: tuple[Estimates, ...] = ()
    searches: StrategySearches | None = None
    published: PublishedEvidence | None = None
    run_fit: UserFit | UserLevel | None = None
    transferred: NearChip | None = None
    bounds: Mapping[int, tuple[OrderBound, ...]] = field(default_factory=dict)
    traces: tuple[TraceCheck, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


class Inputs(Struct, frozen=True, kw_only=True):
    """What every system of a question is assessed with.

    unrestricted: the training without `--fix`, `--precision` and a stated batch, of which results were
    published; None where none of them is stated.
    scores: None where nothing published may be used. extra: sizes to estimate besides those that the question
    chooses from.
    """

    query: TrainingQuery
    training: Training
    unrestricted: Training | None = None
    catalogue: Catalogue
    scores: Scores | None
    user: UserEvidence
    extra: ExtraSizes = NO_EXTRA_SIZES

    @property
    def restricts_batch(self) -> bool:
        """Whether the question states the batch of a training that published results chose freely."""
        free = self.unrestricted
        return free is not None and free.states_batch != self.training.states_batch

    @property
    def at_batch(self) -> "Inputs":
        """The same question, whose batch is no restriction: published results have to have it."""
        if self.unrestricted is None:
            return self
        batch, is_stated = self.training.global_batch_samples, self.training.states_batch
        kept = replace(self.unrestricted, global_batch_samples=batch, states_batch=is_stated)
        return replace(self, unrestricted=kept)

    @property
    def evidence_batch(self) -> int | None:
        """The batch that published results need to have: one that is stated, where no ratio converts it."""
        return None if self.restricts_batch else self.query.global_batch_samples

    def runs_on(self, accelerator: str) -> tuple[UserRun, ...]:
        """The user's set-ups measured on an accelerator, or on what is not stated; empty without runs."""
        return () if self.user.runs is None else self.user.runs.on(accelerator)


def assess(inputs: Inputs, system: RequestedSystem) -> Assessment:
    """The estimates of a system: from the user's runs, published results, the performance model."""
    if system.cluster is None or (system.is_cpu and inputs.user.runs is not None):
        return _by_runs_alone(inputs, system)
    sizes = size_range(
        inputs.query,
        system,
        flop=inputs.training.stated_flop,
        known=_known_sizes(inputs, system),
        extra=inputs.extra,
        fixed_ranks=fixed_ranks(inputs.training.choices),
    )
    chip = system.cluster.accelerator
    traces = inputs.user.traces
    notes = [*map(Note, system.notes), *(ran_elsewhere(traces, chip.slug, chip.title) if traces else ())]
    missing: list[str] = []
    searches: StrategySearches | None = None
    run_fit: UserFit | UserLevel | None = None
    traced = checks(traces, None, system.cluster, None) if traces else ()
    model = start_model(inputs, system)
    try:
        start = problem(
            inputs.training,
            system.cluster,
            model,
            num_best=max(_NUM_STRATEGIES, inputs.query.num_strategies),
            software=inputs.query.software,
            published_batches=_published_batches(inputs, system),
        )
        if traces:
            traced = checks(traces, start.load, system.cluster, start.model.parameters)
        runs = inputs.runs_on(chip.slug)
        run_fit = _run_fit(_user_steps(start, runs), start)
        notes += _doubts(start, runs)
        if isinstance(run_fit, UserFit):
            start = replace(start, model=run_fit.model)
        start = replace(start, has_own_steps=run_fit is not None)
        # Those with results too, which are asked for next: all are searched at once.
        searches = SEARCH_CACHE.searches(start, _with_results(inputs, system.accelerator, sizes.tried))
        searches = replace(searches, sizes=searches.at(sizes.tried))
    except (EvidenceError, SpecError) as err:  # what nothing states of the chip: others may estimate times
        missing += err.missing if isinstance(err, EvidenceError) and err.missing else [str(err)]
        notes.append(Note(f"No strategy was searched: {err}."))
        inputs = inputs.at_batch
    published = _published(inputs, system, sizes)
    missing += () if published is None else published.missing
    known = Assessment(
        system=system,
        sizes=sizes,
        cluster=system.cluster,
        searches=searches,
        published=published,
        run_fit=run_fit,
        traces=traced,
        missing=tuple(dict.fromkeys(missing)),
        notes=tuple(notes),
    )
    estimates, near = _collected(inputs, known)
    known = replace(known, estimates=estimates, transferred=near)
    known = replace(known, bounds=_bounds(inputs, known))
    if published is None or not inputs.restricts_batch:
        return known
    shown = of_batch(published.at_size, inputs.training.global_batch_samples)
    return replace(known, published=replace(published, at_size=shown))


def _published_batches(inputs: Inputs, system: RequestedSystem) -> dict[int, int]:
    """The global batch of the best result of each size, where the training is that of published results.

    Submitters chose theirs for the links that they had: sizes that slower ones join may want another.
    """
    query = inputs.query
    is_theirs = inputs.training.budget.is_to_target and query.round is None and inputs.user.runs is None
    if inputs.scores is None or not is_theirs:
        return {}
    found = results_at_size(inputs.scores, inputs.training.workload.slug, system.accelerator)
    batches = {size: results[0].global_batch_samples for size, results in found.items()}
    most = _most_on_usual_links(inputs, system)
    return {size: batch for size, batch in batches.items() if batch is not None and size <= most}


def start_model(inputs: Inputs, system: RequestedSystem) -> CalibratedModel:
    """The model before any training of the user: a calibration, with the user's own links where given."""
    assert system.cluster is not None
    calibrated = _model_for(inputs, system.cluster.accelerator)
    return with_links(calibrated, inputs.user.collectives, system.cluster)


def _model_for(inputs: Inputs, chip: Accelerator) -> CalibratedModel:
    """The calibration that a question asks for, on a chip."""
    return model_for(chip, inputs.training.workload, software=inputs.query.software)


def _known_sizes(inputs: Inputs, system: RequestedSystem) -> Sequence[int]:
    """The sizes of a system with results of the training that is asked about, ascending."""
    is_usual = inputs.training.budget.is_to_target and inputs.evidence_batch is None
    slug = inputs.training.workload.slug
    return published_sizes(inputs.scores if is_usual else None, slug, system.accelerator)


def rejections(assessment: Assessment) -> Iterator[Infeasibility]:
    """Why strategies of the sizes asked about are no candidates: memory first, then what is not legal."""
    searches = assessment.searches
    if searches is None:
        return
    within = [each for each in searches.sizes if assessment.sizes.holds(each.num_accelerators)]
    too_large = sum(each.found.num_legal - each.found.num_fitting for each in within)
    nearest = [each.found.nearest_bytes for each in within if each.found.nearest_bytes is not None]
    if too_large:
        held = searches.problem.cluster.accelerator.memory_bytes
        yield Infeasibility(
            needed=min(nearest, default=None),
            available=None if held is None else float(held),
            count=too_large,
        )
    faults = sum((each.found.faults for each in within), Counter[Fault]())
    for fault, count in faults.most_common():
        yield Infeasibility(fault=fault, count=count)


def unfit_sizes(assessment: Assessment, known: Collection[int]) -> Iterator[UnfitSize]:
    """The sizes that may be taken at which no strategy runs, other than those known otherwise."""
    searches = assessment.searches
    for each in () if searches is None else searches.at(assessment.sizes.tried):
        size = each.num_accelerators
        if each.best is None and size not in known and assessment.sizes.holds(size):
            # Where some fit, what does not is an engine that generates.
            needed_bytes = None if each.found.num_fitting else each.found.nearest_bytes
            yield UnfitSize(num_accelerators=size, needed_bytes=needed_bytes)


def nothing_fits(assessment: Assessment) -> Shortfall | None:
    """What the training needs where no strategy fits on any size asked about; None where some do."""
    searches = assessment.searches
    if searches is None or any(
        each.best is not None for each in searches.sizes if assessment.sizes.holds(each.num_accelerators)
    ):
        return None
    return remedy(searches.problem, assessment.sizes.most)


def is_batch_beyond_published(inputs: Inputs) -> bool:
    """Whether a batch is stated that lies more than a doubling outside of those of all published results.

    What they took carries no information about it: how fast such a batch trains is left to the model.
    """
    batch, known = inputs.query.global_batch_samples, inputs.training.budget.batches
    return batch is not None and known is not None and not known[0] / 2 <= batch <= 2 * known[1]


def _published(inputs: Inputs, system: RequestedSystem, sizes: SizeRange) -> PublishedEvidence | None:
    """What is published of the training on the system; None where no published training is asked about."""
    query, scores = inputs.query, inputs.scores
    # No result is of trainings whose trained part is fixed, not even by the model's ratio.
    is_another = bool(query.fixed) and inputs.unrestricted is None
    if scores is None or not inputs.training.budget.is_to_target or is_another:
        return None
    if is_batch_beyond_published(inputs):
        return None
    wanted = sorted(_with_results(inputs, system.accelerator, sizes.tried))
    question = replace(_curve_question(inputs, system.accelerator, wanted), law=query.law, round=query.round)
    trainings = None if inputs.user.runs is None else inputs.user.runs.trainings_on(system.accelerator)
    return published_evidence(scores, question, trainings=trainings, with_results=query.round is None)


def _collected(inputs: Inputs, known: Assessment) -> tuple[tuple[Estimates, ...], NearChip | None]:
    """The estimates of every estimator, the surest kind first; the chip they were carried from."""
    searches, run_fit, near = known.searches, known.run_fit, None
    measured = _measured(inputs, known)
    modelled = None if searches is None else model_estimates(_with_open_batches(searches))
    submitted: Estimates | None = None
    if known.published is not None:
        submitted, modelled, near = _submitted(inputs, known, known.published, modelled)
        if near is not None and modelled is not None and run_fit is None:
            # The model carried them over: its own times would count it twice.
            modelled = replace(modelled, references=frozenset(modelled.by_size))
    # Ratios of its times may carry published ones; they are of another amount of work.
    if inputs.training.budget.samples is None:
        modelled = None
    # The user's own times state the user's level: no spread of other submitters is left.
    if submitted is not None and inputs.query.submitter == "new" and inputs.user.runs is None:
        submitted = as_new_submitter(submitted, shipped_forecasts().submitters)
    if measured is not None:
        ran = sorted({each.num_accelerators for each in inputs.runs_on(known.system.accelerator)})
        if submitted is not None:
            submitted = at_users_level(submitted, measured, ran, grade="carried")
        if modelled is not None and run_fit is None:
            modelled = at_users_level(modelled, measured, ran, grade="measured")
    if modelled is not None and searches is not None and run_fit is not None:
        if isinstance(run_fit, UserFit):
            modelled = fitted_estimates(modelled, searches, run_fit)
        else:
            modelled = levelled_estimates(modelled, searches, run_fit)
    return tuple(each for each in (measured, submitted, modelled) if each is not None), near


def _submitted(
    inputs: Inputs, known: Assessment, published: PublishedEvidence, modelled: Estimates | None
) -> tuple[Estimates | None, Estimates | None, NearChip | None]:
    """Estimates from published results, carried by the model where they lack sizes, the chip or the strategy.

    Returned with the model's own, as wrong as they are beside published ones, and the chip carried from.
    """
    found, near, system = published_estimates(published), None, known.system
    restricted = _restricted_by(inputs, system)
    searches = _also_known(inputs, known, system.accelerator)
    usual = None if searches is None else _free_searches(inputs, system, searches)
    free = None if usual is None else model_estimates(_with_open_batches(usual))
    if found is not None and searches is not None:
        is_stated = inputs.evidence_batch is not None
        beyond = 0.0 if is_stated else largest_known(published) or max(published.at_size, default=0)
        found = _where_trainable(found, usual or searches, beyond=beyond)
    if searches is None or modelled is None or usual is None or free is None:
        # Whether a fixed strategy runs, let alone how fast, is not known.
        if found is not None and restricted == _DESCRIBED:
            return of_other_nodes(found), modelled, None
        return None if _is_restricted(inputs, system) else found, modelled, None
    by_law: set[int] = set()
    if found is not None:
        by_law = {*found.by_size}
        found = carried_by_model(found, free)
    else:
        found, near = _transferred(inputs, known)
    levels = {} if found is None else published_levels(found, free, known_sizes(published))
    slowings = _slowings(inputs, known, searches)
    for each in slowings:
        found = None if found is None else as_restricted(found, each)
    if found is not None and near is None:
        own = model_estimates(_with_open_batches(searches))
        assert own is not None  # it has the sizes of `modelled`
        at_level = at_published_level(as_slow(own, free, slowings), found, levels).by_size
        modelled = replace(
            modelled,
            by_size={size: at_level[size] for size in modelled.by_size if size in at_level},
            references=frozenset(found.by_size) - by_law,
        )
    return found, modelled, near


def _also_known(inputs: Inputs, known: Assessment, accelerator: str) -> StrategySearches | None:
    """Searches at the sizes tried and those with results of an accelerator that times are carried from."""
    if known.searches is None:
        return None
    return SEARCH_CACHE.searches(
        known.searches.problem, _with_results(inputs, accelerator, known.sizes.tried)
    )


def _free_searches(inputs: Inputs, system: RequestedSystem, searches: StrategySearches) -> StrategySearches:
    """The same searches without what is restricted."""
    return _unrestricted(inputs, system, searches) if _is_restricted(inputs, system) else searches


def _free_estimates(inputs: Inputs, system: RequestedSystem, searches: StrategySearches) -> Estimates | None:
    """The model's estimates at searched sizes without what is restricted, at batches that it chooses."""
    return model_estimates(_with_open_batches(_free_searches(inputs, system, searches)))


def _with_open_batches(searches: StrategySearches) -> StrategySearches:
    """Searches in which sizes with published results are free in their batch, as all others are.

    Of the ratio of the times of two sizes nothing is then left but what the sizes do: a submitter's batch may
    be far from what the model would choose.
    """
    posed = searches.problem
    if posed.training.states_batch:
        return searches
    published = {each.num_accelerators for each in searches.sizes} & {*posed.published_batches}
    opened = SEARCH_CACHE.searches(replace(posed, published_batches={}), published).sizes
    # What is fixed may allow the published batch alone.
    found = {each.num_accelerators: each for each in opened if each.best is not None}
    return replace(searches, sizes=tuple(found.get(each.num_accelerators, each) for each in searches.sizes))


def _slowings(inputs: Inputs, known: Assessment, searches: StrategySearches) -> list[Slowing]:
    """How many times as long each restriction makes a training, by size: a stated batch, then all others.

    A batch first, for there are results of it: what else is restricted lengthens those.
    """
    found, system = [], known.system
    free = _free_searches(inputs, system, searches)
    others = _restricted_by(inputs, system)
    if inputs.restricts_batch:
        at_size = {} if known.published is None else known.published.at_size
        results = of_batch(at_size, inputs.training.global_batch_samples)
        at_batch = _unrestricted(inputs.at_batch, system, searches) if others else searches
        found.append(Slowing(by="stated batch", ratios=_ratios(at_batch, free), results=results))
        free = at_batch
    if others:
        found.append(Slowing(by=others, ratios=_ratios(searches, free)))
    return found


def _ratios(restricted: StrategySearches, free: StrategySearches) -> dict[int, float]:
    """By size, how many times as long the model says that a restricted training takes.

    With the batch of the best result where there is one: those who are restricted may keep it.
    """
    alone, others = map(model_estimates, (restricted, free))
    return {} if alone is None or others is None else time_ratios(restricted=alone, free=others)


def _is_restricted(inputs: Inputs, system: RequestedSystem) -> bool:
    """Whether the question restricts anything of a training that published results had free."""
    return inputs.restricts_batch or bool(_restricted_by(inputs, system))


def _restricted_by(inputs: Inputs, system: RequestedSystem) -> str:
    """What besides its batch the question restricts of a training that published results had free, in words.

    Empty where nothing.
    """
    assert system.cluster is not None
    query, usual = inputs.query, _unrestricted_cluster(inputs, system)
    restrictions = {
        "fixed strategy": inputs.unrestricted is not None and bool(query.fixed),
        "stated precision": inputs.unrestricted is not None and bool(query.precision),
        "stated software": _states_software(query),
        "power limit": query.power_cap_w is not None and usual.accelerator != system.cluster.accelerator,
        "oversubscribed network": query.oversubscription is not None,
        "stated node": bool({*system.node} - _OF_NETWORK),
        _DESCRIBED: _is_described_slower(inputs, system),
    }
    return " and ".join(name for name, restricts in restrictions.items() if restricts)


# Facts of the network between nodes, not of a node.
_OF_NETWORK: Final = frozenset({"oversubscription", "leaf_nodes"})
# What restricts a system that is described with less than submitters of its accelerator usually have.
_DESCRIBED: Final = "network and node as described"


def _is_described_slower(inputs: Inputs, system: RequestedSystem) -> bool:
    """Whether a named system has slower links, or other nodes, than its accelerator is usually sold in."""
    described = inputs.catalogue.cluster(system.name)
    usual = inputs.catalogue.cluster(system.accelerator)
    return (
        described.node_size != usual.node_size
        or described.inter.byte_per_s < usual.inter.byte_per_s
        or described.intra.byte_per_s < usual.intra.byte_per_s
    )


def _most_on_usual_links(inputs: Inputs, system: RequestedSystem) -> float:
    """How many are joined by links no slower than those with which the accelerator is usually sold."""
    own, usual = system.cluster, inputs.catalogue.cluster(system.accelerator)
    assert own is not None
    if own.intra.byte_per_s < usual.intra.byte_per_s:
        return 1
    is_slower = (
        own.node_size < usual.node_size
        or own.inter.byte_per_s < usual.inter.byte_per_s
        or own.oversubscription > usual.oversubscription
    )
    return own.node_size if is_slower else math.inf


def _states_software(query: TrainingQuery) -> bool:
    """Whether the question names the software by whose measurements the model is calibrated."""
    return query.software not in {None, PRIORS_ONLY}


def _unrestricted_cluster(inputs: Inputs, system: RequestedSystem) -> Cluster:
    """A system without the power limit, the network and the node that the question states or describes."""
    assert system.cluster is not None
    query = inputs.query
    usual = inputs.catalogue.cluster(system.name)
    if _is_described_slower(inputs, system):
        # Its hosts feed samples as they are: submitters had no others.
        return replace(inputs.catalogue.cluster(system.accelerator), num_cores=usual.num_cores)
    if {*system.node} - _OF_NETWORK:
        return usual
    if query.power_cap_w is None and query.oversubscription is None:
        return system.cluster
    return replace(
        system.cluster,
        accelerator=usual.accelerator,
        oversubscription=usual.oversubscription,
        leaf_nodes=usual.leaf_nodes,
    )


def _with_results(inputs: Inputs, accelerator: str, tried: Sequence[int]) -> set[int]:
    """The sizes tried, and those with results of an accelerator from which times are carried to them."""
    is_published = inputs.training.budget.is_to_target
    scores = inputs.scores if is_published else None
    known = published_sizes(scores, inputs.training.workload.slug, accelerator)
    return {*tried, *_nearest_known(tried, known)}


def _nearest_known(tried: Sequence[int], known: Sequence[int]) -> set[int]:
    """The sizes with results from which the model carries times to those tried.

    Whatever else is asked about, a time is then carried from the same size.
    """
    return {nearest_size(known, size) for size in tried if known}


def _unrestricted(inputs: Inputs, system: RequestedSystem, searches: StrategySearches) -> StrategySearches:
    """The same sizes, searched with the same model without what is restricted."""
    start, cluster = searches.problem, _unrestricted_cluster(inputs, system)
    model = start.model
    if _states_software(inputs.query) and not start.has_own_steps:
        model = start_model(replace(inputs, query=replace(inputs.query, software=None)), system)
    found = replace(
        problem(inputs.unrestricted or inputs.training, cluster, model, num_best=1),
        has_own_steps=start.has_own_steps,
        published_batches=start.published_batches,
    )
    return SEARCH_CACHE.searches(found, [each.num_accelerators for each in searches.sizes])


def _where_trainable(estimates: Estimates, searches: StrategySearches, *, beyond: float) -> Estimates | None:
    """The estimates without sizes beyond one, the largest with results, on which no strategy runs and fits.

    None where there is none. A curve of published times goes on to sizes among which nobody can share out
    a batch.
    """
    trained = {each.num_accelerators for each in searches.sizes if each.best is not None}
    kept = {size: each for size, each in estimates.by_size.items() if size in trained or size <= beyond}
    return replace(estimates, by_size=kept) if kept else None


def _run_fit(steps: UserSteps | None, start: Problem) -> UserFit | UserLevel | None:
    """What the user's steps make of the model that would be searched with."""
    if steps is None:
        return None
    found = user_fit(steps, start.model)
    return user_level(steps, start.model, found) if isinstance(found, str) else found


def _doubts(start: Problem, runs: Sequence[UserRun]) -> tuple[Note, ...]:
    """Notes of steps that are far slower than modelled; of no stated precision they are held against fp32."""
    stated = [each if each.precision else replace(each, precision="fp32") for each in runs]
    steps = _user_steps(start, stated)
    return () if steps is None else tuple(far_slower(steps, start.model))


def _user_steps(start: Problem, runs: Sequence[UserRun]) -> UserSteps | None:
    """The runs that the model expresses."""
    if not runs:
        return None
    is_eager = start.choices.get("implementation") == ("eager",)
    return user_steps(
        runs,
        start.load,
        start.cluster,
        start.model.parameters,
        implementation="eager" if is_eager else "compiled",
    )


def _measured(inputs: Inputs, known: Assessment) -> Estimates | None:
    """Estimates from the user's steps; beyond sizes that ran only where the model is not fitted to them."""
    runs, nodes = inputs.runs_on(known.system.accelerator), known.cluster
    if not runs or nodes is None:
        return None
    budget, workload = inputs.training.budget, inputs.training.workload
    searches, run_fit = known.searches, known.run_fit
    links = None if searches is None else searches.problem.model.links
    nodes = nodes if links is None else links.on(nodes)
    advised: dict[str, Recast] = {}
    if searches is not None:
        as_they_ran = whole_trainings(runs, searches.problem)
        for run_id, log_sd in other_batches(runs, searches).items():
            kept = as_they_ran.get(run_id, Recast(factor=1.0, log_sd=0.0, keeps_strategy=True))
            as_they_ran[run_id] = replace(kept, log_sd=math.hypot(kept.log_sd, log_sd))
        advised = as_they_ran | ({} if run_fit is None else recasts(run_fit.steps, searches))
    if not isinstance(run_fit, UserFit):
        return measured_estimates(
            runs, budget, known.sizes.tried, cluster=nodes, workload=workload, recasts=advised
        )
    # Of other sizes, and of the curve, a model fitted to the runs is more certain than the runs alone.
    found = measured_estimates(runs, budget, (), cluster=None, workload=None, recasts=advised)
    return None if found is None else replace(found, curves=None)


def _transferred(inputs: Inputs, known: Assessment) -> tuple[Estimates | None, NearChip | None]:
    """Results of the nearest chip of which they can be carried over to the sizes that the model times.

    Which chip that is does not depend on the sizes asked about.
    """
    assert known.cluster is not None
    assert inputs.scores is not None
    best, slug = results_of(inputs.scores).best, inputs.training.workload.slug
    usual = usual_sizes(known.system)
    for near in nearest_chips(best, slug, known.cluster.accelerator, usual, inputs.catalogue):
        searches = _also_known(inputs, known, near.chip.slug)
        free = None if searches is None else _free_estimates(inputs, known.system, searches)
        found = None if free is None else _from_chip(inputs, near, free)
        if found is not None:
            return found, near
    return None, None


def _from_chip(inputs: Inputs, near: NearChip, modelled: Estimates) -> Estimates | None:
    """Times of a near chip, carried over to the sizes that the model times; None where nothing can be."""
    there = _as_answered(inputs, near.chip.slug, sorted(modelled.by_size))
    if there is None:
        return None
    found = carried_over(
        there.published,
        near,
        here_s=_seconds(modelled),
        there_s=_seconds(there.modelled),
        record=transfer_record(near.nearness),
    )
    return None if found is None else carried_by_model(found, modelled)


class _Answered(Struct, frozen=True, kw_only=True):
    """What a chip with results takes, as an answer about it alone says. modelled: by the model alone."""

    published: Estimates
    modelled: Estimates

    @property
    def is_of_other_software(self) -> bool:
        """Whether all results are so slow that their software says nothing of others'."""
        submitted = [size for size, grade in self.published.grade.items() if grade == "published"]
        modelled_s = _seconds(self.modelled)
        return all(
            is_of_other_software(self.published.by_size[size].time_s.value, modelled_s.get(size))
            for size in submitted
        )


def _as_answered(inputs: Inputs, accelerator: str, sizes: Sequence[int]) -> _Answered | None:
    """What a chip with results takes at sizes where nothing is restricted; None where the model has no time.

    At sizes without results both estimators and the bounds count, as for the chip itself: what is carried to
    another chip is then on the right side of what the answer says of this one.
    """
    assert inputs.scores is not None
    try:
        nodes = inputs.catalogue.cluster(accelerator)
        evidence = published_evidence(inputs.scores, _curve_question(inputs, accelerator, sizes))
        found = published_estimates(evidence)
        model = model_for(nodes.accelerator, inputs.training.workload)
        posed = problem(inputs.unrestricted or inputs.training, nodes, model, num_best=1)
    except (EvidenceError, SpecError):
        return None
    searches = SEARCH_CACHE.searches(posed, sizes)
    free = model_estimates(searches)
    beyond = largest_known(evidence) or max(evidence.at_size, default=0)
    found = None if found is None else _where_trainable(found, searches, beyond=beyond)
    if found is None or free is None:
        return None
    carried = carried_by_model(found, free)
    at_level = at_published_level(free, carried, published_levels(carried, free, known_sizes(evidence)))
    bounds = order_bounds(nodes, _results_of_others(inputs, nodes), has_results=True, modelled_s={})
    times = {}
    for size, each in carried.by_size.items():
        there = (
            [each, at_level.by_size[size]] if size in found.by_size and size in at_level.by_size else [each]
        )
        time_s = combine([one.time_s for one in there], [one.log_sd for one in there]).time.value
        bound = None if size in evidence.at_size else violated_bound(time_s, bounds.get(size, ()))
        time_s = time_s if bound is None else bound.time_s
        times[size] = with_time(each, time_s, each.log_sd, name=each.name)
    return _Answered(published=replace(carried, by_size=times), modelled=free)


def _comparable(inputs: Inputs, nodes: Cluster) -> Iterator[Cluster]:
    """The usual nodes of other chips with results that are at least as good as a system's, or no better."""
    assert inputs.scores is not None
    own = nodes.accelerator
    for name in accelerators_of(inputs.scores.of(inputs.training.workload.slug)):
        try:
            other = inputs.catalogue.cluster(name)
        except SpecError:  # what nobody states of its node
            continue
        chip = other.accelerator
        if name != own.slug and (at_least_as_good(own, chip) or at_least_as_good(chip, own)):
            yield other


def _results_of_others(inputs: Inputs, nodes: Cluster) -> list[tuple[Cluster, Estimates]]:
    """The results of the chips that are comparable with a system's."""
    found = ((other, _results(inputs, other)) for other in _comparable(inputs, nodes))
    return [(other, results) for other, results in found if results is not None]


def _results(inputs: Inputs, nodes: Cluster) -> Estimates | None:
    """The published results of a chip, at their own sizes alone."""
    assert inputs.scores is not None
    known = results_at_size(inputs.scores, inputs.training.workload.slug, nodes.accelerator.slug)
    return published_estimates(PublishedEvidence(at_size=of_batch(known, inputs.evidence_batch), curve=None))


def _bounds(inputs: Inputs, known: Assessment) -> dict[int, tuple[OrderBound, ...]]:
    """Bounds on the times of a system from results of other chips of its maker; none where the user has runs.

    Where no result is of the chip itself, what is carried to a size from the others' results counts too.
    Others had no such restriction: it moves their times as it moves the system's own.
    """
    assert known.cluster is not None
    near, searches, kinds = known.transferred, known.searches, {each.estimator for each in known.estimates}
    if inputs.scores is None or "published" not in kinds or "measured" in kinds or inputs.query.round:
        return {}
    searches = searches if "model" in kinds else None
    free = None if searches is None else _free_estimates(inputs, known.system, searches)
    others = _results_of_others(inputs, known.cluster)
    if near is not None and free is not None:
        others = [(each, _at_all_sizes(inputs, known, each) or results) for each, results in others]
    bounds = order_bounds(
        known.cluster,
        others,
        has_results=near is None,
        bounds_carried=near is not None and near.nearness == "maker",
        modelled_s=_seconds(free),
    )
    # Results of the chip itself are what they are, and what restricts it makes them no faster.
    submitted = set() if known.published is None else {*known.published.at_size}
    bounds = {size: of_size for size, of_size in bounds.items() if size not in submitted}
    if not _is_restricted(inputs, known.system):
        return bounds
    ratios = {} if searches is None else all_ratios(_slowings(inputs, known, searches))
    return {
        size: tuple(replace(each, time_s=ratios[size] * each.time_s) for each in of_size)
        for size, of_size in bounds.items()
        if size in ratios
    }


def _at_all_sizes(inputs: Inputs, known: Assessment, other: Cluster) -> Estimates | None:
    """What another chip takes at sizes without results too; None where that is no bound, or not known.

    A better chip's is none of one whose times come from the same chip in another form or with the same peaks,
    which say more.
    """
    assert known.cluster is not None
    assert known.transferred is not None
    name = other.accelerator.slug
    is_better = not at_least_as_good(known.cluster.accelerator, other.accelerator)
    if is_better and known.transferred.nearness == "chip":
        return None
    found = _as_answered(inputs, name, sorted(_with_results(inputs, name, known.sizes.tried)))
    if found is None or (is_better and found.is_of_other_software):
        return None
    return found.published


def _seconds(estimates: Estimates | None) -> dict[int, float]:
    """The time of each size."""
    return {} if estimates is None else {size: each.time_s.value for size, each in estimates.by_size.items()}


def _curve_question(inputs: Inputs, accelerator: str, sizes: Sequence[int]) -> CurveQuestion:
    """What is asked of the published results of a chip: their curve at sizes, at the batch asked about."""
    batch = inputs.evidence_batch
    return CurveQuestion(
        workload=inputs.training.workload.slug,
        accelerator=accelerator,
        sizes=tuple(sizes),
        catalogue=inputs.catalogue,
        global_batch_samples=None if batch is None else float(batch),
    )


def _by_runs_alone(inputs: Inputs, system: RequestedSystem) -> Assessment:
    """A machine that only the user's own runs are of: ranks on processors, or an unknown chip.

    No model converts between batches or precisions: only runs with those of the question count.
    """
    runs = () if inputs.user.runs is None else inputs.user.runs.asked_about(system.accelerator, inputs.query)
    ran = sorted({each.num_accelerators for each in runs})
    limit = inputs.query.max_accelerators
    most = limit or max(ran, default=1)
    within = [size for size in ran if size <= most]
    found = measured_estimates(runs, inputs.training.budget, within, cluster=None, workload=None)
    traces = tuple(
        TraceCheck(trace=each)
        for each in inputs.user.traces
        if each.accelerator in {None, system.accelerator}
    )
    return Assessment(
        system=system,
        sizes=SizeRange(
            tried=tuple(within), fewest=1, most=most, limited_by="data" if limit is None else "question"
        ),
        cluster=None,
        estimates=() if found is None or not within else (found,),
        traces=traces,
        missing=(measuring(inputs.query),),
        notes=(
            *map(Note, system.notes),
            *ran_elsewhere(inputs.user.traces, system.accelerator, system.title),
        ),
    )


def measuring(query: TrainingQuery) -> str:
    """What measures steps of a training: `bench`, with batch and precisions of the question, where it can."""
    from equipoise.bench.training import ZOO  # noqa: PLC0415 - only for a refusal

    if ":" not in query.workload and query.workload not in {each.name for each in ZOO}:
        return "measured steps: equipoise.watch(model, out='runs') in your training loop; then --runs runs"
    batch = "" if query.global_batch_samples is None else f" --batch {query.global_batch_samples}"
    precision = f" --precision {','.join(query.precision)}" if query.precision else ""
    return f"measured steps: equipoise bench {query.workload}{batch}{precision} --out runs; then --runs runs"

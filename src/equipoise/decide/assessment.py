"""The assessment of one system for one question, and its searches with and without restrictions."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.calibration.curves import CurveQuestion
from equipoise.calibration.profiles import CalibratedModel, model_for, profiles, runs_on, with_links
from equipoise.decide.answer import Infeasibility, UnfitSize
from equipoise.decide.estimators.model import NearChip, is_of_other_software, model_estimates
from equipoise.decide.estimators.published import (
    PublishedEvidence,
    Slowing,
    of_batch,
    published_estimates,
    published_evidence,
    published_sizes,
    results_at_size,
    time_ratios,
)
from equipoise.decide.evidence import Estimates, OrderBound, PublishedResult, Shortfall, UserRun
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.systems import RequestedSystem
from equipoise.decide.question.training import Training, training, with_strategy
from equipoise.decide.strategies.remedies import remedy
from equipoise.decide.strategies.size_searches import (
    NO_EXTRA_SIZES,
    SEARCH_CACHE,
    ExtraSizes,
    SizeRange,
    StrategySearches,
)
from equipoise.decide.strategies.strategy_search import Problem, problem, usual_precision
from equipoise.decide.user_evidence import TraceCheck, UserEvidence
from equipoise.decide.user_evidence.fit import UserFit, UserLevel
from equipoise.decide.user_evidence.runs import stated_options
from equipoise.errors import SpecError
from equipoise.notes import Note
from equipoise.perfmodel.space import Fault
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import at_least_as_good
from equipoise.spec.mlperf import Scores, accelerators_of
from equipoise.spec.strategy import PRIORS_ONLY, SOFTWARE, Software, Strategy, Value, peak_in

if TYPE_CHECKING:
    from equipoise.runs.readers.measurements import Measurements

# Facts that describe the network between nodes rather than a node.
_NETWORK_FACTS: Final = frozenset({"oversubscription", "leaf_nodes"})
# The restriction of a system described with slower links or other nodes than its accelerator usually has.
DESCRIBED: Final = "network and node as described"


class Assessment(Struct, frozen=True, kw_only=True):
    """Everything known about one system for the question.

    cluster: with links from the tables or the user's files. searches: None if the model cannot search.
    published: None if the question is not about a published training. user_runs: the user's set-ups on the
    system whose times count. run_fit: the model fitted to the user's own steps, or their level. transferred:
    the chip whose results were carried over. bounds: by size, bounds on the time from other chips.
    slow_ratio: least ratio of published to modelled time, if all results are so slow that they do not count.
    missing: what would give estimates.
    """

    system: RequestedSystem
    sizes: SizeRange
    cluster: Cluster | None
    estimates: tuple[Estimates, ...] = ()
    searches: StrategySearches | None = None
    published: PublishedEvidence | None = None
    user_runs: tuple[UserRun, ...] = ()
    run_fit: UserFit | UserLevel | None = None
    transferred: NearChip | None = None
    bounds: Mapping[int, tuple[OrderBound, ...]] = field(default_factory=dict)
    slow_ratio: float | None = None
    traces: tuple[TraceCheck, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def results(self) -> Mapping[int, tuple[PublishedResult, ...]]:
        """The comparable published results of each size, the best first."""
        return {} if self.published is None else self.published.at_size

    @property
    def results_s(self) -> dict[int, float]:
        """The best published result of each size, in seconds."""
        return {size: known[0].score_s for size, known in self.results.items() if known}


class Inputs(Struct, frozen=True, kw_only=True):
    """The inputs with which every system of a question is assessed.

    unrestricted: the training without `--fix`, `--precision` and a stated batch, as in published results;
    None if none of them is stated.
    scores: None if no published results may be used. extra: sizes to estimate besides those that the question
    selects from.
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
        """The same question with its batch not treated as a restriction: published results must have it."""
        if self.unrestricted is None:
            return self
        batch, is_stated = self.training.global_batch_samples, self.training.states_batch
        kept = replace(self.unrestricted, global_batch_samples=batch, states_batch=is_stated)
        return replace(self, unrestricted=kept)

    @property
    def evidence_batch(self) -> int | None:
        """The batch that published results must have: the stated one, unless results can be converted."""
        return None if self.restricts_batch else self.query.global_batch_samples

    def runs_on(self, accelerator: str) -> tuple[UserRun, ...]:
        """The user's set-ups measured on an accelerator, or on an unstated one; empty without runs."""
        return () if self.user.runs is None else self.user.runs.on(accelerator)

    def trainings_on(self, accelerator: str) -> "Measurements | None":
        """The user's whole trainings on an accelerator, in a precision asked for if some ran in it."""
        asked = self.training.choices.get("precision", ())
        return None if self.user.runs is None else self.user.runs.trainings_on(accelerator, asked)

    def sizes_that_ran(self, accelerator: str) -> set[int]:
        """The sizes on which the user timed steps or whole trainings on an accelerator."""
        own = self.trainings_on(accelerator)
        trained = () if own is None else map(int, own.num_accelerators)
        return {*trained, *(each.num_accelerators for each in self.runs_on(accelerator))}

    def beside_own_trainings(self, accelerator: str) -> "Inputs":
        """The inputs adapted to the user's whole trainings on an accelerator.

        Their precision becomes that of the answer if none is asked for. Options that they state differently
        from the question become those of `unrestricted`; options that they do not state are assumed to be as
        asked.
        """
        own = self.trainings_on(accelerator)
        if own is None:
            return self
        ran: dict[str, Value] = {} if own.precision is None else {"precision": own.precision}
        with suppress(SpecError):  # a strategy given by name, as by `bench`, states no options
            ran = stated_options(own.strategy or "") | ran
        free = self.training.choices
        asked = {"precision": (ran["precision"],), **free} if "precision" in ran else {**free}
        ran = {name: ran[name] for name in {*self.query.fixed_names, "precision"} & {*ran} & {*asked}}
        asked |= {name: (value,) for name, value in ran.items() if value in asked[name]}
        as_ran = asked | {name: (value,) for name, value in ran.items()}
        about = replace(self.training, choices=asked)
        return replace(
            self,
            training=about,
            unrestricted=None if as_ran == asked else replace(about, choices=as_ran),
        )

    def beside_own_runs(self, system: RequestedSystem) -> "Inputs":
        """The inputs adapted to the user's runs: with their precision, unless the question states one.

        Published results are taken to have the usual precision.
        """
        known, nodes = self.beside_own_trainings(system.accelerator), system.cluster
        choices, runs = known.training.choices, known.user.runs
        if nodes is None or runs is None or "precision" in choices:
            return known
        ran = runs.precision_for(system.accelerator)
        is_usual = ran == usual_precision(nodes, known.training)
        if ran is None or is_usual or peak_in(nodes.accelerator, ran) is None:
            return known
        # No published results apply to a fixed training of adapters.
        free = known.training if known.unrestricted is None and not self.query.fixed else known.unrestricted
        about = replace(known.training, choices={**choices, "precision": (ran,)})
        return replace(known, training=about, unrestricted=free)


def start_model(inputs: Inputs, system: RequestedSystem) -> CalibratedModel:
    """The calibrated model before any fit to the user's runs, with the user's measured links if given."""
    nodes = system.cluster
    assert nodes is not None
    calibrated = model_for(nodes.accelerator, inputs.training.workload, software=inputs.query.software)
    return with_links(calibrated, inputs.user.collectives, nodes)


def published_batches(inputs: Inputs, system: RequestedSystem) -> dict[int, int]:
    """The global batch of the best result of each size, if the training is that of published results.

    Left out for sizes joined by slower links than usual: submitters chose their batches for their own links.
    """
    query = inputs.query
    is_theirs = inputs.training.budget.is_to_target and inputs.user.runs is None
    if inputs.scores is None or not is_theirs:
        return {}
    found = results_at_size(inputs.scores, inputs.training.workload.slug, system.accelerator, query.round)
    batches = {size: results[0].global_batch_samples for size, results in found.items()}
    most = most_on_usual_links(inputs, system)
    return {size: batch for size, batch in batches.items() if batch is not None and size <= most}


def sizes_with_results(inputs: Inputs, system: RequestedSystem) -> Sequence[int]:
    """The sizes of a system that have results of the training asked about, ascending."""
    is_usual = inputs.training.budget.is_to_target and inputs.evidence_batch is None
    slug = inputs.training.workload.slug
    return published_sizes(inputs.scores if is_usual else None, slug, system.accelerator)


def published_of(inputs: Inputs, system: RequestedSystem, sizes: SizeRange) -> PublishedEvidence | None:
    """The published evidence on the training and system; None if no published training is asked about."""
    query, scores = inputs.query, inputs.scores
    if scores is None or not inputs.training.budget.is_to_target:
        return None
    trainings = inputs.trainings_on(system.accelerator)
    # Results do not apply to a training with a fixed trained part, not even scaled by the model's ratio.
    is_another = bool(query.fixed) and inputs.unrestricted is None
    if trainings is None and (is_another or is_batch_beyond_published(inputs)):
        return None
    wanted = sorted(with_nearest_results(inputs, system.accelerator, sizes.tried))
    question = replace(curve_question(inputs, system.accelerator, wanted), law=query.law, round=query.round)
    return published_evidence(scores, question, trainings=trainings)


def rejections(assessment: Assessment) -> Iterator[Infeasibility]:
    """Why strategies at the sizes asked about were rejected: memory first, then faults."""
    searches = assessment.searches
    if searches is None:
        return
    within = [each for each in searches.sizes if assessment.sizes.holds(each.num_accelerators)]
    too_large = sum(each.found.num_legal - each.found.num_fitting for each in within)
    nearest = [each.found.nearest_bytes for each in within if each.found.nearest_bytes is not None]
    if too_large:
        held = searches.problem.cluster.accelerator.usable_memory_bytes
        yield Infeasibility(
            needed=min(nearest, default=None),
            available=held,
            count=too_large,
        )
    faults = sum((each.found.faults for each in within), Counter[Fault]())
    for fault, count in faults.most_common():
        yield Infeasibility(fault=fault, count=count)


def unfit_sizes(assessment: Assessment, known: Collection[int]) -> Iterator[UnfitSize]:
    """The eligible sizes at which no strategy runs, except the `known` ones."""
    searches = assessment.searches
    for each in () if searches is None else searches.at(assessment.sizes.tried):
        size = each.num_accelerators
        if each.best is None and size not in known and assessment.sizes.holds(size):
            # If some strategies fit, the engine that generates is what does not fit.
            needed_bytes = None if each.found.num_fitting else each.found.nearest_bytes
            yield UnfitSize(num_accelerators=size, needed_bytes=needed_bytes)


def nothing_fits(inputs: Inputs, assessment: Assessment) -> Shortfall | None:
    """The shortfall if no strategy fits at any eligible size; None if some do."""
    if assessment.searches is None or fits(assessment):
        return None
    return shortfall(inputs, assessment, assessment.sizes.most)


def fits(assessment: Assessment) -> bool:
    """Whether a strategy runs at any eligible size."""
    searches = assessment.searches
    return searches is not None and any(
        each.best is not None for each in searches.sizes if assessment.sizes.holds(each.num_accelerators)
    )


def shortfall(inputs: Inputs, assessment: Assessment, num_accelerators: int) -> Shortfall | None:
    """What the training needs on this many accelerators, what they have, and changes that would make it fit.

    None if it fits or no strategy is legal.
    """
    if assessment.searches is None:
        return None

    def pose(query: TrainingQuery) -> Problem:
        is_same = query.train == inputs.query.train
        about = (
            with_strategy(inputs.training, query)
            if is_same
            else training(query, inputs.catalogue, inputs.scores)
        )
        stated = replace(inputs, query=query, training=about)
        return problem_of(stated, assessment.system, start_model(stated, assessment.system), num_best=1)

    return remedy(assessment.searches.problem, num_accelerators, asked=inputs.query, pose=pose)


def problem_of(inputs: Inputs, system: RequestedSystem, model: CalibratedModel, *, num_best: int) -> Problem:
    """The search problem of a question on a system with a model. Raises SpecError as `problem` does."""
    assert system.cluster is not None
    return problem(
        inputs.beside_own_runs(system).training,
        system.cluster,
        model,
        num_best=num_best,
        software=inputs.query.software,
        published_batches=published_batches(inputs, system),
    )


def is_batch_beyond_published(inputs: Inputs) -> bool:
    """Whether the stated batch is more than a factor of two outside the range of all published batches.

    Published times carry no information about such a batch: its speed is left to the model.
    """
    batch, known = inputs.query.global_batch_samples, inputs.training.budget.batches
    return batch is not None and known is not None and not known[0] / 2 <= batch <= 2 * known[1]


def searches_with_results(inputs: Inputs, known: Assessment, accelerator: str) -> StrategySearches | None:
    """Searches at the sizes tried and at the sizes with results of an accelerator to carry times from."""
    if known.searches is None:
        return None
    return SEARCH_CACHE.searches(
        known.searches.problem, with_nearest_results(inputs, accelerator, known.sizes.tried)
    )


def with_nearest_results(inputs: Inputs, accelerator: str, tried: Sequence[int]) -> set[int]:
    """The sizes tried, and for each the nearest sizes below and above with results of an accelerator.

    Times are carried over from the nearest of these that the model times too, so the result does not depend
    on the other sizes asked about. Both are needed: one may be too small for the model to fit, or too large
    for its batches.
    """
    is_published = inputs.training.budget.is_to_target
    scores = inputs.scores if is_published else None
    known = published_sizes(scores, inputs.training.workload.slug, accelerator)
    return {*tried, *(each for size in tried for each in _nearest_sizes(known, size))}


def _nearest_sizes(known: Sequence[int], size: int) -> Iterator[int]:
    """The nearest of the known sizes (ascending) above and below a size; itself if it is one of them."""
    yield from known[bisect_left(known, size) :][:1]
    yield from known[: bisect_right(known, size)][-1:]


def free_searches(inputs: Inputs, system: RequestedSystem, searches: StrategySearches) -> StrategySearches:
    """The same searches without the question's restrictions."""
    return _unrestricted(inputs, system, searches) if is_restricted(inputs, system) else searches


def free_estimates(inputs: Inputs, system: RequestedSystem, searches: StrategySearches) -> Estimates | None:
    """The model's unrestricted estimates at the searched sizes, with batches chosen by the model."""
    return model_estimates(with_open_batches(free_searches(inputs, system, searches)))


def with_open_batches(searches: StrategySearches) -> StrategySearches:
    """Searches in which sizes with published results choose their batch freely, like all others.

    The ratio of the times of two sizes then reflects only the sizes: a submitter's batch may be far from the
    one that the model would choose.
    """
    # A fixed strategy may be possible only with the published batch.
    opened = (
        each if each.freed is None or each.freed.best is None else each.freed for each in searches.sizes
    )
    return replace(searches, sizes=tuple(opened))


def where_trainable(estimates: Estimates, searches: StrategySearches, *, beyond: float) -> Estimates | None:
    """The estimates without sizes above `beyond` at which no strategy runs; None if none are left.

    beyond: the largest size with results. A curve of published times extends to sizes that cannot divide a
    batch.
    """
    trained = {each.num_accelerators for each in searches.sizes if each.best is not None}
    kept = {size: each for size, each in estimates.by_size.items() if size in trained or size <= beyond}
    return replace(estimates, by_size=kept) if kept else None


def is_restricted(inputs: Inputs, system: RequestedSystem) -> bool:
    """Whether the question restricts a training in any way in which published results were free."""
    return inputs.restricts_batch or bool(restricted_by(inputs, system))


def slowings_of(inputs: Inputs, known: Assessment, searches: StrategySearches) -> list[Slowing]:
    """The factors by which restrictions lengthen a training, by size: a stated batch, then all others.

    The batch comes first, because there may be results at it, which the other restrictions then lengthen.
    Without such a result, and if the batch lengthens the training, the factor of the others is that of all
    restrictions over that of the batch: a batch that is slow on usual nodes may not be on the described ones.
    """
    system = known.system
    free = free_searches(inputs, system, searches)
    others = restricted_by(inputs, system)
    # Submitters may have run under the same restriction, so it never shortens their times. The user's
    # trainings are known to have run without it.
    least = 1.0 if inputs.trainings_on(system.accelerator) is None else 0.0
    together = _time_ratios(searches, free, least) if others else {}
    if not inputs.restricts_batch:
        return [Slowing(by=others, ratios=together)] if others else []
    results = of_batch(known.results, inputs.training.global_batch_samples)
    at_batch = _unrestricted(inputs.at_batch, system, searches) if others else searches
    by_batch = Slowing(by="stated batch", ratios=_time_ratios(at_batch, free, least), results=results)
    if not others:
        return [by_batch]
    ratios = _time_ratios(searches, at_batch, least)
    for size, ratio in by_batch.ratios.items():
        if size in together and size not in results and ratio > least:
            ratios[size] = together[size] / ratio
    return [by_batch, Slowing(by=others, ratios=ratios)]


def _time_ratios(restricted: StrategySearches, free: StrategySearches, least: float) -> dict[int, float]:
    """By size, the modelled ratio of restricted to unrestricted time, at least `least`.

    Where there are results, both use the batch of the best one, which a restricted training may keep.
    """
    alone, others = map(model_estimates, (restricted, free))
    return {} if alone is None or others is None else time_ratios(restricted=alone, free=others, least=least)


def restricted_by(inputs: Inputs, system: RequestedSystem) -> str:
    """Words for the restrictions besides the batch that published results did not have; empty if none."""
    assert system.cluster is not None
    if inputs.trainings_on(system.accelerator) is not None:
        own = {
            "strategy and precision as asked": inputs.unrestricted is not None,
            "power limit": at_full_power(inputs, system) != system.cluster,
        }
        return " and ".join(name for name, restricts in own.items() if restricts)
    query, usual = inputs.query, _unrestricted_cluster(inputs, system)
    restrictions = {
        "fixed strategy": inputs.unrestricted is not None and bool(query.fixed),
        "stated precision": inputs.unrestricted is not None and bool(query.precision),
        "precision of your runs": _is_in_precision_of_runs(inputs),
        "stated software": _states_software(query),
        "power limit": query.power_cap_w is not None and usual.accelerator != system.cluster.accelerator,
        "oversubscribed network": query.oversubscription is not None,
        "stated node": bool({*system.node} - _NETWORK_FACTS),
        DESCRIBED: _is_described_slower(inputs, system),
    }
    return " and ".join(name for name, restricts in restrictions.items() if restricts)


def _is_in_precision_of_runs(inputs: Inputs) -> bool:
    """Whether the training has the precision of the user's runs because the question states none."""
    free, is_stated = inputs.unrestricted, "precision" in inputs.query.fixed_names
    return free is not None and not is_stated and "precision" in {*inputs.training.choices} - {*free.choices}


def _is_described_slower(inputs: Inputs, system: RequestedSystem) -> bool:
    """Whether a named system has slower links or another node size than its accelerator's usual system."""
    described = inputs.catalogue.cluster(system.name)
    usual = inputs.catalogue.cluster(system.accelerator)
    return (
        described.node_size != usual.node_size
        or described.inter.byte_per_s < usual.inter.byte_per_s
        or described.intra.byte_per_s < usual.intra.byte_per_s
    )


def most_on_usual_links(inputs: Inputs, system: RequestedSystem) -> float:
    """The most accelerators joined by links no slower than those of the accelerator's usual system."""
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
    """Whether the question names the software whose measurements calibrate the model."""
    return query.software not in {None, PRIORS_ONLY}


def at_full_power(inputs: Inputs, system: RequestedSystem) -> Cluster:
    """The cluster of a system without the stated power limit, as the user's runs are assumed to have run.

    The network and the node stay as stated: the runs are taken to have had them.
    """
    assert system.cluster is not None
    if inputs.query.power_cap_w is None:
        return system.cluster
    return replace(system.cluster, accelerator=inputs.catalogue.cluster(system.name).accelerator)


def _unrestricted_cluster(inputs: Inputs, system: RequestedSystem) -> Cluster:
    """The usual cluster of a system: without the stated or described power limit, network and node."""
    assert system.cluster is not None
    query = inputs.query
    usual = inputs.catalogue.cluster(system.name)
    if _is_described_slower(inputs, system):
        # Keep the described system's host cores, which feed the samples.
        return replace(inputs.catalogue.cluster(system.accelerator), num_cores=usual.num_cores)
    if {*system.node} - _NETWORK_FACTS:
        return usual
    if query.power_cap_w is None and query.oversubscription is None:
        return system.cluster
    return replace(
        system.cluster,
        accelerator=usual.accelerator,
        oversubscription=usual.oversubscription,
        leaf_nodes=usual.leaf_nodes,
    )


def _unrestricted(inputs: Inputs, system: RequestedSystem, searches: StrategySearches) -> StrategySearches:
    """The same sizes, searched with the same model without the restrictions."""
    start, model = searches.problem, searches.problem.model
    is_own = inputs.trainings_on(system.accelerator) is not None
    cluster = at_full_power(inputs, system) if is_own else _unrestricted_cluster(inputs, system)
    if _states_software(inputs.query) and not (start.has_own_steps or is_own):
        model = start_model(replace(inputs, query=replace(inputs.query, software=None)), system)
    found = replace(
        problem(inputs.unrestricted or inputs.training, cluster, model, num_best=1),
        has_own_steps=start.has_own_steps,
        published_batches=start.published_batches,
    )
    return SEARCH_CACHE.searches(found, [each.num_accelerators for each in searches.sizes])


def software_ratios(inputs: Inputs, known: Assessment, chosen: Strategy) -> dict[str, float]:
    """Time with each other software that runs on the chip over that with the usual one, the fastest first.

    As for the question with `--software`, at the size of the chosen strategy. If published results count, no
    ratio is below one, because results may be of any software. Empty if the user's own times count, which
    are of one software. Software is left out if nothing fits, or if it is slower and lacks the chosen
    strategy.
    """
    searches, kinds = known.searches, {each.estimator for each in known.estimates}
    if searches is None or searches.problem.software is None or "measured" in kinds:
        return {}
    start, usual = searches.problem, searches.problem.software
    if start.training.workload.transformer is None:
        return {}
    least = 1.0 if "published" in kinds else 0.0
    ratios = {}
    chip, own_s = start.cluster.accelerator, _step_s(start, chosen)
    # Which weights are trained is decided by the question, and whether they are offloaded by the memory.
    by_search = usual.runs.keys() - {"schedule", "trained", "offload"}
    chosen_from = [usual.runs[option] for option in by_search]
    has_less = any({*had} != {True, False} for had in chosen_from)
    for each in (one for one in SOFTWARE if one.is_current and runs_on(one.name, chip)):
        if each.name == usual.name:
            continue
        # A search takes ten times as long as timing one strategy. Software with fewer options than the usual
        # one that is slower with the chosen strategy is within 3 % of its time with its own best strategy.
        schedules = each.options["schedule"]
        has_own = chosen.schedule not in schedules and len(schedules) > 1  # such as one hiding expert traffic
        same = math.inf if has_less else _step_s_with(inputs, known, each, chosen) / own_s
        is_searched = has_less or has_own or least <= same < 1.0
        near = searches.near_axes(chosen) if has_own else {}
        ratio = _best_time_ratio(inputs, known, each, chosen.num_accelerators, near) if is_searched else same
        ratios[each.name] = max(least, ratio)
    timed = ((name, ratio) for name, ratio in ratios.items() if math.isfinite(ratio))
    return dict(sorted(timed, key=lambda each: each[1]))


def _best_time_ratio(
    inputs: Inputs, known: Assessment, other: Software, size: int, near: Mapping[str, tuple[Value, ...]]
) -> float:
    """Time of the best strategy of another software over that of the usual one's best; infinite if it has
    none. near: allowed sizes of parallel axes.
    """
    assert known.searches is not None
    try:
        stated = replace(inputs, query=replace(inputs.query, software=other.name))
        found = problem_of(stated, known.system, start_model(stated, known.system), num_best=1)
        found = replace(found, choices={**found.choices, **near})
    except SpecError:  # it lacks what the question fixes
        return math.inf
    (own,), (there,) = known.searches.at((size,)), SEARCH_CACHE.searches(found, (size,)).sizes
    if own.best is None or there.best is None:
        return math.inf
    return there.best.work_s.value / own.best.work_s.value


def _step_s_with(inputs: Inputs, known: Assessment, other: Software, chosen: Strategy) -> float:
    """Seconds of a step of a strategy with another software; infinite if it lacks the strategy.

    Compiled or eager as the software was measured, unless the question states which.
    """
    assert known.searches is not None
    start, there = known.searches.problem, chosen
    if "implementation" not in inputs.query.fixed_names:
        there = replace(chosen, implementation="eager" if other.is_eager else "compiled")
    for graphs in ("cuda_graphs", "full_graphs"):
        if graphs not in inputs.query.fixed_names and True not in other.options.get(graphs, (True,)):
            there = replace(there, **{graphs: False})
    if not other.can_run(there) or (
        start.cluster.accelerator.lacks_compiler and there.implementation == "compiled"
    ):
        return math.inf
    parameters = profiles()[other.name].parameters
    if start.model.links is not None:
        parameters = replace(parameters, collective=start.model.parameters.collective)
    with_other = replace(start, model=replace(start.model, parameters=parameters))
    return _step_s(with_other, there)


def _step_s(known: Problem, chosen: Strategy) -> float:
    """Seconds of a step, including the generation before it; infinite if it does not fit into memory."""
    found = known.estimated((chosen,), known.model.parameters)
    made = known.generation(chosen.num_accelerators, chosen.global_batch_samples)
    held = known.cluster.accelerator.usable_memory_bytes
    if held is not None and np.ravel(found.memory.needed)[0] > held:
        return math.inf
    return float(np.ravel(found.step_s)[0]) + (0.0 if made is None else made.seconds)


def curve_question(inputs: Inputs, accelerator: str, sizes: Sequence[int]) -> CurveQuestion:
    """The question for the curve of a chip's published results at given sizes and the batch asked about."""
    batch = inputs.evidence_batch
    return CurveQuestion(
        workload=inputs.training.workload.slug,
        accelerator=accelerator,
        sizes=tuple(sizes),
        catalogue=inputs.catalogue,
        global_batch_samples=None if batch is None else float(batch),
    )


def _comparable_clusters(inputs: Inputs, nodes: Cluster) -> Iterator[Cluster]:
    """Usual clusters of other chips with results that are in every fact at least, or at most, as good."""
    assert inputs.scores is not None
    own = nodes.accelerator
    for name in accelerators_of(inputs.scores.of(inputs.training.workload.slug)):
        try:
            other = inputs.catalogue.cluster(name)
        except SpecError:  # a fact of its node is unknown
            continue
        chip = other.accelerator
        if name != own.slug and (at_least_as_good(own, chip) or at_least_as_good(chip, own)):
            yield other


def results_of_others(inputs: Inputs, nodes: Cluster) -> list[tuple[Cluster, Estimates]]:
    """The published results of each chip comparable with a system's."""
    found = ((other, results_at_own_sizes(inputs, other)) for other in _comparable_clusters(inputs, nodes))
    return [(other, results) for other, results in found if results is not None]


def results_at_own_sizes(inputs: Inputs, nodes: Cluster) -> Estimates | None:
    """The published results of a chip at the sizes that have them, without a curve."""
    assert inputs.scores is not None
    known = results_at_size(inputs.scores, inputs.training.workload.slug, nodes.accelerator.slug)
    return published_estimates(PublishedEvidence(at_size=of_batch(known, inputs.evidence_batch), curve=None))


def other_software_ratio(
    results_s: Mapping[int, float], modelled_s: Mapping[int, float], posed: Problem
) -> float | None:
    """The least ratio of published to modelled time of a chip, if every result is so slow that its software
    must differ from that of other chips; None if not, or if a size is not modelled.

    results_s: published times of all sizes, so that the answer does not depend on the sizes asked about.
    modelled_s: at sizes searched already, which often settle it. posed: searched at all sizes otherwise.
    """
    asked = [size for size in results_s if size in modelled_s]
    if not all(is_of_other_software(results_s[size], modelled_s[size]) for size in asked):
        return None
    searched_s = seconds_by_size(model_estimates(SEARCH_CACHE.searches(posed, sorted(results_s))))
    if not all(is_of_other_software(time_s, searched_s.get(size)) for size, time_s in results_s.items()):
        return None
    return min((time_s / searched_s[size] for size, time_s in results_s.items()), default=None)


def seconds_by_size(estimates: Estimates | None) -> dict[int, float]:
    """The time of each size."""
    return {} if estimates is None else {size: each.time_s.value for size, each in estimates.by_size.items()}

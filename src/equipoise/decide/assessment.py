"""What is known of one system for one question; its searches as asked, and free of what is restricted."""

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

# Facts of the network between nodes, not of a node.
_OF_NETWORK: Final = frozenset({"oversubscription", "leaf_nodes"})
# What restricts a system that is described with less than submitters of its accelerator usually have.
DESCRIBED: Final = "network and node as described"


class Assessment(Struct, frozen=True, kw_only=True):
    """All that is known of one system for the question.

    cluster: with links as the tables or the user's files state them. searches: None where the model cannot
    search. published: None where nothing published is asked about. run_fit: what the user's own steps made of
    the model. transferred: the chip whose results were carried over. bounds: by size, what other chips take,
    within which estimated times have to lie. too_slow: how many times as long as modelled all published
    results took, where that is so many that they do not count. missing: what would give estimates.
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
    too_slow: float | None = None
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

    def trainings_on(self, accelerator: str) -> "Measurements | None":
        """The user's whole trainings on an accelerator, in a precision asked for where some ran in it."""
        asked = self.training.choices.get("precision", ())
        return None if self.user.runs is None else self.user.runs.trainings_on(accelerator, asked)

    def sizes_that_ran(self, accelerator: str) -> set[int]:
        """The sizes on which the user timed steps or whole trainings on an accelerator."""
        own = self.trainings_on(accelerator)
        trained = () if own is None else map(int, own.num_accelerators)
        return {*trained, *(each.num_accelerators for each in self.runs_on(accelerator))}

    def beside_own_trainings(self, accelerator: str) -> "Inputs":
        """The inputs as the user's whole trainings on an accelerator leave them.

        Their precision is that of the answer where none is asked for. What they state otherwise than asked
        is free of a restriction; what they do not state is taken to be as asked.
        """
        own = self.trainings_on(accelerator)
        if own is None:
            return self
        ran: dict[str, Value] = {} if own.precision is None else {"precision": own.precision}
        with suppress(SpecError):  # a name, as of `bench`, states none of the options
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
        """The inputs as the user's runs leave them: in the precision that they ran in, unless one is stated.

        What others published was of the usual precision.
        """
        known, nodes = self.beside_own_trainings(system.accelerator), system.cluster
        choices, runs = known.training.choices, known.user.runs
        if nodes is None or runs is None or "precision" in choices:
            return known
        ran = runs.precision_for(system.accelerator)
        is_usual = ran == usual_precision(nodes, known.training)
        if ran is None or is_usual or peak_in(nodes.accelerator, ran) is None:
            return known
        # Beside fixed adapters nothing published counts.
        free = known.training if known.unrestricted is None and not self.query.fixed else known.unrestricted
        about = replace(known.training, choices={**choices, "precision": (ran,)})
        return replace(known, training=about, unrestricted=free)


def start_model(inputs: Inputs, system: RequestedSystem) -> CalibratedModel:
    """The model before any training of the user: a calibration, with the user's own links where given."""
    nodes = system.cluster
    assert nodes is not None
    calibrated = model_for(nodes.accelerator, inputs.training.workload, software=inputs.query.software)
    return with_links(calibrated, inputs.user.collectives, nodes)


def published_batches(inputs: Inputs, system: RequestedSystem) -> dict[int, int]:
    """The global batch of the best result of each size, where the training is that of published results.

    Submitters chose theirs for the links that they had: sizes that slower ones join may want another.
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
    """The sizes of a system with results of the training that is asked about, ascending."""
    is_usual = inputs.training.budget.is_to_target and inputs.evidence_batch is None
    slug = inputs.training.workload.slug
    return published_sizes(inputs.scores if is_usual else None, slug, system.accelerator)


def published_of(inputs: Inputs, system: RequestedSystem, sizes: SizeRange) -> PublishedEvidence | None:
    """What is published of the training on the system; None where no published training is asked about."""
    query, scores = inputs.query, inputs.scores
    if scores is None or not inputs.training.budget.is_to_target:
        return None
    trainings = inputs.trainings_on(system.accelerator)
    # No result is of trainings whose trained part is fixed, not even by the model's ratio.
    is_another = bool(query.fixed) and inputs.unrestricted is None
    if trainings is None and (is_another or is_batch_beyond_published(inputs)):
        return None
    wanted = sorted(with_nearest_results(inputs, system.accelerator, sizes.tried))
    question = replace(curve_question(inputs, system.accelerator, wanted), law=query.law, round=query.round)
    return published_evidence(scores, question, trainings=trainings)


def rejections(assessment: Assessment) -> Iterator[Infeasibility]:
    """Why strategies of the sizes asked about are no candidates: memory first, then what is not legal."""
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
    """The sizes that may be taken at which no strategy runs, other than those known otherwise."""
    searches = assessment.searches
    for each in () if searches is None else searches.at(assessment.sizes.tried):
        size = each.num_accelerators
        if each.best is None and size not in known and assessment.sizes.holds(size):
            # Where some fit, what does not is an engine that generates.
            needed_bytes = None if each.found.num_fitting else each.found.nearest_bytes
            yield UnfitSize(num_accelerators=size, needed_bytes=needed_bytes)


def nothing_fits(inputs: Inputs, assessment: Assessment) -> Shortfall | None:
    """What the training needs where no strategy fits on any size asked about; None where some do."""
    if assessment.searches is None or fits(assessment):
        return None
    return shortfall(inputs, assessment, assessment.sizes.most)


def fits(assessment: Assessment) -> bool:
    """Whether a strategy runs on any size that may be taken."""
    searches = assessment.searches
    return searches is not None and any(
        each.best is not None for each in searches.sizes if assessment.sizes.holds(each.num_accelerators)
    )


def shortfall(inputs: Inputs, assessment: Assessment, num_accelerators: int) -> Shortfall | None:
    """What the training needs on so many accelerators, what they have, and what would do; None where it fits
    or no strategy is legal.
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
        return posed(stated, assessment.system, start_model(stated, assessment.system), num_best=1)

    return remedy(assessment.searches.problem, num_accelerators, asked=inputs.query, pose=pose)


def posed(inputs: Inputs, system: RequestedSystem, model: CalibratedModel, *, num_best: int) -> Problem:
    """What is searched for a question on a system, with a model. Raises SpecError as `problem` does."""
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
    """Whether a batch is stated that lies more than a doubling outside of those of all published results.

    What they took carries no information about it: how fast such a batch trains is left to the model.
    """
    batch, known = inputs.query.global_batch_samples, inputs.training.budget.batches
    return batch is not None and known is not None and not known[0] / 2 <= batch <= 2 * known[1]


def also_known(inputs: Inputs, known: Assessment, accelerator: str) -> StrategySearches | None:
    """Searches at the sizes tried and those with results of an accelerator that times are carried from."""
    if known.searches is None:
        return None
    return SEARCH_CACHE.searches(
        known.searches.problem, with_nearest_results(inputs, accelerator, known.sizes.tried)
    )


def with_nearest_results(inputs: Inputs, accelerator: str, tried: Sequence[int]) -> set[int]:
    """The sizes tried, and those with results of an accelerator from which times are carried to them.

    Whatever else is asked about, a time is then carried from the same size: the nearest that the model times
    too. Of those below and above, one may be too small for the model or too large for its batches.
    """
    is_published = inputs.training.budget.is_to_target
    scores = inputs.scores if is_published else None
    known = published_sizes(scores, inputs.training.workload.slug, accelerator)
    return {*tried, *(each for size in tried for each in _sizes_beside(known, size))}


def _sizes_beside(known: Sequence[int], size: int) -> Iterator[int]:
    """Of known sizes, ascending, the nearest on either side of a size; itself where it is one of them."""
    yield from known[bisect_left(known, size) :][:1]
    yield from known[: bisect_right(known, size)][-1:]


def free_searches(inputs: Inputs, system: RequestedSystem, searches: StrategySearches) -> StrategySearches:
    """The same searches without what is restricted."""
    return _unrestricted(inputs, system, searches) if is_restricted(inputs, system) else searches


def free_estimates(inputs: Inputs, system: RequestedSystem, searches: StrategySearches) -> Estimates | None:
    """The model's estimates at searched sizes without what is restricted, at batches that it chooses."""
    return model_estimates(with_open_batches(free_searches(inputs, system, searches)))


def with_open_batches(searches: StrategySearches) -> StrategySearches:
    """Searches in which sizes with published results are free in their batch, as all others are.

    Of the ratio of the times of two sizes nothing is then left but what the sizes do: a submitter's batch may
    be far from what the model would choose.
    """
    # What is fixed may allow the published batch alone.
    opened = (
        each if each.freed is None or each.freed.best is None else each.freed for each in searches.sizes
    )
    return replace(searches, sizes=tuple(opened))


def where_trainable(estimates: Estimates, searches: StrategySearches, *, beyond: float) -> Estimates | None:
    """The estimates without sizes beyond one, the largest with results, on which no strategy runs and fits.

    None where there is none. A curve of published times goes on to sizes among which nobody can share out
    a batch.
    """
    trained = {each.num_accelerators for each in searches.sizes if each.best is not None}
    kept = {size: each for size, each in estimates.by_size.items() if size in trained or size <= beyond}
    return replace(estimates, by_size=kept) if kept else None


def is_restricted(inputs: Inputs, system: RequestedSystem) -> bool:
    """Whether the question restricts anything of a training that published results had free."""
    return inputs.restricts_batch or bool(restricted_by(inputs, system))


def slowings_of(inputs: Inputs, known: Assessment, searches: StrategySearches) -> list[Slowing]:
    """How many times as long each restriction makes a training, by size: a stated batch, then all others.

    A batch first, for there are results of it: what else is restricted lengthens those. Where there are none
    and the batch lengthens a training, the others are what both make it beyond the batch: one that is slow on
    usual nodes may not be on those described.
    """
    system = known.system
    free = free_searches(inputs, system, searches)
    others = restricted_by(inputs, system)
    # Submitters may have done what is restricted; the user's trainings are known to have run otherwise.
    least = 1.0 if inputs.trainings_on(system.accelerator) is None else 0.0
    together = _ratios(searches, free, least) if others else {}
    if not inputs.restricts_batch:
        return [Slowing(by=others, ratios=together)] if others else []
    results = of_batch(known.results, inputs.training.global_batch_samples)
    at_batch = _unrestricted(inputs.at_batch, system, searches) if others else searches
    by_batch = Slowing(by="stated batch", ratios=_ratios(at_batch, free, least), results=results)
    if not others:
        return [by_batch]
    ratios = _ratios(searches, at_batch, least)
    for size, ratio in by_batch.ratios.items():
        if size in together and size not in results and ratio > least:
            ratios[size] = together[size] / ratio
    return [by_batch, Slowing(by=others, ratios=ratios)]


def _ratios(restricted: StrategySearches, free: StrategySearches, least: float) -> dict[int, float]:
    """By size, how many times as long the model says that a restricted training takes.

    With the batch of the best result where there is one: those who are restricted may keep it.
    """
    alone, others = map(model_estimates, (restricted, free))
    return {} if alone is None or others is None else time_ratios(restricted=alone, free=others, least=least)


def restricted_by(inputs: Inputs, system: RequestedSystem) -> str:
    """What besides its batch the question restricts of a training that published results had free, in words.

    Empty where nothing.
    """
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
        "stated node": bool({*system.node} - _OF_NETWORK),
        DESCRIBED: _is_described_slower(inputs, system),
    }
    return " and ".join(name for name, restricts in restrictions.items() if restricts)


def _is_in_precision_of_runs(inputs: Inputs) -> bool:
    """Whether the training is in the precision of the user's runs, and none is stated."""
    free, is_stated = inputs.unrestricted, "precision" in inputs.query.fixed_names
    return free is not None and not is_stated and "precision" in {*inputs.training.choices} - {*free.choices}


def _is_described_slower(inputs: Inputs, system: RequestedSystem) -> bool:
    """Whether a named system has slower links, or other nodes, than its accelerator is usually sold in."""
    described = inputs.catalogue.cluster(system.name)
    usual = inputs.catalogue.cluster(system.accelerator)
    return (
        described.node_size != usual.node_size
        or described.inter.byte_per_s < usual.inter.byte_per_s
        or described.intra.byte_per_s < usual.intra.byte_per_s
    )


def most_on_usual_links(inputs: Inputs, system: RequestedSystem) -> float:
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


def at_full_power(inputs: Inputs, system: RequestedSystem) -> Cluster:
    """A system without the power limit that the question states: the user's runs state none.

    Its network and node are those that they ran on.
    """
    assert system.cluster is not None
    if inputs.query.power_cap_w is None:
        return system.cluster
    return replace(system.cluster, accelerator=inputs.catalogue.cluster(system.name).accelerator)


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


def _unrestricted(inputs: Inputs, system: RequestedSystem, searches: StrategySearches) -> StrategySearches:
    """The same sizes, searched with the same model without what is restricted."""
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
    """Time with each other software that runs on the chip, over that with the usual one, the fastest first.

    As the question with `--software` is answered at the size of the chosen strategy. No software is faster
    than published results, which are of any; the user's own times are of one. Slower software is left out
    where nothing fits, and where it lacks the chosen strategy.
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
    # Which weights are trained is asked, and no choice of a strategy.
    chosen_from = [had for option, had in usual.runs.items() if option not in {"schedule", "trained"}]
    has_less = any({*had} != {True, False} for had in chosen_from)
    for each in (one for one in SOFTWARE if one.is_current and runs_on(one.name, chip)):
        if each.name == usual.name:
            continue
        # A search takes ten times as long as a strategy. Software with fewer options than the usual one, and
        # slower by its strategy, is within 3 % of that by its own best.
        schedules = each.options["schedule"]
        has_own = chosen.schedule not in schedules and len(schedules) > 1  # one that hides experts' traffic
        same = math.inf if has_less else _same_step_s(inputs, known, each, chosen) / own_s
        is_searched = has_less or has_own or least <= same < 1.0
        near = searches.near_axes(chosen) if has_own else {}
        ratio = _ratio_of_best(inputs, known, each, chosen.num_accelerators, near) if is_searched else same
        ratios[each.name] = max(least, ratio)
    timed = ((name, ratio) for name, ratio in ratios.items() if math.isfinite(ratio))
    return dict(sorted(timed, key=lambda each: each[1]))


def _ratio_of_best(
    inputs: Inputs, known: Assessment, other: Software, size: int, near: Mapping[str, tuple[Value, ...]]
) -> float:
    """Time of the best strategy of another software, over that of the best of the usual one; infinite where
    it has none. near: sizes of axes to keep to.
    """
    assert known.searches is not None
    try:
        stated = replace(inputs, query=replace(inputs.query, software=other.name))
        found = posed(stated, known.system, start_model(stated, known.system), num_best=1)
        found = replace(found, choices={**found.choices, **near})
    except SpecError:  # it lacks what the question fixes
        return math.inf
    (own,), (there,) = known.searches.at((size,)), SEARCH_CACHE.searches(found, (size,)).sizes
    if own.best is None or there.best is None:
        return math.inf
    return there.best.work_s.value / own.best.work_s.value


def _same_step_s(inputs: Inputs, known: Assessment, other: Software, chosen: Strategy) -> float:
    """Seconds of a step of a strategy with another software; infinite where it lacks it.

    Compiled or as written, as the software was measured, unless the question states which.
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
    """Seconds of a step, with what is generated before it; infinite where it does not fit."""
    found = known.estimated((chosen,), known.model.parameters)
    made = known.generation(chosen.num_accelerators, chosen.global_batch_samples)
    held = known.cluster.accelerator.usable_memory_bytes
    if held is not None and np.ravel(found.memory.needed)[0] > held:
        return math.inf
    return float(np.ravel(found.step_s)[0]) + (0.0 if made is None else made.seconds)


def curve_question(inputs: Inputs, accelerator: str, sizes: Sequence[int]) -> CurveQuestion:
    """What is asked of the published results of a chip: their curve at sizes, at the batch asked about."""
    batch = inputs.evidence_batch
    return CurveQuestion(
        workload=inputs.training.workload.slug,
        accelerator=accelerator,
        sizes=tuple(sizes),
        catalogue=inputs.catalogue,
        global_batch_samples=None if batch is None else float(batch),
    )


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


def results_of_others(inputs: Inputs, nodes: Cluster) -> list[tuple[Cluster, Estimates]]:
    """The results of the chips that are comparable with a system's."""
    found = ((other, results_at_own_sizes(inputs, other)) for other in _comparable(inputs, nodes))
    return [(other, results) for other, results in found if results is not None]


def results_at_own_sizes(inputs: Inputs, nodes: Cluster) -> Estimates | None:
    """The published results of a chip, at their own sizes alone."""
    assert inputs.scores is not None
    known = results_at_size(inputs.scores, inputs.training.workload.slug, nodes.accelerator.slug)
    return published_estimates(PublishedEvidence(at_size=of_batch(known, inputs.evidence_batch), curve=None))


def other_software_ratio(
    results_s: Mapping[int, float], modelled_s: Mapping[int, float], posed: Problem
) -> float | None:
    """How many times as long as modelled the results of a chip took, at the size where that is least; None
    where their software may be that of others, or one is of a size that is not modelled.

    results_s: published, by size, of all sizes: the answer does not depend on what is asked about.
    modelled_s: of sizes that were searched already, which mostly tell. posed: what is searched at the others.
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

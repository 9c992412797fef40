"""Estimates for a system without results from those of other chips: times carried over, and bounds.

The times of another chip are those that an answer about it alone would give.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration.forecasts import results_of
from equipoise.calibration.profiles import model_for
from equipoise.decide.assessment import (
    Assessment,
    Inputs,
    curve_question,
    free_estimates,
    other_software_ratio,
    results_at_own_sizes,
    results_of_others,
    searches_with_results,
    seconds_by_size,
    where_trainable,
    with_nearest_results,
)
from equipoise.decide.combine import combine, with_time
from equipoise.decide.estimators.model import (
    NearChip,
    at_published_level,
    carried_over,
    model_estimates,
    nearest_chips,
    order_bounds,
    published_levels,
    transfer_record,
    violated_bound,
)
from equipoise.decide.estimators.published import (
    carried_by_model,
    known_sizes,
    largest_known,
    published_estimates,
    published_evidence,
)
from equipoise.decide.evidence import Estimates
from equipoise.decide.question.systems import usual_sizes
from equipoise.decide.strategies.size_searches import SEARCH_CACHE
from equipoise.decide.strategies.strategy_search import Problem, problem
from equipoise.errors import EvidenceError, SpecError
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import at_least_as_good


def transferred(inputs: Inputs, known: Assessment) -> tuple[Estimates | None, NearChip | None]:
    """Estimates carried over from the nearest chip for which this is possible, and that chip; else None.

    The chip does not depend on the sizes asked about.
    """
    assert known.cluster is not None
    assert inputs.scores is not None
    best, slug = results_of(inputs.scores).best, inputs.training.workload.slug
    usual = usual_sizes(known.system)
    for near in nearest_chips(best, slug, known.cluster.accelerator, usual, inputs.catalogue):
        searches = searches_with_results(inputs, known, near.chip.slug)
        free = None if searches is None else free_estimates(inputs, known.system, searches)
        found = None if free is None else _from_chip(inputs, near, free)
        if found is not None:
            return found, near
    return None, None


def _from_chip(inputs: Inputs, near: NearChip, modelled: Estimates) -> Estimates | None:
    """A near chip's times, carried over to the sizes that the model times; None if this is not possible."""
    there = _as_answered(inputs, near.chip.slug, sorted(modelled.by_size))
    if there is None or there.is_of_other_software(inputs):
        return None
    found = carried_over(
        there.published,
        near,
        here_s=seconds_by_size(modelled),
        there_s=seconds_by_size(there.modelled),
        record=transfer_record(near.nearness),
    )
    return None if found is None else carried_by_model(found, modelled)


class _Answered(Struct, frozen=True, kw_only=True):
    """The times of a chip with results, as an answer about it alone would give them.

    published: with bounds and model applied. modelled: by the model alone. posed: the problem it searched.
    """

    nodes: Cluster
    posed: Problem
    published: Estimates
    modelled: Estimates

    def is_of_other_software(self, inputs: Inputs) -> bool:
        """Whether all results are so slow that their software must differ from that of other chips."""
        results_s = seconds_by_size(results_at_own_sizes(inputs, self.nodes))
        return other_software_ratio(results_s, seconds_by_size(self.modelled), self.posed) is not None


def _as_answered(inputs: Inputs, accelerator: str, sizes: Sequence[int]) -> _Answered | None:
    """The unrestricted times of a chip with results; None if it has none or the model has no time.

    At sizes without results, both estimators and the bounds count, as in an answer about the chip itself, so
    that times carried to another chip are consistent with that answer. The model's level relative to the
    results does not depend on the sizes asked about.
    """
    assert inputs.scores is not None
    sizes = sorted(with_nearest_results(inputs, accelerator, sizes))
    try:
        nodes = inputs.catalogue.cluster(accelerator)
        evidence = published_evidence(inputs.scores, curve_question(inputs, accelerator, sizes))
        found = published_estimates(evidence)
        model = model_for(nodes.accelerator, inputs.training.workload)
        posed = problem(inputs.unrestricted or inputs.training, nodes, model, num_best=1)
    except (EvidenceError, SpecError):
        return None
    searches = SEARCH_CACHE.searches(posed, sizes)
    free = model_estimates(searches)
    beyond = largest_known(evidence) or max(evidence.at_size, default=0)
    found = None if found is None else where_trainable(found, searches, beyond=beyond)
    if found is None or free is None:
        return None
    carried = carried_by_model(found, free)
    at_level = at_published_level(free, carried, published_levels(carried, free, known_sizes(evidence)))
    bounds = order_bounds(nodes, results_of_others(inputs, nodes), has_results=True, modelled_s={})
    times = {}
    for size, each in carried.by_size.items():
        there = (
            [each, at_level.by_size[size]] if size in found.by_size and size in at_level.by_size else [each]
        )
        time_s = combine([one.time_s for one in there], [one.log_sd for one in there]).time.value
        bound = None if size in evidence.at_size else violated_bound(time_s, bounds.get(size, ()))
        time_s = time_s if bound is None else bound.time_s
        times[size] = with_time(each, time_s, each.log_sd, name=each.name)
    return _Answered(nodes=nodes, posed=posed, published=replace(carried, by_size=times), modelled=free)


def at_all_sizes(inputs: Inputs, known: Assessment, other: Cluster) -> Estimates | None:
    """Another chip's times, including sizes without results; None if they are unknown or no bound.

    A better chip gives no bound if the times are carried over from the same chip in another form or one with
    the same peaks, which are better evidence.
    """
    assert known.cluster is not None
    assert known.transferred is not None
    name = other.accelerator.slug
    is_better = not at_least_as_good(known.cluster.accelerator, other.accelerator)
    if is_better and known.transferred.nearness == "chip":
        return None
    found = _as_answered(inputs, name, known.sizes.tried)
    if found is None or (is_better and found.is_of_other_software(inputs)):
        return None
    return found.published

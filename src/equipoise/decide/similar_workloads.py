"""Which published workload is closest to one without results: for comparison, it has no weight.

Correcting plans by how wrong those of the closest workload were made plans of workloads held out no surer
(docs/experiments/0022).
"""

import math
from dataclasses import dataclass

from equipoise.decide.answer import Reason
from equipoise.decide.assess import Assessment, Inputs
from equipoise.decide.strategies.plan_record import WorkloadPlans, workload_plans
from equipoise.errors import SpecError
from equipoise.perfmodel.load import workload_load
from equipoise.spec.workload import Workload, workload
from equipoise.units import format_count, format_si

# As far as the closest neighbour of any workload held out lay: what is farther is similar to nothing
# published.
_FARTHEST_OCTAVES = 6.0
_EXPERIMENT = "docs/experiments/0022-similar-workloads.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What makes workloads similar. flop_per_sample: of a sample's way forward and back."""

    params: float
    flop_per_sample: float

    @property
    def words(self) -> str:
        """Both amounts."""
        return f"{format_si(self.params)} parameters and {format_si(self.flop_per_sample, 'FLOP')} a sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarWorkload:
    """The published workload closest to another. octaves: how far. plans: how wrong those of it were."""

    workload: Workload
    sizes: Sizes
    octaves: float
    plans: WorkloadPlans


def closest_workload(about: Workload) -> SimilarWorkload | None:
    """The published workload closest in parameters and FLOP a sample; None where none is close.

    Source: the Euclidean distance of both logarithms.
    """
    mine = sizes_of(about)
    if mine is None:
        return None
    found = []
    for name, plans in workload_plans().items():
        known = workload(name)
        theirs = sizes_of(known)
        if theirs is not None:
            far = math.hypot(
                math.log2(theirs.params / mine.params),
                math.log2(theirs.flop_per_sample / mine.flop_per_sample),
            )
            found.append(SimilarWorkload(workload=known, sizes=theirs, octaves=far, plans=plans))
    near = [each for each in found if each.octaves <= _FARTHEST_OCTAVES]
    return min(near, key=lambda each: each.octaves, default=None)


def sizes_of(about: Workload) -> Sizes | None:
    """Its parameters and FLOP a sample; None where the catalogue does not know them."""
    try:
        load = workload_load(about)
    except SpecError:
        return None
    params, flop = float(load.params), float(load.train_flop_per_sample)
    return Sizes(params=params, flop_per_sample=flop) if params > 0 and flop > 0 else None


def closest_reason(inputs: Inputs, assessment: Assessment) -> tuple[Reason, ...]:
    """What is published that is closest, where nothing is published of the workload itself."""
    about = inputs.training.workload
    if (
        assessment.survey is None
        or assessment.published is not None
        or inputs.training.budget.batches is not None
    ):
        return ()
    mine, like = sizes_of(about), closest_workload(about)
    if (
        mine is None or like is None or like.workload.slug == about.slug
    ):  # only its training budget is another
        return ()
    return (
        Reason(
            words=(
                f"The closest published workload is {like.workload.title}, {like.sizes.words}; yours has "
                f"{mine.words}. Plans of it took {like.plans.bias:.2g} times the published time (median of "
                f"{format_count(like.plans.num_trainings)}). For comparison only: correcting by such a match "
                "made plans of workloads held out no more accurate."
            ),
            formula=f"distance of log params and log FLOP; {_EXPERIMENT}",
        ),
    )

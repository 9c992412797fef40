"""The candidates of every system of a question, before any choice; why a system has none."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NoReturn, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from equipoise.decide.answer import Candidate, about_fixed
from equipoise.decide.assess import Assessment, Inputs, assess, measuring, rejections
from equipoise.decide.candidates import SystemCandidates, system_candidates
from equipoise.decide.evidence import UserRun
from equipoise.decide.question.query import FIELDS, TrainingQuery, without_choice
from equipoise.decide.question.systems import RequestedSystem, requested_systems
from equipoise.decide.question.training import training, unrestricted
from equipoise.decide.strategies.size_searches import NO_EXTRA_SIZES, SEARCH_CACHE, ExtraSizes
from equipoise.decide.user_evidence import UserEvidence, unusable, user_evidence
from equipoise.decide.user_evidence.runs import UserRuns
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.perfmodel.space import Fault
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.mlperf import Scores
from equipoise.units import format_count, listed

Progress: TypeAlias = Callable[[str, int, int], None]  # the system, how many are done, of how many

_MOST_ASSESSED: Final = 64

_MOST_NAMED: Final = 5


class Collected(Struct, frozen=True, kw_only=True):
    """The candidates of a question before any choice. refused: why systems have none."""

    inputs: Inputs
    systems: tuple[SystemCandidates, ...]
    refused: tuple[EvidenceError, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates of all systems."""
        return tuple(each for one in self.systems for each in one.candidates)


def collect_candidates(
    query: TrainingQuery,
    catalogue: Catalogue,
    scores: Scores | None,
    *,
    runs: UserRuns | None = None,
    extra: ExtraSizes = NO_EXTRA_SIZES,
    progress: Progress | None = None,
) -> Collected:
    """The candidates of every system of a question.

    runs: of the user's own, in place of those of the question's folder.
    Raises as `answer` does.
    """
    if runs is None and not query.rests_on_files:
        systems = _systems(query, catalogue)
        inputs, assessments = _assessed_alike(without_choice(query), catalogue, scores, extra, progress)
        inputs = replace(inputs, query=query)
        assessments = tuple(replace(one, system=each) for one, each in zip(assessments, systems, strict=True))
    else:
        inputs, assessments = _assessed(query, catalogue, scores, extra, progress, runs=runs)
    found: list[SystemCandidates] = []
    refused: list[EvidenceError] = []
    for assessment in assessments:
        candidates = system_candidates(inputs, assessment)
        # Where memory is what is short, or another size runs, the answer says so.
        lacks_memory = any(each.fault is None for each in rejections(assessment))
        if not (candidates.candidates or lacks_memory or _runs_on_another_size(assessment)):
            refused.append(_no_estimate(inputs, assessment))
        else:
            found.append(candidates)
    if not found:
        _refuse(refused, unusable(inputs.user.traces))
    pays = "--budget" if query.budget_usd is not None else "--value-of-time"
    if (query.budget_usd or query.value_of_time_usd_per_hour) is not None and all(map(is_unpriced, found)):
        system = found[0].system
        raise UsageError(f"{pays} needs a price of {system.accelerator}: give --price {system.name}=USD")
    return Collected(inputs=inputs, systems=tuple(found), refused=tuple(refused))


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
    extra: ExtraSizes,
    progress: Progress | None,
) -> tuple[Inputs, tuple[Assessment, ...]]:
    """As `_assessed`, kept for the next question that differs in its choice alone, as when a slider moves.

    query: `without_choice`, so that nothing in an assessment can depend on it.
    """
    return _assessed(query, catalogue, scores, extra, progress)


def _assessed(
    query: TrainingQuery,
    catalogue: Catalogue,
    scores: Scores | None,
    extra: ExtraSizes,
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
    # Of results at other batches, where how many samples they take is known; the user's own have the batch.
    converts = about.budget.is_to_target and about.budget.samples is not None and user.runs is None
    inputs = Inputs(
        query=query,
        training=about,
        unrestricted=unrestricted(about, query, frees_batch=converts),
        catalogue=catalogue,
        scores=scores,
        user=user,
        extra=extra,
    )
    assessments = []
    for number, system in enumerate(systems):
        if progress is not None:
            progress(system.title, number, len(systems))
        assessments.append(assess(inputs, system))
    return inputs, tuple(assessments)


def _runs_on_another_size(assessment: Assessment) -> bool:
    """Whether a strategy runs on the power of two below the number asked for, or the one above."""
    if assessment.searches is None:
        return False
    asked = assessment.sizes.most
    below = 1 << (asked.bit_length() - 1)
    sizes = tuple(size for size in (below, 2 * below) if size != asked)
    return any(SEARCH_CACHE.fits(assessment.searches.problem, size) for size in sizes)


def is_unpriced(one: SystemCandidates) -> bool:
    """Whether no price of a system is known, on any terms."""
    return all(each.price is None for each in one.rates.values())


def _no_estimate(inputs: Inputs, assessment: Assessment) -> EvidenceError:
    """What is missing, where no estimator has a time on a system."""
    title, system = inputs.training.workload.title, assessment.system
    found_faults = [each.fault for each in rejections(assessment) if each.fault is not None]
    if faults := about_fixed(found_faults, inputs.query):
        return EvidenceError(
            f"no strategy of {title} is possible on {system.title} as asked: "
            f"{'; '.join(each.words for each in faults[:_MOST_NAMED])}",
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
            found += f"; it has runs on {listed(elsewhere, _MOST_NAMED)}" if elsewhere else ""
            others = runs.other_workloads
            found += f"; other runs there are of {listed(others, _MOST_NAMED)}" if others else ""
    return EvidenceError(
        f"no estimate of how long {title} takes on {system.title}{found}",
        missing=assessment.missing or (measuring(inputs.query),),
    )


def _of_another_set_up(runs: Sequence[UserRun]) -> str:
    """What runs lack whose batch or precision the question excludes, and which they have."""
    batches = sorted({each.global_batch_samples for each in runs})
    precisions = sorted({each.precision for each in runs if each.precision is not None})
    held = listed(map(format_count, batches), _MOST_NAMED)
    words = f"has the batch and precision of the question; it has batch {held}"
    return f"{words} in {listed(precisions, _MOST_NAMED)}" if precisions else words


# What restricts strategies and sizes.
_RESTRICTING: Final = ("fixed", "precision", "sizes", "num_nodes", "max_accelerators", "global_batch_samples")


def _restrictions(query: TrainingQuery, faults: Sequence[Fault]) -> str:
    """The options of a question that restrict strategies or sizes, of which other values may do."""
    names: Sequence[str] = _RESTRICTING
    if all("precision" in each.parameters for each in faults):  # of the chip, however many there are
        names = ("precision",) if query.precision else ("fixed",)
    stated = [f"--{FIELDS[name].option}" for name in names if getattr(query, name)]
    return " or ".join(stated or ["--precision"])


def _refuse(refused: Sequence[EvidenceError], missing_of_traces: Sequence[str]) -> NoReturn:
    if len(refused) == 1 and not missing_of_traces:
        raise refused[0]
    raise EvidenceError(
        "; ".join(map(str, refused)),
        missing=(*dict.fromkeys(item for each in refused for item in each.missing), *missing_of_traces),
    )

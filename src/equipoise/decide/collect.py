"""Assesses every system of a question and collects its candidates, or the reason why it has none.

The assessment of a system depends on the question alone, not on the other systems compared (law 3).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NoReturn, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration.curves import shipped_forecasts
from equipoise.decide.answer import Candidate, about_fixed
from equipoise.decide.assessment import (
    DESCRIBED,
    Assessment,
    Inputs,
    at_full_power,
    fits,
    free_estimates,
    free_searches,
    is_restricted,
    other_software_ratio,
    problem_of,
    published_of,
    rejections,
    restricted_by,
    results_at_own_sizes,
    results_of_others,
    searches_with_results,
    seconds_by_size,
    sizes_with_results,
    slowings_of,
    start_model,
    where_trainable,
    with_nearest_results,
    with_open_batches,
)
from equipoise.decide.candidates import SystemCandidates, system_candidates
from equipoise.decide.estimators.measured import measured_estimates
from equipoise.decide.estimators.model import (
    NearChip,
    at_published_level,
    closest_bounds,
    is_ordered,
    model_estimates,
    order_bounds,
    published_levels,
)
from equipoise.decide.estimators.published import (
    PublishedEvidence,
    all_ratios,
    as_new_submitter,
    at_users_level,
    carried_by_model,
    known_sizes,
    largest_known,
    of_batch,
    of_other_nodes,
    published_estimates,
    restricted_by_ratios,
    with_restriction,
)
from equipoise.decide.evidence import Estimates, OrderBound, UserRun
from equipoise.decide.other_chips import at_all_sizes, transferred
from equipoise.decide.question.query import FIELDS, TrainingQuery, without_choice
from equipoise.decide.question.systems import RequestedSystem, requested_systems
from equipoise.decide.question.training import OF_ADAPTERS, training, unrestricted
from equipoise.decide.strategies.size_searches import (
    NO_EXTRA_SIZES,
    SEARCH_CACHE,
    ExtraSizes,
    SizeRange,
    StrategySearches,
    fixed_ranks,
    size_range,
)
from equipoise.decide.strategies.strategy_search import Problem
from equipoise.decide.user_evidence import (
    TraceCheck,
    UserEvidence,
    checks,
    unusable,
    unused_traces,
    user_evidence,
)
from equipoise.decide.user_evidence.fit import (
    UserFit,
    UserLevel,
    as_stated,
    carried_level,
    far_faster,
    far_slower,
    fitted_estimates,
    levelled_estimates,
    out_of_line,
    user_fit,
    user_level,
)
from equipoise.decide.user_evidence.runs import (
    Recast,
    UserRuns,
    UserSteps,
    as_they_fit,
    least_ratios,
    of_precisions,
    other_batches,
    recasts,
    recasts_beyond,
    user_steps,
    whole_trainings,
)
from equipoise.errors import EvidenceError, SpecError, UsageError
from equipoise.notes import Note
from equipoise.perfmodel.space import Fault
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.hardware import Accelerator
from equipoise.spec.mlperf import Scores
from equipoise.spec.strategy import Value
from equipoise.units import format_count, listed, plural

_NUM_STRATEGIES: Final = 3
Progress: TypeAlias = Callable[[str, int, int], None]  # title of a system, number done, number in all

_CACHE_SIZE: Final = 64

_MOST_NAMED: Final = 5


class Collected(Struct, frozen=True, kw_only=True):
    """The candidates of a question before selection. refused: an error per system without candidates."""

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

    runs: the user's runs, in place of those in the question's folder.
    Raises the same errors as `answer`.
    """
    if runs is None and not query.rests_on_files:
        systems = _systems(query, catalogue)
        inputs, assessments = _cached_assessments(without_choice(query), catalogue, scores, extra, progress)
        inputs = replace(inputs, query=query)
        assessments = tuple(replace(one, system=each) for one, each in zip(assessments, systems, strict=True))
    else:
        inputs, assessments = _assess_systems(query, catalogue, scores, extra, progress, runs=runs)
    found: list[SystemCandidates] = []
    refused: list[EvidenceError] = []
    for assessment in assessments:
        candidates = system_candidates(inputs, assessment)
        # An answer can name the memory that is lacking, or another size that runs. If a strategy runs on a
        # size asked about and only its time is unknown, the system is refused.
        lacks_memory = any(each.fault is None for each in rejections(assessment))
        is_answered = not fits(assessment) and (lacks_memory or _runs_on_another_size(assessment))
        if not (candidates.candidates or is_answered):
            refused.append(_no_estimate(inputs, assessment))
        else:
            found.append(candidates)
    if not found:
        _refuse(refused, unusable(inputs.user.traces))
    pays = "--budget" if query.budget_usd is not None else "--value-of-time"
    if (query.budget_usd or query.value_of_time_usd_per_hour) is not None and all(map(is_unpriced, found)):
        system = found[0].system
        raise UsageError(
            f"{pays} needs a price of {system.accelerator}", give=[{"price": f"{system.name}=USD"}]
        )
    return Collected(inputs=inputs, systems=tuple(found), refused=tuple(refused))


def _systems(query: TrainingQuery, catalogue: Catalogue) -> tuple[RequestedSystem, ...]:
    """The systems of a question. An error about their names also reports an unknown workload name."""
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


def _assess_systems(
    query: TrainingQuery,
    catalogue: Catalogue,
    scores: Scores | None,
    extra: ExtraSizes,
    progress: Progress | None,
    *,
    runs: UserRuns | None = None,
) -> tuple[Inputs, tuple[Assessment, ...]]:
    """The inputs of a question and the assessments of its systems. Arguments as for `collect_candidates`."""
    systems = _systems(query, catalogue)
    about = training(query, catalogue, scores)
    accelerators = [each.accelerator for each in systems]
    user = (
        user_evidence(query, about.workload, accelerators, catalogue)
        if query.has_measurements
        else UserEvidence()
    )
    user = user if runs is None else replace(user, runs=runs)
    # Results at other batches can be converted if their samples to target are known. The user's trainings
    # already have the batch asked for.
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


# Cached for the next question that differs only in how candidates are selected, as when a slider moves.
# Called with a query `without_choice`, so that no assessment can depend on those fields.
_cached_assessments: Final = lru_cache(maxsize=_CACHE_SIZE)(_assess_systems)


def _runs_on_another_size(assessment: Assessment) -> bool:
    """Whether a strategy runs on the power of two below the number asked for, or the one above."""
    if assessment.searches is None:
        return False
    asked = assessment.sizes.most
    below = 1 << (asked.bit_length() - 1)
    sizes = tuple(size for size in (below, 2 * below) if size != asked)
    return any(SEARCH_CACHE.fits(assessment.searches.problem, size) for size in sizes)


def is_unpriced(one: SystemCandidates) -> bool:
    """Whether no price of a system is known on any terms."""
    return all(each.price is None for each in one.rates.values())


def _no_estimate(inputs: Inputs, assessment: Assessment) -> EvidenceError:
    """The error for a system on which no estimator has a time; it names what is missing."""
    title, system = inputs.training.workload.title, assessment.system
    found_faults = [each.fault for each in rejections(assessment) if each.fault is not None]
    if not fits(assessment) and (faults := about_fixed(found_faults, inputs.query)):
        return EvidenceError(
            f"no strategy of {title} is possible on {system.title} as asked: "
            f"{'; '.join(each.words for each in faults[:_MOST_NAMED])}",
            missing=(
                *_batch_of_microbatches(inputs, faults),
                f"other values of {_restrictions(inputs.query, faults)}, or another system",
            ),
        )
    found = ""
    runs = inputs.user.runs
    if assessment.cluster is None:
        found = ": give your runs with --runs DIR"
        if runs is not None:
            found = f": {runs.where} holds no run of it on this system that "
            here = runs.on(system.accelerator)
            as_asked = runs.asked_about(system.accelerator, inputs.query)
            found += _excluded_set_ups(here, as_asked) if here else "states its batch and rate"
            elsewhere = sorted({*runs.machines} - {system.accelerator})
            found += f"; it has runs on {listed(elsewhere, _MOST_NAMED)}" if elsewhere else ""
            others = runs.other_workloads
            found += f"; other runs there are of {listed(others, _MOST_NAMED)}" if others else ""
    return EvidenceError(
        f"no estimate of how long {title} takes on {system.title}{found}",
        missing=assessment.missing or (measuring(inputs.query),),
    )


def _batch_of_microbatches(inputs: Inputs, faults: Sequence[Fault]) -> Iterator[str]:
    """Option for the batch nearest to the usual one that is a power of two times the stated micro-batch."""
    batch, sizes = inputs.training.global_batch_samples, inputs.training.choices.get("microbatch_samples", ())
    is_fixed = inputs.training.fixed_batch_samples is not None
    is_about = any("microbatch_samples" in each.parameters for each in faults)
    if batch is not None and not is_fixed and is_about and len(sizes) == 1:
        size = int(sizes[0])
        yield f"--global-batch {size * 2 ** max(0, round(math.log2(batch / size)))}"


def _excluded_set_ups(runs: Sequence[UserRun], as_asked: Sequence[UserRun]) -> str:
    """Words for runs that the question excludes by batch, precision or size, with the values that they have.

    as_asked: those with its batch and precision.
    """
    if as_asked:
        sizes = sorted({each.num_accelerators for each in as_asked})
        held = listed(map(format_count, sizes), _MOST_NAMED)
        return f"ran on a number of accelerators that the question allows; those there ran on {held}"
    batches = sorted({each.global_batch_samples for each in runs})
    precisions = sorted({each.precision for each in runs if each.precision is not None})
    held = listed(map(format_count, batches), _MOST_NAMED)
    words = f"has the batch and precision of the question; those there have batch {held}"
    return f"{words} in {listed(precisions, _MOST_NAMED)}" if precisions else words


# Fields of a question that restrict strategies or sizes.
_RESTRICTING: Final = ("fixed", "precision", "sizes", "num_nodes", "max_accelerators", "global_batch_samples")


def _restrictions(query: TrainingQuery, faults: Sequence[Fault]) -> str:
    """The given options that restrict strategies or sizes, for which other values may work."""
    names: Sequence[str] = _RESTRICTING
    if all("precision" in each.parameters for each in faults):  # a limit of the chip, whatever the size
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


def assess(inputs: Inputs, system: RequestedSystem) -> Assessment:
    """The assessment of a system: estimates by the user's runs, published results and the model."""
    inputs = inputs.beside_own_runs(system)
    if system.cluster is None or (system.is_cpu and inputs.user.runs is not None):
        return _assess_by_runs_alone(inputs, system)
    sizes = size_range(
        inputs.query,
        system,
        flop=inputs.training.stated_flop,
        known=sizes_with_results(inputs, system),
        ran=inputs.sizes_that_ran(system.accelerator),
        extra=inputs.extra,
        fixed_ranks=fixed_ranks(inputs.training.choices),
        fixed_batch_samples=inputs.training.fixed_batch_samples,
    )
    chip, ran_on = system.cluster.accelerator, at_full_power(inputs, system)
    traces = inputs.user.traces
    own = inputs.trainings_on(system.accelerator)
    unused = unused_traces(traces, chip.slug, chip.title) if traces else ()
    notes = [*map(Note, system.notes), *unused, *(() if own is None else own.notes)]
    missing: list[str] = []
    searches: StrategySearches | None = None
    run_fit: UserFit | UserLevel | None = None
    traced = checks(traces, None, ran_on, None) if traces else ()
    model, runs = start_model(inputs, system), inputs.runs_on(chip.slug)
    try:
        start = problem_of(inputs, system, model, num_best=max(_NUM_STRATEGIES, inputs.query.num_strategies))
        if traces:
            traced = checks(traces, start.load, ran_on, start.model.parameters)
        as_ran = replace(start, cluster=ran_on)
        run_fit = _run_fit(_user_steps(as_ran, runs), start) or _carried_level(inputs, start)
        notes += _notes_on_slow_steps(as_ran, runs)
        if isinstance(run_fit, UserFit):
            start = replace(start, model=run_fit.model)
        if every := runs:
            precisions = start.choices["precision"]
            runs = of_precisions(
                every,
                precisions,
                convertible=() if run_fit is None else run_fit.steps.run_ids,
                is_stated="precision" in inputs.query.fixed_names,
            )
            notes += _notes_on_precisions(every, runs, precisions)
        start = replace(start, has_own_steps=run_fit is not None)
        # Sizes with results are needed later: searching all of them at once is faster.
        searches = SEARCH_CACHE.searches(start, with_nearest_results(inputs, system.accelerator, sizes.tried))
        searches = replace(searches, sizes=searches.at(sizes.tried))
    except (EvidenceError, SpecError) as err:  # a fact of the chip is unknown: other estimators may do
        missing += err.missing if isinstance(err, EvidenceError) and err.missing else [str(err)]
        notes.append(Note(f"No strategy was searched: {err}."))
        inputs = inputs.at_batch
    published = published_of(inputs, system, sizes)
    missing += () if published is None else published.missing
    known = Assessment(
        system=system,
        sizes=sizes,
        cluster=system.cluster,
        searches=searches,
        published=published,
        user_runs=runs,
        run_fit=run_fit,
        traces=traced,
        missing=tuple(dict.fromkeys((*missing, *inputs.training.budget.missing))),
        notes=tuple(notes),
    )
    ratio = _slow_results_ratio(inputs, known)
    if ratio is not None:
        known = replace(known, published=PublishedEvidence(at_size={}, curve=None), slow_ratio=ratio)
    estimates, near = _collect_estimates(inputs, known)
    known = replace(known, estimates=estimates, transferred=near)
    known = replace(known, bounds=_order_bounds(inputs, known))
    if published is None or ratio is not None or not inputs.restricts_batch:
        return known
    shown = of_batch(published.at_size, inputs.training.global_batch_samples)
    return replace(known, published=replace(published, at_size=shown))


def _slow_results_ratio(inputs: Inputs, known: Assessment) -> float | None:
    """The least ratio of published to modelled time over all results of a chip, if they are too slow to
    count; None if they count, or if the user has trainings on the chip.
    """
    is_theirs = known.published is not None and known.published.at_size
    if not is_theirs or inputs.trainings_on(known.system.accelerator) is not None:
        return None
    searches = searches_with_results(inputs, known, known.system.accelerator)
    if searches is None or known.cluster is None:
        return None
    usual = free_searches(inputs, known.system, searches)
    modelled_s = seconds_by_size(model_estimates(with_open_batches(usual)))
    results_s = seconds_by_size(results_at_own_sizes(inputs, known.cluster))
    return other_software_ratio(results_s, modelled_s, replace(usual.problem, published_batches={}))


def _collect_estimates(inputs: Inputs, known: Assessment) -> tuple[tuple[Estimates, ...], NearChip | None]:
    """The estimates of every estimator, most certain first, and the chip whose results were carried over."""
    searches, run_fit, near = known.searches, known.run_fit, None
    measured = _measured(inputs, known)
    alone = modelled = None if searches is None else model_estimates(with_open_batches(searches))
    submitted: Estimates | None = None
    if known.published is not None:
        submitted, modelled, near = _estimates_from_results(inputs, known, known.published, modelled)
        if near is not None and modelled is not None and run_fit is None:
            # The model carried these results over: counting its own times too would count it twice.
            modelled = replace(modelled, references=frozenset(modelled.by_size))
    # Without known samples the model's times are of another amount of work: only their ratios are of use.
    if inputs.training.budget.samples is None:
        modelled = None
    # The user's own runs show how fast the user is, so the spread among new submitters is not added.
    if submitted is not None and inputs.query.submitter == "new" and inputs.user.runs is None:
        submitted = as_new_submitter(submitted, shipped_forecasts().submitters)
    if measured is not None:
        ran = sorted({each.num_accelerators for each in known.user_runs})
        if submitted is not None:
            submitted = at_users_level(submitted, measured, ran, grade="carried")
        if modelled is not None and run_fit is None:
            modelled = at_users_level(modelled, measured, ran, grade="measured")
    if modelled is not None and alone is not None and searches is not None and run_fit is not None:
        # The user's steps are compared with the uncorrected model, not with one scaled to published results.
        modelled = replace(alone, references=modelled.references)
        if isinstance(run_fit, UserFit):
            modelled = fitted_estimates(modelled, searches, run_fit)
        else:
            modelled = levelled_estimates(modelled, searches, run_fit)
    return tuple(each for each in (measured, submitted, modelled) if each is not None), near


def _estimates_from_results(
    inputs: Inputs, known: Assessment, published: PublishedEvidence, modelled: Estimates | None
) -> tuple[Estimates | None, Estimates | None, NearChip | None]:
    """Estimates from published results, extended by the model to sizes, chips and strategies without results.

    Returns with them the model's estimates, with their errors when scaled to published results, and the chip
    whose results were carried over.
    """
    found, near, system = published_estimates(published), None, known.system
    restricted = restricted_by(inputs, system)
    searches = searches_with_results(inputs, known, system.accelerator)
    usual = None if searches is None else free_searches(inputs, system, searches)
    free = None if usual is None else model_estimates(with_open_batches(usual))
    if found is not None and searches is not None:
        is_stated = inputs.evidence_batch is not None
        beyond = 0.0 if is_stated else largest_known(published) or max(published.at_size, default=0)
        found = where_trainable(found, usual or searches, beyond=beyond)
    if searches is None or modelled is None or usual is None or free is None:
        # Without a model it is unknown whether a fixed strategy runs, let alone how fast.
        if found is not None and restricted == DESCRIBED:
            return of_other_nodes(found), modelled, None
        return None if is_restricted(inputs, system) else found, modelled, None
    by_law: set[int] = set()
    if found is not None:
        by_law = {*found.by_size}
        found = carried_by_model(found, free)
    else:
        found, near = transferred(inputs, known)
    levels = {} if found is None else published_levels(found, free, known_sizes(published))
    slowings = slowings_of(inputs, known, searches)
    for each in slowings:
        found = None if found is None else with_restriction(found, each)
    if found is not None and near is None:
        own = model_estimates(with_open_batches(searches))
        assert own is not None  # it has the sizes of `modelled`
        is_users = inputs.trainings_on(system.accelerator) is not None
        at_level = at_published_level(
            restricted_by_ratios(own, free, slowings), found, levels, is_one_users=is_users
        ).by_size
        modelled = replace(
            modelled,
            by_size={size: at_level[size] for size in modelled.by_size if size in at_level},
            # If the model times no size on which the user trained, its error there is unknown.
            references=frozenset(found.by_size) - (frozenset() if is_users and not levels else by_law),
        )
    return found, modelled, near


def _run_fit(steps: UserSteps | None, start: Problem) -> UserFit | UserLevel | None:
    """The model fitted to the user's steps, or the level of these steps if no fit is possible."""
    if steps is None:
        return None
    found = user_fit(steps, start.model)
    return user_level(steps, start.model, found) if isinstance(found, str) else found


def _carried_level(inputs: Inputs, start: Problem) -> UserLevel | None:
    """The level of the user's steps on the accelerator with the nearest peak, for a system without runs.

    None for trainings to a target, for which published results show how fast the accelerator is.
    """
    runs, nodes = inputs.user.runs, start.cluster
    if runs is None or inputs.training.budget.is_to_target or inputs.runs_on(nodes.accelerator.slug):
        return None
    usual_log = math.log(start.time_per_step_time / start.time_per_own_step_time)
    found: list[tuple[float, UserLevel]] = []
    for slug in sorted({each.accelerator for each in runs.set_ups if each.accelerator is not None}):
        try:
            ran = inputs.catalogue.cluster(slug)
            other = RequestedSystem(name=slug, title=ran.accelerator.title, cluster=ran)
            model = start_model(inputs, other)
            steps = _user_steps(problem_of(inputs, other, model, num_best=1), runs.on(slug))
        except (EvidenceError, SpecError):  # no model of the accelerator that ran them
            continue
        if steps is not None:
            most = int(steps.sizes.max())
            level = carried_level(
                user_level(steps, model, ""),
                usual_log,
                ran_on=ran.accelerator.title,
                no_slower=is_ordered(nodes, ran, most),
                no_faster=is_ordered(ran, nodes, most),
            )
            found.append((_peaks_apart(nodes.accelerator, ran.accelerator), level))
    return min(found, key=itemgetter(0), default=(0.0, None))[1]


def _peaks_apart(chip: Accelerator, other: Accelerator) -> float:
    """Absolute log ratio of the peaks of two accelerators; infinite if either is unknown."""
    peaks = [each.peak_bf16_flop_per_s or each.peak_fp16_flop_per_s for each in (chip, other)]
    return abs(math.log(peaks[0] / peaks[1])) if peaks[0] and peaks[1] else math.inf


def _notes_on_slow_steps(start: Problem, runs: Sequence[UserRun]) -> tuple[Note, ...]:
    """Notes on steps far from the model's time; a run without a stated precision is compared with fp32."""
    stated = [each if each.precision else replace(each, precision="fp32") for each in runs]
    steps = _expressible_steps(start, stated)
    of_precision = steps if stated == [*runs] else _expressible_steps(start, runs)
    slower = () if steps is None else (*far_slower(steps, start.model), *out_of_line(steps, start.model))
    return slower or (() if of_precision is None else tuple(far_faster(of_precision, start.model)))


def _notes_on_precisions(
    runs: Sequence[UserRun], counted: Sequence[UserRun], precisions: Sequence[Value]
) -> Iterator[Note]:
    """Yield a note on runs that do not count because of their precision."""
    left_out = [each for each in runs if each not in counted]
    if left_out:
        ran, asked = (
            " and ".join(dict.fromkeys(map(str, each)))
            for each in ((run.precision or "another precision" for run in left_out), precisions)
        )
        yield Note(
            f"{plural(len(left_out), 'set-up')} of your runs in {ran}: not used, because the model cannot "
            f"convert the time to {asked}.",
            "not_used",
        )


def _user_steps(start: Problem, runs: Sequence[UserRun]) -> UserSteps | None:
    """Steps of the runs that the model can express and that may have trained as they state."""
    steps = _expressible_steps(start, runs)
    return None if steps is None else as_stated(steps, start.model)


def _expressible_steps(start: Problem, runs: Sequence[UserRun]) -> UserSteps | None:
    """Steps of the runs that the model can express; None for rollouts, whose steps include generation."""
    if not runs or start.training.workload.rollout is not None:
        return None
    is_eager = start.choices.get("implementation") == ("eager",)
    asked = {name: start.choices[name] for name in OF_ADAPTERS if name in start.choices}
    unstated: dict[str, Any] = {
        "implementation": "eager" if is_eager else "compiled",
        **{name: values[0] for name, values in asked.items() if len(values) == 1},
    }
    return user_steps(
        as_they_fit(runs, start, unstated),
        start.load,
        start.cluster,
        start.model.parameters,
        unstated=unstated,
    )


def _measured(inputs: Inputs, known: Assessment) -> Estimates | None:
    """Estimates from the user's steps; extended to sizes that did not run unless the model is fitted."""
    runs, nodes = known.user_runs, known.cluster
    if not runs or nodes is None:
        return None
    searches, run_fit = known.searches, known.run_fit
    links = None if searches is None else searches.problem.model.links
    nodes = nodes if links is None else links.on(nodes)
    # For other sizes and for the curve, a model fitted to the runs is more certain than the runs alone.
    is_fitted = isinstance(run_fit, UserFit)
    advised: dict[str, Recast] = {}
    beyond: dict[int, dict[str, Recast]] = {}
    if searches is not None:
        advised = whole_trainings(runs, searches, at_full_power(inputs, known.system))
        for run_id, log_sd in other_batches(runs, searches).items():
            kept = advised.get(run_id, Recast(factor=1.0, log_sd=0.0, keeps_strategy=True))
            advised[run_id] = replace(kept, log_sd=math.hypot(kept.log_sd, log_sd))
        if run_fit is not None:
            least = least_ratios(run_fit.steps, searches)
            advised |= recasts(run_fit.steps, searches, least)
            beyond = {} if is_fitted else recasts_beyond(run_fit.steps, searches, least)
    found = measured_estimates(
        runs,
        inputs.training.budget,
        () if is_fitted else known.sizes.tried,
        cluster=None if is_fitted else nodes,
        workload=None if is_fitted else inputs.training.workload,
        recasts=advised,
        recasts_beyond=beyond,
        global_batch_samples=inputs.query.global_batch_samples,
    )
    return replace(found, curves=None) if is_fitted and found is not None else found


def _order_bounds(inputs: Inputs, known: Assessment) -> dict[int, tuple[OrderBound, ...]]:
    """Per size, bounds on a system's time from results of other chips of its maker.

    Empty if the user has runs or asks for one round. If the chip has no results of its own, times carried
    over from other chips' results count too. Those results are unrestricted, so the question's restrictions
    scale the bounds as they scale the system's own times.
    """
    assert known.cluster is not None
    near, searches, kinds = known.transferred, known.searches, {each.estimator for each in known.estimates}
    if inputs.scores is None or "published" not in kinds or "measured" in kinds or inputs.query.round:
        return {}
    searches = searches if "model" in kinds else None
    free = None if searches is None else free_estimates(inputs, known.system, searches)
    others = results_of_others(inputs, known.cluster)
    if near is not None and free is not None:
        others = [(each, at_all_sizes(inputs, known, each) or results) for each, results in others]
    bounds = order_bounds(
        known.cluster,
        others,
        has_results=near is None,
        bounds_carried=near is not None and near.nearness == "maker",
        modelled_s=seconds_by_size(free),
    )
    # The chip's own results are not bounded by others', and restrictions make them no faster.
    bounds = {size: of_size for size, of_size in bounds.items() if size not in known.results}
    if not is_restricted(inputs, known.system):
        own = _bounds_by_fewer(known)
        return {size: closest_bounds((*bounds.get(size, ()), *own.get(size, ()))) for size in {*bounds, *own}}
    ratios = {} if searches is None else all_ratios(slowings_of(inputs, known, searches))
    return {
        size: tuple(replace(each, time_s=ratios[size] * each.time_s) for each in of_size)
        for size, of_size in bounds.items()
        if size in ratios
    }


def _bounds_by_fewer(known: Assessment) -> dict[int, tuple[OrderBound, ...]]:
    """Per size without a result, the best result of a smaller size: surplus accelerators may be left idle."""
    results, nodes = known.results_s, known.cluster
    sizes = {size for each in known.estimates for size in each.by_size if size not in results}
    found: dict[int, tuple[OrderBound, ...]] = {}
    for size in sizes:
        fewer = [(time_s, each) for each, time_s in results.items() if each < size]
        if fewer and nodes is not None:
            time_s, num_accelerators = min(fewer)
            bound = OrderBound(
                kind="at_most",
                accelerator=nodes.accelerator.slug,
                num_accelerators=num_accelerators,
                time_s=time_s,
                grade="published",
            )
            found[size] = (bound,)
    return found


def _assess_by_runs_alone(inputs: Inputs, system: RequestedSystem) -> Assessment:
    """The assessment of a machine known only by the user's runs: ranks on CPUs, or an unknown chip.

    No model converts between batches or precisions, so only runs with those of the question count.
    """
    runs = () if inputs.user.runs is None else inputs.user.runs.asked_about(system.accelerator, inputs.query)
    ran = sorted({each.num_accelerators for each in runs})
    asked = inputs.query.sizes
    stated = (inputs.query.max_accelerators, None if asked is None else asked.most)
    limits = [each for each in stated if each is not None]
    sizes = SizeRange(
        tried=(),
        fewest=1 if asked is None else asked.fewest,
        most=min(limits) if limits else max(ran, default=1),
        limited_by="question" if limits else "data",
        listed=None if asked is None or asked.is_range else frozenset(asked.listed),
    )
    # Sizes below those asked about are only used for the curve.
    within = [size for size in ran if size <= sizes.most] if any(map(sizes.holds, ran)) else []
    found = measured_estimates(runs, inputs.training.budget, within, cluster=None, workload=None)
    traces = tuple(
        TraceCheck(trace=each)
        for each in inputs.user.traces
        if each.accelerator in {None, system.accelerator}
    )
    return Assessment(
        system=system,
        sizes=replace(sizes, tried=tuple(within)),
        cluster=None,
        user_runs=runs,
        estimates=() if found is None or not within else (found,),
        traces=traces,
        missing=(measuring(inputs.query),),
        notes=(
            *map(Note, system.notes),
            *unused_traces(inputs.user.traces, system.accelerator, system.title),
        ),
    )


def measuring(query: TrainingQuery) -> str:
    """How to measure steps of a training: `bench`, with the question's batch and precisions, if it can."""
    from equipoise.bench.training import ZOO  # noqa: PLC0415 - only for a refusal

    if ":" not in query.workload and query.workload not in {each.name for each in ZOO}:
        return "measured steps: equipoise.watch(model, out='runs') in your training loop; then --runs runs"
    batch = "" if query.global_batch_samples is None else f" --batch {query.global_batch_samples}"
    precision = f" --precision {','.join(query.precision)}" if query.precision else ""
    sizes = "" if query.sizes is None or query.sizes.is_range else f" --sizes {query.sizes}"
    options = f"{sizes}{batch}{precision}"
    return f"measured steps: equipoise bench {query.workload}{options} --out runs; then --runs runs"

"""Makes a system's candidates from its estimates: time, interruptions, money, energy, constraints."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Final, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration.profiles import memory_log_sd
from equipoise.decide.answer import (
    LIKELY,
    Candidate,
    Constraint,
    ConstraintName,
    MemoryUse,
    ModelStep,
    SaferStrategy,
    probability_within,
)
from equipoise.decide.assessment import Assessment, Inputs, unfit_sizes
from equipoise.decide.combine import combine, combined_curves, ratio_log_sd
from equipoise.decide.estimators.model import violated_bound
from equipoise.decide.estimators.published import FARTHEST, ended_at, largest_known
from equipoise.decide.evidence import (
    Estimate,
    Estimates,
    Grade,
    Group,
    OrderBound,
    SizeCurve,
    UserRun,
)
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.question.systems import RequestedSystem, rates_of
from equipoise.decide.strategies.size_searches import SEARCH_CACHE, taken_of_node
from equipoise.decide.strategies.strategy_search import Problem, TimedStrategy
from equipoise.economics import Bill, Price, Rates, bill
from equipoise.economics.interruptions import interrupted
from equipoise.economics.quotes import Charges, least_charged
from equipoise.intervals import LEVEL, WIDEST, Interval, exact, product, scaled, with_log_sd
from equipoise.scaling.laws import FloatArray
from equipoise.spec.hardware import PriceTerms
from equipoise.spec.strategy import Precision, precision_named
from equipoise.stats import medians
from equipoise.units import format_percent, plural

# Strongest first. A candidate has the strongest grade among the estimates of at least the minimum weight.
_GRADES: Final[tuple[Grade, ...]] = get_args(Grade)
_MIN_WEIGHT: Final = 0.05
_ENOUGH_SIZES: Final = 2  # for a curve


class SystemCandidates(Struct, frozen=True, kw_only=True):
    """The candidates of one system, and the curves from which its equilibria follow. rates: by terms."""

    assessment: Assessment
    candidates: tuple[Candidate, ...]
    curves: dict[Group, SizeCurve]
    rates: dict[PriceTerms, Rates]

    @property
    def system(self) -> RequestedSystem:
        """The assessed system."""
        return self.assessment.system

    @property
    def first_group(self) -> Group:
        """The name of the system and the first of its terms."""
        return self.system.name, self.system.terms[0]

    @property
    def allowed(self) -> tuple[Candidate, ...]:
        """Candidates of eligible sizes that fit into memory, whether or not they keep deadline and budget."""
        return tuple(
            each
            for each in self.candidates
            if self.assessment.sizes.holds(each.num_accelerators)
            and all(one.is_kept for one in each.constraints if one.name == "memory_bytes")
        )

    @property
    def keeps_limits(self) -> bool:
        """Whether any eligible size keeps all limits."""
        return any(each.time_s is not None and not each.broken for each in self.allowed)


class _SizeEstimate(Struct, frozen=True, kw_only=True):
    """The combined estimate of one size, before terms apply. Its fields are named as in Candidate."""

    num_accelerators: int
    work_s: Interval
    user_run: UserRun | None
    global_batch_samples: int | None
    estimates: tuple[Estimate, ...]
    disagreement: float
    grade: Grade
    order_bound: OrderBound | None


def system_candidates(inputs: Inputs, assessment: Assessment) -> SystemCandidates:
    """The candidates of a system: every size with an estimated time, on each of its terms."""
    system, query = assessment.system, inputs.query
    sized = [
        _size_estimate(inputs, assessment, size)
        for size in assessment.sizes.tried
        if any(size in each.by_size for each in assessment.estimates)
    ]
    rates = {terms: rates_of(query, system, terms) for terms in system.terms}
    drawn = _draw_times(assessment, sized)
    found: list[Candidate] = []
    curves: dict[Group, SizeCurve] = {}
    sizes = assessment.sizes
    for terms, paid in rates.items():
        members: list[Candidate] = []
        for each in sized:
            timed = _best_strategy(assessment, each.num_accelerators)
            members.append(_make_candidate(inputs, assessment, each, terms, paid, timed=timed, fewer=members))
        found += [
            each
            for each in _with_speedup(members, assessment.estimates)
            if sizes.shows(each.num_accelerators)
        ]
        curve = None if drawn is None else _size_curve(assessment, members, drawn)
        if curve is not None:
            curves[system.name, terms] = curve
    return SystemCandidates(assessment=assessment, candidates=tuple(found), curves=curves, rates=rates)


def _size_estimate(inputs: Inputs, assessment: Assessment, size: int) -> _SizeEstimate:
    """The combined estimate of one size; reference estimates count only if there are no others.

    A time that was neither published nor measured at this size is moved to the bound that it violates; its
    grade is then `carried`.
    """
    known = [each for each in assessment.estimates if size in each.by_size]
    counted = [each for each in known if size not in each.references] or known
    there = [each.by_size[size] for each in counted]
    combined = combine(
        [each.time_s for each in there],
        [each.log_sd for each in there],
        [each.strategy_log_sd for each in there],
    )
    weights = dict(zip([each.name for each in counted], combined.weights, strict=True))
    grades = [each.grade[size] for each in counted if weights[each.name] >= _MIN_WEIGHT]
    grade = min(grades, key=_GRADES.index)
    bounds = assessment.bounds.get(size, ())
    bound = None if grade in {"measured", "published"} else violated_bound(combined.time.value, bounds)
    work_s = combined.time
    timed = _best_strategy(assessment, size)
    run = _fastest_run(inputs, assessment, size, None if timed is None else timed.strategy.precision)
    batch = inputs.training.global_batch_samples if run is None else run.global_batch_samples
    return _SizeEstimate(
        num_accelerators=size,
        work_s=work_s if bound is None else scaled(work_s, bound.time_s / work_s.value),
        user_run=run,
        global_batch_samples=batch if timed is None else timed.strategy.global_batch_samples,
        estimates=tuple(replace(each.by_size[size], weight=weights.get(each.name, 0.0)) for each in known),
        disagreement=combined.disagreement,
        grade=grade if bound is None else "carried",
        order_bound=bound,
    )


def _make_candidate(
    inputs: Inputs,
    assessment: Assessment,
    sized: _SizeEstimate | Candidate,
    terms: PriceTerms,
    rates: Rates,
    *,
    timed: TimedStrategy | None,
    fewer: Sequence[Candidate] = (),
) -> Candidate:
    """The candidate for an estimated working time, with interruptions, money, energy and constraints.

    timed: the recommended strategy; None if there is none.
    fewer: candidates of fewer accelerators. If the model alone is too uncertain to state a time for one of
    them, it states none for more: whether these pay could not be judged.
    Source: time = work / goodput; money = accelerators x time x price; energy = accelerators x watts x the
    factor of the system x PUE x time; step = work / steps.
    """
    system, query, size = assessment.system, inputs.query, sized.num_accelerators
    work_s, batch = sized.work_s, sized.global_batch_samples
    node_size = 1 if assessment.cluster is None else assessment.cluster.node_size
    num_nodes = -(-size // taken_of_node(size, node_size, inputs.training.global_batch_samples))
    stopped = interrupted(
        work_s,
        num_accelerators=size,
        num_nodes=num_nodes,
        trained_params=inputs.training.workload.trained_params,
        is_spot=terms == "spot",
        shrinks=query.on_reclaim == "shrink",
    )
    why_not = stopped.why or _why_no_time(inputs, assessment, sized, stopped.time_s, fewer=fewer)
    time_s = None if why_not else stopped.time_s
    paid = None if time_s is None else bill(size, time_s, rates)
    price, usd, made_of = _best_price(rates, paid, size, time_s, checkpoint_bytes=stopped.checkpoint_bytes)
    samples = None if batch is None else inputs.training.budget.samples_at(batch)
    steps = None if samples is None or batch is None else samples / batch
    step_s = None if steps is None else product(work_s, exact(1.0 / steps))
    precision = _precision_of_time(assessment, sized, timed)
    candidate = Candidate(
        system=system.name,
        title=system.title,
        accelerator=system.accelerator,
        num_accelerators=size,
        num_nodes=None if assessment.cluster is None else num_nodes,
        terms=terms,
        strategy=None if timed is None else timed.strategy,
        user_run=sized.user_run,
        global_batch_samples=batch,
        num_samples=samples,
        num_steps=steps,
        step_s=step_s,
        work_s=work_s,
        time_s=time_s,
        goodput=None if time_s is None else stopped.goodput,
        why_not=why_not,
        price=price,
        power_w=rates.power_w,
        usd=usd,
        charges=made_of,
        energy_j=None if paid is None else paid.energy_j,
        carbon_kg=None if paid is None else paid.carbon_kg,
        electricity_usd=None if paid is None else paid.electricity_usd,
        interrupted=stopped,
        mfu=None if precision is None else _mfu(assessment, timed, step_s, precision),
        mfu_precision=precision,
        tokens_per_s_per_accelerator=_token_rate(inputs, batch, step_s, size),
        memory=_memory(assessment, timed),
        model=None
        if timed is None
        else ModelStep(step_s=timed.step_s, by_cause_s=timed.by_cause_s, num_samples=timed.num_samples),
        estimates=sized.estimates,
        published=assessment.results.get(size, ()),
        order_bound=sized.order_bound,
        disagreement=sized.disagreement,
        grade=sized.grade,
        is_between=size in assessment.sizes.between,
    )
    return replace(candidate, constraints=constraints(query, assessment, candidate))


def _best_price(
    rates: Rates, paid: Bill | None, size: int, time_s: Interval | None, *, checkpoint_bytes: float | None
) -> tuple[Price | None, Interval | None, Charges | None]:
    """The cheapest price, the cost at it, and the charges that make it up if it is not only hourly.

    paid: the bill at the hourly price. The cost is None if the time or the price is unknown.
    """
    price = rates.price
    if time_s is None or paid is None:
        return price, None, None
    if price is None or paid.usd is None or (price.is_hourly and not rates.others):
        return price, _at_price(paid, time_s), None
    power = paid.electricity_usd
    return least_charged(
        (price, *rates.others),
        size,
        time_s,
        checkpoint_bytes=checkpoint_bytes,
        electricity_usd_per_s=0.0 if power is None else power.value / time_s.value,
    )


def _why_no_time(
    inputs: Inputs,
    assessment: Assessment,
    sized: _SizeEstimate | Candidate,
    time_s: Interval | None,
    *,
    fewer: Sequence[Candidate],
) -> str | None:
    """Why a time is too uncertain to be stated; None if it is not. fewer: as in `_make_candidate`."""
    why = None if time_s is None else too_wide(time_s)
    if why is not None:
        return why
    unsure = [each.num_accelerators for each in fewer if _is_too_wide(each) and each.grade == sized.grade]
    if unsure and sized.grade in _MODEL_GRADES:
        fewest = plural(unsure[0], "accelerator")
        return f"the time on {fewest} is already too uncertain to compare larger sizes"
    known = _largest_by_law(inputs, assessment)
    if known is not None and sized.num_accelerators > FARTHEST * known and sized.grade == "carried":
        return (
            f"more than {FARTHEST:g} times the largest published, {known:,.0f}, and no performance model of "
            f"{inputs.training.workload.title} carries times farther"
        )
    return None


def too_wide(time_s: Interval) -> str | None:
    """Words for an interval too wide to be informative; None if it is not."""
    if time_s.high <= WIDEST * time_s.low:
        return None
    return f"its {format_percent(LEVEL)} interval spans more than a factor of {WIDEST:g}"


def _largest_by_law(inputs: Inputs, assessment: Assessment) -> float | None:
    """The largest size with a result on any chip if only a law extrapolates; None if there is a model."""
    if assessment.searches is not None or assessment.published is None or inputs.scores is None:
        return None
    submitted = (each.num_accelerators for each in inputs.scores.of(inputs.training.workload.slug))
    return max((*submitted, largest_known(assessment.published) or 0), default=None)


# Grades of times from the performance model alone.
_MODEL_GRADES: Final[frozenset[Grade]] = frozenset({"calibrated", "priors"})


def _is_too_wide(candidate: Candidate) -> bool:
    known = candidate.interrupted
    return candidate.time_s is None and known is not None and known.time_s is not None


def timed_candidate(
    system: RequestedSystem,
    rates: Rates,
    *,
    num_accelerators: int,
    estimate: Estimate,
    grade: Grade,
    energy_j: float | None = None,
    why_not: str | None = None,
) -> Candidate:
    """The candidate for a whole training time without a known strategy; it includes interruptions.

    estimate: of the whole time. energy_j: measured, overrides the energy from the rates. why_not: why the
    time is too uncertain to be stated, if it is.
    """
    time_s = estimate.time_s
    paid = bill(num_accelerators, time_s, rates, measured_energy_j=energy_j)
    found = Candidate(
        system=system.name,
        title=system.title,
        accelerator=system.accelerator,
        num_accelerators=num_accelerators,
        num_nodes=None if system.cluster is None else -(-num_accelerators // system.cluster.node_size),
        terms=system.terms[0],
        work_s=time_s,
        time_s=time_s,
        goodput=exact(1.0),
        price=rates.price,
        power_w=rates.power_w,
        usd=_at_price(paid, time_s),
        energy_j=paid.energy_j,
        carbon_kg=paid.carbon_kg,
        electricity_usd=paid.electricity_usd,
        estimates=(estimate,),
        disagreement=1.0,
        grade=grade,
    )
    return found if why_not is None else _without_time(found, why_not)


def _without_time(candidate: Candidate, why_not: str) -> Candidate:
    """The candidate without its time, which is too uncertain to be stated, and without derived amounts."""
    amounts = ("time_s", "goodput", "usd", "energy_j", "carbon_kg", "electricity_usd")
    return replace(candidate, why_not=why_not, **dict.fromkeys(amounts))


def _at_price(paid: Bill, time_s: Interval) -> Interval | None:
    """The cost at the stated price, with the relative range of the time.

    The price's own range, which is the spread of other offers, is left out: flips report at which price the
    choice changes.
    """
    return None if paid.usd is None else scaled(time_s, paid.usd.value / time_s.value)


def constraints(query: TrainingQuery, assessment: Assessment, candidate: Candidate) -> tuple[Constraint, ...]:
    """The question's limits, each with the candidate's value."""
    sizes, size = assessment.sizes, candidate.num_accelerators
    found: list[Constraint] = []
    if sizes.limited_by == "question" or size > sizes.most:
        found.append(
            Constraint(name="max_accelerators", limit=float(sizes.most), value=float(size), probability=None)
        )
    if candidate.memory is not None and candidate.memory.available_bytes is not None:
        found.append(
            Constraint(
                name="memory_bytes",
                limit=candidate.memory.available_bytes,
                value=candidate.memory.needed_bytes,
                probability=None,
            )
        )
    return (*found, *amount_limits(query, candidate))


def amount_limits(query: TrainingQuery, candidate: Candidate) -> Iterator[Constraint]:
    """The question's deadline and budget, each with the candidate's value.

    The value for the deadline includes the wait in the queue.
    """
    if query.deadline_s is not None:
        training = _limit_constraint("deadline_s", query.within_s, candidate.time_s)
        needed_s = None if training.value is None else (query.queue_s or 0.0) + training.value
        yield replace(training, limit=query.deadline_s, value=needed_s)
    if query.budget_usd is not None:
        yield _limit_constraint("budget_usd", query.budget_usd, candidate.usd)


def _limit_constraint(name: ConstraintName, limit: float, amount: Interval | None) -> Constraint:
    return Constraint(
        name=name,
        limit=limit,
        value=None if amount is None else amount.value,
        probability=None if amount is None else probability_within(amount, limit),
    )


def _best_strategy(assessment: Assessment, size: int) -> TimedStrategy | None:
    if assessment.searches is None:
        return None
    return next((each.best for each in assessment.searches.sizes if each.num_accelerators == size), None)


def _fastest_run(
    inputs: Inputs, assessment: Assessment, size: int, precision: Precision | None
) -> UserRun | None:
    """The fastest of the user's set-ups measured at this size, in the recommended precision if any is."""
    here = [each for each in assessment.user_runs if each.num_accelerators == size]
    alike = [each for each in here if precision_named(each.precision or "") in {None, precision}]
    return min(alike or here, key=lambda each: _training_s(inputs, each), default=None)


def _training_s(inputs: Inputs, run: UserRun) -> float:
    """Seconds of training at the rate of a run; of one sample if the number of samples is unknown."""
    return (inputs.training.budget.samples_at(run.global_batch_samples) or 1.0) / run.samples_per_s


def _precision_of_time(
    assessment: Assessment, sized: _SizeEstimate | Candidate, timed: TimedStrategy | None
) -> Precision | None:
    """The precision to which the time applies; None if it is not stated, as for published results.

    If the model was fitted to the user's steps, the time is that of the recommended strategy.
    """
    run = sized.user_run
    if timed is None or sized.grade in {"published", "carried"}:
        return None
    if sized.grade == "measured" and assessment.run_fit is None:
        return None if run is None else precision_named(run.precision or "")
    return timed.strategy.precision


def _mfu(
    assessment: Assessment, timed: TimedStrategy | None, step_s: Interval | None, precision: Precision
) -> float | None:
    if timed is None or step_s is None or assessment.searches is None:
        return None
    return assessment.searches.problem.mfu(timed.strategy, step_s.value, precision)


def _token_rate(inputs: Inputs, batch: int | None, step_s: Interval | None, size: int) -> float | None:
    tokens = inputs.training.workload.sequence_tokens
    if tokens is None or batch is None or step_s is None:
        return None
    return batch * tokens / (step_s.value * size)


# Memory that devices report over the GB (1e9 bytes) of their datasheets; nvidia-smi, in MiB: A100 81,251 of
# 80 GB, H100 81,559, V100 16,160 of 16, RTX 4090 24,564 of 24: 1.06 to 1.07.
_REPORTED_MEMORY: Final = 1.06
_DEVIATE_OF_LIKELY: Final = NormalDist().inv_cdf(LIKELY)


def _memory(assessment: Assessment, timed: TimedStrategy | None) -> MemoryUse | None:
    if timed is None or assessment.searches is None:
        return None
    problem = assessment.searches.problem
    chip = problem.cluster.accelerator
    needed = with_log_sd(timed.memory_bytes, _memory_log_sd(problem))
    held = chip.usable_memory_bytes
    return MemoryUse(
        needed_bytes=timed.memory_bytes,
        available_bytes=held,
        by_kind_bytes=timed.memory_by_kind_bytes,
        range_bytes=needed,
        fits_probability=None if held is None else probability_within(needed, _REPORTED_MEMORY * held),
    )


def _memory_log_sd(problem: Problem) -> float:
    return memory_log_sd(None if problem.software is None else problem.software.name)


def safer_strategy(assessment: Assessment, best: Candidate) -> SaferStrategy | None:
    """The fastest strategy very likely to fit, at the size and batch of a candidate that may not fit.

    None if the candidate itself is likely to fit, its strategy is not the model's, or no strategy is likely
    to fit. To keep the search small, only the parallel axes of the best strategies found are tried.
    """
    searches, batch, held = assessment.searches, best.global_batch_samples, best.memory
    if searches is None or batch is None or held is None:
        return None
    if best.model is None or best.strategy is None or best.user_run is not None:
        return None
    if held.available_bytes is None or held.fits_probability is None or held.fits_probability >= LIKELY:
        return None
    known = searches.problem
    surely = _REPORTED_MEMORY * math.exp(-_DEVIATE_OF_LIKELY * _memory_log_sd(known))
    chip = known.cluster.accelerator
    chip = replace(chip, memory_bytes=int(surely * (chip.memory_bytes or 0)))
    within = replace(
        known,
        cluster=replace(known.cluster, accelerator=chip),
        training=replace(known.training, global_batch_samples=batch, batch_words=None),
        choices={**known.choices, **searches.near_axes(best.strategy)},
    )
    (searched,) = SEARCH_CACHE.searches(within, (best.num_accelerators,)).sizes
    memory = _memory(assessment, searched.best)
    if searched.best is None or memory is None:
        return None
    ratio = searched.best.step_s / best.model.step_s
    return SaferStrategy(strategy=searched.best.strategy, memory=memory, time_ratio=ratio)


def _draw_times(assessment: Assessment, sized: Sequence[_SizeEstimate]) -> dict[int, FloatArray] | None:
    """Per size, ascending, draws of the working time with the combined time as median: (n_draws,) each.

    Covers the sizes among which equilibria are sought; None if there is no curve.
    Assumes that sizes below the curve's domain have the relative errors of the curve's smallest size.
    """
    shown = assessment.sizes.shown_most
    usual = [each for each in sized if each.num_accelerators not in assessment.sizes.between]
    within = [each for each in usual if each.num_accelerators <= shown] or usual
    if len(within) < _ENOUGH_SIZES:
        return None
    found = combined_curves([ended_at(each, shown) for each in assessment.estimates])
    if found is None:
        return None
    curves_s, domain = found
    known = [each for each in within if each.num_accelerators <= domain.largest]
    if len(known) < _ENOUGH_SIZES:
        return None
    drawn = curves_s(np.array([max(float(each.num_accelerators), domain.smallest) for each in known]))
    central = np.array([each.work_s.value for each in known])
    about_central = np.asarray(drawn * central / medians(drawn))
    return {each.num_accelerators: about_central[:, place] for place, each in enumerate(known)}


def _size_curve(
    assessment: Assessment, members: Sequence[Candidate], drawn: Mapping[int, FloatArray]
) -> SizeCurve | None:
    """The curve from which equilibria follow: times of the sizes that have one, and draws of these times.

    Starts at the smallest eligible size: an efficiency relative to a size that is not displayed would be
    hard to interpret.
    """
    fewest = assessment.sizes.fewest
    times = {
        each.num_accelerators: each
        for each in members
        if each.time_s is not None and each.num_accelerators >= fewest
    }
    sizes = tuple(size for size in drawn if size in times)
    if len(sizes) < _ENOUGH_SIZES:
        return None
    central = np.array([times[size].known_time_s.value for size in sizes])
    stretch = np.array([times[size].work_s.value for size in sizes])
    shown = assessment.sizes.shown_most
    usual = [each.num_accelerators for each in members if not each.is_between]
    wanted = [size for size in usual if size <= shown]
    limited_by = assessment.sizes.limited_by
    if any(each.num_accelerators > sizes[-1] for each in unfit_sizes(assessment, sizes)):
        limited_by = "strategies"
    elif wanted and sizes[-1] < max(wanted):
        limited_by = "data"
    return SizeCurve(
        sizes=sizes,
        central_s=central,
        drawn_s=np.stack([drawn[size] for size in sizes], axis=1) * central / stretch,
        limited_by=limited_by,
        least_s=np.array([times[size].least_s for size in sizes]),
    )


def _with_speedup(members: Sequence[Candidate], estimates: Sequence[Estimates]) -> list[Candidate]:
    """The candidates with their speedup over the smallest size; errors that both sizes share cancel.

    Computed from the two sizes alone, so that it does not depend on the other sizes tried (law 3).
    """
    first = next((each for each in members if each.time_s is not None), None)
    found = []
    for each in members:
        if first is None or first.time_s is None or each.time_s is None:
            found.append(each)
            continue
        ratio = first.time_s.value / each.time_s.value
        spread = ratio_log_sd(estimates, first.num_accelerators, each.num_accelerators)
        found.append(each if spread is None else replace(each, speedup=with_log_sd(ratio, spread)))
    return found


def with_terms(inputs: Inputs, assessment: Assessment, candidate: Candidate, terms: PriceTerms) -> Candidate:
    """The same candidate on other terms."""
    rates = rates_of(inputs.query, assessment.system, terms)
    timed = _best_strategy(assessment, candidate.num_accelerators)
    found = _make_candidate(inputs, assessment, candidate, terms, rates, timed=timed)
    return replace(found, speedup=candidate.speedup)


def with_budget(inputs: Inputs, assessment: Assessment, candidate: Candidate, factor: float) -> Candidate:
    """The candidate for a training of `factor` times as many samples, at the same batch.

    inputs: of that training. Assumes a stated training budget, so that every estimate is proportional to the
    samples; modelled estimates also scale with the time of a pretraining over that of its steps.
    """
    times, searches = exact(factor), assessment.searches
    timed = _best_strategy(assessment, candidate.num_accelerators)
    if timed is not None and searches is not None:
        there = replace(searches.problem, training=inputs.training)
        longer = there.time_per_step_time / searches.problem.time_per_step_time
        work_s = product(timed.work_s, exact(factor * longer))
        timed = replace(timed, num_samples=factor * timed.num_samples, work_s=work_s)
        if candidate.grade != "measured":
            times = exact(factor * longer)
    grown = replace(
        candidate,
        work_s=product(candidate.work_s, times),
        estimates=tuple(replace(each, time_s=product(each.time_s, times)) for each in candidate.estimates),
        order_bound=None,
    )
    rates = rates_of(inputs.query, assessment.system, candidate.terms)
    found = _make_candidate(inputs, assessment, grown, candidate.terms, rates, timed=timed)
    return replace(found, speedup=candidate.speedup)


def with_strategy(
    inputs: Inputs, assessment: Assessment, candidate: Candidate, timed: TimedStrategy, rates: Rates
) -> Candidate:
    """The candidate with another strategy: its time is scaled by the ratio of the modelled times."""
    best = _best_strategy(assessment, candidate.num_accelerators)
    assert best is not None
    other = replace(
        candidate,
        work_s=product(candidate.work_s, exact(timed.work_s.value / best.work_s.value)),
        user_run=None,
        global_batch_samples=timed.strategy.global_batch_samples,
        order_bound=None,
    )
    return _make_candidate(inputs, assessment, other, candidate.terms, rates, timed=timed)

"""Explains an answer: reasons with sources, error records of its estimates, choices left open."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from equipoise.calibration import EvidenceSource, HeldOutErrors
from equipoise.calibration.curves import COMBINED, PUBLISHED, shipped_advice
from equipoise.decide.answer import Candidate, Reason, beside_balance_words
from equipoise.decide.assessment import Assessment, Inputs, at_full_power, software_ratios
from equipoise.decide.candidates import SystemCandidates
from equipoise.decide.combine import CombinedRecord, WorkloadPlans, combined_record, workload_plans
from equipoise.decide.estimators.model import TransferRecord, transfer_record, usual_precision_ratio
from equipoise.decide.estimators.published import FARTHEST, largest_known
from equipoise.decide.evidence import ErrorRecord
from equipoise.decide.explanation.explain import uneven_batch
from equipoise.decide.ledger import LEDGER, running
from equipoise.decide.question.fine_tuning import trained_part
from equipoise.decide.question.query import SOUGHT
from equipoise.decide.question.training import batch_words
from equipoise.decide.select import Selection
from equipoise.decide.strategies.size_searches import on_host, taken_of_node
from equipoise.decide.strategies.strategy_search import STAYS, Problem, usual_precision
from equipoise.decide.user_evidence import TraceCheck
from equipoise.economics import Rates
from equipoise.errors import SpecError
from equipoise.files import file_names, user_file
from equipoise.intervals import LEVEL
from equipoise.perfmodel.estimate import step_seconds
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import workload_load
from equipoise.perfmodel.parameters import CollectiveParameters, stacked
from equipoise.scaling.equilibrium import Equilibrium, deciding_kind, default_answer, returns_words
from equipoise.spec.strategy import Strategy, value_text
from equipoise.spec.workload import Workload, workload
from equipoise.units import (
    format_count,
    format_duration,
    format_percent,
    format_si,
    listed,
    plural,
    tenths,
    whole_percent,
)


def _links_log_sd(problem: Problem, strategy: Strategy, draws: Sequence[CollectiveParameters]) -> float:
    """Log standard deviation of the step time due to the uncertainty of the links alone.

    draws: equally likely parameters of the links.
    """
    nodes = problem.machine(strategy.num_accelerators)
    drawn = stacked([replace(problem.model.parameters, collective=each) for each in draws])
    return float(np.std(np.log(step_seconds(problem.load, nodes, grid([strategy]), drawn)[0])))


# The largest distance of a held-out workload to its closest neighbour: beyond it, no published workload is
# similar.
_MAX_OCTAVES = 6.0
_EXPERIMENT = "docs/experiments/0022-similar-workloads.md"


class SimilarWorkload(Struct, frozen=True, kw_only=True):
    """The published workload closest to another. octaves: distance. plans: errors of its plans."""

    workload: Workload
    octaves: float
    plans: WorkloadPlans


def closest_workload(about: Workload) -> SimilarWorkload | None:
    """The published workload closest in parameters and FLOP per sample; None if none is close.

    Source: Euclidean distance of the two logarithms.
    """
    mine = model_size(about)
    if mine is None:
        return None
    found = []
    for name, plans in workload_plans().items():
        known = workload(name)
        theirs = model_size(known)
        if theirs is not None:
            far = math.dist([math.log2(each) for each in theirs], [math.log2(each) for each in mine])
            found.append(SimilarWorkload(workload=known, octaves=far, plans=plans))
    near = [each for each in found if each.octaves <= _MAX_OCTAVES]
    return min(near, key=lambda each: each.octaves, default=None)


def model_size(about: Workload) -> tuple[float, float] | None:
    """Parameters and training FLOP per sample of a workload; None if the catalogue does not know them."""
    flop = about.train_flop_per_sample
    try:
        params = float(workload_load(about).params)
    except SpecError:
        return None
    return (params, flop) if params > 0 and flop else None


def _size_words(about: Workload) -> str:
    params, flop = model_size(about) or (0.0, 0.0)
    return f"{format_si(params)} parameters and {format_si(flop, 'FLOP')} per sample"


def closest_reason(inputs: Inputs, assessment: Assessment) -> tuple[Reason, ...]:
    """The closest published workload as a reason, if the workload itself has no published results."""
    about = inputs.training.workload
    is_published = assessment.published is not None or inputs.training.budget.batches is not None
    like = None if assessment.searches is None or is_published else closest_workload(about)
    if like is None or like.workload.slug == about.slug:  # the same workload with another budget
        return ()
    return (
        Reason(
            words=(
                f"The closest published workload is {like.workload.title}, {_size_words(like.workload)}; "
                f"yours has {_size_words(about)}. Its plans took {like.plans.bias:.2g} times the published "
                f"time (median of {format_count(like.plans.num_trainings)}). For comparison only: correcting "
                "by such a match did not make plans of held-out workloads more accurate."
            ),
            formula=f"distance of log params and log FLOP; {_EXPERIMENT}",
        ),
    )


_MAX_SOURCES = 3
_NOTICEABLE_DISAGREEMENT = 1.05


_WEIGHTS = "w = s^-2 / sum s^-2, s: standard deviation of log time (Bates and Granger 1969)"


def reasons(
    inputs: Inputs, own: SystemCandidates, selection: Selection, best: Candidate
) -> tuple[Reason, ...]:
    """All reasons for the recommended candidate. own: candidates of its system."""
    assessment = own.assessment
    return (
        _size_reason(inputs, own, selection, best),
        _time_reason(best),
        *_measured_reasons(assessment, best),
        *_run_fit_reason(assessment),
        *_strategy_reason(assessment, best),
        *_batch_reason(inputs, best),
        *_money_reason(best, own.rates[best.terms]),
        *closest_reason(inputs, assessment),
    )


def _size_reason(inputs: Inputs, own: SystemCandidates, selection: Selection, best: Candidate) -> Reason:
    """The reason for the size."""
    size = format_count(best.num_accelerators)
    objective = inputs.query.objective
    sources = tuple(source for each in best.estimates for source in each.sources[:_MAX_SOURCES])
    if objective != "balance":
        words = f"{size} x {best.title}: {SOUGHT[objective]} among the candidates that keep every limit."
        return Reason(words=words, sources=sources)
    found = selection.equilibria.get(best.group, ())
    if not found:
        return Reason(
            words=f"{size} x {best.title}: the fewest that keep every limit; {returns_words(found)}.",
            sources=sources,
        )
    answer, where = default_answer(found), returns_words(found)
    if own.assessment.sizes.is_one and answer.limited_by == "catalogue":
        # The sizes around the only one asked about are fixed: no option extends them.
        most, asked = (format_count(each.num_accelerators) for each in (answer, best))
        where = f"up to {most} accelerators, the most tried around {asked}, larger sizes pay"
    words = f"{where}{_nearest_words(best, answer, own.candidates)}."
    kind = deciding_kind(found)
    return Reason(
        words=f"{words[:1].upper()}{words[1:]}", sources=sources, formula=f"{kind.name}: {kind.definition}"
    )


def _nearest_words(best: Candidate, answer: Equilibrium, candidates: Sequence[Candidate]) -> str:
    if best.num_accelerators == answer.num_accelerators:
        return ""
    size = format_count(best.num_accelerators)
    beside = beside_balance_words(best, answer.num_accelerators, candidates)
    which = "largest size up to it" if best.num_accelerators < answer.num_accelerators else "smallest size"
    return f"; {beside or f'{size} is the {which} that keeps every limit'}"


def _time_reason(best: Candidate) -> Reason:
    """The reason for the time: the estimates, and how they are combined."""
    sources = tuple(source for each in best.estimates for source in each.sources[:_MAX_SOURCES])
    counted = [each for each in best.estimates if each.weight > 0.0]
    if len(counted) == 1:
        only = counted[0]
        others = "".join(
            f" For comparison, {each.name}: {format_duration(each.time_s.value)}."
            for each in best.estimates
            if not each.weight
        )
        return Reason(
            words=(
                f"The time rests on one estimate, {only.name}: {format_duration(only.time_s.value)}; "
                f"{only.why}.{others}"
            ),
            sources=sources,
        )
    parts = ", ".join(
        f"{each.name} ({format_duration(each.time_s.value)}, weight {whole_percent(each.weight)})"
        for each in best.estimates
    )
    differ = ""
    if best.disagreement > _NOTICEABLE_DISAGREEMENT:
        differ = (
            "; they differ by more than their ranges explain, so the range was widened "
            f"{best.disagreement:.2g} times"
        )
    return Reason(
        words=f"The time combines these estimates: {parts}{differ}.", sources=sources, formula=_WEIGHTS
    )


def _measured_reasons(assessment: Assessment, best: Candidate) -> Iterator[Reason]:
    """Reasons from the user's own traces and collectives; empty if none were given."""
    for each in assessment.traces:
        files = tuple(EvidenceSource(kind="measured", ref=name) for name in each.trace.files)
        yield Reason(words=trace_words(each), sources=files, formula="step = compute + exposed + idle")
    searches = assessment.searches
    links = None if searches is None else searches.problem.model.links
    if searches is None or links is None or assessment.cluster is None:
        return
    from equipoise.calibration.user_links import link_words  # noqa: PLC0415 - only where collectives are given

    refs = dict.fromkeys(name for each in links.figures for name in each.files)
    words = [*link_words(links, assessment.cluster)]
    if best.strategy is not None and links.figures:
        now, before = (
            format_percent(round(_links_log_sd(searches.problem, best.strategy, draws), 4))
            for draws in (links.draws, links.usual_draws)
        )
        words.append(
            f"The links make a step on {format_count(best.num_accelerators)} uncertain by {now} (standard "
            f"deviation); without these files it would be {before}."
        )
    yield Reason(
        words=" ".join(words),
        sources=tuple(EvidenceSource(kind="measured", ref=name) for name in refs),
        formula="as timed; elsewhere the law fitted to the timings (docs/experiments/0005-collectives.md)",
    )


def trace_words(check: TraceCheck) -> str:
    """Words that compare a traced run with the model, and name what it lacks."""
    trace = check.trace
    own = [] if trace.step_s is None else [f"a step of {format_duration(trace.step_s)}"]
    if trace.exposed_share is not None:
        own.append(
            f"{whole_percent(trace.exposed_share)} exposed, {whole_percent(trace.idle_share or 0.0)} idle"
        )
    at = "" if trace.num_ranks is None else f" at {format_count(trace.num_ranks)} ranks"
    parts = [f"Your trace ({file_names(trace.files, 1)}){at}: {', '.join(own) or 'no step is marked'}"]
    if check.modelled_step_s is not None and check.modelled_exposed_share is not None:
        parts.append(
            f"; the model: {format_duration(check.modelled_step_s)}, "
            f"{whole_percent(check.modelled_exposed_share)} exposed"
        )
    if trace.strategy is not None:
        ran = trace.strategy.text()
        if trace.is_other:
            ran = f"batch {format_count(trace.strategy.global_batch_samples)} on all ranks"
        parts.append(f" (read as {ran})")
    words = "".join(parts) + "."
    if trace.missing:
        words += f" It gives no training time; missing: {'; '.join(trace.missing)}."
    return words


def _run_fit_reason(assessment: Assessment) -> Iterator[Reason]:
    """The reason from the fit to the user's own steps, if any."""
    if assessment.run_fit is not None:
        sentence = assessment.run_fit.sentence
        yield Reason(
            words=f"{sentence[:1].upper()}{sentence[1:]}.",
            formula="maximum a posteriori; docs/decide/advice.md, your own runs",
        )


def _strategy_reason(assessment: Assessment, best: Candidate) -> Iterator[Reason]:
    """The reason for the strategy, from the search."""
    searches = assessment.searches
    if searches is None or best.model is None or best.memory is None:
        return
    fitting = sum(each.found.num_fitting for each in searches.at((best.num_accelerators,)))
    memory = format_si(best.memory.needed_bytes, "B")
    held = best.memory.available_bytes
    of = "" if held is None else f" of {format_si(held, 'B')}"
    causes = sorted(best.model.by_cause_s.items(), key=lambda pair: -pair[1])[:3]
    spent = ", ".join(f"{name} {whole_percent(spent_s / best.model.step_s)}" for name, spent_s in causes)
    model = searches.problem.model
    yield Reason(
        words=(
            f"The strategy is the fastest of the {format_count(fitting)} on "
            f"{plural(best.num_accelerators, 'accelerator')} that fit into memory, by the performance "
            f"model: it needs {memory}{of}; a modelled step of "
            f"{format_duration(best.model.step_s)} is {spent}."
        ),
        sources=(EvidenceSource(kind="model", ref=f"calibration {model.calibration}: {model.words}"),),
        formula="step = sum of causes; docs/decide/models.md",
    )


def _batch_reason(inputs: Inputs, best: Candidate) -> Iterator[Reason]:
    """The reason for the global batch, for a training to a target."""
    budget = inputs.training.budget
    if best.global_batch_samples is None or budget.batches is None or best.num_samples is None:
        return
    low, high = map(format_count, budget.batches)
    why = "trades faster steps against more samples to the target"
    if best.has_published_batch:
        why = "is that of the best published result for this system and size"
    yield Reason(
        words=(
            f"The global batch of {format_count(best.global_batch_samples)} {why}: "
            f"{format_si(best.num_samples)} samples to the target, by published runs at batches of {low} to "
            f"{high}."
        ),
        sources=budget.evidence[:_MAX_SOURCES],
        formula="S(B) = S_min (1 + B / B_crit) (McCandlish et al. 2018)",
    )


def _money_reason(best: Candidate, rates: Rates) -> Iterator[Reason]:
    """The bases of money, energy and carbon."""
    parts = []
    if rates.price is not None:
        parts.append(f"the price of an accelerator-hour ({rates.price.basis})")
    if best.power_w is not None and rates.accelerator_power_w is not None:
        system = rates.system_power
        parts.append(
            f"{rates.accelerator_power_w:g} W per accelerator times {system.factor:g} for the rest of the "
            f"system ({system.basis})"
        )
        parts.append(
            f"{rates.grid.kg_co2_per_kwh:.3g} kg CO2 per kWh, {rates.grid.region} ({rates.grid.basis})"
        )
    if parts:
        yield Reason(words=f"Money, energy and carbon: {'; '.join(parts)}.", formula="N x time x rate")


def records(inputs: Inputs, assessment: Assessment, best: Candidate | None) -> Iterator[ErrorRecord]:
    """Error records on held-out data for every kind of estimate in the answer."""
    if best is not None and _is_combined(best):
        of = "the largest size of a group, by published results and the model together"
        yield _record("combined", "Combined times", _errors(of, combined_record()))
    if assessment.transferred is not None:
        found = transfer_record(assessment.transferred.nearness)
        subject = f"Published results of {assessment.transferred.chip.title} carried over"
        yield _record("transfer", subject, _errors(found.of, found))
    yield from _published_record(assessment, best)
    if assessment.searches is not None:
        plans, model = assessment.searches.problem.record, assessment.searches.problem.model
        errors = HeldOutErrors(
            of=f"published trainings of {len(plans.workloads)} workloads, from which only the samples were "
            "taken",
            num_held_out=plans.num_trainings,
            median_abs_error=plans.median,
            p90_abs_error=plans.p90,
        )
        yield _record("plans", "Times by the performance model", errors)
        subject = f"Steps by the performance model ({model.basis})"
        if model.record is None:
            yield ErrorRecord(
                kind="steps", of=model.words, words=f"{subject}: not validated ({model.words})."
            )
        else:
            yield _record("steps", subject, replace(model.record, of=model.words))
    yield from _advice_record(inputs, assessment, best)
    path = user_file(*LEDGER)
    own = None
    if path.exists():  # most users have none; then no further module is loaded
        own = running(path, accelerator=assessment.system.accelerator) or running(path)
    if own is not None:
        yield _record("ledger", "Your own ledger", own.record)


def _record(kind: str, subject: str, errors: HeldOutErrors) -> ErrorRecord:
    """The errors as a record of the answer, with their sentence."""
    p90, coverage = errors.p90_abs_error, errors.coverage
    most = "" if p90 is None else f", 90 % by at most {tenths(p90)}"
    covered = "" if coverage is None else f"; the {format_percent(LEVEL)} interval covered {tenths(coverage)}"
    off = f"off by {tenths(errors.median_abs_error)} (median){most}{covered}"
    words = f"{subject}: {format_count(errors.num_held_out)} held out ({errors.of}): {off}."
    return ErrorRecord(kind=kind, words=words, **asdict(errors))


def _errors(of: str, found: CombinedRecord | TransferRecord) -> HeldOutErrors:
    return HeldOutErrors(
        of=of,
        num_held_out=found.num_held_out,
        median_abs_error=found.median,
        p90_abs_error=found.p90,
        coverage=found.coverage,
    )


def _is_combined(best: Candidate) -> bool:
    with_weight = {each.estimator for each in best.estimates if each.weight > 0.0}
    return {"published", "model"} <= with_weight


def _published_record(assessment: Assessment, best: Candidate | None) -> Iterator[ErrorRecord]:
    """The error record of the pooled law at the nearest size that has one."""
    curve = None if assessment.published is None else assessment.published.curve
    known = [] if curve is None else [each for each in curve.predictions if each.record is not None]
    if not known:
        return
    wanted = known[0].num_accelerators if best is None else best.num_accelerators
    nearest = min(known, key=lambda each: abs(each.num_accelerators - wanted))
    assert nearest.record is not None
    yield _record("published", "Times carried from published results", nearest.record)


def _advice_record(inputs: Inputs, assessment: Assessment, best: Candidate | None) -> Iterator[ErrorRecord]:
    """The error record of recommended sizes, on groups whose larger sizes were held out."""
    objective = inputs.query.objective
    largest = None if assessment.published is None else largest_known(assessment.published)
    if largest is None or best is None or objective not in {"balance", "cost"}:
        return
    jump = min(FARTHEST, max(1.0, assessment.sizes.most / largest))
    shipped = shipped_advice(COMBINED if objective == "balance" and _is_combined(best) else PUBLISHED)
    found = shipped.record("answer" if objective == "balance" else "cost", jump=jump)
    if found is None:
        return
    yield ErrorRecord(
        kind="number",
        of=found.of,
        num_held_out=found.num_compared,
        median_abs_error=found.median_regret,
        p90_abs_error=found.p90_regret,
        coverage=found.coverage,
        words=(
            f"The advised number of accelerators: {tenths(found.within_doubling)} of "
            f"{found.num_compared} lay within one doubling of the one found with all data "
            f"({found.of}); taking it cost {tenths(found.median_regret)} of the objective (median), "
            f"90 % at most {tenths(found.p90_regret)}."
        ),
    )


def chosen_for_you(
    inputs: Inputs, assessment: Assessment, best: Candidate | None, compared: Sequence[Assessment]
) -> tuple[str, ...]:
    """Choices made where the question left them open, in words. compared: assessments of all systems."""
    chosen = [*inputs.training.chosen_for_you, *assessment.system.chosen_for_you]
    least = {"cost": "money", "energy": "energy"}.get(inputs.query.objective)
    if least is not None and inputs.query.deadline_s is None:
        chosen.append(f"no deadline: few accelerators need the least {least} (--deadline)")
    if best is None:
        return tuple(chosen)
    chosen += _host_words(assessment, compared)
    chosen += _used_of_node_words(inputs, assessment, best.num_accelerators)
    chosen += batch_words(
        inputs.training,
        best.global_batch_samples,
        is_published=best.has_published_batch,
        is_of_runs=best.strategy is None and best.grade == "measured",
    )
    chosen += _other_batch_words(inputs, assessment, best)
    chosen += _sequence_words(inputs)
    chosen += _adapter_words(inputs, best)
    chosen += _power_words(inputs, assessment)
    if best.strategy is not None:
        chosen += _strategy_words(inputs, assessment, best.strategy)
    uneven = uneven_batch(inputs, assessment.searches, best.num_accelerators)
    if uneven is not None:
        chosen.append(f"{uneven[:1].lower()}{uneven[1:]}")  # a note of other sizes begins with it
    # Other terms are shown with the name of the recommended system.
    is_usual = best.terms == "on_demand" and best.price is not None and not best.price.is_owned
    if not inputs.query.terms and is_usual:
        chosen.append("rented on demand (--terms)")
    return tuple(chosen)


def _host_words(assessment: Assessment, compared: Sequence[Assessment]) -> Iterator[str]:
    """Words on the hosts assumed for desktop cards, if more are eligible than one host has.

    compared: all assessments. If they include other desktop cards, hosts are named for each card.
    """
    if _assumed_host(assessment) is None:
        return
    cards: dict[str, list[str]] = {}
    for each in compared:
        host = _assumed_host(each)
        if host is not None:
            cards.setdefault(host, []).append(each.system.title)
    for host, titles in cards.items():
        yield f"{host}{f' for {listed(titles)}' if len(cards) > 1 else ''} (--node-size)"


def _used_of_node_words(inputs: Inputs, assessment: Assessment, size: int) -> Iterator[str]:
    """Words on how many accelerators of each node are used, if whole nodes cannot divide the batch."""
    node_size = 1 if assessment.cluster is None else assessment.cluster.node_size
    batch = inputs.training.global_batch_samples
    used = taken_of_node(size, node_size, batch)
    if batch is not None and used < node_size:
        yield (
            f"{used} of the {node_size} in each node, as all cannot share a batch of {format_count(batch)} "
            f"equally (--global-batch {batch * node_size // used} for all)"
        )


def _assumed_host(assessment: Assessment) -> str | None:
    """Words for the assumed host of a desktop card, if more are eligible than it has; else None."""
    system, nodes = assessment.system, assessment.cluster
    is_ours = system.is_desktop and system.name == system.accelerator and "node_size" not in system.node
    if nodes is None or not is_ours or assessment.sizes.most <= nodes.node_size:
        return None
    rate = format_si(8 * nodes.node_size * nodes.inter.byte_per_s, "bit/s")
    return f"hosts of {nodes.node_size}, joined by {rate}"


def _other_batch_words(inputs: Inputs, assessment: Assessment, best: Candidate) -> Iterator[str]:
    """Words on the batches of the user's runs, if another is recommended, and on their conversion."""
    batches = sorted({each.global_batch_samples for each in inputs.runs_on(best.accelerator)})
    if batches and best.global_batch_samples not in {None, *batches}:
        how = (
            "the model converts their times to this batch"
            if assessment.run_fit is not None
            else "the effect of the other batch is included in the range only"
        )
        ran = ", ".join(format_count(each) for each in batches)
        yield f"your runs used batch {ran}; {how}"


def _sequence_words(inputs: Inputs) -> Iterator[str]:
    """Words on the sample length assumed for runs of the user that state none."""
    runs, stated = inputs.user.runs, inputs.query.sequence_tokens
    tokens = stated or inputs.training.workload.sequence_tokens
    if tokens is not None and runs is not None and runs.num_of_asked_length:
        num, long = format_count(runs.num_of_asked_length), format_count(tokens)
        of = f"the {long} tokens of --sequence" if stated else f"the model's {long} tokens"
        yield f"{num} of your runs state no length: assumed {of} (column sequence)"


def _adapter_words(inputs: Inputs, best: Candidate) -> Iterator[str]:
    """Words on runs of the user assumed to train adapters as asked, because they do not state it."""
    silent = [each for each in inputs.runs_on(best.accelerator) if "trained=" not in (each.strategy or "")]
    asked = trained_part(inputs.query) if silent else None
    if asked not in {None, "full"}:
        yield f"your runs are assumed to train {asked}; if not, state trained=full in their strategy"


def _power_words(inputs: Inputs, assessment: Assessment) -> Iterator[str]:
    """Words on runs of the user assumed to be at full power, if the question states a power limit."""
    system, limit_w = assessment.system, inputs.query.power_cap_w
    is_slowed = system.cluster is not None and system.cluster != at_full_power(inputs, system)
    ran = inputs.runs_on(system.accelerator) or inputs.trainings_on(system.accelerator)
    if is_slowed and ran and assessment.searches is not None:
        yield f"your runs are assumed to be at full power; the model slows them to {limit_w:g} W"


# Another precision, or another software, is named if it takes at most this share of the time.
_NOTICED_RATIO: Final = 0.98
_FASTER_SOFTWARE: Final = 0.85


def _strategy_words(inputs: Inputs, assessment: Assessment, chosen: Strategy) -> Iterator[str]:
    """Words on what the question leaves open of a strategy: precision, code, software and offload."""
    stated, searches = inputs.query.fixed_names, assessment.searches
    if "precision" not in stated:
        yield f"precision {chosen.precision}{_like_runs(inputs, assessment)} (--precision for others)"
    elif searches is not None and (ratio := usual_precision_ratio(searches.problem, chosen)) < _NOTICED_RATIO:
        yield f"{chosen.precision} as stated, though bf16 takes {ratio:.2f}x the time by the model"
    if "implementation" not in stated:
        yield f"{chosen.implementation} code (--fix implementation=eager,compiled)"
    if inputs.query.software is None and searches is not None:
        yield from _software_words(searches.problem, software_ratios(inputs, assessment, chosen))
    if searches is not None:
        for option, words in on_host(searches.problem, chosen).items():
            if option not in stated:
                yield f"{words} (--fix {option}={value_text(STAYS[option])})"


def _like_runs(inputs: Inputs, assessment: Assessment) -> str:
    """Words on a precision that differs from the usual one because the user's runs had it; else empty."""
    about, nodes = inputs.beside_own_runs(assessment.system).training, assessment.cluster
    usual = () if nodes is None else (usual_precision(nodes, about),)
    return ", as in your runs" if about.choices.get("precision", usual) != usual else ""


def _software_words(known: Problem, ratios: Mapping[str, float]) -> Iterator[str]:
    """Words on the chosen software, and the time with others, the fastest first."""
    if known.software is not None:
        others = ", ".join(f"{other} {ratio:.2f}x the time" for other, ratio in ratios.items())
        fastest, ratio = next(iter(ratios.items()), ("", 1.0))
        slower = f", {1.0 / ratio:.2g}x the time of {fastest}" if ratio < _FASTER_SOFTWARE else ""
        yield f"software {known.software.name}{slower} (--software{f': {others}' if others else ''})"

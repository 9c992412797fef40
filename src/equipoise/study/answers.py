"""What pages of plans, advice and accuracy show: answers of `advice`, with what stands beside them."""

from equipoise.advice.answer.advice import Advice
from equipoise.advice.answer.advised import advise
from equipoise.advice.answer.asked import Request, Sought
from equipoise.advice.answer.reached import Reaches, reaches
from equipoise.advice.forecast import record
from equipoise.advice.forecast.advice_record import JOINED, shipped_advice
from equipoise.advice.ledger.running import running
from equipoise.advice.plans import sizing
from equipoise.advice.plans.plan_record import plan_records
from equipoise.advice.plans.planned import Comparison
from equipoise.advice.validation.profiles import profiles
from equipoise.errors import DataError
from equipoise.findings import AccuracyFindings, AdviceFindings, PlanFindings, ReachFindings
from equipoise.perfmodel.parameters import PRIORS
from equipoise.runs import embedded
from equipoise.runs.chosen import Folders, tables


def plan_findings(comparison: Comparison) -> PlanFindings:
    """What a page shows of the plans of `advice.plans`, the one to take first."""
    plan = comparison.plan
    stored = sizing.stored(plan)
    return PlanFindings(
        comparison=comparison,
        plan=plan,
        sizes=sizing.by_size(plan),
        layouts=sizing.layouts(plan),
        spent=sizing.spent(plan.by_size),
        stored=stored,
        held=sizing.held(stored),
        priors=PRIORS,
        dataset=embedded.version(),
    )


def advice(request: Request, *, data: Folders | None = None, also: Folders = ()) -> AdviceFindings:
    """What to take for a training, with its evidence, reasons, alternatives and record.

    Raises EvidenceError, naming what is missing, where nothing tells how long it takes.
    """
    return advice_findings(advise(request, scores=tables(data=data, also=also).scores))


def reach(sought: Sought, *, data: Folders | None = None, also: Folders = ()) -> ReachFindings:
    """How many tokens, or how large a model, money and time are enough for.

    Raises EvidenceError where nothing tells, UsageError where they are not enough for a start.
    """
    return reach_findings(reaches(sought, scores=tables(data=data, also=also).scores))


def reach_findings(found: Reaches) -> ReachFindings:
    """What a page shows of what money and time are enough for."""
    return ReachFindings(reaches=found, dataset=embedded.version())


def advice_findings(found: Advice) -> AdviceFindings:
    """What a page shows of an advice."""
    return AdviceFindings(advice=found, dataset=embedded.version())


def accuracy() -> AccuracyFindings:
    """How wrong every kind of answer was on what was held out, and one's own ledger of predictions."""
    return AccuracyFindings(
        forecasts=recorded(),
        profiles=profiles(),
        plans=plan_records(),
        advised=shipped_advice().errors,
        advised_jointly=shipped_advice(JOINED).errors,
        own=running(),
        dataset=embedded.version(),
    )


def recorded() -> record.Shipped | None:
    """How wrong predictions were; None in a checkout whose record has not been made yet."""
    try:
        return record.shipped()
    except DataError:
        return None

"""What an advice costs on each terms of renting, with all that fails, and beside buying the accelerators."""

from dataclasses import dataclass

import polars as pl

from equipoise.advice.answer.about import subject_of
from equipoise.advice.answer.advice import Advice
from equipoise.advice.answer.asked import USUAL_MOST, Request
from equipoise.advice.answer.machines import machines
from equipoise.advice.plans.planned import Question
from equipoise.advice.reach import TOKENS_PER_PARAM, Ask, Reach, reach
from equipoise.advice.risk import Risk, Undertaking, risks_of
from equipoise.economics.owning import USUAL_UTILISATION, Ownership, ownership, purchase
from equipoise.economics.uncertain import LEVEL, exact, product
from equipoise.errors import EvidenceError, UsageError
from equipoise.spec.workload import Workload
from equipoise.stats import Interval

_USUAL_HORIZON_MONTHS = 36.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What else is asked about money. queue_s: until the accelerators are there; None is not known.

    buys: whether to compare with buying. purchase_usd: of one accelerator with its share of host and network.
    utilisation: share of all hours that an own machine works. horizon_months: by when owning has to pay.
    """

    queue_s: float | None = None
    buys: bool = False
    purchase_usd: float | None = None
    utilisation: float | None = None
    horizon_months: float = _USUAL_HORIZON_MONTHS


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Risks on each terms; ownership where it was asked for and can be told. notes: what could not."""

    risks: tuple[Risk, ...]
    ownership: Ownership | None
    notes: tuple[str, ...]


def priced(found: Advice, about: Workload, wishes: Wishes) -> Priced:
    """What the advised training costs with what fails, on each terms, and beside an own machine.

    about: the workload of the advice. Raises UsageError for wishes that are no amounts.
    """
    best, standing = found.recommended, found.standing
    if best is None or standing.cluster is None:
        return Priced(risks=(), ownership=None, notes=())
    goodput = 1.0 if best.option is None else best.option.goodput
    training = Undertaking(
        accelerator=best.accelerator,
        num_accelerators=best.num_accelerators,
        node_size=standing.cluster.node_size,
        work=product(best.time, exact(goodput)),
        trained_params=about.trained_params,
        price=standing.rates.price,
    )
    limit = found.request.deadline_s
    told = risks_of(
        training,
        queue_s=None if wishes.queue_s is None else exact(wishes.queue_s),
        deadline_s=None if limit == float("inf") else limit,
    )
    if not wishes.buys:
        return Priced(risks=told, ownership=None, notes=())
    try:
        return Priced(risks=told, ownership=_owned(found, wishes), notes=())
    except EvidenceError as err:
        missing = f": give {', '.join(err.missing)}" if err.missing else ""
        return Priced(risks=told, ownership=None, notes=(f"Buying was not compared: {err}{missing}.",))


def _owned(found: Advice, wishes: Wishes) -> Ownership:
    """An own accelerator of the advised kind; the prediction's error makes it busier or idler."""
    best, rates = found.recommended, found.standing.rates
    assert best is not None
    bought = purchase(best.accelerator, power_w=rates.accelerator_power_w, own_usd=wishes.purchase_usd)
    if bought is None:
        raise EvidenceError(f"no purchase price of {best.accelerator} is known", missing=("--purchase USD",))
    time = best.time
    error = Interval(value=1.0, low=time.low / time.value, high=time.high / time.value, level=LEVEL)
    use = USUAL_UTILISATION if wishes.utilisation is None else exact(wishes.utilisation)
    return ownership(bought, rates, utilisation=use, horizon_months=wishes.horizon_months, speed_error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaches:
    """What money and time reach on the machine that reaches furthest, and on the others; what was refused."""

    best: Reach
    others: tuple[Reach, ...]
    notes: tuple[str, ...]


def reaches(
    request: Request,
    asked: Ask,
    *,
    scores: pl.DataFrame | None = None,
    tokens_per_param: float = TOKENS_PER_PARAM,
) -> Reaches:
    """What the request's budget and deadline are enough for on each of its machines, the furthest first.

    Raises as `reach`, where no machine has an answer.
    """
    about = subject_of(request.workload)
    found: list[Reach] = []
    refused: list[EvidenceError | UsageError] = []
    for machine in machines(request):
        if not machine.is_known:
            refused.append(EvidenceError(f"{machine.title} is not in the catalogue"))
            continue
        question = Question(
            workload=request.workload,
            accelerator=machine.name,
            node=machine.node,
            fewest=1,
            most=request.most or machine.most or USUAL_MOST,
            objective=request.objective,
            global_batch_samples=request.global_batch_samples or about.global_batch_samples,
            deadline_s=request.deadline_s,
            budget_usd=request.budget_usd,
            choices={"precision": request.precision} if request.precision else {},
        )
        try:
            found.append(
                reach(question, asked, terms=request.terms, scores=scores, tokens_per_param=tokens_per_param)
            )
        except (EvidenceError, UsageError) as err:
            refused.append(err)
    if not found:
        raise refused[0]
    ordered = sorted(found, key=lambda each: -_amount(each))
    return Reaches(
        best=ordered[0],
        others=tuple(ordered[1:]),
        notes=tuple(f"Not compared: {each}." for each in refused),
    )


def _amount(found: Reach) -> float:
    """What is to be as much as possible."""
    size = found.params if found.asked == "model" else None
    return found.tokens.value if size is None else size.value

"""What a choice costs on each terms of renting, with all that fails, and beside buying the accelerators."""

from equipoise.advice.answer.advice import Choice, Standing
from equipoise.advice.answer.asked import Owning, Request
from equipoise.advice.risk import Risk, Undertaking, risks
from equipoise.economics.owning import USUAL_UTILISATION, Ownership, ownership, purchase
from equipoise.economics.uncertain import LEVEL, exact, product
from equipoise.errors import EvidenceError
from equipoise.spec.workload import Workload
from equipoise.stats import Interval


def rented(request: Request, standing: Standing, about: Workload) -> tuple[Risk, ...]:
    """The recommended training on each terms; nothing where none is, or what a node holds is not known.

    about: the workload of the request.
    """
    best = standing.recommended
    if best is None or standing.cluster is None:
        return ()
    goodput = 1.0 if best.option is None else best.option.goodput
    training = Undertaking(
        accelerator=best.accelerator,
        num_accelerators=best.num_accelerators,
        node_size=standing.cluster.node_size,
        work=product(best.time, exact(goodput)),
        trained_params=about.trained_params,
        price=standing.rates.price,
    )
    return risks(
        training,
        queue_s=None if request.queue_s is None else exact(request.queue_s),
        deadline_s=None if request.deadline_s == float("inf") else request.deadline_s,
    )


def owned(asked: Owning, standing: Standing, best: Choice) -> Ownership:
    """An own accelerator of the recommended kind; the prediction's error makes it busier or idler.

    Raises EvidenceError, naming the options that would do, where an amount is not known; UsageError for
    what is none.
    """
    if standing.cluster is None:
        raise EvidenceError(
            f"{best.accelerator} is not in the catalogue", missing=("facts of it: --hardware FILE.toml",)
        )
    bought = purchase(
        standing.cluster.accelerator,
        own_usd=asked.purchase_usd,
        hosting_usd_per_month=asked.hosting_usd_per_month,
    )
    if bought is None:
        raise EvidenceError(f"no purchase price of {best.accelerator} is known", missing=("--purchase USD",))
    time = best.time
    return ownership(
        bought,
        standing.rates,
        utilisation=USUAL_UTILISATION if asked.utilisation is None else exact(asked.utilisation),
        horizon_months=asked.horizon_months,
        speed_error=Interval(value=1.0, low=time.low / time.value, high=time.high / time.value, level=LEVEL),
    )

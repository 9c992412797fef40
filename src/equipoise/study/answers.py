"""How wrong answers were: the records that ship, and the user's own ledger of predictions."""

from equipoise.advice.forecast import record
from equipoise.advice.forecast.advice_record import JOINED, shipped_advice
from equipoise.advice.validation.profiles import profiles
from equipoise.decide.ledger import running
from equipoise.decide.strategies.plan_record import plan_records
from equipoise.errors import DataError
from equipoise.findings import AccuracyFindings
from equipoise.runs import embedded


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

"""What moves the money of a choice: each of its causes, from one end of its interval to the other."""

from equipoise.advice.answer.advice import Choice, Standing
from equipoise.economics.uncertain import Input, Tornado, tornado
from equipoise.units import HOUR_S

TIME, PRICE = "time of the training", "price of an accelerator-hour"


def swing(standing: Standing, choice: Choice) -> Tornado:
    """The money with its interval, and what moves it; accelerator-hours where there is no price.

    Source: money = accelerators x hours x price, each moved alone.
    """
    size = choice.num_accelerators
    price = standing.rates.price
    time = Input(name=TIME, unit="s", interval=choice.time)
    if price is None:
        return tornado("accelerator-hours", "h", lambda values: values[TIME] * (size / HOUR_S), (time,))
    hourly = Input(name=PRICE, unit="USD", interval=price.interval)
    return tornado(
        "money", "USD", lambda values: values[TIME] * values[PRICE] * (size / HOUR_S), (time, hourly)
    )

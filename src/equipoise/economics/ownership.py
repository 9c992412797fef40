"""Buying against renting hardware: break-even, return by a horizon, and the largest sensitivities."""

import math
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from equipoise.economics import Electricity, Rates, electricity, table
from equipoise.errors import EvidenceError
from equipoise.intervals import LEVEL, Input, Interval, Tornado, exact, product, stated
from equipoise.spec.hardware import Accelerator
from equipoise.stats import Values, drawn, propagated, tornado
from equipoise.units import HOUR_S, MONTH_S, SI_PREFIXES

MONTH_H = MONTH_S / HOUR_S
_MONTHS_A_YEAR = 12
_RESIDUAL_MONTHS = 36
# Assumed utilisation of all hours where not stated: between a lab and a queue that is never empty.
USUAL_UTILISATION = Interval(value=0.5, low=0.25, high=0.85, level=LEVEL)


class Purchase(Struct, frozen=True, kw_only=True):
    """Costs of owning one accelerator with its share of host and network.

    usd: price of the whole system per accelerator. hosting_usd_per_month: room and rack, without electricity.
    in_office: in an office instead of a data centre. residual_fraction: resale value after three years over
    the price. basis: sources.
    """

    accelerator: str
    usd: Interval
    upkeep_per_year: Interval
    hosting_usd_per_month: Interval
    idle_power_fraction: Interval
    residual_fraction: Interval
    lifetime_months: Interval
    basis: tuple[str, ...]
    in_office: bool = False


Way: TypeAlias = Literal["rent", "buy", "own"]


class HourlyCost(Struct, frozen=True, kw_only=True):
    """Cost of an hour of use of one accelerator: rented, bought for it, or already owned.

    usd: if bought, including purchase minus resale over the horizon; if owned, electricity alone.
    """

    way: Way
    usd: Interval


class Ownership(Struct, frozen=True, kw_only=True):
    """Owning one accelerator compared with renting one for the hours used.

    months_to_break_even: infinite if renting stays cheaper. return_usd: savings by the horizon, with resale.
    utilisation: share of all hours. break_even_probability: of breaking even within the machine's lifetime.
    hourly: cost of each way to use one. tornado: of the return. break_even_utilisation: smallest share of all
    hours with which owning breaks even by the horizon; None if none does.
    """

    purchase: Purchase
    utilisation: Interval
    horizon_months: float
    rent_usd_per_month: Interval
    running_usd_per_month: Interval
    months_to_break_even: Interval
    break_even_probability: float
    return_usd: Interval
    break_even_utilisation: float | None
    hourly: tuple[HourlyCost, ...]
    tornado: Tornado
    assumes: tuple[str, ...]


def purchase(
    chip: Accelerator, *, user_usd: float | None = None, hosting_usd_per_month: float | None = None
) -> Purchase | None:
    """Costs of owning an accelerator: the user's own figures, else those of the table; None without a price.

    user_usd: price per accelerator of the whole system.
    Raises EvidenceError if hosting is neither stated nor known, because the accelerator's power is not.
    """
    known = table("purchases.toml")
    usual: dict[str, Any] = known["usual"]
    rows = [row for row in known["purchase"] if row["accelerator"] == chip.slug]
    if user_usd is None and not rows:
        return None
    if user_usd is not None:
        usd, basis = exact(user_usd), ["price: yours"]
    else:
        usd = product(stated(rows[0]["usd"]), stated(usual["system_factor"]))
        basis = [
            f"price {rows[0]['read']}: {rows[0]['source']}",
            f"host and network: {usual['system_factor_source']}",
        ]
    hosting, room = _hosting(chip, usual, hosting_usd_per_month)
    return Purchase(
        accelerator=chip.slug,
        usd=usd,
        upkeep_per_year=stated(usual["upkeep_per_year"]),
        hosting_usd_per_month=hosting,
        in_office=bool(chip.for_desktops),
        idle_power_fraction=stated(usual["idle_power_fraction"]),
        residual_fraction=stated(usual["residual_fraction_36_months"]),
        lifetime_months=stated(usual["lifetime_months"]),
        basis=(
            *basis,
            f"hosting: {room}",
            f"upkeep: {usual['upkeep_source']}",
            f"resale value: {usual['residual_source']}",
            f"lifetime: {usual['lifetime_source']}",
            f"power when idle: {usual['idle_source']}",
        ),
    )


def _no_power(accelerator: str) -> EvidenceError:
    """The error for an accelerator whose power, and so its electricity, is not known."""
    given = ("power_w in --hardware FILE.toml",)
    return EvidenceError(f"no power of {accelerator} is known", missing=given)


def _hosting(
    chip: Accelerator, usual: dict[str, Any], user_usd_per_month: float | None
) -> tuple[Interval, str]:
    """Monthly hosting cost of an accelerator, and its source."""
    if user_usd_per_month is not None:
        return exact(user_usd_per_month), "your value"
    if chip.for_desktops:
        return stated(usual["office_hosting_usd_per_month"]), usual["office_hosting_source"]
    if chip.power_w is None:
        raise _no_power(chip.slug)
    per_kw = stated(usual["hosting_usd_per_kw_month"])
    return product(per_kw, exact(chip.power_w / SI_PREFIXES["k"])), usual["hosting_source"]


def ownership(
    bought: Purchase,
    rates: Rates,
    *,
    utilisation: Interval,
    horizon_months: float,
    speed_error: Interval,
) -> Ownership:
    """When owning one accelerator pays compared with renting it for the hours used, and its return.

    rates: price of renting, power, electricity. utilisation: share of all hours in which the machine works.
    speed_error: measured over predicted time of the work, as an interval around 1: work that takes longer
    than predicted costs more to rent.
    Raises EvidenceError without a price or power.
    Assumes a rented machine is paid for used hours only, an owned one for all; no interest or taxes, constant
    prices. Source: definition of break-even: price over monthly savings of owning.
    """
    if rates.price is None:
        raise EvidenceError(f"no price to rent {bought.accelerator} is known", missing=("--price",))
    if rates.accelerator_power_w is None:
        raise _no_power(bought.accelerator)
    power = rates.electricity or electricity(in_office=bought.in_office)
    inputs = _inputs(bought, rates, power, utilisation, speed_error)
    flows = _Flows(power_kw=rates.accelerator_power_w / SI_PREFIXES["k"], horizon_months=horizon_months)
    months = propagated(flows.months_to_break_even, inputs)
    lifetime = Input(name="lifetime", unit="months", interval=bought.lifetime_months)
    return Ownership(
        purchase=bought,
        utilisation=utilisation,
        horizon_months=horizon_months,
        rent_usd_per_month=propagated(flows.rent_usd, inputs),
        running_usd_per_month=propagated(flows.running_usd, inputs),
        months_to_break_even=months,
        break_even_probability=float(np.mean(drawn(flows.pays, (*inputs, lifetime)))),
        return_usd=propagated(flows.return_usd, inputs),
        break_even_utilisation=_break_even_utilisation(flows, inputs),
        hourly=(
            HourlyCost(way="rent", usd=rates.price.interval),
            HourlyCost(way="buy", usd=propagated(flows.bought_usd_per_hour, inputs)),
            HourlyCost(way="own", usd=propagated(flows.owned_usd_per_hour, inputs)),
        ),
        tornado=tornado("return", "USD", flows.return_usd, inputs),
        assumes=(
            "hours rented are paid when used, owned machines always; no interest, taxes or price changes",
            *bought.basis,
            f"electricity: {power.basis}",
            f"rent: {rates.price.basis}",
        ),
    )


class _Flows(Struct, frozen=True, kw_only=True):
    """Costs per month or hour as functions of inputs by name. power_kw: rated, per accelerator."""

    power_kw: float
    horizon_months: float

    def rent_usd(self, at: Values) -> NDArray[np.float64]:
        """Monthly rent for the hours used, at most all hours."""
        return _used(at) * MONTH_H * at["rent"]

    def running_usd(self, at: Values) -> NDArray[np.float64]:
        """Monthly cost of an owned machine: electricity when busy and idle, hosting, upkeep."""
        busy = _used(at)
        electric = self.owned_usd_per_hour(at) * MONTH_H * (busy + (1.0 - busy) * at["idle power"])
        return np.asarray(electric + at["hosting"] + at["purchase"] * at["upkeep"] / _MONTHS_A_YEAR)

    def owned_usd_per_hour(self, at: Values) -> NDArray[np.float64]:
        """Cost of electricity per busy hour."""
        return np.asarray(self.power_kw * at["system power"] * at["PUE"] * at["electricity"])

    def bought_usd_per_hour(self, at: Values) -> NDArray[np.float64]:
        """Total cost of a bought machine by the horizon, minus resale, per busy hour."""
        lost = (at["purchase"] - self._resale_usd(at)) / self.horizon_months
        return np.asarray((lost + self.running_usd(at)) / (_used(at) * MONTH_H))

    def _resale_usd(self, at: Values) -> NDArray[np.float64]:
        return np.asarray(
            at["purchase"] * at["worth after 3 years"] ** (self.horizon_months / _RESIDUAL_MONTHS)
        )

    def months_to_break_even(self, at: Values) -> NDArray[np.float64]:
        """Months until savings equal the price; infinite without savings."""
        saved = self.rent_usd(at) - self.running_usd(at)
        never = np.full(np.broadcast(saved, at["purchase"]).shape, math.inf)
        return np.asarray(np.divide(at["purchase"], saved, out=never, where=saved > 0.0))

    def return_usd(self, at: Values) -> NDArray[np.float64]:
        """Advantage of owning over renting at the horizon, including resale."""
        saved = self.rent_usd(at) - self.running_usd(at)
        return np.asarray(self.horizon_months * saved + self._resale_usd(at) - at["purchase"])

    def pays(self, at: Values) -> NDArray[np.float64]:
        """1 where it breaks even within its lifetime, else 0."""
        return np.asarray(self.months_to_break_even(at) <= at["lifetime"], dtype=float)


# Lower bound of the used share, which keeps costs per busy hour finite.
_MIN_USED: Final = 1e-12


def _used(at: Values) -> NDArray[np.float64]:
    """Share of all hours in which the machine works."""
    return np.clip(at["utilisation"] * at["time against predicted"], _MIN_USED, 1.0)


def _inputs(
    bought: Purchase,
    rates: Rates,
    power: Electricity,
    utilisation: Interval,
    speed_error: Interval,
) -> tuple[Input, ...]:
    assert rates.price is not None
    named = (
        ("rent", "USD/h", rates.price.interval),
        ("purchase", "USD", bought.usd),
        ("utilisation", "of hours", utilisation),
        ("time against predicted", "x", speed_error),
        ("electricity", "USD/kWh", power.usd_per_kwh),
        ("PUE", "x", power.pue),
        ("system power", "x rated", rates.system_power.interval),
        ("idle power", "of busy", bought.idle_power_fraction),
        ("hosting", "USD/month", bought.hosting_usd_per_month),
        ("upkeep", "of price/year", bought.upkeep_per_year),
        ("worth after 3 years", "of price", bought.residual_fraction),
    )
    return tuple(Input(name=name, unit=unit, interval=interval) for name, unit, interval in named)


def _break_even_utilisation(flows: _Flows, inputs: tuple[Input, ...]) -> float | None:
    """The smallest utilisation with a non-negative return at the horizon, other inputs at their values."""
    shares = np.linspace(0.0, 1.0, 1001)
    at = {each.name: np.full(len(shares), each.interval.value) for each in inputs} | {"utilisation": shares}
    pays = np.flatnonzero(flows.return_usd(at) >= 0.0)
    return float(shares[pays[0]]) if len(pays) else None

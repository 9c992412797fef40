"""What a run costs: accelerator-hours, money, energy and carbon from (accelerators, seconds, watts)."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from equipoise.economics.prices import DEFAULT_GRID, Electricity, GridCarbon, Price, PriceTerms, grid, price
from equipoise.economics.uncertainty import LEVEL, exact, product
from equipoise.spec.hardware import Accelerator
from equipoise.stats import Interval
from equipoise.units import HOUR_S, KWH_J

EnergyBasis: TypeAlias = Literal["measured", "modelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPower:
    """Power of a whole system (hosts, fans, losses, switches) over the rated power of its accelerators.

    low, high: the 90 % range of single systems.
    """

    factor: float
    low: float
    high: float
    basis: str

    @property
    def interval(self) -> Interval:
        """The factor with its range."""
        return Interval(value=self.factor, low=self.low, high=self.high, level=LEVEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates of one bill; None where unknown, and then the figure that needs it is None too.

    electricity: of those who own the machine, or want to know; None where it was not requested.
    """

    price: Price | None
    grid: GridCarbon
    accelerator_power_w: float | None
    system_power: SystemPower
    electricity: Electricity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a run costs, in accelerator-hours, US dollars of rent, joules, US dollars of power, kilograms.

    energy: of the system, and of the building where its PUE was given; electricity and carbon are of the
    same energy. energy_basis: measured or modelled; None where not known.
    """

    hours: Interval
    money: Interval | None
    energy: Interval | None
    energy_basis: EnergyBasis | None
    electricity: Interval | None
    carbon: Interval | None

    @property
    def accelerator_hours(self) -> float:
        """Accelerators times hours."""
        return self.hours.value

    @property
    def usd(self) -> float | None:
        """Rent, or the electricity of an owned machine."""
        return None if self.money is None else self.money.value

    @property
    def energy_j(self) -> float | None:
        """Energy of the whole system, with its building where the PUE was given."""
        return None if self.energy is None else self.energy.value

    @property
    def carbon_kg(self) -> float | None:
        """Carbon dioxide that making the electricity set free."""
        return None if self.carbon is None else self.carbon.value


def bill_fields(bill: Bill) -> dict[str, float | str | None]:
    """The bill as documents state it: each amount, and the ends of its interval at LEVEL."""
    amounts = {
        "usd": bill.money,
        "energy_j": bill.energy,
        "carbon_kg": bill.carbon,
        "electricity_usd": bill.electricity,
    }
    found: dict[str, float | str | None] = {"accelerator_hours": bill.accelerator_hours}
    for name, amount in amounts.items():
        found[name] = None if amount is None else amount.value
        found[f"low_{name}"] = None if amount is None else amount.low
        found[f"high_{name}"] = None if amount is None else amount.high
    return found | {"energy_basis": bill.energy_basis}


# Median and 5-95 % range over the 29 entries of v4.0-v5.0 with power logs (H100 and B200, air-cooled hosts):
# docs/experiments/0003-system-power.md.
SYSTEM_POWER = SystemPower(
    factor=1.18, low=1.00, high=1.39, basis="29 MLPerf entries with power logs, v4.0-v5.0 (H100, B200)"
)


def rates(
    accelerator: Accelerator,
    *,
    user_price: float | None = None,
    region: str = DEFAULT_GRID,
    terms: PriceTerms = "on_demand",
    power: Electricity | None = None,
) -> Rates:
    """The rates of an accelerator in a region, with the user's own price if given.

    user_price: US dollars per accelerator-hour of this accelerator; 0 for a machine that is owned, whose
    hours then cost the electricity, where its price is given. Raises UsageError for what is no price.
    """
    paid = price(accelerator.slug, usd_per_accelerator_hour=user_price, terms=terms)
    if paid is not None and user_price == 0.0:
        kept = "electricity is what an hour costs" if power else "no price of electricity is given"
        paid = replace(paid, basis=f"{paid.basis}; {kept}")
    return Rates(
        price=paid,
        grid=grid(region),
        accelerator_power_w=accelerator.power_w,
        system_power=SYSTEM_POWER,
        electricity=power,
    )


def bill(
    num_accelerators: float,
    seconds: float | Interval,
    rates: Rates,
    *,
    measured_energy_j: float | None = None,
) -> Bill:
    """What `num_accelerators` cost over `seconds`, with an interval where the time has one.

    measured_energy_j: energy of this very run where it was metered at the machines; otherwise energy is
    modelled as accelerators times rated power times the system's factor times time. Either is multiplied by
    the PUE where the user gave one. At a price of 0 money is the electricity, where its price is given.
    Assumes the accelerators are paid for the whole time, and draw the same power at every size; that time,
    price, power and overhead are off independently (`uncertainty.product`); that a grid's yearly
    average is exact, and counts the machines alone unless the overhead of a building is given.
    Source: definition; the factor is measured (docs/experiments/0003-system-power.md).
    """
    time = seconds if isinstance(seconds, Interval) else exact(seconds)
    hours = product(exact(num_accelerators / HOUR_S), time)
    energy, basis = _energy(num_accelerators, time, rates, measured_energy_j)
    drawn_kwh = None if energy is None else product(energy, exact(1.0 / KWH_J))
    electricity = (
        None
        if drawn_kwh is None or rates.electricity is None
        else product(drawn_kwh, rates.electricity.usd_per_kwh)
    )
    return Bill(
        hours=hours,
        money=_money(hours, rates, electricity),
        energy=energy,
        energy_basis=basis,
        electricity=electricity,
        carbon=None if drawn_kwh is None else product(drawn_kwh, exact(rates.grid.kg_co2_per_kwh)),
    )


def _money(hours: Interval, rates: Rates, electricity: Interval | None) -> Interval | None:
    """Rent; of an owned machine the electricity, where it has a price."""
    if rates.price is None:
        return None
    if rates.price.usd_per_accelerator_hour == 0.0 and rates.electricity is not None:
        return electricity
    return product(hours, rates.price.interval)


def _energy(
    num_accelerators: float, time: Interval, rates: Rates, measured_j: float | None
) -> tuple[Interval | None, EnergyBasis | None]:
    power = rates.electricity
    pue = power.pue if power is not None and power.is_user_pue else exact(1.0)
    if measured_j is not None:
        return product(exact(measured_j), pue), "measured"
    if rates.accelerator_power_w is None:
        return None, None
    rated = exact(num_accelerators * rates.accelerator_power_w)
    return product(rated, rates.system_power.interval, time, pue), "modelled"

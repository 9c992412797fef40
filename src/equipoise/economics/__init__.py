"""Cost, energy and carbon of a training, with intervals; ownership; interruptions.

Tables of prices, grids, failures and purchases have dates and sources; the user's own figures override them.
"""

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from itertools import combinations, groupby
from pathlib import Path
from statistics import NormalDist, median
from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import SpecError, hint
from equipoise.files import shipped_table
from equipoise.intervals import DEVIATE, LEVEL, Interval, exact, product, stated
from equipoise.spec.hardware import DEFAULT_GRID, TERM_WORDS, Accelerator, PriceTerms
from equipoise.units import HOUR_S, KWH_J, MONTH_S, SI_PREFIXES, format_duration


@cache
def table(name: str) -> dict[str, Any]:
    """The content of a table, cached."""
    return shipped_table(Path(__file__).with_name(name))


_PAIR_SD = math.sqrt(2.0) * NormalDist().inv_cdf(0.75)


class Offer(Struct, frozen=True, kw_only=True):
    """A provider's price per accelerator-hour on one day.

    minimum_months: minimum commitment; None where the source does not state it.
    """

    usd_per_accelerator_hour: float
    terms: PriceTerms
    provider: str
    read: dt.date
    source: str
    minimum_months: int | None = None


class Price(Struct, frozen=True, kw_only=True):
    """The price of an accelerator-hour: the median of dated offers, and their range.

    log_half_width: of the logarithm of one more offer, at LEVEL; 0 for the user's own price.
    minimum_s: minimum paid time per accelerator. storage_bytes, egress_bytes: stored during the training, and
    transferred out at its end; None for one checkpoint. offers: empty for the user's own price, and for a
    price inferred from other terms.
    """

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("offers",)

    accelerator: str
    usd_per_accelerator_hour: float
    low: float
    high: float
    basis: str
    terms: PriceTerms = "on_demand"
    log_half_width: float = 0.0
    minimum_s: float = 0.0
    storage_usd_per_gb_month: float = 0.0
    egress_usd_per_gb: float = 0.0
    storage_bytes: float | None = None
    egress_bytes: float | None = None
    offers: tuple[Offer, ...] = ()

    @property
    def is_owned(self) -> bool:
        """Whether the machine is owned, so that hours cost only electricity."""
        return self.usd_per_accelerator_hour == 0.0

    @property
    def is_hourly(self) -> bool:
        """Whether only the hours used are charged."""
        return max(self.minimum_s, self.storage_usd_per_gb_month, self.egress_usd_per_gb) == 0.0

    @property
    def interval(self) -> Interval:
        """The interval of one more offer, widened to include all known offers."""
        factor = math.exp(self.log_half_width)
        value = self.usd_per_accelerator_hour
        return Interval(
            value=value, low=min(self.low, value / factor), high=max(self.high, value * factor), level=LEVEL
        )


def price(
    accelerator: str, *, usd_per_accelerator_hour: float | None = None, terms: PriceTerms = "on_demand"
) -> Price | None:
    """The price of an accelerator-hour: the user's own, else the median of prices.toml, else None.

    accelerator: slug. If only offers on demand are known, the price on other terms is inferred from the ratio
    of other accelerators. The user's own may be 0, for an owned machine.
    """
    if usd_per_accelerator_hour is not None:
        return _user_price(accelerator, usd_per_accelerator_hour, terms)
    known = [each for each in offers(accelerator) if each.terms == terms]
    if known:
        return _offered_price(accelerator, terms, known)
    return None if terms == "on_demand" else _inferred_price(accelerator, terms)


def offers(accelerator: str) -> tuple[Offer, ...]:
    """All dated offers of an accelerator, on any terms."""
    return _offers().get(accelerator, ())


def _user_price(accelerator: str, usd: float, terms: PriceTerms) -> Price:
    return Price(
        accelerator=accelerator,
        usd_per_accelerator_hour=usd,
        low=usd,
        high=usd,
        basis="your price" if usd else "your price of 0: your own machine",
        terms=terms,
    )


def _minimum_months(known: Sequence[Offer]) -> int | None:
    """The smallest commitment stated by an offer; None if none states one."""
    return min((each.minimum_months for each in known if each.minimum_months is not None), default=None)


def _offered_price(accelerator: str, terms: PriceTerms, known: Sequence[Offer]) -> Price:
    amounts = [each.usd_per_accelerator_hour for each in known]
    return Price(
        accelerator=accelerator,
        usd_per_accelerator_hour=_geometric_median(amounts),
        low=min(amounts),
        high=max(amounts),
        basis=_offers_text(terms, known),
        terms=terms,
        log_half_width=DEVIATE * _prediction_sd(offer_log_sd(), len(known)),
        minimum_s=MONTH_S * (_minimum_months(known) or 0),
        offers=tuple(known),
    )


def _prediction_sd(sd: float, num_known: int) -> float:
    """Standard deviation of one more value around the median of `num_known` values with this sd.

    Assumes normal values: the variance of the median of many is pi/2 sd^2 / k. With pi/2 - 1 added to k it is
    exact for one value, within 2 % for odd k, and too large for even k, where the median is the mean of two.
    """
    return sd * math.sqrt(1.0 + math.pi / 2 / (num_known + math.pi / 2 - 1.0))


def _offers_text(terms: PriceTerms, known: Sequence[Offer]) -> str:
    """Short text with terms, providers and dates of offers."""
    names = ", ".join(dict.fromkeys(each.provider for each in known))
    dates = sorted({each.read for each in known})
    when = str(dates[0]) if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    many = "" if len(known) == 1 else f"median of {len(known)} offers, "
    months = _minimum_months(known)
    bound = f" for {format_duration(months * MONTH_S)} or more" if months else ""
    if terms == "reserved" and months is None:
        bound = " (commitment not stated by the source, and not charged)"
    return f"{TERM_WORDS[terms]}{bound}, {many}{when}: {names}"


def _geometric_median(amounts: Sequence[float]) -> float:
    """The median; the geometric mean of the two middle values, because prices vary on a logarithmic scale."""
    ordered = sorted(amounts)
    below, above = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return below if below == above else math.sqrt(below * above)


def _inferred_price(accelerator: str, terms: PriceTerms) -> Price | None:
    """The price on terms without offers: the price on demand times the usual ratio of the terms."""
    demand = price(accelerator)
    ratios = terms_ratios(terms)
    if demand is None or len(ratios) < 3:  # noqa: PLR2004 - fewer show no spread
        return None
    logs = [math.log(each) for each in ratios]
    usual = math.log(_geometric_median(ratios))
    spread = math.hypot(
        _prediction_sd(_log_sd(logs), len(logs)), _prediction_sd(offer_log_sd(), len(demand.offers))
    )
    value = demand.usd_per_accelerator_hour * math.exp(usual)
    return Price(
        accelerator=accelerator,
        usd_per_accelerator_hour=value,
        low=value,
        high=value,
        basis=(
            f"no {TERM_WORDS[terms]} offer is known: {math.exp(usual):.2f} of the price on demand, as the "
            f"median of {len(ratios)} other accelerators"
        ),
        terms=terms,
        log_half_width=DEVIATE * spread,
    )


@cache
def offer_log_sd() -> float:
    """Standard deviation of log prices between offers of one accelerator on the same terms, over all.

    Assumes offers of all accelerators, and of all dates, have the same spread. The median of pairwise
    differences is robust against outliers, such as old chips sold off.
    Source: Shamos 1976 and Rousseeuw and Croux 1993: the median of |x - y| over pairs of normal values is
    0.9539 standard deviations.
    """
    apart = [
        abs(math.log(one.usd_per_accelerator_hour / other.usd_per_accelerator_hour))
        for found in _offers().values()
        for one, other in combinations(found, 2)
        if one.terms == other.terms
    ]
    return median(apart) / _PAIR_SD


@cache
def terms_ratios(terms: PriceTerms) -> tuple[float, ...]:
    """Median price on the terms over that on demand, for each accelerator offered on both."""
    return tuple(_ratios(terms))


def _ratios(terms: PriceTerms) -> Iterator[float]:
    for found in _offers().values():
        at = {
            each: [offer.usd_per_accelerator_hour for offer in found if offer.terms == each]
            for each in ("on_demand", terms)
        }
        if all(at.values()):
            yield _geometric_median(at[terms]) / _geometric_median(at["on_demand"])


def _log_sd(logs: Sequence[float]) -> float:
    """Robust standard deviation of a few logarithms, from their pairwise differences."""
    return median(abs(one - other) for one, other in combinations(logs, 2)) / _PAIR_SD


@cache
def _offers() -> dict[str, tuple[Offer, ...]]:
    rows = sorted(table("prices.toml")["price"], key=lambda row: str(row["accelerator"]))
    return {
        slug: tuple(
            Offer(**{name: value for name, value in row.items() if name != "accelerator"}) for row in found
        )
        for slug, found in groupby(rows, key=lambda row: str(row["accelerator"]))
    }


class GridCarbon(Struct, frozen=True, kw_only=True):
    """Carbon intensity of a region's electricity (yearly average), or of the user's own contract."""

    region: str
    kg_co2_per_kwh: float
    basis: str


class Electricity(Struct, frozen=True, kw_only=True):
    """Price of electricity, and overhead of the building.

    pue: energy of the building over that of its machines. is_user_pue: whether the user stated it; a bill
    includes the building only then, the cost of ownership always.
    """

    usd_per_kwh: Interval
    pue: Interval
    basis: str
    is_user_pue: bool = False

    @property
    def usd_per_j(self) -> float:
        """US dollars per joule drawn by machines, as in a bill."""
        pue = self.pue.value if self.is_user_pue else 1.0
        return pue * self.usd_per_kwh.value / KWH_J


_CODE_LETTERS = 2  # length of country codes, which are not suggested for misspelled names


def grid(region: str = DEFAULT_GRID, *, user_g_per_kwh: float | None = None) -> GridCarbon:
    """The carbon intensity of a region: the user's own, else from grids.toml.

    region: a name or alias in grids.toml; case, spaces and hyphens do not matter. user_g_per_kwh: g of CO2
    per kWh. Raises SpecError if the region is not in grids.toml.
    """
    if user_g_per_kwh is not None:
        kilograms = user_g_per_kwh / SI_PREFIXES["k"]
        return GridCarbon(region=region, kg_co2_per_kwh=kilograms, basis="your value")
    found = table("grids.toml")
    regions = found["kg_co2_per_kwh"]
    name = region.strip().casefold().replace(" ", "_").replace("-", "_")
    name = found["also"].get(name, name)
    if name not in regions:
        spelled = [each for each in (*regions, *found["also"]) if len(each) > _CODE_LETTERS]
        near = get_close_matches(name, spelled, n=3)
        raise SpecError(
            f"--region {region!r} is not known; {hint(near, 'expected a country.')}",
            remedy=" See `equipoise list regions`; --carbon G states the grams of CO2 per kWh of another",
        )
    return GridCarbon(
        region=name, kg_co2_per_kwh=float(regions[name]), basis=f"{found['year']}, {found['source']}"
    )


def electricity(
    *, usd_per_kwh: float | None = None, pue: float | None = None, in_office: bool = False
) -> Electricity:
    """The price of electricity and the overhead of the building: the user's own, else the usual ones.

    in_office: in an office instead of a data centre.
    """
    usual = table("grids.toml")["electricity"]
    place = "office_pue" if in_office else "pue"
    sources = []
    if usd_per_kwh is None:
        sources.append(usual["usd_per_kwh_source"])
    if pue is None:
        sources.append(usual[f"{place}_source"])
    return Electricity(
        usd_per_kwh=stated(usual["usd_per_kwh"]) if usd_per_kwh is None else exact(usd_per_kwh),
        pue=stated(usual[place]) if pue is None else exact(pue),
        basis="; ".join(sources) or "your values",
        is_user_pue=pue is not None,
    )


EnergyBasis: TypeAlias = Literal["measured", "modelled"]


class SystemPower(Struct, frozen=True, kw_only=True):
    """Power of a whole system (hosts, fans, losses, switches) over the rated power of its accelerators.

    low, high: 90 % range of individual systems.
    """

    factor: float
    low: float
    high: float
    basis: str

    @property
    def interval(self) -> Interval:
        """The factor with its range."""
        return Interval(value=self.factor, low=self.low, high=self.high, level=LEVEL)

    def under_cap(self, *, rated_w: float, cap_w: float) -> "SystemPower":
        """The factor relative to a power limit of the accelerators; the rest of the system is unchanged.

        Source: definition; (cap + (factor - 1) rated) / cap.
        """
        low, factor, high = (
            1.0 + (each - 1.0) * rated_w / cap_w for each in (self.low, self.factor, self.high)
        )
        basis = f"{self.basis}, where the accelerators draw {rated_w:g} W"
        return SystemPower(factor=factor, low=low, high=high, basis=basis)


class Rates(Struct, frozen=True, kw_only=True):
    """The rates of one bill; None where unknown, which makes figures that depend on it None.

    electricity: None unless the machine is owned or it was requested. others: further quotes on the same
    terms; the cheapest for a training is used.
    """

    price: Price | None
    grid: GridCarbon
    accelerator_power_w: float | None
    system_power: SystemPower
    electricity: Electricity | None = None
    others: tuple[Price, ...] = ()

    @property
    def power_w(self) -> float | None:
        """Watts of an accelerator with its share of the system; None if unknown."""
        rated_w = self.accelerator_power_w
        return None if rated_w is None else rated_w * self.system_power.factor


class Bill(Struct, frozen=True, kw_only=True):
    """The cost of a run; None where unknown. usd: rent, or electricity of an owned machine.

    energy_j: of the system, including the building if its PUE was stated; electricity_usd and carbon_kg are
    for the same energy. energy_basis: measured or modelled.
    """

    accelerator_hours: Interval
    usd: Interval | None
    energy_j: Interval | None
    energy_basis: EnergyBasis | None
    electricity_usd: Interval | None
    carbon_kg: Interval | None


# Median and 5-95 % range over the 29 entries of v4.0-v5.0 with power logs (H100 and B200, air-cooled hosts):
# docs/experiments/0003-system-power.md.
SYSTEM_POWER = SystemPower(
    factor=1.18, low=1.00, high=1.39, basis="29 MLPerf entries with power logs, v4.0-v5.0 (H100, B200)"
)


def rates(
    accelerator: Accelerator,
    *,
    user_price: float | None = None,
    carbon: GridCarbon | None = None,
    terms: PriceTerms = "on_demand",
    power: Electricity | None = None,
) -> Rates:
    """The rates of an accelerator, with the user's own price if given.

    user_price: US dollars per accelerator-hour; 0 for an owned machine, whose hours then cost electricity, by
    default at the usual price. carbon: of the electricity; by default that of the default region.
    """
    paid = price(accelerator.slug, usd_per_accelerator_hour=user_price, terms=terms)
    if paid is not None and user_price == 0.0:
        power = power or electricity(in_office=bool(accelerator.for_desktops))
        paid = replace(paid, basis=f"{paid.basis}; an hour costs only electricity")
    return Rates(
        price=paid,
        grid=carbon or grid(),
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
    """The cost of `num_accelerators` over `seconds`.

    measured_energy_j: energy of this run if it was metered at the machines; otherwise energy is modelled as
    accelerators times rated power times the system's factor times time. Both are multiplied by the PUE if the
    user stated one. At a price of 0, usd is the cost of electricity, if its price is known.
    Assumes accelerators are paid for the whole time, and draw the same power at every size; errors of time,
    price, power and overhead are independent (`intervals.product`); a grid's yearly average is exact, and
    applies to the machines alone unless a PUE is stated.
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
        accelerator_hours=hours,
        usd=_money(hours, rates, electricity),
        energy_j=energy,
        energy_basis=basis,
        electricity_usd=electricity,
        carbon_kg=None if drawn_kwh is None else product(drawn_kwh, exact(rates.grid.kg_co2_per_kwh)),
    )


def _money(hours: Interval, rates: Rates, electricity: Interval | None) -> Interval | None:
    """Rent, or electricity of an owned machine if its price is known."""
    if rates.price is None:
        return None
    if rates.price.is_owned and rates.electricity is not None:
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

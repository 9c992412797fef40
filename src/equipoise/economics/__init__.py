"""What a training costs: money, energy and carbon, each with an interval; rented or owned; what fails.

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
    """The content of a table, read once."""
    return shipped_table(Path(__file__).with_name(name))


_PAIR_SD = math.sqrt(2.0) * NormalDist().inv_cdf(0.75)


class Offer(Struct, frozen=True, kw_only=True):
    """What one provider charged for one accelerator and hour on one day.

    minimum_months: that are paid in any case; None where the source does not say.
    """

    usd_per_accelerator_hour: float
    terms: PriceTerms
    provider: str
    read: dt.date
    source: str
    minimum_months: int | None = None


class Price(Struct, frozen=True, kw_only=True):
    """What one accelerator costs an hour: the median of the dated offers, and their range.

    log_half_width: of what one more offer may cost, of its logarithm, at LEVEL; 0 for the user's own price.
    minimum_s: of every accelerator, paid in any case. storage_bytes, egress_bytes: kept during the training,
    taken out at its end; None for one checkpoint.
    offers: none for the user's own price, and for one that was inferred from other terms.
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
        """Whether nothing is paid by the hour but electricity: a machine that is owned."""
        return self.usd_per_accelerator_hour == 0.0

    @property
    def is_hourly(self) -> bool:
        """Whether the hours used are all that is paid for."""
        return max(self.minimum_s, self.storage_usd_per_gb_month, self.egress_usd_per_gb) == 0.0

    @property
    def interval(self) -> Interval:
        """What an hour may cost somebody who rents it now: wide enough for every offer there is."""
        factor = math.exp(self.log_half_width)
        value = self.usd_per_accelerator_hour
        return Interval(
            value=value, low=min(self.low, value / factor), high=max(self.high, value * factor), level=LEVEL
        )


def price(
    accelerator: str, *, usd_per_accelerator_hour: float | None = None, terms: PriceTerms = "on_demand"
) -> Price | None:
    """The price of an accelerator's hour: the user's own, else the median of prices.toml, else None.

    accelerator: slug. Where no offer on the terms is known but one on demand is, the price is inferred from
    what the terms cost of other accelerators. The user's own may be 0, for a machine that is owned.
    """
    if usd_per_accelerator_hour is not None:
        return _user_price(accelerator, usd_per_accelerator_hour, terms)
    known = [each for each in offers(accelerator) if each.terms == terms]
    if known:
        return _of_offers(accelerator, terms, known)
    return None if terms == "on_demand" else _inferred(accelerator, terms)


def offers(accelerator: str) -> tuple[Offer, ...]:
    """Every dated offer of an accelerator, on any terms."""
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
    """The least commitment that an offer states; None where none does."""
    return min((each.minimum_months for each in known if each.minimum_months is not None), default=None)


def _of_offers(accelerator: str, terms: PriceTerms, known: Sequence[Offer]) -> Price:
    amounts = [each.usd_per_accelerator_hour for each in known]
    return Price(
        accelerator=accelerator,
        usd_per_accelerator_hour=_middle(amounts),
        low=min(amounts),
        high=max(amounts),
        basis=_named(terms, known),
        terms=terms,
        log_half_width=DEVIATE * _one_more_sd(offer_log_sd(), len(known)),
        minimum_s=MONTH_S * (_minimum_months(known) or 0),
        offers=tuple(known),
    )


def _one_more_sd(sd: float, num_known: int) -> float:
    """Standard deviation of one more value around the median of those known, which are of the same spread.

    Assumes normal values: the variance of a median of many is pi/2 sd^2 / k. With pi/2 - 1 added to k it is
    exact for one value too, within 2 % for odd k, and above for even k, where the middle is of two.
    """
    return sd * math.sqrt(1.0 + math.pi / 2 / (num_known + math.pi / 2 - 1.0))


def _named(terms: PriceTerms, known: Sequence[Offer]) -> str:
    """Terms, providers and dates of offers, in few words."""
    names = ", ".join(dict.fromkeys(each.provider for each in known))
    dates = sorted({each.read for each in known})
    when = str(dates[0]) if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    many = "" if len(known) == 1 else f"median of {len(known)} offers, "
    months = _minimum_months(known)
    bound = f" for {format_duration(months * MONTH_S)} or more" if months else ""
    if terms == "reserved" and months is None:
        bound = " (commitment not stated by the source, and not charged)"
    return f"{TERM_WORDS[terms]}{bound}, {many}{when}: {names}"


def _middle(amounts: Sequence[float]) -> float:
    """The median, of two in the middle the geometric mean: prices lie on a logarithmic scale."""
    ordered = sorted(amounts)
    below, above = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return below if below == above else math.sqrt(below * above)


def _inferred(accelerator: str, terms: PriceTerms) -> Price | None:
    """The price on terms that nobody offered it on, as the price on demand times what is usual."""
    demand = price(accelerator)
    ratios = terms_ratios(terms)
    if demand is None or len(ratios) < 3:  # noqa: PLR2004 - fewer show no spread
        return None
    logs = [math.log(each) for each in ratios]
    usual = math.log(_middle(ratios))
    spread = math.hypot(
        _one_more_sd(_log_sd(logs), len(logs)), _one_more_sd(offer_log_sd(), len(demand.offers))
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
    """Standard deviation of the logarithm among offers of one accelerator on the same terms, over all.

    Assumes offers of all accelerators have the same spread, and dated ones as those of today. A few stray
    far (old chips that some sell off): the median of differences between pairs leaves them be.
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
    """Of each accelerator that is offered both ways, the median price on the terms over that on demand."""
    return tuple(_ratios(terms))


def _ratios(terms: PriceTerms) -> Iterator[float]:
    for found in _offers().values():
        at = {
            each: [offer.usd_per_accelerator_hour for offer in found if offer.terms == each]
            for each in ("on_demand", terms)
        }
        if all(at.values()):
            yield _middle(at[terms]) / _middle(at["on_demand"])


def _log_sd(logs: Sequence[float]) -> float:
    """The standard deviation of a few logarithms, by the differences of their pairs."""
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
    """Carbon intensity of a region's electricity, yearly average; or of the user's own contract."""

    region: str
    kg_co2_per_kwh: float
    basis: str


class Electricity(Struct, frozen=True, kw_only=True):
    """What owners pay for power.

    pue: energy of the whole building over that of the machines in it. is_user_pue: whether the user gave it;
    a bill counts the building only then, owning always.
    """

    usd_per_kwh: Interval
    pue: Interval
    basis: str
    is_user_pue: bool = False

    @property
    def usd_per_j(self) -> float:
        """US dollars of a joule that machines draw, as a bill has it."""
        pue = self.pue.value if self.is_user_pue else 1.0
        return pue * self.usd_per_kwh.value / KWH_J


_CODE_LETTERS = 2  # of a country's code, which nothing longer is a slip of


def grid(region: str = DEFAULT_GRID, *, user_g_per_kwh: float | None = None) -> GridCarbon:
    """The carbon intensity of a region: the user's own, else of grids.toml.

    region: as in grids.toml or one of its other names; case, spaces and hyphens do not matter.
    user_g_per_kwh: grams of CO2 per kWh.
    Raises SpecError when the region is not in grids.toml.
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
    """The price of electricity and the overhead of the building: the user's own, else what is usual.

    in_office: a room for people, not a data centre.
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

    def under_cap(self, *, rated_w: float, cap_w: float) -> "SystemPower":
        """The same over a limit of the accelerators' power: what the rest draws stays as it was.

        Source: definition; (cap + (factor - 1) rated) / cap.
        """
        low, factor, high = (
            1.0 + (each - 1.0) * rated_w / cap_w for each in (self.low, self.factor, self.high)
        )
        basis = f"{self.basis}, where the accelerators draw {rated_w:g} W"
        return SystemPower(factor=factor, low=low, high=high, basis=basis)


class Rates(Struct, frozen=True, kw_only=True):
    """The rates of one bill; None where unknown, and then the figure that needs it is None too.

    electricity: of those who own the machine, or want to know; None where it was not requested. others: more
    quotes on the same terms, of which a training takes what costs it least.
    """

    price: Price | None
    grid: GridCarbon
    accelerator_power_w: float | None
    system_power: SystemPower
    electricity: Electricity | None = None
    others: tuple[Price, ...] = ()

    @property
    def power_w(self) -> float | None:
        """Watts of an accelerator and its share of the system; None is not known."""
        rated_w = self.accelerator_power_w
        return None if rated_w is None else rated_w * self.system_power.factor


class Bill(Struct, frozen=True, kw_only=True):
    """What a run costs; usd: rent, or the electricity of an owned machine. None where it is not known.

    energy_j: of the system, and of the building where its PUE was given; electricity_usd and carbon_kg are of
    the same energy. energy_basis: measured or modelled.
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

    user_price: US dollars per accelerator-hour of this accelerator; 0 for a machine that is owned, whose
    hours then cost the electricity, at the usual price unless given. carbon: of the electricity; that of the
    world unless given.
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
    """What `num_accelerators` cost over `seconds`, with an interval where the time has one.

    measured_energy_j: energy of this very run where it was metered at the machines; otherwise energy is
    modelled as accelerators times rated power times the system's factor times time. Either is multiplied by
    the PUE where the user gave one. At a price of 0 money is the electricity, where its price is given.
    Assumes the accelerators are paid for the whole time, and draw the same power at every size; that time,
    price, power and overhead are off independently (`intervals.product`); that a grid's yearly
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
        accelerator_hours=hours,
        usd=_money(hours, rates, electricity),
        energy_j=energy,
        energy_basis=basis,
        electricity_usd=electricity,
        carbon_kg=None if drawn_kwh is None else product(drawn_kwh, exact(rates.grid.kg_co2_per_kwh)),
    )


def _money(hours: Interval, rates: Rates, electricity: Interval | None) -> Interval | None:
    """Rent; of an owned machine the electricity, where it has a price."""
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

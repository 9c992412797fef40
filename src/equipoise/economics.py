"""What a run costs: accelerator-hours, money, energy and carbon from (accelerators, seconds, watts).

Prices and grids are tables with dates and sources (prices.toml, grids.toml); the
user's own figures override them.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any, Literal, TypeAlias

from equipoise.errors import SpecError, UsageError
from equipoise.spec.hardware import Accelerator
from equipoise.units import HOUR_S, KWH_J

EnergyBasis: TypeAlias = Literal["measured", "modelled"]
GRIDS = "src/equipoise/grids.toml"
DEFAULT_GRID = "world"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one accelerator costs an hour: the median of the dated offers, and their range."""

    accelerator: str
    usd_per_accelerator_hour: float
    low: float
    high: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Carbon intensity of a region's electricity, yearly average."""

    region: str
    kg_co2_per_kwh: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPower:
    """Power of a whole system (hosts, fans, losses, switches) over the rated power of its accelerators.

    low, high: the 90 % range of single systems.
    """

    factor: float
    low: float
    high: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates of one bill; None where unknown, and then the figure that needs it is None too."""

    price: Price | None
    grid: Grid
    accelerator_power_w: float | None
    system_power: SystemPower


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a run costs. energy_basis says whether energy was measured or modelled; None means not known."""

    accelerator_hours: float
    usd: float | None
    energy_j: float | None
    energy_basis: EnergyBasis | None
    carbon_kg: float | None


# Median and 5-95 % range over the 29 entries of v4.0-v5.0 with power logs (H100 and B200, air-cooled hosts):
# docs/experiments/0003-system-power.md.
SYSTEM_POWER = SystemPower(
    factor=1.18, low=1.00, high=1.39, basis="29 MLPerf entries with power logs, v4.0-v5.0 (H100, B200)"
)


def price(accelerator: str, *, usd_per_accelerator_hour: float | None = None) -> Price | None:
    """The price of an accelerator's hour: the user's own, else the median of prices.toml, else None.

    accelerator: slug. Raises UsageError when the user's own price is not a positive number.
    """
    if usd_per_accelerator_hour is not None:
        if not 0 < usd_per_accelerator_hour < 1e6:  # noqa: PLR2004 - dearer than any machine: a slip of the unit
            raise UsageError(
                f"--price is {usd_per_accelerator_hour!r}; "
                "expected US dollars per accelerator and hour, above 0"
            )
        own = usd_per_accelerator_hour
        return Price(
            accelerator=accelerator, usd_per_accelerator_hour=own, low=own, high=own, basis="your own price"
        )
    offers = [row for row in _table("prices.toml")["price"] if row["accelerator"] == accelerator]
    if not offers:
        return None
    amounts = [float(row["usd_per_accelerator_hour"]) for row in offers]
    names = ", ".join(f"{row['provider']} {row['read']}" for row in offers)
    return Price(
        accelerator=accelerator,
        usd_per_accelerator_hour=median(amounts),
        low=min(amounts),
        high=max(amounts),
        basis=f"on demand, {names}",
    )


def grid(region: str = DEFAULT_GRID, *, kg_co2_per_kwh: float | None = None) -> Grid:
    """The carbon intensity of a region, or the user's own.

    Raises SpecError when the region is not in grids.toml.
    """
    if kg_co2_per_kwh is not None:
        return Grid(region=region, kg_co2_per_kwh=kg_co2_per_kwh, basis="your own figure")
    table = _table("grids.toml")
    regions = table["kg_co2_per_kwh"]
    if region not in regions:
        raise SpecError(
            f"region {region!r} is not known; it has {', '.join(sorted(regions))}. Add it to {GRIDS}"
        )
    return Grid(
        region=region, kg_co2_per_kwh=float(regions[region]), basis=f"{table['year']}, {table['source']}"
    )


def rates(accelerator: Accelerator, *, own_price: float | None = None, region: str = DEFAULT_GRID) -> Rates:
    """The rates of an accelerator in a region, with the user's own price if given."""
    return Rates(
        price=price(accelerator.slug, usd_per_accelerator_hour=own_price),
        grid=grid(region),
        accelerator_power_w=accelerator.power_w,
        system_power=SYSTEM_POWER,
    )


def bill(
    num_accelerators: float, seconds: float, rates: Rates, *, measured_energy_j: float | None = None
) -> Bill:
    """What `num_accelerators` cost over `seconds`.

    measured_energy_j: energy of this very run where it was metered; otherwise energy is modelled as rated
    power of the accelerators times the system's factor times time.
    Assumes the accelerators are paid for the whole time, and draw the same power at every size.
    Source: definition; the factor is measured (docs/experiments/0003-system-power.md).
    """
    accelerator_hours = num_accelerators * seconds / HOUR_S
    usd = None if rates.price is None else accelerator_hours * rates.price.usd_per_accelerator_hour
    energy_j: float | None = None
    basis: EnergyBasis | None = None
    if measured_energy_j is not None:
        energy_j, basis = measured_energy_j, "measured"
    elif rates.accelerator_power_w is not None:
        energy_j = num_accelerators * rates.accelerator_power_w * rates.system_power.factor * seconds
        basis = "modelled"
    carbon_kg = None if energy_j is None else energy_j / KWH_J * rates.grid.kg_co2_per_kwh
    return Bill(
        accelerator_hours=accelerator_hours,
        usd=usd,
        energy_j=energy_j,
        energy_basis=basis,
        carbon_kg=carbon_kg,
    )


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((files("equipoise") / name).read_text(encoding="utf-8"))

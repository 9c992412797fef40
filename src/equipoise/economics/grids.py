"""What electricity costs, and how much carbon it took to make."""

from dataclasses import dataclass
from typing import Final

from equipoise.economics.tables import table
from equipoise.economics.uncertain import exact, stated
from equipoise.errors import SpecError, UsageError
from equipoise.spec import renting
from equipoise.stats import Interval

GRIDS = "src/equipoise/economics/grids.toml"
DEFAULT_GRID: Final = renting.DEFAULT_GRID
# Dearer than any electricity, and more overhead than any cooling: slips of the unit.
_MOST_USD_PER_KWH = 10.0
_MOST_PUE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Carbon intensity of a region's electricity, yearly average."""

    region: str
    kg_co2_per_kwh: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Electricity:
    """What owners pay for power.

    pue: energy of the whole building over that of the machines in it. is_own_pue: whether the user gave it;
    a bill counts the building only then, owning always.
    """

    usd_per_kwh: Interval
    pue: Interval
    basis: str
    is_own_pue: bool = False


def grid(region: str = DEFAULT_GRID) -> Grid:
    """The carbon intensity of a region.

    Raises SpecError when the region is not in grids.toml.
    """
    found = table("grids.toml")
    regions = found["kg_co2_per_kwh"]
    if region not in regions:
        raise SpecError(
            f"region {region!r} is not known; it has {', '.join(sorted(regions))}. Add it to {GRIDS}"
        )
    return Grid(
        region=region, kg_co2_per_kwh=float(regions[region]), basis=f"{found['year']}, {found['source']}"
    )


def electricity(
    *, usd_per_kwh: float | None = None, pue: float | None = None, in_office: bool = False
) -> Electricity:
    """The price of electricity and the overhead of the building: the user's own, else what is usual.

    in_office: a room for people, not a data centre.
    Raises UsageError where the user's own are no such amounts.
    """
    if usd_per_kwh is not None and not 0 < usd_per_kwh < _MOST_USD_PER_KWH:
        raise UsageError(
            f"--electricity is {usd_per_kwh!r}; expected US dollars a kWh, above 0, "
            f"below {_MOST_USD_PER_KWH:g}"
        )
    if pue is not None and not 1 <= pue < _MOST_PUE:
        raise UsageError(
            f"--pue is {pue!r}; expected the building's energy over that of machines, from 1, "
            f"below {_MOST_PUE:g}"
        )
    usual = table("grids.toml")["electricity"]
    place = "office_pue" if in_office else "pue"
    told = []
    if usd_per_kwh is None:
        told.append(usual["usd_per_kwh_source"])
    if pue is None:
        told.append(usual[f"{place}_source"])
    return Electricity(
        usd_per_kwh=stated(usual["usd_per_kwh"]) if usd_per_kwh is None else exact(usd_per_kwh),
        pue=stated(usual[place]) if pue is None else exact(pue),
        basis="; ".join(told) or "your own figures",
        is_own_pue=pue is not None,
    )

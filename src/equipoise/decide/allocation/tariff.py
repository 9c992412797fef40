"""What electricity costs by the hour of the day."""

import math
from dataclasses import dataclass
from itertools import accumulate

from equipoise.errors import UsageError
from equipoise.units import DAY_S, HOUR_S, KWH_J

HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """US dollars per kWh in each hour of a day. begin_s: seconds from midnight to the start of the plan."""

    usd_per_kwh: tuple[float, ...]
    begin_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no day of prices."""
        if len(self.usd_per_kwh) != HOURS or not all(math.isfinite(each) for each in self.usd_per_kwh):
            raise UsageError(
                f"electricity prices of {len(self.usd_per_kwh)} hours; expected {HOURS} finite numbers, US "
                "dollars a kWh"
            )

    def usd_per_w(self, start_s: float, end_s: float) -> float:
        """US dollars that one watt costs from one moment to another.

        Assumes the prices repeat every day. Source: definition, the integral of a step function.
        """
        return self._since_midnight(end_s + self.begin_s) - self._since_midnight(start_s + self.begin_s)

    def _since_midnight(self, moment_s: float) -> float:
        sums = (0.0, *accumulate(each * HOUR_S / KWH_J for each in self.usd_per_kwh))
        days, within_s = divmod(moment_s, DAY_S)
        hour = min(int(within_s // HOUR_S), HOURS - 1)
        return days * sums[-1] + sums[hour] + (within_s - hour * HOUR_S) * self.usd_per_kwh[hour] / KWH_J

    def changes_s(self, first_s: float, last_s: float) -> tuple[float, ...]:
        """The moments from first to last at which the price changes."""
        hours = range(
            math.ceil((first_s + self.begin_s) / HOUR_S), math.floor((last_s + self.begin_s) / HOUR_S) + 1
        )
        return tuple(
            hour * HOUR_S - self.begin_s
            for hour in hours
            if self.usd_per_kwh[hour % HOURS] != self.usd_per_kwh[(hour - 1) % HOURS]
        )

"""What a source of readings is: something that draws power, and how to ask it. No torch."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

Reading = Callable[[], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A part of a machine that draws power; readings are None where it does not answer.

    part: its name on its machine. meter: what tells. counter_j: joules since some moment, which begins again
    at zero beyond range_j. busy_fraction: of the moments before, as many as the meter takes.
    """

    part: str
    meter: str
    counter_j: Reading | None = None
    range_j: float = inf
    power_w: Reading | None = None
    busy_fraction: Reading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources found, and why there is none, or not all, where that is so."""

    found: tuple[Source, ...] = ()
    reason: str | None = None

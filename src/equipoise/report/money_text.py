"""Times and amounts of renting with failures, and of owning: how they are said, on pages and in terminals."""

import math
from typing import Final

from equipoise.advice.risk import Risk
from equipoise.units import DAY_S, format_duration, format_percent, format_si

# Nobody waits for longer: a run that would take it does not end.
NEVER_S: Final = 100 * 365 * DAY_S
NEVER_MONTHS: Final = 1200
NEVER: Final = "never"


def share(value: float) -> str:
    """A share in whole percent.

    >>> share(0.256)
    '26 %'
    """
    return format_percent(round(value, 2))


def elapsed(seconds: float) -> str:
    """How long a run takes; that it never ends where nobody would wait for it.

    >>> elapsed(7200.0), elapsed(math.inf)
    ('2.0 h', 'never')
    """
    return format_duration(seconds) if seconds < NEVER_S else NEVER


def paid(risk: Risk, usd: float, elapsed_s: float) -> str:
    """An amount of money; nothing where the run never ends."""
    return "-" if risk.money is None or elapsed_s >= NEVER_S else format_si(usd)


def months(value: float) -> str:
    """A number of months; never where it is more than a life.

    >>> months(43.12), months(math.inf)
    ('43.1', 'never')
    """
    return NEVER if value > NEVER_MONTHS else f"{value:.3g}"


def stops(number: float) -> str:
    """How many times a run is interrupted.

    >>> stops(0.1123), stops(110.4), stops(math.inf)
    ('0.11', '110', 'without end')
    """
    return f"{float(f'{number:.2g}'):,g}" if number < math.inf else "without end"


def checkpoints(risk: Risk) -> str:
    """When to write checkpoints."""
    apart = risk.checkpoint_interval_s
    return "not needed" if apart is None else f"every {format_duration(apart)}"

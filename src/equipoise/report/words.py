"""How values and names are said in a report: rounding, units, text from data made safe to show."""

import math
from collections.abc import Sequence
from typing import Final

from equipoise.scaling.equilibrium import Equilibrium
from equipoise.spec.hardware import exact_accelerator
from equipoise.spec.workload import workload_title
from equipoise.units import MINUTE_S, format_count

LONGEST_NAME: Final = 160
# By name, for they are easily taken for other characters.
TIMES: Final = "\N{MULTIPLICATION SIGN}"
DASH: Final = "\N{EN DASH}"
ABSENT: Final = DASH
UNKNOWN_ACCELERATOR: Final = "unknown accelerator"


def at_words(point: Equilibrium) -> str:
    """The size of an equilibrium, with `at least` or `at most` where it was not found."""
    bound = "at least " if point.limited_by else "at most " if point.is_smallest else ""
    return f"{bound}{count(point.num_accelerators)}"


def printable(text: str) -> str:
    r"""Text from data on one line: white space becomes a space, what cannot be seen becomes its code point.

    Longer than `LONGEST_NAME` characters is cut with an ellipsis. So neither escape sequences nor
    bidirectional overrides reach a terminal or a page.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if not text.isprintable():
        text = "".join(_visible(character) for character in text[: LONGEST_NAME + 1])
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"


def sentence(text: str) -> str:
    """Our own words around names from data: shown whole, each word made printable."""
    return " ".join(printable(word) for word in text.split())


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else ascii(character)[1:-1]


def accelerator_name(slug: str | None) -> str:
    """An accelerator's title without its vendor; the raw name where the hardware table does not know it."""
    if not slug:
        return UNKNOWN_ACCELERATOR
    known = exact_accelerator(slug)
    if known is None:
        return printable(slug)
    return known.title.removeprefix(f"{known.vendor} ")


def workload_name(slug: str) -> str:
    """A workload's title; the raw name where the catalogue does not know it."""
    return printable(workload_title(slug))


def entry_name(submitter: str | None, system: str | None) -> str:
    """An entry as `submitter / system`."""
    return f"{printable(submitter or 'unknown')} / {printable(system or 'unknown')}"


def ratio(value: float | None) -> str:
    """A dimensionless number with three significant digits, never in exponents.

    >>> ratio(0.09788), ratio(17.8935), ratio(3070.05)
    ('0.0979', '17.9', '3,070')
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 6)}f}"


def minutes(seconds: float | None) -> str:
    """Seconds said in minutes, to a thousandth, as MLPerf prints its scores.

    >>> minutes(21971.115)
    '366.185'
    """
    return ABSENT if seconds is None or not math.isfinite(seconds) else f"{seconds / MINUTE_S:,.3f}"


def count(value: float | None) -> str:
    """A count with thousands grouped."""
    return ABSENT if value is None or not math.isfinite(value) else format_count(value)


def capital(text: str) -> str:
    """Words that begin a sentence.

    >>> capital("on demand")
    'On demand'
    """
    return text[:1].upper() + text[1:]


def plural(number: int, singular: str, many: str | None = None) -> str:
    """A count with its noun.

    >>> plural(1, "entry", "entries"), plural(3, "system")
    ('1 entry', '3 systems')
    """
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"


def listed(items: Sequence[str]) -> str:
    """Items as a sentence lists them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    if len(items) < 2:  # noqa: PLR2004 - "a and b" needs two
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"

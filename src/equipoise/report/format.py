"""Values and names as text for people: one rounding and one unit for a value and its range, and safe text."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from equipoise import units
from equipoise.intervals import WIDEST, Interval
from equipoise.spec.hardware import shipped_hardware
from equipoise.spec.workload import workload_title
from equipoise.units import (
    KWH_J,
    LONGEST_S,
    MINUTE_S,
    SI_PREFIXES,
    format_amount,
    format_count,
    format_duration,
    format_percent,
    format_si,
    format_si_apart,
    format_stated,
    format_time,
    plural,
    round_up,
    time_unit,
)

if TYPE_CHECKING:
    from equipoise.decide.answer import Alternative

LONGEST_NAME: Final = 160
# By name, because they are easily mistaken for other characters.
TIMES: Final = "\N{MULTIPLICATION SIGN}"
DASH: Final = "\N{EN DASH}"
STAR: Final = "\N{BLACK STAR}"  # precedes the recommended item
ABSENT: Final = DASH
digits: Final = format_amount
listed: Final = units.listed
UNKNOWN_ACCELERATOR: Final = "unknown accelerator"


def wins_when(other: "Alternative") -> str:
    """When an alternative would be chosen, as the words after `would be chosen`."""
    if other.case == "without":
        return "if the recommended system were not available"
    if other.case == "price":
        assert other.high is not None
        return f"if its price fell below {rate(other.high)} per accelerator-hour"
    allowed = [each.loosened for each in other.candidate.broken]
    if other.case == "size":
        return f"if {listed(allowed)}"
    if other.case == "faster":
        less = "costs no more" if other.is_priced else "takes fewer accelerator-hours"
        return f"if {listed([*allowed, 'it were available'])}: it is faster and {less}"
    unit, saved = (currency(), "") if other.is_priced else ("accelerator-hours", " saved")
    per_unit = converted(1.0) if other.is_priced else 1.0
    low, high = (None if end is None else digits(end * per_unit) for end in (other.low, other.high))
    worth = f"{low} to {high}" if low and high else f"more than {low}" if low else f"less than {high}"
    # "saved", because an hour could be misread as an accelerator-hour.
    return f"if {listed([*allowed, f'an hour{saved} were worth {worth} {unit}'])}"


def printable(text: str, most: int = LONGEST_NAME) -> str:
    r"""Text from data on one line: white space becomes a space, an invisible character its code point.

    Text of more than `most` characters is cut with an ellipsis. Escape sequences and bidirectional overrides
    therefore never reach a terminal or a page.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if not text.isprintable():
        text = "".join(_visible(character) for character in text[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


# Control characters except white space, lone surrogates, characters that have no width or change direction.
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    r"""Text of any number of lines, with invisible characters as their code points.

    >>> visible("a\u202eb\n")
    'a\\u202eb\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return _INVISIBLE.sub(lambda found: ascii(found[0])[1:-1], text)


_NAME: Final = re.compile(r"\S{16,}")
_SIGNS: Final = re.compile(r"[/_:=-]+(?=[^\W_])")


def breakable(text: str) -> list[str]:
    """A text in pieces between which a line may be broken: after the signs in long names.

    >>> breakable("see github:org/some-project in 10:20")
    ['see github:', 'org/', 'some-', 'project in 10:20']
    """
    spots = [
        name.start() + signs.end() for name in _NAME.finditer(text) for signs in _SIGNS.finditer(name[0])
    ]
    return [text[start:end] for start, end in pairwise((0, *spots, len(text)))]


def sentence(text: str) -> str:
    """A text of this package that contains names from data, with each word made printable."""
    return " ".join(printable(word) for word in text.split())


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else ascii(character)[1:-1]


def accelerator_name(slug: str | None) -> str:
    """An accelerator's title without its vendor; the raw name if the hardware table does not have it."""
    if not slug:
        return UNKNOWN_ACCELERATOR
    known = shipped_hardware().exact(slug)
    if known is None:
        return printable(slug)
    return known.title.removeprefix(f"{known.vendor} ")


def workload_name(slug: str) -> str:
    """A workload's title; the raw name if the catalogue does not have it."""
    return printable(workload_title(slug))


def entry_name(submitter: str | None, system: str | None) -> str:
    """An entry as `submitter / system`."""
    return f"{printable(submitter or 'unknown')} / {printable(system or 'unknown')}"


def ratio(value: float | None) -> str:
    """A dimensionless number with three significant digits, without an exponent.

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
    """Seconds in minutes, to a thousandth, as MLPerf prints its scores.

    >>> minutes(21971.115)
    '366.185'
    """
    return ABSENT if seconds is None or not math.isfinite(seconds) else f"{seconds / MINUTE_S:,.3f}"


def count(value: float | None) -> str:
    """A count with thousands grouped."""
    return ABSENT if value is None or not math.isfinite(value) else format_count(value)


def capital(text: str) -> str:
    """The words with a capital first letter.

    >>> capital("on demand")
    'On demand'
    """
    return text[:1].upper() + text[1:]


_TONNE_KG: Final = 1000.0
_GRAM_KG: Final = 1e-3
_SURE, _UNLIKELY = 0.995, 0.005
_NEVER_MONTHS: Final = 1200.0
_LONG_MONTHS: Final = 120.0


def is_too_wide(low: float, high: float) -> bool:
    """Whether an interval is too wide to be informative."""
    return 0.0 < low * WIDEST < high


def usable(amount: Interval | None) -> Interval | None:
    """The amount, unless its interval is too wide to be shown as a number."""
    return None if amount is None or is_too_wide(amount.low, amount.high) else amount


def duration_range(time: Interval) -> str:
    """The bounds of an interval of times, in the unit of its value.

    >>> duration_range(Interval(value=7300.0, low=3600.0, high=10_800.0, level=0.9)).split(DASH)
    ['1', '3 h']
    """
    return f"{duration_ends(time)} {time_unit(time.value)[1]}"


def time_with_range(time: Interval) -> str:
    """A time, and the bounds of its interval in brackets."""
    return f"{duration(time.value)} ({duration_range(time)})"


def duration_ends(time: Interval) -> str:
    """The same without the unit, for a column beside that of the value.

    >>> duration_ends(Interval(value=7300.0, low=3600.0, high=10_800.0, level=0.9)).split(DASH)
    ['1', '3']
    """
    unit_s, _ = time_unit(time.value)
    return f"{format_time(time.low, unit_s)}{DASH}{format_time(time.high, unit_s)}"


_USUAL_DIGITS, _LIMIT_DIGITS = 3, 6


class _Manner(Struct, frozen=True):
    """How a page formats money and time: currency, its rate per US dollar, digits, and the limit of time.

    Records contain US dollars.
    """

    currency: str = "USD"
    per_usd: float = 1.0
    money_digits: int = _USUAL_DIGITS
    limit_s: float = math.inf


_USUAL: Final = _Manner()
_MANNER: Final = ContextVar("manner", default=_USUAL)


def duration(seconds: float) -> str:
    """A duration in its usual unit; with a limit, in enough digits to show on which side of it it is.

    The limit itself is formatted by `format_stated`.

    >>> with written_in(None, limit_s=172_800.0):
    ...     duration(175_000.0), duration(172_800.0), duration(172_850.0), duration(7300.0)
    ('2.03 days', '2 days', '2.001 days', '2.0 h')
    >>> with written_in(None, limit_s=53.25):
    ...     duration(53.25), duration(53.3), duration(4.2e10)
    ('53.25 s', '53.3 s', 'over 1,000 years')
    """
    seconds, limit_s = seconds + 0.0, _MANNER.get().limit_s  # zero for a negative zero
    usual = format_duration(seconds)
    if not (math.isfinite(seconds) and math.isfinite(limit_s)) or limit_s <= LONGEST_S < seconds:
        return usual
    if seconds == limit_s:
        return format_stated(seconds)
    unit_s, unit = time_unit(seconds)
    written = (f"{seconds / unit_s:.{each}g}" for each in range(_USUAL_DIGITS, _LIMIT_DIGITS))
    for text in (format_time(seconds, unit_s).replace(",", ""), *written):
        shown_s = float(text) * unit_s
        if (shown_s > limit_s) == (seconds > limit_s):
            return usual if usual.replace(",", "").startswith(f"{text} ") else f"{text} {unit}"
    return f"{seconds / unit_s:.{_LIMIT_DIGITS}g} {unit}"


@contextmanager
def written_in(
    own: tuple[str, float] | None,
    *,
    limit_usd: float | None = None,
    usd: Iterable[float] = (),
    limit_s: float = math.inf,
) -> Iterator[None]:
    """Context in which money is formatted in the user's currency (name and rate); None: in US dollars.

    limit_usd, usd: a budget and amounts to compare with it, in US dollars: sums have enough digits to show
    whether they exceed the budget. limit_s: a limit of time, with the same effect on durations.
    """
    name, per_usd = own or (_USUAL.currency, _USUAL.per_usd)
    num_digits = _USUAL_DIGITS
    if limit_usd is not None:
        num_digits = _digits_beside(limit_usd * per_usd, [each * per_usd for each in usd])
    before = _MANNER.set(_Manner(name, per_usd, num_digits, limit_s))
    try:
        yield
    finally:
        _MANNER.reset(before)


def _digits_beside(limit: float, amounts: Sequence[float]) -> int:
    """The fewest digits, but not below the usual number, that show on which side of a limit each amount is.

    >>> _digits_beside(15_640.0, [15_600.0, 15_700.0]), _digits_beside(15_640.0, [15_643.0])
    (3, 5)
    """
    shown = float(f"{limit:.{_LIMIT_DIGITS}g}")
    for number in range(_USUAL_DIGITS, _LIMIT_DIGITS):
        if all((float(f"{each:.{number}g}") > shown) == (each > limit) for each in amounts):
            return number
    return _LIMIT_DIGITS


def currency() -> str:
    """The name of the currency of the page."""
    return _MANNER.get().currency


def converted(usd: float) -> float:
    """US dollars converted to the currency of the page."""
    return usd * _MANNER.get().per_usd


def money(usd: float) -> str:
    """US dollars to three digits, in the currency of the page.

    >>> money(22_913.0), money(3.456), money(1_234_567.0), money(0.0)
    ('22,900 USD', '3.46 USD', '1,230,000 USD', '0 USD')
    >>> with written_in(("EUR", 0.92)):
    ...     money(100.0), rate(3.5), quantity(2.0, "USD per hour")
    ('92 EUR', '3.22 EUR', '1.84 EUR per hour')
    """
    return f"{sums(usd)} {currency()}"


def short_money(usd: float) -> str:
    """The same for a narrow cell: from a million in millions, without a line break before the unit.

    >>> short_money(52_310_000.0).split(), short_money(999_000.0)
    (['52.3', 'M', 'USD'], '999,000 USD')
    """
    if sums(usd).count(",") < 2:  # noqa: PLR2004 - thousands
        return money(usd)
    return f"{sums(usd / SI_PREFIXES['M'])}\N{NO-BREAK SPACE}M {currency()}"


def sums(usd: float) -> str:
    """US dollars without their unit, for a column whose unit is `currency()`.

    In more than three digits if these are needed to show on which side of a budget an amount is.

    >>> with written_in(None, limit_usd=17_000.0, usd=[17_040.0]):
    ...     money(17_040.0), limit(17_000.0)
    ('17,040 USD', '17,000 USD')
    """
    return format_amount(converted(usd), digits=_MANNER.get().money_digits)


def limit(usd: float) -> str:
    """A stated amount of US dollars, with all digits that a user may have stated."""
    return f"{format_amount(converted(usd), digits=_LIMIT_DIGITS)} {currency()}"


def sum_ends(usd: Interval) -> str:
    """The bounds of an interval of US dollars, without their unit."""
    return f"{digits(converted(usd.low))}{DASH}{digits(converted(usd.high))}"


def rate(usd: float) -> str:
    """A price per hour or kilowatt-hour: to the cent, or to three digits below one.

    >>> rate(3.777), rate(2.5), rate(0.452), rate(0.45), rate(0.0107)
    ('3.78 USD', '2.50 USD', '0.452 USD', '0.45 USD', '0.0107 USD')
    """
    return f"{prices(usd)} {currency()}"


def prices(usd: float) -> str:
    """The same without its unit, for a column whose unit is `currency()`."""
    value = converted(usd)
    in_cents = f"{value:,.2f}"
    precise = format_amount(value)
    return precise if abs(value) < 1.0 and len(precise) > len(in_cents) else in_cents


def ends(amount: Interval, form: Callable[[float], str] = digits) -> str:
    """The bounds of an interval, of which only the upper one has its unit. For money: `sum_ends`.

    form: formats a number and its unit.

    >>> ends(Interval(value=2.0, low=1.5, high=3.0, level=0.9), factor).split(DASH)
    ['1.5', '3x']
    """
    return f"{digits(amount.low)}{DASH}{form(amount.high)}"


def energy(joules: float) -> str:
    """Energy in watt-hours and in joules.

    >>> energy(11.2e6), energy(8.6e12)
    ('3.11 kWh (11.2 MJ)', '2.39 GWh (8.6 TJ)')
    """
    return f"{watt_hours(joules)} ({format_si(joules, 'J')})"


def watt_hours(joules: float) -> str:
    """Energy in watt-hours, for a column.

    >>> watt_hours(11.2e6), watt_hours(3.6)
    ('3.11 kWh', '0.001 Wh')
    """
    return format_si(joules / KWH_J * SI_PREFIXES["k"], "Wh")


def mass(kilograms: float) -> str:
    """A mass of carbon dioxide.

    >>> mass(1.234), mass(5_120.0), mass(0.0123)
    ('1.23 kg', '5.12 t', '12.3 g')
    """
    if abs(kilograms) >= _TONNE_KG:
        return f"{digits(kilograms / _TONNE_KG)} t"
    return f"{kilograms:.3g} kg" if abs(kilograms) >= 1.0 else f"{kilograms / _GRAM_KG:.3g} g"


def share(fraction: float) -> str:
    """A fraction in percent, to two digits.

    >>> share(0.9271), share(0.00412)
    ('93 %', '0.41 %')
    """
    return format_percent(float(f"{fraction:.2g}"))


def probability(fraction: float) -> str:
    """A probability in whole percent, never 0 or 100.

    >>> probability(0.87654), probability(0.9999), probability(0.0)
    ('88 %', 'over 99 %', 'below 1 %')
    """
    if fraction >= _SURE:
        return "over 99 %"
    return "below 1 %" if fraction < _UNLIKELY else f"{100 * fraction:.0f} %"


_READS_AS_ONE: Final = 0.995  # with two digits, a ratio from here on reads as one


def factor(value: float) -> str:
    """A ratio to three digits, or to two below one.

    >>> factor(1.9512), factor(12.0), factor(1_234.5), factor(0.9216), factor(0.9964)
    ('1.95x', '12x', '1,230x', '0.92x', '0.996x')
    """
    return f"{format_amount(value, digits=2) if value < _READS_AS_ONE else digits(value)}x"


def factor_from(least: float) -> str:
    """A ratio that is a lower limit, rounded up to four digits.

    >>> factor_from(1.5), factor_from(1.125), factor_from(1 + 1 / 6)
    ('1.5x', '1.125x', '1.167x')
    """
    num_digits = _USUAL_DIGITS + 1
    return f"{format_amount(round_up(least, num_digits), digits=num_digits)}x"


def factor_below(value: float, limit: float) -> str:
    """A ratio below a limit, rounded, or truncated if the rounded one would not be below the limit.

    >>> factor_below(1.2345, 1.5), factor_below(1.4963, 1.5), factor_below(1.49999, 1.5)
    ('1.23x', '1.496x', '1.499x')
    """
    several = (_USUAL_DIGITS, _USUAL_DIGITS + 1)
    num_digits = next((each for each in several if float(f"{value:.{each}g}") < limit), None)
    if num_digits is None:
        unit = 10.0 ** (math.floor(math.log10(value)) - _USUAL_DIGITS)
        num_digits, value = _USUAL_DIGITS + 1, math.floor(value / unit) * unit
    return f"{format_amount(value, digits=num_digits)}x"


def memory(num_bytes: float) -> str:
    """An amount of memory."""
    return format_si(num_bytes, "B")


def months(value: float) -> str:
    """A number of months, in years from ten years on; `never` above a hundred years.

    >>> months(43.12), months(294.0), months(math.inf)
    ('43.1 months', '24.5 years', 'never')
    """
    if value > _NEVER_MONTHS:
        return "never"
    return f"{value:.3g} months" if value < _LONG_MONTHS else f"{value / 12:.3g} years"


_UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "s": duration,
    "fraction": share,
    "B": memory,
    "accelerators": lambda value: plural(round(value), "accelerator"),
}
_SHARES: Final = {"of hours", "of busy", "of price"}


def quantity(value: float, unit: str) -> str:
    """An amount in a named unit; seconds, dollars, fractions and bytes in their usual form.

    >>> quantity(7200.0, "s"), quantity(2.5, "USD per hour"), quantity(1024.0, "accelerators")
    ('2 h', '2.5 USD per hour', '1,024 accelerators')
    >>> quantity(0.25, "of hours")
    '25 % of hours'
    """
    if unit in _UNITS:
        return _UNITS[unit](value)
    if unit.startswith("USD"):
        return f"{sums(value)} {currency()}{unit.removeprefix('USD')}"
    if unit.partition("/")[0] in _SHARES:
        return f"{share(value)} {unit}"
    written = format_si(value) if unit.startswith("B/s") else digits(value)
    return f"{written} {unit}".rstrip()


def apart(one: float, other: float, unit: str) -> tuple[str, str]:
    """Two amounts in a named unit; bytes and money in enough digits to show which is larger.

    >>> apart(80.04e9, 80e9, "B"), apart(7200.0, 3600.0, "s"), apart(17_040.0, 17_000.0, "USD")
    (('80.04 GB', '80 GB'), ('2 h', '60 min'), ('17,040 USD', '17,000 USD'))
    """
    if unit == "USD":
        num_digits = _digits_beside(converted(other), [converted(one)])
        return f"{format_amount(converted(one), digits=num_digits)} {currency()}", limit(other)
    if unit != "B":
        return quantity(one, unit), quantity(other, unit)
    return format_si_apart(one, other, unit)


def enough(needed: float, stated: float, unit: str) -> tuple[str, str]:
    """A sufficient limit, rounded up to suffice as written, and the stated limit, in a named unit.

    >>> enough(107_150.0, 18_000.0, "s"), enough(1_113_000.0, 500_000.0, "USD")
    (('29.8 h', '5 h'), ('1,120,000 USD', '500,000 USD'))
    """
    if unit == "s":
        unit_s, _ = time_unit(needed)
        has_one_decimal = unit_s > 1.0 and 1.0 <= needed / unit_s < 10.0  # noqa: PLR2004 - 2.3 h has two digits
        needed = round_up(needed / unit_s, 2 if has_one_decimal else _USUAL_DIGITS) * unit_s
    elif unit == "USD":
        own = converted(needed)
        rounded = round_up(own, _digits_beside(converted(stated), [own]))
        return f"{format_amount(rounded, digits=_LIMIT_DIGITS)} {currency()}", limit(stated)
    needed_text, stated_text = apart(needed, stated, unit)
    return needed_text, format_stated(stated) if unit == "s" else stated_text


def ranged(amount: Interval | None, form: Callable[[float], str]) -> str:
    """A value followed by its range; a dash if it is unknown."""
    if amount is None:
        return ABSENT
    if amount.low == amount.high:
        return form(amount.value)
    return f"{form(amount.value)} ({form(amount.low)} to {form(amount.high)})"

"""SI constants and all formatters of quantities. The package computes in seconds, bytes and joules."""

import math
import re
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_DOWN, Context
from typing import Any

MICROSECOND_S = 1e-6
NANOSECOND_S = 1e-9
MILLISECOND_S = 1e-3
MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86400.0
WEEK_S = 7 * DAY_S
YEAR_S = 365.25 * DAY_S
MONTH_S = YEAR_S / 12
KWH_J = 3.6e6
MICROJOULE_J = 1e-6
MILLIJOULE_J = 1e-3
MICROWATT_W = 1e-6
MILLIWATT_W = 1e-3

KIB = 2**10
MIB = 2**20
GIB = 2**30
BF16_BYTES, FP32_BYTES = 2, 4  # per value; also of fp16 and int32

SI_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SI_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_si(value: float, unit: str = "", *, digits: int = 3) -> str:
    """A value with its SI prefix, e.g. `8.07 MJ`; counts without a unit (tokens, parameters) use `B` for 1e9.

    >>> format_si(8_071_166, "J")
    '8.07 MJ'
    >>> format_si(0.5, "s"), format_si(16_720.0), format_si(-34.5)
    ('0.5 s', '16.7 k', '-34.5')
    >>> format_si(999.6), format_si(999_999, "J"), format_si(8.03e9), format_si(8.03e9, "B")
    ('1 k', '1 MJ', '8.03 B', '8.03 GB')
    """
    if math.isfinite(value):
        value = float(f"{value:.{digits}g}")  # rounded first, so that 999.6 becomes 1 k
    for factor, prefix in _SI_PREFIXES:
        if abs(value) >= factor:
            letter = "B" if prefix == "G" and not unit else prefix
            return f"{value / factor:.{digits}g} {letter}{unit}"
    return f"{value:.{digits}g} {unit}".rstrip()


def format_si_down(value: float) -> str:
    """A value with its SI prefix, rounded down, for upper limits.

    >>> format_si_down(29_870_500_000.0), format_si_down(29.9e9), format_si_down(9_999.0)
    ('29.8 B', '29.9 B', '9.99 k')
    """
    return format_si(float(Context(prec=3, rounding=ROUND_DOWN).create_decimal(repr(value))))


def format_si_apart(one: float, other: float, unit: str) -> tuple[str, str]:
    """Two values with SI prefixes, with enough digits to show which is larger.

    >>> format_si_apart(80.04e9, 80e9, "B"), format_si_apart(5.0, 5.0, "J")
    (('80.04 GB', '80 GB'), ('5 J', '5 J'))
    """
    pairs = [(format_si(one, unit, digits=each), format_si(other, unit, digits=each)) for each in range(3, 7)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])


def format_rough(value: float, unit: str = "") -> str:
    """A value with its SI prefix and two digits, for imprecise values.

    >>> format_rough(364.5e9, "B/s"), format_rough(335e6), format_rough(17.1e9)
    ('360 GB/s', '340 M', '17 B')
    """
    return format_si(float(f"{value:.2g}"), unit)


# (seconds per unit, name, upper end in seconds): values below two of the next unit use the smaller unit.
_TIME_UNITS = (
    (MICROSECOND_S, "µs", MILLISECOND_S),
    (MILLISECOND_S, "ms", 1.0),
    (1.0, "s", 2 * MINUTE_S),
    (MINUTE_S, "min", 2 * HOUR_S),
    (HOUR_S, "h", 2 * DAY_S),
    (DAY_S, "days", 2 * YEAR_S),
    (YEAR_S, "years", math.inf),
)
# Longer durations are shown as longer than this.
LONGEST_S = 1000 * YEAR_S


def format_duration(seconds: float) -> str:
    """A duration in its customary unit, with two or three digits.

    Seconds below two minutes, minutes below two hours, hours below two days, days below two years.

    >>> format_duration(21971.115), format_duration(3712.23), format_duration(95), format_duration(0.0417)
    ('6.1 h', '61.9 min', '95 s', '41.7 ms')
    >>> format_duration(614.3 * DAY_S), format_duration(15_975 * DAY_S), format_duration(1e15)
    ('614 days', '43.7 years', 'over 1,000 years')
    """
    if not math.isfinite(seconds):
        return "unknown"
    if abs(seconds) > LONGEST_S:
        return "over 1,000 years"
    unit_s, unit = time_unit(seconds)
    return f"{format_time(seconds, unit_s)} {unit}"


_STATED_DIGITS, _MAX_STATED = 5, 100_000.0


def format_stated(seconds: float) -> str:
    """A stated duration without rounding: in its customary unit if possible, else in a smaller one.

    >>> format_stated(360_000.0), format_stated(7 * DAY_S), format_stated(5400.0), format_stated(131_400.0)
    ('100 h', '7 days', '90 min', '36.5 h')
    >>> format_stated(10_000 * HOUR_S), format_stated(100.0 * HOUR_S + 1.25), format_stated(365.25 * DAY_S)
    ('10,000 h', '4.166681 days', '365.25 days')
    """
    unit_s, unit = time_unit(seconds)
    smaller = (each for each in reversed(_TIME_UNITS) if 1.0 <= each[0] <= unit_s)
    for each_s, name, _ in smaller:
        value = seconds / each_s
        if value < _MAX_STATED and math.isclose(value, float(f"{value:.{_STATED_DIGITS}g}"), rel_tol=1e-12):
            return f"{format_amount(value, digits=_STATED_DIGITS)} {name}"
    return f"{seconds / unit_s:.7g} {unit}"


def time_unit(seconds: float) -> tuple[float, str]:
    """The customary unit of a duration: its seconds and its name."""
    # Rounded as in the output, so that 0.9996 s counts as 1 s.
    rounded = float(f"{seconds:.3g}") if abs(seconds) < 2 * MINUTE_S else seconds
    if not rounded:
        return 1.0, "s"
    return next((unit_s, unit) for unit_s, unit, end_s in _TIME_UNITS if abs(rounded) < end_s)


def format_time(seconds: float, unit_s: float) -> str:
    """A duration in a given unit, without the unit: three digits for seconds, one decimal for longer units.

    >>> format_time(8.04 * HOUR_S, HOUR_S), format_time(8.04, 1.0), format_time(7 * DAY_S, DAY_S)
    ('8.0', '8.04', '7')
    """
    value = seconds / unit_s
    if not math.isfinite(value):
        return "unknown"
    if value.is_integer() and abs(value) < 1000:  # noqa: PLR2004 - three digits: as somebody stated it
        return f"{value:.0f}"
    value = float(f"{value:.3g}")
    if unit_s <= 1.0 or abs(value) < 0.95:  # noqa: PLR2004 - .1f would show one digit
        return format_amount(value)
    return f"{value:,.0f}" if value.is_integer() and abs(value) >= 10 else f"{value:,.1f}"  # noqa: PLR2004 - 2.0 has two digits


_BILLION = 1e9
TRILLION = 1e12
_SMALLEST = 1e-6


def format_milliseconds(seconds: float, *, digits: int = 3) -> str:
    """Seconds in milliseconds, without unit; grouped, and without exponent from one second up.

    >>> format_milliseconds(0.0123456), format_milliseconds(1.2345, digits=4), format_milliseconds(98.76)
    ('12.3', '1,234', '98,800')
    """
    value = float(f"{seconds / MILLISECOND_S:.{digits}g}")
    return f"{value:,.0f}" if 10.0**digits <= abs(value) < math.inf else f"{value:,.{digits}g}"


def round_up(value: float, num_digits: int) -> float:
    """The value rounded up to `num_digits` significant digits.

    >>> round_up(1_113_000.0, 3), round_up(57_489.3, 6), round_up(24.0, 3), round_up(math.inf, 3)
    (1120000.0, 57489.3, 24.0, inf)
    """
    if not math.isfinite(value):
        return value
    # Of the shortest decimal representation, because the binary value of 57489.3 is slightly larger.
    return float(Context(prec=num_digits, rounding=ROUND_CEILING).create_decimal(repr(float(value))))


def format_amount(value: float, *, digits: int = 3) -> str:
    """A number with three digits by default, grouped; words from a billion up, exponents below a millionth.

    >>> format_amount(22_913.0), format_amount(3.456), format_amount(1_234_567.0), format_amount(2.5e9)
    ('22,900', '3.46', '1,230,000', '2.5 billion')
    >>> format_amount(0.000012), format_amount(9.51e-13)
    ('0.000012', '9.51e-13')
    >>> format_amount(22_913.4, digits=5)
    '22,913'
    """
    if not math.isfinite(value):
        return "unknown"
    value = float(f"{value:.{digits}g}")
    for factor, word in ((TRILLION, " trillion"), (_BILLION, " billion")):
        if abs(value) >= factor:
            return f"{value / factor:,.6g}{word}"
    if value.is_integer():
        return f"{value:,.0f}"
    if abs(value) < _SMALLEST:
        return f"{value:.{digits}g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{decimals}f}".rstrip("0").rstrip(".")


_WORDS_OF_UNIT = {
    MILLISECOND_S: "ms",
    1.0: "s|sec|secs|second|seconds",
    MINUTE_S: "min|mins|minute|minutes",
    HOUR_S: "h|hr|hrs|hour|hours",
    DAY_S: "d|day|days",
    WEEK_S: "w|wk|wks|week|weeks",
    MONTH_S: "month|months",
    YEAR_S: "y|yr|yrs|year|years",
}
_UNIT_S = {word: factor for factor, words in _WORDS_OF_UNIT.items() for word in words.split("|")}
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{0,30})?|\.\d{1,30})\s?([a-z]{1,7})\s?", re.ASCII)
_MAX_PARTS = len(_WORDS_OF_UNIT)


def duration_s(text: str) -> float | None:
    """The seconds of a duration such as "1d12h", larger units first; None for any other text.

    >>> duration_s("2.5 h"), duration_s("90min"), duration_s("1 day"), duration_s("soon")
    (9000.0, 5400.0, 86400.0, None)
    >>> duration_s("1d12h"), duration_s("2 hrs 30 mins"), duration_s("30min 2h"), duration_s("1h30")
    (129600.0, 9000.0, None, None)
    """
    left = text.strip().lower()
    total_s, last_s = 0.0, math.inf
    for _ in range(_MAX_PARTS):
        found = _DURATION.match(left)
        unit_s = None if found is None else _UNIT_S.get(found[2])
        if found is None or unit_s is None or unit_s >= last_s:
            return None
        total_s, last_s, left = total_s + float(found[1]) * unit_s, unit_s, left[found.end() :]
        if not left:
            return total_s
    return None


def format_count(value: float) -> str:
    """A count with thousands separators; fractions have three digits.

    >>> format_count(3472), format_count(1234.5)
    ('3,472', '1,230')
    """
    return f"{int(value):,}" if float(value).is_integer() else format_amount(value)


def plural(number: int, singular: str, many: str | None = None) -> str:
    """A count with its noun.

    >>> plural(1, "entry", "entries"), plural(3, "system")
    ('1 entry', '3 systems')
    """
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"


MOST_LISTED = 8  # names listed in a message, before "and N more"


def listed(names: Iterable[str], most: int | None = None) -> str:
    """Names as a list in a sentence; of more than `most`, the first, and the number of the others.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c", "d"], 2), listed("abc", 1), listed([])
    ('a, b and c', 'a, b and 2 more', 'a and 2 more', '')
    """
    every = [*names]
    shown = every[:most]
    if len(shown) < len(every):
        shown.append(f"{len(every) - len(shown):,} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), "".join(shown[-1:]))))


def format_percent(fraction: float) -> str:
    """A fraction as percent, for display only.

    >>> format_percent(0.098), format_percent(20.0)
    ('9.8 %', '2,000 %')
    """
    return f"{format_amount(100 * fraction)} %"


def whole_percent(fraction: float) -> str:
    """A fraction as whole percent, for display only.

    >>> whole_percent(0.783), whole_percent(0.0)
    ('78 %', '0 %')
    """
    return f"{100 * fraction:,.0f} %"


def tenths(fraction: float) -> str:
    """A fraction as percent with one decimal, for display only.

    >>> tenths(0.92714), tenths(0.00412)
    ('92.7 %', '0.4 %')
    """
    return format_percent(round(fraction, 3))


def significant(value: Any, num_digits: int = 6, *, keeps_whole: bool = False) -> Any:  # noqa: ANN401 - any JSON value
    """The value with floating-point numbers rounded to `num_digits` digits, also in lists and tables.

    Sums in another order on another machine differ in their last digits; rounding makes files reproducible.
    keeps_whole: leave numbers without a fraction unchanged.

    >>> significant({"time_s": 12.3456789, "sizes": (8, 0.1234567)})
    {'time_s': 12.3457, 'sizes': [8, 0.123457]}
    """
    if isinstance(value, dict):
        return {key: significant(each, num_digits, keeps_whole=keeps_whole) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [significant(each, num_digits, keeps_whole=keeps_whole) for each in value]
    is_rounded = isinstance(value, float) and not (keeps_whole and value.is_integer())
    return float(f"{value:.{num_digits}g}") if is_rounded else value

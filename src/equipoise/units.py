"""SI constants and the only formatters of quantities. Inside the package: seconds, bytes, joules."""

import math
import re
from typing import Any

MICROSECOND_S = 1e-6
NANOSECOND_S = 1e-9
MILLISECOND_S = 1e-3
MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86400.0
KWH_J = 3.6e6
MICROJOULE_J = 1e-6
MILLIJOULE_J = 1e-3
MICROWATT_W = 1e-6
MILLIWATT_W = 1e-3

MIB = 2**20
GIB = 2**30

SI_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SI_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_si(value: float, unit: str = "", *, digits: int = 3) -> str:
    """A value with its SI prefix, e.g. `8.07 MJ`.

    >>> format_si(8_071_166, "J")
    '8.07 MJ'
    >>> format_si(0.5, "s"), format_si(16_720.0), format_si(-34.5)
    ('0.5 s', '16.7 k', '-34.5')
    >>> format_si(999.6), format_si(999_999, "J")
    ('1 k', '1 MJ')
    """
    if math.isfinite(value):
        value = float(f"{value:.{digits}g}")  # 999.6 is 1 k, as 1000 is
    for factor, prefix in _SI_PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.{digits}g} {prefix}{unit}"
    return f"{value:.{digits}g} {unit}".rstrip()


def format_rough(value: float, unit: str = "") -> str:
    """A value with its SI prefix to two digits, for what is not known to three.

    >>> format_rough(364.5e9, "B/s"), format_rough(335e6), format_rough(17.1e9)
    ('360 GB/s', '340 M', '17 G')
    """
    return format_si(float(f"{value:.2g}"), unit)


def format_duration(seconds: float) -> str:
    """A duration in the usual unit: seconds below two minutes, minutes below two hours, hours, days.

    >>> format_duration(21971.115)
    '6.1 h'
    >>> format_duration(3712.23)
    '61.9 min'
    >>> format_duration(95)
    '95 s'
    """
    if not math.isfinite(seconds):
        return "unknown"
    if abs(seconds) < 2 * MINUTE_S:
        return f"{seconds:.3g} s"
    if abs(seconds) < 2 * HOUR_S:
        return f"{seconds / MINUTE_S:.1f} min"
    if abs(seconds) < 2 * DAY_S:
        return f"{seconds / HOUR_S:.1f} h"
    return f"{seconds / DAY_S:.1f} d"


def format_step(seconds: float) -> str:
    """The time of a step: milliseconds where it has no second.

    >>> format_step(0.04172), format_step(6.71)
    ('41.7 ms', '6.71 s')
    """
    return f"{seconds / MILLISECOND_S:.3g} ms" if seconds < 1.0 else format_duration(seconds)


_WORDS_OF_UNIT = {
    MILLISECOND_S: "ms",
    1.0: "s|sec|second|seconds",
    MINUTE_S: "min|minute|minutes",
    HOUR_S: "h|hour|hours",
    DAY_S: "d|day|days",
}
_UNIT_S = {word: factor for factor, words in _WORDS_OF_UNIT.items() for word in words.split("|")}
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})\s?([a-z]{1,7})", re.ASCII)


def duration_s(text: str) -> float | None:
    """The seconds that people mean by a number and a unit; None for any other text.

    >>> duration_s("2.5 h"), duration_s("90min"), duration_s("1 day"), duration_s("soon")
    (9000.0, 5400.0, 86400.0, None)
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNIT_S:
        return None
    return float(found[1]) * _UNIT_S[found[2]]


def format_count(value: float) -> str:
    """A count with thin grouping, e.g. `3 472`; fractions keep three digits.

    >>> format_count(3472)
    '3,472'
    """
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.3g}"


def format_percent(fraction: float) -> str:
    """A fraction as percent, for people only.

    >>> format_percent(0.098)
    '9.8 %'
    """
    return f"{100 * fraction:.3g} %"


def significant(value: Any, num_digits: int = 6) -> Any:  # noqa: ANN401 - any JSON value
    """The value with its floating-point numbers rounded to so many digits, within lists and tables too.

    Sums come out in another order on another machine: what is written keeps the digits that stay the same.

    >>> significant({"time_s": 12.3456789, "sizes": (8, 0.1234567)})
    {'time_s': 12.3457, 'sizes': [8, 0.123457]}
    """
    if isinstance(value, dict):
        return {key: significant(each, num_digits) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [significant(each, num_digits) for each in value]
    return float(f"{value:.{num_digits}g}") if isinstance(value, float) else value

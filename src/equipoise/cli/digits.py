"""Numbers of forecasts in documents: as many digits as are the same on every machine."""

from typing import Any


def six_digits(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The value with its floating-point numbers rounded to six digits.

    >>> six_digits({"time_s": 12.3456789, "sizes": (8, 0.1234567)})
    {'time_s': 12.3457, 'sizes': [8, 0.123457]}
    """
    if isinstance(value, dict):
        return {key: six_digits(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [six_digits(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value

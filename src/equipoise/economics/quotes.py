"""The user's quotes, read from a file, and a quote's charges for a training: minimum, storage, egress."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec import Struct

from equipoise.economics import Price
from equipoise.errors import DataError
from equipoise.files import csv_lines, parsed_toml, read_input
from equipoise.intervals import Interval
from equipoise.spec.hardware import TERM_WORDS, TERMS, PriceTerms
from equipoise.units import HOUR_S, MONTH_S, SI_PREFIXES, duration_s, format_duration

_MAX_BYTES: Final = 1_000_000
_MAX_AMOUNT: Final = 1e6
_LONGEST_S: Final = 240 * MONTH_S
_GB: Final = SI_PREFIXES["G"]
_AMOUNTS: Final = ("usd_per_hour", "storage_usd_per_gb_month", "egress_usd_per_gb", "storage_gb", "egress_gb")
KEYS: Final = ("provider", "system", "terms", "minimum", *_AMOUNTS)


class Quote(Struct, frozen=True, kw_only=True):
    """One quote of a file. system: as named in the file. where: file and quote, for messages."""

    system: str
    price: Price
    where: str


class Charges(Struct, frozen=True, kw_only=True):
    """The parts of a training's cost at a price, in US dollars.

    used_usd: for the hours used. minimum_usd: for the committed hours; the larger of both is paid.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("unused_usd",)

    used_usd: float
    minimum_usd: float
    storage_usd: float
    egress_usd: float

    @property
    def unused_usd(self) -> float:
        """Cost of committed hours that the training does not use."""
        return max(0.0, self.minimum_usd - self.used_usd)

    @property
    def usd(self) -> float:
        """Total cost."""
        return max(self.used_usd, self.minimum_usd) + self.extra_usd

    @property
    def extra_usd(self) -> float:
        """Cost of storage and egress."""
        return self.storage_usd + self.egress_usd


def charges(
    price: Price,
    num_accelerators: int,
    time_s: float,
    *,
    checkpoint_bytes: float | None,
    electricity_usd_per_s: float = 0.0,
) -> Charges:
    """The charges for a training of `time_s` at a price.

    checkpoint_bytes: stored and transferred out, unless the price states these amounts; None: nothing.
    electricity_usd_per_s: of the whole training, which is what the hours of an owned machine cost.
    Assumes a commitment to as many accelerators as the training uses; one copy is stored from start to end,
    and transferred out once.
    Source: definitions; a GB is 1e9 bytes, a month 730.5 hours.
    """
    usd_per_s = num_accelerators * price.usd_per_accelerator_hour / HOUR_S
    if price.is_owned:
        usd_per_s = electricity_usd_per_s
    stored = price.storage_bytes if price.storage_bytes is not None else checkpoint_bytes or 0.0
    taken_out = price.egress_bytes if price.egress_bytes is not None else checkpoint_bytes or 0.0
    return Charges(
        used_usd=usd_per_s * time_s,
        minimum_usd=usd_per_s * price.minimum_s,
        storage_usd=price.storage_usd_per_gb_month * stored / _GB * time_s / MONTH_S,
        egress_usd=price.egress_usd_per_gb * taken_out / _GB,
    )


def least_charged(
    quoted: Sequence[Price],
    num_accelerators: int,
    time_s: Interval,
    *,
    checkpoint_bytes: float | None,
    electricity_usd_per_s: float = 0.0,
) -> tuple[Price, Interval, Charges]:
    """The price at which a training costs least, its cost, and its charges. Arguments as in `charges`.

    The cost has the interval of the time.
    """

    def at(price: Price, seconds: float) -> Charges:
        return charges(
            price,
            num_accelerators,
            seconds,
            checkpoint_bytes=checkpoint_bytes,
            electricity_usd_per_s=electricity_usd_per_s,
        )

    taken = min(quoted, key=lambda each: at(each, time_s.value).usd)
    value, low, high = (at(taken, seconds) for seconds in (time_s.value, time_s.low, time_s.high))
    return taken, Interval(value=value.usd, low=low.usd, high=high.usd, level=time_s.level), value


def read_quotes(path: Path) -> tuple[Quote, ...]:
    """The quotes of a file: TOML with tables `[[quote]]`, or CSV with a header. Keys: KEYS.

    Raises DataError with file, quote, key, the value found and what was expected.
    """
    where = f"--prices {path}"
    content = read_input(path, _MAX_BYTES, expected="TOML or CSV with quotes, for --prices")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise DataError(f"{where}: no UTF-8 text; expected TOML or CSV") from err
    rows = list(_csv_rows(text, where) if path.suffix.lower() == ".csv" else _toml_rows(text, where))
    if not rows:
        raise DataError(f"{where}: no quote; expected {', '.join(KEYS[:3])}, usd_per_hour and others")
    return tuple(_quote(row, f"{where}: quote {place}") for place, row in enumerate(rows, start=1))


def _toml_rows(text: str, where: str) -> Iterator[Mapping[str, Any]]:
    try:
        document = parsed_toml(text)
    except (ValueError, RecursionError) as err:
        raise DataError(f"{where}: {err}; expected TOML with tables [[quote]], or FILE.csv") from err
    other = [key for key in document if key != "quote"]
    listed = document.get("quote", [])
    if other or not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise DataError(f"{where}: has {', '.join(other) or 'quote'}; expected tables [[quote]] alone")
    yield from listed


def _csv_rows(text: str, where: str) -> Iterator[Mapping[str, Any]]:
    lines = csv_lines(text, where)
    _, titles = next(lines, (0, []))
    header = [cell.strip().lower() for cell in titles]
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice:
        raise DataError(f"{where}: two columns are named {twice!r:.60}; expected one")
    for number, (_, cells) in enumerate(lines, 1):
        if len(cells) > len(header):
            raise DataError(f"{where}: quote {number}: {len(cells)} cells; expected {len(header)} at most")
        yield {name: cell for name, cell in zip(header, cells, strict=False) if cell.strip()}


def _quote(row: Mapping[str, Any], where: str) -> Quote:
    unknown = [key for key in row if key not in KEYS]
    if unknown:
        raise DataError(f"{where}: {unknown[0]!r:.60} is not known; expected {', '.join(KEYS)}")
    system, provider = (_text(row, key, where) for key in ("system", "provider"))
    terms = str(row.get("terms", "on_demand")).strip().replace("-", "_").replace(" ", "_")
    known: dict[str, PriceTerms] = {each: each for each in TERMS}
    if terms not in known:
        raise DataError(f"{where}: terms={terms!r:.60}; expected one of {', '.join(TERMS)}")
    amounts = {key: _amount(row, key, where) for key in _AMOUNTS}
    usd = amounts["usd_per_hour"]
    if usd is None:
        raise DataError(f"{where}: no usd_per_hour; expected US dollars per accelerator-hour")
    stated_s = _minimum_s(row.get("minimum", 0), where)
    minimum_s = stated_s if usd else 0.0  # a commitment to hours at no price costs nothing
    least = f", at least {format_duration(minimum_s)}" if minimum_s else ""
    stored, taken_out = amounts["storage_gb"], amounts["egress_gb"]
    price = Price(
        accelerator=system,
        usd_per_accelerator_hour=usd,
        low=usd,
        high=usd,
        basis=f"quote of {provider}, {TERM_WORDS[known[terms]]}{least}",
        terms=known[terms],
        minimum_s=minimum_s,
        storage_usd_per_gb_month=amounts["storage_usd_per_gb_month"] or 0.0,
        egress_usd_per_gb=amounts["egress_usd_per_gb"] or 0.0,
        storage_bytes=None if stored is None else stored * _GB,
        egress_bytes=None if taken_out is None else taken_out * _GB,
    )
    return Quote(system=system, price=price, where=where)


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {key}={value!r:.60}; expected a name")
    return value.strip()


def _amount(row: Mapping[str, Any], key: str, where: str) -> float | None:
    if key not in row:
        return None
    try:
        value = math.nan if isinstance(row[key], bool) else float(row[key])
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0.0 <= value < _MAX_AMOUNT:
        raise DataError(
            f"{where}: {key}={row[key]!r:.60}; expected a number from 0, below {_MAX_AMOUNT:,.0f}"
        )
    return value


def _minimum_s(given: object, where: str) -> float:
    """The minimum commitment in seconds, from hours or a duration with its unit."""
    try:
        found = None if isinstance(given, bool) else float(str(given)) * HOUR_S
    except ValueError:
        found = duration_s(str(given))
    if found is None or not 0.0 <= found <= _LONGEST_S:
        raise DataError(
            f'{where}: minimum={given!r:.60}; expected hours, or a time such as "1 year" or "90d"'
        )
    return found

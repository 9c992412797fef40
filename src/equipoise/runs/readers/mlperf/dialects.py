"""Parses the dialects of MLPerf Training logs since v0.5 into uniform events, without interpreting them."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
from msgspec import DecodeError, Struct, ValidationError, convert, json

from equipoise.files import parsed_json
from equipoise.units import MIB, MILLISECOND_S

# Marked lines of real logs are below 40 kB; a longer one is an attack or a damaged file.
MAX_LINE_BYTES = MIB // 4
# Informative lines that are not JSON have some 100 bytes, so longer ones are not parsed leniently.
_MAX_LOOSE_BYTES = 4096
# The largest exact integer of a float; times in ms, tokens and joules of real logs are far smaller.
_MAX_EXACT = 2**53
# Bounds the decoded events in memory, not the file.
_CHUNK_BYTES = MIB


class Event(Struct):
    """The event in one line; all values except the key are unvalidated. Other fields are ignored.

    time_ms, time_s: since the epoch; `:::MLLOG` lines have the first.
    """

    key: str
    time_ms: Any = None
    time_s: Any = None
    value: Any = None
    metadata: Any = None


class Dialect(Struct, frozen=True, kw_only=True):
    """A log format with one event per line. token: marks the lines of events.

    decode: returns the event of a marked line, or None if it cannot be read.
    strict: whether an unreadable line disqualifies the run (official rule for `:::MLLOG`).
    """

    name: str
    token: bytes
    decode: Callable[[bytes], Event | None]
    strict: bool

    @property
    def pattern(self) -> re.Pattern[bytes]:
        """A pattern for a marked line whose group is the rest of the line."""
        return re.compile(self.token + b"(.*)")


def finite(value: object) -> float | None:
    """Return the number in a value that may be a number or its text; None for anything else.

    NaN, infinity and numbers beyond 2^53 are rejected, because sums and powers of them would overflow.

    >>> finite("4096"), finite(1e3), finite("n/a"), finite(float("nan")), finite(1e300), finite(True)
    (4096.0, 1000.0, None, None, None, None)
    """
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, int | float | str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) <= _MAX_EXACT else None  # false for NaN


def event_time_s(event: Event) -> float | None:
    """Return the time of an event in seconds since the epoch; None if not stated."""
    time_ms = event.time_ms
    if type(time_ms) is int and -_MAX_EXACT < time_ms < _MAX_EXACT:  # the usual case
        return time_ms * MILLISECOND_S
    if time_ms is None:
        return finite(event.time_s)
    found = finite(time_ms)
    return None if found is None else found * MILLISECOND_S


def tolerant_json(raw: bytes) -> Any | None:  # noqa: ANN401 - whatever the text holds
    """Return the value of a JSON text, allowing NaN and bytes that are not UTF-8; None if it is not JSON.

    Depth, digits and length are limited by the decoders and by MAX_LINE_BYTES.
    """
    if len(raw) > MAX_LINE_BYTES:
        return None
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    try:
        return parsed_json(raw.decode("latin-1"))
    except (ValueError, RecursionError):
        return None


_EVENTS = json.Decoder(Event)


def _mllog_event(raw: bytes) -> Event | None:
    """Return the event after `:::MLLOG `, or after the last such token if ranks wrote into one line."""
    with suppress(DecodeError, ValueError, RecursionError):
        return _EVENTS.decode(raw)
    found = tolerant_json(raw[raw.rfind(b":::MLLOG ") + 9 :] if b":::MLLOG " in raw else raw)
    try:
        return convert(found, Event)
    except ValidationError:
        return None


_BARE_NAME = re.compile(r"(?<=[{,])(\s*)([A-Za-z_]\w*)(\s*):")
_BARE_VALUE = re.compile(
    r"(?<=:)(\s*)(?!(?:true|false|null|NaN|Infinity)\b)([A-Za-z_/<][^\s:,{}\"]*)(\s*)(?=[,}])"
)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")


def loose_value(raw: bytes) -> Any | None:  # noqa: ANN401 - whatever the text holds
    """Return a value of the older dialects: JSON, with single quotes or bare words; other text as it is.

    >>> loose_value(b"{value: true, metadata: {lineno: 0, file: manual}}")
    {'value': True, 'metadata': {'lineno': 0, 'file': 'manual'}}
    """
    raw = raw.strip()
    if not raw or len(raw) > MAX_LINE_BYTES:
        return None
    found = tolerant_json(raw)
    if found is not None or raw == b"null":
        return found
    text = raw.decode("latin-1")
    if text.startswith("{") and len(raw) <= _MAX_LOOSE_BYTES:
        quoted = _TRAILING_COMMA.sub(r"\1", text.replace("'", '"'))
        quoted = _BARE_VALUE.sub(r'\1"\2"\3', _BARE_NAME.sub(r'\1"\2"\3:', quoted))
        found = tolerant_json(quoted.encode())
        if found is not None:
            return found
    return text


_MLL = re.compile(rb"([\d.]+(?:[eE][+-]?\d+)?) ([^\s:]+):?(.*)")


def _mll_event(raw: bytes) -> Event | None:
    """Parse `:::MLL 1560881700.827 key: {"value": ..., "metadata": {...}}` of v0.6."""
    match = _MLL.match(raw)
    time_s = finite(match[1].decode()) if match else None
    if match is None or time_s is None:
        return None
    value = loose_value(match[3])
    body = value if isinstance(value, dict) else {"value": value}
    return Event(
        key=match[2].decode("latin-1"), time_s=time_s, value=body.get("value"), metadata=body.get("metadata")
    )


def _early_event(key: str, time_s: float, value: object) -> Event:
    """Return an event of v0.5, in which today's metadata are part of the value."""
    if key == "run_stop" and isinstance(value, dict) and "success" in value:
        status = "success" if str(value["success"]).lower() == "true" else "failed"
        return Event(key=key, time_s=time_s, value=value, metadata={"status": status})
    if key.startswith("eval_") and isinstance(value, dict):
        metadata = {"epoch": value.get("epoch")}
        return Event(key=key, time_s=time_s, value=value.get("value"), metadata=metadata)
    return Event(key=key, time_s=time_s, value=value)


_MLP = re.compile(rb"[\d.]+ (\S+) ([\d.]+) (?:\(.*?:\d+\) )?([^\s:]+):?(.*)")


def _mlp_event(raw: bytes) -> Event | None:
    """Parse `:::MLPv0.5.0 resnet 1541720386.943 (file.py:49) key: value` of v0.5."""
    match = _MLP.match(raw)
    time_s = finite(match[2].decode()) if match else None
    if match is None or time_s is None:
        return None
    return _early_event(match[3].decode("latin-1"), time_s, loose_value(match[4]))


_MLPERF = re.compile(rb"(\S+) \[(\d\d/\d\d/\d\d \d\d:\d\d:\d\d)\], ([^\s:]+):?(.*)")
_PERCENT = re.compile(rb"([\d.]+)%")


def _mlperf_event(raw: bytes) -> Event | None:
    """Parse `MLPerf: resnet [06/13/19 00:30:56], key: value` (v0.6, Alibaba): whole seconds, no status."""
    match = _MLPERF.match(raw)
    if match is None:
        return None
    try:
        time = datetime.strptime(match[2].decode(), "%m/%d/%y %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    return _early_event(
        match[3].decode("latin-1"), time.timestamp(), loose_value(_PERCENT.sub(rb"\1", match[4]))
    )


# The first dialect whose token occurs in a log is used.
DIALECTS = (
    Dialect(name="MLLOG", token=b":::MLLOG ", decode=_mllog_event, strict=True),
    Dialect(name="MLL", token=b":::MLL ", decode=_mll_event, strict=False),
    Dialect(name="MLPv0.5", token=b":::MLPv", decode=_mlp_event, strict=False),
    Dialect(name="MLPerf", token=b"MLPerf: ", decode=_mlperf_event, strict=False),
)


def dialect_of(data: bytes) -> Dialect | None:
    """Return the dialect of a log; None if no line is marked."""
    return next((dialect for dialect in DIALECTS if dialect.token in data), None)


def chunks(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield spans of about a MiB that cover the data and end at line ends."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + _CHUNK_BYTES) + 1
        yield start, end or len(data)
        start = end or len(data)


def decoded_lines(dialect: Dialect, lines: list[bytes]) -> Sequence[Event | None]:
    """Return the event of each marked line, None if it cannot be read."""
    if dialect.decode is _mllog_event:
        with suppress(DecodeError, ValueError, RecursionError):  # usually all lines are events
            return list(map(_EVENTS.decode, lines))
    return [dialect.decode(line) for line in lines]

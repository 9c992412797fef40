"""Energy from the power logs of a result: watts per meter, joules per run and per entry.

A node logs readings, a switch one estimate. MLPerf does not integrate over the run: it takes the mean power
between the meter's own start and stop, and multiplies by the official time.
Source: MLPerf Training rules, appendix on power, as applied by the official result summarizer
(mlperf-logging).
"""

import math
from collections.abc import Sequence

import orjson
from msgspec import Struct

_TOKEN = b":::MLLOG"
_START = "power_measurement_start"
_STOP = "power_measurement_stop"
_READING = "power_reading"
_EFFICIENCY = "conversion_eff"
_ESTIMATE = "interconnect_power_est"
_KEYS = frozenset({_START, _STOP, _READING, _EFFICIENCY, _ESTIMATE})

# No meter of one run shows more than a power station gives.
_MAX_POWER_W = 100_000_000.0


class Meter(Struct, frozen=True, kw_only=True):
    """What one power log states: mean watts after conversion; None where it cannot be used."""

    power_w: float | None


class _Event(Struct, frozen=True, kw_only=True):
    """One line of a power log: milliseconds since the epoch, key, and the value if it is a finite number."""

    time_ms: float
    key: str
    value: float | None


def _finite(value: object) -> float | None:
    """A JSON number as a finite float, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _event(line: bytes) -> _Event | None:
    """The event of a line, or None for a line that is corrupt or about something else."""
    try:
        record = orjson.loads(line.rpartition(_TOKEN)[2])
    except orjson.JSONDecodeError:
        return None
    key = record.get("key") if isinstance(record, dict) else None
    if not isinstance(key, str) or key not in _KEYS:
        return None
    time_ms = _finite(record.get("time_ms"))
    return None if time_ms is None else _Event(time_ms=time_ms, key=key, value=_finite(record.get("value")))


def _events(data: bytes) -> list[_Event]:
    """The events of a log in file order; corrupt lines are passed over, as the official code does."""
    found = (_event(line) for line in data.splitlines() if _TOKEN in line)
    return [event for event in found if event is not None]


def _efficiency(events: Sequence[_Event]) -> float:
    """The last stated conversion efficiency, watts at the plug per logged watt; 1.0 when none is stated."""
    stated = [event.value for event in events if event.key == _EFFICIENCY and event.value is not None]
    return stated[-1] if stated else 1.0


def node_meter(data: bytes) -> Meter:
    """Mean power of one `node_K.txt`: efficiency x sum(reading x time since the one before) / (stop - start).

    Readings after the stop do not count. Where the stop is missing or carries the stamp of the start, the
    last reading ends the measurement: some v4.0 submissions are so, and the official code divides by zero
    there.
    Assumes each reading held since the one before.
    Source: rules as in the module's head.
    """
    events = sorted(_events(data), key=lambda event: event.time_ms)
    starts = [event.time_ms for event in events if event.key == _START]
    if not starts:
        return Meter(power_w=None)
    start_ms = starts[-1]
    stops = [event.time_ms for event in events if event.key == _STOP]
    stop_ms = stops[-1] if stops and stops[-1] != start_ms else math.inf
    readings = [
        (event.time_ms, event.value)
        for event in events
        if event.key == _READING and event.value is not None and start_ms <= event.time_ms <= stop_ms
    ]
    before_ms, sum_w_ms = start_ms, 0.0
    for time_ms, power_w in readings:
        sum_w_ms += power_w * (time_ms - before_ms)
        before_ms = time_ms
    end_ms = before_ms if math.isinf(stop_ms) else stop_ms
    if not readings or end_ms <= start_ms:
        return Meter(power_w=None)
    return _checked(_efficiency(events) * sum_w_ms / (end_ms - start_ms))


def switch_meter(data: bytes) -> Meter:
    """Power of one `sw_K.txt`: efficiency x the first estimate of the interconnect's power.

    A log with events but no estimate counts as 0 W, also when it holds readings: the official code does not
    use these (v4.1 Dell logs about 700 W for its switch; the published energy leaves them out).
    Source: rules as in the module's head.
    """
    events = _events(data)
    for position, event in enumerate(events):
        if event.key == _ESTIMATE and event.value is not None:
            return _checked(_efficiency(events[:position]) * event.value)
    return Meter(power_w=0.0 if events else None)


def _checked(power_w: float) -> Meter:
    return Meter(power_w=power_w if 0 <= power_w <= _MAX_POWER_W else None)


def run_energy_j(
    nodes: Sequence[Meter], switches: Sequence[Meter], time_to_train_s: float | None
) -> float | None:
    """Energy of one run: the power of all its meters times its official time, without convergence scaling.

    None when the run has no time, no node is metered, or one meter cannot be used: a sum over a part of the
    machine would look like a low energy.
    """
    power_w = [meter.power_w for meter in (*nodes, *switches) if meter.power_w is not None]
    if time_to_train_s is None or not nodes or len(power_w) < len(nodes) + len(switches):
        return None
    return sum(power_w) * time_to_train_s


def entry_energy_j(counted: Sequence[float | None], convergence_scaling: float) -> float | None:
    """Official energy of an entry from the runs that make its score: olympic in the order of times.

    None unless every one of them has an energy.
    """
    joules = [energy_j for energy_j in counted if energy_j is not None]
    if not joules or len(joules) < len(counted):
        return None
    return math.fsum(joules) / len(joules) * convergence_scaling

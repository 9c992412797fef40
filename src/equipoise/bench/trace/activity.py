"""What a trace's events add up to: when each device computed, copied and communicated, where steps begin."""

import math
from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from equipoise.bench.trace import kernels
from equipoise.bench.trace.overlap import Spans
from equipoise.bench.trace.stream import Event
from equipoise.errors import DataError

# Starts and ends of so many events are some GB of memory; the largest traces seen have a few million.
MAX_EVENTS = 50_000_000
MAX_DEVICES = 64
MAX_STREAMS = 1024
MAX_STEPS = 1_000_000
# A microsecond count beyond is no time: 1e15 us are 31 years, and traces count from 1970 at most.
_MOST_US = 9e15

_DEVICE_KINDS = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "concurrent_kernel"})
_LAUNCH_KINDS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"})
_HOST_STEPS = frozenset({"user_annotation", "cpu_op", "operator", "python_function"})


@dataclass(slots=True)
class Times:
    """Starts and ends of events as they come, in nanoseconds."""

    start: "array[int]" = field(default_factory=lambda: array("q"))
    end: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, start_ns: int, end_ns: int) -> None:
        """One span more."""
        self.start.append(start_ns)
        self.end.append(end_ns)

    @property
    def spans(self) -> Spans:
        """All of them."""
        return Spans(
            start=np.array(self.start, dtype=np.int64),
            end=np.array(self.end, dtype=np.int64),
        )


@dataclass(slots=True)
class Numbered:
    """Spans of events with the number that joins a launch on the host to what it launched."""

    times: Times = field(default_factory=Times)
    correlation: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, start_ns: int, end_ns: int, correlation: Any) -> None:  # noqa: ANN401 - any JSON value
        """One event more, where it has a number."""
        if type(correlation) is int and abs(correlation) < _MOST_US:
            self.times.add(start_ns, end_ns)
            self.correlation.append(correlation)


@dataclass(slots=True)
class Device:
    """What one device did.

    groups: which group of ranks and operation each communication is of. streams: kernels by where they queue.
    """

    compute: Times = field(default_factory=Times)
    copy: Times = field(default_factory=Times)
    communication: Times = field(default_factory=Times)
    groups: "array[int]" = field(default_factory=lambda: array("l"))
    streams: dict[int, Numbered] = field(default_factory=dict)

    def computes(self, span: tuple[int, int], arguments: dict[str, Any]) -> None:
        """Take in a kernel that computes."""
        self.compute.add(*span)
        stream = arguments.get("stream")
        if type(stream) is int and (stream in self.streams or len(self.streams) < MAX_STREAMS):
            self.streams.setdefault(stream, Numbered()).add(*span, arguments.get("correlation"))

    @property
    def busiest(self) -> Numbered:
        """The stream that most kernels ran on."""
        return max(self.streams.values(), key=lambda each: len(each.correlation), default=Numbered())


@dataclass(slots=True, kw_only=True)
class Activity:
    """What the events of one trace add up to.

    devices: by number. host: the processor, as if it were one. host_steps, device_steps: number to start and
    end. names: groups of ranks with their operation, by the number that Device.groups holds.
    """

    where: str
    devices: dict[int, Device] = field(default_factory=dict)
    host: Device = field(default_factory=Device)
    launched: Numbered = field(default_factory=Numbered)
    host_steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    device_steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    names: dict[tuple[str, str], int] = field(default_factory=dict)
    num_events: int = 0
    num_odd: int = 0
    num_launches: int = 0
    first_ns: int | None = None
    last_ns: int | None = None

    def add(self, batch: list[Event]) -> None:
        """Take in the events of a batch. Raises DataError for more of them than are kept."""
        for event in batch:
            if type(event) is not dict or event.get("ph") != "X":
                continue
            category, name = event.get("cat"), event.get("name")
            if type(category) is not str or type(name) is not str:
                continue
            category = category.lower()
            if category in _DEVICE_KINDS:
                self._add_device(event, category, name)
            elif category in _HOST_STEPS:
                self._add_host(event, category, name)
            elif category in _LAUNCH_KINDS:
                self._add_launch(event)
            elif category == "gpu_user_annotation":
                self._add_step(self.device_steps, event, name)
        if self.num_events > MAX_EVENTS:
            raise DataError(
                f"{self.where}: more than {MAX_EVENTS} kernels and operators; profile fewer steps"
            )

    def _span(self, event: Event) -> tuple[int, int] | None:
        """Start and end in nanoseconds; None, and counted, where they are no times."""
        start_ns, took_ns = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur", 0))
        if start_ns is None or took_ns is None or took_ns < 0:
            self.num_odd += 1
            return None
        end_ns = start_ns + took_ns
        self.num_events += 1
        self.first_ns = start_ns if self.first_ns is None else min(self.first_ns, start_ns)
        self.last_ns = end_ns if self.last_ns is None else max(self.last_ns, end_ns)
        return start_ns, end_ns

    def _add_device(self, event: Event, category: str, name: str) -> None:
        span = self._span(event)
        if span is None:
            return
        arguments = event.get("args")
        arguments = arguments if type(arguments) is dict else {}
        device = self._device(arguments.get("device", event.get("pid")))
        if kernels.communicates(name):
            device.communication.add(*span)
            device.groups.append(self._group(arguments, name))
        elif kernels.copies(category):
            device.copy.add(*span)
        else:
            device.computes(span, arguments)

    def _add_launch(self, event: Event) -> None:
        arguments, moment_ns = event.get("args"), _nanoseconds(event.get("ts"))
        if type(arguments) is dict and moment_ns is not None:
            self.launched.add(moment_ns, moment_ns, arguments.get("correlation"))

    def _device(self, number: Any) -> Device:  # noqa: ANN401 - any JSON value
        key = number if type(number) is int else -1
        found = self.devices.get(key)
        if found is None:
            if len(self.devices) >= MAX_DEVICES:
                raise DataError(
                    f"{self.where}: more than {MAX_DEVICES} devices in one trace; expected one a rank"
                )
            found = self.devices[key] = Device()
        return found

    def _group(self, arguments: dict[str, Any], name: str) -> int:
        """The number of a communication's group of ranks and operation."""
        told = arguments.get("Process Group Ranks") or arguments.get("Process Group Name") or ""
        what = arguments.get("Collective name") or kernels.operation(name)
        key = (str(told)[:200], str(what)[:60])
        if len(self.names) >= MAX_STEPS:
            return self.names.setdefault(("", ""), 0)
        return self.names.setdefault(key, len(self.names))

    def _add_host(self, event: Event, category: str, name: str) -> None:
        if self._add_step(self.host_steps, event, name):
            return
        operation = kernels.host_operation(name)
        if operation is not None:
            span = self._span(event)
            if span is not None:
                self.host.communication.add(*span)
                self.host.groups.append(self._group({}, operation))
            return
        self.num_launches += kernels.launches(name)
        # Once a device is seen, what the host computes is not asked for: memory for millions of operators.
        if not self.devices and category in {"cpu_op", "operator"} and kernels.computes_on_host(name):
            span = self._span(event)
            if span is not None:
                self.host.compute.add(*span)

    def _add_step(self, steps: dict[int, tuple[int, int]], event: Event, name: str) -> bool:
        """Note a step's span; streams and threads that mark the same step are joined."""
        number = kernels.step_number(name)
        if number is None:
            return False
        span = self._span(event)
        if span is not None and (number in steps or len(steps) < MAX_STEPS):
            start, end = steps.get(number, span)
            steps[number] = (min(start, span[0]), max(end, span[1]))
        return True


def _nanoseconds(microseconds: Any) -> int | None:  # noqa: ANN401 - any JSON value
    """Microseconds as whole nanoseconds, with the digits that a large float still has; None for no time."""
    if type(microseconds) is int and abs(microseconds) < _MOST_US:
        return microseconds * 1000
    if type(microseconds) is not float or not math.isfinite(microseconds) or abs(microseconds) >= _MOST_US:
        return None
    whole = int(microseconds)
    return whole * 1000 + round((microseconds - whole) * 1000)

"""Collects a trace's events: when each device computed, copied and communicated, in exact nanoseconds."""

import math
import re
from array import array
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from equipoise.bench.trace.stream import Event
from equipoise.errors import DataError

Nanoseconds: TypeAlias = NDArray[np.int64]


class Spans(Struct, frozen=True, kw_only=True):
    """Time spans [start, end) that may overlap; both arrays are (n_spans,)."""

    start: Nanoseconds
    end: Nanoseconds


def merged(spans: Spans) -> Spans:
    """Return the union of spans as ordered spans that neither overlap nor touch.

    >>> whole = merged(Spans(start=np.array([5, 0, 3]), end=np.array([9, 2, 6])))
    >>> whole.start.tolist(), whole.end.tolist()
    ([0, 3], [2, 9])
    """
    is_span = spans.end > spans.start
    start, end = spans.start[is_span], spans.end[is_span]
    if start.size == 0:
        return Spans(start=start, end=end)
    order = np.argsort(start, kind="stable")
    start, reached = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Spans(start=start[first], end=reached[last])


def union(one: Spans, other: Spans) -> Spans:
    """Return the merged spans of both."""
    return merged(
        Spans(
            start=np.concatenate([one.start, other.start]),
            end=np.concatenate([one.end, other.end]),
        )
    )


def covered_ns(whole: Spans, windows: Spans) -> Nanoseconds:
    """Return the nanoseconds of each window that are covered: (n_windows,).

    whole: merged spans. windows: in any order; they may overlap.

    >>> whole = Spans(start=np.array([0, 10]), end=np.array([4, 20]))
    >>> covered_ns(whole, Spans(start=np.array([2, 0, 4]), end=np.array([12, 100, 10]))).tolist()
    [4, 14, 0]
    """
    return _covered_before(whole, windows.end) - _covered_before(whole, windows.start)


def _covered_before(whole: Spans, moment: Nanoseconds) -> Nanoseconds:
    """Return the nanoseconds covered before each moment."""
    if whole.start.size == 0:
        return np.zeros(moment.shape, dtype=np.int64)
    total = np.concatenate([[0], np.cumsum(whole.end - whole.start)])
    place = np.searchsorted(whole.start, moment, side="right")
    last = np.maximum(place - 1, 0)
    inside = np.clip(moment, whole.start[last], whole.end[last]) - whole.start[last]
    return np.where(place > 0, total[last] + inside, 0)


# Kernels of NCCL before 2.19 (ncclKernel_AllReduce_RING_LL_Sum_float, ncclAllReduceRingLLKernel_sum_f32) and
# since (ncclDevKernel_, ncclSymDevKernel_, ncclSymkDevKernel_, sometimes after a template), of RCCL, and of
# alternatives: MSCCL, oneCCL, custom all-reduce of vLLM and TensorRT-LLM, torch's symmetric memory, DeepEP,
# NVSHMEM. Copies between peers are communication too: pipelines and FSDP use them.
_COMMUNICATES = re.compile(
    r"^(?:void\s+)?(?:\w+::)*(?:nccl|rccl|mscclpp?|oneccl|ccl_|cross_device_reduce|deep_ep|nvshmem|nixl)"
    r"|(?<![a-z])nccl(?:Sym|Symk)?(?:Dev)?Kernel"
    r"|(?:one|two)_?shot_all_?reduce|multimem_(?:one_shot_)?all_?(?:reduce|gather)|all_?reduce_fusion_kernel"
    r"|^memcpy (?:ptop|peer)",
    re.IGNORECASE,
)
# Host spans of CPU backends, which cover the operation itself.
_HOST_COMMUNICATES = re.compile(r"^(?:gloo|mpi|ucc):(\w+)")
# Host spans of accelerator backends, which cover only the launch of the operation.
_HOST_LAUNCHES = re.compile(r"^(?:nccl|rccl|xccl|hccl):")
# Operators that contain others or only wait; their spans are not computation.
_WRAPS = re.compile(
    r"^(?:autograd::|torch::autograd::|c10d::|c10d_functional::|_c10d_functional::|record_param_comms|gloo:|nccl:"
    r"|torch::distributed::reducer::search|ProfilerStep|Optimizer\.|DistributedDataParallel\.|DataLoader|enumerate)"
    r"|^FSDP::|^PythonSubclass$|Backward\d*$|^## "
)
_STEP = re.compile(r"^ProfilerStep\s*#(\d{1,12})$")
_OPERATION = re.compile(
    r"(All_?Reduce|All_?Gather|Reduce_?Scatter|Broadcast|All_?To_?All|SendRecv|Reduce|Send|Recv)",
    re.IGNORECASE,
)
_COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")


def communicates(name: str) -> bool:
    """Return whether a kernel or copy of the device moves data between accelerators.

    >>> communicates("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)")
    True
    >>> communicates("Memcpy PtoP (Device -> Device)"), communicates("void at::native::reduce_kernel<512>()")
    (True, False)
    """
    return _COMMUNICATES.search(name[:300]) is not None


def operation(name: str) -> str:
    """Return the collective in a kernel's name, or the start of the name if it is not a known one.

    >>> operation("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)")
    'allreduce'
    """
    found = _OPERATION.search(name[:300])
    return found[1].lower() if found else name[:60]


def host_operation(name: str) -> str | None:
    """Return the collective that a CPU backend runs in a host span; None for another span.

    >>> host_operation("gloo:all_reduce"), host_operation("nccl:all_reduce")
    ('all_reduce', None)
    """
    found = _HOST_COMMUNICATES.match(name)
    return found[1] if found else None


def computes_on_host(name: str) -> bool:
    """Return whether an operator's span on the host is computation.

    >>> computes_on_host("aten::mm"), computes_on_host("c10d::allreduce_"), computes_on_host("AddmmBackward0")
    (True, False, False)
    """
    return _WRAPS.search(name[:300]) is None


def step_number(name: str) -> int | None:
    """Return the number of the step that a span marks; None for another span.

    >>> step_number("ProfilerStep#12"), step_number("ProfilerStep")
    (12, None)
    """
    found = _STEP.match(name)
    return int(found[1]) if found else None


# Starts and ends of this many events take some GB of memory; the largest traces seen have a few million.
MAX_EVENTS = 50_000_000
MAX_DEVICES = 64
MAX_STREAMS = 1024
MAX_STEPS = 1_000_000
# Larger values are not times: 1e15 us are 31 years, and traces count from 1970 at the earliest.
_MOST_US = 9e15

_DEVICE_KINDS = frozenset({"kernel", "concurrent_kernel", *_COPIES})
_LAUNCH_KINDS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"})
_HOST_STEPS = frozenset({"user_annotation", "cpu_op", "operator", "python_function"})


class Times(Struct):
    """Starts and ends of events in the order of the trace, in nanoseconds."""

    start: "array[int]" = field(default_factory=lambda: array("q"))
    end: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, start_ns: int, end_ns: int) -> None:
        """Append a span."""
        self.start.append(start_ns)
        self.end.append(end_ns)

    @property
    def spans(self) -> Spans:
        """All spans as arrays."""
        return Spans(
            start=np.array(self.start, dtype=np.int64),
            end=np.array(self.end, dtype=np.int64),
        )


class Numbered(Struct):
    """Spans of events with the correlation number that a launch on the host shares with its kernel."""

    times: Times = field(default_factory=Times)
    correlation: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, start_ns: int, end_ns: int, correlation: Any) -> None:  # noqa: ANN401 - any JSON value
        """Append an event if it has a correlation number."""
        if type(correlation) is int and abs(correlation) < _MOST_US:
            self.times.add(start_ns, end_ns)
            self.correlation.append(correlation)


class DeviceActivity(Struct):
    """The activity of one device.

    groups: for each communication, the number of its group of ranks and operation. streams: kernels by
    stream.
    """

    compute: Times = field(default_factory=Times)
    copy: Times = field(default_factory=Times)
    communication: Times = field(default_factory=Times)
    groups: "array[int]" = field(default_factory=lambda: array("l"))
    streams: dict[int, Numbered] = field(default_factory=dict)

    def computes(self, span: tuple[int, int], arguments: dict[str, Any]) -> None:
        """Add a compute kernel."""
        self.compute.add(*span)
        stream = arguments.get("stream")
        if type(stream) is int and (stream in self.streams or len(self.streams) < MAX_STREAMS):
            self.streams.setdefault(stream, Numbered()).add(*span, arguments.get("correlation"))

    @property
    def busiest(self) -> Numbered:
        """The kernels of the stream with the most kernels."""
        return max(self.streams.values(), key=lambda each: len(each.correlation), default=Numbered())


class Activity(Struct, kw_only=True):
    """The activity in one trace.

    devices: by number. host: the processor, treated like a device. host_steps, device_steps: start and end by
    step number. process: the process that marked the host's first step. names: the numbers used in
    DeviceActivity.groups, by group of ranks and operation. num_odd: events without valid times.
    """

    where: str
    devices: dict[int, DeviceActivity] = field(default_factory=dict)
    host: DeviceActivity = field(default_factory=DeviceActivity)
    launched: Numbered = field(default_factory=Numbered)
    host_steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    device_steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    process: int | None = None
    names: dict[tuple[str, str], int] = field(default_factory=dict)
    num_events: int = 0
    num_odd: int = 0
    num_launches: int = 0
    first_ns: int | None = None
    last_ns: int | None = None

    def add(self, batch: list[Event]) -> None:
        """Add the events of a batch. Raises DataError for more than MAX_EVENTS events."""
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
                f"{self.where}: more than {MAX_EVENTS:,} kernels, launches and operators; profile fewer steps"
            )

    def _span(self, event: Event) -> tuple[int, int] | None:
        """Return start and end in nanoseconds; None, and counted in num_odd, if they are not valid times."""
        start_ns, took_ns = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
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
        if communicates(name):
            device.communication.add(*span)
            device.groups.append(self._group(arguments, name))
        elif category in _COPIES:
            device.copy.add(*span)
        else:
            device.computes(span, arguments)

    def _add_launch(self, event: Event) -> None:
        arguments, moment_ns = event.get("args"), _nanoseconds(event.get("ts"))
        if type(arguments) is dict and moment_ns is not None:
            self.num_events += 1
            self.launched.add(moment_ns, moment_ns, arguments.get("correlation"))

    def _device(self, number: Any) -> DeviceActivity:  # noqa: ANN401 - any JSON value
        key = number if type(number) is int else -1
        found = self.devices.get(key)
        if found is None:
            if len(self.devices) >= MAX_DEVICES:
                raise DataError(
                    f"{self.where}: more than {MAX_DEVICES:,} devices in one trace; expected one per rank"
                )
            found = self.devices[key] = DeviceActivity()
        return found

    def _group(self, arguments: dict[str, Any], name: str) -> int:
        """Return the number of a communication's group of ranks and operation."""
        ranks = arguments.get("Process Group Ranks") or arguments.get("Process Group Name") or ""
        what = arguments.get("Collective name") or operation(name)
        key = (str(ranks)[:200], str(what)[:60])
        if key not in self.names and len(self.names) >= MAX_STEPS:
            key = ("", "")
        return self.names.setdefault(key, len(self.names))

    def _add_host(self, event: Event, category: str, name: str) -> None:
        if self._add_step(self.host_steps, event, name):
            process = event.get("pid")
            if self.process is None and type(process) is int:
                self.process = process
            return
        operation = host_operation(name)
        if operation is not None:
            span = self._span(event)
            if span is not None:
                self.host.communication.add(*span)
                self.host.groups.append(self._group({}, operation))
            return
        self.num_launches += _HOST_LAUNCHES.match(name) is not None
        # Once a device has been seen, host computation is not stored, to save memory for millions of
        # operators.
        if not self.devices and category in {"cpu_op", "operator"} and computes_on_host(name):
            span = self._span(event)
            if span is not None:
                self.host.compute.add(*span)

    def _add_step(self, steps: dict[int, tuple[int, int]], event: Event, name: str) -> bool:
        """Add a step's span, merging spans of several streams and threads; return whether it marks a step."""
        number = step_number(name)
        if number is None:
            return False
        span = self._span(event)
        if span is not None and (number in steps or len(steps) < MAX_STEPS):
            start, end = steps.get(number, span)
            steps[number] = (min(start, span[0]), max(end, span[1]))
        return True


def _nanoseconds(microseconds: Any) -> int | None:  # noqa: ANN401 - any JSON value
    """Return microseconds as integer nanoseconds without losing digits of a large float; None if invalid."""
    if type(microseconds) is int and abs(microseconds) < _MOST_US:
        return microseconds * 1000
    if type(microseconds) is not float or not math.isfinite(microseconds) or abs(microseconds) >= _MOST_US:
        return None
    whole = int(microseconds)
    return whole * 1000 + round((microseconds - whole) * 1000)

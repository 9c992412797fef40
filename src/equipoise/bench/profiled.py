"""When collectives ran and when the device computed, in steps that are profiled and not counted."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from equipoise.bench.devices import Device
from equipoise.bench.phases import Span, uncovered_s, union_s
from equipoise.bench.trace.kernels import communicates, computes_on_host, host_operation
from equipoise.units import MICROSECOND_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A span of a profile: of the host, on one of its threads, or of the device.

    is_annotation: it only names what runs below it.
    """

    name: str
    span: Span
    on_device: bool = False
    thread: int = 0
    is_annotation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """Seconds in which a collective ran, and of those in which nothing was computed."""

    communication_s: float
    exposed_s: float


def profiled(events: Iterable[Event]) -> Profiled:
    """Communication of a profile: by the kernels of a device, or by what a CPU backend's threads worked on.

    Assumes one rank's events. A device's collective counts from its launch, and so while it waits for other
    ranks; a CPU backend's from when its thread takes it up.
    Source: names of kernels, trace/kernels.py.
    """
    told = list(events)
    on_device = any(event.on_device for event in told)
    if on_device:
        kernels = [event for event in told if event.on_device and not event.is_annotation]
        talking = [event.span for event in kernels if communicates(event.name)]
        computing = [event.span for event in kernels if not communicates(event.name)]
    else:
        threads = {event.thread for event in told if host_operation(event.name)}  # copies there are its own
        talking = [event.span for event in told if host_operation(event.name)]
        computing = [
            event.span for event in told if event.thread not in threads and computes_on_host(event.name)
        ]
    return Profiled(communication_s=union_s(talking), exposed_s=uncovered_s(talking, by=computing))


def profile_of(on: Device, run: Callable[[], None]) -> Profiled:
    """Communication while something runs to its end."""
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 - after the cores are set

    with profile(activities=[getattr(ProfilerActivity, name) for name in on.activities]) as seen:
        run()
        on.synchronise()
    return profiled_in(seen)


def profiled_in(seen: Any) -> Profiled:  # noqa: ANN401 - torch's profile, which has ended
    """Communication in a profile of torch's."""
    return profiled(
        Event(
            name=event.name,
            span=(event.time_range.start * MICROSECOND_S, event.time_range.end * MICROSECOND_S),
            on_device=event.device_type.name == "CUDA",
            thread=event.thread,
            is_annotation=bool(getattr(event, "is_user_annotation", None)),
        )
        for event in seen.events()
    )

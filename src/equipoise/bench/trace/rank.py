"""One rank's trace: what each of its steps was spent on, in parts that sum to the step exactly."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.bench.trace.activity import Activity, Device
from equipoise.bench.trace.overlap import Spans, covered_ns, merged, union
from equipoise.bench.trace.stream import TraceStream
from equipoise.bench.trace.windows import Steps, steps_of
from equipoise.errors import DataError

_MOST_NAME = 256
_NAMED_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: step_s = compute_s + exposed_s + idle_s.

    number: of ProfilerStep#; None where the whole trace is taken. communication_s: all of it, exposed_s: what
    does not overlap with computation; both None where the trace does not tell. copy_s: the part of compute_s
    in which nothing but copies ran.
    """

    number: int | None
    step_s: float
    compute_s: float
    communication_s: float | None
    exposed_s: float | None
    idle_s: float
    copy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """The communications of one rank in its steps, in order of their start; arrays of (n_communications,).

    group: which operation over which ranks, as text. step: index into the rank's steps. start_s: since the
    step began; communications may overlap. seconds: how long each took.
    """

    group: tuple[str, ...]
    step: NDArray[np.int64]
    start_s: NDArray[np.float64]
    seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What one device of one rank did.

    where: the file. device: None where only the host was traced; device_name: as the trace names it. notes:
    what a reader must know.
    """

    where: str
    rank: int | None
    world_size: int | None
    device: int | None
    steps: tuple[Step, ...]
    collectives: Collectives
    notes: tuple[str, ...] = ()
    device_name: str | None = None


def rank_traces(pieces: Iterator[bytes], where: str) -> list[RankTrace]:
    """The trace of one file: one record a device, most often one.

    pieces: the bytes of the file in order. where: names it in messages; it may name the rank too.
    Raises DataError where it is no trace, or nothing in it took time.
    """
    stream = TraceStream(pieces, where)
    activity = Activity(where=where)
    for batch in stream.batches():
        activity.add(batch)
    if activity.first_ns is None:
        raise DataError(
            f"{where}: no kernel, operator or step in the trace; expected spans (ph X) of torch.profiler"
        )
    notes = tuple(_notes(activity, is_cut=stream.is_cut))
    rank, world_size = _identity(stream.metadata, where)
    devices: list[tuple[int | None, Device]] = [*sorted(activity.devices.items())]
    found = []
    for number, device in devices or [(None, activity.host)]:
        steps = steps_of(activity, device)
        found.append(
            RankTrace(
                where=where,
                rank=rank,
                world_size=world_size,
                device=number,
                steps=_steps(device, steps, tells=_tells(activity)),
                collectives=_collectives(device, steps.windows, activity),
                notes=(*notes, _LAGGING) if steps.lagging else notes,
                device_name=_device_name(stream.metadata, number),
            )
        )
    return found


_LAGGING = (
    "the device runs behind the host, so steps are as the device comes to them: from the first work "
    "launched in one to that of the next"
)


def _tells(activity: Activity) -> bool:
    """Whether the trace tells communication: not so where the host only launched that of devices unseen."""
    return bool(activity.devices) or not (activity.num_launches and not activity.host.communication.start)


def _notes(activity: Activity, *, is_cut: bool) -> Iterator[str]:
    if is_cut:
        yield "the file is cut before its end; what came before was read"
    if activity.num_odd:
        yield f"{activity.num_odd} events whose times are no numbers were left out"
    if not activity.devices and _tells(activity):
        yield (
            "only the host was traced: computation is the time in operators, communication that of the "
            "library's own threads, waiting for others included, and Python between operators counts as idle"
        )
    elif not activity.devices:
        yield (
            "only the host was traced, and it only launched the communication: profile with "
            "ProfilerActivity.CUDA to see it"
        )


def _identity(metadata: Mapping[str, Any], where: str) -> tuple[int | None, int | None]:
    """Rank and number of ranks: as the trace says, else the rank that the file's name says."""
    told = metadata.get("distributedInfo")
    told = told if isinstance(told, dict) else {}
    rank, world_size = (
        each if type(each) is int and each >= 0 else None
        for each in (told.get("rank"), told.get("world_size"))
    )
    named = _NAMED_RANK.search(where.rpartition("/")[2])
    return (int(named[1]) if rank is None and named else rank), world_size


def _device_name(metadata: Mapping[str, Any], number: int | None) -> str | None:
    """The name of a device by its number; None where the trace has none, or none of text."""
    told = metadata.get("deviceProperties")
    for each in told if isinstance(told, list) and number is not None else ():
        if isinstance(each, dict) and each.get("id") == number and isinstance(each.get("name"), str):
            return str(each["name"])[:_MOST_NAME]
    return None


def _steps(device: Device, steps: Steps, *, tells: bool) -> tuple[Step, ...]:
    windows = steps.windows
    kernels, copied = merged(device.compute.spans), merged(device.copy.spans)
    compute, communication = union(kernels, copied), merged(device.communication.spans)
    length = windows.end - windows.start
    busy = covered_ns(union(compute, communication), windows)
    computed = covered_ns(compute, windows)
    only_copied = computed - covered_ns(kernels, windows)
    communicated = covered_ns(communication, windows)
    return tuple(
        Step(
            number=number,
            step_s=_seconds(length[at]),
            compute_s=_seconds(computed[at]),
            communication_s=_seconds(communicated[at]) if tells else None,
            exposed_s=_seconds(busy[at] - computed[at]) if tells else None,
            idle_s=_seconds(length[at] - busy[at]),
            copy_s=_seconds(only_copied[at]),
        )
        for at, number in enumerate(steps.numbers)
    )


def _seconds(nanoseconds: np.int64) -> float:
    return int(nanoseconds) / 1_000_000_000


def _collectives(device: Device, windows: Spans, activity: Activity) -> Collectives:
    """Communications that begin in a step."""
    spans = device.communication.spans
    order = np.argsort(spans.start, kind="stable")
    start, took = spans.start[order], (spans.end - spans.start)[order]
    place = np.searchsorted(windows.start, start, side="right") - 1
    inside = (place >= 0) & (start < windows.end[np.maximum(place, 0)])
    names = {number: f"{what} {who}".strip() for (who, what), number in activity.names.items()}
    groups = (
        np.frombuffer(device.groups, dtype=np.int_)[order] if device.groups else np.zeros(0, dtype=np.int_)
    )
    return Collectives(
        group=tuple(names[int(each)] for each in groups[inside]),
        step=place[inside].astype(np.int64),
        start_s=(start - windows.start[np.maximum(place, 0)])[inside] / 1_000_000_000
        if windows.start.size
        else np.zeros(0),
        seconds=took[inside] / 1_000_000_000,
    )

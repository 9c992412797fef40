"""Where steps begin and end: as the host marks them, or as a device that runs behind it comes to them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from equipoise.bench.trace.activity import Activity, Device
from equipoise.bench.trace.overlap import Spans, covered_ns, union

# Work of a device after the last step's end on the host, as a share of its work, from which on its own steps
# are taken. In the samples a device that keeps up has 0 %, those that lag 13 % and 19 %.
LAGS_SHARE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of one device.

    numbers: None for a whole trace without marks. lagging: whether they are as the device came to them,
    because it ran behind the host.
    """

    numbers: tuple[int | None, ...]
    windows: Spans
    lagging: bool = False


def steps_of(activity: Activity, device: Device) -> Steps:
    """The steps of a device of a trace; the whole trace where no step is marked.

    Where a device lags, its busiest stream, which works in order, decides when it comes to a step; what other
    streams do meanwhile is of the step that the busiest is in.
    """
    if not activity.host_steps and not activity.device_steps:
        whole = (activity.first_ns or 0, activity.last_ns or 0)
        return Steps(numbers=(None,), windows=_spans([whole]))
    marked = activity.host_steps or activity.device_steps
    numbers, windows = _contiguous(marked)
    if device is activity.host or not _lags(device, windows):
        return Steps(numbers=numbers, windows=windows)
    if activity.device_steps.keys() >= marked.keys():
        own = _contiguous(activity.device_steps)[1]
        return Steps(numbers=numbers, windows=own, lagging=True)
    return Steps(numbers=numbers, windows=_as_launched(activity, device, windows) or windows, lagging=True)


def _spans(pairs: list[tuple[int, int]]) -> Spans:
    array = np.array(pairs, dtype=np.int64)
    return Spans(start=array[:, 0], end=array[:, 1])


def _contiguous(steps: Mapping[int, tuple[int, int]]) -> tuple[tuple[int, ...], Spans]:
    """Numbers and windows in order; each lasts to the next where that follows, so that no moment is lost."""
    numbers = sorted(steps, key=lambda number: (steps[number], number))
    pairs = [
        (
            steps[number][0],
            steps[numbers[at + 1]][0]
            if at + 1 < len(numbers) and numbers[at + 1] == number + 1
            else steps[number][1],
        )
        for at, number in enumerate(numbers)
    ]
    return tuple(numbers), _spans(pairs)


def work(device: Device) -> Spans:
    """All moments at which a device did anything, merged."""
    return union(union(device.compute.spans, device.copy.spans), device.communication.spans)


def _lags(device: Device, windows: Spans) -> bool:
    """Whether much of what a device did came after the host's last step had ended."""
    done = work(device)
    total = int((done.end - done.start).sum())
    if total == 0:
        return False
    after = Spans(start=windows.end[-1:], end=np.maximum(done.end[-1:], windows.end[-1:]))
    return bool(covered_ns(done, after)[0] > LAGS_SHARE * total)


def _as_launched(activity: Activity, device: Device, windows: Spans) -> Spans | None:
    """Each window from the first kernel launched in it to that of the next; None without launches."""
    launches = np.array(activity.launched.correlation, dtype=np.int64)
    order = np.argsort(launches, kind="stable")
    launches, moments = launches[order], activity.launched.times.spans.start[order]
    kernels = device.busiest
    numbers = np.array(kernels.correlation, dtype=np.int64)
    place = np.searchsorted(launches, numbers)
    known = place < launches.size
    known[known] = launches[place[known]] == numbers[known]
    if not known.any():
        return None
    spans = kernels.times.spans
    launched_at = moments[place[known]]
    order = np.argsort(launched_at, kind="stable")
    launched_at, start, end = launched_at[order], spans.start[known][order], spans.end[known][order]
    first_of_rest = np.minimum.accumulate(start[::-1])[::-1]
    last_so_far = np.maximum.accumulate(end)
    begins = np.searchsorted(launched_at, windows.start)
    ends = np.searchsorted(launched_at, windows.end)
    if begins.max() >= launched_at.size or (ends == 0).any():
        return None
    begin = first_of_rest[begins]
    # What was launched next, in a step or not, ends a step; where nothing was, the last work launched in it.
    nothing_next = ends == launched_at.size
    finish = np.where(
        nothing_next, last_so_far[ends - 1], first_of_rest[np.minimum(ends, launched_at.size - 1)]
    )
    return Spans(start=begin, end=np.maximum(finish, begin))

"""Reads profiler traces of ranks: the bounds of steps, and the parts of each step, which sum exactly."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.bench.trace.activity import Activity, DeviceActivity, Spans, covered_ns, merged, union
from equipoise.bench.trace.stream import TraceStream, pieces, stream_pieces
from equipoise.errors import DataError
from equipoise.files import resolved
from equipoise.runs import Progress, RowRejection, Tally
from equipoise.runs.sources import ARCHIVE_SUFFIXES, BLOCK_BYTES, has_tar_header, open_source
from equipoise.units import plural

# A device with a larger share of its work after the host's last step lags, so steps are measured on the
# device. In sample traces, the share is 0 % for a device that keeps up, and 13 % and 19 % for devices that
# lag.
LAGS_SHARE = 0.02


class Steps(Struct, frozen=True, kw_only=True):
    """The steps of one device.

    numbers: None for a whole trace without step marks. lagging: whether steps are measured on the device,
    because it ran behind the host.
    """

    numbers: tuple[int | None, ...]
    windows: Spans
    lagging: bool = False


def steps_of(activity: Activity, device: DeviceActivity) -> Steps:
    """Return the steps of a device of a trace; the whole trace as one step if none is marked.

    If a device lags, the steps are bounded by the kernels of its busiest stream, which run in order. Work of
    other streams counts to the step during which it runs.
    """
    if not activity.host_steps and not activity.device_steps:
        whole = (activity.first_ns or 0, activity.last_ns or 0)
        return Steps(numbers=(None,), windows=_spans([whole]))
    marked = activity.host_steps or activity.device_steps
    numbers, windows = _contiguous(marked)
    if device is activity.host or not _lags(device, windows):
        return Steps(numbers=numbers, windows=windows)
    if activity.device_steps.keys() >= marked.keys():
        on_device = _contiguous(activity.device_steps)[1]
        return Steps(numbers=numbers, windows=on_device, lagging=True)
    return Steps(numbers=numbers, windows=_as_launched(activity, device, windows) or windows, lagging=True)


def _spans(pairs: list[tuple[int, int]]) -> Spans:
    array = np.array(pairs, dtype=np.int64)
    return Spans(start=array[:, 0], end=array[:, 1])


def _contiguous(steps: Mapping[int, tuple[int, int]]) -> tuple[tuple[int, ...], Spans]:
    """Return numbers and windows in order; a window ends where the next consecutive step begins."""
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


def work(device: DeviceActivity) -> Spans:
    """Return the merged spans in which a device did anything."""
    return union(union(device.compute.spans, device.copy.spans), device.communication.spans)


def _lags(device: DeviceActivity, windows: Spans) -> bool:
    """Return whether more than LAGS_SHARE of a device's work ran after the host's last step."""
    done = work(device)
    total = int((done.end - done.start).sum())
    if total == 0:
        return False
    after = Spans(start=windows.end[-1:], end=np.maximum(done.end[-1:], windows.end[-1:]))
    return bool(covered_ns(done, after)[0] > LAGS_SHARE * total)


def _as_launched(activity: Activity, device: DeviceActivity, windows: Spans) -> Spans | None:
    """Return windows from the first kernel launched in each to that of the next; None without launches."""
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
    # A step ends with the next launched work, in a step or not; if there is none, with its own last work.
    nothing_next = ends == launched_at.size
    finish = np.where(
        nothing_next, last_so_far[ends - 1], first_of_rest[np.minimum(ends, launched_at.size - 1)]
    )
    return Spans(start=begin, end=np.maximum(finish, begin))


_MOST_NAME = 256
_NAMED_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)


class TraceStep(Struct, frozen=True, kw_only=True):
    """One step: step_s = compute_s + exposed_s + idle_s.

    number: of ProfilerStep#; None for the whole trace. communication_s: total communication; exposed_s: the
    part that does not overlap with computation; both None if not traced. copy_s: the part of compute_s in
    which only copies ran.
    """

    number: int | None
    step_s: float
    compute_s: float
    communication_s: float | None
    exposed_s: float | None
    idle_s: float
    copy_s: float


class Collectives(Struct, frozen=True, kw_only=True):
    """The communications of one rank in its steps, ordered by start; arrays of (n_communications,).

    group: the operation and its ranks, as text. step: index into the rank's steps. start_s: since the start
    of the step; communications may overlap. seconds: durations.
    """

    group: tuple[str, ...]
    step: NDArray[np.int64]
    start_s: NDArray[np.float64]
    seconds: NDArray[np.float64]


def to_nanoseconds(seconds: float) -> float:
    """Return seconds rounded to nanoseconds, the resolution of traces."""
    return round(seconds, 9)


class RankTrace(Struct, frozen=True, kw_only=True):
    """The steps and communications of one device of one rank.

    where: the file. device: None if only the host was traced. device_name: as in the trace. process: the
    process that marked its steps. notes: for readers of the numbers.
    """

    where: str
    rank: int | None
    world_size: int | None
    device: int | None
    steps: tuple[TraceStep, ...]
    collectives: Collectives
    notes: tuple[str, ...] = ()
    device_name: str | None = None
    process: int | None = None

    def total_s(self, part: str) -> float | None:
        """Return the sum of a part over the steps; None if a step lacks it."""
        values = [getattr(step, part) for step in self.steps]
        return None if any(value is None for value in values) else to_nanoseconds(math.fsum(values))

    @property
    def mean_step(self) -> TraceStep:
        """The mean of the steps, by part."""
        totals = {part: self.total_s(part) for part in TraceStep.__struct_fields__ if part != "number"}
        means = {part: None if total is None else total / len(self.steps) for part, total in totals.items()}
        return replace(self.steps[0], number=None, **means)


def rank_traces(pieces: Iterator[bytes], where: str) -> list[RankTrace]:
    """Return the trace of one file, one record per device, usually one.

    pieces: the bytes of the file in order. where: the file's name, for messages; it may include the rank.
    Raises DataError if it is not a trace, or if nothing in it took time.
    """
    stream = TraceStream(pieces, where)
    activity = Activity(where=where)
    for batch in stream.batches():
        activity.add(batch)
    if activity.first_ns is None:
        raise DataError(f"{where}: {_why_unusable(activity, is_cut=stream.is_cut)}")
    if stream.is_cut:
        # Operators precede kernels and neither are in time order, so the missing events affect every step.
        raise DataError(
            f"{where}: cut before its end, or not JSON to its end; events are not written in order of time, "
            "so that no step is whole: copy or export it again"
        )
    notes = tuple(_notes(activity))
    rank, world_size = _identity(stream.metadata, where)
    devices: list[tuple[int | None, DeviceActivity]] = [*sorted(activity.devices.items())]
    found = []
    for number, device in devices or [(None, activity.host)]:
        steps = steps_of(activity, device)
        found.append(
            RankTrace(
                where=where,
                rank=rank,
                world_size=world_size,
                device=number,
                steps=_steps(device, steps, has_communication=_has_communication(activity)),
                collectives=_collectives(device, steps.windows, activity),
                notes=(*notes, _LAGGING) if steps.lagging else notes,
                device_name=_device_name(stream.metadata, number),
                process=activity.process,
            )
        )
    return found


def _why_unusable(activity: Activity, *, is_cut: bool) -> str:
    """Return the reason why nothing in a trace is usable, and what was expected."""
    if activity.num_odd:
        return (
            f"none of its {plural(activity.num_odd, 'event')} has times that can be used; expected ts and "
            "dur as numbers of microseconds, dur not below 0"
        )
    if is_cut:
        return "cut, or not JSON, before its first kernel, operator or step; expected the whole file"
    return "no kernel, operator or step in the trace; expected spans (ph X) of torch.profiler"


_LAGGING = (
    "the device runs behind the host, so a step is measured on the device: from the first "
    "work launched in one step to that of the next"
)


def _has_communication(activity: Activity) -> bool:
    """Return whether communication was traced; not so if the host only launched it on untraced devices."""
    return bool(activity.devices) or not (activity.num_launches and not activity.host.communication.start)


def _notes(activity: Activity) -> Iterator[str]:
    if activity.num_odd:
        yield f"{plural(activity.num_odd, 'event')} without numeric times: excluded"
    if not activity.devices and _has_communication(activity):
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
    """Return rank and number of ranks from the trace, or else the rank from the file's name.

    Raises DataError if the rank is not below the number of ranks.
    """
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank, world_size = (
        each if type(each) is int and each >= 0 else None
        for each in (info.get("rank"), info.get("world_size"))
    )
    if rank is not None and world_size and rank >= world_size:
        raise DataError(
            f"{where}: distributedInfo has rank {rank} of {world_size}; expected at most {world_size - 1}"
        )
    named = _NAMED_RANK.search(where.rpartition("/")[2])
    return (int(named[1]) if rank is None and named else rank), world_size


def _device_name(metadata: Mapping[str, Any], number: int | None) -> str | None:
    listed = metadata.get("deviceProperties")
    for each in listed if isinstance(listed, list) and number is not None else ():
        if isinstance(each, dict) and each.get("id") == number and isinstance(each.get("name"), str):
            return str(each["name"])[:_MOST_NAME]
    return None


def _steps(device: DeviceActivity, steps: Steps, *, has_communication: bool) -> tuple[TraceStep, ...]:
    windows = steps.windows
    kernels, copied = merged(device.compute.spans), merged(device.copy.spans)
    compute, communication = union(kernels, copied), merged(device.communication.spans)
    length = windows.end - windows.start
    busy = covered_ns(union(compute, communication), windows)
    computed = covered_ns(compute, windows)
    only_copied = computed - covered_ns(kernels, windows)
    communicated = covered_ns(communication, windows)
    return tuple(
        TraceStep(
            number=number,
            step_s=_seconds(length[at]),
            compute_s=_seconds(computed[at]),
            communication_s=_seconds(communicated[at]) if has_communication else None,
            exposed_s=_seconds(busy[at] - computed[at]) if has_communication else None,
            idle_s=_seconds(length[at] - busy[at]),
            copy_s=_seconds(only_copied[at]),
        )
        for at, number in enumerate(steps.numbers)
    )


def _seconds(nanoseconds: np.int64) -> float:
    return int(nanoseconds) / 1_000_000_000


def _collectives(device: DeviceActivity, windows: Spans, activity: Activity) -> Collectives:
    """Return the communications that begin in a step."""
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


SUFFIXES = (".json", ".json.gz", ".json.zst")
# The largest systems have some ten thousand ranks; a folder with more files is not a folder of traces.
MAX_FILES = 100_000


class Traces(Struct, frozen=True, kw_only=True):
    """The traces that were read, one record per rank and device in order of ranks, and the rejected ones.

    unread: every rejected trace with its reason; these are counted in `rejected` too.
    """

    ranks: tuple[RankTrace, ...]
    rejected: Tally
    unread: tuple[RowRejection, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each rejected trace, and for each kind of other rejections."""
        kinds = {each.kind for each in self.unread}
        others = [each for kind, each in self.rejected.kinds.items() if kind not in kinds]
        return (
            *(f"Not read: {each.detail}." for each in self.unread),
            *(f"{each.count} not read: {each.first.detail}." for each in others),
        )


def read_traces(paths: Sequence[Path], *, progress: Progress | None = None) -> Traces:
    """Return the traces in files, folders and archives; a file that is named twice counts once.

    Raises DataError with the first reason if none can be read.
    """
    found, rejected, unread = list[RankTrace](), Tally(), list[RowRejection]()
    first: DataError | None = None
    files = [*{resolved(each): each for path in paths for each in _files(path)}.values()]
    for number, path in enumerate(files):
        if progress is not None:
            progress(path.name, number, len(files))
        try:
            for where, content in _contents(path, rejected):
                found.extend(rank_traces(content, where))
        except DataError as err:
            first = first or err
            unread.append(RowRejection(kind="unreadable", where=str(path), detail=str(err)))
    if not found:
        named = ", ".join(str(path) for path in paths[:3])
        raise first or DataError(f"{named}: no trace in it; expected files that end in {', '.join(SUFFIXES)}")
    found.sort(key=lambda each: (each.rank is None, each.rank or 0, each.device or 0))
    ranks = tuple(_merged_by_rank(_of_one_job(found, unread), unread))
    rejected.extend(unread)
    return Traces(ranks=ranks, rejected=rejected, unread=tuple(unread))


def _of_one_job(traces: Sequence[RankTrace], unread: list[RowRejection]) -> list[RankTrace]:
    """Return the traces with the most common number of ranks; others are rejected as of another job."""
    sizes = Counter(each.world_size for each in traces if each.world_size is not None)
    ((size, _),) = sizes.most_common(1) or ((None, 0),)
    kept = [each for each in traces if each.world_size in {None, size}]
    first = next((each for each in kept if each.world_size == size), None)
    for each in traces:
        if first is not None and each.world_size not in {None, size}:
            other = f"rank {each.rank} of {each.world_size}; of another job than {first.where}, of {size}"
            unread.append(RowRejection(kind="other_job", where=each.where, detail=f"{each.where}: {other}"))
    return kept


def _difference(one: RankTrace, other: RankTrace) -> str | None:
    """Return the difference that shows that two files of a rank are of different jobs, or None."""
    for what, ours, theirs in (
        ("device", one.device_name, other.device_name),
        ("process", one.process, other.process),
    ):
        if None not in {ours, theirs} and ours != theirs:
            return f"{what} {ours}, where {other.where} has {theirs}"
    return None


def _merged_by_rank(traces: Sequence[RankTrace], unread: list[RowRejection]) -> Iterator[RankTrace]:
    """Yield one record per rank and device; a profiler with a schedule writes one file per cycle.

    A file that repeats a step of an earlier one is rejected as a copy or of another run; a file of another
    process or device is rejected as of another job.
    """
    of_rank: dict[tuple[int | None, int | None, str], RankTrace] = {}
    for each in traces:
        key = (each.rank, each.device, each.where if each.rank is None else "")
        before = of_rank.get(key)
        if before is None:
            of_rank[key] = each
            continue
        difference = _difference(each, before)
        if difference is not None:
            detail = f"{each.where}: rank {each.rank} has {difference}; of another job"
            unread.append(RowRejection(kind="other_job", where=each.where, detail=detail))
            continue
        numbers = {step.number for step in before.steps}
        again = [step.number for step in each.steps if step.number in numbers]
        if again:
            step = "steps without a number" if again[0] is None else f"step {again[0]}"
            detail = (
                f"{each.where}: rank {each.rank} has {step} in {before.where} too; of another run, or a copy"
            )
            unread.append(RowRejection(kind="same_rank", where=each.where, detail=detail))
            continue
        of_rank[key] = _with_steps(before, each)
    yield from of_rank.values()


def _with_steps(first: RankTrace, then: RankTrace) -> RankTrace:
    """Return a rank's trace extended by the steps of another file of that rank."""
    one, two = first.collectives, then.collectives
    return replace(
        first,
        steps=(*first.steps, *then.steps),
        notes=tuple(dict.fromkeys((*first.notes, *then.notes))),
        collectives=Collectives(
            group=(*one.group, *two.group),
            step=np.concatenate([one.step, two.step + len(first.steps)]),
            start_s=np.concatenate([one.start_s, two.start_s]),
            seconds=np.concatenate([one.seconds, two.seconds]),
        ),
    )


def _files(path: Path) -> list[Path]:
    """Return the file, or the traces and archives in a folder."""
    if not path.is_dir():
        return [path]
    files = sorted(
        each
        for each in path.rglob("*")
        if each.name.lower().endswith((*SUFFIXES, *ARCHIVE_SUFFIXES)) and each.is_file()
    )
    if len(files) > MAX_FILES:
        raise DataError(f"{path}: {len(files):,} files; at most {MAX_FILES:,} traces are read")
    return files


def _contents(path: Path, rejected: Tally) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield name and content of the trace in a file, or of each trace in an archive."""
    content = pieces(path)
    first = next(content, b"")
    if not has_tar_header(first[:BLOCK_BYTES]):
        yield str(path), chain([first], content)
        return
    source, has_trace = open_source(path), False
    for blob in source.files(lambda name, _: name.lower().endswith(SUFFIXES)):
        where, has_trace = f"{path}:{blob.path}", True
        yield where, stream_pieces(BytesIO(blob.data), len(blob.data), where=where)
    rejected.extend(source.rejections)
    if not has_trace:
        why = "".join(f"; {each.where}: {each.detail}" for each in source.rejections[:1])
        raise DataError(f"{path}: no trace in it; expected files that end in {', '.join(SUFFIXES)}{why}")

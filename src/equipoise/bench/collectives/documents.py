"""JSON documents of timed collectives: those written here, and those of nccl-tests -J."""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from statistics import median
from threading import Event, Thread
from typing import Any

import orjson
from msgspec.structs import replace

from equipoise.bench.collectives import (
    BY_NAME,
    OPERATIONS,
    WIDTH_BYTES,
    CollectiveRun,
    CollectiveRuns,
    CollectivesTask,
    Timing,
    bus_fraction,
)
from equipoise.bench.collectives.text import (
    PROGRAMS,
    Printed,
    PrintedLog,
    PrintedRow,
    PrintedTable,
    Side,
    timing_of,
)
from equipoise.bench.environment import shared_core_sets
from equipoise.bench.launchers import SO_FAR, Launcher, LaunchJob, read_document
from equipoise.errors import DataError, EvidenceError
from equipoise.runs import Tally
from equipoise.units import MICROSECOND_S, SI_PREFIXES, listed

MEASURED_SCHEMA = "equipoise.timed_collectives/1"
_MOST_RANKS = 1_000_000
_MOST_NAMED = 4


def result_of(row: Mapping[str, Any], num_ranks: int) -> dict[str, Any]:
    """One result of the document: a size of an operation, in one start of the processes.

    row: as communication_rank.py leaves it, with `start`.
    """
    operation, size = row["operation"], row["payload_bytes"]
    seconds = median(row["seconds"])
    known = BY_NAME[operation]
    rate = size / seconds / SI_PREFIXES["G"]
    return {
        "operation": operation,
        "start": row["start"],
        "size": size,
        "count": size // WIDTH_BYTES // (num_ranks if known.is_cut else 1),
        "type": "float",
        "redop": "sum" if known.reduces else None,
        "in_place" if operation in {"all_reduce", "broadcast"} else "out_of_place": {
            "time": seconds / MICROSECOND_S,
            "alg_bw": rate,
            "bus_bw": rate * bus_fraction(operation, num_ranks),
            "nwrong": row["num_wrong"],
        },
        "num_calls": row["num_calls"],
        "is_steady": row["is_steady"],
        "cpu_fraction": median(row["cpu_fraction"]),
        "rounds_s": row["seconds"],
    }


def reading_in(document: Mapping[str, Any], *, where: str) -> CollectiveRuns:
    """The runs of a document: one an operation.

    where: names it. Raises DataError for a document of another form.
    """
    rejected, notes = Tally(), list[str]()
    by_operation: dict[str, list[Timing]] = {}
    unsteady: list[str] = []
    try:
        num_ranks = _whole(document["num_ranks"])
        num_nodes = _whole(document["num_nodes"])
        for number, result in enumerate(document["results"], 1):
            timing = _timing(result, number, num_ranks, num_nodes)
            name = f"{timing.operation} of {timing.payload_bytes:,} bytes"
            if timing.num_wrong:
                detail = f"{name} had wrong results: its time is not used"
                rejected.refuse("wrong_results", f"{where}:{number}", detail)
                continue
            by_operation.setdefault(timing.operation, []).append(timing)
            if not result["is_steady"]:
                unsteady.append(name)
        for operation, reason in document["refused"].items():
            rejected.refuse(f"refused {operation}", where, f"{operation}: {str(reason)[:300]}")
        backend, device = str(document["backend"])[:16], document["device_name"]
        link = document.get("link")
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise DataError(
            f"{where}: {type(err).__name__}: {err}; expected what "
            "`equipoise collectives --measure --out` wrote"
        ) from err
    if unsteady:
        named = listed(dict.fromkeys(unsteady), _MOST_NAMED)
        notes.append(f"did not reach a steady time during warm-up: {named}")
    runs = [
        CollectiveRun(
            file=where,
            number=number,
            operation=operation,
            num_ranks=num_ranks,
            num_nodes=num_nodes,
            device=None if device is None else str(device)[:256],
            timings=tuple(timings),
            backend=backend,
            link=None if link is None else str(link)[:40],
        )
        for number, (operation, timings) in enumerate(by_operation.items(), 1)
    ]
    return CollectiveRuns(runs=tuple(runs), rejected=rejected, notes=tuple(notes))


def _timing(result: Mapping[str, Any], number: int, num_ranks: int, num_nodes: int) -> Timing:
    operation, share = result["operation"], float(result["cpu_fraction"])
    if operation not in OPERATIONS:
        raise ValueError(f"operation {str(operation)[:40]!r}")
    row = _row(number, result)
    times_us = [side.time_us.value for side in row.sides if side is not None]
    if not times_us or min(times_us) <= 0 or not row.payload_bytes > 0 or not 0 <= share < _MOST_RANKS:
        raise ValueError(f"result {number}")
    return replace(timing_of(row, operation, num_ranks, num_nodes), resolution=0.0, cpu_fraction=share)


def _whole(value: object) -> int:
    if type(value) is not int or not 0 < value <= _MOST_RANKS:
        raise ValueError(f"{value!r} instead of a whole number from 1 to {_MOST_RANKS:,}")
    return value


# Printed with %lf: six digits after the point, of microseconds and of GB/s.
_HALF = 5e-7
_SECRET = ("env",)
_INFINITE = re.compile(r"(?<=:)-?(?:inf|nan)(?=[,}])")
_MOST_PRINTED_BYTES = 2**62


def looks_like_json(text: str) -> bool:
    """Whether a file begins as a JSON object does."""
    return text.lstrip("\ufeff \t\r\n").startswith("{")


def document_in(text: str, *, where: str) -> dict[str, Any]:
    """The document without the environment it was written in.

    Raises DataError where the text is no JSON object, or neither of nccl-tests nor of `collectives`.
    """
    try:
        # A rate over no time is printed as `inf`, which JSON does not have.
        whole = orjson.loads(_INFINITE.sub("null", text.lstrip("\ufeff")))
    except (orjson.JSONDecodeError, RecursionError) as err:
        raise DataError(
            f"{where}: broken or cut JSON ({err}); expected the whole file of `nccl-tests -J`, or its "
            "text output"
        ) from err
    if not (isinstance(whole, dict) and isinstance(whole.get("results"), list)):
        raise DataError(
            f"{where}: JSON without a list `results`; expected what `nccl-tests -J FILE` or `equipoise "
            "collectives --measure --out FILE` writes, timings and not fits to them"
        )
    return {key: value for key, value in whole.items() if key not in _SECRET}


def tables_in_document(document: Mapping[str, Any]) -> PrintedLog:
    """The one table of a document; lines are counted by result, from 1."""
    config = document.get("config")
    config = config if isinstance(config, dict) else {}
    table = PrintedTable(programs=_programs(document), devices=_devices(config))
    found = PrintedLog(tables=[table])
    for number, result in enumerate(document["results"], 1):
        try:
            table.rows.append(_row(number, result))
            table.is_host_time |= any("cpu_time" in _side_of(result, key) for key in _SIDES)
        except (TypeError, ValueError, KeyError, OverflowError) as err:
            found.broken.append((number, f"a result whose {err} is not as nccl-tests writes it"))
    return found


_SIDES = ("out_of_place", "in_place")


def _programs(document: Mapping[str, Any]) -> list[str]:
    arguments = document.get("args")
    if not isinstance(arguments, list) or not arguments or not isinstance(arguments[0], str):
        return []
    name = PurePath(arguments[0][:4096]).name.partition("_perf")[0]
    return [PROGRAMS[name]] if name in PROGRAMS else []


def _devices(config: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """Host and name by rank. Of each process only the first rank is listed: the others are like it."""
    listed = config.get("devices")
    counts = [config.get(key, 1) for key in ("nthreads", "ngpus")]
    num_each = (
        counts[0] * counts[1] if all(type(each) is int and 0 < each <= _MOST_EACH for each in counts) else 1
    )
    found: dict[int, tuple[str, str]] = {}
    for device in listed if isinstance(listed, list) else ():
        if isinstance(device, dict) and type(device.get("rank")) is int:
            each = (str(device.get("hostname"))[:256], str(device.get("device_info"))[:256])
            found |= {device["rank"] + at: each for at in range(num_each) if device["rank"] + at not in found}
    return found


_MOST_EACH = 1024


def _row(number: int, result: Mapping[str, Any]) -> PrintedRow:
    sides = [_side(_side_of(result, key)) for key in _SIDES]
    wrongs = [_side_of(result, key).get("nwrong") for key in _SIDES]
    counted = [int(float(each)) for each in wrongs if each is not None]
    size, count = result["size"], result["count"]
    if not all(type(each) is int and 0 <= each < _MOST_PRINTED_BYTES for each in (size, count)):
        raise ValueError("size or count")
    root = result.get("root")
    redop = result.get("redop")
    return PrintedRow(
        line=number,
        payload_bytes=size,
        count=count,
        dtype=str(result["type"])[:16],
        redop=str(redop)[:16] if redop else None,
        root=None if root is None else int(root),
        sides=(sides[0], sides[1]),
        num_wrong=max(counted) if counted else None,
        is_checked=(wrongs[0] is not None, wrongs[1] is not None),
    )


def _side_of(result: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    side = result.get(key)
    if side is not None and not isinstance(side, dict):
        raise TypeError(key)
    return side or {}


def _side(values: Mapping[str, Any]) -> Side | None:
    """One side; None where it was not run, or took what is no number (`nan`)."""
    time_us = values.get("time", values.get("cpu_time"))
    bus = values.get("bus_bw")
    if not isinstance(time_us, int | float) or not isinstance(bus, int | float):
        return None
    return Side(
        time_us=Printed(value=float(time_us), half=_HALF),
        bus=Printed(value=float(bus), half=_HALF),
    )


DEFAULT_STARTS = 3
# A sweep of the default sizes at 1 Gbit/s takes two minutes; one call is bounded much more closely.
LIMIT_S = 1800.0
_LOOK_S = 0.2
_PARTS = 1000

Progress = Callable[[str, int, int], None]


def timed_document(
    task: CollectivesTask,
    launch_with: Launcher,
    *,
    num_starts: int = DEFAULT_STARTS,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What was measured, as one document with everything that was timed.

    num_starts: how often fresh processes measure all of it. An operation that hangs or fails is measured no
    more, and the others in new processes.
    Raises EvidenceError where nothing could be measured, with the reason.
    """
    refused: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    setting: dict[str, Any] = {}
    for start in range(num_starts):

        def show(what: str, done_fraction: float, start: int = start) -> None:
            if progress is not None:
                progress(what, round((start + done_fraction) * _PARTS), num_starts * _PARTS)

        todo = [each for each in task.operations if each not in refused]
        while todo:
            task = replace(task, operations=tuple(todo), seed=task.seed + start)
            found, failure = _one_start(task, launch_with, show)
            rows.extend({**row, "start": start + 1} for row in found.pop("rows"))
            refused |= found.pop("refused")
            operation = found.pop("now", [None])[0]
            setting |= found
            if failure is None:
                break
            if operation is None:
                raise EvidenceError(f"collectives could not be measured: {failure}")
            refused[operation] = failure
            done = {row["operation"] for row in rows if row["start"] == start + 1}
            todo = [each for each in todo if each not in refused and each not in done]
    if not rows:
        raise EvidenceError(
            "no collective could be measured",
            missing=tuple(f"{operation}: {reason}" for operation, reason in refused.items()),
        )
    return {
        "schema": MEASURED_SCHEMA,
        "launcher": launch_with.name,
        "num_ranks": task.num_ranks,
        **setting,
        "conditions": launch_with.conditions(_cores(task, launch_with)),
        "results": [result_of(row, task.num_ranks) for row in rows if row["operation"] not in refused],
        "refused": refused,
    }


def _cores(task: CollectivesTask, launch_with: Launcher) -> tuple[tuple[int, ...], ...]:
    return shared_core_sets(task.num_ranks) if launch_with.binds_here else ()


def _one_start(
    task: CollectivesTask, launch_with: Launcher, show: Callable[[str, float], None]
) -> tuple[dict[str, Any], str | None]:
    """What processes left that measured all of it, or up to where they failed; and why they did.

    show: called with what is done, and which share of all of it is.
    """
    # Other machines see the folder that a user works in rather than this one's own for passing things.
    place = None if launch_with.binds_here else Path.cwd()
    with tempfile.TemporaryDirectory(prefix="running-", dir=place, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        job = LaunchJob(
            task=task,
            folder=folder,
            core_sets=_cores(task, launch_with),
            limit_s=LIMIT_S,
            report=lambda message: show(message, 0.0),
        )
        with _watched(folder, show):
            outcome = launch_with.launch(job)
        if outcome.result is not None:
            return dict(outcome.result), None
        partial = dict(read_document(folder, SO_FAR) or {})
        partial.pop("done_fraction", None)
        return {"rows": [], "refused": {}, **partial}, outcome.reason


@contextmanager
def _watched(folder: Path, show: Callable[[str, float], None]) -> Iterator[None]:
    """Shows progress of rank 0, as often as one can read it."""
    over = Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            found = read_document(folder, SO_FAR) or {}
            if "now" in found:
                operation, payload_bytes = found["now"]
                show(f"{operation} of {payload_bytes:,} bytes", found["done_fraction"])

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

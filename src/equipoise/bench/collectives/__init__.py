"""Collective timings: the task, one timing, a run of a benchmark program; and measuring them here.

Files of timings, including those written here, are read by files.py.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any, ClassVar

from msgspec import Struct, convert
from msgspec.structs import replace

from equipoise.bench.environment import shared_core_sets
from equipoise.bench.launchers import SO_FAR, Launcher, LaunchJob, read_document
from equipoise.bench.trial import DEVICES
from equipoise.errors import EvidenceError, UsageError
from equipoise.files import shipped_table
from equipoise.runs import Progress, Tally
from equipoise.units import FP32_BYTES, GIB, MIB, MICROSECOND_S, SI_PREFIXES

DEFAULT_SIZES_BYTES = tuple(4**power for power in range(5, 14))  # 1 KiB to 64 MiB
MOST_RANKS = 1024
MOST_BYTES = 16 * GIB
_FACTORS = {"": 1, "K": 2**10, "M": MIB, "G": GIB}
_MOST_DIGITS = 12


class Operation(Struct, frozen=True, kw_only=True):
    """One operation of operations.toml, which documents the fields."""

    name: str
    programs: tuple[str, ...]
    ring_passes: int = 0
    is_cut: bool = False
    reduces: bool = False
    is_in_place: bool = True
    is_rooted: bool = False
    is_measured: bool = False


KNOWN = convert(
    shipped_table(Path(__file__).with_name("operations.toml"))["operations"], tuple[Operation, ...]
)
BY_NAME = {each.name: each for each in KNOWN}
OPERATIONS = tuple(each.name for each in KNOWN if each.is_measured)


class CollectivesTask(Struct, frozen=True, kw_only=True):
    """Operations and sizes to time between num_ranks ranks.

    sizes_bytes: full payloads on a rank, before or after the operation. num_rounds: how often each size is
    timed in one start of the processes, in a different order each time. limit_s: a call that takes longer has
    hung.
    """

    kind: ClassVar[str] = "collectives"

    num_ranks: int = 2
    operations: tuple[str, ...] = OPERATIONS
    sizes_bytes: tuple[int, ...] = DEFAULT_SIZES_BYTES
    num_rounds: int = 3
    seed: int = 0
    device: str = "cpu"
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise UsageError for invalid ranks, devices, sizes or operations."""
        if not 2 <= self.num_ranks <= MOST_RANKS:  # noqa: PLR2004 - a single rank has no peer
            raise UsageError(f"--ranks {self.num_ranks}: expected 2 to {MOST_RANKS:,}")
        if self.device not in DEVICES:
            raise UsageError(f"device {self.device!r}; expected one of {', '.join(DEVICES)}")
        for size in self.sizes_bytes:
            if not FP32_BYTES * self.num_ranks <= size <= MOST_BYTES:
                raise UsageError(
                    f"--sizes {size}: expected at least {FP32_BYTES * self.num_ranks:,} bytes, one "
                    f"element per rank, and at most {MOST_BYTES:,}"
                )
        for operation in self.operations:
            if operation not in OPERATIONS:
                raise UsageError(f"--ops {operation!r}: not measured; expected of {', '.join(OPERATIONS)}")


def sizes_of(text: str) -> tuple[int, ...]:
    """Return the bytes of a list of sizes such as `1K,64KiB,4M`, in powers of 1024 as in nccl-tests.

    >>> sizes_of("1K, 64KiB,4M,1G") == (2**10, 2**16, 2**22, 2**30)
    True
    """
    sizes = []
    for word in text.split(","):
        plain = word.strip().upper().removesuffix("B").removesuffix("I")
        digits, unit = plain.rstrip("KMG"), plain.lstrip("0123456789")
        if not digits.isdecimal() or len(digits) > _MOST_DIGITS or unit not in _FACTORS:
            raise UsageError(f"--sizes {word.strip()[:40]!r}: expected bytes such as 1024, 64K, 16M or 1G")
        sizes.append(int(digits) * _FACTORS[unit])
    return tuple(dict.fromkeys(sizes))


class Timing(Struct, frozen=True, kw_only=True):
    """One timed message size of one collective.

    payload_bytes: the `size` of nccl-tests, the full payload on a rank before or after. num_wrong: wrong
    elements in the result; None if not checked. resolution: half a unit of the last printed digit, relative
    to the time. cpu_fraction: cores used by a rank's process meanwhile; None if not measured.
    """

    payload_bytes: int
    out_of_place_s: float | None
    in_place_s: float | None
    num_wrong: int | None
    resolution: float = 0.0
    cpu_fraction: float | None = None

    @property
    def seconds(self) -> tuple[float, ...]:
        """The one or two measured times."""
        return tuple(each for each in (self.out_of_place_s, self.in_place_s) if each is not None)


class CollectiveRun(Struct, frozen=True, kw_only=True):
    """The timings of one run of a benchmark program, which may be pooled.

    operation: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast`, `send`, ... .
    num_nodes: None if not known. device: the accelerator as the program names it; None if it names none or
    several.
    num_copies: copies of the program that ran at the same time and disturbed each other.
    backend: of torch.distributed; None for nccl-tests and rccl-tests. link: stated rate of the network
    between the ranks, e.g. `1gbit`.
    """

    file: str
    number: int
    operation: str
    num_ranks: int
    num_nodes: int | None
    device: str | None
    timings: tuple[Timing, ...]
    num_copies: int = 1
    backend: str | None = None
    link: str | None = None


class CollectiveRuns(Struct, frozen=True, kw_only=True):
    """The runs read from files, the rejected rows with reasons, and notes for readers of the numbers."""

    runs: tuple[CollectiveRun, ...]
    rejected: Tally
    notes: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        """Number of usable rows."""
        return sum(len(run.timings) for run in self.runs)


def bus_fraction(operation: str, num_ranks: int) -> float:
    """Return the bytes on a ring's link per byte of payload, which is busbw / algbw.

    Source: NVIDIA/nccl-tests doc/PERFORMANCE.md.

    >>> bus_fraction("all_reduce", 8), bus_fraction("all_gather", 8), bus_fraction("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    passes = BY_NAME[operation].ring_passes if operation in BY_NAME else 0
    return passes * (num_ranks - 1) / num_ranks if passes else 1.0


MEASURED_SCHEMA = "equipoise.timed_collectives/1"
DEFAULT_STARTS = 3
# A sweep of the default sizes at 1 Gbit/s takes two minutes; a single call has a much lower limit.
LIMIT_S = 1800.0
_PROGRESS_POLL_S = 0.2
_PROGRESS_UNITS = 1000


def timed_document(
    task: CollectivesTask,
    launch_with: Launcher,
    *,
    num_starts: int,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure a task and return one document with all timings.

    num_starts: number of repetitions in fresh processes. An operation that hangs or fails is skipped from
    then on, and the others continue in new processes.
    Raises EvidenceError with the reason if nothing could be measured.
    """
    refused: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    setting: dict[str, Any] = {}
    for start in range(num_starts):

        def show(what: str, done_fraction: float, start: int = start) -> None:
            if progress is not None:
                progress(what, round((start + done_fraction) * _PROGRESS_UNITS), num_starts * _PROGRESS_UNITS)

        todo = [each for each in task.operations if each not in refused]
        while todo:
            asked = replace(task, operations=tuple(todo), seed=task.seed + start)
            found, failure = _one_start(asked, launch_with, show)
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
    """Run the task once; return its result, complete or up to a failure, and the reason of a failure.

    show: called with the current piece of work and the fraction that is done.
    """
    # Other machines are more likely to share the working directory than this machine's temporary folder.
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
        with _showing_progress(folder, show):
            outcome = launch_with.launch(job)
        if outcome.result is not None:
            return dict(outcome.result), None
        partial = dict(read_document(folder, SO_FAR) or {})
        partial.pop("done_fraction", None)
        return {"rows": [], "refused": {}, **partial}, outcome.reason


@contextmanager
def _showing_progress(folder: Path, show: Callable[[str, float], None]) -> Iterator[None]:
    """Show the progress of rank 0 periodically."""
    over = Event()

    def watch() -> None:
        while not over.wait(_PROGRESS_POLL_S):
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


def result_of(row: Mapping[str, Any], num_ranks: int) -> dict[str, Any]:
    """Return one result of the document: one size of an operation, in one start of the processes.

    row: a row of communication_rank.measure_collectives, with `start`.
    """
    operation, size = row["operation"], row["payload_bytes"]
    seconds = median(row["seconds"])
    known = BY_NAME[operation]
    rate = size / seconds / SI_PREFIXES["G"]
    return {
        "operation": operation,
        "start": row["start"],
        "size": size,
        "count": size // FP32_BYTES // (num_ranks if known.is_cut else 1),
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

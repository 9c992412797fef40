"""Collectives timed through torch.distributed by a launcher's processes, as a document like nccl-tests'.

Imports no torch: timed.py does, in the processes.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from equipoise.bench.collectives.documents import MEASURED_SCHEMA, reading_in, result_of
from equipoise.bench.collectives.records import CollectiveRuns, CollectivesTask
from equipoise.bench.environment import conditions, core_sets
from equipoise.bench.launchers.emulated import NAME as EMULATED
from equipoise.bench.launchers.folder import Launcher, LaunchJob, so_far
from equipoise.errors import EvidenceError

DEFAULT_STARTS = 3
# A sweep of the default sizes at 1 Gbit/s takes two minutes; one call is bounded much more closely.
LIMIT_S = 1800.0
_LOOK_S = 0.2
_PARTS = 1000

Progress = Callable[[str, int, int], None]


def measured(
    asked: CollectivesTask,
    launch_with: Launcher,
    *,
    num_starts: int = DEFAULT_STARTS,
    progress: Progress | None = None,
) -> CollectiveRuns:
    """The collectives between ranks that a launcher starts: a run an operation, with a time a size and start.

    Raises as `timed_document`.
    """
    return reading_in(timed_document(asked, launch_with, num_starts=num_starts, progress=progress), where="")


def timed_document(
    asked: CollectivesTask,
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
        left = [each for each in asked.operations if each not in refused]
        while left:
            told = replace(asked, operations=tuple(left), seed=asked.seed + start)
            found, failure = _one_start(told, launch_with, _part(progress, start, num_starts))
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
            left = [each for each in left if each not in refused and each not in done]
    if not rows:
        raise EvidenceError(
            "no collective could be measured",
            missing=tuple(f"{operation}: {reason}" for operation, reason in refused.items()),
        )
    return {
        "schema": MEASURED_SCHEMA,
        "launcher": launch_with.name,
        "num_ranks": asked.num_ranks,
        "link": link_of(launch_with.name),
        **setting,
        "conditions": conditions(
            core_sets=cores_of(asked.num_ranks) if launch_with.binds_here else (),
            launcher=launch_with.name,
            here=launch_with.binds_here,
        ),
        "results": [result_of(row, asked.num_ranks) for row in rows if row["operation"] not in refused],
        "refused": refused,
    }


def link_of(launcher_name: str) -> str | None:
    """The rate that a launcher's name states for the links between its hosts.

    >>> link_of("emulated:1gbit"), link_of("torchrun")
    ('1gbit', None)
    """
    kind, _, rate = launcher_name.partition(":")
    return rate if kind == EMULATED and rate else None


def _part(progress: Progress | None, start: int, num_starts: int) -> Progress | None:
    """The progress of one start as a share of all."""
    if progress is None:
        return None
    return lambda what, done, total: progress(what, start * total + done, num_starts * total)


def _one_start(
    asked: CollectivesTask, launch_with: Launcher, progress: Progress | None
) -> tuple[dict[str, Any], str | None]:
    """What processes left that measured all of it, or up to where they failed; and why they did."""
    # Other machines see the folder that a user works in rather than this one's own for passing things.
    place = None if launch_with.binds_here else Path.cwd()
    with tempfile.TemporaryDirectory(prefix="running-", dir=place, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        cores = cores_of(asked.num_ranks) if launch_with.binds_here else ()
        job = LaunchJob(trial=asked, folder=folder, core_sets=cores, limit_s=LIMIT_S)
        if progress is not None:
            heard = progress
            job = replace(job, tell=lambda said: heard(said, 0, _PARTS))
        with _watched(folder, progress):
            outcome = launch_with.launch(job)
        if outcome.result is not None:
            return dict(outcome.result), None
        left = dict(so_far(folder))
        left.pop("done_fraction", None)
        return {"rows": [], "refused": {}, **left}, outcome.reason


@contextmanager
def _watched(folder: Path, progress: Progress | None) -> Iterator[None]:
    """Tells progress what rank 0 is at, as often as one can read it."""
    if progress is None:
        yield
        return
    over = Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            found = so_far(folder)
            if "now" in found:
                operation, payload_bytes = found["now"]
                done = round(found["done_fraction"] * _PARTS)
                progress(f"{operation} of {payload_bytes} bytes", done, _PARTS)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def cores_of(num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """The cores of each rank: a share of its own where there are enough; else ranks share them."""
    cores = sorted(os.sched_getaffinity(0))
    if num_ranks > len(cores):
        return tuple((cores[rank % len(cores)],) for rank in range(num_ranks))
    return core_sets(num_ranks, most_ranks=num_ranks)

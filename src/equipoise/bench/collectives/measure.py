"""Collectives timed through torch.distributed by a launcher's processes, as a document like nccl-tests'."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from msgspec.structs import replace

from equipoise.bench.collectives import CollectivesTask
from equipoise.bench.collectives.documents import MEASURED_SCHEMA, result_of
from equipoise.bench.environment import shared_core_sets
from equipoise.bench.launchers.folder import SO_FAR, Launcher, LaunchJob, read_document
from equipoise.errors import EvidenceError

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
        todo = [each for each in task.operations if each not in refused]
        while todo:
            task = replace(task, operations=tuple(todo), seed=task.seed + start)
            found, failure = _one_start(task, launch_with, _part(progress, start, num_starts))
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


def _part(progress: Progress | None, start: int, num_starts: int) -> Progress | None:
    """The progress of one start as a share of all."""
    if progress is None:
        return None
    return lambda what, done, total: progress(what, start * total + done, num_starts * total)


def _one_start(
    task: CollectivesTask, launch_with: Launcher, progress: Progress | None
) -> tuple[dict[str, Any], str | None]:
    """What processes left that measured all of it, or up to where they failed; and why they did."""
    # Other machines see the folder that a user works in rather than this one's own for passing things.
    place = None if launch_with.binds_here else Path.cwd()
    with tempfile.TemporaryDirectory(prefix="running-", dir=place, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        job = LaunchJob(task=task, folder=folder, core_sets=_cores(task, launch_with), limit_s=LIMIT_S)
        if progress is not None:
            show = progress
            job = replace(job, report=lambda message: show(message, 0, _PARTS))
        with _watched(folder, progress):
            outcome = launch_with.launch(job)
        if outcome.result is not None:
            return dict(outcome.result), None
        partial = dict(read_document(folder, SO_FAR) or {})
        partial.pop("done_fraction", None)
        return {"rows": [], "refused": {}, **partial}, outcome.reason


@contextmanager
def _watched(folder: Path, progress: Progress | None) -> Iterator[None]:
    """Shows progress of rank 0, as often as one can read it."""
    if progress is None:
        yield
        return
    over = Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            found = read_document(folder, SO_FAR) or {}
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

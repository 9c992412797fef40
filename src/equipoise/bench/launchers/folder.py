"""The folder of a job: what its worker is told, and what its processes left there. No torch."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.bench.environment import num_memory_kills
from equipoise.bench.launchers.launcher import Job, Outcome

_JOB, _RESULT = "job.json", "result.json"
_TAIL_CHARS = 400
OUT_OF_MEMORY = "out of memory"


def prepare(job: Job) -> None:
    """Tell the worker what to run."""
    told = {"cell": job.cell.as_json(), "core_sets": [list(cores) for cores in job.core_sets]}
    (job.folder / _JOB).write_text(json.dumps(told), encoding="utf-8")


def told(folder: Path) -> Mapping[str, Any]:
    """What `prepare` wrote."""
    found: Mapping[str, Any] = json.loads((folder / _JOB).read_bytes())
    return found


def leave_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Leave what was measured; by rank 0."""
    aside = folder / f".{_RESULT}"
    aside.write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    aside.replace(folder / _RESULT)


def leave_reason(folder: Path, rank: int, reason: str) -> None:
    """Leave why a rank failed."""
    (folder / f"reason.{rank}").write_text(reason, encoding="utf-8")


def complaints_path(folder: Path, rank: int) -> Path:
    """Where standard error of a rank goes."""
    return folder / f"stderr.{rank}"


def outcome(job: Job, exit_codes: Mapping[int, int], *, ran_out: bool, kills_before: int | None) -> Outcome:
    """What came of a job whose processes have ended.

    exit_codes: of every process that ended by itself, by rank, in the order they ended. ran_out: whether
    the job was ended because its time was over.
    """
    left = job.folder / _RESULT
    if left.exists() and not any(exit_codes.values()) and not ran_out:
        return Outcome(result=json.loads(left.read_bytes()))
    if ran_out:
        return Outcome(reason=f"hung: ended after {job.limit_s:g} s (--limit gives it longer)")
    for rank, code in exit_codes.items():
        if code:
            return Outcome(reason=f"rank {rank} {_cause(job.folder, rank, code, kills_before)}")
    return Outcome(reason="ended without a result")


def _cause(folder: Path, rank: int, code: int, kills_before: int | None) -> str:
    """Why one process ended as it did."""
    stated = folder / f"reason.{rank}"
    if stated.exists():
        return stated.read_text(encoding="utf-8")
    if code == -signal.SIGKILL and kills_before is not None and (num_memory_kills() or 0) > kills_before:
        return f"{OUT_OF_MEMORY}: killed by the kernel"
    ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"{ended}{_last_words(complaints_path(folder, rank))}"


def _last_words(path: Path) -> str:
    """The last line a process wrote to standard error, after a colon."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_CHARS))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1].strip()}" if lines else ""

"""Process groups of a job: started, watched, and ended to the last. No torch."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.02
# How long other ranks may say what they saw, after one has failed.
GRACE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to start, with which environment, and where its output goes."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    complaints: Path


@contextmanager
def started(commands: Sequence[Command]) -> Iterator[tuple[subprocess.Popen[bytes], ...]]:
    """The processes, each in a group of its own; every group is killed on leaving, however that is."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with command.complaints.open("wb") as complaints:
                processes.append(
                    subprocess.Popen(
                        command.arguments,
                        env=dict(command.environment),
                        stdin=subprocess.PIPE,  # never written: its closing tells that this process is gone
                        stdout=complaints,
                        stderr=complaints,
                        start_new_session=True,
                    )
                )
        yield tuple(processes)
    finally:
        for process in processes:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process and its children, and take its exit code."""
    with suppress(ProcessLookupError):
        # Also after it ended by itself: its children may be there, and the group is theirs until the last.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()


def exit_codes(processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> tuple[dict[int, int], bool]:
    """Exit codes by rank, in the order of their ends, and whether time ran out before all had ended.

    Returns early when one has failed: others wait for it and would never end.
    """
    deadline = time.monotonic() + limit_s
    codes: dict[int, int] = {}
    while time.monotonic() < deadline:
        for rank, process in enumerate(processes):
            code = process.poll()
            if rank not in codes and code is not None:
                codes[rank] = code
                if code:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if len(codes) == len(processes):
            break
        time.sleep(_POLL_S)
    return codes, len(codes) < len(processes) and not any(codes.values())

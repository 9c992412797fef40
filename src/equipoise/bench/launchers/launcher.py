"""What a launcher is: it runs one cell in fresh processes and says what came of it. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol


class Task(Protocol):
    """What the processes of a job are to do: a Cell, or something else that a worker knows the kind of."""

    kind: ClassVar[str]

    @property
    def num_ranks(self) -> int:
        """How many processes."""

    @property
    def seed(self) -> int:
        """Of whatever is random."""

    @property
    def device(self) -> str:
        """Where they compute, as torch names it."""

    def as_json(self) -> dict[str, Any]:
        """It as told to the processes."""


def _nobody(_said: str) -> None:
    """Hear nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One cell, or another task, to run: where its processes leave what they say, on which cores, how long.

    folder: empty, the job's own. core_sets: one a rank; none where the launcher does not bind here.
    limit_s: it is ended after so many seconds. most_ranks: of the largest cell of its sweep, by which cores
    and devices are shared out; 0 for its own. tell: told what happens on the way, as "queued".
    """

    cell: Task
    folder: Path
    core_sets: tuple[tuple[int, ...], ...]
    limit_s: float
    most_ranks: int = 0
    tell: Callable[[str], None] = _nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a job measured, or why it failed: exactly one of both."""

    result: Mapping[str, Any] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A way to start the processes of a cell.

    why_not: why it cannot be used here, with what to do; None where it can.
    launch: runs a job to its end, whatever that is; no process of it is left when it returns. Raises
    DataError when nothing more can be run with it. binds_here: ranks run on this machine, on cores that the
    job names; otherwise their own machines choose.
    """

    name: str
    why_not: Callable[[], str | None]
    launch: Callable[[Job], Outcome]
    binds_here: bool = True

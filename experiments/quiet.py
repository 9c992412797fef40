"""How much of the processors other programs take while something is measured, and waiting until they rest."""

import os
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Measured = TypeVar("Measured")
# Of one core: what a kernel's own threads and a few shells that look for something now and then take.
MOST_OTHERS = 0.25
NUM_TRIES = 3
_WINDOW_S, _PATIENCE_S = 0.25, 3.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
# Of the line `cpu` of /proc/stat: user, nice, system, and what the host gave to other machines.
_BUSY = (1, 2, 3, 8)
# Of /proc/PID/stat after the name: user and system time.
_OWN = (11, 12)


def others_s(own: Sequence[int]) -> float:
    """Processor seconds until now of all but this process, its ended children, and those of these ids."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()
    busy_s = sum(int(fields[at]) for at in _BUSY) * _TICK_S
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        busy_s -= used.ru_utime + used.ru_stime
    for process in own:
        with suppress(FileNotFoundError):
            after = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            busy_s -= sum(int(after[at]) for at in _OWN) * _TICK_S
    return busy_s


def until_quiet(own: Sequence[int]) -> None:
    """Wait until others take next to nothing, or for 3 s."""
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s:
        before_s = others_s(own)
        time.sleep(_WINDOW_S)
        if others_s(own) - before_s <= MOST_OTHERS * _WINDOW_S:
            return


def in_quiet(measure: Callable[[], Measured], own: Sequence[int]) -> tuple[Measured, float]:
    """What was measured, and the part of one core that others took meanwhile: of three tries the quietest.

    own: ids of processes that measure. The first try in which others took at most 25 % of a core is the last;
    what was measured is not looked at.
    """
    tried: list[tuple[float, Measured]] = []
    while len(tried) < NUM_TRIES and (not tried or tried[-1][0] > MOST_OTHERS):
        until_quiet(own)
        begun_s, before_s = time.monotonic(), others_s(own)
        found = measure()
        tried.append(((others_s(own) - before_s) / (time.monotonic() - begun_s), found))
    taken, found = min(tried, key=lambda each: each[0])
    return found, taken

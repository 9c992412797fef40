"""How soon a thread runs once something wakes it: time slices, and cores that stay awake. Linux; no torch."""

import ctypes
import os
import platform
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from equipoise.units import MICROSECOND_S, NANOSECOND_S

# The least that Linux grants (6.12 and later; before, it is not asked).
SLICE_S = 100 * MICROSECOND_S
# A thread that is ready may have to wait for the clock's tick, 4 ms, while another spins for what it holds.
# An interruption takes some 40 us where a virtual machine lies within another: no more often than needed.
TICK_S = 1000 * MICROSECOND_S
_LATENCY = Path("/dev/cpu_dma_latency")
# Numbers of sched_setattr(2) and sched_getattr(2), for which the C library has no functions.
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}
# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
# Policies whose runtime is the length of a slice.
_SHARING = (0, 3)  # SCHED_OTHER, SCHED_BATCH


@contextmanager
def prompt_wakeups(cores: Iterable[int] = ()) -> Iterator[None]:
    """Have what is started inside run as soon as a message wakes it, as far as this machine lets one ask.

    Threads of one core take turns of some 3 ms: one that a message wakes waits for the turn of the one that
    computes, which a slice of 0.1 ms shortens; whatever is started inside inherits it. Root also keeps all
    cores from sleeping meanwhile: a sleeping virtual core may notice a message only at its next clock tick,
    4 ms later. An all-reduce of 64 KiB took 2 to 3 ms without, 0.3 to 0.6 ms with both
    (docs/experiments/0011-two-hosts.md). What is refused is left as it is.

    cores: where several threads of a rank share one. There a turn ends only at the clock's tick, and gloo's
    threads spin through it for what a waiting one holds: 4 ms with 250 ticks a second. A thread of this
    process interrupts them each millisecond (root), as a kernel of 1,000 ticks would.
    """
    before_s = time_slice_s()
    held: int | None = None
    over = Event()
    with suppress(OSError):
        held = os.open(_LATENCY, os.O_WRONLY)
        os.write(held, struct.pack("=i", 0))  # microseconds; holds until it is closed
    ticking = [Thread(target=_tick, args=(core, over), daemon=True) for core in sorted(set(cores))]
    try:
        for each in ticking:
            each.start()
        if before_s is not None:
            _take_slice(SLICE_S)
        yield
    finally:
        over.set()
        for each in ticking:
            each.join()
        if before_s is not None:
            _take_slice(before_s)
        if held is not None:
            os.close(held)


def _tick(core: int, over: Event) -> None:
    """Wake this thread on a core again and again: its scheduler then looks who waits. Ends where refused."""
    with suppress(OSError, AttributeError):
        os.sched_setaffinity(0, {core})  # of this thread alone
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        while not over.is_set():
            time.sleep(TICK_S)


def time_slice_s() -> float | None:
    """How long a turn of this thread on its core may last; None where the kernel does not say."""
    found = _attributes()
    if found is None or found[1] not in _SHARING:
        return None
    return found[5] * NANOSECOND_S or None


def _attributes() -> tuple[int, ...] | None:
    """The fields of this thread's `sched_attr`; None where there is no such call."""
    calls = _CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return None
    buffer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    refused = ctypes.CDLL(None).syscall(calls[1], 0, buffer, _ATTRIBUTES.size, 0)
    return None if refused else _ATTRIBUTES.unpack(buffer.raw)


def _take_slice(slice_s: float) -> None:
    """Give this thread, and what it starts from now on, turns of that length; policy and niceness stay."""
    found = _attributes()
    if found is not None:
        size, policy, flags, nice, priority, _, deadline, period = found
        runtime = round(slice_s / NANOSECOND_S)
        asked = _ATTRIBUTES.pack(size, policy, flags, nice, priority, runtime, deadline, period)
        ctypes.CDLL(None).syscall(_CALLS[platform.machine()][0], 0, asked, 0)

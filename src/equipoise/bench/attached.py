"""Processes that end with the one that started them, however that one ends. Linux; no torch."""

import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends.

    Covers what reading a pipe does not: a process that hangs and no longer runs any of its threads.
    """
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent or parent == 1:  # it ended before the kernel was asked
            os._exit(1)


def end_with_input() -> None:
    """End this process when its standard input is closed: the parent holds the other end and never writes."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()

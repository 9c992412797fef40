"""Ctrl-C, remembered: other libraries lose the KeyboardInterrupt or raise something else in its place."""

import signal
import sys
import threading
import warnings
from types import FrameType

_received: list[int] = []  # signal numbers, since the process began


def count_interrupts() -> None:
    """From now on, remember a Ctrl-C before KeyboardInterrupt is raised. Only the main thread can ask."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _remembered)


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed since `count_interrupts`."""
    return bool(_received)


def _remembered(number: int, _frame: FrameType | None) -> None:
    _received.append(number)
    # What is left half-done would say so, as coroutines and callbacks do that lose the exception.
    warnings.simplefilter("ignore")
    sys.unraisablehook = _quiet
    raise KeyboardInterrupt


def _quiet(_lost: object) -> None:
    """Say nothing of an exception that nobody can catch."""

"""Ctrl-C, remembered: other libraries lose the KeyboardInterrupt or raise something else in its place."""

import signal
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
    warnings.simplefilter("ignore")  # what is left half-done would say so, as coroutines do
    raise KeyboardInterrupt

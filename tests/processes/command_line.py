"""The command line in processes of their own, forked from one that has loaded it: loading takes longer than answers.

Arguments, streams, folder, environment and exit code are those of a process; signals do not reach it. A test that
kills or interrupts starts `python -m equipoise`, as do some others, so that this is not the only way that is tested.
"""

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE / "bin"
CAN_FORK = sys.platform == "linux"  # elsewhere plain processes do


@cache
def _loaded():
    """Start the process that has loaded everything; it ends with this one."""
    folder = tempfile.mkdtemp(prefix="eq-")
    address = os.path.join(folder, "loaded")  # noqa: PTH118 - an address, short as sockets want it
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    process = subprocess.Popen(
        [sys.executable, str(HERE / "loaded.py"), str(listening.fileno())],
        pass_fds=[listening.fileno()],
        stdin=subprocess.PIPE,  # never written: its end tells that this process is gone
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    listening.close()
    os.environ["EQUIPOISE_LOADED"] = address
    os.environ["EQUIPOISE_PYTHON"] = sys.executable

    def end():
        process.stdin.close()
        process.wait()
        os.unlink(address)  # noqa: PTH108
        os.rmdir(folder)  # noqa: PTH106

    atexit.register(end)


def programs():
    """A folder for PATH in which `equipoise` is what `command` starts."""
    if not CAN_FORK:
        return Path(sys.executable).parent
    _loaded()
    return FOLDER


def command(*arguments):
    """What to start, in place of `python -m equipoise ARGUMENTS`."""
    if not CAN_FORK:
        return [sys.executable, "-m", "equipoise", *map(str, arguments)]
    _loaded()
    # -I and -S: a client needs neither site-packages nor what the environment asks of Python.
    return [sys.executable, "-I", "-S", str(FOLDER / "equipoise"), *map(str, arguments)]


def equipoise(*arguments, env=(), **options):
    """A verb that has ended, at 80 columns; its streams as text."""
    return subprocess.run(
        command(*arguments),
        check=False,
        env={**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", **dict(env)},
        **{"capture_output": True, "text": True} | options,
    )

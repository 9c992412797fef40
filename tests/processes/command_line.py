"""The command line without waiting for it to load: in processes forked from one that has, or in the test's own.

Arguments, streams, folder, environment and exit code of a fork are those of a process; signals do not reach it. A test
that kills or interrupts starts `python -m equipoise`, as do some others, so that this is not the only way that is
tested. A test whose claim is about the answer alone uses `in_process`: what one question computes, the next one has.
"""

import atexit
import io
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest

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


def in_process(*arguments, cwd=None, env=()):
    """A verb that has ended, as `equipoise` gives it, run by this process."""
    from equipoise.cli.app import _exit_code  # noqa: PLC0415 - a client of the fork server needs it not

    printed, complained = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(complained):
        for name, value in {"COLUMNS": "80", **dict(env)}.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
            patch.syspath_prepend(str(cwd))
        code = _exit_code([str(each) for each in arguments])
    texts = []
    for stream in (printed, complained):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return subprocess.CompletedProcess(arguments, code, *texts)

"""The command line, or Python with torch, without waiting for it to load: in processes forked from one that has.

Arguments, streams, folder, environment and exit code of a fork are those of a process. Signals do not reach it, and it
is killed when what asked for it ends. A test that kills or interrupts the command starts `python -m equipoise`, as do
some others, so that this is not the only way that is tested. A test whose claim is about the answer alone uses
`in_process`: what one question computes, the next one has. Ranks are forked within `prepared_ranks`;
each way to start them is tested without it too.
"""

import atexit
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDER = HERE / "bin"
PYTHON = HERE / "with_torch" / "python"
INTERPRETER = sys.executable
CAN_FORK = sys.platform == "linux"  # elsewhere plain processes do


@cache
def _loaded(variable="EQUIPOISE_LOADED", *options):
    """Start a process that has loaded everything, its address in that variable; it ends with this one.

    Workers of xdist share that of the process that has started them.
    """
    if "PYTEST_XDIST_WORKER" in os.environ and variable in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="eq-")
    address = os.path.join(folder, "loaded")  # noqa: PTH118 - an address, short as sockets want it
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    process = subprocess.Popen(
        [INTERPRETER, str(HERE / "loaded.py"), str(listening.fileno()), *options],
        pass_fds=[listening.fileno()],
        stdin=subprocess.PIPE,  # never written: its end tells that this process is gone
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    listening.close()
    os.environ[variable] = address
    os.environ["EQUIPOISE_PYTHON"] = INTERPRETER

    def end():
        process.stdin.close()
        process.wait()
        os.unlink(address)  # noqa: PTH108
        os.rmdir(folder)  # noqa: PTH106

    atexit.register(end)


_TORCH = ("EQUIPOISE_LOADED_TORCH", "--torch")


def shared_by_workers():
    """Start what workers of xdist share, before they are started: loading takes 3 s of a core, with torch 7."""
    if CAN_FORK:
        _loaded()
        _loaded(*_TORCH)


def programs():
    """A folder for PATH in which `equipoise` is what `command` starts."""
    if not CAN_FORK:
        return Path(INTERPRETER).parent
    _loaded()
    return FOLDER


def command(*arguments):
    """What to start, in place of `python -m equipoise ARGUMENTS`."""
    if not CAN_FORK:
        return [INTERPRETER, "-m", "equipoise", *map(str, arguments)]
    _loaded()
    # -I and -S: a client needs neither site-packages nor what the environment asks of Python.
    return [INTERPRETER, "-I", "-S", str(FOLDER / "equipoise"), *map(str, arguments)]


def prepared_python():
    """A program that runs what this interpreter would, in processes forked from one that has loaded torch."""
    if not CAN_FORK:
        return INTERPRETER
    _loaded(*_TORCH)
    return str(PYTHON)


@contextmanager
def prepared_ranks():
    """What starts ranks, here and in commands that are run, has them forked from a process that has loaded torch.

    Loading it takes 2 s of a core for each rank. Ranks are killed, fail and hang as others do.
    """
    python = prepared_python()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python)
        patch.setenv("EQUIPOISE_EXECUTABLE", python)  # see loaded.py
        patch.setenv("PYTHON_EXEC", python)  # of torchrun
        yield


def equipoise(*arguments, env=(), **options):
    """A verb that has ended, at 80 columns; its streams as text."""
    return subprocess.run(
        command(*arguments),
        check=False,
        env={**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", **dict(env)},
        **{"capture_output": True, "text": True} | options,
    )


def document(ended, code=0):
    """The one document on standard output, as a strict parser reads it: no NaN, no infinity, one value."""
    assert ended.returncode == code, ended.stderr
    return json.loads(ended.stdout, parse_constant=pytest.fail)


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

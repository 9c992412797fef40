"""Functions called in a process of their own, on bytes that may end the process that reads them.

A damaged Parquet file can end the process that reads it (Polars 2.1 aborts on page headers that promise
impossible counts), and no `except` helps there.
"""

import resource
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module

from equipoise.errors import DataError
from equipoise.units import GIB

# A table of the largest size that is accepted needs a tenth of this, and is read in seconds.
MAX_MEMORY_BYTES = 4 * GIB
EXIT_REFUSED = 2
_LIMIT_S = 60.0
# Modules are found where this process finds them, whatever the working folder.
_BOOT = (
    "import sys; end = 2 + int(sys.argv[1]); sys.path[:] = sys.argv[2:end]; "
    "from equipoise.runs.probe import main; sys.exit(main(sys.argv[end:]))"
)


def answered(module: str, function: str, arguments: Sequence[str], data: bytes, *, where: str) -> str:
    """The text that a function returns in another process, called with the arguments and the bytes.

    where: the file, for messages. Raises DataError where it refuses the bytes or does not survive them.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _BOOT, str(len(sys.path)), *sys.path, module, function, *arguments],
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired as err:
        raise DataError(f"{where}: a damaged Parquet file: not read within {_LIMIT_S:.0f} s") from err
    text = done.stdout.decode("utf-8", errors="replace")
    if done.returncode:
        reason = f"reading it ended its reader (exit code {done.returncode})"
        raise DataError(text or f"{where}: a damaged Parquet file: {reason}")
    return text


def main(arguments: Sequence[str]) -> int:
    """Call the function; the exit code, with the reason on standard output when the bytes are refused."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    module, function, *rest = arguments
    try:
        text = getattr(import_module(module), function)(rest, sys.stdin.buffer.read())
    except DataError as err:
        sys.stdout.write(str(err))
        return EXIT_REFUSED
    sys.stdout.write(text)
    return 0

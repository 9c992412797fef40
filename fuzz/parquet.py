"""Damaged Parquet files, let loose on the process that reads them; a part of `make fuzz`.

Polars is no Python: there are no branches to be guided by, and damage may end the process. So each file is
made from a valid one by changing bytes, and read in a process of its own, forked from this one, with the
limits that it has for users. That a process ends by a signal is what it is for; a finding is one that hangs,
holds more memory than its limit, fails with a traceback, or tells more than it may.
"""

import argparse
import io
import os
import pickle
import random
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import polars as pl

from equipoise.errors import EquipoiseError
from equipoise.files import PROBE_MEMORY_BYTES, PROBE_REFUSED, probe
from equipoise.runs.readers.cells import MAX_FILE_BYTES
from equipoise.runs.readers.measurements import read_measurements

FINDINGS = Path(__file__).resolve().parent.parent / "tests" / "findings"
HANG_S = 20
_KIB = 1024
_MOST_READ = 20
_FAILED = 1
SHORTEST = 12
MENDED = 0.9
EDGES = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x01",
    b"\x00" * 4,
    b"\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x01",
)


def seeds() -> list[bytes]:
    """Valid tables, written in every way that Polars has."""
    num = 40
    plain = pl.DataFrame({"num_accelerators": [1, 2, 4, 8] * (num // 4), "step_s": [0.5] * num})
    rich = plain.with_columns(
        workload=pl.lit("bert"),
        accelerator=pl.Series(["a100", None, "é", "x" * 300] * (num // 4)),
        when=pl.lit("2025-01-01").str.to_date(),
        price=pl.lit("1.25").cast(pl.Decimal(10, 2)),
        many=pl.Series([[1, 2], [], None, [3]] * (num // 4)),
        kind=pl.Series(["a", "b"] * (num // 2)).cast(pl.Categorical),
    )
    ways = (
        {"compression": "uncompressed"},
        {"compression": "zstd"},
        {"compression": "snappy"},
        {"compression": "gzip"},
        {"compression": "lz4"},
        {"compression": "brotli", "row_group_size": 7},
        {"compression": "uncompressed", "statistics": "full", "data_page_size": 64},
    )
    found = []
    for frame in (plain, rich):
        for way in ways:
            buffer = io.BytesIO()
            frame.write_parquet(buffer, **way)
            found.append(buffer.getvalue())
    return found


def damaged(whole: bytes, drawn: random.Random) -> bytes:
    """The same with some bytes changed, most often in what describes the rest."""
    data = bytearray(whole)
    footer = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    for _ in range(drawn.choice((1, 1, 2, 4, 8))):
        first = drawn.choice((4, footer, footer))
        at = drawn.randrange(first, max(first + 1, len(data) - 8))
        drawn.choice(CHANGES)(data, at, drawn)
    if drawn.random() < MENDED and len(data) > SHORTEST:  # a length that is right leads further in
        data[-8:-4] = struct.pack("<I", max(0, min(len(data) - SHORTEST, len(data) - 8 - footer)))
    return bytes(data)


def _flip(data: bytearray, at: int, drawn: random.Random) -> None:
    data[at] ^= 1 << drawn.randrange(8)


def _anything(data: bytearray, at: int, drawn: random.Random) -> None:
    data[at] = drawn.randrange(256)


def _promise(data: bytearray, at: int, drawn: random.Random) -> None:
    """A number that promises much, in place of others."""
    edge = drawn.choice(EDGES)
    data[at : at + len(edge)] = edge


def _push(data: bytearray, at: int, drawn: random.Random) -> None:
    """The same, what follows moved."""
    data[at : at + 1] = drawn.choice(EDGES)


def _cut(data: bytearray, at: int, drawn: random.Random) -> None:
    del data[at : at + drawn.randrange(1, 16)]


def _repeat(data: bytearray, at: int, drawn: random.Random) -> None:
    other = drawn.randrange(4, max(5, len(data) - 24))
    data[at : at + 16] = data[other : other + 16]


CHANGES = (_flip, _anything, _promise, _push, _cut, _repeat)


def apart(make: Callable[[], list[bytes]]) -> list[bytes]:
    """What a function makes in a process of its own: Polars must not begin threads here, which forks."""
    with tempfile.TemporaryFile() as told:
        number = os.fork()
        if not number:
            try:
                pickle.dump(make(), told)
                told.flush()
            finally:
                os._exit(0)
        os.waitpid(number, 0)
        told.seek(0)
        found: list[bytes] = pickle.load(told)  # noqa: S301 - written by the lines above
        return found


def read(data: bytes) -> tuple[int, int, int]:
    """How a process that reads a file ends: its status, bytes of memory and bytes told."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as told:
        given.write(data)
        given.seek(0)
        number = os.fork()
        if not number:
            code = _FAILED
            try:
                os.dup2(given.fileno(), 0)
                os.dup2(told.fileno(), 1)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 - for this process alone
                signal.alarm(HANG_S)
                code = probe(["equipoise.runs.readers.cells", "csv_text", "table.parquet"])
                sys.stdout.flush()
            finally:
                os._exit(code)
        _, status, used = os.wait4(number, 0)
        return os.waitstatus_to_exitcode(status), used.ru_maxrss * _KIB, os.fstat(told.fileno()).st_size


def main() -> int:
    """Read damaged files for a time; 1 where something was found."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seconds", type=int, default=20)
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    drawn = random.Random(given.seed)  # noqa: S311 - the same for everybody
    valid, ends = apart(seeds), Counter[str]()
    most_bytes, found, ended = 0, [], []
    until = time.monotonic() + given.seconds
    while time.monotonic() < until:
        data = damaged(drawn.choice(valid), drawn)
        code, num_bytes, told = read(data)
        most_bytes = max(most_bytes, num_bytes)
        names = {0: "read", PROBE_REFUSED: "refused"}
        ends[names.get(code, f"signal {-code}" if code < 0 else f"exit {code}")] += 1
        wrong = code == -signal.SIGALRM or code > PROBE_REFUSED or code == _FAILED
        if wrong or num_bytes > PROBE_MEMORY_BYTES or told > MAX_FILE_BYTES:
            FINDINGS.mkdir(exist_ok=True)
            found.append(f"parquet-{sum(ends.values())}")
            (FINDINGS / found[-1]).write_bytes(data)
        elif code < 0:
            ended.append(data)
    # What ends a process must be a refusal for who asked.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.parquet"
        for data in ended[:_MOST_READ]:
            path.write_bytes(data)
            with suppress(EquipoiseError):
                read_measurements(path)
    listed = ", ".join(f"{name} {number}" for name, number in sorted(ends.items()))
    verdict = "FOUND" if found else "ok"
    memory = f"{most_bytes / 2**20:.0f} MiB at most"
    print(f"{'parquet':<16} {sum(ends.values()):>9} inputs  {listed}; {memory}  {verdict}", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

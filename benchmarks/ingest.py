"""Time of `equipoise ingest` on published rounds, against the official result summarizer on the same files.

    python benchmarks/ingest.py [--tree FOLDER] [--official PYTHON] [--repeat 3] [--no-archives]

New processes throughout, files warm in the page cache (one run beforehand is not counted). Wall time on the
monotonic clock from start to exit, tables written; memory is the sum of the resident sets of the process and
its workers, sampled. FOLDER is an unpacked v4.1, made from $EQUIPOISE_DATA unless given. PYTHON is an
interpreter that has mlperf-logging; the ratio is printed where there is one. What bounds ingest comes last.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import zstandard
from msgspec import Struct

ROUND = "4.1"
SAMPLE_S = 0.005
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
WINDOW_LOG = 31  # the archives were compressed with a long window


class Timing(Struct, frozen=True, kw_only=True):
    """Wall seconds of each repetition, and the largest memory of all."""

    wall_s: tuple[float, ...]
    peak_bytes: int

    def __str__(self) -> str:
        """Best, median and all repetitions: the spread shows how busy the machine was."""
        each = ", ".join(f"{wall_s:.2f}" for wall_s in self.wall_s)
        return (
            f"best {min(self.wall_s):.2f} s, median {statistics.median(self.wall_s):.2f} s of [{each}]; "
            f"peak {self.peak_bytes / 1e6:.0f} MB"
        )


def family_bytes(pid: int) -> int:
    """Resident bytes of a process and its descendants; 0 of those that are gone."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return 0
    return own + sum(family_bytes(int(child)) for child in children)


def timed(command: list[str], *, repeat: int, cwd: str | None = None) -> Timing:
    """Wall time and memory of a command, run in new processes one after the other."""
    walls, peak_bytes = [], 0
    for _ in range(repeat):
        begin_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=cwd)
        while process.poll() is None:
            peak_bytes = max(peak_bytes, family_bytes(process.pid))
            time.sleep(SAMPLE_S)
        walls.append(time.perf_counter() - begin_s)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return Timing(wall_s=tuple(walls), peak_bytes=peak_bytes)


def unpacked(archive: Path, into: Path) -> Path:
    """The folder of a round, unpacked from its archive."""
    with archive.open("rb") as packed:
        stream = zstandard.ZstdDecompressor(max_window_size=2**WINDOW_LOG).stream_reader(packed)
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            tar.extractall(into, filter="data")
    return into / archive.name.removesuffix(".tar.zst")


def ingest_command(paths: list[Path], into: str) -> list[str]:
    """The command a user types."""
    return [sys.executable, "-m", "equipoise", "ingest", *map(str, paths), "--into", into]


def official_s(python: str, tree: Path, into: str) -> float | None:
    """Wall seconds of the official summarizer, once; None where the interpreter does not have it."""
    probe = subprocess.run([python, "-c", "import mlperf_logging"], capture_output=True, check=False)
    if probe.returncode:
        return None
    command = [python, "-m", "mlperf_logging.result_summarizer", f"{tree}/{{*}}", "training", f"{ROUND}.0"]
    return min(timed(command, repeat=1, cwd=into).wall_s)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, help=f"an unpacked round v{ROUND}")
    parser.add_argument("--official", default=sys.executable, help="an interpreter with mlperf-logging")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-archives", action="store_true", help="leave out the thirteen archives")
    chosen = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    data = Path(os.environ.get("EQUIPOISE_DATA", root.parent / "shared" / "data")) / "mlperf"
    archives = sorted(data.glob("training_results_v*.tar.zst"))
    if chosen.tree is None and not archives:
        print(f"skipped: no rounds in {data}; set EQUIPOISE_DATA")
        return
    with tempfile.TemporaryDirectory() as scratch:
        tree = chosen.tree or unpacked(data / f"training_results_v{ROUND}.tar.zst", Path(scratch))
        size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
        command = ingest_command([tree], f"{scratch}/tables")
        timed(command, repeat=1)
        ours = timed(command, repeat=chosen.repeat)
        print(f"equipoise ingest, v{ROUND} folder ({size / 1e6:.0f} MB): {ours}")
        print(f"  targets: 2 s, 400 MB; {size / 1e6 / min(ours.wall_s):.0f} MB/s")
        theirs = official_s(chosen.official, tree, scratch)
        if theirs is None:
            print("  official summarizer: not run, mlperf-logging is missing (--official PYTHON)")
        else:
            print(f"  official summarizer: {theirs:.1f} s; ratio {theirs / min(ours.wall_s):.0f} (goal 100)")
        if archives and not chosen.no_archives:
            packed = timed(ingest_command(archives, f"{scratch}/tables"), repeat=1)
            print(f"equipoise ingest, {len(archives)} archives: {packed}")
            print("  target: 45 s")
    print(
        "bounds: finding marked lines, their JSON and counting lines (each a tenth of the CPU time), "
        "starting Python and Polars (0.3 s)"
    )


if __name__ == "__main__":
    main()

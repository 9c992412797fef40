"""What must not be in the wheel and the sdist of a folder, and what has to: `python .ci/contents.py dist`."""

import io
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl

ROOT = Path(__file__).resolve().parents[1]
STATEMENT = re.compile(rb"not\s+verified\s+by\s+the\s+MLCommons\s+Association")
# Paths of whoever built it, and hosts that packages were taken from: neither means anything elsewhere.
OF_A_MACHINE = re.compile(
    rb"%s\b|%s/|/home/\w|/Users/\w|pypi\.org|pythonhosted|registry\.npmjs|file:///"
    % (re.escape(bytes(ROOT)), re.escape(bytes(Path.home())))
)
TESTS = re.compile(r"(^|/)(tests?|fuzz|benchmarks|experiments)/|(^|/)(test_\w+|conftest)\.py$|\.zst$")
NEEDED = ("LICENSE", "plotly-basic.LICENSE.txt", "htmx.LICENSE.txt", "equipoise/data/README.md")


def members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names, without the folder of an sdist, and contents of the files of a distribution."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
    else:
        with tarfile.open(path) as sdist:
            for member in sdist:
                file = sdist.extractfile(member)
                if file is not None:
                    yield member.name.partition("/")[2], file.read()


def texts(name: str, data: bytes) -> bytes:
    """A file as text; of a table, every text in it."""
    if not name.endswith(".parquet"):
        return data
    table = pl.read_parquet(io.BytesIO(data)).select(pl.col(pl.String))
    return "\n".join(text for column in table for text in column.unique() if text).encode()


def wrong(path: Path) -> Iterator[str]:
    """What is wrong with a distribution."""
    found = dict(members(path))
    for name, data in found.items():
        # Of an sdist's pages on experiments, paths are part of what was done.
        if TESTS.search(name) and not name.startswith("docs/"):
            yield f"{name}: is of the tests"
        for hit in {*OF_A_MACHINE.findall(texts(name, data))}:
            yield f"{name}: names {hit.decode()}"
        if name.endswith(("METADATA", "PKG-INFO", "data/README.md")) and not STATEMENT.search(data):
            yield f"{name}: does not say that results are not verified by the MLCommons Association"
    for needed in NEEDED:
        if not any(f"/{name}".endswith(f"/{needed}") for name in found):
            yield f"{needed}: missing"


def main() -> int:
    """1 where something is wrong."""
    paths = sorted(path for path in Path(sys.argv[1]).iterdir() if path.name.endswith((".whl", ".tar.gz")))
    assert {path.suffix for path in paths} == {".whl", ".gz"}, f"{paths}: expected a wheel and an sdist"
    found = [f"{path.name}: {each}" for path in paths for each in wrong(path)]
    print("\n".join(found) or f"{', '.join(path.name for path in paths)}: nothing in them that should not be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

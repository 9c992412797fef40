"""What `equipoise doctor` looks at: the interpreter, the libraries, and programs that some verbs use."""

import os
import platform
import shutil
import sys
from importlib import metadata
from typing import Any

from equipoise import __version__
from equipoise.cli.output import clipped
from equipoise.runs import embedded

# What each library is for; all are installed with the package, so a missing one means a damaged installation.
_LIBRARIES = (
    ("numpy", "statistics and laws"),
    ("orjson", "reading logs, writing JSON"),
    ("polars", "the tables"),
    ("rich", "the report on a terminal"),
    ("scikit-learn", "groups of systems"),
    ("scipy", "intervals and fits"),
    ("typer", "the command line"),
    ("zstandard", "archives ending in .zst"),
)
_PROGRAMS = (("git", "ingest of bare repositories", "install git"),)


def checks() -> list[dict[str, Any]]:
    """One record a check: name, works, found, needed_for, and install (what to do; null when it works)."""
    return [
        _check("equipoise", __version__, "this command"),
        _check("python", platform.python_version(), "everything", fix="install Python 3.11 or newer"),
        _check("dataset", embedded.version(), "published evidence without any download"),
        *(_check(name, _version(name), what, fix=f"pip install {name}") for name, what in _LIBRARIES),
        *(_check(name, shutil.which(name), what, fix=fix) for name, what, fix in _PROGRAMS),
        _check("cores", str(_num_cores()), "ingest reads with all of them"),
        _check("terminal", _terminal(), "colour and progress; plain text elsewhere"),
    ]


def _check(name: str, found: str | None, needed_for: str, *, fix: str | None = None) -> dict[str, Any]:
    """One record."""
    works = found is not None
    return {
        "name": name,
        "works": works,
        "found": found,
        "needed_for": needed_for,
        "install": None if works else fix,
    }


def _version(library: str) -> str | None:
    """The installed version of a library, None when it is not there."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _num_cores() -> int:
    """Cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _terminal() -> str:
    """What standard output is."""
    return f"{shutil.get_terminal_size().columns} columns" if sys.stdout.isatty() else "not a terminal"


def text(found: list[dict[str, Any]]) -> str:
    """The checks, one a line, and how many do not work."""
    widest = max(len(check["name"]) for check in found)
    lines = []
    for check in found:
        mark = "ok     " if check["works"] else "missing"
        detail = check["found"] if check["works"] else check["install"]
        lines.append(clipped(f"{mark}  {check['name']:{widest}}  {detail}  ({check['needed_for']})"))
    failing = sum(not check["works"] for check in found)
    verdict = "Everything works." if not failing else f"{failing} of {len(found)} checks need a hand."
    return "\n".join((*lines, "", verdict)) + "\n"

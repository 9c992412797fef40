"""What `equipoise doctor` looks at: the interpreter, the libraries, and programs that some verbs use."""

import os
import platform
import shutil
import sys
from typing import Any

from equipoise import __version__
from equipoise.cli.checked import check, version
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
# What pip installs beyond the core, by the name of the extra: the libraries that tell whether it is there.
_EXTRAS = (
    ("torch", ("torch",), "counts models of your own"),
    ("bench", ("torch", "nvidia-ml-py"), "trains and times on this machine"),
    ("zoo", ("torch", "transformers"), "has the larger models by name"),
    ("slurm", ("torch", "submitit"), "trains on nodes of Slurm"),
    ("ray", ("torch", "ray"), "trains on nodes of Ray"),
)
_PROGRAMS = (("git", "ingest of bare repositories", "install git"),)


def checks() -> list[dict[str, Any]]:
    """One record a check: name, works, found, needed_for, and install (what to do; null when it works)."""
    return [
        check("equipoise", __version__, "this command"),
        check("python", platform.python_version(), "everything", fix="install Python 3.11 or newer"),
        check("dataset", embedded.version(), "published evidence without any download"),
        *(check(name, version(name), what, fix=f"pip install {name}") for name, what in _LIBRARIES),
        *(check(name, shutil.which(name), what, fix=fix) for name, what, fix in _PROGRAMS),
        check("cores", str(_num_cores()), "ingest reads with all of them"),
        check("terminal", _terminal(), "colour and progress; plain text elsewhere"),
    ]


def _num_cores() -> int:
    """Cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _terminal() -> str:
    """What standard output is."""
    return f"{shutil.get_terminal_size().columns} columns" if sys.stdout.isatty() else "not a terminal"


def text(found: list[dict[str, Any]], equipment: list[dict[str, Any]]) -> str:
    """The checks, one a line, how many do not work, and what there is to measure with."""
    failing = sum(not one["works"] for one in found)
    added = [_extra(name, what) for name, needed, what in _EXTRAS if not all(map(version, needed))]
    works = "The core works; extras that would add to it:" if added else "Everything works."
    verdict = works if not failing else f"{failing} of {len(found)} checks need a hand."
    usable = sum(one["works"] for one in equipment)
    widest = max(len(one["name"]) for one in (*found, *equipment))
    lines = [
        *(_line(one, widest) for one in found),
        "",
        verdict,
        *added,
        "",
        f"Measuring here (bench, collectives): {usable} of {len(equipment)} can be used.",
        "",
        *(_line(one, widest) for one in equipment),
    ]
    return "\n".join(lines) + "\n"


def _extra(name: str, what: str) -> str:
    """What an extra that is not there would add."""
    return clipped(f"pip install 'equipoise[{name}]': {what}")


def _line(one: dict[str, Any], widest: int) -> str:
    mark = "ok     " if one["works"] else "missing"
    detail = one["found"] if one["works"] else one["install"]
    return clipped(f"{mark}  {one['name']:{widest}}  {detail}  ({one['needed_for']})")

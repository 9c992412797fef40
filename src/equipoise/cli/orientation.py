"""The verbs of orientation: what there is, what a word means, and what works on this machine (`doctor`)."""

import os
import platform
import shutil
import sys
from importlib import metadata
from typing import Annotated, Any, Literal

import typer

from equipoise import __version__
from equipoise.cli.options import Also, AsJson, Data, Hardware, JsonOut, Workloads, catalogue_of
from equipoise.cli.output import answering, clipped
from equipoise.runs import embedded


def check(name: str, found: str | None, needed_for: str, *, fix: str | None = None) -> dict[str, Any]:
    """One record: it works where something was found; else `install` has what to do."""
    works = found is not None
    return {
        "name": name,
        "works": works,
        "found": found,
        "needed_for": needed_for,
        "install": None if works else fix,
    }


def version(library: str) -> str | None:
    """The installed version of a library, None when it is not there."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def equipment() -> list[dict[str, Any]]:
    """One record a check, like `checkup.checks`; what is missing hinders nothing else."""
    return [*_devices(), *_meters(), *_models(), *_launchers()]


def _devices() -> list[dict[str, Any]]:
    from equipoise.bench.devices import available_devices

    found = available_devices("auto")
    many = f"{found.num_devices} seen by torch, over NCCL or RCCL" if found.device == "cuda" else None
    return [
        check("cpu", f"{available_devices('cpu').num_devices} cores, over gloo", "bench --device cpu"),
        check("torch", version("torch"), "training and timing", fix="pip install 'equipoise[bench]'"),
        check("cuda", many, "bench --device cuda", fix="none seen; install a torch built for CUDA or ROCm"),
    ]


def _meters() -> list[dict[str, Any]]:
    """Called without an address each library reports whether it starts."""
    from equipoise.bench import counters

    processors, accelerators = counters.rapl_sources(), counters.nvml_sources([])
    counted = ", ".join(source.part for source in processors.found) or None
    started = None if accelerators.reason else f"nvidia-ml-py {version('nvidia-ml-py')}"
    return [
        check("nvml", started, "energy of NVIDIA's accelerators", fix=_reason_line(accelerators.reason)),
        check("rapl", counted, "energy of processors", fix=_reason_line(processors.reason)),
    ]


def _models() -> list[dict[str, Any]]:
    fix = "pip install 'equipoise[zoo]'"
    return [check("transformers", version("transformers"), "larger models by name", fix=fix)]


def _launchers() -> list[dict[str, Any]]:
    """A launcher works when it reports no reason against it; the reason says what to do."""
    from equipoise.bench.launchers.emulated import NAME, emulated
    from equipoise.bench.launchers.processes import TORCHRUN
    from equipoise.bench.launchers.ray_cluster import ray_cluster
    from equipoise.bench.launchers.slurm import slurm

    asked = (
        (TORCHRUN, "torch", "one node, or several"),
        (slurm({}), "submitit", "nodes of Slurm"),
        (ray_cluster({}), "ray", "nodes of Ray"),
        (emulated(f"{NAME}:1gbit"), None, "slow links, as namespaces of this machine; root"),
    )
    checks = []
    for launcher, library, what in asked:
        reason = launcher.why_not()
        works = "usable" if library is None else f"{library} {version(library)}"
        checks.append(check(launcher.name, None if reason else works, what, fix=_reason_line(reason)))
    return checks


def _reason_line(reason: str | None) -> str | None:
    """A reason in one line, without the name of what it is about, which stands next to it."""
    if reason is None:
        return None
    for about in ("accelerators: ", "processors: "):
        reason = reason.removeprefix(about)
    return " ".join(reason.split())


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
# What pip installs beyond the core, by the name of the extra: the libraries that show whether it is there.
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


_Kind = Literal["rounds", "workloads", "accelerators", "clusters", "strategies", "methods", "models", "laws"]


def list_(
    kind: Annotated[_Kind, typer.Argument(help="What to list.")],
    *,
    data: Data = None,
    also: Also = None,
    hardware: Hardware = None,
    workloads: Workloads = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """List rounds, workloads, accelerators, clusters, strategies, ways to train, models or laws."""
    catalogue = catalogue_of(hardware, workloads)
    with answering("list", as_json=as_json, json_out=json_out) as answer:
        from equipoise.cli.listing import LISTINGS
        from equipoise.runs import embedded
        from equipoise.runs.embedded import tables

        listing = next(listing for listing in LISTINGS if listing.kind == kind)
        rows = listing.rows(tables(data=data, also=also or ()), catalogue)
        first = [f"embedded dataset {embedded.version()}" if data is None else str(data)]
        sources = ", ".join([*first, *(str(folder) for folder in also or ())])
        answer.give(lambda: {kind: rows}, lambda: listing.text(rows) + listing.count(rows, sources))


def _terms_from(incomplete: str) -> list[str]:
    """Words of the glossary, for a shell that completes a word."""
    from equipoise import glossary

    return [term.name for term in glossary.terms() if term.name.startswith(incomplete)]


def explain(
    term: Annotated[
        str | None, typer.Argument(autocompletion=_terms_from, help="A word of the glossary.")
    ] = None,
    *,
    as_json: AsJson = False,
    json_out: JsonOut = None,
) -> None:
    """Explain a word in two sentences with its formula."""
    from equipoise import glossary

    with answering("explain", as_json=as_json, json_out=json_out) as answer:
        terms = glossary.terms() if term is None else (glossary.explain(term),)
        answer.give(
            lambda: {"terms": [glossary.fields(one) for one in terms]},
            lambda: "".join(f"{one.name}\n" for one in terms) if term is None else glossary.text(terms[0]),
        )


def doctor(*, as_json: AsJson = False, json_out: JsonOut = None) -> None:
    """Say what works here and what to install for the rest."""
    with answering("doctor", as_json=as_json, json_out=json_out) as answer:
        found, measuring = checks(), equipment()
        answer.give(lambda: {"checks": found, "measuring": measuring}, lambda: text(found, measuring))

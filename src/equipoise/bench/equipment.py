"""Checks of this machine (libraries, devices, meters, launchers) and the choice of a launcher."""

import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from equipoise import __version__
from equipoise.bench import counters
from equipoise.bench.devices import available_devices
from equipoise.bench.environment import usable_cores, version_of
from equipoise.bench.launchers import INPROCESS, TORCHRUN, Launcher
from equipoise.bench.launchers.hosts import over_hosts
from equipoise.bench.launchers.ray_cluster import NAME as RAY
from equipoise.bench.launchers.ray_cluster import ray_cluster
from equipoise.bench.launchers.slurm import NAME as SLURM
from equipoise.bench.launchers.slurm import slurm
from equipoise.errors import UsageError
from equipoise.files import shipped_table
from equipoise.runs import embedded

# Launchers that start the processes of a trial on this machine; Slurm and Ray start them on others.
LAUNCHERS = (INPROCESS, TORCHRUN)


def launcher(name: str, options: Mapping[str, str] | None = None) -> Launcher:
    """Return the launcher of that name; `auto` means the first of LAUNCHERS that is usable.

    options: for `slurm`, by sbatch's names; for `ray`, its address.
    Raises UsageError if the name is unknown, or with the reason if the launcher is not usable.
    """
    wanted = _named(name, options or {})
    reasons = [(one, one.why_not()) for one in wanted]
    usable = [one for one, reason in reasons if reason is None]
    if not usable:
        raise UsageError(f"launcher {wanted[0].name}: {reasons[0][1]}")
    return usable[0]


def _named(name: str, options: Mapping[str, str]) -> list[Launcher]:
    """Return the launchers that a name can mean, at least one."""
    hosts = over_hosts()
    if hosts is not None:
        if name in {"auto", "torchrun", "srun"}:
            return [hosts]
        raise UsageError(f"--launcher {name}, but this is {hosts.name}; leave it out")
    if name == SLURM:
        return [slurm(options)]
    if name == RAY:
        return [ray_cluster(options)]
    wanted = [one for one in LAUNCHERS if name in {"auto", one.name}]
    if not wanted:
        known = ", ".join((*(one.name for one in LAUNCHERS), SLURM, RAY))
        raise UsageError(f"launcher {name!r}; expected auto, {known}")
    return wanted


class Check(Struct, frozen=True, kw_only=True):
    """The check of one component. found: its version or facts, None if missing; install: the remedy then."""

    name: str
    works: bool
    found: str | None
    needed_for: str
    install: str | None


class Installation(Struct, frozen=True, kw_only=True):
    """The requirements of every verb, the equipment for measuring, and the missing extras of the package."""

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("missing_extras",)

    checks: tuple[Check, ...]
    measuring: tuple[Check, ...]
    missing_extras: tuple[Check, ...] = ()


def installation() -> Installation:
    """Return all checks; a missing component does not affect the other checks."""
    return Installation(
        checks=checks(),
        measuring=equipment(),
        missing_extras=tuple(
            check(name, None, extra["what"], fix=f"pip install 'equipoise[{name}]'")
            for name, extra in _KNOWN["extras"].items()
            if not all(map(version_of, extra["needs"]))
        ),
    )


def check(name: str, found: str | None, needed_for: str, *, fix: str | None = None) -> Check:
    """Return one check: the component works if something was found, otherwise `fix` is the remedy."""
    works = found is not None
    return Check(name=name, works=works, found=found, needed_for=needed_for, install=None if works else fix)


def equipment() -> tuple[Check, ...]:
    """Return the checks of what `bench` and `collectives` use to measure."""
    fix = "pip install 'equipoise[zoo]'"
    models = check("transformers", version_of("transformers"), "larger models by name", fix=fix)
    return (*_devices(), *_meters(), models, *_launchers())


def _devices() -> list[Check]:
    found = available_devices("auto")
    many = f"{found.num_devices} seen by torch, over NCCL or RCCL" if found.device == "cuda" else None
    return [
        check("cpu", f"{available_devices('cpu').num_devices} cores, over gloo", "bench --device cpu"),
        check("torch", version_of("torch"), "training and timing", fix="pip install 'equipoise[bench]'"),
        check("cuda", many, "bench --device cuda", fix="none seen; install a torch built for CUDA or ROCm"),
    ]


def _meters() -> list[Check]:
    """Return checks of the meters. Without an address, a library reports only whether it starts."""
    processors, accelerators = counters.rapl_sources(), counters.nvml_sources([])
    counted = ", ".join(source.part for source in processors.found) or None
    started = None if accelerators.reason else f"nvidia-ml-py {version_of('nvidia-ml-py')}"
    return [
        check("nvml", started, "energy of NVIDIA's accelerators", fix=_reason_line(accelerators.reason)),
        check("rapl", counted, "energy of processors", fix=_reason_line(processors.reason)),
    ]


def _launchers() -> list[Check]:
    """Return checks of the launchers. A launcher's reason for not working includes the remedy."""
    launchers = (
        (TORCHRUN, "torch", "one node, or several"),
        (slurm({}), "submitit", "nodes of Slurm"),
        (ray_cluster({}), "ray", "nodes of Ray"),
    )
    checks = []
    for launcher, library, what in launchers:
        reason = launcher.why_not()
        works = None if reason else f"{library} {version_of(library)}"
        checks.append(check(launcher.name, works, what, fix=_reason_line(reason)))
    return checks


def _reason_line(reason: str | None) -> str | None:
    """Return a reason in one line, without its subject, which is displayed next to it."""
    if reason is None:
        return None
    for about in ("accelerators: ", "processors: "):
        reason = reason.removeprefix(about)
    return " ".join(reason.split())


# Libraries and extras of the package, each with its purpose.
_KNOWN = shipped_table(Path(__file__).with_name("equipment.toml"))


def checks() -> tuple[Check, ...]:
    """Return the checks of what every verb needs."""
    libraries = _KNOWN["libraries"]
    return (
        check("equipoise", __version__, "this command"),
        check("python", platform.python_version(), "everything", fix="install Python 3.11 or newer"),
        check("dataset", embedded.version(), "published evidence without any download"),
        *(check(name, version_of(name), what, fix=f"pip install {name}") for name, what in libraries.items()),
        check("git", shutil.which("git"), "ingest of bare repositories", fix="install git"),
        check("cores", str(len(usable_cores())), "ingest reads with all of them"),
        check("terminal", _terminal(), "colour and progress; plain text elsewhere"),
    )


def _terminal() -> str:
    return f"{shutil.get_terminal_size().columns} columns" if sys.stdout.isatty() else "not a terminal"

"""Ways to start the processes of a trial: one record each, all in one tuple."""

from collections.abc import Mapping

from equipoise.bench.launchers.folder import JobOutcome, Launcher, LaunchJob
from equipoise.bench.launchers.hosts import over_hosts, served
from equipoise.bench.launchers.processes import INPROCESS, TORCHRUN
from equipoise.bench.launchers.ray_cluster import NAME as RAY
from equipoise.bench.launchers.ray_cluster import ray_cluster
from equipoise.bench.launchers.slurm import NAME as SLURM
from equipoise.bench.launchers.slurm import slurm
from equipoise.errors import UsageError

__all__ = ["LAUNCHERS", "JobOutcome", "LaunchJob", "Launcher", "launcher", "served"]

LAUNCHERS = (INPROCESS, TORCHRUN)


def launcher(name: str, options: Mapping[str, str] | None = None) -> Launcher:
    """The launcher of that name; `auto` is the first of this machine's that can be used here.

    options: of `slurm`, as sbatch names them; of `ray`, its address.
    Raises UsageError when there is none of that name, or when it cannot be used and why.
    """
    wanted = _named(name, options or {})
    reasons = [(one, one.why_not()) for one in wanted]
    usable = [one for one, reason in reasons if reason is None]
    if not usable:
        raise UsageError(f"launcher {wanted[0].name}: {reasons[0][1]}")
    return usable[0]


def _named(name: str, options: Mapping[str, str]) -> list[Launcher]:
    """The launchers that a name can stand for, at least one."""
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

"""One process a rank on this host, started here, joined by gloo over the loopback. No torch."""

import os
import sys
from importlib.util import find_spec

from equipoise.bench.environment import num_memory_kills
from equipoise.bench.launchers.folder import complaints_path, outcome, prepare
from equipoise.bench.launchers.launcher import Job, Launcher, Outcome
from equipoise.bench.launchers.processes import Command, exit_codes, started

_WORKER = "equipoise.bench.worker"


def why_not() -> str | None:
    """Why no process can train here; None where it can."""
    return None if find_spec("torch") else "torch is not installed: pip install 'equipoise[torch]'"


def command(job: Job, rank: int) -> Command:
    """How one rank is started."""
    environment = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"}
    environment |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.cell.num_ranks),
        "OMP_NUM_THREADS": str(len(job.core_sets[rank])),
        # Ranks of one host need no name of it, which may not resolve.
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return Command(
        arguments=(sys.executable, "-m", _WORKER, str(job.folder)),
        environment=environment,
        complaints=complaints_path(job.folder, rank),
    )


def _launch(job: Job) -> Outcome:
    prepare(job)
    kills_before = num_memory_kills()
    with started([command(job, rank) for rank in range(job.cell.num_ranks)]) as processes:
        codes, ran_out = exit_codes(processes, job.limit_s)
    return outcome(job, codes, ran_out=ran_out, kills_before=kills_before)


INPROCESS = Launcher(name="inprocess", why_not=why_not, launch=_launch)

"""The ranks of one host under torchrun's agent, which gives them address, rank and world size. No torch."""

import os
import sys

from equipoise.bench.environment import num_memory_kills
from equipoise.bench.launchers.folder import complaints_path, outcome, prepare
from equipoise.bench.launchers.inprocess import why_not
from equipoise.bench.launchers.launcher import Job, Launcher, Outcome
from equipoise.bench.launchers.processes import Command, exit_codes, started

# The agent itself must not outlive this process; its workers see to themselves.
_AGENT = (
    "from equipoise.bench.attached import end_with_parent; end_with_parent(); "
    "from torch.distributed.run import main; main()"
)


def _command(job: Job) -> Command:
    """How the agent is started."""
    arguments = (sys.executable, "-c", _AGENT, "--nnodes=1", f"--nproc-per-node={job.cell.num_ranks}")
    return Command(
        # Port 0: any that is free, so that sweeps do not meet.
        arguments=(
            *arguments,
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0",
            "--local-addr=127.0.0.1",
            "-m",
            "equipoise.bench.worker",
            str(job.folder),
        ),
        environment={
            **os.environ,
            "OMP_NUM_THREADS": str(len(job.core_sets[0])),
            "GLOO_SOCKET_IFNAME": "lo",
        },
        complaints=complaints_path(job.folder, 0),
    )


def _launch(job: Job) -> Outcome:
    prepare(job)
    kills_before = num_memory_kills()
    with started([_command(job)]) as processes:
        codes, ran_out = exit_codes(processes, job.limit_s)
    # The agent's exit code stands for that of the rank that failed first and said why.
    said = sorted(int(left.name.partition(".")[2]) for left in job.folder.glob("reason.*"))
    by_rank = {said[0] if said else agent: code for agent, code in codes.items()}
    return outcome(job, by_rank, ran_out=ran_out, kills_before=kills_before)


TORCHRUN = Launcher(name="torchrun", why_not=why_not, launch=_launch)

"""Each rank on an emulated host of its own, with one core, over a link of a stated rate. No torch."""

import re
from dataclasses import replace

from equipoise.bench.emulated import Host, hosts, why_not
from equipoise.bench.environment import num_memory_kills
from equipoise.bench.launchers import inprocess
from equipoise.bench.launchers.folder import SEAT, outcome, prepare
from equipoise.bench.launchers.launcher import Job, Launcher, Outcome
from equipoise.bench.launchers.processes import Command, exit_codes, started
from equipoise.bench.wakeups import prompt_wakeups
from equipoise.errors import UsageError
from equipoise.units import SI_PREFIXES

NAME = "emulated"
_RATE = re.compile(r"([0-9.]+)([kMGmg]?)bit")
# Alone in its namespace: any port is free.
_PORT = 29500


def emulated(name: str) -> Launcher:
    """The launcher of a name such as `emulated:1gbit`. Raises UsageError for a rate that is none."""
    _, _, rate = name.partition(":")
    found = _RATE.fullmatch(rate)
    try:
        link_bit_per_s = float(found[1]) * SI_PREFIXES[found[2].upper().replace("K", "k")] if found else 0.0
    except ValueError:
        link_bit_per_s = 0.0
    if not link_bit_per_s:
        raise UsageError(f"launcher {name!r}; expected the rate of the link, e.g. {NAME}:1gbit")

    def launch(job: Job) -> Outcome:
        return _launch(job, link_bit_per_s)

    return Launcher(name=f"{NAME}:{rate.lower()}", why_not=_why_not, launch=launch)


def _why_not() -> str | None:
    return inprocess.why_not() or why_not()


def _launch(job: Job, link_bit_per_s: float) -> Outcome:
    """One cell on hosts of its own: making and removing them takes a few hundredths of the start of torch."""
    job = replace(job, core_sets=tuple(cores[:1] for cores in job.core_sets))
    prepare(job)
    kills_before = num_memory_kills()
    cores = [core for own in job.core_sets for core in own]
    with hosts(link_bit_per_s=link_bit_per_s, num_hosts=job.cell.num_ranks) as made, prompt_wakeups(cores):
        commands = [_command(job, rank, made) for rank in range(job.cell.num_ranks)]
        with started(commands) as processes:
            codes, ran_out = exit_codes(processes, job.limit_s)
    return outcome(job, codes, ran_out=ran_out, kills_before=kills_before)


def _command(job: Job, rank: int, made: tuple[Host, ...]) -> Command:
    """How one rank is started on its host."""
    command = inprocess.command(job, rank)
    host = made[rank]
    meeting = {
        "LOCAL_RANK": "0",
        SEAT: str(rank),
        "MASTER_ADDR": made[0].address,
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": host.interface,
        # It warns that addresses have no names, and would be taken for the cause of a failure.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    return replace(
        command,
        arguments=(*host.command_prefix, *command.arguments),
        environment={**command.environment, **meeting},
    )

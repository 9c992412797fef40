"""The launcher for Slurm: each trial is a job submitted by submitit from a folder that all nodes share."""

import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from equipoise.bench.environment import no_torch, usable_cores
from equipoise.bench.launchers import (
    GRACE_S,
    End,
    JobOutcome,
    Launcher,
    LaunchJob,
    Order,
    Ranks,
    begin,
    instructions,
    lost_another,
    outcome,
    read_document,
    write_document,
)
from equipoise.bench.launchers.hosts import hostnames, shared_port, slurm_address
from equipoise.errors import UsageError
from equipoise.units import MINUTE_S

NAME = "slurm"
_POLL_S = 0.2
# The interval of queries grows, because queues can be long and all users share the controller.
_FIRST_QUERY_S, _LAST_QUERY_S, _QUERY_GROWTH = 0.5, 10.0, 1.3
# Added to the trial's time limit, for Slurm to start and end the job.
_MARGIN_S = 120.0
_GONE_S = 60.0
_ENDING_S = 40.0
_PENDING = "PENDING"
# Options of sbatch that are derived from the size of a trial or set by submitit.
_DERIVED = {"nodes", "ntasks", "output", "error", "array"}
_LIVING = {
    "CONFIGURING",
    "COMPLETING",
    "PENDING",
    "REQUEUED",
    "RESIZING",
    "RUNNING",
    "SIGNALING",
    "STAGE_OUT",
    "SUSPENDED",
}
_STATE = re.compile(r"[A-Z_]+")
_TASK_DIED = re.compile(r"error: (?P<host>\S+): tasks? (?P<task>\d+)[\d,-]*: (?P<how>.+)")
_NODE_DIED = re.compile(r"error: (?:Node failure on (?P<host>\S+)|Aborting, .* on node (?P<number>\d+))")

# Files: a task writes the first when its rank has ended; the driver updates the second while it is alive.
_END, _HEARTBEAT = "end.json", "heartbeat"
_HEARTBEAT_S = 5.0
# Caches of a shared file system may delay changes by a minute.
_PATIENCE_S = 150.0
_TASK_POLL_S = 0.05
_SIGNAL_S = 3.0


def slurm(options: Mapping[str, str]) -> Launcher:
    """Return the launcher that submits jobs with sbatch's options by name: partition, account, time.

    tasks_per_node: ranks per node; by default gpus_per_node if given, else 1.
    """
    chosen = {name.replace("-", "_"): value for name, value in options.items()}
    text = chosen.pop("tasks_per_node", chosen.pop("ntasks_per_node", chosen.get("gpus_per_node", "1")))
    derived = sorted(_DERIVED & set(chosen))
    if derived:
        raise UsageError(f"--slurm {derived[0]}: follows from --sizes and tasks_per_node; leave it out")
    if not text.isdecimal() or not int(text):
        raise UsageError(f"--slurm tasks_per_node={text}; expected a number from 1")

    def launch(job: LaunchJob) -> JobOutcome:
        return _launch(job, chosen, int(text))

    return Launcher(name=NAME, why_not=_why_not, launch=launch, binds_here=False)


def _why_not() -> str | None:
    if find_spec("submitit") is None:
        return "submitit is not installed: pip install 'equipoise[slurm]'"
    missing = [program for program in ("sbatch", "squeue", "scancel") if not which(program)]
    if missing:
        return f"needs {', '.join(missing)} of Slurm: run it on a node that submits jobs"
    return no_torch()


class JobState(Struct, frozen=True, kw_only=True):
    """The state of a job in Slurm with its reason and nodes. gone: whether the job is over."""

    name: str
    why: str = ""
    nodes: str = ""
    gone: bool = False

    def node(self, number: int) -> str:
        """Return the name of the job's node with this index; the index itself if the name is not known."""
        names = hostnames(self.nodes)
        return names[number] if number < len(names) else str(number)


_UNKNOWN = JobState(name="UNKNOWN")


def _launch(job: LaunchJob, options: Mapping[str, str], most_tasks: int) -> JobOutcome:
    """Run a job and return its outcome; the Slurm job is over then."""
    tasks = min(most_tasks, job.task.num_ranks)
    if job.task.num_ranks % tasks:
        return JobOutcome(reason=f"refused: {job.task.num_ranks} ranks cannot fill nodes of {tasks} each")
    folder = job.folder.resolve()
    try:
        job_id = _submit(job, folder, options, tasks, most_tasks)
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as err:
        words = (str(err).strip().splitlines() or [type(err).__name__])[-1]
        return JobOutcome(reason=f"refused: sbatch: {words}")
    ends: list[End] = []
    state: JobState | None = None
    try:
        ends, hosts, state = _ends(job, folder, job_id)
    finally:
        failed = [end for end in ends if end.code]
        is_ending = len(ends) == job.task.num_ranks if not failed else all(map(lost_another, failed))
        # Ranks notice the loss of a node before Slurm, whose log then names the node.
        last = _cancelled(job_id, state or _UNKNOWN, patience_s=_ENDING_S if is_ending else 0.0)
    first = replace(job, folder=_task_folder(folder, 0))
    found = outcome(first, ends, ran_out=state is None, hosts=hosts)
    if found.result is not None or state is None or any(end.code < 0 for end in ends):
        return found
    # A rank whose task or node was killed wrote no file; the others only lost their connection to it.
    missing = set(range(job.task.num_ranks)) - set(hosts)
    died = who_died(_log(folder, job_id), last, missing=missing)
    if died is None and ends and missing and is_ending:
        rank = min(missing)
        where = f"rank {rank} on {last.node(rank // tasks)}"
        died = f"{where}: its task or its node failed; Slurm logged no cause"
    if died or ends:
        return JobOutcome(reason=died) if died else found
    return JobOutcome(reason=f"job {job_id} ended as {last.name}{_last_log(folder, job_id)}")


def _submit(job: LaunchJob, folder: Path, options: Mapping[str, str], tasks: int, most_tasks: int) -> str:
    import submitit  # noqa: PLC0415 - only where jobs are submitted

    (folder / _HEARTBEAT).write_text("0", encoding="utf-8")
    executor = submitit.SlurmExecutor(folder=folder / NAME, max_num_timeout=0)
    srun_args = ["--kill-on-bad-exit=1"]
    if "cpus_per_task" in options:  # since Slurm 22.05, steps do not inherit it from their job
        srun_args.append(f"--cpus-per-task={options['cpus_per_task']}")
    executor.update_parameters(
        job_name="equipoise",
        time=math.ceil((job.limit_s + _MARGIN_S) / MINUTE_S),
        nodes=job.task.num_ranks // tasks,
        ntasks_per_node=tasks,
        srun_args=srun_args,
        # A job whose node fails is a failed trial; Slurm must not restart it on its own.
        additional_parameters={"no_requeue": True} | {name: value or True for name, value in options.items()},
    )
    submitted = executor.submit(run_task, str(folder), instructions(job, ()), most_tasks)
    return str(submitted.job_id)


class _Controller:
    """Queries the state of one Slurm job at growing intervals and reports it."""

    def __init__(self, job: LaunchJob, job_id: str) -> None:
        self._report = job.report
        self._job_id = job_id
        self._wait_s = _FIRST_QUERY_S
        self._queried_s = -math.inf
        self.state = JobState(name=_PENDING)

    def refreshed(self) -> bool:
        """Update `state` if a query is due; return whether it was."""
        now_s = time.monotonic()
        if now_s - self._queried_s < self._wait_s:
            return False
        self._queried_s = now_s
        self._wait_s = min(self._wait_s * _QUERY_GROWTH, _LAST_QUERY_S)
        before, self.state = self.state, _state(self._job_id, self.state)
        if self.state.name == _PENDING:
            self._report(f"queued as job {self._job_id}: {self.state.why or 'waiting'}")
        elif before.name == _PENDING:
            self._wait_s = _FIRST_QUERY_S
            self._report(f"running as job {self._job_id}")
        return True


def _ends(job: LaunchJob, folder: Path, job_id: str) -> tuple[list[End], dict[int, str], JobState | None]:
    """Return the ends of ranks in order, their hosts, and the last state; None as state on a timeout."""
    controller = _Controller(job, job_id)
    ends: list[End] = []
    hosts: dict[int, str] = {}
    # Time in the queue does not count towards the trial's limit.
    deadline, begun, num_heartbeats = math.inf, False, 0
    while len(ends) < job.task.num_ranks and time.monotonic() < deadline:
        for rank in sorted(set(range(job.task.num_ranks)) - set(hosts)):
            found = read_document(_task_folder(folder, rank), _END)
            if found is not None:
                ends.append(End(rank=rank, code=found["code"], why=found["why"]))
                hosts[rank] = str(found["host"])
        if controller.refreshed():
            num_heartbeats += 1
            (folder / _HEARTBEAT).write_text(str(num_heartbeats), encoding="utf-8")
        if not begun and controller.state.name != _PENDING:
            begun, deadline = True, time.monotonic() + job.limit_s
        if controller.state.gone or any(end.code for end in ends):
            deadline = min(deadline, time.monotonic() + GRACE_S)
        time.sleep(_POLL_S)
    over = len(ends) == job.task.num_ranks or controller.state.gone or any(end.code for end in ends)
    return ends, hosts, controller.state if over else None


def _output(*command: str) -> str:
    """Return the output of a Slurm command, including errors; empty on a timeout."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_GONE_S)
    except subprocess.TimeoutExpired:
        return ""
    return f"{done.stdout}{done.stderr}".strip()


def _state(job_id: str, before: JobState) -> JobState:
    """Return the state of a job; the previous state if the controller does not answer."""
    line = _output("squeue", "--noheader", f"--jobs={job_id}", "--states=all", "--format=%T|%N|%r")
    if "Invalid job id" in line:  # the job ended so long ago that Slurm has dropped its record
        return replace(before, gone=True)
    name, nodes, why = (*line.split("|", 2), "", "")[:3]
    if not _STATE.fullmatch(name):
        return before
    # A completing job lists only the nodes that it has not yet released.
    return JobState(name=name, why=why, nodes=before.nodes or nodes, gone=name not in _LIVING)


def _cancelled(job_id: str, before: JobState, *, patience_s: float) -> JobState:
    """Wait until a job is over, cancel it if necessary, and return its last state.

    patience_s: the time it has to end by itself. A dead node is not waited for longer than _GONE_S.
    """
    begun_s = time.monotonic()
    state, cancelled = _state(job_id, before), False
    while not state.gone and time.monotonic() - begun_s < _GONE_S:
        if not cancelled and time.monotonic() - begun_s >= patience_s:
            cancelled = True
            _output("scancel", job_id)
        time.sleep(_POLL_S)
        state = _state(job_id, state)
    return state


def who_died(log: str, last: JobState, *, missing: set[int]) -> str | None:
    """Return which node failed, or which rank in `missing` was killed, from Slurm's log; None if not logged.

    When a node fails, Slurm ends the tasks of the other nodes and may log that first.
    """
    node = _NODE_DIED.search(log)
    if node:
        return f"node {node['host'] or last.node(int(node['number']))} failed"
    for task in _TASK_DIED.finditer(log):
        if int(task["task"]) in missing:
            return f"rank {task['task']} on {task['host']}: its task ended: {task['how'].lower()}"
    return None


def _last_log(folder: Path, job_id: str) -> str:
    lines = _log(folder, job_id).strip().splitlines()
    if lines:
        return f": {lines[-1]}"
    return f": it left no log in {folder}: do all nodes share that folder?"


def _log(folder: Path, job_id: str) -> str:
    path = folder / NAME / f"{job_id}_0_log.err"
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _task_folder(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}"


def run_task(folder_text: str, job_instructions: Mapping[str, Any], most_tasks: int) -> None:
    """Run the rank of this task on its node and write its end to its folder. submitit calls it by name.

    folder_text: of the job, shared by all nodes. most_tasks: per node, over the whole sweep.
    """
    from submitit.helpers import TorchDistributedEnvironment  # noqa: PLC0415 - only in a task

    seat = TorchDistributedEnvironment()
    folder = _task_folder(Path(folder_text), seat.rank)
    folder.mkdir()
    cores = _cores(seat.local_rank, most_tasks)
    order = Order(
        ranks=(seat.rank,),
        num_ranks=seat.world_size,
        # The host name that submitit would use need not resolve. Its port is derived from the job number,
        # which a job of another cluster may share; the folder is unique to this job.
        address=slurm_address(os.environ["SLURM_JOB_NODELIST"]),
        port=shared_port(folder_text),
        instructions={**job_instructions, "core_sets": [cores]},
        first_local_rank=seat.local_rank,
        num_local_ranks=seat.local_world_size,
    )
    ranks = begin(order, folder)

    def end_at_once(_number: int, _frame: object) -> None:
        ranks.end()
        os._exit(1)

    # submitit ignores SIGTERM so that jobs can save their state; this job must end when it is cancelled.
    signal.signal(signal.SIGTERM, end_at_once)
    try:
        end = _ended(ranks, Path(folder_text) / _HEARTBEAT)
        if end.code == -signal.SIGTERM:
            # Slurm signals every process of a step it ends, and the rank may end before this task gets the
            # signal. Wait for it, so that this task writes nothing that looks like a cause.
            time.sleep(_SIGNAL_S)
    finally:
        ranks.end()
    host = os.environ.get("SLURMD_NODENAME", "")
    write_document(folder, _END, {"code": end.code, "why": end.why, "host": host})


def _ended(ranks: Ranks, heartbeat: Path) -> End:
    """Return the end of the rank. Raises TimeoutError if the driver's heartbeat stops."""
    last, since = b"", time.monotonic()
    looked = 0.0
    while True:
        ends = ranks.ends()
        if ends:
            return ends[0]
        now = time.monotonic()
        if now - looked > _HEARTBEAT_S:
            looked = now
            found = heartbeat.read_bytes() if heartbeat.exists() else last
            if found != last:
                last, since = found, now
            if now - since > _PATIENCE_S:
                raise TimeoutError(f"{heartbeat}: unchanged for {_PATIENCE_S:g} s: the sweep is gone")
        time.sleep(_TASK_POLL_S)


def _cores(local_rank: int, most_tasks: int) -> tuple[int, ...]:
    """Return the cores of a rank: those that Slurm bound it to, or its share of the node's cores."""
    mine = usable_cores()
    on_node = int(os.environ.get("SLURM_CPUS_ON_NODE", len(mine)))
    each = int(os.environ.get("SLURM_CPUS_PER_TASK", max(1, on_node // most_tasks)))
    if len(mine) <= each:
        return mine
    first = local_rank * each
    return mine[first : first + each] or mine

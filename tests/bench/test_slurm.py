"""Real jobs of a real Slurm with two nodes, started here on free ports and stopped by process id."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from waiting import alive, awaited

pytest.importorskip("torch")
pytest.importorskip("submitit", reason="submitit is not installed: pip install 'equipoise[slurm]'")

from equipoise.bench.equipment import launcher
from equipoise.bench.phases import PARTS, STEP
from equipoise.bench.sweep import planned, run_sweep
from equipoise.bench.trial import Store
from equipoise.launch import launch_files, launch_snippets
from equipoise.spec.cluster import cluster as accelerators
from equipoise.spec.strategy import strategy

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
SBIN = f"{os.environ['PATH']}:/usr/sbin:/sbin"
MISSING = [program for program in PROGRAMS if not shutil.which(program, path=SBIN)]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: slurmd starts jobs of any user"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: apt-get install slurmd slurmctld"),
]

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={ports[0]}
FirstJobId={ports[0]}
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=30
KillWait=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=2000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""

# Models that say where their ranks run, and wait to be killed on the way.
MODELS = """
import os, time
import torch

def slow(name):
    with open(f"{name}-{os.environ['RANK']}", "w") as file:
        file.write(f"{os.getpid()} {os.getppid()}")
    def loss(output):
        time.sleep(0.5)
        return output.square().mean()
    return torch.nn.Linear(4, 2), torch.ones(8, 4), loss

def task_killed():
    return slow("task")

def node_killed():
    return slow("node")
"""


def free_ports(number):
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def daemon(*command, log):
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Nodes:
    """The daemons of nodes n1 and n2, which are both this machine, with one core each."""

    def __init__(self, stack, folder):
        self._stack = stack
        self._folder = folder
        self._daemons = {}

    def begin(self, node):
        command = ("slurmd", "-D", "-N", node, "-f", str(self._folder / "slurm.conf"))
        log = self._folder / f"{node}.log"
        self._daemons[node] = self._stack.enter_context(daemon(*command, log=log))

    def fail(self, node, worker, task):
        """Everything that runs on a node ends at once; then the node comes back."""
        step = int(Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[1])
        for pid in (self._daemons[node].pid, step, task, worker):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._daemons[node].wait()
        self.begin(node)

    def resume(self):
        """Begin again the daemons that have ended: one that was to come back and did not leaves others waiting."""
        for node, ended in tuple(self._daemons.items()):
            if ended.poll() is not None:
                self.begin(node)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Both nodes of a Slurm of this module's own."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool.n1", "spool.n2"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    conf = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    conf.write_text(CONF.format(folder=folder, host=host, ports=free_ports(3)))
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    munged = ("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files)
    with ExitStack() as stack:
        surroundings = stack.enter_context(pytest.MonkeyPatch.context())
        surroundings.setenv("SLURM_CONF", str(conf))
        surroundings.setenv("PATH", SBIN)
        stack.enter_context(daemon(*munged, log=folder / "munged.log"))
        assert awaited((folder / "munge.socket").exists, limit_s=60), "munged"
        stack.enter_context(daemon("slurmctld", "-D", "-f", str(conf), log=folder / "ctld.log"))
        made = Nodes(stack, folder)
        made.begin("n1")
        made.begin("n2")
        yield made


@pytest.fixture
def nodes(cluster, tmp_path, monkeypatch):
    """Both nodes, idle, and a folder with models."""
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    cluster.resume()
    assert awaited(lambda: said("sinfo", "-h", "-o", "%T %D") == "idle 2"), "both nodes idle"
    yield cluster
    said("scancel", "--user=root")


def said(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip()


def pids(name):
    """Of both ranks of a model: its worker, and the task that Slurm knows; none before both have begun."""
    paths = [Path(f"{name}-{rank}") for rank in (0, 1)]
    if not all(path.exists() and path.read_text() for path in paths):
        return ()
    return tuple(tuple(map(int, path.read_text().split())) for path in paths)


def kill(nodes):
    """Kill the task of rank 1 of one model, and the node of rank 1 of the other.

    Slurm then ends rank 0 of the first by a signal to its worker and to its task, which may come in this order.
    """
    waiting = {"task", "node"}
    while waiting:
        for name in sorted(waiting):
            found = pids(name)
            if found:
                waiting.remove(name)
                time.sleep(1)
                if name == "task":
                    os.kill(found[0][0], signal.SIGTERM)
                    time.sleep(0.1)
                    os.kill(found[1][1], signal.SIGKILL)
                else:
                    nodes.fail("n2", *found[1])
        time.sleep(0.1)


def test_trials_are_jobs_on_two_nodes_and_those_whose_task_or_node_is_killed_fail(nodes):
    workloads = ["models:task_killed", "models:node_killed", "mlp"]
    trials = planned(
        workloads=workloads, methods=["ddp"], sizes=[2], batches=[16], num_repetitions=1, num_steps=4
    )
    told = []
    killer = threading.Thread(target=kill, args=(nodes,), daemon=True)
    killer.start()
    finished = run_sweep(
        trials, Path("out"), launcher("slurm"), limit_s=120, progress=lambda what, *_: told.append(what)
    )
    killer.join(timeout=60)
    assert not killer.is_alive(), "a rank or a node was not killed, or the node did not come back"
    by_name = {one.trial.workload: one for one in finished}
    assert any(re.search(r"\bjob \d+", what) for what in told)
    trained = by_name["mlp"]
    assert (trained.status, trained.reason) == ("success", None)
    assert trained.result["steps"]
    for split in trained.result["steps"]:
        assert sum(split[name] for name in PARTS) == pytest.approx(split[STEP], rel=1e-6)
    assert [node["ranks"] for node in trained.result["nodes"]] == [[0], [1]]
    task, node = by_name["models:task_killed"], by_name["models:node_killed"]
    assert task.status == "failed"
    assert re.match("rank 1 on n2: .*killed", task.reason)
    # Slurm's controller does not always tell a job that a node came back without it.
    assert node.status == "failed"
    assert re.match(r"(node|rank 1 on) n2\b", node.reason)
    begun = [pid for name in ("task", "node") for pair in pids(name) for pid in pair]
    assert len(begun) == 8
    assert not any(map(alive, begun))
    assert said("squeue", "-h") == ""


@pytest.mark.usefixtures("nodes")
def test_srun_starts_bench_on_every_node_and_the_first_coordinates():
    bench = ["bench", "mlp", "--sizes", "2", "--batch", "16", "--steps", "4", "--repeat", "1", "--out", "out"]
    command = ["srun", "--nodes=2", "--ntasks=2", sys.executable, "-m", "equipoise", *bench]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    (one,) = Store(Path("out")).finished()
    assert (one.status, one.reason) == ("success", None)
    assert [node["ranks"] for node in one.result["nodes"]] == [[0], [1]]
    assert one.conditions["launcher"] == "srun over 2 hosts"


@pytest.mark.usefixtures("nodes")
def test_an_interrupted_sweep_cancels_its_job():
    bench = ["bench", "models:task_killed", "--sizes", "2", "--batch", "16", "--repeat", "1", "--out", "out"]
    command = [sys.executable, "-m", "equipoise", *bench, "--launcher", "slurm", "--slurm", "partition=main"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as sweep:
        assert awaited(lambda: pids("task")), "ranks at work"
        sweep.send_signal(signal.SIGINT)
        assert sweep.wait(timeout=60) == 130
    assert said("squeue", "-h") == ""
    assert not any(alive(pid) for pair in pids("task") for pid in pair)


@pytest.mark.usefixtures("nodes")
def test_sbatch_takes_the_file_that_is_written_for_it(monkeypatch):
    plan = strategy("dp=2 microbatch=2 global_batch=4 implementation=eager")
    hosts = replace(accelerators("xeon-8480-cpu", num_accelerators=2), node_size=1)
    for name, text in launch_files(plan, launch_snippets(plan, hosts)).items():
        Path(name).write_text(text.replace("NUM_STEPS = 10", "NUM_STEPS = 2"))
    # Both nodes are this machine, where their names are not known.
    script = (
        Path("job.sbatch").read_text().replace("head -n 1)", "head -n 1); echo from $HEAD; HEAD=127.0.0.1")
    )
    Path("job.sbatch").write_text(script.replace("srun torchrun", "srun torchrun --local-addr=127.0.0.1"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{SBIN}")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["sbatch", "--wait", "--output=out.txt", "job.sbatch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    said_there = Path("out.txt").read_text()
    assert done.returncode == 0, done.stderr + said_there
    assert "from n1" in said_there
    assert "step 1" in said_there

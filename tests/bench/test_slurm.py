"""Real jobs of a real Slurm with two nodes, started here on free ports and stopped by process id."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("submitit", reason="submitit is not installed: pip install 'equipoise[slurm]'")

from equipoise.bench.launchers import launcher
from equipoise.bench.phases import PARTS, STEP
from equipoise.bench.sweep import planned, run_sweep

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

# A model that says where its ranks run, and waits to be killed on the way.
MODELS = """
import os, time
import torch

def slow():
    with open(f"pid-{os.environ['RANK']}", "w") as file:
        file.write(f"{os.getpid()} {os.getppid()}")
    def loss(output):
        time.sleep(0.5)
        return output.square().mean()
    return torch.nn.Linear(4, 2), torch.ones(8, 4), loss
"""

# The parent of a worker is the task that Slurm knows.
KILLER = """
import os, signal, time
while not os.path.exists("pid-1") or not open("pid-1").read():
    time.sleep(0.1)
time.sleep(1)
os.kill(int(open("pid-1").read().split()[1]), signal.SIGKILL)
"""


def free_ports(number):
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def daemon(*command, log, environment):
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(holds, *, limit_s, what):
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Two nodes, n1 and n2, of one core each; both are this machine."""
    folder = tmp_path / "slurm"
    for name in ("state", "spool.n1", "spool.n2"):
        (folder / name).mkdir(parents=True)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    conf = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    conf.write_text(CONF.format(folder=folder, host=host, ports=free_ports(3)))
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setenv("PATH", SBIN)
    environment = dict(os.environ)
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    with ExitStack() as stack:

        def begun(name, *command):
            return stack.enter_context(daemon(*command, log=folder / f"{name}.log", environment=environment))

        begun("munged", "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files)
        until((folder / "munge.socket").exists, limit_s=20, what=(folder / "munged.log").read_text)
        begun("ctld", "slurmctld", "-D", "-f", str(conf))
        for node in ("n1", "n2"):
            begun(node, "slurmd", "-D", "-N", node, "-f", str(conf))

        def idle():
            said = subprocess.run(["sinfo", "-h", "-o", "%T %D"], capture_output=True, text=True, check=False)
            return said.stdout.split() == ["idle", "2"]

        until(idle, limit_s=60, what="both nodes idle")
        yield folder
        subprocess.run(["scancel", "--user=root"], check=False, timeout=30)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.usefixtures("cluster")
def test_two_nodes_train_and_a_killed_task_is_a_failed_cell_not_the_end(tmp_path, monkeypatch):
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    cells = planned(
        workloads=["models:slow", "mlp"],
        methods=["ddp"],
        sizes=[2],
        batches=[16],
        num_repetitions=1,
        num_steps=4,
    )
    told = []
    pids = []

    def progress(what, _number, _total):
        told.append(what)

    killer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            KILLER,
        ]
    )
    try:
        finished = run_sweep(cells, Path("out"), launcher("slurm"), limit_s=120, progress=progress)
    finally:
        killer.send_signal(signal.SIGKILL)
        killer.wait()
    by_name = {one.cell.workload: one for one in finished}
    killed, trained = by_name["models:slow"], by_name["mlp"]
    assert killed.status == "failed"
    assert "rank 1 on n2" in killed.reason, killed.reason
    assert "killed" in killed.reason, killed.reason
    assert (trained.status, trained.reason) == ("success", None)
    for split in trained.result["steps"]:
        assert sum(split[name] for name in PARTS) == pytest.approx(split[STEP], rel=1e-6)
    assert [node["ranks"] for node in trained.result["nodes"]] == [[0], [1]]
    assert any(what.startswith("queued as job") for what in told)
    for rank in (0, 1):
        pids += map(int, Path(f"pid-{rank}").read_text().split())
    assert not any(map(alive, pids))
    assert subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout == b""

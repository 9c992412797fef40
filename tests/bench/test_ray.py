"""A real Ray cluster of several nodes on this machine: trials are trained there, and nodes are killed."""

import json
import os
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import equipoise
from waiting import ahead_of_others

pytest.importorskip("torch")
if find_spec("ray") is None:
    pytest.skip("ray is not installed: pip install 'equipoise[ray]'", allow_module_level=True)

# Ray's own processes want some hundred MB each; started in a process of its own, nothing of it is left.
SWEEP = """
import json, os, signal, sys, threading, time, warnings
from pathlib import Path

# Ray's own processes wait 30 s for each other by default: too short beside other work.
slow = {"RAY_raylet_start_wait_time_s": "150"}
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", **slow}
import ray
from ray._private import services
from ray.cluster_utils import Cluster

# A node has 30 s to appear, which no setting changes.
find_node = services.get_node

def find_slow_node(*named):
    ends_s = time.monotonic() + 150
    while True:
        try:
            return find_node(*named)
        except RuntimeError:
            if time.monotonic() > ends_s:
                raise
        time.sleep(0.1)

services.get_node = find_slow_node

small = {"object_store_memory": 100 << 20, "include_dashboard": False}
# Left alone, Ray takes some 15 s to notice that a node is gone, and its workers yield to all else that computes.
alert = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 20,
    "worker_niceness": 0,
}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": alert, **small})
nodes = [cluster.add_node(num_cpus=1, object_store_memory=100 << 20) for _ in range(3)]

from equipoise.bench.equipment import launcher
from equipoise.bench.sweep import planned, run_sweep

def kill_a_rank():
    while not (os.path.exists("pid-1") and open("pid-1").read()):
        time.sleep(0.1)
    os.kill(int(open("pid-1").read()), signal.SIGKILL)

def kill_a_node():
    while not (os.path.exists("node-1") and open("node-1").read()):
        time.sleep(0.1)
    wanted = open("node-1").read()
    for node in nodes:
        if node.node_id == wanted:
            cluster.remove_node(node, allow_graceful=False)

for target in (kill_a_rank, kill_a_node):
    threading.Thread(target=target, daemon=True).start()

def trials(*workloads):
    return planned(workloads=workloads, methods=["ddp"], sizes=[2], batches=[16], num_repetitions=1, num_steps=4)

on = launcher("ray", {"address": cluster.address})
was_left_connected = ray.is_initialized()
finished = run_sweep(trials(*sys.argv[1:]), Path("out"), on, limit_s=120)
groups = [one["state"] for one in ray.util.placement_group_table().values()]
found = {one.trial.workload: [one.status, one.reason, dict(one.result)] for one in finished}
Path("found.json").write_text(json.dumps({"trials": found, "groups": groups, "left": was_left_connected}))
ray.shutdown()
cluster.shutdown()
"""

MODELS = """
import os, time
import torch

def said(name, text):
    with open(name, "w") as file:
        file.write(text)

def waiting():
    def loss(output):
        time.sleep(0.5)
        return output.square().mean()
    return torch.nn.Linear(4, 2), torch.ones(8, 4), loss

def rank_killed():
    said("pid-" + os.environ["RANK"], str(os.getpid()))
    return waiting()

def node_killed():
    said("node-" + os.environ["RANK"], os.environ["EQUIPOISE_RAY_NODE"])
    return waiting()
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    (folder / "models.py").write_text(MODELS)
    names = ["models:node_killed", "models:rank_killed", "mlp"]
    with subprocess.Popen(
        ahead_of_others(sys.executable, "-c", SWEEP, *names),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as driver:
        try:
            _, err = driver.communicate(timeout=480)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 0, err[-3000:]
    return folder, json.loads((folder / "found.json").read_text())


def test_two_nodes_of_ray_train_though_a_rank_and_a_node_are_killed(swept):
    folder, found = swept
    status, reason, result = found["trials"]["mlp"]
    assert (status, reason) == ("success", None)
    assert [node["ranks"] for node in result["nodes"]] == [[0], [1]]
    assert len(result["steps"]) == 4
    status, reason, _ = found["trials"]["models:rank_killed"]
    assert status == "failed"
    assert reason.startswith("rank 1 on "), reason
    assert "SIGKILL" in reason, reason
    status, reason, _ = found["trials"]["models:node_killed"]
    assert status == "failed"
    assert reason.startswith("rank 1 on "), reason
    assert "node failed" in reason, reason
    assert set(found["groups"]) == {"REMOVED"}
    assert not found["left"], "asking for a cluster connects to it: Ray ends such a process with its cluster"
    assert not Path(f"/proc/{(folder / 'pid-1').read_text()}").exists()


def test_a_cluster_that_does_not_answer_is_named_and_waited_for_no_longer_than_that():
    with socket.socket() as silent:  # takes connections and never answers, as a cluster that is ending
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = "{}:{}".format(*silent.getsockname())
        ended = equipoise("doctor", "--json", env={"RAY_ADDRESS": address}, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = {check["name"]: check for check in json.loads(ended.stdout)["measuring"]}["ray"]
    assert not found["works"]
    assert address in found["install"]

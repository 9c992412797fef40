"""Emulated hosts: their link has its rate, ranks train on them and fail on them, and nothing of them stays."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import emulated as module
import pytest
from emulated import emulated, hosts, why_not

from equipoise.bench.phases import EXPOSED, PARTS, STEP
from equipoise.bench.sweep import planned, run_sweep
from equipoise.errors import UsageError

REASON = why_not()
on_hosts = pytest.mark.skipif(REASON is not None, reason=str(REASON))

NUM_BYTES = 5_000_000
RATE_BIT_PER_S = 200e6
# Of 131,072 bytes at once: the first go at the machine's speed.
BURST_BYTES = 128 * 1024
# Hosts emulated on one machine share its monotonic clock.
RECEIVER = f"""
import socket, time
listening = socket.create_server(("0.0.0.0", 5000)); print("ready", flush=True)
taken, _ = listening.accept()
num_bytes = 0
while num_bytes < {NUM_BYTES}:
    num_bytes += len(taken.recv(1 << 16))
print(time.monotonic())
"""
SENDER = f"""
import socket, sys, time
began_s = time.monotonic()
socket.create_connection((sys.argv[1], 5000)).sendall(bytes({NUM_BYTES}))
print(began_s)
"""

# RANK is set by the launcher.
MODELS = """
import os, signal
import torch

def killed():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return model()

def model():
    return torch.nn.Linear(4, 2), torch.ones(8, 4), lambda output: output.square().mean()
"""


def namespaces(pid="*"):
    return sorted(path.name for path in Path("/run/netns").glob(f"equipoise-{pid}-*"))


@on_hosts
@pytest.mark.parametrize("num_hosts", [2, 3])
def test_no_transfer_is_faster_than_the_link_and_every_end_has_its_rate(num_hosts):
    with hosts(link_bit_per_s=RATE_BIT_PER_S, num_hosts=num_hosts) as made:
        sender, receiver = made[0], made[-1]
        with subprocess.Popen(
            (*receiver.command_prefix, sys.executable, "-c", RECEIVER), stdout=subprocess.PIPE, text=True
        ) as receiving:
            assert receiving.stdout.readline() == "ready\n"
            command = (*sender.command_prefix, sys.executable, "-c", SENDER, receiver.address)
            sent = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
            took_s = float(receiving.stdout.readline()) - float(sent.stdout)
        shaped = [
            json.loads(subprocess.check_output(("tc", "-n", name, "-json", "qdisc", "show"), text=True))
            for name in namespaces(os.getpid())
        ]
    assert took_s >= (NUM_BYTES - BURST_BYTES) * 8 / RATE_BIT_PER_S
    # How much of it a transfer fills is the machine's: the kernel says at which rate each end sends.
    ends = [each for listed in shaped for each in listed if each["dev"].startswith(("link", "port"))]
    assert len(ends) == (2 if num_hosts == 2 else 2 * num_hosts)
    assert {(each["kind"], each["options"]["rate"]) for each in ends} == {("tbf", RATE_BIT_PER_S / 8)}
    assert not namespaces(os.getpid())


@on_hosts
def test_hosts_are_removed_with_what_runs_on_them_however_they_are_left():
    def failing():
        with hosts(link_bit_per_s=1e9) as (one, _):
            command = (*one.command_prefix, "sh", "-c", "echo there; exec sleep 600")
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert running[0].stdout.readline() == "there\n"
            raise ZeroDivisionError

    running = []
    with pytest.raises(ZeroDivisionError):
        failing()
    with running[0] as process:
        assert process.wait(timeout=60) != 0
    assert not namespaces(os.getpid())


@on_hosts
def test_hosts_of_a_dead_process_are_removed_and_those_of_a_living_one_are_not():
    code = (
        f"import os, sys\nsys.path.append({str(Path(module.__file__).parent)!r})\nfrom emulated import hosts\n"
        "with hosts(link_bit_per_s=1e9):\n print(os.getpid(), flush=True)\n sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen((sys.executable, "-c", code), **pipes) as dead:
        dead.stdout.readline()
        dead.kill()
    with subprocess.Popen((sys.executable, "-c", code), **pipes) as living:
        living.stdout.readline()
        assert not namespaces(dead.pid)
        with hosts(link_bit_per_s=1e9):
            assert len(namespaces(living.pid)) == 2
        living.stdin.close()
    assert not namespaces(living.pid)


@on_hosts
@pytest.mark.usefixtures("prepared_ranks")
def test_ranks_train_on_emulated_hosts_and_one_killed_there_fails_its_trial(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two ranks need two cores of their own")
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    trials = [
        *planned(
            workloads=["models:model", "models:killed"],
            methods=["ddp"],
            sizes=[2],
            batches=[16],
            num_repetitions=1,
            num_steps=4,
        ),
        *planned(
            workloads=["models:model"],
            methods=["ddp"],
            sizes=[1],
            batches=[16],
            num_repetitions=1,
            num_steps=4,
        ),
    ]
    found = run_sweep(trials, Path("out"), emulated("emulated:1gbit"), limit_s=90.0)
    by_kind = {(one.trial.workload, one.trial.num_ranks): one for one in found}
    assert re.search("rank 1 .*SIGKILL", by_kind["models:killed", 2].reason)
    for num_ranks in (1, 2):
        one = by_kind["models:model", num_ranks]
        assert one.status == "success", one.reason
        assert one.conditions["launcher"] == "emulated:1gbit"
        assert one.result["steps"]
        for split in one.result["steps"]:
            assert sum(split[name] for name in PARTS) == pytest.approx(split[STEP], rel=1e-6)
            assert (split[EXPOSED] > 0) == (num_ranks == 2)
    assert not namespaces(os.getpid())


@pytest.mark.parametrize(
    "name", ["emulated", "emulated:", "emulated:fast", "emulated:0gbit", "emulated:1.2.3gbit"]
)
def test_a_rate_that_is_none_is_refused(name):
    with pytest.raises(UsageError, match=re.escape(repr(name)) + ".*rate"):
        emulated(name)

"""A sweep over two hosts, one torchrun each, of which a rank is killed, then a whole host, then it goes on."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from command_line import prepared_python, prepared_ranks
from emulated import hosts, why_not
from waiting import alive, awaited

pytest.importorskip("torch")

from equipoise.bench.launchers import hosts as launchers_hosts
from equipoise.bench.launchers.hosts import Member, member
from equipoise.bench.phases import PARTS, STEP
from equipoise.bench.trial import Store
from equipoise.errors import UsageError

REASON = why_not()

MODELS = """
import os, signal, time
import torch

def model():
    return torch.nn.Linear(4, 2), torch.ones(8, 4), lambda output: output.square().mean()

def killed():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return model()

def stuck():
    if os.path.exists("hang"):
        with open("stuck-" + os.environ["RANK"], "w") as file:
            file.write(f"{os.getpid()} {os.getppid()}")
        time.sleep(3600)
    return model()
"""


@contextmanager
def torchruns(made, folder, *options, python=sys.executable):
    """The same command on every host; its output goes to out-0 and out-1."""
    command = ["bench", "models:killed", "models:stuck", "--sizes", "2", "--batch", "16"]
    command += ["--repeat", "1", "--steps", "4", "--out", "out", *options]
    processes = []
    for number, host in enumerate(made):
        agent = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--local-addr={host.address}"]
        agent += [f"--rdzv-endpoint={made[0].address}:29400"]
        # Real hosts find out by their names which of them the endpoint is.
        agent += [f"--rdzv-conf=is_host={int(number == 0)}"]
        with (folder / f"out-{number}").open("w") as out:
            processes.append(
                subprocess.Popen(
                    [
                        *host.command_prefix,
                        *(python, "-m", "torch.distributed.run", *agent),
                        *("-m", "equipoise", *command),
                    ],
                    cwd=folder,
                    env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"},
                    stdout=out,
                    stderr=out,
                )
            )
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores of their own")
def test_a_sweep_over_two_hosts_outlives_a_rank_and_goes_on_after_the_loss_of_a_host(tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "hang").touch()
    with hosts(link_bit_per_s=1e9) as made:
        with torchruns(made, tmp_path) as processes:
            said = [tmp_path / "stuck-0", tmp_path / "stuck-1"]

            def are_stuck():
                assert processes[0].poll() is None, (tmp_path / "out-0").read_text()
                return all(path.exists() and path.read_text() for path in said)

            assert awaited(are_stuck, limit_s=240), (tmp_path / "out-0").read_text()
            workers = [[int(pid) for pid in path.read_text().split()] for path in said]
            os.kill(workers[1][1], signal.SIGKILL)  # what serves the sweep on the second host
            assert processes[0].wait(timeout=60) != 0
            assert "(number 1 of torchrun) is gone" in " ".join((tmp_path / "out-0").read_text().split())
            processes[1].wait(timeout=60)
            assert awaited(lambda: not any(alive(pid) for pids in workers for pid in pids), limit_s=20)
        before = Store(tmp_path / "out").finished()
        assert "models:stuck" not in {one.trial.workload for one in before}
        (tmp_path / "hang").unlink()
        # What is killed above is what a user's machine starts; what then trains is prepared.
        with prepared_ranks(), torchruns(made, tmp_path, "--resume", python=prepared_python()) as processes:
            codes = [process.wait(timeout=300) for process in processes]
    assert codes == [0, 0], (tmp_path / "out-0").read_text() + (tmp_path / "out-1").read_text()
    after = {one.trial.workload: one for one in Store(tmp_path / "out").finished()}
    assert all(one == after[one.trial.workload] for one in before)
    assert after["models:killed"].status == "failed"
    assert after["models:killed"].reason.startswith("rank 1 on ")
    assert "SIGKILL" in after["models:killed"].reason
    trained = after["models:stuck"]
    assert trained.status == "success"
    assert trained.result["steps"]
    for split in trained.result["steps"]:
        assert sum(split[name] for name in PARTS) == pytest.approx(split[STEP], rel=1e-6)
    assert [node["ranks"] for node in trained.result["nodes"]] == [[0], [1]]


def test_several_processes_on_a_host_are_refused():
    told = {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    with pytest.raises(UsageError, match=r"--nproc-per-node=1"):
        member(told)
    assert member({"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "1"}) is None
    assert member({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}) is None  # a batch script, no step of srun


def test_only_whole_messages_with_the_token_of_the_sweep_are_hosts(monkeypatch):
    """Strays, a first message in two segments, and one that says nothing: none holds the meeting up."""
    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(launchers_hosts, "listening", lambda _: (listener, "secret", None))
    monkeypatch.setattr(launchers_hosts, "_ARRIVAL_S", 10.0)
    monkeypatch.setattr(launchers_hosts, "_MOST_UNKNOWN", 10)
    place = listener.getsockname()
    silent = socket.create_connection(place)
    strays = [
        b"GET / HTTP/1.0\r\n\r\n",
        b"[1]\n",
        b'{"token": "other", "number": 1}\n',
        b"\xff\n",
        b"a" * 2**17,
    ]
    strays += [b"[" * 50_000 + b"\n", *[b""] * 40]
    opened = [socket.create_connection(place) for _ in strays]
    for each, content in zip(opened, strays, strict=True):
        each.sendall(content)
    message = json.dumps({"token": "secret", "number": 1, "host": "b", "cores": list(range(400))}).encode()
    honest = socket.create_connection(place)
    honest.sendall(message[:700])
    rest = threading.Timer(0.5, honest.sendall, [message[700:] + b"\n"])
    rest.start()
    this = Member(
        number=0, num_members=2, starter="torchrun", address="127.0.0.1", port=1, has_store=True, attempt="a"
    )
    found = launchers_hosts._Hosts(this)
    begun = time.monotonic()
    found._meet()
    assert time.monotonic() - begun < 5.0
    assert [each["host"] for each in found._known[1:]] == ["b"]
    rest.join()
    for each in (silent, honest, *opened):
        each.close()

"""Real training in real processes over gloo: measured, crashed, hung, out of memory, orphaned."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import alive, awaited

pytest.importorskip("torch")

from equipoise.bench.equipment import LAUNCHERS, launcher
from equipoise.bench.phases import EXPOSED, PARTS, STEP
from equipoise.bench.sweep import planned, run_sweep
from equipoise.errors import UsageError

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores of their own"
)

# Models of a user that fail in every way; RANK is set by the launcher.
MODELS = """
import os, signal, sys, time
import torch

def model():
    return torch.nn.Linear(4, 2), torch.ones(8, 4), lambda output: output.square().mean()

def crashing():
    if os.environ["RANK"] == "1":
        raise ValueError("no such layer")
    return model()

def killed():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return model()

def hanging():
    open("hanging-" + os.environ["RANK"], "w").write(str(os.getpid()))
    time.sleep(3600)

def huge():
    torch.empty(2**60)

def unprintable():
    raise ValueError("no file r" + chr(0xdce9) + "sum")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def swept(workload, *, limit_s=90.0, by="inprocess", num_steps=4, sizes=(2,), folder=Path("out")):
    trials = planned(
        workloads=[workload],
        methods=["ddp"],
        sizes=sizes,
        batches=[16],
        num_repetitions=1,
        num_steps=num_steps,
    )
    return run_sweep(trials, folder, launcher(by), limit_s=limit_s)


def grown(finished):
    return finished.result["memory_growth_bytes"]


@pytest.mark.parametrize("by", [one.name for one in LAUNCHERS])
def test_two_ranks_are_timed_by_phases_that_sum_to_the_step(here, by, request):
    if by == "inprocess":
        request.getfixturevalue("prepared_ranks")
    (one,) = swept("mlp", by=by)
    assert (one.status, one.reason) == ("success", None)
    assert len(one.result["steps"]) == 4
    for split in one.result["steps"]:
        assert sum(split[name] for name in PARTS) == pytest.approx(split[STEP], rel=1e-6)
        assert all(value >= 0 for value in split.values())
        assert split[EXPOSED] > 0
    assert one.result["sums"]["hold"]
    assert len(grown(one)) == 2
    assert all(0 < growth < peak for growth, peak in zip(grown(one), one.result["memory_bytes"], strict=True))
    used, energy = one.result["utilisation"], one.result["energy"]
    assert len(used["cpu_fraction_by_rank"]) == 2
    assert used["network"] == "loopback"
    assert used["network_byte_per_s"] > 0
    assert (energy["energy_j"] is None) == (energy["reason"] is not None)  # this machine may have a meter
    assert not list(here.glob("out/running-*"))


@pytest.mark.usefixtures("prepared_ranks")
def test_ranks_meet_in_a_folder_of_any_name(here):
    folder = here / os.fsdecode(b"r\xe9sum\xe9 a b%20?#")  # no UTF-8, and signs of addresses
    folder.mkdir()
    (one,) = swept("mlp", folder=folder)
    assert (one.status, one.reason) == ("success", None)


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("models:crashing", r"rank 1 .*ValueError: .*layer"),
        ("models:killed", r"rank 1 .*SIGKILL"),
        ("models:huge", r"rank \d .*memory"),
        ("models:unprintable", r"rank \d .*ValueError: .*\br.udce9sum\b"),
    ],
)
@pytest.mark.usefixtures("here", "prepared_ranks")
def test_a_failing_rank_marks_its_trial_with_the_reason(workload, words):
    (one,) = swept(workload)
    assert one.status == "failed"
    assert re.search(words, one.reason), one.reason


def test_a_hung_trial_is_ended_and_leaves_no_process(here):
    for limit_s in (15, 60):  # a busy machine takes longer to have both ranks there
        (one,) = swept("models:hanging", limit_s=float(limit_s))
        assert re.match(rf"hung: .*\b{limit_s} s\b", one.reason)
        pids = [int(path.read_text() or 0) for path in here.glob("hanging-*")]
        if len(pids) == 2:
            break
        shutil.rmtree("out")
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def both_of(written):
    """The two numbers that ranks have written, none where one is not written yet."""
    pids = [int(each) for each in written if each]
    return pids if len(pids) == 2 else []


@pytest.mark.parametrize("by", [one.name for one in LAUNCHERS])
def test_no_rank_outlives_a_sweep_that_is_killed(here, by):
    code = (
        "from pathlib import Path; from equipoise.bench.equipment import launcher; "
        "from equipoise.bench.sweep import planned, run_sweep; "
        "run_sweep(planned(workloads=['models:hanging'], methods=['ddp'], sizes=[2], batches=[16], "
        f"num_repetitions=1), Path('out'), launcher('{by}'), limit_s=90.0)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=here) as sweep:
        pids = awaited(lambda: both_of(path.read_text() for path in here.glob("hanging-*")), limit_s=80)
        sweep.send_signal(signal.SIGKILL)
    assert pids
    assert awaited(lambda: not any(alive(pid) for pid in pids), limit_s=20)


def test_an_unknown_launcher_lists_those_there_are():
    with pytest.raises(UsageError, match=r"'slurmm'.* auto, inprocess, torchrun"):
        launcher("slurmm")


def test_torch_is_not_imported_before_the_cores_of_a_rank_are_set():
    probe = "import sys; import equipoise.bench.worker; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, check=True).stdout == b"False\n"

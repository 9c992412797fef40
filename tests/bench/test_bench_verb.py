"""`bench` as its users and scripts meet it: real processes and real training, killed, interrupted, out of room."""

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from command_line import INTERPRETER, document, equipoise, prepared_ranks
from waiting import awaited

pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores of their own"
)

QUICK = ("--batch", "16", "--steps", "2", "--launcher", "inprocess")

MODELS = """
import time
import torch

def model():
    return torch.nn.Linear(4, 2), torch.ones(16, 4), lambda output: output.square().mean()

def failing():
    raise ValueError("[red]no[/red] \\x1b[31msuch\\x07 layer")

def slow():
    time.sleep(1.5)
    return model()

def endless():
    while True:
        time.sleep(1)
"""


def command(*arguments):
    """One that takes signals itself."""
    return [INTERPRETER, "-m", "equipoise", "bench", *map(str, arguments)]


# Starts its ranks as `prepared_ranks` asks, and takes signals itself.
PREPARED = """
import os, sys
from equipoise.cli import output
from equipoise.cli.app import main

sys.executable = os.environ["EQUIPOISE_EXECUTABLE"]
output.LOG_EVERY_S = float(os.environ.get("LOG_EVERY_S", output.LOG_EVERY_S))
main(sys.argv[1:])
"""


def prepared_command(*arguments):
    return [INTERPRETER, "-c", PREPARED, "bench", *map(str, arguments)]


def bench(*arguments, cwd):
    return equipoise("bench", *arguments, cwd=cwd, timeout=300)


def processes_of(folder):
    """Processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def told_of(processes):
    """What they are, in words for whoever has to find out why they are there."""
    return [
        (Path("/proc", str(each), "status").read_text(), Path("/proc", str(each), "cmdline").read_text())
        for each in processes
    ]


def trials_of(folder):
    return {path.name: path.read_bytes() for path in (folder / "trials").glob("*.json")}


def fill(path):
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


@pytest.fixture
def here(tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    return tmp_path


@pytest.mark.usefixtures("prepared_ranks")
def test_the_document_holds_what_scripts_rely_on(here):
    asked = ("mlp", *QUICK, "--sizes", "1,2", "--repeat", "2", "--out", "s")
    found = document(bench(*asked, "--json", "--json-out", "a.json", cwd=here))
    assert json.loads((here / "a.json").read_bytes()) == found
    assert (found["schema"], found["sweep"]) == ("equipoise.bench/2", "s")
    reasons = [each["reason"] for trial in found["configurations"] for each in trial["repetitions"]]
    assert (found["num_trials"], found["num_finished"], found["num_failed"]) == (4, 4, 0), reasons
    promised = {
        *("run_id", "status", "reason", "strategy", "num_accelerators", "batch", "step_s", "phases"),
        *("samples_per_s", "utilisation", "energy_j"),
    }
    assert [each["strategy"] for each in found["configurations"]] == ["single", "ddp"]
    assert found["configurations"]
    for trial in found["configurations"]:
        assert promised <= trial.keys()
        assert trial["status"] == "success"
        assert trial["step_s"]["low"] <= trial["step_s"]["median"] <= trial["step_s"]["high"]
        parts = ("input", "forward", "backward", "communication_exposed", "optimizer", "rest")
        assert sum(trial["phases"][name] for name in parts) == pytest.approx(
            trial["step_s"]["median"], rel=1e-3
        )
        assert trial["samples_per_s"] == pytest.approx(16 / trial["step_s"]["median"], rel=1e-3)
        assert [each["status"] for each in trial["repetitions"]] == ["success"] * 2
        assert all((here / "s" / each["file"]).exists() for each in trial["repetitions"])
    assert {path.name for path in (here / "s").glob("*.parquet")} == {
        *("runs.parquet", "scores.parquet", "steps.parquet")
    }
    refused = bench(*asked, cwd=here)
    assert refused.returncode == 2
    assert all(option in refused.stderr for option in ("--out", "--resume"))
    text = bench("--out", "s", "--resume", cwd=here)
    assert (text.returncode, text.stderr) == (0, "")
    lines = text.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 30
    assert not any("…" in line for line in lines)
    assert re.findall(r"^(single|ddp)\b.*? (\d) ", text.stdout, re.MULTILINE) == [
        ("single", "1"),
        ("ddp", "2"),
    ]
    full = bench("--out", "s", "--resume", "--full", "--html", "s.html", cwd=here)
    assert max(map(len, full.stdout.splitlines())) <= 80
    assert 'id="resources"' in (here / "s.html").read_text()


@pytest.mark.usefixtures("one_core", "prepared_ranks")
def test_training_is_summarised_over_seeds(here):
    asked = ("mlp", *QUICK, "--sizes", "1", "--train", "256", "--repeat", "2", "--out", "s", "--json")
    (trial,) = document(bench(*asked, cwd=here))["configurations"]
    assert [each["seed"] for each in trial["repetitions"]] == [1, 2]
    assert trial["training"]["num_seeds"] == 2
    assert trial["training"]["num_samples"] >= 256
    found = trial["training"]["loss"]
    assert 0 < found["low"] < found["median"] < found["high"]
    assert found["median"] < 10
    assert trial["step_s"] is None
    text = bench("--out", "s", "--resume", cwd=here).stdout
    (loss,) = re.findall(r"^mlp +single +1 +16 +([\d.]+)", text, re.MULTILINE)
    assert float(loss) == pytest.approx(found["median"], rel=0.01)


def test_kills_of_the_whole_tree_lose_and_repeat_at_most_the_running_trial(here):
    out = here / "killed"
    asked = ("mlp", *QUICK, "--sizes", "1,2", "--repeat", "2", "--out", out)
    kept = {}

    def is_at_work():
        return len(processes_of(out)) > 1

    def has_kept_one_more():
        return len(trials_of(out)) > len(kept)

    def begun():
        return True

    # While it begins, while a rank begins and works, and when a trial was just kept and what follows is written.
    # What a kill leaves of ranks is seen while they begin and work; those that trials are kept of are prepared.
    for moment, later_s, starting in (
        *((begun, later_s, nullcontext) for later_s in (0.1, 0.3, 0.6, 1.0)),
        *((is_at_work, later_s, nullcontext) for later_s in (0.0, 0.7, 2.0)),
        *((has_kept_one_more, later_s, prepared_ranks) for later_s in (0.0, 0.01, 0.1)),
    ):
        with (
            starting(),
            subprocess.Popen(
                (command if starting is nullcontext else prepared_command)(*asked, "--resume"),
                cwd=here,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as sweep,
        ):
            assert awaited(lambda: moment() or sweep.poll() is not None, every_s=0.01)  # noqa: B023 - called at once
            time.sleep(later_s)
            sweep.send_signal(signal.SIGKILL)
        assert awaited(lambda: not processes_of(out), limit_s=30), (
            f"orphans are left: {told_of(processes_of(out))}"
        )
        now = trials_of(out)
        assert kept.items() <= now.items(), "a finished trial is lost or changed"
        assert all(json.loads(content)["status"] == "success" for content in now.values())
        kept = now
    assert len(kept) >= 3
    with prepared_ranks():
        found = document(bench(*asked, "--resume", "--json", cwd=here))
    finished = trials_of(out)
    assert kept.items() <= finished.items()
    run_ids = [each["run_id"] for trial in found["configurations"] for each in trial["repetitions"]]
    assert len(run_ids) == len(set(run_ids)) == len(finished) == 4
    assert found["num_failed"] == 0
    assert not list(out.glob("running-*"))
    assert not list(out.glob("**/.*.part"))


@pytest.mark.usefixtures("one_core", "prepared_ranks")
def test_an_interrupt_says_what_is_kept_and_how_to_go_on(here):
    out = here / "interrupted"
    asked = ("mlp", *QUICK, "--sizes", "1", "--repeat", "50", "--out", out)
    with subprocess.Popen(prepared_command(*asked), cwd=here, stderr=subprocess.PIPE, text=True) as sweep:
        assert awaited(lambda: trials_of(out))
        sweep.send_signal(signal.SIGINT)
        said = sweep.stderr.read()
    assert sweep.returncode == 130
    assert re.search(r"[1-9]\d* of 50 .*\binterrupted; .*--resume", said)
    assert said.rstrip().endswith("equipoise: interrupted")
    assert awaited(lambda: not processes_of(out), limit_s=30)
    assert (out / "runs.parquet").exists()


@pytest.mark.usefixtures("one_core", "prepared_ranks")
def test_an_interrupted_sweep_prints_the_command_that_continues_it(here):
    asked = ("models:slow", *QUICK, "--sizes", "1", "--repeat", "3", "--out", "its own folder")
    with subprocess.Popen(prepared_command(*asked), cwd=here, stderr=subprocess.PIPE, text=True) as sweep:
        assert awaited(lambda: trials_of(here / "its own folder"))
        sweep.send_signal(signal.SIGINT)
        said = sweep.stderr.read()
    kept = trials_of(here / "its own folder")
    (printed,) = re.findall(r": equipoise (bench .*)", said)
    ended = equipoise(*shlex.split(printed), "--json", cwd=here, timeout=300)
    assert document(ended)["num_finished"] == 3
    assert kept.items() <= trials_of(here / "its own folder").items()


@pytest.mark.usefixtures("one_core", "prepared_ranks")
def test_a_log_says_how_far_a_sweep_is_in_plain_lines(here):
    asked = ("models:slow", *QUICK, "--sizes", "1", "--repeat", "3", "--out", "logged")
    ended = subprocess.run(
        prepared_command(*asked),
        env={**os.environ, "LOG_EVERY_S": "0.1"},
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in ended.stderr.splitlines() if "busy" not in line]
    assert len(lines) > 3
    assert all(line.isprintable() for line in lines)
    # What ends is named, but where the line is written just after the last has ended.
    under_way = r"[0-3]/3, .* (left|so far); models:slow, .*"
    assert all(re.fullmatch(rf"equipoise: ({under_way}|3/3, .* so far)", line) for line in lines), lines
    assert lines[0].startswith("equipoise: 0/3, ")
    assert any(re.match(r"equipoise: [12]/3, [\d.]+ (s|min) left;", line) for line in lines)


@pytest.mark.usefixtures("one_core", "prepared_ranks")
def test_a_terminal_is_left_as_it_was_after_its_line_of_progress(here):
    asked = ("models:slow", *QUICK, "--sizes", "1", "--repeat", "2", "--out", "drawn")
    ours, theirs = os.openpty()
    with subprocess.Popen(
        prepared_command(*asked), cwd=here, stdout=subprocess.DEVNULL, stderr=theirs
    ) as sweep:
        os.close(theirs)
        drawn = b""
        with suppress(OSError):  # the other end is closed
            while more := os.read(ours, 4096):
                drawn += more
    os.close(ours)
    assert sweep.returncode == 0
    *_, last = drawn.split(b"\r")
    assert last == b"\x1b[K"
    assert b"0/2" in drawn
    assert drawn.count(b"\n") <= 1  # one line may say that the machine is busy


@pytest.mark.usefixtures("one_core", "prepared_ranks")
def test_a_busy_machine_is_noticed_before_and_while_measuring(here):
    spin = "import os\nwhile True: pass"
    # 200 steps, 0.1 s, have fitted between two turns of the scheduler where other tests ran beside this one.
    quick = ("--batch", "16", "--steps", "3000", "--launcher", "inprocess")
    with subprocess.Popen([INTERPRETER, "-c", spin]) as other:
        ended = bench("mlp", *quick, "--sizes", "1", "--repeat", "1", "--out", "busy", "--json", cwd=here)
        other.kill()
    assert re.search(r"busy: .*[\d.]+ %", ended.stderr)
    (found,) = document(ended)["configurations"]
    assert found["utilisation"]["others_cpu_fraction"] > 0.1
    assert found["num_disturbed"] == 1
    (stored,) = trials_of(here / "busy").values()
    assert json.loads(stored)["result"]["utilisation"]["others_cpu_fraction"] > 0.1
    shown = bench("--resume", "--out", "busy", cwd=here)
    assert "other programs" in " ".join(shown.stdout.split())


@pytest.mark.usefixtures("one_core", "prepared_ranks")
def test_a_full_disk_is_a_clear_error_and_the_sweep_goes_on_when_there_is_room(here):
    disk = here / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no disk of its own can be mounted here: {mounted.stderr.strip()}")
    try:
        asked = ("models:slow", *QUICK, "--sizes", "1", "--repeat", "2", "--out", disk / "s")
        with subprocess.Popen(prepared_command(*asked), cwd=here, stderr=subprocess.PIPE, text=True) as sweep:
            assert awaited(lambda: trials_of(disk / "s"))
            fill(disk / "plug")
            said = sweep.stderr.read()
        assert sweep.returncode == 2
        assert os.strerror(errno.ENOSPC) in said
        assert "--resume" in said
        kept = trials_of(disk / "s")
        assert kept
        assert not list(disk.glob("**/.*.part"))
        (disk / "plug").unlink()
        assert document(bench(*asked, "--resume", "--json", cwd=here))["num_finished"] == 2
        assert kept.items() <= trials_of(disk / "s").items()
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.usefixtures("one_core", "prepared_ranks")
def test_functions_that_fail_hang_or_have_hostile_words_are_bounded_and_safe(here):
    once = (*QUICK, "--sizes", "1", "--repeat", "1")
    ended = bench("models:failing", "models:model", *once, "--out", "s", cwd=here)
    assert ended.returncode == 0
    assert "\x1b" not in ended.stdout + ended.stderr
    assert "\x07" not in ended.stdout + ended.stderr
    told = " ".join(ended.stdout.split())
    assert r"[red]no[/red] \x1b[31msuch\x07 layer" in told
    assert "models:model" in told
    ended = bench("models:endless", *once, "--limit", "4", cwd=here)
    assert ended.returncode == 3
    assert re.search(r"hung: .*\b4 s \(--limit", " ".join(ended.stderr.split()))


@pytest.mark.usefixtures("one_core", "prepared_ranks")
def test_a_sweep_of_which_every_run_fails_is_too_little_evidence(here):
    ended = bench("models:failing", *QUICK, "--sizes", "1", "--repeat", "1", "--json", cwd=here)
    assert ended.returncode == 3
    assert re.search(r"rank 0 .*ValueError", ended.stderr)
    found = json.loads(ended.stdout)
    assert found["status"] == "not_enough_evidence"
    assert len(found["missing"]) == 1
    assert [each["status"] for each in found["configurations"]] == ["failed"]

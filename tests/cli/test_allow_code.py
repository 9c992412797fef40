"""Files of data name code; it is imported and run only where that was asked for."""

import json

import pytest
from command_line import in_process

import equipoise
from equipoise.errors import EquipoiseError

MARKING = """
from pathlib import Path

Path("ran").touch()


def model():
    raise RuntimeError("called")
"""
FILES = {
    "advise": 'workload = "mine:model"\naccelerator = "h100"\ntokens = 1e9\n',
    "predict": 'workload = "mine:model"\naccelerator = "h100"\n',
    "plan": 'workload = "mine:model"\naccelerator = "h100"\ntokens = 1e9\n',
    "allocate": '[[job]]\nworkload = "mine:model"\nsamples = 1e6\n',
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MARKING)
    return tmp_path


@pytest.mark.parametrize("verb", [equipoise.advise, equipoise.plan, equipoise.predict])
def test_a_file_runs_code_in_python_only_where_it_is_allowed(verb, folder, monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
    monkeypatch.chdir(folder)
    (folder / "job.toml").write_text(FILES[verb.__name__])
    with pytest.raises(EquipoiseError, match=r"allow_code=True"):
        verb(folder / "job.toml")
    assert not (folder / "ran").exists()
    with pytest.raises(EquipoiseError, match="called"):
        verb(folder / "job.toml", allow_code=True)
    assert (folder / "ran").exists()


@pytest.mark.parametrize("verb", FILES)
@pytest.mark.parametrize("allowed", [False, True])
def test_a_file_runs_code_only_where_it_is_allowed(verb, allowed, folder, monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
    (folder / "job.toml").write_text(FILES[verb])
    pool = ["--accelerator", "64x h100"] if verb == "allocate" else []
    ended = in_process(verb, "job.toml", *pool, *["--allow-code"][: int(allowed)], cwd=folder)
    assert ended.returncode == 2
    assert (folder / "ran").exists() is allowed
    assert ("--allow-code" in ended.stderr) is not allowed


def test_code_on_the_command_line_needs_no_permission(folder, monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
    ended = in_process("plan", "mine:model", "--accelerator", "h100", "--tokens", "1e9", cwd=folder)
    assert (folder / "ran").exists()
    assert "--allow-code" not in ended.stderr


def test_a_stored_plan_of_bench_runs_no_code_unless_allowed(folder):
    out = folder / "sweep"
    assert (
        in_process(
            "bench", "mlp", "--sizes", "1", "--steps", "3", "--batch", "8", "--repeat", "1", "--out", out
        ).returncode
        == 0
    )
    plan = json.loads((out / "sweep.json").read_text())
    for trial in plan["trials"]:
        trial["workload"] = "mine:model"
    (out / "sweep.json").write_text(json.dumps(plan))
    ended = in_process("bench", "--out", out, "--resume", cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--allow-code" in ended.stderr
    assert not (folder / "ran").exists()

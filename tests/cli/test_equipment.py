"""What doctor says of measuring: everything is found or has something to do, whatever the machine."""

import subprocess
import sys

import pytest

from equipoise.bench.equipment import Check, Installation, equipment, installation
from equipoise.cli.output import page_text
from equipoise.report.pages.orientation import DOCTOR


def test_what_cannot_be_used_says_what_to_do():
    found = equipment()
    assert {"cpu", "cuda", "nvml", "rapl", "torchrun", "slurm", "ray"} <= {one.name for one in found}
    for one in found:
        assert one.works == (one.found is not None) == (one.install is None), one


def test_without_torch_the_extra_to_install_is_named(monkeypatch):
    from importlib import metadata  # noqa: PLC0415 - what is replaced

    installed = metadata.version

    def without(name):
        if name in {"torch", "transformers"}:
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", without)
    found = {one.name: one for one in equipment()}
    assert found["torch"].install == "pip install 'equipoise[bench]'"
    assert found["transformers"].install == "pip install 'equipoise[zoo]'"


def test_torch_is_not_loaded_to_say_so():
    code = "import sys; from equipoise.bench.equipment import equipment; equipment(); print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


def test_without_torch_every_extra_that_needs_it_is_named_with_its_command(monkeypatch):
    from importlib import metadata  # noqa: PLC0415 - what is replaced

    installed = metadata.version

    def without(name):
        if name in {"torch", "submitit"}:
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", without)
    found = installation()
    shown = page_text(DOCTOR, found, full=False)
    assert {one.name for one in found.missing_extras} >= {"torch", "bench", "zoo", "slurm", "ray"}
    for one in found.missing_extras:
        assert one.install == f"pip install 'equipoise[{one.name}]'"
        assert one.install in shown


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_what_to_do_is_shown_whole(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    fix = "start one with `ray start --head`, and give its address with --address or in RAY_ADDRESS " * 3
    ray = Check(name="ray", works=False, found=None, needed_for="nodes of Ray", install=fix)
    cpu = Check(name="cpu", works=True, found="2 cores", needed_for="bench", install=None)
    shown = page_text(DOCTOR, Installation(checks=(cpu,), measuring=(cpu, ray)), full=False)
    assert " ".join(fix.split()) in " ".join(shown.split())
    assert "1 of 2" in shown
    assert max(map(len, shown.splitlines())) <= int(columns)

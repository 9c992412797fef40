"""What doctor says of measuring: everything is found or has something to do, whatever the machine."""

import subprocess
import sys

from equipoise.cli.orientation import checks, equipment, text


def test_what_cannot_be_used_says_what_to_do():
    found = equipment()
    assert {"cpu", "cuda", "nvml", "rapl", "torchrun", "slurm", "ray"} <= {one["name"] for one in found}
    for one in found:
        assert one["works"] == (one["found"] is not None) == (one["install"] is None), one


def test_without_torch_the_extra_to_install_is_named(monkeypatch):
    from importlib import metadata  # noqa: PLC0415 - what is replaced

    installed = metadata.version

    def without(name):
        if name in {"torch", "transformers"}:
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", without)
    told = {one["name"]: one for one in equipment()}
    assert told["torch"]["install"] == "pip install 'equipoise[bench]'"
    assert told["transformers"]["install"] == "pip install 'equipoise[zoo]'"


def test_torch_is_not_loaded_to_say_so():
    code = "import sys; from equipoise.cli.orientation import equipment; equipment(); print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


def test_without_torch_the_text_says_what_each_extra_would_add(monkeypatch):
    from importlib import metadata  # noqa: PLC0415 - what is replaced

    installed = metadata.version

    def without(name):
        if name in {"torch", "submitit"}:
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", without)
    shown = text(checks(), equipment())
    assert "Everything works." not in shown
    for extra in ("torch", "bench", "zoo", "slurm", "ray"):
        assert f"pip install 'equipoise[{extra}]'" in shown


def test_missing_equipment_does_not_spoil_the_verdict():
    shown = text(checks(), [{**equipment()[0], "works": False, "found": None, "install": "buy one"}])
    verdict = text(checks(), equipment()).split("\n\n")[1]
    assert shown.split("\n\n")[1] == verdict
    assert "0 of 1 " in shown
    assert "buy one" in shown

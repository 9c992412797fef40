"""`topology` as its users and scripts meet it: real processes, exit codes, streams, whatever files hold."""

import json
from functools import partial

import command_line
import pytest

CUT = (
    "$ nvidia-smi topo -m\n\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNODE\tSYS\tSYS\tNODE\t0-31\t0\nGPU1\tNODE\t X \tSYS\tSYS\tNODE\t0-31\t0\n"
    "GPU2\tSYS\tSYS\t X \tNODE\tSYS\t32-63\t1\n"
)


equipoise = partial(command_line.equipoise, text=False)


@pytest.fixture
def cut(tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(CUT)
    return path


def test_the_document_holds_what_scripts_rely_on(cut, tmp_path):
    ended = equipoise("topology", cut, "--json", "--json-out", "a.json", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, b"")
    found = json.loads(ended.stdout, parse_constant=pytest.fail)
    assert json.loads((tmp_path / "a.json").read_bytes()) == found
    assert found["schema"] == "equipoise.topology/1"
    assert [device["name"] for device in found["devices"]] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    by_pair = {(link["a"], link["b"]): link["class"] for link in found["links"]}
    assert len(by_pair) == 10
    assert by_pair["GPU2", "GPU3"] == "NODE"
    assert by_pair["GPU3", "NIC0"] is None
    assert found["islands"] == [["GPU0", "GPU1"], ["GPU2", "GPU3"]]
    assert found["missing_rows"] == ["GPU3", "NIC0"]
    assert found["nics"][0]["nearest"] == {"class": "NODE", "devices": ["GPU0", "GPU1"]}
    assert found["meaning"]
    assert found["rates"]
    for rate in found["rates"]:
        assert 0 < rate["low"] <= rate["byte_per_s"] <= rate["high"]
    assert found["predictions"]["gains"]
    for gain in found["predictions"]["gains"]:
        assert 0 < gain["low"] <= gain["speedup"] <= gain["high"] <= 2
        assert gain["verdict"] in {"gains", "no gain", "slower", "either way"}


def test_text_fits_80_columns_and_the_matrix_is_drawn(cut):
    ended = equipoise("topology", cut, "--accelerator", "l40s-pcie-48gb")
    assert ended.returncode == 0
    lines = ended.stdout.decode().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "      GPU0  GPU1  GPU2  GPU3  NIC0" in lines
    assert "GPU2   SYS   SYS        NODE   SYS" in lines
    assert len(lines) <= 40
    assert any("Missing rows: GPU3 and NIC0" in line for line in lines)


@pytest.mark.parametrize("name", ["-", "--"])
def test_standard_input_is_read(name):
    ended = equipoise("topology", "--json", name, input=CUT.encode())
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["islands"] == [["GPU0", "GPU1"], ["GPU2", "GPU3"]]


def test_this_machine_has_a_topology(tmp_path):
    ended = equipoise("topology", "--json", "--html", "page.html", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["devices"]
    assert found["origin"].startswith("this machine")
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert equipoise("topology").returncode == 0


def test_devices_without_links_are_too_little_evidence(tmp_path):
    (tmp_path / "x.txt").write_text("\tGPU0\tGPU1\tCPU Affinity\n")
    ended = equipoise("topology", "x.txt", "--json", cwd=tmp_path)
    assert ended.returncode == 3
    assert b"missing: the rows GPU0, GPU1" in ended.stderr
    assert json.loads(ended.stdout)["status"] == "not_enough_evidence"

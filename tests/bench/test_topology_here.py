"""This machine's topology, from tools that are there and a kernel's folders written by hand."""

import os
import stat
import sys

import pytest

from equipoise.bench.environment import command_output
from equipoise.bench.topology import here

MATRIX = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tPHB\tSYS\t0-11\t0\t\tN/A\nGPU1\tPHB\t X \tSYS\t0-11\t0\t\tN/A\nNIC0\tSYS\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
NVIDIA = {
    "-L": "GPU 0: NVIDIA GeForce RTX 5090 (UUID: GPU-1)\nGPU 1: NVIDIA GeForce RTX 5090 (UUID: GPU-2)\n",
    "topo -m": MATRIX,
    "topo -p2p r": " \tGPU0\tGPU1\n GPU0\tX\tGNS\n GPU1\tGNS\tX\n",
    "--query-gpu=index,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader": "0, 5, 8\n1, 5, 8\n",
}


def tool(name, answers):
    """What a tool prints for its arguments, as `here` asks for it."""
    return lambda command: answers.get(" ".join(command[1:]), "") if command[0] == name else ""


@pytest.fixture
def kernel(tmp_path):
    """A function that writes files of a kernel's folder."""

    def write(files):
        for name, content in files.items():
            path = tmp_path / "sys" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return {"system": tmp_path / "sys", "processes": tmp_path / "proc"}

    return write


def test_nvidia_smi_is_asked_for_all_it_knows(kernel):
    folders = kernel({"class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n"})
    found = here(run=tool("nvidia-smi", NVIDIA), **folders)
    assert found.origin == "this machine: nvidia-smi topo -m, topo -p2p, -L"
    assert [device.title for device in found.devices] == ["NVIDIA GeForce RTX 5090"] * 2
    assert found.devices[0].slot_byte_per_s == pytest.approx(31.5e9, rel=1e-3)
    assert [(link.link_class, link.peers) for link in found.between_devices] == [("PHB", "GNS")]
    assert [(nic.title, nic.byte_per_s) for nic in found.nics] == [("mlx5_0", 50e9)]


def test_rocm_smi_is_asked_where_there_is_no_nvidia_smi(kernel):
    table = "=== {} ===\n GPU0 GPU1\nGPU0 0 {}\nGPU1 {} 0\n"
    text = "".join(
        table.format(title, cell, cell)
        for title, cell in (
            ("Weight between two GPUs", "15"),
            ("Hops between two GPUs", "1"),
            ("Link Type between two GPUs", "XGMI"),
        )
    )
    found = here(run=tool("rocm-smi", {"--showtopo": text}), **kernel({}))
    assert found.origin == "this machine: rocm-smi --showtopo"
    assert [link.link_class for link in found.links] == ["XGMI"]


def test_a_machine_without_accelerators_shows_its_sockets_and_says_so(kernel):
    files = {}
    for cpu in range(4):
        files[f"devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = f"{cpu // 2}\n"
        files[f"devices/system/cpu/cpu{cpu}/topology/core_id"] = f"{cpu % 2}\n"
    files |= {f"devices/system/node/node{node}/cpulist": f"{2 * node}-{2 * node + 1}\n" for node in range(2)}
    files |= {
        "class/net/eth0/speed": "25000\n",
        "class/net/eth0/device/vendor": "0x15b3\n",
        "class/net/eth1/speed": "-1\n",
        "class/net/eth1/device/vendor": "0x15b3\n",
        "class/net/lo/speed": "",
    }
    found = here(run=lambda _: "", **kernel(files))
    assert [
        (each.name, each.kind, each.num_cores, each.cpu_affinity, each.numa_affinity)
        for each in found.devices
    ] == [
        ("CPU0", "cpu", 2, "0-1", "0"),
        ("CPU1", "cpu", 2, "2-3", "1"),
    ]
    assert [link.link_class for link in found.links] == ["SYS"]
    assert [(nic.name, nic.byte_per_s) for nic in found.nics] == [("eth0", 3.125e9), ("eth1", None)]
    assert "No accelerator" in found.notes[0]


def test_a_kernel_that_tells_nothing_is_no_error(kernel):
    found = here(run=lambda _: "", **kernel({}))
    assert (found.devices, found.nics, found.links) == ((), (), ())


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that installs a program of Python lines on PATH."""

    def install(name, lines):
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\n{lines}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_tools_are_run_without_a_shell_and_failures_are_silence(program):
    program("nvidia-smi", "import sys; print(sys.argv[1:])")
    assert command_output(("nvidia-smi", "topo", "$(id)")) == "['topo', '$(id)']\n"
    program("rocm-smi", "import sys; print('no driver'); sys.exit(9)")
    assert command_output(("rocm-smi", "--showtopo")) == ""
    assert command_output(("no-such-program-here",)) == ""


def test_what_a_tool_prints_is_cut_before_it_fills_memory(program):
    program("nvidia-smi", "print('x' * 3_000_000)")
    assert len(command_output(("nvidia-smi", "-L"))) == 1_000_000

"""The topology of this machine: from its own tools where they are there, else from what the kernel tells."""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from equipoise.bench.topology import amd, nvidia, sockets
from equipoise.bench.topology.cleaned import plain_lines
from equipoise.bench.topology.topology import Topology

_TIMEOUT_S = 30.0
_MOST_BYTES = 1_000_000
# Byte/s of one lane in one direction, by generation of PCIe (rates of the standard, encoding taken off).
_LANE_BYTE_PER_S = {"1": 0.25e9, "2": 0.5e9, "3": 0.984e9, "4": 1.969e9, "5": 3.938e9, "6": 7.563e9}
_SLOT_QUERY = "--query-gpu=index,pcie.link.gen.max,pcie.link.width.max"
_SLOT = re.compile(r"\s*(\d+),\s*([1-6]),\s*([1-9]\d?)\s*")

Run = Callable[[Sequence[str]], str]


def here(*, run: Run | None = None, system: Path = Path("/sys"), processes: Path = Path("/proc")) -> Topology:
    """The accelerators of this machine and their links; its processor sockets where it has none.

    run: what a command prints, empty where there is no such command. system, processes: where the kernel
    tells about itself.
    """
    run = run or printed
    for tell in (_from_nvidia, _from_amd):
        found = tell(run)
        if found is not None:
            rates = {nic.name: sockets.rdma_byte_per_s(system, nic.title or nic.name) for nic in found.nics}
            nics = tuple(replace(nic, byte_per_s=rates[nic.name]) for nic in found.nics)
            return replace(found, nics=nics, origin=f"this machine: {found.origin}")
    found = sockets.sockets(system, processes)
    silent = [name for name in ("nvidia-smi", "rocm-smi", "amd-smi") if shutil.which(name)]
    why = (
        f"{' and '.join(silent)} tell of none"
        if silent
        else "no nvidia-smi, rocm-smi or amd-smi is installed"
    )
    said = f"No accelerator was found here ({why}): processor sockets are shown in their place."
    return replace(found, notes=(*found.notes, said))


def _from_nvidia(run: Run) -> Topology | None:
    listed = run(("nvidia-smi", "-L"))
    if not listed.strip():
        return None
    texts = [listed]
    for asked in (("-m",), ("-p2p", "r")):
        texts += [f"$ nvidia-smi topo {' '.join(asked)}", run(("nvidia-smi", "topo", *asked))]
    found = nvidia.read(plain_lines("\n".join(texts).encode(), "nvidia-smi"))
    if found is None or not found.devices:
        return None
    slots = _slots(run(("nvidia-smi", _SLOT_QUERY, "--format=csv,noheader")))
    devices = (replace(device, slot_byte_per_s=slots.get(device.name)) for device in found.devices)
    return replace(found, devices=tuple(devices))


def _slots(text: str) -> dict[str, float]:
    """Byte/s of the slot of each GPU, one direction."""
    found = filter(None, map(_SLOT.fullmatch, text.splitlines()))
    return {f"GPU{int(each[1])}": _LANE_BYTE_PER_S[each[2]] * int(each[3]) for each in found}


def _from_amd(run: Run) -> Topology | None:
    for commands in (
        (("rocm-smi", "--showtopo"), ("rocm-smi", "--showproductname")),
        (("amd-smi", "topology"),),
    ):
        text = "\n".join(run(command) for command in commands)
        found = amd.read(plain_lines(text.encode(), commands[0][0])) if text.strip() else None
        if found is not None and found.devices:
            return found
    return None


def printed(command: Sequence[str]) -> str:
    """What a command prints within half a minute; nothing where it is not installed or fails."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        ended = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout[:_MOST_BYTES].decode(errors="replace") if ended.returncode == 0 else ""

"""What the kernel tells of a machine without accelerators: sockets, cores, NUMA nodes, network cards."""

import re
from collections.abc import Iterator
from pathlib import Path

from equipoise.bench.topology.topology import Device, Link, Nic, Topology, pairs

_MOST_FILE_BYTES = 4_000_000
# Of a bit a second: Ethernet in millions, InfiniBand in thousands of millions.
_ETHERNET_BYTE_PER_S = 1e6 / 8
_RDMA_BYTE_PER_S = 1e3 * _ETHERNET_BYTE_PER_S
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")


def sockets(system: Path, processes: Path) -> Topology:
    """Processor sockets as devices, joined by the link between them, and the cards of the network.

    Assumes two sockets are joined as NUMA nodes are: what nvidia-smi calls SYS.
    """
    devices = tuple(_sockets(system, processes))
    links = tuple(Link(a=a, b=b, link_class="SYS") for a, b in pairs(tuple(each.name for each in devices)))
    return Topology(
        origin="this machine",
        devices=devices,
        nics=tuple(_cards(system)),
        links=links,
    )


def _text(path: Path) -> str:
    """What a file of the kernel says; empty where it cannot be read, as where a link is down."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_FILE_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def _numbered(folder: Path, name: str) -> list[tuple[int, Path]]:
    """Entries of a folder that are called by a name and a number, in the order of the numbers."""
    found = [
        (int(match[1]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(rf"{name}(\d+)", path.name))
    ]
    return sorted(found)


def _sockets(system: Path, processes: Path) -> Iterator[Device]:
    threads: dict[int, list[int]] = {}
    cores: dict[int, set[str]] = {}
    for number, path in _numbered(system / "devices" / "system" / "cpu", "cpu"):
        said = _text(path / "topology" / "physical_package_id")
        if said.lstrip("-").isdigit():
            place = max(0, int(said))  # -1 where the kernel does not know
            threads.setdefault(place, []).append(number)
            cores.setdefault(place, set()).add(_text(path / "topology" / "core_id"))
    title = re.search(r"^model name\s*:\s*(.+)$", _text(processes / "cpuinfo"), re.MULTILINE)
    nodes = {
        number: _expanded(_text(path / "cpulist"))
        for number, path in _numbered(system / "devices" / "system" / "node", "node")
    }
    for socket, held in sorted(threads.items()):
        near = [node for node, its in nodes.items() if its & set(held)]
        yield Device(
            name=f"CPU{socket}",
            kind="cpu",
            title=title[1].strip() if title else None,
            cpu_affinity=_ranges(held),
            numa_affinity=_ranges(near) if near else None,
            num_cores=len(cores[socket]),
        )


def _expanded(text: str) -> set[int]:
    """Numbers of a list as the kernel prints it: `0-3,8`."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def _ranges(numbers: list[int]) -> str:
    """Numbers as the kernel prints them.

    >>> _ranges([0, 1, 2, 8])
    '0-2,8'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _cards(system: Path) -> Iterator[Nic]:
    """Interfaces that are devices, with the rate of their link, and RDMA devices with theirs."""
    folder = system / "class" / "net"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (path / "device").exists():
            speed = _text(path / "speed")
            rate = int(speed) * _ETHERNET_BYTE_PER_S if speed.isdigit() and int(speed) > 0 else None
            yield Nic(name=path.name, byte_per_s=rate)
    folder = system / "class" / "infiniband"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield Nic(name=path.name, byte_per_s=rdma_byte_per_s(system, path.name))


def rdma_byte_per_s(system: Path, name: str) -> float | None:
    """The rate of an RDMA device's fastest port, one direction; None where the kernel knows no such one."""
    if not re.fullmatch(r"[\w.-]+", name):
        return None
    ports = _numbered(system / "class" / "infiniband" / name / "ports", "")
    rates = [float(found[1]) for _, port in ports if (found := _RATE.match(_text(port / "rate")))]
    return max(rates) * _RDMA_BYTE_PER_S if rates else None

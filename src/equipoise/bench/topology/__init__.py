"""Reads a topology from pasted text, or of this machine from the vendor's tools or else from the kernel.

Output of rocm-smi and amd-smi is parsed here, that of nvidia-smi in nvidia.py.
"""

import re
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.bench.environment import PROCESSES, command_output, cpuinfo, file_text
from equipoise.bench.topology.nvidia import read_nvidia
from equipoise.bench.topology.topology import Device, DeviceLink, MissingRow, Nic, Topology, pairs
from equipoise.errors import DataError, EvidenceError
from equipoise.files import is_utf16, printed_text

_TITLES = (
    ("weight", re.compile(r"weight between two gpus|weight table", re.IGNORECASE)),
    ("hops", re.compile(r"hops between two gpus|hops table", re.IGNORECASE)),
    ("type", re.compile(r"link type between two gpus|link type table", re.IGNORECASE)),
    ("other", re.compile(r"={4,}.*[a-z].*={4,}|\w+ table:|numa nodes|legend", re.IGNORECASE)),
)
_AMD_NAME = re.compile(r"GPU\d{1,3}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_NUMA = re.compile(r"GPU\[(\d{1,3})\]\s*:\s*\(Topology\)\s*Numa Affinity:\s*(-?\d+)", re.IGNORECASE)
_SERIES = re.compile(
    r"GPU\[(\d{1,3})\]\s*:\s*(?:Card series|Market name|Device Name)\s*:\s*(\S.*)", re.IGNORECASE
)
# A hop over Infinity Fabric weighs 15 (Linux, drivers/gpu/drm/amd/amdkfd/kfd_crat.c: KFD_CRAT_XGMI_WEIGHT).
# The path between two accelerators over one processor weighs 40, over several processors more.
_XGMI_HOP_WEIGHT = 15
_ONE_NODE_WEIGHT, _ONE_NODE_HOPS = 40, 2


class _AmdTable(Struct, kw_only=True):
    """One titled table: column headers, and the cells of each row from the left."""

    columns: list[str] = field(default_factory=list)
    rows: dict[str, list[str]] = field(default_factory=dict)

    def cell(self, a: str, b: str) -> str | None:
        """Return the cell of a row and column; None if it is missing."""
        row = self.rows.get(a, [])
        place = self.columns.index(b) if b in self.columns else len(row)
        return row[place] if place < len(row) else None


def read_amd(lines: Sequence[str]) -> Topology | None:
    """Return the topology in the output of rocm-smi or amd-smi; None if it has no table of either."""
    tables = _tables(lines)
    if not tables:
        return None
    names = list(dict.fromkeys(name for table in tables.values() for name in table.columns))
    shown = {name: name if name.startswith("GPU") else f"GPU{place}" for place, name in enumerate(names)}
    links = tuple(_link(tables, (a, b), (shown[a], shown[b])) for a, b in pairs(tuple(names)))
    return Topology(
        origin="rocm-smi --showtopo" if any(name.startswith("GPU") for name in names) else "amd-smi topology",
        devices=tuple(_devices(names, shown, lines)),
        links=links,
        missing_rows=tuple(_missing(tables, names, shown)),
        notes=tuple(_notes(tables)),
    )


def _tables(lines: Sequence[str]) -> dict[str, _AmdTable]:
    """Return the first table of each kind."""
    found: dict[str, _AmdTable] = {}
    current: _AmdTable | None = None
    for line in lines:
        kind = next((kind for kind, title in _TITLES if title.search(line)), None)
        if kind is not None:
            current = None if kind == "other" else _AmdTable()
            if current is not None:
                current = found.setdefault(kind, current)
            continue
        texts = line.replace("|", " ").replace("*", " ").split()
        if current is not None and texts:
            _add_line(current, texts)
    return {kind: table for kind, table in found.items() if table.columns}


def _add_line(table: _AmdTable, texts: Sequence[str]) -> None:
    if all(_AMD_NAME.fullmatch(text) for text in texts) and not (table.columns and len(texts) == 1):
        table.columns = table.columns or list(dict.fromkeys(texts))
    elif _AMD_NAME.fullmatch(texts[0]):
        table.rows.setdefault(texts[0], list(texts[1 : len(table.columns) + 1]))


def _link(tables: dict[str, _AmdTable], pair: tuple[str, str], shown: tuple[str, str]) -> DeviceLink:
    words = {kind: [tables[kind].cell(*pair), tables[kind].cell(*reversed(pair))] for kind in tables}
    weight, hops = (_agreed_number(words.get(kind, [])) for kind in ("weight", "hops"))
    types = [word for word in words.get("type", []) if word is not None]
    disagree = len(set(types)) > 1
    return DeviceLink(
        a=shown[0],
        b=shown[1],
        link_class=None if disagree or not types else _class(types[0].upper(), weight, hops),
        conflict=(types[0], types[1]) if disagree else None,
        weight=weight,
        hops=hops,
    )


def _agreed_number(words: Sequence[str | None]) -> int | None:
    """Return the number in both cells of a pair; None if they differ or hold no number."""
    given = {word for word in words if word is not None}
    word = given.pop() if len(given) == 1 else ""
    return int(word) if re.fullmatch(r"\d{1,6}", word) else None


def _class(link_type: str, weight: int | None, hops: int | None) -> str | None:
    """Return the link class of a pair in nvidia-smi's terms; XGMI is kept as the counterpart of NVLink.

    Over XGMI, the hop count is always 1, so hops are computed from the weight. PCIe between NUMA nodes is
    SYS; within a NUMA node, rocm-smi does not report switches.
    """
    if link_type == "XGMI":
        count = 1 if weight is None else max(1, round(weight / _XGMI_HOP_WEIGHT))
        return "XGMI" if count == 1 else f"XGMI{min(count, 99)}"
    if link_type != "PCIE" or (hops is None and weight is None):
        return None
    far = hops > _ONE_NODE_HOPS if hops is not None else (weight or 0) > _ONE_NODE_WEIGHT
    return "SYS" if far else "PCIE"


def _devices(names: Sequence[str], shown: dict[str, str], lines: Sequence[str]) -> Iterator[Device]:
    series, numa = dict[str, str](), dict[str, str]()
    for line in lines:
        if found := _SERIES.search(line):
            series.setdefault(f"GPU{int(found[1])}", found[2])
        if found := _NUMA.search(line):
            numa[f"GPU{int(found[1])}"] = found[2]
    for name in names:
        yield Device(
            name=shown[name],
            title=series.get(shown[name], None if name == shown[name] else name),
            numa_affinity=numa.get(shown[name]),
        )


def _missing(
    tables: dict[str, _AmdTable], names: Sequence[str], shown: dict[str, str]
) -> Iterator[MissingRow]:
    for name in names:
        counts = [len(table.rows.get(name, [])) for table in tables.values()]
        if min(counts) < len(names):
            yield MissingRow(name=shown[name], num_cells=min(counts), num_expected=len(names))


def _notes(tables: dict[str, _AmdTable]) -> Iterator[str]:
    if "type" not in tables:
        yield "The table of link types is missing; without it the classes of links are not known."
    elif "weight" not in tables:
        types = {cell.upper() for row in tables["type"].rows.values() for cell in row}
        if "XGMI" in types:
            yield "The table of weights is missing; without it the number of hops of XGMI links is not known."
        if "PCIE" in types and "hops" not in tables:
            yield (
                "The tables of weights and hops are missing; without one of them it is not known whether "
                "links over PCIe stay inside a NUMA node."
            )


MOST_BYTES = 4_000_000
MOST_LINES = 20_000
MOST_LINE_CHARS = 20_000
# Colours and cursor movements (CSI), titles (OSC), and two-character escapes; also colours whose first
# character was lost when the text was copied.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_=>78])|\[\d{0,3}(?:;\d{1,3})*m"
)
# Line prefixes of mpirun --tag-output, srun --label and quoted mail.
_PREFIXES = re.compile(r"^\s*(?:(?:\[\d+,\s?\d+\]<std\w+>:?|\d{1,5}:(?=\s)|>+)\s?)+")


def plain_lines(content: bytes, where: str) -> tuple[str, ...]:
    """Return the lines of a text without escape sequences and control characters; tabs become two spaces.

    where: the name of the file, for messages.
    Raises DataError for binary content, or content larger than any topology.
    """
    if len(content) > MOST_BYTES:
        raise DataError(
            f"{where}: more than {MOST_BYTES:,} bytes; expected what nvidia-smi or rocm-smi print, a few kB: "
            "cut it out"
        )
    text = _decoded(content, where)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    longest = max(map(len, lines))
    if len(lines) > MOST_LINES or longest > MOST_LINE_CHARS:
        raise DataError(
            f"{where}: {len(lines):,} lines, the longest of {longest:,} characters; expected what nvidia-smi "
            "or rocm-smi print: cut it out"
        )
    return tuple(_plain(line) for line in lines)


def _decoded(content: bytes, where: str) -> str:
    """Return the content as text. Raises DataError if it is binary."""
    if b"\0" in content and not is_utf16(content):
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise DataError(f"{where}: line {line}: a NUL byte; expected text that nvidia-smi or rocm-smi print")
    return printed_text(content)


def _plain(line: str) -> str:
    text = _ESCAPES.sub("", line).replace("\t", "  ").replace("\N{NO-BREAK SPACE}", " ")
    text = "".join(char for char in text if char == " " or not unicodedata.category(char).startswith("C"))
    return _PREFIXES.sub("", text).rstrip()


# Parsers of the tools' output; the first that finds a device is used.
READERS = (read_amd, read_nvidia)


def read(content: bytes, *, where: str) -> Topology:
    """Return the topology of a machine from the output of its tools.

    where: the name of the file, for messages.
    Raises DataError if it is not text or has no accelerator; EvidenceError if it has no link.
    """
    lines = plain_lines(content, where)
    for reader in READERS:
        found = reader(lines)
        if found is not None and found.devices:
            _check_has_links(found, where)
            return found
    problem = (
        "empty"
        if not any(line.strip() for line in lines)
        else "no matrix of links and no list of accelerators"
    )
    raise DataError(
        f"{where}: {problem}; expected what `nvidia-smi topo -m`, `nvidia-smi -L`, `rocm-smi --showtopo` or "
        "`amd-smi topology` print"
    )


def _check_has_links(found: Topology, where: str) -> None:
    """Raise EvidenceError for a text in which only the column headers are left."""
    absent = {row.name for row in found.missing_rows if row.num_cells == 0}
    names = [device.name for device in found.devices if device.name in absent]
    shown = any(link.peers or link.weight for link in found.links) or any(
        device.title for device in found.devices
    )
    if len(names) > 1 and len(names) == len(found.devices) and not (shown or found.classes):
        raise EvidenceError(
            f"{where}: {len(names)} accelerators are named, but no link between them",
            missing=(f"the rows {', '.join(names[:8])}",),
        )


# Byte/s of the kernel's units of rates: Mbit/s for Ethernet, Gbit/s for RDMA devices.
_ETHERNET_BYTE_PER_S = 1e6 / 8
_RDMA_BYTE_PER_S = 1e3 * _ETHERNET_BYTE_PER_S
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")


def sockets(system: Path, processes: Path) -> Topology:
    """Return a topology with processor sockets as devices, the links between them, and network cards.

    Assumes sockets are connected like NUMA nodes, which nvidia-smi calls SYS.
    """
    devices = tuple(_sockets(system, processes))
    links = tuple(
        DeviceLink(a=a, b=b, link_class="SYS") for a, b in pairs(tuple(each.name for each in devices))
    )
    return Topology(
        origin="this machine",
        devices=devices,
        nics=tuple(_cards(system)),
        links=links,
    )


def _numbered(folder: Path, name: str) -> list[tuple[int, Path]]:
    """Return the entries of a folder whose names are `name` and a number, ordered by the number."""
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
        package = file_text(path / "topology" / "physical_package_id")
        if package.lstrip("-").isdigit():
            place = max(0, int(package))  # the kernel reports -1 if unknown
            threads.setdefault(place, []).append(number)
            cores.setdefault(place, set()).add(file_text(path / "topology" / "core_id"))
    title = cpuinfo("model name", processes) or None
    nodes = {
        number: _expanded(file_text(path / "cpulist"))
        for number, path in _numbered(system / "devices" / "system" / "node", "node")
    }
    for socket, cpus in sorted(threads.items()):
        near = [node for node, its in nodes.items() if its & set(cpus)]
        yield Device(
            name=f"CPU{socket}",
            kind="cpu",
            title=title,
            cpu_affinity=_ranges(cpus),
            numa_affinity=_ranges(near) if near else None,
            num_cores=len(cores[socket]),
        )


def _expanded(text: str) -> set[int]:
    """Return the numbers in a list of the kernel such as `0-3,8`."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def _ranges(numbers: list[int]) -> str:
    """Return numbers as a list in the kernel's format.

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
    """Yield physical network interfaces and RDMA devices, with the rates of their links."""
    folder = system / "class" / "net"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (path / "device").exists():
            speed = file_text(path / "speed")
            rate = int(speed) * _ETHERNET_BYTE_PER_S if speed.isdigit() and int(speed) > 0 else None
            yield Nic(name=path.name, byte_per_s=rate)
    folder = system / "class" / "infiniband"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield Nic(name=path.name, byte_per_s=rdma_byte_per_s(system, path.name))


def rdma_byte_per_s(system: Path, name: str) -> float | None:
    """Return the one-direction rate of an RDMA device's fastest port; None if not known."""
    if not re.fullmatch(r"[\w.-]+", name):
        return None
    ports = _numbered(system / "class" / "infiniband" / name / "ports", "")
    rates = [float(found[1]) for _, port in ports if (found := _RATE.match(file_text(port / "rate")))]
    return max(rates) * _RDMA_BYTE_PER_S if rates else None


# Byte/s of one lane in one direction, by PCIe generation (rates of the standard, without encoding overhead).
_LANE_BYTE_PER_S = {"1": 0.25e9, "2": 0.5e9, "3": 0.984e9, "4": 1.969e9, "5": 3.938e9, "6": 7.563e9}
_SLOT_QUERY = "--query-gpu=index,pcie.link.gen.max,pcie.link.width.max"
_SLOT = re.compile(r"\s*(\d+),\s*([1-6]),\s*([1-9]\d?)\s*")

Run = Callable[[Sequence[str]], str]


def here(*, run: Run | None = None, system: Path = Path("/sys"), processes: Path = PROCESSES) -> Topology:
    """Return the accelerators of this machine and their links, or its processor sockets if it has none.

    run: returns the output of a command, empty if it does not exist. system, processes: /sys and /proc.
    """
    run = run or command_output
    for reader in (_from_nvidia, _from_amd):
        found = reader(run)
        if found is not None:
            rates = {nic.name: rdma_byte_per_s(system, nic.title or nic.name) for nic in found.nics}
            nics = tuple(replace(nic, byte_per_s=rates[nic.name]) for nic in found.nics)
            return replace(found, nics=nics, origin=f"this machine: {found.origin}")
    found = sockets(system, processes)
    silent = [name for name in ("nvidia-smi", "rocm-smi", "amd-smi") if shutil.which(name)]
    why = f"{' and '.join(silent)} show none" if silent else "no nvidia-smi, rocm-smi or amd-smi is installed"
    note = f"No accelerator was found here ({why}): processor sockets are shown instead."
    return replace(found, notes=(*found.notes, note))


def _from_nvidia(run: Run) -> Topology | None:
    listed = run(("nvidia-smi", "-L"))
    if not listed.strip():
        return None
    texts = [listed]
    for options in (("-m",), ("-p2p", "r")):
        texts += [f"$ nvidia-smi topo {' '.join(options)}", run(("nvidia-smi", "topo", *options))]
    found = read_nvidia(plain_lines("\n".join(texts).encode(), "nvidia-smi"))
    if found is None or not found.devices:
        return None
    slots = _slots(run(("nvidia-smi", _SLOT_QUERY, "--format=csv,noheader")))
    devices = (replace(device, slot_byte_per_s=slots.get(device.name)) for device in found.devices)
    return replace(found, devices=tuple(devices))


def _slots(text: str) -> dict[str, float]:
    """Return the one-direction byte/s of each GPU's slot."""
    found = filter(None, map(_SLOT.fullmatch, text.splitlines()))
    return {f"GPU{int(each[1])}": _LANE_BYTE_PER_S[each[2]] * int(each[3]) for each in found}


def _from_amd(run: Run) -> Topology | None:
    for commands in (
        (("rocm-smi", "--showtopo"), ("rocm-smi", "--showproductname")),
        (("amd-smi", "topology"),),
    ):
        text = "\n".join(run(command) for command in commands)
        found = read_amd(plain_lines(text.encode(), commands[0][0])) if text.strip() else None
        if found is not None and found.devices:
            return found
    return None

"""A topology from pasted text, or of this machine: from its vendor's tools, else from the kernel.

What rocm-smi and amd-smi print is read here, what nvidia-smi prints in nvidia.py.
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
# A hop over Infinity Fabric weighs 15 (Linux, drivers/gpu/drm/amd/amdkfd/kfd_crat.c: KFD_CRAT_XGMI_WEIGHT);
# accelerator to processor to accelerator 40, and more where processors lie between.
_XGMI_HOP_WEIGHT = 15
_ONE_NODE_WEIGHT, _ONE_NODE_HOPS = 40, 2


class _AmdTable(Struct, kw_only=True):
    """One titled table: heads of its columns, and rows by name, cells from the left."""

    columns: list[str] = field(default_factory=list)
    rows: dict[str, list[str]] = field(default_factory=dict)

    def cell(self, a: str, b: str) -> str | None:
        """The word of a row and column; None where it is missing."""
        row = self.rows.get(a, [])
        place = self.columns.index(b) if b in self.columns else len(row)
        return row[place] if place < len(row) else None


def read_amd(lines: Sequence[str]) -> Topology | None:
    """The topology in a text of rocm-smi or amd-smi; None where it has no table of either."""
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
    """The tables by kind; the first of each."""
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
    weight, hops = (_whole(words.get(kind, [])) for kind in ("weight", "hops"))
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


def _whole(words: Sequence[str | None]) -> int | None:
    """The number that row and column agree on; None where they do not."""
    given = {word for word in words if word is not None}
    word = given.pop() if len(given) == 1 else ""
    return int(word) if re.fullmatch(r"\d{1,6}", word) else None


def _class(link_type: str, weight: int | None, hops: int | None) -> str | None:
    """The class of a pair in the words of nvidia-smi; XGMI stays, as NVLink's counterpart.

    Hops are 1 over XGMI however many there are: the weight counts. PCIe between two NUMA nodes is what SYS
    means; inside one, rocm-smi does not see switches.
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
# Colours and cursor movements (CSI), titles (OSC), and two-character escapes; colours also where copying the
# text has lost their first character.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_=>78])|\[\d{0,3}(?:;\d{1,3})*m"
)
# mpirun --tag-output, srun --label, quotes of mail.
_PREFIXES = re.compile(r"^\s*(?:(?:\[\d+,\s?\d+\]<std\w+>:?|\d{1,5}:(?=\s)|>+)\s?)+")


def plain_lines(content: bytes, where: str) -> tuple[str, ...]:
    """The lines of a text, each without escapes and control characters; tabs become two spaces.

    where: the name of the file, for messages.
    Raises DataError for what is binary or larger than any topology.
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
    """The content as text. Raises DataError where it is none."""
    if b"\0" in content and not is_utf16(content):
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise DataError(f"{where}: line {line}: a NUL byte; expected text that nvidia-smi or rocm-smi print")
    return printed_text(content)


def _plain(line: str) -> str:
    text = _ESCAPES.sub("", line).replace("\t", "  ").replace("\N{NO-BREAK SPACE}", " ")
    text = "".join(char for char in text if char == " " or not unicodedata.category(char).startswith("C"))
    return _PREFIXES.sub("", text).rstrip()


# Which functions read which tool's text; the first that finds anything is used.
READERS = (read_amd, read_nvidia)


def read(content: bytes, *, where: str) -> Topology:
    """The topology of a machine from what its tools printed.

    where: the name of the file, for messages.
    Raises DataError where it is no text, or has no accelerator; EvidenceError where it has no link.
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
    """Refuse a text of which only the heads of the columns are left."""
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


# Of a bit a second: Ethernet in millions, InfiniBand in thousands of millions.
_ETHERNET_BYTE_PER_S = 1e6 / 8
_RDMA_BYTE_PER_S = 1e3 * _ETHERNET_BYTE_PER_S
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")


def sockets(system: Path, processes: Path) -> Topology:
    """Processor sockets as devices, with the link between them, and the cards of the network.

    Assumes two sockets are connected as NUMA nodes are: what nvidia-smi calls SYS.
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
        package = file_text(path / "topology" / "physical_package_id")
        if package.lstrip("-").isdigit():
            place = max(0, int(package))  # -1 where the kernel does not know
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
            speed = file_text(path / "speed")
            rate = int(speed) * _ETHERNET_BYTE_PER_S if speed.isdigit() and int(speed) > 0 else None
            yield Nic(name=path.name, byte_per_s=rate)
    folder = system / "class" / "infiniband"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield Nic(name=path.name, byte_per_s=rdma_byte_per_s(system, path.name))


def rdma_byte_per_s(system: Path, name: str) -> float | None:
    """The rate of an RDMA device's fastest port, one direction; None where the kernel does not know it."""
    if not re.fullmatch(r"[\w.-]+", name):
        return None
    ports = _numbered(system / "class" / "infiniband" / name / "ports", "")
    rates = [float(found[1]) for _, port in ports if (found := _RATE.match(file_text(port / "rate")))]
    return max(rates) * _RDMA_BYTE_PER_S if rates else None


# Byte/s of one lane in one direction, by generation of PCIe (rates of the standard, encoding taken off).
_LANE_BYTE_PER_S = {"1": 0.25e9, "2": 0.5e9, "3": 0.984e9, "4": 1.969e9, "5": 3.938e9, "6": 7.563e9}
_SLOT_QUERY = "--query-gpu=index,pcie.link.gen.max,pcie.link.width.max"
_SLOT = re.compile(r"\s*(\d+),\s*([1-6]),\s*([1-9]\d?)\s*")

Run = Callable[[Sequence[str]], str]


def here(*, run: Run | None = None, system: Path = Path("/sys"), processes: Path = PROCESSES) -> Topology:
    """The accelerators of this machine and their links; its processor sockets where it has none.

    run: what a command prints, empty where there is no such command. system, processes: folders of the
    kernel.
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
    """Byte/s of the slot of each GPU, one direction."""
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

"""What rocm-smi and amd-smi print of a machine's topology, as a Topology."""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from equipoise.bench.topology.topology import Device, DeviceLink, MissingRow, Topology, pairs

_TITLES = (
    ("weight", re.compile(r"weight between two gpus|weight table", re.IGNORECASE)),
    ("hops", re.compile(r"hops between two gpus|hops table", re.IGNORECASE)),
    ("type", re.compile(r"link type between two gpus|link type table", re.IGNORECASE)),
    ("other", re.compile(r"={4,}.*[a-z].*={4,}|\w+ table:|numa nodes|legend", re.IGNORECASE)),
)
_AMD_NAME = re.compile(r"GPU\d{1,3}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_NUMA = re.compile(r"GPU\[(\d{1,3})\]\s*:\s*\(Topology\)\s*Numa (Node|Affinity):\s*(-?\d+)", re.IGNORECASE)
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
    series, numa = dict[str, str](), dict[tuple[str, str], str]()
    for line in lines:
        if found := _SERIES.search(line):
            series.setdefault(f"GPU{int(found[1])}", found[2])
        if found := _NUMA.search(line):
            numa[f"GPU{int(found[1])}", found[2].lower()] = found[3]
    for name in names:
        yield Device(
            name=shown[name],
            title=series.get(shown[name], None if name == shown[name] else name),
            numa_affinity=numa.get((shown[name], "affinity")),
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
        yield "The table of weights is missing; without it the number of hops of XGMI links is not known."

"""What nvidia-smi prints: `topo -m`, `topo -p2p`, `-L` with MIG slices, in any mixture."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from equipoise.bench.topology.matrix import SELF, Matrix, Row, affinities, matrices
from equipoise.bench.topology.topology import Device, Link, MissingRow, Nic, Topology, pairs
from equipoise.spec.link_class import PEER_WORDS, link_class

_LISTED = re.compile(r"^\s*GPU\s+(\d{1,3}):\s*(\S.*?)\s*(?:\(UUID.*)?$")
_SLICE = re.compile(r"^\s*MIG\s+(\S+)\s+Device\s+\d+:")
_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$")
_PEERS_ASKED = re.compile(r"-p2p\s+(\w+)")
# What `topo -p2p` can tell of memory; its other tables are of NVLink, atomics and PCIe.
_OF_MEMORY = frozenset({"r", "w", "rw", "p"})
_ACCELERATOR = "GPU"


@dataclass(slots=True, kw_only=True)
class _Cells:
    """Words of a matrix by row and column, the rows that are not whole, and what was left out."""

    names: list[str]
    words: dict[tuple[str, str], str] = field(default_factory=dict)
    missing: list[MissingRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read(lines: Sequence[str]) -> Topology | None:
    """The topology that a text of nvidia-smi tells; None where it tells none."""
    found = matrices(lines)
    links = [matrix for matrix in found if not matrix.is_of_peers]
    peers = [matrix for matrix in found if matrix.is_of_peers and _asked(matrix, lines) in _OF_MEMORY]
    listed = dict(_listed(lines))
    if not (links or peers or listed):
        return None
    cells = _cells((links or peers)[0]) if links or peers else _Cells(names=sorted(listed, key=_by_number))
    notes = [*cells.notes, *_others(links)]
    if listed and not links:
        notes.append("No matrix of links is in the text; `nvidia-smi topo -m` prints it.")
    if peers and not links:
        notes.append("The text says who reaches whose memory, not by which links; `nvidia-smi topo -m` does.")
    names = sorted((name for name in cells.names if name.startswith(_ACCELERATOR)), key=_by_number)
    strange = [name for name in listed if name not in names]
    if strange:
        notes.append(f"`nvidia-smi -L` lists {', '.join(strange)}, the matrix does not.")
    return Topology(
        origin=_origin(has_links=bool(links), has_peers=bool(peers), has_list=bool(listed)),
        devices=tuple(_device(name, links[0] if links else None, listed.get(name)) for name in names),
        nics=_nics(cells.names, lines),
        links=tuple(_links(cells, peers, is_of_peers=not links)),
        missing_rows=tuple(cells.missing),
        notes=tuple(notes),
    )


def _by_number(name: str) -> tuple[str, int, str, str]:
    """By what names sort: GPU2 before GPU10. Python refuses to read a number of more than 4,300 digits."""
    prefix = name.rstrip("0123456789")
    digits = name.removeprefix(prefix).lstrip("0")
    return prefix, len(digits), digits, name


def _origin(*, has_links: bool, has_peers: bool, has_list: bool) -> str:
    parts = (("topo -m", has_links), ("topo -p2p", has_peers), ("-L", has_list))
    return "nvidia-smi " + ", ".join(name for name, is_there in parts if is_there)


def _asked(matrix: Matrix, lines: Sequence[str]) -> str:
    """Which table of peers was asked for by the last command before it; `rw` where none is echoed."""
    asked = _PEERS_ASKED.findall("\n".join(lines[: matrix.line]))
    return asked[-1] if asked else "rw"


def _listed(lines: Iterable[str]) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    """Name, title and slices of every GPU that `nvidia-smi -L` lists."""
    found: dict[str, tuple[str, list[str]]] = {}
    last: str | None = None
    for line in lines:
        if listed := _LISTED.match(line):
            last = f"{_ACCELERATOR}{int(listed[1])}"
            found.setdefault(last, (listed[2], []))
        elif last is not None and (part := _SLICE.match(line)):
            found[last][1].append(part[1])
    for name, (title, slices) in found.items():
        yield name, (title, tuple(slices))


def _others(links: Sequence[Matrix]) -> Iterator[str]:
    """What is said of further matrices in one text."""
    for other in links[1:]:
        if _cells(other).words != _cells(links[0]).words:
            yield (
                f"A further matrix of links, from line {other.line}, differs from the first, and is left "
                "out: give one machine at a time."
            )


def _cells(matrix: Matrix) -> _Cells:
    """The words of a matrix by row and column; rows that do not line up with the heads are left out."""
    cells = _Cells(names=list(matrix.columns))
    if not matrix.columns:
        cells.names = _columns_by_self(matrix)
        cells.notes.append("The heads of the columns are missing; the X in each row tells which is its own.")
    seen: dict[str, Row] = {}
    for row in matrix.rows:
        if row.name in seen and (not row.cells or row.cells == seen[row.name].cells):
            continue
        trouble = _trouble(row, cells.names, seen)
        if trouble:
            cells.notes.append(f"Row {row.name}, line {row.line}: {trouble}; it is left out.")
            continue
        seen[row.name] = row
    _add_rows(cells, seen)
    return cells


def _columns_by_self(matrix: Matrix) -> list[str]:
    """Names of the columns where their heads are cut off: each is that of the row that has its X there."""
    places = {row.cells.index(SELF): row.name for row in matrix.rows if row.cells.count(SELF) == 1}
    return [places.get(place, "") for place in range(max(places, default=-1) + 1)]


def _trouble(row: Row, names: Sequence[str], seen: dict[str, Row]) -> str | None:
    """Why a row cannot be used; None where it can."""
    if row.name in seen:
        return "it differs from an earlier row of that name"
    if row.cells.count(SELF) > 1:
        return f"{row.cells.count(SELF)} cells say X"
    if row.name not in names:
        return None
    own = names.index(row.name)
    is_off = SELF in row.cells and row.cells.index(SELF) != own
    if is_off or (len(row.cells) > own and row.cells[own] != SELF):
        return "its cells do not line up with the heads of the columns"
    return None


def _add_rows(cells: _Cells, rows: dict[str, Row]) -> None:
    for name, row in rows.items():
        for column, word in zip(cells.names, row.cells, strict=False):
            if column and column != name:
                cells.words[name, column] = word
    columns = [name for name in cells.names if name]
    for name in columns:
        there = rows.get(name)
        count = 0 if there is None else len(there.cells)
        if there is not None:
            count -= _drop_cut_cell(cells, there)
        if count < len(cells.names):
            cells.missing.append(MissingRow(name=name, num_cells=count, num_expected=len(cells.names)))
    cells.names = columns + [name for name in rows if name not in columns]
    strange = {word for word in cells.words.values() if link_class(word) is None} - PEER_WORDS.keys()
    if strange:
        cells.notes.append(f"No class of link that is known here: {', '.join(sorted(strange)[:5])}.")


def _drop_cut_cell(cells: _Cells, row: Row) -> int:
    """Forget the last cell of a row in which the text ends, where more of it may have been cut; 1 if so.

    Assumes whole tables end in an X or an affinity.
    """
    if not (row.ends_text and row.cells) or row.behind or row.cells[-1] == SELF:
        return 0
    column = cells.names[min(len(row.cells), len(cells.names)) - 1]
    word = cells.words.get((row.name, column))
    may_be_cut = word is not None and (link_class(word) is None or re.fullmatch(r"NV\d", word) is not None)
    if not may_be_cut or cells.words.get((column, row.name)) == word:
        return 0
    del cells.words[row.name, column]
    return 1


def _device(name: str, matrix: Matrix | None, listed: tuple[str, tuple[str, ...]] | None) -> Device:
    row = next((row for row in matrix.rows if row.name == name), None) if matrix else None
    found = affinities(matrix, row) if matrix and row and len(row.cells) == len(matrix.columns) else {}
    said = {head: text for head, text in found.items() if text.upper() != "N/A"}
    title, slices = listed or (None, ())
    return Device(
        name=name,
        title=title,
        cpu_affinity=said.get("cpu"),
        numa_affinity=said.get("numa"),
        numa_id=said.get("numa_id"),
        slices=slices,
    )


def _nics(names: Iterable[str], lines: Iterable[str]) -> tuple[Nic, ...]:
    titles = {found[1]: found[2] for line in lines if (found := _LEGEND.match(line))}
    return tuple(
        Nic(name=name, title=titles.get(name)) for name in names if not name.startswith(_ACCELERATOR)
    )


def _links(cells: _Cells, peers: Sequence[Matrix], *, is_of_peers: bool) -> Iterator[Link]:
    """Every pair of accelerators and cards: first those of accelerators, all in order."""
    access: dict[tuple[str, str], str] = {}
    for matrix in peers:
        access |= _cells(matrix).words
    accelerators = sorted((name for name in cells.names if name.startswith(_ACCELERATOR)), key=_by_number)
    cards = [name for name in cells.names if not name.startswith(_ACCELERATOR)]
    for a, b in pairs((*accelerators, *cards)):
        said = [] if is_of_peers else [cells.words.get(pair) for pair in ((a, b), (b, a))]
        given = [word for word in said if word is not None]
        disagree = len(given) > 1 and link_class(given[0]) != link_class(given[1])
        reached = [access[pair] for pair in ((a, b), (b, a)) if pair in access]
        yield Link(
            a=a,
            b=b,
            link_class=link_class(given[0]) if given and not disagree else None,
            said=(given[0], given[1]) if disagree else None,
            peers=next((word for word in reached if word != "OK"), reached[0] if reached else None),
        )

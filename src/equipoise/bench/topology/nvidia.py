"""Parses nvidia-smi's output on a machine's topology into a Topology."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.bench.topology.topology import Device, DeviceLink, MissingRow, Nic, Topology, pairs
from equipoise.spec.links import PEER_WORDS, link_class

MOST_COLUMNS = 256
SELF = "X"
_HEADS = {"cpu": r"CPU\s+Affinity", "numa": r"NUMA\s+Affinity", "numa_id": r"GPU\s+NUMA\s+ID"}
_HEAD = re.compile("|".join(f"(?P<{key}>{pattern})" for key, pattern in _HEADS.items()), re.IGNORECASE)
_NUMBERED = r"GPU\d+|NIC\d+|mlx\d+_(?:bond_)?\d+"
# RDMA devices of the kernel: a vendor's prefix and a number, or a name derived from the slot (rocep145s0).
_RDMA = (
    r"(?:hfi1|efa|qedr|hns|irdma|erdma|cxi|mana|usnic|ionic|i40iw|mthca|siw|rxe|ib|iw)[\w.]*_?\d+"
    r"|bnxt_re\w*\d+|(?:roce|ib|iw|rdma)[a-z]*\d\w*|[a-z]\w*_\d+"
)
_MATRIX_NAME = re.compile(rf"(?:{_NUMBERED}|{_RDMA})")
_NAMES_RUN_TOGETHER = re.compile(rf"(?:{_NUMBERED}){{2,}}")
_WORD = r"X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC"
_CELLS_RUN_TOGETHER = re.compile(rf"(?:{_WORD}){{2,}}")
# A link class of a later driver, or a truncated one.
_UNKNOWN_CELL = re.compile(r"[A-Z][A-Z0-9#!?]{1,5}")
_AFFINITY = re.compile(r"(?:\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*,?|N/A|0x[0-9a-f,]+)", re.IGNORECASE)

Kind: TypeAlias = Literal["name", "cell", "head", "legend", "other"]


class MatrixWord(Struct, frozen=True, kw_only=True):
    """One word of the text with its kind and line number."""

    text: str
    kind: Kind
    line: int


class LinkRow(Struct, kw_only=True):
    """A row as read: cells from the left, and the words behind them on its line."""

    name: str
    line: int
    cells: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    ends_text: bool = False


class LinkMatrix(Struct, kw_only=True):
    """A matrix as read: its column headers (empty if they are cut off), and rows in order.

    heads: headers of the affinity columns, in order.
    """

    line: int
    columns: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    rows: list[LinkRow] = field(default_factory=list)

    @property
    def is_of_peers(self) -> bool:
        """Return whether its words are those of `topo -p2p`."""
        words = {cell for row in self.rows for cell in row.cells} - {SELF}
        return bool(words) and words <= PEER_WORDS.keys()


def words(lines: Sequence[str]) -> Iterator[MatrixWord]:
    """Yield the words of a text; names, cells and headers that are run together are split."""
    for number, line in enumerate(lines, start=1):
        marked = _HEAD.sub(lambda found: f" \0{found.lastgroup} ", line.replace("|", " "))
        for chunk in marked.split():
            for text, kind in _parts(chunk):
                yield MatrixWord(text=text, kind=kind, line=number)


def _parts(chunk: str) -> Iterator[tuple[str, Kind]]:
    if chunk.startswith("\0"):
        yield chunk[1:], "head"
    elif chunk.lower().startswith("legend"):
        yield chunk, "legend"
    elif _NAMES_RUN_TOGETHER.fullmatch(chunk):
        for name in re.findall(_NUMBERED, chunk):
            yield name, "name"
    elif _MATRIX_NAME.fullmatch(chunk):
        yield chunk, "name"
    elif chunk == SELF or chunk in PEER_WORDS or link_class(chunk) is not None:
        yield chunk, "cell"
    elif _CELLS_RUN_TOGETHER.fullmatch(chunk):
        for cell in re.findall(_WORD, chunk):
            yield cell, "cell"
    else:
        yield from _name_and_cells(chunk)


def _name_and_cells(chunk: str) -> Iterator[tuple[str, Kind]]:
    """Split a row's name that is run together with its cells; yield any other word as it is."""
    fused = re.fullmatch(rf"((?:GPU|NIC)\d+)((?:{_WORD})+)", chunk)
    if fused is None:
        yield chunk, "other"
        return
    yield fused[1], "name"
    for cell in re.findall(_WORD, fused[2]):
        yield cell, "cell"


def _heads_of_columns(names: Sequence[MatrixWord]) -> list[str]:
    """Return each name once, from the line of the first accelerator on; earlier words are not headers."""
    accelerators = [word.line for word in names if word.text.startswith("GPU")]
    if not accelerators:
        return []
    return list(dict.fromkeys(word.text for word in names if word.line >= accelerators[0]))[:MOST_COLUMNS]


class _MatrixReader:
    """Builds matrices from a sequence of words."""

    def __init__(self, stream: Sequence[MatrixWord]) -> None:
        self.stream = stream
        self.place = 0
        self.matrices: list[LinkMatrix] = []
        self.current: LinkMatrix | None = None

    def read(self) -> list[LinkMatrix]:
        """Return every matrix in the stream that has rows or affinity headers."""
        while self.place < len(self.stream):
            word = self.stream[self.place]
            if word.kind == "legend":
                self.current = None
            if word.kind == "name":
                self._names()
            else:
                self.place += 1
        return [matrix for matrix in self.matrices if matrix.rows or matrix.heads]

    def _take_while(
        self, wanted: Callable[[MatrixWord], bool], *, most: int | None = None
    ) -> list[MatrixWord]:
        """Consume and return the following words while they are wanted, at most `most`."""
        start = self.place
        end = len(self.stream) if most is None else min(len(self.stream), start + most)
        while self.place < end and wanted(self.stream[self.place]):
            self.place += 1
        return list(self.stream[start : self.place])

    def _names(self) -> None:
        """Read consecutive names: column headers, rows without cells, and possibly the name of a row."""
        run = self._take_while(lambda word: word.kind == "name")
        behind = self.stream[self.place] if self.place < len(self.stream) else None
        begins_row = behind is not None and self._is_cell(behind, run[-1])
        heads = run[:-1] if begins_row else run
        if heads:
            self._columns(heads)
        if begins_row:
            self._row(run[-1])

    def _columns(self, names: Sequence[MatrixWord]) -> None:
        """Read names as column headers, or as rows without cells if they are among the current columns."""
        current = self.current
        if current is not None and {word.text for word in names} < set(current.columns):
            current.rows += [LinkRow(name=word.text, line=word.line) for word in names]
            return
        texts = _heads_of_columns(names)
        if texts and (current is None or texts != current.columns or current.rows):
            self.current = LinkMatrix(line=names[0].line, columns=texts)
            self.matrices.append(self.current)
        heads = self._take_while(lambda word: word.kind == "head")
        if self.current is not None:
            self.current.heads += [word.text for word in heads]

    def _row(self, name: MatrixWord) -> None:
        if self.current is None:
            self.current = LinkMatrix(line=name.line)
            self.matrices.append(self.current)
        width = len(self.current.columns) or MOST_COLUMNS
        cells = self._take_while(lambda word: self._is_cell(word, name), most=width)
        last = self.stream[self.place - 1].line
        behind = self._take_while(lambda word: word.kind in ("other", "cell") and word.line == last)
        row = LinkRow(
            name=name.text,
            line=name.line,
            cells=[word.text for word in cells],
            behind=[word.text for word in behind],
            ends_text=self.place >= len(self.stream),
        )
        self.current.rows.append(row)

    def _is_cell(self, word: MatrixWord, name: MatrixWord) -> bool:
        """Return whether a word is a cell of a row: a link class, or similar text where one is expected."""
        if word.kind == "cell":
            return True
        if self.current is None or name.text not in self.current.columns or word.line != name.line:
            return False
        return word.kind == "other" and _UNKNOWN_CELL.fullmatch(word.text) is not None


def matrices(lines: Sequence[str]) -> list[LinkMatrix]:
    """Return every matrix of device names in a text, in order."""
    return _MatrixReader(list(words(lines))).read()


def affinities(matrix: LinkMatrix, row: LinkRow) -> dict[str, str]:
    """Return the affinities of a complete row by header; empty if they are ambiguous.

    Assumes that an accelerator has either all affinities or, like a card, none.
    """
    found = [text for text in row.behind if _AFFINITY.fullmatch(text)]
    if len(found) != len(row.behind) or len(found) > len(matrix.heads):
        return {}
    return dict(zip(matrix.heads, found, strict=False))


_LISTED = re.compile(r"^\s*GPU\s+(\d{1,3}):\s*(\S.*?)\s*(?:\(UUID.*)?$")
_SLICE = re.compile(r"^\s*MIG\s+(\S+)\s+Device\s+\d+:")
_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$")
_PEERS_OPTION = re.compile(r"-p2p\s+(\w+)")
# The options of `topo -p2p` about memory access; its other tables are about NVLink, atomics and PCIe.
_OF_MEMORY = frozenset({"r", "w", "rw", "p"})
_ACCELERATOR = "GPU"


class _Cells(Struct, kw_only=True):
    """Cells of a matrix by row and column, its incomplete rows, and notes on what was not used."""

    names: list[str]
    words: dict[tuple[str, str], str] = field(default_factory=dict)
    missing: list[MissingRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_nvidia(lines: Sequence[str]) -> Topology | None:
    """Return the topology in the output of nvidia-smi; None if there is none."""
    found = matrices(lines)
    links = [matrix for matrix in found if not matrix.is_of_peers]
    peers = [matrix for matrix in found if matrix.is_of_peers and _peers_option(matrix, lines) in _OF_MEMORY]
    listed = _listed(lines)
    if not (links or peers or listed):
        return None
    cells = _cells((links or peers)[0]) if links or peers else _Cells(names=sorted(listed, key=_by_number))
    notes = [*cells.notes, *_others(links)]
    if listed and not links:
        notes.append("The text has no matrix of links; `nvidia-smi topo -m` prints it.")
    if peers and not links:
        notes.append("The text states peer access, but not the links; `nvidia-smi topo -m` prints them.")
    names = sorted((name for name in cells.names if name.startswith(_ACCELERATOR)), key=_by_number)
    not_shown = [name for name in listed if name not in names]
    parts = (("topo -m", links), ("topo -p2p", peers), ("-L", listed))
    if not_shown:
        notes.append(f"`nvidia-smi -L` lists {', '.join(not_shown)}, the matrix does not.")
    return Topology(
        origin="nvidia-smi " + ", ".join(name for name, there in parts if there),
        devices=tuple(_device(listed.get(name) or Device(name=name), links) for name in names),
        nics=_nics(cells.names, lines),
        links=tuple(_links(cells, peers, is_of_peers=not links)),
        missing_rows=tuple(cells.missing),
        notes=tuple(notes),
    )


def _by_number(name: str) -> tuple[str, int, str, str]:
    """Return a sort key with GPU2 before GPU10. It avoids int(), which refuses more than 4,300 digits."""
    prefix = name.rstrip("0123456789")
    digits = name.removeprefix(prefix).lstrip("0")
    return prefix, len(digits), digits, name


def _peers_option(matrix: LinkMatrix, lines: Sequence[str]) -> str:
    """Return the -p2p option of the last command echoed before a matrix; `rw` if there is none."""
    options = _PEERS_OPTION.findall("\n".join(lines[: matrix.line]))
    return options[-1] if options else "rw"


def _listed(lines: Iterable[str]) -> dict[str, Device]:
    """Return every GPU that `nvidia-smi -L` lists, with its title and slices, by name."""
    found: dict[str, Device] = {}
    last: str | None = None
    for line in lines:
        if listed := _LISTED.match(line):
            last = f"{_ACCELERATOR}{int(listed[1])}"
            found.setdefault(last, Device(name=last, title=listed[2]))
        elif last is not None and (part := _SLICE.match(line)):
            found[last] = replace(found[last], slices=(*found[last].slices, part[1]))
    return found


def _others(links: Sequence[LinkMatrix]) -> Iterator[str]:
    for other in links[1:]:
        if _cells(other).words != _cells(links[0]).words:
            yield (
                f"A further matrix of links, from line {other.line}, differs from the first and is "
                "not used: give one machine at a time."
            )


def _cells(matrix: LinkMatrix) -> _Cells:
    """Return the cells of a matrix by row and column; rows that do not match the headers are left out."""
    cells = _Cells(names=list(matrix.columns))
    if not matrix.columns:
        cells.names = _columns_by_self(matrix)
        cells.notes.append("The heads of the columns are missing; the X in each row shows which is its own.")
    seen: dict[str, LinkRow] = {}
    for row in matrix.rows:
        if row.name in seen and (not row.cells or row.cells == seen[row.name].cells):
            continue
        problem = _problem(row, cells.names, seen)
        if problem:
            cells.notes.append(f"Row {row.name}, line {row.line}: {problem}; it is not used.")
            continue
        seen[row.name] = row
    _add_rows(cells, seen)
    return cells


def _columns_by_self(matrix: LinkMatrix) -> list[str]:
    """Return column names for a matrix without headers: a column is named by the row with its X there.

    A name is used for one column only: the first row of that name counts, and others do not match it.
    """
    places: dict[int, str] = {}
    for row in matrix.rows:
        if row.cells.count(SELF) == 1 and row.name not in places.values():
            places[row.cells.index(SELF)] = row.name
    return [places.get(place, "") for place in range(max(places, default=-1) + 1)]


def _problem(row: LinkRow, names: Sequence[str], seen: dict[str, LinkRow]) -> str | None:
    """Return the reason why a row cannot be used; None if it can."""
    if row.name in seen:
        return "it differs from an earlier row of that name"
    if row.cells.count(SELF) > 1:
        return f"{row.cells.count(SELF)} cells are X"
    if row.name not in names:
        # An X under an existing column belongs to that column's device, so this row's own header is missing.
        return "its name heads no column" if SELF in row.cells[: len(names)] else None
    place = names.index(row.name)
    is_off = SELF in row.cells and row.cells.index(SELF) != place
    if is_off or (len(row.cells) > place and row.cells[place] != SELF):
        return "its cells do not line up with the heads of the columns"
    return None


def _add_rows(cells: _Cells, rows: dict[str, LinkRow]) -> None:
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
    unknown = {word for word in cells.words.values() if link_class(word) is None} - PEER_WORDS.keys()
    if unknown:
        cells.notes.append(f"Unknown classes of link: {', '.join(sorted(unknown)[:5])}.")


def _drop_cut_cell(cells: _Cells, row: LinkRow) -> int:
    """Delete the last cell of a row at the end of the text if it may be truncated; return the number deleted.

    Assumes complete tables end in an X or an affinity.
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


def _device(listed: Device, links: Sequence[LinkMatrix]) -> Device:
    """Return the device with the affinities of its row in the first matrix."""
    rows = [row for row in links[0].rows if row.name == listed.name] if links else []
    is_whole = bool(rows) and len(rows[0].cells) == len(links[0].columns)
    found = affinities(links[0], rows[0]) if is_whole else {}
    known = {head: text for head, text in found.items() if text.upper() != "N/A"}
    return replace(
        listed,
        cpu_affinity=known.get("cpu"),
        numa_affinity=known.get("numa"),
        numa_id=known.get("numa_id"),
    )


def _nics(names: Iterable[str], lines: Iterable[str]) -> tuple[Nic, ...]:
    titles = {found[1]: found[2] for line in lines if (found := _LEGEND.match(line))}
    return tuple(
        Nic(name=name, title=titles.get(name)) for name in names if not name.startswith(_ACCELERATOR)
    )


def _links(cells: _Cells, peers: Sequence[LinkMatrix], *, is_of_peers: bool) -> Iterator[DeviceLink]:
    """Yield the link of every pair of accelerators and cards, accelerators first."""
    access: dict[tuple[str, str], str] = {}
    for matrix in peers:
        access |= _cells(matrix).words
    accelerators = sorted((name for name in cells.names if name.startswith(_ACCELERATOR)), key=_by_number)
    cards = [name for name in cells.names if not name.startswith(_ACCELERATOR)]
    for a, b in pairs((*accelerators, *cards)):
        words = [] if is_of_peers else [cells.words.get(pair) for pair in ((a, b), (b, a))]
        given = [word for word in words if word is not None]
        disagree = len(given) > 1 and link_class(given[0]) != link_class(given[1])
        reached = [access[pair] for pair in ((a, b), (b, a)) if pair in access]
        yield DeviceLink(
            a=a,
            b=b,
            link_class=link_class(given[0]) if given and not disagree else None,
            conflict=(given[0], given[1]) if disagree else None,
            peers=next((word for word in reached if word != "OK"), reached[0] if reached else None),
        )

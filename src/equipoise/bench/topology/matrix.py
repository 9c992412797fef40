"""The matrix that `nvidia-smi topo` prints, read as a stream of words: tabs and line ends do not matter.

Grammar: names of columns, heads of affinity; then rows: a name, a word for each column, affinities. Rows may
be cut, wrapped, or all on one line; heads and cells may be run together.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from equipoise.spec.link_class import PEER_WORDS, link_class

MOST_COLUMNS = 256
SELF = "X"
_HEADS = {"cpu": r"CPU\s+Affinity", "numa": r"NUMA\s+Affinity", "numa_id": r"GPU\s+NUMA\s+ID"}
_HEAD = re.compile("|".join(f"(?P<{key}>{pattern})" for key, pattern in _HEADS.items()), re.IGNORECASE)
_NUMBERED = r"GPU\d+|NIC\d+|mlx\d+_(?:bond_)?\d+"
# Devices of the kernel's RDMA layer: vendor's prefix and number, or a name after the slot (rocep145s0).
_RDMA = (
    r"(?:hfi1|efa|qedr|hns|irdma|erdma|cxi|mana|usnic|ionic|i40iw|mthca|siw|rxe|ib|iw)[\w.]*_?\d+"
    r"|bnxt_re\w*\d+|(?:roce|ib|iw|rdma)[a-z]*\d\w*|[a-z]\w*_\d+"
)
_NAME = re.compile(rf"(?:{_NUMBERED}|{_RDMA})")
_NAMES_RUN_TOGETHER = re.compile(rf"(?:{_NUMBERED}){{2,}}")
_WORD = r"X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC"
_CELLS_RUN_TOGETHER = re.compile(rf"(?:{_WORD}){{2,}}")
# A class of some later driver, or one that is cut.
_UNKNOWN_CELL = re.compile(r"[A-Z][A-Z0-9#!?]{1,5}")
_AFFINITY = re.compile(r"(?:\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*,?|N/A|0x[0-9a-f,]+)", re.IGNORECASE)

Kind: TypeAlias = Literal["name", "cell", "head", "legend", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of the text, of what kind, and the line it stands on."""

    text: str
    kind: Kind
    line: int


@dataclass(slots=True, kw_only=True)
class Row:
    """A row as read: cells from the left; what stands behind them on its line."""

    name: str
    line: int
    cells: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    ends_text: bool = False


@dataclass(slots=True, kw_only=True)
class Matrix:
    """A matrix as read: columns as headed (none where the heads are cut off), and rows in order.

    heads: of the affinities, in order.
    """

    line: int
    columns: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def is_of_peers(self) -> bool:
        """Whether its words are of `topo -p2p`."""
        words = {cell for row in self.rows for cell in row.cells} - {SELF}
        return bool(words) and words <= PEER_WORDS.keys()


def is_name(text: str) -> bool:
    """Whether a word may be the name of an accelerator or a network card."""
    return _NAME.fullmatch(text) is not None


def _is_cell(text: str) -> bool:
    return text == SELF or text in PEER_WORDS or link_class(text) is not None


def words(lines: Sequence[str]) -> Iterator[Word]:
    """The words of a text; names, cells and heads that are run together are taken apart."""
    for number, line in enumerate(lines, start=1):
        marked = _HEAD.sub(lambda found: f" \0{found.lastgroup} ", line.replace("|", " "))
        for chunk in marked.split():
            for text, kind in _parts(chunk):
                yield Word(text=text, kind=kind, line=number)


def _parts(chunk: str) -> Iterator[tuple[str, Kind]]:
    if chunk.startswith("\0"):
        yield chunk[1:], "head"
    elif chunk.lower().startswith("legend"):
        yield chunk, "legend"
    elif _NAMES_RUN_TOGETHER.fullmatch(chunk):
        for name in re.findall(_NUMBERED, chunk):
            yield name, "name"
    elif is_name(chunk):
        yield chunk, "name"
    elif _is_cell(chunk):
        yield chunk, "cell"
    elif _CELLS_RUN_TOGETHER.fullmatch(chunk):
        for cell in re.findall(_WORD, chunk):
            yield cell, "cell"
    else:
        yield from _name_and_cells(chunk)


def _name_and_cells(chunk: str) -> Iterator[tuple[str, Kind]]:
    """A row's name that is run together with its cells, or just some other word."""
    fused = re.fullmatch(rf"((?:GPU|NIC)\d+)((?:{_WORD})+)", chunk)
    if fused is None:
        yield chunk, "other"
        return
    yield fused[1], "name"
    for cell in re.findall(_WORD, fused[2]):
        yield cell, "cell"


def _heads_of_columns(names: Sequence[Word]) -> list[str]:
    """Names each once, from the line of the first accelerator on; words before it are not of the table."""
    accelerators = [word.line for word in names if word.text.startswith("GPU")]
    if not accelerators:
        return []
    return list(dict.fromkeys(word.text for word in names if word.line >= accelerators[0]))[:MOST_COLUMNS]


class _Reader:
    """Makes matrices of words, one word at a time."""

    def __init__(self, stream: Sequence[Word]) -> None:
        self.stream = stream
        self.place = 0
        self.matrices: list[Matrix] = []
        self.current: Matrix | None = None

    def read(self) -> list[Matrix]:
        """Every matrix of the stream that has columns or rows."""
        while self.place < len(self.stream):
            word = self.stream[self.place]
            if word.kind == "legend":
                self.current = None
            if word.kind == "name":
                self._names()
            else:
                self.place += 1
        return [matrix for matrix in self.matrices if matrix.rows or matrix.heads]

    def _peek(self, place: int) -> Word | None:
        return self.stream[place] if place < len(self.stream) else None

    def _names(self) -> None:
        """A run of names: columns, rows that are cut to their name, and perhaps a row that begins."""
        start = self.place
        while (word := self._peek(self.place)) is not None and word.kind == "name":
            self.place += 1
        run = list(self.stream[start : self.place])
        behind = self._peek(self.place)
        begins_row = behind is not None and (behind.kind == "cell" or self._is_strange_cell(behind, run[-1]))
        heads = run[:-1] if begins_row else run
        if heads:
            self._columns(heads)
        if begins_row:
            self._row(run[-1])

    def _columns(self, names: Sequence[Word]) -> None:
        """Names that head columns; or the names of rows without a cell, under columns that are known."""
        current = self.current
        if current is not None and {word.text for word in names} < set(current.columns):
            current.rows += [Row(name=word.text, line=word.line) for word in names]
            return
        texts = _heads_of_columns(names)
        if texts and (current is None or texts != current.columns or current.rows):
            self.current = Matrix(line=names[0].line, columns=texts)
            self.matrices.append(self.current)
        while (word := self._peek(self.place)) is not None and word.kind == "head":
            if self.current is not None:
                self.current.heads.append(word.text)
            self.place += 1

    def _row(self, name: Word) -> None:
        if self.current is None:
            self.current = Matrix(line=name.line)
            self.matrices.append(self.current)
        row = Row(name=name.text, line=name.line)
        width = len(self.current.columns) or MOST_COLUMNS
        while (
            (word := self._peek(self.place)) is not None
            and len(row.cells) < width
            and (word.kind == "cell" or self._is_strange_cell(word, name))
        ):
            row.cells.append(word.text)
            self.place += 1
        last = self.stream[self.place - 1].line
        while (
            (word := self._peek(self.place)) is not None
            and word.kind in ("other", "cell")
            and word.line == last
        ):
            row.behind.append(word.text)
            self.place += 1
        row.ends_text = self.place >= len(self.stream)
        self.current.rows.append(row)

    def _is_strange_cell(self, word: Word, name: Word) -> bool:
        """Whether a word stands where a class has to, and looks like one, but is none that is known."""
        if self.current is None or name.text not in self.current.columns or word.line != name.line:
            return False
        return word.kind == "other" and _UNKNOWN_CELL.fullmatch(word.text) is not None


def matrices(lines: Sequence[str]) -> list[Matrix]:
    """Every matrix of device names that a text holds, in order."""
    return _Reader(list(words(lines))).read()


def affinities(matrix: Matrix, row: Row) -> dict[str, str]:
    """What stands behind the cells of a whole row, by head; empty where it cannot be told apart.

    Assumes no affinity is left blank but for a card's, of which all are.
    """
    found = [text for text in row.behind if _AFFINITY.fullmatch(text)]
    if len(found) != len(row.behind) or len(found) > len(matrix.heads):
        return {}
    return dict(zip(matrix.heads, found, strict=False))

"""Parses the tables that nccl-tests and rccl-tests print, in three layouts, with or without a header."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.bench.collectives import BY_NAME, KNOWN, Timing
from equipoise.bench.phases import LONGEST_S
from equipoise.units import MICROSECOND_S

MAX_RANKS = 1_000_000

# Operations by the names of the programs.
PROGRAMS = {program: each.name for each in KNOWN for program in each.programs}
_WIDTH_BYTES = (
    (r"u?int8|u?char|fp8\w*|f8\w*|float8\w*", 1),
    (r"half|bfloat16|bf16|fp16|float16", 2),
    (r"float|u?int32|fp32|float32", 4),
    (r"double|u?int64|fp64|float64", 8),
)


class Printed(Struct, frozen=True, kw_only=True):
    """A printed number and half a unit of its last digit."""

    value: float
    half: float

    @property
    def low(self) -> float:
        """The lowest value that is printed like this."""
        return max(0.0, self.value - self.half)

    @property
    def high(self) -> float:
        """The highest value that is printed like this."""
        return self.value + self.half


class Side(Struct, frozen=True, kw_only=True):
    """One half of a row (out of place or in place): printed time in microseconds, bus bandwidth in GB/s."""

    time_us: Printed
    bus: Printed


def printed(text: str) -> Printed:
    """Return a printed number with its rounding error, half a unit of the last digit.

    >>> printed("0.05").half, printed("16215").half, printed("1.2e+05").half
    (0.005, 0.5, 5000.0)
    """
    return Printed(value=float(text), half=0.5 * 10.0 ** int(Decimal(text).as_tuple().exponent))


def fraction_bounds(rows: Iterable[tuple[int, Side]]) -> tuple[float, float] | None:
    """Return bounds of busbw / algbw consistent with all rows; None if the rows contradict each other.

    rows: payload bytes with the printed values. algbw is computed as bytes over time, which has more digits.
    """
    low, high = 0.0, math.inf
    for payload_bytes, side in rows:
        scale = 1e3 / payload_bytes  # GB/s x us = 1e3 bytes
        low = max(low, side.bus.low * side.time_us.low * scale)
        high = min(high, side.bus.high * side.time_us.high * scale)
    return (low, high) if low <= high else None


def possible_operations(redop: str | None, root: int | None) -> tuple[str, ...]:
    """Return the operations that print these columns; `none` and -1 are empty columns of newer versions."""
    reduces = redop is not None and redop != "none"
    rooted = root is not None and root >= 0
    return tuple(each.name for each in KNOWN if (each.reduces, each.is_rooted) == (reduces, rooted))


def rank_range(operation: str, bounds: tuple[float, float]) -> tuple[int, int] | None:
    """Return the fewest and most ranks for which an operation's busbw / algbw is within bounds, or None.

    >>> rank_range("all_reduce", (1.7499, 1.7501))
    (8, 8)
    >>> rank_range("broadcast", (0.99, 1.01))
    (2, 1000000)
    """
    low, high = bounds
    whole = float(BY_NAME[operation].ring_passes)
    if not whole:
        return (2, MAX_RANKS) if low <= 1.0 <= high else None
    # whole x (n - 1) / n, solved for n, with a tolerance for rounding.
    first = math.ceil(1.0 / (1.0 - min(low / whole, 1.0 - 0.5 / MAX_RANKS)) - 1e-6)
    last = MAX_RANKS if high >= whole else math.floor(1.0 / (1.0 - high / whole) + 1e-6)
    first = max(first, 2)
    return (first, min(last, MAX_RANKS)) if first <= last else None


def num_parts(payload_bytes: int, count: int, dtype: str) -> int | None:
    """Return the number of parts of a payload: 1, or the number of ranks; None if the type is not known.

    >>> num_parts(4096, 128, "float"), num_parts(4096, 1024, "float"), num_parts(4096, 1024, "posit")
    (8, 1, None)
    """
    width = next((width for names, width in _WIDTH_BYTES if re.fullmatch(names, dtype)), None)
    if width is None or count <= 0 or payload_bytes % (count * width):
        return None
    return payload_bytes // (count * width)


class Clues(Struct, frozen=True, kw_only=True):
    """What the rows of one run imply about its operation.

    possible: operations that print such columns. parts: see num_parts; None if unknown or rows differ.
    bounds: of busbw / algbw; None if rows contradict each other.
    is_in_place_checked: whether in-place results were checked; None if no results were.
    """

    possible: Sequence[str]
    parts: int | None
    bounds: tuple[float, float] | None
    is_in_place_checked: bool | None = None

    def allow(self, operation: str) -> bool:
        """Return whether the rows are consistent with this operation."""
        if operation not in self.possible:
            return False
        if self.parts is not None and (self.parts > 1) != BY_NAME[operation].is_cut:
            return False
        return self.bounds is None or rank_range(operation, self.bounds) is not None


def operation_of(clues: Clues, stated: Sequence[str]) -> str | None:
    """Return the first stated operation consistent with the rows, else the only consistent one, else None."""
    allowed = [each for each in clues.possible if clues.allow(each)]
    named = [each for each in stated if each in allowed]
    if named:
        return named[0]
    if len(allowed) > 1 and clues.is_in_place_checked is not None:
        # Between two ranks, only this distinguishes an all-reduce from a send.
        allowed = [each for each in allowed if _is_checked(each) in (None, clues.is_in_place_checked)]
    return allowed[0] if len(allowed) == 1 else None


def _is_checked(operation: str) -> bool | None:
    """Return whether nccl-tests checks in-place results of a reducing operation; None for others."""
    known = BY_NAME[operation]
    return known.is_in_place if known.reduces else None


def ranks_of(operation: str, listed: int | None, clues: Clues) -> int | None:
    """Return the number of ranks: as listed if consistent with the rows, else as implied by the rows."""
    parts = clues.parts if BY_NAME[operation].is_cut else None
    allowed = None if clues.bounds is None else rank_range(operation, clues.bounds)
    if allowed is None:
        return parts or listed
    for each in (parts, listed):
        if each is not None and allowed[0] <= each <= allowed[1]:
            return each
    return allowed[0] if allowed[0] == allowed[1] else None


# 1,000,000 rows are a thousand sweeps, more than any real file has.
MAX_ROWS = 1_000_000
MAX_LINE_CHARS = 4096

_TAG = re.compile(r"^\s*(?:\[(?P<mpi>\d+,\d+)\]<\w+>:?|(?P<srun>\d{1,6}):(?=\s))")
_INLINE_TAG = re.compile(r"\[\d+(?:,\d+)?\](?:<\w+>:?)?")
# `host:pid:thread [device] NCCL INFO ...`, which may follow the first columns of a row without a space.
_LIBRARY = re.compile(r"(?:(?<![\w.-])\w[\w.-]*|[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] .*$")
_RANK = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(\S.*)"
)
_SIZES = re.compile(r"\bnThread:?\s+\d+\s+nGpus:?\s+\d+\b")
_PROGRAM = re.compile(r"\b([a-z_]+)_perf(?:_mpi)?\b")
_HEAD_LINE = re.compile(r"\bsize\s+count\s+type\b")
_HEAD = re.compile(
    r"(?:^|[\s:>|])(?P<size>\d{1,18})\s+(?P<count>\d{1,18})\s+(?P<dtype>[A-Za-z]\w{1,15})(?P<rest>(?:\s.*)?)$"
)
_DTYPES = re.compile(
    r"u?int(?:8|32|64)|u?char|half|float|double|b?float16|float(?:32|64)|bf16|fp(?:16|32|64)|f(?:p|loat)?8\w*"
)
_REDOP = re.compile(r"[A-Za-z]\w{1,15}$")
_WHOLE = re.compile(r"-?\d{1,9}")
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,9})?(?:[eE][+-]?\d{1,2})?$")
_TIMESTAMP = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
# Numbers of columns of one side: time, algbw, busbw and #wrong; one more with -B (bits that differ between
# repeats), and four more with -I (single iterations).
_SIDE_WIDTHS = (4, 8, 5, 9)


class PrintedRow(Struct, frozen=True, kw_only=True):
    """One row as printed. num_wrong: None if the column is N/A or holds an error instead of a count.

    is_checked: for each side, whether its results were checked (#wrong is not N/A).
    """

    line: int
    payload_bytes: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    sides: tuple[Side | None, Side | None]
    num_wrong: int | None
    is_checked: tuple[bool, bool] = (False, False)


class PrintedTable(Struct, kw_only=True):
    """One run of the program: its rows, and facts from the lines before them.

    programs: named operations, the most reliable first. devices: (host, name) by rank. num_listed_again:
    ranks listed more than once.
    """

    programs: list[str] = field(default_factory=list)
    devices: dict[int, tuple[str, str]] = field(default_factory=dict)
    num_listed_again: int = 0
    is_host_time: bool = False
    rows: list[PrintedRow] = field(default_factory=list)


class BrokenRowError(ValueError):
    """A line that begins like a row but is not one; the message has the reason."""


class _Stream(Struct, kw_only=True):
    """The state of one writer's lines: the current table, and a row whose second half has yet to come."""

    table: PrintedTable = field(default_factory=PrintedTable)
    half_row: tuple[int, str] | None = None


class PrintedLog(Struct, kw_only=True):
    """The tables of a log in order, and its broken rows with reasons. is_cut: it has more than MAX_ROWS."""

    tables: list[PrintedTable] = field(default_factory=list)
    broken: list[tuple[int, str]] = field(default_factory=list)
    is_cut: bool = False


def tables_in(lines: Iterable[str], *, programs: Sequence[str]) -> PrintedLog:
    """Return the tables of a log. programs: operations named elsewhere, e.g. in the file's name."""
    found, streams = PrintedLog(), dict[str, _Stream]()
    num_rows = 0
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_CHARS:
            continue
        tag = _TAG.match(line)
        stream = streams.setdefault((tag["mpi"] or tag["srun"]) if tag else "", _Stream())
        try:
            row = _read(stream, number, line, found)
        except BrokenRowError as err:
            found.broken.append((number, str(err)))
            continue
        if row is not None:
            stream.table.rows.append(row)
            num_rows += 1
        if num_rows >= MAX_ROWS:
            found.is_cut = True
            break
    for stream in streams.values():
        _drop_half_row(stream, found)
        found.tables.append(stream.table)
    found.tables = [table for table in found.tables if table.rows]
    found.tables.sort(key=lambda table: table.rows[0].line)
    for table in found.tables:
        table.programs.extend(programs)
    return found


def _read(stream: _Stream, number: int, line: str, found: PrintedLog) -> PrintedRow | None:
    """Process one line; return a row if it completes one, otherwise update the stream."""
    text = _INLINE_TAG.sub(" ", _LIBRARY.sub("", line)).rstrip()
    head = _HEAD.search(text)
    if head is not None and (row := _row(number, head)) is not None:
        return row
    if head is not None and _DTYPES.fullmatch(head["dtype"]):
        _drop_half_row(stream, found)
        stream.half_row = (number, text)
        return None
    if stream.half_row is not None and _only_numbers(text):
        first, begun = stream.half_row
        stream.half_row = (first, f"{begun} {text}")
        head = _HEAD.search(stream.half_row[1])
        row = None if head is None else _row(first, head)
        if row is not None:
            stream.half_row = None
        return row
    if text.strip():
        _read_other_line(stream, line, found)
    return None


def _drop_half_row(stream: _Stream, found: PrintedLog) -> None:
    """Record a row without a second half as broken."""
    if stream.half_row is not None:
        found.broken.append((stream.half_row[0], "the row ends after its first columns"))
    stream.half_row = None


def _only_numbers(text: str) -> bool:
    tokens = text.split()
    return bool(tokens) and all(_NUMBER.match(each) or each == "N/A" for each in tokens)


def _read_other_line(stream: _Stream, line: str, found: PrintedLog) -> None:
    """Read facts about the following rows from another line; a header after rows starts a new run."""
    program, sizes, rank = _PROGRAM.search(line), _SIZES.search(line), _RANK.search(line)
    operation = PROGRAMS.get(program[1]) if program else None
    concluded = "concluded" in line
    begins = (operation and not concluded) or sizes or rank or _HEAD_LINE.search(line)
    if begins and stream.table.rows:
        found.tables.append(stream.table)
        named = [] if operation else stream.table.programs[:1]
        stream.table = PrintedTable(programs=named)
    table = stream.table
    if operation and operation not in table.programs:
        # The program's own output is more reliable than a command echoed by a shell.
        table.programs.insert(0 if "Collective test" in line else len(table.programs), operation)
    if rank:
        number = int(rank[1])
        table.num_listed_again += number in table.devices
        table.devices[number] = (rank[2], rank[3].strip())
    if re.search(r"\bcputime\b", line):
        table.is_host_time = True


def _row(number: int, head: re.Match[str]) -> PrintedRow | None:
    """Return the row that begins in a line; None if its second half is on a later line or it is not a row."""
    tokens = _TIMESTAMP.sub("", head["rest"]).split()
    known = _DTYPES.fullmatch(head["dtype"])
    redop = tokens.pop(0) if tokens and _REDOP.match(tokens[0]) and tokens[0] != "N/A" else None
    numeric = [bool(_NUMBER.match(each)) or each in {"N/A", "-1"} for each in tokens]
    if not all(numeric):
        if not known:
            return None
        found = tokens[numeric.index(False)]
        raise BrokenRowError(f"a row with {found[:40]!r} where a number was expected")
    width = next((width for width in _SIDE_WIDTHS if len(tokens) in {2 * width, 2 * width + 1}), None)
    if width is None:
        if known and len(tokens) > 2 * max(_SIDE_WIDTHS) + 1:
            raise BrokenRowError(f"a row of {len(tokens)} numbers; expected 8, or 16 with -I")
        return None
    root = int(tokens.pop(0)) if len(tokens) == 2 * width + 1 and _WHOLE.fullmatch(tokens[0]) else None
    if len(tokens) != 2 * width:
        raise BrokenRowError("a row whose columns are not two sides of time, algbw, busbw and #wrong")
    wrongs = [_num_wrong(tokens[at + 3]) for at in (0, width)]
    counted = [each for each in wrongs if each is not None]
    return PrintedRow(
        line=number,
        payload_bytes=int(head["size"]),
        count=int(head["count"]),
        dtype=head["dtype"],
        redop=redop,
        root=root,
        sides=(_side(tokens[:width]), _side(tokens[width:])),
        num_wrong=max(counted) if counted else None,
        is_checked=(tokens[3] != "N/A", tokens[width + 3] != "N/A"),
    )


def _side(tokens: Sequence[str]) -> Side | None:
    """Return one side of a row; None if it was not run."""
    if "N/A" in (tokens[0], tokens[2]):
        return None
    return Side(time_us=printed(tokens[0]), bus=printed(tokens[2]))


def _num_wrong(text: str) -> int | None:
    """Return the number of wrong elements; None for a largest error, printed up to 2.17 (e.g. 0.5, 2e-07)."""
    if text == "N/A" or "." in text or "e-" in text.lower() or text.lower() == "0e+00":
        return None
    return int(float(text))


def copies(rows: Sequence[PrintedRow]) -> list[list[PrintedRow]]:
    """Group the rows of one writer by the copy of the program that printed them.

    A program goes through sizes in ascending order, so interleaved sizes come from several copies.
    Consecutive sweeps (-N, or another type) are one copy.
    """
    chains: list[list[PrintedRow]] = []
    for row in rows:
        reach = [
            chain
            for chain in chains
            if chain[-1].payload_bytes < row.payload_bytes
            and (chain[-1].dtype, chain[-1].redop, chain[-1].root) == (row.dtype, row.redop, row.root)
        ]
        if reach:
            max(reach, key=lambda chain: chain[-1].payload_bytes).append(row)
        else:
            chains.append([row])
    copied: list[list[PrintedRow]] = []
    for chain in chains:
        earlier = [each for each in copied if each[-1].line < chain[0].line]
        # A single row with a repeated size is due to rounding, because sizes are multiples of the ranks.
        into = earlier or (copied if len(chain) == 1 else [])
        if into:
            into[0].extend(chain)
        else:
            copied.append(list(chain))
    return copied


def without_empty(rows: Iterable[PrintedRow]) -> Iterator[PrintedRow]:
    """Yield the rows that moved data, without the sides that have no valid time."""
    for row in rows:
        if row.payload_bytes > 0 and row.count > 0:
            first, second = row.sides
            yield replace(row, sides=(_timed(first), _timed(second)))


LONGEST_US = LONGEST_S / MICROSECOND_S


def _timed(side: Side | None) -> Side | None:
    return side if side is not None and 0 < side.time_us.value <= LONGEST_US else None


def timing_of(row: PrintedRow) -> Timing:
    """Return the row as a timing, from its sides with a time."""
    seconds = [None if side is None else side.time_us.value * MICROSECOND_S for side in row.sides]
    errors = [side.time_us.half / side.time_us.value for side in row.sides if side is not None]
    return Timing(
        payload_bytes=row.payload_bytes,
        out_of_place_s=seconds[0],
        in_place_s=seconds[1],
        num_wrong=row.num_wrong,
        resolution=math.fsum(errors) / len(errors),
    )

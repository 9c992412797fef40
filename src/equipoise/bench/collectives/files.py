"""Reads files of timed collectives into runs whose rows may be pooled; rejected rows are counted by reason.

The files are text of nccl-tests and rccl-tests (text.py), JSON of nccl-tests -J, and our own documents.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import orjson
from msgspec.structs import replace

from equipoise.bench.collectives import MEASURED_SCHEMA, OPERATIONS, CollectiveRun, CollectiveRuns, Timing
from equipoise.bench.collectives.text import (
    LONGEST_US,
    MAX_RANKS,
    PROGRAMS,
    Clues,
    Printed,
    PrintedLog,
    PrintedRow,
    PrintedTable,
    Side,
    copies,
    fraction_bounds,
    num_parts,
    operation_of,
    possible_operations,
    ranks_of,
    tables_in,
    timing_of,
    without_empty,
)
from equipoise.bench.trace.stream import DamagedError, pieces
from equipoise.errors import DataError, UsageError
from equipoise.files import printed_text
from equipoise.runs import Tally
from equipoise.units import MIB, listed

# The log of a sweep of 30 sizes on a thousand ranks is a few MB.
MAX_FILE_BYTES = 64 * MIB

_WORDS = re.compile(r"[a-z]+")


def read_files(paths: Sequence[Path], *, operation: str | None = None) -> CollectiveRuns:
    """Return the runs in text and JSON files.

    operation: for tables that do not name their operation and whose columns are ambiguous.
    Raises DataError for a file that cannot be read or has no row.
    """
    runs, rejected, notes = list[CollectiveRun](), Tally(), list[str]()
    for path in paths:
        _read_file(path, operation, runs, rejected, notes)
    return CollectiveRuns(runs=tuple(runs), rejected=rejected, notes=tuple(dict.fromkeys(notes)))


def named_operation(name: str) -> str:
    """Return the operation for a name as programs and people write it. Raises UsageError if unknown.

    >>> named_operation("alltoall"), named_operation("all-reduce")
    ('all_to_all', 'all_reduce')
    """
    plain = name.strip().lower().replace("-", "_")[:40]
    if plain in {"send", *PROGRAMS}:
        return PROGRAMS.get(plain, plain)
    known = sorted({*PROGRAMS.values()})
    raise UsageError(f"--ops {name[:40]!r}: unknown operation; expected one of {', '.join(known)}")


def _read_file(
    path: Path, operation: str | None, runs: list[CollectiveRun], rejected: Tally, notes: list[str]
) -> None:
    text = _text(path, notes)
    stated = [*_named(path), *([operation] if operation else [])]
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        document = document_in(text, where=str(path))
        if document.get("schema") == MEASURED_SCHEMA:
            reading = reading_in(document, where=str(path))
            num_before = len(runs)
            runs.extend(replace(run, number=num_before + run.number) for run in reading.runs)
            rejected.merge(reading.rejected)
            notes.extend(reading.notes)
            return
        found = tables_in_document(document)
        for table in found.tables:
            table.programs.extend(stated)
    else:
        found = tables_in(text.splitlines(), programs=stated)
    if not found.broken and not any(table.rows for table in found.tables):
        raise DataError(
            f"{path}: no row of nccl-tests or rccl-tests in it; expected lines of size, count, type, ... "
            "time, algbw, busbw, or the JSON of -J"
        )
    for line, reason in found.broken:
        rejected.refuse("broken_row", f"{path}:{line}", reason)
    if found.is_cut:
        notes.append(f"{path}: more rows than are read; the rest is not used")
    for table in found.tables:
        runs.extend(_runs(table, str(path), len(runs), rejected, notes))


def _text(path: Path, notes: list[str]) -> str:
    """Return the content of a file as text; undecodable bytes become replacement characters."""
    data = bytearray()
    try:
        for piece in pieces(path):
            data += piece
            if len(data) > MAX_FILE_BYTES:
                raise DataError(
                    f"{path}: more than {MAX_FILE_BYTES:,} bytes; longer than any output of nccl-tests"
                )
    except DamagedError as err:
        if not data:
            raise
        notes.append(f"{err}; everything before it was read")
    return printed_text(bytes(data))


def _named(path: Path) -> list[str]:
    """Return the operations in a file's name, e.g. `nccl_alltoall.log`."""
    words = _WORDS.findall(path.stem.lower())
    pairs = [f"{one}_{two}" for one, two in pairwise(words)]
    return [PROGRAMS[each] for each in (*pairs, *words) if each in PROGRAMS]


def _runs(
    table: PrintedTable, file: str, num_before: int, rejected: Tally, notes: list[str]
) -> Iterator[CollectiveRun]:
    """Yield the runs of one table, one per copy of the program."""

    def refuse(kind: str, rows: Sequence[PrintedRow], detail: str) -> None:
        if rows:
            where = f"{file}:{rows[0].line}"
            rejected.refuse(kind, where, detail, count=len(rows))

    moved = list(without_empty(table.rows))
    moved_lines = {row.line for row in moved}
    refuse("empty", [row for row in table.rows if row.line not in moved_lines], "size 0: no data were sent")
    if table.is_host_time:
        refuse("host_time", moved, "times of the host (-C), not of the collective")
        return
    wrong = [row for row in moved if row.num_wrong]
    refuse("wrong_results", wrong, "had wrong results (#wrong above 0): its time is not used")
    untimed = [row for row in moved if not row.num_wrong and not any(row.sides)]
    refuse("untimed", untimed, "no time in it")
    usable = [row for row in moved if not row.num_wrong and any(row.sides)]
    chains = copies(usable)
    num_copies = max(len(chains), 1 + (table.num_listed_again > 0))
    if usable and num_copies > 1:
        notes.append(
            f"{file}:{usable[0].line}: {num_copies} copies of the program ran at once, each over "
            "its own ranks, and disturbed each other: build nccl-tests with MPI=1"
        )
    for chain in chains:
        run = _run(table, chain, usable, file=file, number=num_before + 1)
        if isinstance(run, str):
            refuse("unknown", chain, run)
        else:
            num_before += 1
            yield replace(run, num_copies=num_copies)


def _sides(rows: Iterable[PrintedRow]) -> Iterator[tuple[int, Side]]:
    for row in rows:
        for side in row.sides:
            if side is not None:
                yield row.payload_bytes, side


def _run(
    table: PrintedTable, rows: Sequence[PrintedRow], all_rows: Sequence[PrintedRow], *, file: str, number: int
) -> CollectiveRun | str:
    """Return the run of these rows, or the reason why it is not known. all_rows: of all program copies."""
    parts = {num_parts(row.payload_bytes, row.count, row.dtype) for row in all_rows}
    clues = Clues(
        possible=possible_operations(all_rows[0].redop, all_rows[0].root),
        parts=parts.pop() if len(parts) == 1 else None,
        bounds=fraction_bounds(_sides(all_rows)),
        is_in_place_checked=_is_in_place_checked(all_rows),
    )
    if _is_single_rank(all_rows):
        return "one rank: no data were sent; nccl-tests without MPI=1 runs separately in every process"
    operation = operation_of(clues, table.programs)
    if operation is None:
        open_to = ", ".join(each for each in clues.possible if clues.allow(each)) or ", ".join(clues.possible)
        example = f"{open_to.partition(', ')[0]}.txt"
        return (
            f"the operation is not known: {open_to}; name it in the file's name, as {example}, or with --ops "
            "of `collectives`"
        )
    # In a truncated listing, ranks count up to the highest listed.
    listed = max(table.devices) + 1 if table.devices and not table.num_listed_again else None
    num_ranks = ranks_of(operation, listed, clues)
    if num_ranks is None:
        return (
            "the number of ranks is not known and cannot be computed from the rates; keep the "
            "lines before the table"
        )
    names = {name for _, name in table.devices.values()}
    return CollectiveRun(
        file=file,
        number=number,
        operation=operation,
        num_ranks=num_ranks,
        num_nodes=_num_nodes(table, num_ranks),
        device=names.pop() if len(names) == 1 else None,
        timings=tuple(timing_of(row) for row in rows),
    )


def _is_in_place_checked(rows: Sequence[PrintedRow]) -> bool | None:
    """Return whether in-place results were checked in the rows whose out-of-place results were; else None."""
    checked = {in_place for out_of_place, in_place in (row.is_checked for row in rows) if out_of_place}
    return checked.pop() if len(checked) == 1 else None


def _is_single_rank(rows: Sequence[PrintedRow]) -> bool:
    """Return whether even the largest message has a bus bandwidth of zero, as with one rank."""
    largest = max(rows, key=lambda row: row.payload_bytes)
    bounds = fraction_bounds(_sides([largest]))
    return bounds is not None and bounds[1] < _LEAST_FRACTION


# The lowest ratio of bytes on a link to payload: an all-gather between two ranks.
_LEAST_FRACTION = 0.5


def _num_nodes(table: PrintedTable, num_ranks: int) -> int | None:
    """Return the number of hosts if every rank is listed; None otherwise."""
    whole = len(table.devices) == num_ranks and not table.num_listed_again
    return len({host for host, _ in table.devices.values()}) if whole else None


_MOST_NAMED = 4


def reading_in(document: Mapping[str, Any], *, where: str) -> CollectiveRuns:
    """Return the runs of a document, one per operation.

    where: the document's name, for messages. Raises DataError for a document of another form.
    """
    rejected, notes = Tally(), list[str]()
    by_operation: dict[str, list[Timing]] = {}
    unsteady: list[str] = []
    try:
        num_ranks = _whole(document["num_ranks"])
        num_nodes = _whole(document["num_nodes"])
        for number, result in enumerate(document["results"], 1):
            timing, operation = _timing(result, number), result["operation"]
            name = f"{operation} of {timing.payload_bytes:,} bytes"
            if timing.num_wrong:
                detail = f"{name} had wrong results: its time is not used"
                rejected.refuse("wrong_results", f"{where}:{number}", detail)
                continue
            by_operation.setdefault(operation, []).append(timing)
            if not result["is_steady"]:
                unsteady.append(name)
        for operation, reason in document["refused"].items():
            rejected.refuse(f"refused {operation}", where, f"{operation}: {str(reason)[:300]}")
        backend, device = str(document["backend"])[:16], document["device_name"]
        link = document.get("link")
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise DataError(
            f"{where}: {type(err).__name__}: {err}; expected what "
            "`equipoise collectives --measure --out` wrote"
        ) from err
    if unsteady:
        named = listed(dict.fromkeys(unsteady), _MOST_NAMED)
        notes.append(f"did not reach a steady time during warm-up: {named}")
    runs = [
        CollectiveRun(
            file=where,
            number=number,
            operation=operation,
            num_ranks=num_ranks,
            num_nodes=num_nodes,
            device=None if device is None else str(device)[:256],
            timings=tuple(timings),
            backend=backend,
            link=None if link is None else str(link)[:40],
        )
        for number, (operation, timings) in enumerate(by_operation.items(), 1)
    ]
    return CollectiveRuns(runs=tuple(runs), rejected=rejected, notes=tuple(notes))


def _timing(result: Mapping[str, Any], number: int) -> Timing:
    operation, share = result["operation"], float(result["cpu_fraction"])
    if operation not in OPERATIONS:
        raise ValueError(f"operation {str(operation)[:40]!r}")
    row = _row(number, result)
    times_us = [side.time_us.value for side in row.sides if side is not None]
    is_timed = bool(times_us) and min(times_us) > 0 and max(times_us) <= LONGEST_US
    if not is_timed or not row.payload_bytes > 0 or not 0 <= share < MAX_RANKS:
        raise ValueError(f"result {number}")
    return replace(timing_of(row), resolution=0.0, cpu_fraction=share)


def _whole(value: object) -> int:
    if type(value) is not int or not 0 < value <= MAX_RANKS:
        raise ValueError(f"{value!r} instead of a whole number from 1 to {MAX_RANKS:,}")
    return value


# Half a unit of the last digit: %lf prints six decimals of microseconds and GB/s.
_HALF = 5e-7
_INFINITE = re.compile(r"(?<=:)-?(?:inf|nan)(?=[,}])")
_MOST_PRINTED_BYTES = 2**62


def document_in(text: str, *, where: str) -> dict[str, Any]:
    """Return the document without its environment variables.

    Raises DataError if the text is not a JSON object of nccl-tests or of `collectives`.
    """
    try:
        # A rate at zero time is printed as `inf`, which is not valid JSON.
        whole = orjson.loads(_INFINITE.sub("null", text.lstrip("\ufeff")))
    except (orjson.JSONDecodeError, RecursionError) as err:
        raise DataError(
            f"{where}: broken or cut JSON ({err}); expected the whole file of `nccl-tests -J`, or its "
            "text output"
        ) from err
    if not (isinstance(whole, dict) and isinstance(whole.get("results"), list)):
        raise DataError(
            f"{where}: JSON without a list `results`; expected what `nccl-tests -J FILE` or `equipoise "
            "collectives --measure --out FILE` writes, timings and not fits to them"
        )
    return {key: value for key, value in whole.items() if key != "env"}


def tables_in_document(document: Mapping[str, Any]) -> PrintedLog:
    """Return the single table of a document; line numbers are numbers of results, from 1."""
    config = document.get("config")
    config = config if isinstance(config, dict) else {}
    table = PrintedTable(programs=_programs(document), devices=_devices(config))
    found = PrintedLog(tables=[table])
    for number, result in enumerate(document["results"], 1):
        try:
            table.rows.append(_row(number, result))
            table.is_host_time |= any("cpu_time" in _side_of(result, key) for key in _SIDES)
        except (TypeError, ValueError, KeyError, OverflowError) as err:
            found.broken.append((number, f"a result whose {err} is not as nccl-tests writes it"))
    return found


_SIDES = ("out_of_place", "in_place")


def _programs(document: Mapping[str, Any]) -> list[str]:
    arguments = document.get("args")
    if not isinstance(arguments, list) or not arguments or not isinstance(arguments[0], str):
        return []
    name = PurePath(arguments[0][:4096]).name.partition("_perf")[0]
    return [PROGRAMS[name]] if name in PROGRAMS else []


def _devices(config: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """Return host and device name by rank. The first rank of a process, which is listed, stands for all."""
    listed = config.get("devices")
    counts = [config.get(key, 1) for key in ("nthreads", "ngpus")]
    num_each = (
        counts[0] * counts[1] if all(type(each) is int and 0 < each <= _MOST_EACH for each in counts) else 1
    )
    found: dict[int, tuple[str, str]] = {}
    for device in listed if isinstance(listed, list) else ():
        first = device.get("rank") if isinstance(device, dict) else None
        if type(first) is int and 0 <= first < MAX_RANKS:
            each = (str(device.get("hostname"))[:256], str(device.get("device_info"))[:256])
            for rank in range(first, min(first + num_each, MAX_RANKS)):
                if rank in found:  # a rank of the next process
                    break
                found[rank] = each
    return found


_MOST_EACH = 1024


def _row(number: int, result: Mapping[str, Any]) -> PrintedRow:
    sides = [_side(_side_of(result, key)) for key in _SIDES]
    wrongs = [_side_of(result, key).get("nwrong") for key in _SIDES]
    counted = [int(float(each)) for each in wrongs if each is not None]
    size, count = result["size"], result["count"]
    if not all(type(each) is int and 0 <= each < _MOST_PRINTED_BYTES for each in (size, count)):
        raise ValueError("size or count")
    root = result.get("root")
    redop = result.get("redop")
    return PrintedRow(
        line=number,
        payload_bytes=size,
        count=count,
        dtype=str(result["type"])[:16],
        redop=str(redop)[:16] if redop else None,
        root=None if root is None else int(root),
        sides=(sides[0], sides[1]),
        num_wrong=max(counted) if counted else None,
        is_checked=(wrongs[0] is not None, wrongs[1] is not None),
    )


def _side_of(result: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    side = result.get(key)
    if side is not None and not isinstance(side, dict):
        raise TypeError(key)
    return side or {}


def _side(values: Mapping[str, Any]) -> Side | None:
    """Return one side; None if it was not run or its values are not numbers (`nan`)."""
    time_us = values.get("time", values.get("cpu_time"))
    bus = values.get("bus_bw")
    if not isinstance(time_us, int | float) or not isinstance(bus, int | float):
        return None
    return Side(
        time_us=Printed(value=float(time_us), half=_HALF),
        bus=Printed(value=float(bus), half=_HALF),
    )

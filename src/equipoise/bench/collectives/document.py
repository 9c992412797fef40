"""The document of collectives timed here, written by `collectives --measure --out` and read as files are.

Each result reads like one of nccl-tests -J: size, count, type, redop, and a side with time, bandwidth and
wrong elements; besides, its operation, and everything that was timed.
"""

from collections.abc import Mapping
from statistics import median
from typing import Any

from equipoise.bench.collectives.asked import OPERATIONS, WIDTH_BYTES
from equipoise.bench.collectives.timing import Reading, Run, Timing, bus_fraction
from equipoise.errors import DataError
from equipoise.runs.reader import Rejection, Tally
from equipoise.units import GIB, MICROSECOND_S, SI_PREFIXES

SCHEMA = "equipoise.timed_collectives/1"
_REDUCING = ("all_reduce", "reduce_scatter")
_MOST_BYTES = 1024 * GIB
_MOST_RANKS = 1_000_000
_MOST_NAMED = 4


def result_of(row: Mapping[str, Any], num_ranks: int) -> dict[str, Any]:
    """One result of the document: a size of an operation, in one start of the processes.

    row: as timed.py leaves it, with `start`.
    """
    operation, size = row["operation"], row["payload_bytes"]
    seconds = median(row["seconds"])
    parts = 1 if operation in {"all_reduce", "broadcast", "send"} else num_ranks
    rate = size / seconds / SI_PREFIXES["G"]
    return {
        "operation": operation,
        "start": row["start"],
        "size": size,
        "count": size // WIDTH_BYTES // parts,
        "type": "float",
        "redop": "sum" if operation in _REDUCING else None,
        "in_place" if operation in {"all_reduce", "broadcast"} else "out_of_place": {
            "time": seconds / MICROSECOND_S,
            "alg_bw": rate,
            "bus_bw": rate * bus_fraction(operation, num_ranks),
            "nwrong": row["num_wrong"],
        },
        "num_calls": row["num_calls"],
        "is_steady": row["is_steady"],
        "cpu_fraction": median(row["cpu_fraction"]),
        "rounds_s": row["seconds"],
    }


def reading_in(document: Mapping[str, Any], *, where: str) -> Reading:
    """The runs of a document: one an operation.

    where: names it. Raises DataError for what is not as it is written.
    """
    rejected, notes = Tally(), list[str]()
    by_operation: dict[str, list[Timing]] = {}
    restless: list[str] = []
    try:
        num_ranks = _whole(document["num_ranks"], _MOST_RANKS)
        num_nodes = _whole(document["num_nodes"], _MOST_RANKS)
        for number, result in enumerate(document["results"], 1):
            timing = _timing(result, number, num_ranks, num_nodes)
            name = f"{timing.operation} of {timing.payload_bytes} bytes"
            if timing.num_wrong:
                detail = f"{name} came out wrong: its time says nothing"
                rejected.add(Rejection(kind="wrong_results", where=f"{where}:{number}", detail=detail))
                continue
            by_operation.setdefault(timing.operation, []).append(timing)
            if not result["is_steady"]:
                restless.append(name)
        for operation, reason in document["refused"].items():
            detail = f"{operation}: {str(reason)[:300]}"
            kind = f"refused {operation}"
            rejected.add(Rejection(kind=kind, where=where, detail=detail))
        backend, device = str(document["backend"])[:16], document["device_name"]
        link = document["link"]
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise DataError(
            f"{where}: {type(err).__name__}: {err}; expected what "
            "`equipoise collectives --measure --out` wrote"
        ) from err
    if restless:
        named = ", ".join(list(dict.fromkeys(restless))[:_MOST_NAMED])
        notes.append(f"never took as long twice while warming up: {named}")
    runs = [
        Run(
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
    return Reading(runs=tuple(runs), rejected=rejected, notes=tuple(notes))


def _timing(result: Mapping[str, Any], number: int, num_ranks: int, num_nodes: int) -> Timing:
    operation = result["operation"]
    if operation not in OPERATIONS:
        raise ValueError(f"operation {str(operation)[:40]!r}")
    sides = [result.get("out_of_place"), result.get("in_place")]
    seconds = [None if side is None else _seconds(side["time"]) for side in sides]
    share = float(result["cpu_fraction"])
    if seconds == [None, None] or not 0 <= share < _MOST_RANKS:
        raise ValueError(f"result {number}")
    return Timing(
        operation=operation,
        payload_bytes=_whole(result["size"], _MOST_BYTES),
        num_ranks=num_ranks,
        num_nodes=num_nodes,
        out_of_place_s=seconds[0],
        in_place_s=seconds[1],
        redop=result["redop"],
        dtype=str(result["type"])[:16],
        num_wrong=max(int(side["nwrong"]) for side in sides if side is not None),
        line=number,
        cpu_fraction=share,
    )


def _seconds(time_us: float) -> float:
    seconds = float(time_us) * MICROSECOND_S
    if not 0 < seconds < _MOST_RANKS:
        raise ValueError(f"time {time_us!r}")
    return seconds


def _whole(value: object, most: int) -> int:
    if type(value) is not int or not 0 < value <= most:
        raise ValueError(f"{value!r} where a whole number from 1 to {most} stands")
    return value

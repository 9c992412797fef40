"""The document that `equipoise collectives --json` prints, read back: times as its fitted lines have them."""

import math
from collections.abc import Mapping
from typing import Any

from equipoise.bench.collectives.timing import Reading, Run, Timing
from equipoise.errors import DataError
from equipoise.runs.reader import Rejection, Tally
from equipoise.units import GIB

SCHEMA = "equipoise.collectives/1"
_MOST_BYTES = 1024 * GIB
_MOST_RANKS = 1_000_000
_MOST_FITS, _MOST_REGIMES = 1000, 100
_TEXT = 256


def reading_of_fits(document: Mapping[str, Any], *, where: str) -> Reading:
    """The runs of a document, one a fit: a time at the ends of each range of sizes, and at each octave
    between.

    where: names it. Raises DataError for what is not as it is printed.
    """
    try:
        runs = tuple(_run(fit, number, where) for number, fit in enumerate(document["fits"][:_MOST_FITS], 1))
        rejected = Tally()
        for each in document["rejected"][:_MOST_FITS]:
            detail = str(each["first"])[:_TEXT]
            refused = Rejection(kind=str(each["kind"])[:40], where=where, detail=detail)
            rejected.add(refused, count=_whole(each["count"], _MOST_BYTES))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as err:
        raise DataError(
            f"{where}: {type(err).__name__}: {err}; expected what `equipoise collectives --json` printed"
        ) from err
    note = f"{where}: fits and not what was timed: times are of their lines"
    return Reading(runs=runs, rejected=rejected, notes=(note,) if runs else ())


def _run(fit: Mapping[str, Any], number: int, where: str) -> Run:
    num_ranks, num_nodes = _whole(fit["num_ranks"]), fit["num_nodes"]
    operation, device, backend = str(fit["operation"])[:40], fit["device"], fit.get("backend")
    seconds: dict[int, float] = {}
    for regime in fit["regimes"][:_MOST_REGIMES]:
        rate = regime["byte_per_s"]
        byte_s = 0.0 if rate is None else 1.0 / _positive(rate)
        start_s = float(regime["latency_s"])
        first, last = (_whole(regime[name], _MOST_BYTES) for name in ("from_bytes", "to_bytes"))
        for size in _sizes(first, last):
            seconds[size] = _positive(start_s + size * byte_s)
    return Run(
        file=str(fit.get("file") or where)[:_TEXT],
        number=number,
        operation=operation,
        num_ranks=num_ranks,
        num_nodes=None if num_nodes is None else _whole(num_nodes),
        device=None if device is None else str(device)[:_TEXT],
        backend=None if backend is None else str(backend)[:16],
        timings=tuple(
            Timing(
                operation=operation,
                payload_bytes=size,
                num_ranks=num_ranks,
                num_nodes=num_nodes,
                out_of_place_s=took_s,
                in_place_s=None,
                redop=None,
                dtype="float",
                num_wrong=None,
                line=number,
                resolution=min(1.0, max(0.0, float(fit["log_sd"]))),
            )
            for size, took_s in sorted(seconds.items())
        ),
    )


def _sizes(first: int, last: int) -> list[int]:
    """The ends of a range, and every power of two between."""
    octaves = range(first.bit_length(), last.bit_length())
    return sorted({first, last, *(2**octave for octave in octaves if first < 2**octave < last)})


def _whole(value: object, most: int = _MOST_RANKS) -> int:
    if type(value) is not int or not 0 < value <= most:
        raise ValueError(f"{value!r} where a whole number from 1 to {most} stands")
    return value


def _positive(value: float) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{value!r} where a number above zero stands")
    return number

"""What a table says of itself without its header: the operation and the number of ranks.

Of each operation busbw over algbw is a known function of the number of ranks, and the printed digits bound
it; size over count and type says into how many parts a payload is cut.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from equipoise.bench.collectives.timing import bus_fraction

MAX_RANKS = 1_000_000

# The names of the programs, and what DESIGN calls what they run.
PROGRAMS = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send",
    "gather": "gather",
    "scatter": "scatter",
    "hypercube": "hypercube",
    "reduce": "reduce",
}


# Operations whose payload is cut into a part for each rank.
_CUT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "hypercube")
_WIDTH_BYTES = (
    (r"u?int8|u?char|fp8\w*|f8\w*|float8\w*", 1),
    (r"half|bfloat16|bf16|fp16|float16", 2),
    (r"float|u?int32|fp32|float32", 4),
    (r"double|u?int64|fp64|float64", 8),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A printed number and half a unit of its last digit."""

    value: float
    half: float

    @property
    def low(self) -> float:
        """The least that is printed so."""
        return max(0.0, self.value - self.half)

    @property
    def high(self) -> float:
        """The most that is printed so."""
        return self.value + self.half


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One half of a row: the time in microseconds and the bandwidth of the bus in GB/s, as printed."""

    time_us: Printed
    bus: Printed


def printed(text: str) -> Printed:
    """A number as printed, with what its digits leave open; a whole number may be off by half.

    >>> printed("0.05").half, printed("16215").half, printed("1.2e+05").half
    (0.005, 0.5, 5000.0)
    """
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return Printed(value=float(text), half=0.5 * 10.0 ** (int(exponent or 0) - decimals))


def fraction_bounds(rows: Iterable[tuple[int, Side]]) -> tuple[float, float] | None:
    """Bounds of busbw / algbw that all rows agree on; None where they contradict each other.

    rows: payload bytes and what was printed for them. algbw is taken as bytes over time: more digits.
    """
    low, high = 0.0, math.inf
    for payload_bytes, side in rows:
        scale = 1e3 / payload_bytes  # GB/s x us = 1e3 bytes
        low = max(low, side.bus.low * side.time_us.low * scale)
        high = min(high, side.bus.high * side.time_us.high * scale)
    return (low, high) if low <= high else None


def possible_operations(redop: str | None, root: int | None) -> tuple[str, ...]:
    """Operations that print these columns; `none` and -1 are how newer versions print an empty column."""
    reduces = redop is not None and redop != "none"
    rooted = root is not None and root >= 0
    if reduces:
        return ("reduce",) if rooted else ("all_reduce", "reduce_scatter")
    return ("broadcast", "gather", "scatter") if rooted else ("all_gather", "all_to_all", "send", "hypercube")


def rank_range(operation: str, bounds: tuple[float, float]) -> tuple[int, int] | None:
    """The fewest and most ranks for which an operation has a busbw / algbw within bounds; None if none has.

    >>> rank_range("all_reduce", (1.7499, 1.7501))
    (8, 8)
    >>> rank_range("broadcast", (0.99, 1.01))
    (2, 1000000)
    """
    low, high = bounds
    flat = bus_fraction(operation, MAX_RANKS) == bus_fraction(operation, 2)
    if flat:
        return (2, MAX_RANKS) if low <= 1.0 <= high else None
    whole = 2.0 if operation == "all_reduce" else 1.0
    # whole x (n - 1) / n, solved for n; a hair of slack for products of floats.
    first = math.ceil(1.0 / (1.0 - min(low / whole, 1.0 - 0.5 / MAX_RANKS)) - 1e-6)
    last = MAX_RANKS if high >= whole else math.floor(1.0 / (1.0 - high / whole) + 1e-6)
    first = max(first, 2)
    return (first, min(last, MAX_RANKS)) if first <= last else None


def num_parts(payload_bytes: int, count: int, dtype: str) -> int | None:
    """Into how many parts a payload is cut: 1, or the number of ranks; None where the type is not known.

    >>> num_parts(4096, 128, "float"), num_parts(4096, 1024, "float"), num_parts(4096, 1024, "posit")
    (8, 1, None)
    """
    width = next((width for names, width in _WIDTH_BYTES if re.fullmatch(names, dtype)), None)
    if width is None or count <= 0 or payload_bytes % (count * width):
        return None
    return payload_bytes // (count * width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """What rows of one run agree on.

    possible: operations that print such columns. parts: see num_parts; None where rows do not tell or differ.
    bounds: of busbw / algbw; None where rows contradict each other.
    """

    possible: Sequence[str]
    parts: int | None
    bounds: tuple[float, float] | None

    def allow(self, operation: str) -> bool:
        """Whether the rows can be of this operation."""
        if operation not in self.possible:
            return False
        if self.parts is not None and self.parts > 1 and operation not in _CUT:
            return False
        if self.parts == 1 and operation in _CUT:
            return False
        return self.bounds is None or rank_range(operation, self.bounds) is not None


def operation_of(clues: Clues, stated: Sequence[str]) -> str | None:
    """The operation: the first stated that the rows can be of, else the only one they can be of."""
    allowed = [each for each in clues.possible if clues.allow(each)]
    named = [each for each in stated if each in allowed]
    if named:
        return named[0]
    return allowed[0] if len(allowed) == 1 else None


def ranks_of(operation: str, listed: int | None, clues: Clues) -> int | None:
    """The number of ranks: as listed where the rows allow it, else what the rows alone say."""
    parts = clues.parts if operation in _CUT else None
    allowed = None if clues.bounds is None else rank_range(operation, clues.bounds)
    if allowed is None:
        return parts or listed
    for each in (parts, listed):
        if each is not None and allowed[0] <= each <= allowed[1]:
            return each
    return allowed[0] if allowed[0] == allowed[1] else None

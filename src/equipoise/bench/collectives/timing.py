"""The records of timed collectives: one row of a table, one run of the program that printed it."""

from dataclasses import dataclass

from equipoise.runs.reader import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One timed message size of one collective.

    operation: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast`, `send`, ... .
    payload_bytes: as nccl-tests prints `size`: what a rank holds whole, before or after. num_nodes: None
    where nothing tells. num_wrong: elements that came out wrong; None where that was not checked. line: of
    the file, or which result of a JSON document, from 1. resolution: half of the last printed digit over
    the time. cpu_fraction: how many cores a rank's process was busy on meanwhile; None where not measured.
    """

    operation: str
    payload_bytes: int
    num_ranks: int
    num_nodes: int | None
    out_of_place_s: float | None
    in_place_s: float | None
    redop: str | None
    dtype: str
    num_wrong: int | None
    line: int
    resolution: float = 0.0
    cpu_fraction: float | None = None

    @property
    def seconds(self) -> tuple[float, ...]:
        """The one or two times measured."""
        return tuple(each for each in (self.out_of_place_s, self.in_place_s) if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run of the program measured: rows that may be pooled.

    device: the accelerator as the program names it; None where it does not, or names several.
    num_copies: how many copies of the program ran at once, each by itself, and got in each other's way.
    backend: of torch.distributed; None for nccl-tests and rccl-tests. link: the rate of the network that
    joins the ranks, as stated, e.g. `1gbit`.
    """

    file: str
    number: int
    operation: str
    num_ranks: int
    num_nodes: int | None
    device: str | None
    timings: tuple[Timing, ...]
    num_copies: int = 1
    backend: str | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read of files: runs, what was refused and why, and what a reader of the numbers must know."""

    runs: tuple[Run, ...]
    rejected: Tally
    notes: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows that can be used."""
        return sum(len(run.timings) for run in self.runs)


_PARTED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def bus_fraction(operation: str, num_ranks: int) -> float:
    """What a ring's link carries for each byte of the payload: busbw over algbw.

    Source: NVIDIA/nccl-tests doc/PERFORMANCE.md.

    >>> bus_fraction("all_reduce", 8), bus_fraction("all_gather", 8), bus_fraction("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if operation == "all_reduce":
        return 2 * (num_ranks - 1) / num_ranks
    return (num_ranks - 1) / num_ranks if operation in _PARTED else 1.0

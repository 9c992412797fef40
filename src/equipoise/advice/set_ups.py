"""Which row of a table is another's set-up on fewer accelerators: what it can be foretold from."""

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from equipoise.errors import DataError
from equipoise.runs.readers.published.knobs import Knobs, knobs
from equipoise.runs.readers.published.numbers import count_in
from equipoise.runs.readers.published.rows import PublishedRow

# What rows of one set-up agree in, whatever the number of accelerators and however the batch grows with it.
_ALIKE = ("params_b", "layers", "hidden", "heads", "precision", "seq", "recompute", "source")
_OTHER_AXES = ("tp", "pp", "cp", "ep")
_ACCUMULATION = re.compile(r"(?:grad\w*[-_ ])?acc(?:um\w*)?(?:[-_ ]steps)?\s*[=:][^;+]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples of an accelerator's micro-batch, and micro-batches an exchange; None where not stated."""

    microbatch: int | None
    num_accumulated: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """Rows, by index, of one set-up on fewer accelerators, and their rate of samples over all, in 1/s.

    rows: several where a table repeats a measurement; the rate is their geometric mean.
    """

    rows: tuple[int, ...]
    rate: float


def is_data_parallel(row: PublishedRow) -> bool:
    """Whether all that a row's accelerators share is the batch."""
    return all(row.cells.get(name, "").strip() in {"", "1"} for name in _OTHER_AXES)


def words_of(row: PublishedRow) -> Knobs | None:
    """What a row's words say of its strategy; None where they mean nothing."""
    try:
        return knobs(
            *(row.cells.get(name, "").strip() for name in ("parallel_config", "precision", "recompute"))
        )
    except DataError:
        return None


def batch_of(row: PublishedRow) -> Batch:
    """The batch a row states."""
    if row.kind == "step" and row.strategy is not None:
        micro, dp = row.strategy.microbatch_samples, row.strategy.dp
        return Batch(
            microbatch=micro, num_accumulated=max(1, row.strategy.global_batch_samples // (micro * dp))
        )
    precision = row.cells.get("precision", "")
    micro_text = row.cells.get("micro_batch", "").strip()
    words = words_of(row)
    said = words.num_accumulated if words else None
    return Batch(
        microbatch=count_in(micro_text, precision) or None if micro_text else None,
        num_accumulated=count_in(said, precision) or None if said else None,
    )


def rate_of(row: PublishedRow) -> float:
    """Samples a second over all accelerators, or whatever a row counts; NaN without seconds."""
    if row.seconds is None:
        return float("nan")
    return (row.strategy.global_batch_samples if row.kind == "step" and row.strategy else 1.0) / row.seconds


def partners(rows: Sequence[PublishedRow]) -> tuple[Partner | None, ...]:
    """For every row those of its set-up on the fewest accelerators; None for these and where there are none.

    Those with the same micro-batch are preferred; else the micro-batch shrank. Tables list the repetitions of
    a set-up in one order at every size: the second of two is the second's partner.
    """
    found: list[Partner | None] = [None] * len(rows)
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        alike[_set_up(row)].append(index)
    for members in alike.values():
        tables = _tables(rows, members)
        for table in tables:
            for index in table:
                found[index] = _partner(rows, table, index) or _partner(rows, members, index)
    return tuple(found)


def _set_up(row: PublishedRow) -> Hashable:
    config = " ".join(_ACCUMULATION.sub("", row.cells.get("parallel_config", "").lower()).split())
    cells = tuple(row.cells.get(name, "").strip() for name in _ALIKE)
    return (row.file, row.workload, row.hardware, row.unit, config.strip(" ;+"), cells)


def _tables(rows: Sequence[PublishedRow], members: Sequence[int]) -> list[list[int]]:
    """Rows of one set-up, cut where sizes begin again: another table, of a model with the same name."""
    tables: list[list[int]] = [[]]
    for index in members:
        seen = [rows[at].num_accelerators for at in tables[-1]]
        if seen and rows[index].num_accelerators < seen[-1] and rows[index].num_accelerators in seen:
            tables.append([])
        tables[-1].append(index)
    return tables


def _partner(rows: Sequence[PublishedRow], table: Sequence[int], index: int) -> Partner | None:
    """The rows of a table on the fewest accelerators that a row is foretold from."""
    fewest = min(rows[at].num_accelerators for at in table)
    size, batch = rows[index].num_accelerators, batch_of(rows[index]).microbatch
    if size == fewest:
        return None
    first = [at for at in table if rows[at].num_accelerators == fewest]
    matching = [at for at in first if batch_of(rows[at]).microbatch == batch] or first
    again = [
        at for at in table if rows[at].num_accelerators == size and batch_of(rows[at]).microbatch == batch
    ]
    if len(matching) == len(again) and index in again:
        matching = [matching[again.index(index)]]
    rate = 1.0
    for at in matching:
        rate *= rate_of(rows[at]) ** (1.0 / len(matching))
    return Partner(rows=tuple(matching), rate=rate)

"""Which row of a table is another's set-up on fewer accelerators: what it can be foretold from."""

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from equipoise.errors import DataError
from equipoise.runs.readers.published.knobs import Knobs, knobs
from equipoise.runs.readers.published.numbers import count_in
from equipoise.runs.readers.published.rows import PublishedRow

# What rows of one set-up agree in, whatever the number of accelerators and however the batch grows with it.
_ALIKE = ("params_b", "layers", "hidden", "heads", "precision", "seq", "recompute", "source")
_OTHER_AXES = ("tp", "pp", "cp", "ep")
_ACCUMULATION = re.compile(r"(?:grad\w*[-_ ])?acc(?:um\w*)?(?:[-_ ]steps)?\s*[=:][^;+]*")
# `8 x` of `8 x A100`: the same accelerators all the same.
_MULTIPLE = re.compile(r"(?<![\w-])\d+\s*[x\u00d7]\s*(?=\D)", re.IGNORECASE)


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

    Those with the same micro-batch are preferred; else it shrank, and the batch stayed. Tables list
    repetitions of a set-up in one order at every size: the second of two is the second's partner.
    """
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        alike[_set_up(row)].append(index)
    found: dict[int, Partner] = {}
    for members in alike.values():
        tables = _tables(rows, members)
        for with_same_batch in (True, False):
            for places in (tables, [members]):
                given = {at for index in members if index in found for at in found[index].rows}
                for table in places:
                    for index, partner in _partners_within(rows, table, with_same_batch).items():
                        if index not in given:
                            found.setdefault(index, partner)
    return tuple(found.get(index) for index in range(len(rows)))


def _set_up(row: PublishedRow) -> Hashable:
    config = " ".join(_ACCUMULATION.sub("", row.cells.get("parallel_config", "").lower()).split())
    cells = tuple(row.cells.get(name, "").strip() for name in _ALIKE)
    hardware = " ".join(_MULTIPLE.sub("", row.hardware).split())
    return (row.file, row.workload, hardware, row.unit, config.strip(" ;+"), cells)


def _tables(rows: Sequence[PublishedRow], members: Sequence[int]) -> list[list[int]]:
    """Rows of one set-up, cut where sizes begin again: another table, of a model with the same name."""
    tables: list[list[int]] = [[]]
    seen: set[int] = set()
    for index in members:
        size = rows[index].num_accelerators
        if size in seen and size < rows[tables[-1][-1]].num_accelerators:
            tables.append([])
            seen = set()
        tables[-1].append(index)
        seen.add(size)
    return tables


def _partners_within(
    rows: Sequence[PublishedRow],
    table: Sequence[int],
    with_same_batch: bool,  # noqa: FBT001 - a loop's variable
) -> dict[int, Partner]:
    """The rows of a table, each with those on the fewest accelerators, of its own micro-batch or of any."""
    fewest = min(rows[at].num_accelerators for at in table)
    alike: dict[tuple[int, int | None], list[int]] = defaultdict(list)
    for at in table:
        alike[rows[at].num_accelerators, batch_of(rows[at]).microbatch].append(at)
    everyone = [at for at in table if rows[at].num_accelerators == fewest]
    found: dict[int, Partner] = {}
    for (size, batch), again in alike.items():
        first = alike.get((fewest, batch), [] if with_same_batch else everyone)
        if size == fewest or not first:
            continue
        if len(first) == len(again):
            found |= {at: _partner(rows, [one]) for at, one in zip(again, first, strict=True)}
        else:
            found |= dict.fromkeys(again, _partner(rows, first))
    return found


def _partner(rows: Sequence[PublishedRow], first: Sequence[int]) -> Partner:
    return Partner(rows=tuple(first), rate=geometric_mean([rate_of(rows[at]) for at in first]))

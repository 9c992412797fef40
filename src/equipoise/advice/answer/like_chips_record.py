"""How wrong results carried to another chip are: whole chips held out of all published data. What ships.

`python -m equipoise.advice.answer.like_chips_record` holds them out and writes data/like_chips.json.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import orjson
import polars as pl
from threadpoolctl import threadpool_limits

from equipoise.advice.answer.like_chips import LikeChipRecord, Nearness, modelled_s, nearest_chip
from equipoise.advice.forecast.answer import Inquiry
from equipoise.advice.forecast.published import Results, published_ground
from equipoise.advice.plans.length import DEVIATE
from equipoise.advice.plans.planned import Question
from equipoise.errors import DataError, EvidenceError, InputError
from equipoise.runs import embedded
from equipoise.scaling.law import FloatArray
from equipoise.scaling.points import best_per_size, round_key
from equipoise.spec.hardware import accelerator
from equipoise.units import significant

NAME = "like_chips.json"
_NUM_DIGITS = 4
# Rounds from here on: software and hardware that are still in use.
_FIRST_ROUND = "v3.0"
_P90 = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutChip:
    """One result of a chip that was held out, beside what was carried over to it, and the model alone."""

    nearness: Nearness
    chip: str
    actual_s: float
    carried_s: float
    modelled_s: float


@cache
def like_chip_records() -> tuple[LikeChipRecord, ...]:
    """The records that ship. Raises DataError where their file is missing or not what `main` writes."""
    path = files("equipoise") / "data" / NAME
    try:
        return tuple(LikeChipRecord(**each) for each in orjson.loads(path.read_bytes())["records"])
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(
            f"{path}: {err!r}; expected the record of like chips: `make profiles` writes it"
        ) from err


def like_chip_record(nearness: Nearness) -> LikeChipRecord:
    """The record of a nearness. Raises DataError as `like_chip_records` does."""
    return next(each for each in like_chip_records() if each.nearness == nearness)


def records(found: Sequence[HeldOutChip]) -> tuple[LikeChipRecord, ...]:
    """The record of each nearness."""
    kinds: tuple[Nearness, ...] = ("chip", "maker")
    return tuple(
        _record(kind, [each for each in found if each.nearness == kind])
        for kind in kinds
        if any(each.nearness == kind for each in found)
    )


def _record(kind: Nearness, found: Sequence[HeldOutChip]) -> LikeChipRecord:
    carried = np.array([math.log(each.carried_s / each.actual_s) for each in found])
    modelled = np.array([math.log(each.modelled_s / each.actual_s) for each in found])
    chips = np.array([each.chip for each in found])
    inside = [
        abs(error) <= DEVIATE * _log_sd(carried[chips != chip])
        for error, chip in zip(carried, chips, strict=True)
        if (chips != chip).any()
    ]
    return LikeChipRecord(
        nearness=kind,
        num_held_out=len(found),
        num_chips=len(set(chips.tolist())),
        log_sd=_log_sd(carried),
        median=float(np.median(np.abs(np.expm1(carried)))),
        p90=float(np.quantile(np.abs(np.expm1(carried)), _P90)),
        coverage=float(np.mean(inside)) if inside else math.nan,
        modelled_median=float(np.median(np.abs(np.expm1(modelled)))),
        modelled_p90=float(np.quantile(np.abs(np.expm1(modelled)), _P90)),
    )


def _log_sd(errors: FloatArray) -> float:
    """Source: a tenth of the errors lies beyond 1.645 standard deviations."""
    return float(np.quantile(np.abs(errors), _P90)) / DEVIATE


def held_out_chips(scores: pl.DataFrame) -> Iterator[HeldOutChip]:
    """Every result since v3.0, carried over from other chips' results of its round or earlier.

    scores: the table `scores`. Nothing of the chip itself is known: no result, no samples, no batch.
    """
    best = best_per_size(scores)
    rounds = sorted(best["campaign"].unique(), key=round_key)
    lately = [name for name in rounds if round_key(name) >= round_key(_FIRST_ROUND)]
    kept = best.filter(pl.col("campaign").is_in(lately))
    for (campaign, slug), mine in kept.group_by("campaign", "accelerator", maintain_order=True):
        until = rounds[: rounds.index(str(campaign)) + 1]
        known = scores.filter((pl.col("accelerator") != slug) & pl.col("campaign").is_in(until))
        results = Results(best=best_per_size(known))
        for (workload,), rows in mine.group_by("workload", maintain_order=True):
            yield from _of_group(known, results, rows, workload=str(workload), slug=str(slug))


def _of_group(
    known: pl.DataFrame, results: Results, rows: pl.DataFrame, *, workload: str, slug: str
) -> Iterator[HeldOutChip]:
    """The held-out results of one workload on one chip in one round."""
    sizes = rows["num_accelerators"].to_list()
    like = nearest_chip(results.best, workload, accelerator(slug), sizes)
    if like is None:
        return
    try:
        question = Question(
            workload=workload,
            accelerator=slug,
            fewest=sizes[0],
            most=sizes[-1],
            sizes=tuple(sizes),
            num_best=1,
        )
        here, there = (modelled_s(question, name, sizes, known) for name in (slug, like.chip.slug))
        inquiry = Inquiry(workload=workload, accelerator=like.chip.slug, sizes=tuple(sizes))
        ground = published_ground(results, inquiry, accelerator=like.chip.slug)
    except (InputError, EvidenceError):
        return
    told = {each.num_accelerators: each.time.value for each in ground.foretold}
    for size, actual_s in zip(sizes, rows["score_s"].to_list(), strict=True):
        if size in here and size in there:
            yield HeldOutChip(
                nearness=like.nearness,
                chip=slug,
                actual_s=actual_s,
                carried_s=told[size] * here[size] / there[size],
                modelled_s=here[size],
            )


def main() -> int:
    """Hold every chip out and write the file beside the embedded tables."""
    with threadpool_limits(limits=1):
        made = records(tuple(held_out_chips(embedded.load().scores)))
    document = {"dataset": embedded.version(), "records": [asdict(each) for each in made]}
    path = Path(str(files("equipoise") / "data" / NAME))
    encoded = orjson.dumps(
        significant(document, _NUM_DIGITS), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
    path.write_bytes(encoded)
    return 0


if __name__ == "__main__":
    sys.exit(main())

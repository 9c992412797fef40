"""Statements about how a workload scales, each tested on one view of its entries by a printed rule."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl

from equipoise.scaling.decompose import log_loss_shares
from equipoise.scaling.views import View
from equipoise.units import format_count, format_duration, format_percent

Verdict: TypeAlias = Literal["holds", "reverses", "not supported", "not enough evidence"]

# Replicate submissions differ by 3.3 % (median log-sd), the difference of two therefore by 1.4 times as much:
# what is within 5 % cannot be told apart.
MARGIN = 0.05
# The size from which the study sees efficiency fall.
SIXTEEN = 16
MIN_SIZES_OF_PEAK = 3
# About as efficient: within a factor of two.
ALIKE_FACTOR = 2
LOW_EFFICIENCY = 0.5
HIGH_EFFICIENCY = 0.8
# Most of the loss, or little of it; between the two the cause is shared.
MOST_FRACTION = 2 / 3
LITTLE_FRACTION = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number a verdict rests on: name, value, unit ("" for a ratio), and the entries behind it."""

    name: str
    value: float
    unit: str
    entry_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One way of testing: its verdict, the figures it rests on, and one sentence that says what was seen."""

    verdict: Verdict
    figures: tuple[Figure, ...]
    words: str


def no_evidence(words: str) -> Reading:
    """The reading of a statement that could not be tested, and what is lacking."""
    return Reading(verdict="not enough evidence", figures=(), words=words)


def best_near_eight(view: View) -> Reading:
    """Whether efficiency is best near 8 accelerators (6 to 11: half a doubling either way)."""
    near = view.best.filter(pl.col("num_accelerators").is_between(6, 11))
    elsewhere = view.best.filter(~pl.col("num_accelerators").is_between(6, 11))
    if near.is_empty() or elsewhere.is_empty():
        return no_evidence(f"{view.about}: needs a score near 8 accelerators and one elsewhere.")
    peak, other = _top(near), _top(elsewhere)
    ratio = peak["efficiency"] / other["efficiency"]
    return Reading(
        verdict=_compared(ratio),
        figures=(_efficiency(view, peak), _efficiency(view, other)),
        words=(
            f"{view.about}: {peak['efficiency']:.3g} at {peak['num_accelerators']}, against "
            f"{other['efficiency']:.3g} at {format_count(other['num_accelerators'])}, the best elsewhere."
        ),
    )


def falls_from_sixteen(view: View) -> Reading:
    """Whether the best efficiency from 16 accelerators on is below the best under 16."""
    below = view.best.filter(pl.col("num_accelerators") < SIXTEEN)
    above = view.best.filter(pl.col("num_accelerators") >= SIXTEEN)
    if below.is_empty() or above.is_empty():
        return no_evidence(f"{view.about}: needs scores below 16 accelerators and from 16 on.")
    small, large = _top(below), _top(above)
    ratio = large["efficiency"] / small["efficiency"]
    return Reading(
        verdict=_compared(1 / ratio),
        figures=(_efficiency(view, small), _efficiency(view, large)),
        words=(
            f"{view.about}: at best {large['efficiency']:.3g} from 16 on (at "
            f"{format_count(large['num_accelerators'])}), {small['efficiency']:.3g} below (at "
            f"{small['num_accelerators']})."
        ),
    )


def largest_like_smallest(view: View) -> Reading:
    """Whether the largest system is as efficient as the baseline, within a factor of two."""
    if view.best.height <= 1:
        return no_evidence(f"{view.about}: needs two sizes.")
    largest = view.best.row(-1, named=True)
    efficiency = largest["efficiency"]
    verdict: Verdict = "not supported"
    if efficiency <= ALIKE_FACTOR:
        verdict = "reverses" if efficiency < 1 / ALIKE_FACTOR else "holds"
    smallest = view.best["num_accelerators"][0]
    return Reading(
        verdict=verdict,
        figures=(_efficiency(view, largest),),
        words=(
            f"{view.about}: {format_count(largest['num_accelerators'])} accelerators reach {efficiency:.3g} "
            f"of the efficiency of {smallest}."
        ),
    )


def above_one_at_four_to_eight(view: View) -> Reading:
    """Whether the median efficiency at 4 to 8 accelerators, the baseline left out, is above 1."""
    median, reading_figures = _median_at_four_to_eight(view)
    if median is None:
        return no_evidence(f"{view.about}: needs scores at 4 to 8 accelerators besides the baseline.")
    verdict: Verdict = "holds" if median > 1 else "reverses" if median < 1 - MARGIN else "not supported"
    return Reading(
        verdict=verdict,
        figures=reading_figures,
        words=f"{view.about}: median {median:.3g} at 4 to 8 accelerators.",
    )


def moderate_at_four_to_eight(view: View) -> Reading:
    """Whether the median efficiency at 4 to 8 accelerators, the baseline left out, is not low."""
    median, reading_figures = _median_at_four_to_eight(view)
    if median is None:
        return no_evidence(f"{view.about}: needs scores at 4 to 8 accelerators besides the baseline.")
    return Reading(
        verdict="holds" if median >= LOW_EFFICIENCY else "reverses",
        figures=reading_figures,
        words=f"{view.about}: median {median:.3g} at 4 to 8 accelerators.",
    )


def largest_fast_and_inefficient(view: View) -> Reading:
    """Whether the largest system has the shortest time and a low efficiency."""
    if view.best.height <= 1:
        return no_evidence(f"{view.about}: needs two sizes.")
    largest = view.best.row(-1, named=True)
    is_fastest = largest["score_s"] <= view.points["score_s"].min()
    is_low = largest["efficiency"] < LOW_EFFICIENCY
    verdict: Verdict = (
        "holds" if is_fastest and is_low else "not supported" if is_fastest or is_low else "reverses"
    )
    return Reading(
        verdict=verdict,
        figures=(
            _efficiency(view, largest),
            Figure(name="its time", value=largest["score_s"], unit="s", entry_ids=(largest["entry_id"],)),
        ),
        words=(
            f"{view.about}: {format_count(largest['num_accelerators'])} accelerators take "
            f"{format_duration(largest['score_s'])}, {'the' if is_fastest else 'not the'} shortest time, at "
            f"{largest['efficiency']:.3g}."
        ),
    )


def largest_inefficient(view: View) -> Reading:
    """Whether the efficiency of the largest system is low."""
    if view.best.height <= 1:
        return no_evidence(f"{view.about}: needs two sizes.")
    largest = view.best.row(-1, named=True)
    efficiency = largest["efficiency"]
    verdict: Verdict = (
        "holds"
        if efficiency < LOW_EFFICIENCY
        else "reverses"
        if efficiency >= HIGH_EFFICIENCY
        else "not supported"
    )
    return Reading(
        verdict=verdict,
        figures=(_efficiency(view, largest),),
        words=f"{view.about}: {efficiency:.3g} at {format_count(largest['num_accelerators'])} accelerators.",
    )


def falls_in_steps(view: View) -> Reading:
    """Whether the best efficiency falls from step to step: below 16, 16 to 31, 32 to 99, 100 and more."""
    steps = ((1, 15), (16, 31), (32, 99), (100, 2**62))
    tops = [
        _top(own) for low, high in steps
        if not (own := view.best.filter(pl.col("num_accelerators").is_between(low, high))).is_empty()
    ]  # fmt: skip
    if len(tops) <= 1:
        return no_evidence(f"{view.about}: needs scores in two of the ranges.")
    ratios = [after["efficiency"] / before["efficiency"] for before, after in pairwise(tops)]
    verdict: Verdict = (
        "holds" if max(ratios) < 1 - MARGIN else "reverses" if min(ratios) > 1 + MARGIN else "not supported"
    )
    path = ", ".join(f"{top['efficiency']:.3g} at {format_count(top['num_accelerators'])}" for top in tops)
    return Reading(
        verdict=verdict, figures=tuple(_efficiency(view, top) for top in tops), words=f"{view.about}: {path}."
    )


def tpu_v5p_present(view: View) -> Reading:
    """Whether a scored entry ran on TPU v5p."""
    if view.way == "like for like":
        return no_evidence("Presence has no baseline: see the study's way.")
    slugs = pl.col("accelerator")
    found = view.points.filter((slugs == "tpu-v5p") | slugs.str.starts_with("tpu-v5p-"))
    count = Figure(
        name="entries on TPU v5p", value=found.height, unit="", entry_ids=tuple(found["entry_id"].sort())
    )
    return Reading(
        verdict="not supported" if found.is_empty() else "holds",
        figures=(count,),
        words=f"{found.height} scored entries ran on TPU v5p.",
    )


def balance_is_interior(view: View) -> Reading:
    """Whether efficiency times speedup peaks inside the range of sizes, not at an end."""
    best = view.best.with_columns(_product=pl.col("efficiency") * pl.col("speedup"))
    if best.height < MIN_SIZES_OF_PEAK:
        return no_evidence(f"{view.about}: needs three sizes.")
    peak = best.sort("_product", "num_accelerators", descending=[True, False]).row(0, named=True)
    smallest, largest = best["num_accelerators"][0], best["num_accelerators"][-1]
    size = peak["num_accelerators"]
    verdict: Verdict = "reverses" if size == smallest else "not supported" if size == largest else "holds"
    where = {"holds": "inside the range", "reverses": "at its lower end"}.get(
        verdict, "at its upper end: the balance may lie beyond the data"
    )
    return Reading(
        verdict=verdict,
        figures=(
            Figure(
                name="size with the highest E x S",
                value=size,
                unit="accelerators",
                entry_ids=(peak["entry_id"],),
            ),
        ),
        words=f"{view.about}: highest at {format_count(size)} of {smallest} to {format_count(largest)}, "
        f"{where}.",
    )


def loss_is_throughput(view: View) -> Reading:
    """Whether most of the log loss at the largest size is throughput: communication can be nowhere else."""
    if view.way == "their way":
        return no_evidence("E' mixes hardware and convergence with speed: it cannot tell what the loss is.")
    shares = log_loss_shares(view.best.filter(pl.col("efficiency") < 1 - MARGIN)).sort("num_accelerators")
    if shares.is_empty():
        return no_evidence(f"{view.about}: needs a lossy entry whose log tells the samples it needed.")
    row = shares.row(-1, named=True)
    throughput, statistical = row["throughput_fraction"], row["statistical_fraction"]
    verdict: Verdict = (
        "holds"
        if throughput >= MOST_FRACTION
        else "reverses"
        if throughput <= LITTLE_FRACTION
        else "not supported"
    )
    ids = (row["entry_id"],)
    return Reading(
        verdict=verdict,
        figures=(
            Figure(name="share of the log loss in throughput", value=throughput, unit="", entry_ids=ids),
            Figure(name="share of the log loss in batch growth", value=statistical, unit="", entry_ids=ids),
            Figure(
                name="share of the log loss in the rules", value=row["rules_fraction"], unit="", entry_ids=ids
            ),
        ),
        words=(
            f"{view.about}, {format_count(row['num_accelerators'])} accelerators: "
            f"{format_percent(throughput)} of the log loss is throughput, of which communication is a part; "
            f"{format_percent(statistical)} is more samples for a larger batch."
        ),
    )


def _median_at_four_to_eight(view: View) -> tuple[float | None, tuple[Figure, ...]]:
    own = view.points.filter(pl.col("num_accelerators").is_between(4, 8) & ~pl.col("is_baseline"))
    if own.is_empty():
        return None, ()
    median = float(np.median(own["efficiency"].to_numpy()))
    name = f"median {_symbol(view)} at 4 to 8"
    return median, (Figure(name=name, value=median, unit="", entry_ids=tuple(own["entry_id"].sort())),)


def _compared(ratio: float) -> Verdict:
    return "holds" if ratio > 1 + MARGIN else "reverses" if ratio < 1 - MARGIN else "not supported"


def _top(rows: pl.DataFrame) -> dict[str, Any]:
    return rows.sort("efficiency", "num_accelerators", descending=[True, False]).row(0, named=True)


def _symbol(view: View) -> str:
    return "E'" if view.way == "their way" else "E"


def _efficiency(view: View, row: dict[str, Any]) -> Figure:
    return Figure(
        name=f"{_symbol(view)} at {format_count(row['num_accelerators'])}",
        value=row["efficiency"],
        unit="",
        entry_ids=(row["entry_id"],),
    )

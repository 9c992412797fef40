"""Which published chip is nearest to one without results, and its curve, carried over by the model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import polars as pl

from equipoise.advice.answer.evidence import Curves, Witness
from equipoise.advice.answer.witnesses import with_log_sd
from equipoise.advice.plans.landscape import surveyed
from equipoise.advice.plans.plan import landscape
from equipoise.advice.plans.planned import Question
from equipoise.errors import SpecError
from equipoise.scaling.law import Domain, FloatArray
from equipoise.scaling.points import round_key
from equipoise.spec.hardware import Accelerator, accelerator
from equipoise.units import format_count, format_percent

# The same chip in another form or with other memory, and another chip of the same maker and kind. Those of
# other makers say less than the model alone does (docs/experiments/0021).
Nearness: TypeAlias = Literal["chip", "maker"]
# What a round of age counts, in doublings of peak: software moves on.
_DOUBLINGS_A_ROUND = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeChip:
    """A chip with results that is near to one without. doublings: how far, the less the nearer."""

    chip: Accelerator
    nearness: Nearness
    doublings: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeChipRecord:
    """How wrong times carried over to whole chips held out were, by nearness.

    log_sd: of the logarithm. median, p90: of |carried / published - 1|; modelled_median, modelled_p90: of the
    model alone on the same results. coverage: of the 90 % interval, its width from the other chips.
    """

    nearness: Nearness
    num_held_out: int
    num_chips: int
    log_sd: float
    median: float
    p90: float
    coverage: float
    modelled_median: float
    modelled_p90: float

    @property
    def of(self) -> str:
        """What was held out, in words."""
        what = "the same chip in another form" if self.nearness == "chip" else "another chip of its maker"
        return f"results of {self.num_chips} chips held out whole, carried over from {what}"


def nearest_chip(
    best: pl.DataFrame, workload: str, asked: Accelerator, sizes: Sequence[int]
) -> LikeChip | None:
    """The chip with results of a workload that is nearest to one without; None where none is near at all.

    best: as `best_per_size` returned it, of MLPerf rounds alone. sizes: asked about.
    The same chip in another form comes first, then other chips of its maker and kind; of those the one of the
    nearest peak, whose results are new and lie where the sizes are.
    """
    rows = best.filter((pl.col("workload") == workload) & (pl.col("accelerator") != asked.slug))
    rounds = sorted(rows["campaign"].unique(), key=round_key)
    found = []
    for (slug,), results in rows.group_by("accelerator", maintain_order=True):
        try:
            chip = accelerator(str(slug))
        except SpecError:
            continue
        nearness = _nearness(asked, chip)
        apart = abs(_peak_log2(chip) - _peak_log2(asked))
        if nearness is None or not math.isfinite(apart):
            continue
        newest = max(map(rounds.index, results["campaign"].unique()))
        known = results["num_accelerators"].to_numpy().astype(float)
        far = _DOUBLINGS_A_ROUND * (len(rounds) - 1 - newest) + _outside(sizes, known)
        found.append(LikeChip(chip=chip, nearness=nearness, doublings=apart + far))
    return min(found, key=lambda each: (each.nearness != "chip", each.doublings), default=None)


def _nearness(asked: Accelerator, chip: Accelerator) -> Nearness | None:
    """Assumes the first word of a slug names the chip, as `profile_for` does."""
    if chip.slug.partition("-")[0] == asked.slug.partition("-")[0]:
        return "chip"
    return "maker" if (chip.vendor, chip.kind) == (asked.vendor, asked.kind) else None


def _peak_log2(chip: Accelerator) -> float:
    peak = chip.peak_bf16_flop_per_s or chip.peak_fp16_flop_per_s or chip.peak_fp32_flop_per_s
    return math.nan if peak is None else math.log2(peak)


def _outside(sizes: Sequence[int], known: FloatArray) -> float:
    """By how many doublings sizes lie outside of those known, on average."""
    places = np.log2(np.asarray(sizes, dtype=float))
    low, high = float(np.log2(known.min())), float(np.log2(known.max()))
    return float(np.maximum(0.0, np.maximum(places - high, low - places)).mean())


def modelled_s(
    question: Question, slug: str, sizes: Sequence[int], scores: pl.DataFrame | None
) -> dict[int, float]:
    """Modelled seconds of the best strategy of each size on a chip in its usual nodes; of sizes that fit.

    question: of another chip, whose node and links it may describe. Raises as `landscape`.
    """
    asked = replace(
        question,
        accelerator=slug,
        node={},
        collectives=None,
        sizes=(),
        fewest=min(sizes),
        most=max(sizes),
        num_best=1,
    )
    found = surveyed(landscape(asked, scores=scores), sizes)
    return {each.num_accelerators: each.best.time.value for each in found.sized if each.best is not None}


def over_to(
    published: Witness,
    like: LikeChip,
    *,
    here_s: Mapping[int, float],
    there_s: Mapping[int, float],
    record: LikeChipRecord,
) -> Witness | None:
    """What results of a like chip say of the one asked about; None where the model tells no size of both.

    published: the witness of the like chip. here_s, there_s: modelled times, by size, of the chip asked about
    and of the like one.
    Assumes what the model gets wrong about a workload it gets wrong on both chips alike.
    Source: T(N) = T_there(N) T_model_here(N) / T_model_there(N); errors as of whole chips held out, and never
    less than those of the results themselves.
    """
    shared = sorted(set(published.times) & set(here_s) & set(there_s))
    if not shared:
        return None
    ratios = {size: here_s[size] / there_s[size] for size in shared}
    log_sds = {size: max(record.log_sd, published.log_sds[size]) for size in shared}
    error = format_percent(round(record.median, 3))
    curves_s, domain = _curves(published, ratios)
    return replace(
        published,
        name=f"published results (carried from {like.chip.title})",
        times={
            size: with_log_sd(ratios[size] * published.times[size].value, log_sds[size]) for size in shared
        },
        log_sds=log_sds,
        why={
            size: f"results of {like.chip.title}, {ratios[size]:.2f} times as long by the model; "
            f"{format_count(record.num_held_out)} {record.of}, were off by {error} (median)"
            for size in shared
        },
        curves_s=curves_s,
        domain=domain,
    )


def _curves(published: Witness, ratios: Mapping[int, float]) -> tuple[Curves | None, Domain | None]:
    """The curves and their domain, times the ratio, which is straight between sizes in both logarithms."""
    told, domain = published.curves_s, published.domain
    sizes = sorted(ratios)
    if told is None or domain is None:
        return None, None
    low, high = max(domain.smallest, sizes[0]), min(domain.largest, sizes[-1])
    places, logs = np.log(sizes), np.log([ratios[size] for size in sizes])

    def curves_s(at: FloatArray) -> FloatArray:
        return np.asarray(told(at) * np.exp(np.interp(np.log(at), places, logs)))

    return curves_s, Domain(smallest=low, largest=high) if low < high else None

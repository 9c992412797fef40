"""Spread between submitters: each one's time over the best time of the others at its size."""

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from equipoise.errors import EvidenceError
from equipoise.intervals import LEVEL, num_sd
from equipoise.scaling.pooled import SubmitterSpread
from equipoise.spec.mlperf import ScoredEntry, round_key

# Fewer results than this give no useful median or quantile.
_MIN_RESULTS = 20


def submitter_spread(entries: Iterable[ScoredEntry]) -> SubmitterSpread:
    """The spread of submitters over all rounds, workloads, accelerators and sizes.

    Raises EvidenceError with fewer than 20 results at sizes of two submitters or more.
    Assumes the spread is the same everywhere, and a new submitter is like those seen.
    """
    found = log_ratios(entries)
    if len(found) < _MIN_RESULTS:
        raise EvidenceError(
            f"{len(found)} results at sizes of two submitters or more; a spread needs {_MIN_RESULTS}",
            missing=("more submitters of the same accelerator and size",),
        )
    inside: list[float] = []
    for campaign in {each.campaign for each in found}:
        known = [each for each in found if round_key(each.campaign) < round_key(campaign)]
        if len(known) >= _MIN_RESULTS:
            middle, spread = _log_normal(known)
            held_out = np.array([each.log_ratio for each in found if each.campaign == campaign])
            inside += (np.abs(held_out - middle) <= num_sd(LEVEL) * spread).tolist()
    middle, spread = _log_normal(found)
    return SubmitterSpread(
        factor=float(np.exp(middle)),
        log_sd=spread,
        num_results=len(found),
        num_held_out=len(inside),
        coverage=float(np.mean(inside)) if inside else None,
    )


class SubmitterRatio(Struct, frozen=True, kw_only=True):
    """Log ratio of a submitter's time at one size to the best of the others there."""

    campaign: str
    submitter: str
    log_ratio: float


def log_ratios(entries: Iterable[ScoredEntry]) -> tuple[SubmitterRatio, ...]:
    """Log ratios of each submitter's best time to the best of the others, at sizes with at least two
    submitters.

    Submitters' names are compared case-insensitively.
    """
    best_s: dict[tuple[object, ...], dict[str, float]] = {}
    for each in entries:
        if each.accelerator and each.submitter:
            name = each.submitter.lower()
            at_size = best_s.setdefault((*each.group, each.num_accelerators), {})
            at_size[name] = min(each.score_s, at_size.get(name, each.score_s))
    found = []
    for (campaign, *_), at_size in best_s.items():
        ordered = sorted((time_s, name) for name, time_s in at_size.items())
        if len(ordered) == 1:
            continue
        (first_s, first), (next_s, _) = ordered[:2]
        for time_s, name in ordered:
            log_ratio = float(np.log(time_s / (next_s if name == first else first_s)))
            found.append(SubmitterRatio(campaign=str(campaign), submitter=name, log_ratio=log_ratio))
    return tuple(found)


def _log_normal(found: Iterable[SubmitterRatio]) -> tuple[float, float]:
    """The median, and the sd of a normal distribution around it with the same quantile of deviations at
    LEVEL.
    """
    log_ratio = np.array([each.log_ratio for each in found])
    middle = float(np.median(log_ratio))
    return middle, float(np.quantile(np.abs(log_ratio - middle), LEVEL)) / num_sd(LEVEL)

"""How long a training is, in samples: to a published target, as stated, or a unit of it."""

import math
from collections.abc import Callable

import numpy as np
import polars as pl

from equipoise.advice.forecast.answer import LEVEL, Evidence
from equipoise.advice.plans.planned import Length
from equipoise.errors import EvidenceError, UsageError
from equipoise.scaling.batches import BatchGrowth, batch_growth
from equipoise.scaling.law import FloatArray
from equipoise.spec.workload import Workload
from equipoise.units import SI_PREFIXES, format_si

# Quantiles of a normal deviate that leave (1 - LEVEL) / 2 on each side.
DEVIATE = 1.6448536269514722
_UNIT_TOKENS = _UNIT_SAMPLES = SI_PREFIXES["G"]
# Thousands of times the longest training there was: more is a slip.
_MOST_GIVEN = SI_PREFIXES["E"]
TRAINING_ALONE = "The time is of training steps; evaluation and start-up, which MLPerf counts, come on top."


def stated_length(workload: Workload, *, samples: float | None, tokens: float | None) -> float | None:
    """The samples of a training stated by the user, in samples or tokens; None where neither is.

    Raises UsageError for what is no length.
    """
    if samples is not None and tokens is not None:
        raise UsageError("--samples and --tokens both state the length of the training; keep one")
    given = samples if tokens is None else tokens
    if given is None:
        return None
    if not 1 <= given <= _MOST_GIVEN:
        name = "--samples" if tokens is None else "--tokens"
        raise UsageError(f"{name} {given:g}; expected a finite number, 1 to {_MOST_GIVEN:g}")
    if tokens is None:
        return samples
    if workload.sequence_tokens is None:
        raise UsageError(f"--tokens: a sample of {workload.title} has no number of tokens; give --samples")
    return tokens / workload.sequence_tokens


def training_length(
    workload: Workload, scores: pl.DataFrame | None, *, stated_samples: float | None
) -> Length:
    """How many samples the training takes at each global batch.

    scores: the table `scores`, all rounds; None where there are no published results to look at.
    stated_samples: the user's own length, the same at every batch.
    """
    if stated_samples is not None:
        amount = stated_samples * (workload.sequence_tokens or 1)
        unit = "tokens" if workload.sequence_tokens else "samples"
        return Length(
            words=f"train on {format_si(amount)} {unit}",
            samples=_always(stated_samples),
            log_sd=lambda _: 0.0,
            batches=None,
            is_whole=True,
        )
    try:
        entries = _entries(workload, scores)
        growth = batch_growth(entries.rename({"campaign": "round"}), level=LEVEL)
    except EvidenceError as err:
        return _unit(workload, err)
    return _fitted(workload, growth, entries)


def target_words(workload: Workload) -> str:
    """What the length of a published training is, as in "the time to ..."."""
    return f"reach the MLPerf target{f' ({workload.target})' if workload.target else ''}"


def _always(samples: float) -> Callable[[FloatArray], FloatArray]:
    return lambda batch: np.full_like(batch, samples)


def _entries(workload: Workload, scores: pl.DataFrame | None) -> pl.DataFrame:
    """The published results of a workload that tell samples against batch."""
    if scores is None:
        raise EvidenceError("no published results were looked at")
    entries = scores.filter((pl.col("workload") == workload.slug) & (pl.col("division") == "closed"))
    if entries.is_empty():
        raise EvidenceError(f"no published result of {workload.title} tells how many samples it needs")
    return entries


def _fitted(workload: Workload, growth: BatchGrowth, entries: pl.DataFrame) -> Length:
    """The law of samples against batch, with its spread over the batches seen."""
    least, critical = growth.samples_min.value, growth.batch_critical.value
    curve = growth.curve
    batches = np.log(curve["global_batch_samples"].to_numpy())
    spread = np.log(curve["high"].to_numpy() / curve["low"].to_numpy()) / (2 * DEVIATE)
    seen = growth.entries["global_batch_samples"].to_numpy()
    law = (
        f"Samples to the target grow with the global batch B: {least:.4g} (1 + B / {critical:.4g}), from "
        f"{len(seen)} results of {growth.num_rounds} rounds at batches of {seen.min():,} to {seen.max():,}."
    )
    return Length(
        words=target_words(workload),
        samples=lambda batch: np.asarray(least * (1 + batch / critical)),
        log_sd=lambda batch: float(np.interp(math.log(batch), batches, spread)),
        batches=(int(seen.min()), int(seen.max())),
        is_whole=True,
        evidence=_evidence(growth, entries),
        notes=(law, TRAINING_ALONE),
    )


def _unit(workload: Workload, why: EvidenceError) -> Length:
    """A round number of tokens or samples, where nobody tells how long the training is."""
    tokens = workload.sequence_tokens
    samples = _UNIT_SAMPLES if tokens is None else _UNIT_TOKENS / tokens
    return Length(
        words=f"train on each 1e9 {'samples' if tokens is None else 'tokens'}",
        samples=_always(samples),
        log_sd=lambda _: 0.0,
        batches=None,
        is_whole=False,
        missing=("the length of the training: --tokens N or --samples N", *why.missing),
        notes=(f"The length of the training is not known ({why}): give --tokens or --samples.",),
    )


def _evidence(growth: BatchGrowth, entries: pl.DataFrame) -> tuple[Evidence, ...]:
    """The results that tell the samples, with their shares of all weights."""
    sources = entries.select("entry_id", "score_s", "source_uri", "source_line")
    rows = growth.entries.join(sources, on="entry_id").sort("weight", descending=True)
    total = float(rows["weight"].sum())
    return tuple(
        Evidence(
            kind="published",
            ref=row["entry_id"],
            num_accelerators=row["num_accelerators"],
            time_s=row["score_s"],
            weight=row["weight"] / total,
            is_own=False,
            source_uri=row["source_uri"],
            source_line=row["source_line"],
        )
        for row in rows.iter_rows(named=True)
    )

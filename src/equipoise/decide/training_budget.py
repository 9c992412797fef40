"""How much work a training is, in samples: as stated, or to a published target."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from equipoise.decide.estimate import DEVIATE, LEVEL, Source
from equipoise.decide.query import TrainingQuery
from equipoise.errors import EvidenceError, UsageError
from equipoise.runs.queries import comparable
from equipoise.scaling.batches import BatchGrowth, batch_growth
from equipoise.scaling.law import FloatArray
from equipoise.spec.workload import Workload
from equipoise.units import format_si

TRAINING_ALONE = "The time is of training steps; evaluation and start-up, which MLPerf counts, come on top."


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBudget:
    """How many samples a training takes. work: what the time is for, as in "the time to ...".

    samples: global batches -> samples; None where results state how long the training takes, not how many
    samples: then only published times apply. log_sd: a global batch -> log standard deviation of
    its samples. batches: global batches it is known for, smallest and largest; None where samples do not
    depend on them. is_to_target: the published target is meant.
    """

    work: str
    samples: Callable[[FloatArray], FloatArray] | None
    log_sd: Callable[[float], float]
    batches: tuple[int, int] | None
    is_to_target: bool
    evidence: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()

    def samples_at(self, global_batch_samples: int) -> float | None:
        """Samples of the training at a batch; None where that is not known."""
        if self.samples is None:
            return None
        return float(self.samples(np.array([float(global_batch_samples)]))[0])


def training_budget(asked: TrainingQuery, workload: Workload, scores: pl.DataFrame | None) -> TrainingBudget:
    """The work that a question asks for.

    scores: the table `scores`, all rounds; None where there are no published results to look at.
    Raises UsageError where nothing states how much is to be trained: no target, samples or tokens.
    """
    stated = _stated_samples(asked, workload)
    if stated is not None:
        return fixed_budget(workload, stated)
    entries = None if scores is None else comparable(scores, workload=workload.slug)
    if entries is None or entries.is_empty():
        unit = "--tokens N, such as --tokens 1T," if workload.sequence_tokens else "--samples N"
        raise UsageError(
            f"how much {workload.title} is to be trained is not stated, and no published result has a "
            f"target: give {unit}{' or --samples N' if workload.sequence_tokens else ''}"
        )
    try:
        growth = batch_growth(entries.rename({"campaign": "round"}), level=LEVEL)
    except EvidenceError as err:
        unknown = (
            f"How many samples the target takes is not known ({err}): the model compares strategies and "
            "sizes, but gives no time by itself. State --samples or --tokens for another training budget."
        )
        return TrainingBudget(
            work=target_words(workload),
            samples=None,
            log_sd=lambda _: 0.0,
            batches=None,
            is_to_target=True,
            notes=(unknown,),
        )
    return _fitted(workload, growth, entries)


def fixed_budget(workload: Workload, samples: float) -> TrainingBudget:
    """A budget of so many samples, the same at every batch."""
    amount = samples * (workload.sequence_tokens or 1)
    unit = "tokens" if workload.sequence_tokens else "samples"
    return TrainingBudget(
        work=f"train on {format_si(amount)} {unit}",
        samples=lambda batch: np.full_like(batch, samples),
        log_sd=lambda _: 0.0,
        batches=None,
        is_to_target=False,
    )


def target_words(workload: Workload) -> str:
    """What a published training is for, as in "the time to ..."."""
    return f"reach the MLPerf target{f' ({workload.target})' if workload.target else ''}"


def _stated_samples(asked: TrainingQuery, workload: Workload) -> float | None:
    if asked.training_tokens is None:
        return asked.training_samples
    if workload.sequence_tokens is None:
        raise UsageError(f"--tokens: a sample of {workload.title} has no number of tokens; give --samples")
    return asked.training_tokens / workload.sequence_tokens


def _fitted(workload: Workload, growth: BatchGrowth, entries: pl.DataFrame) -> TrainingBudget:
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
    return TrainingBudget(
        work=target_words(workload),
        samples=lambda batch: np.asarray(least * (1 + batch / critical)),
        log_sd=lambda batch: float(np.interp(math.log(batch), batches, spread)),
        batches=(int(seen.min()), int(seen.max())),
        is_to_target=True,
        evidence=_evidence(growth, entries),
        notes=(law, TRAINING_ALONE),
    )


def _evidence(growth: BatchGrowth, entries: pl.DataFrame) -> tuple[Source, ...]:
    """The results that the samples are fitted to, with their shares of all weights."""
    sources = entries.select("entry_id", "score_s", "source_uri", "source_line")
    rows = growth.entries.join(sources, on="entry_id").sort("weight", descending=True)
    total = float(rows["weight"].sum())
    return tuple(
        Source(
            kind="published",
            ref=row["entry_id"],
            num_accelerators=row["num_accelerators"],
            time_s=row["score_s"],
            share=row["weight"] / total,
            source_uri=row["source_uri"],
            source_line=row["source_line"],
        )
        for row in rows.iter_rows(named=True)
    )

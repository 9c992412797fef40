"""Results of the nearest chip that has some, for one that has none: as a witness of its times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from equipoise.advice.answer.evidence import Witness
from equipoise.advice.answer.like_chips import LikeChip, LikeChipRecord, modelled_s, nearest_chip, over_to
from equipoise.advice.answer.like_chips_record import like_chip_record
from equipoise.advice.answer.witnesses import carried, published_witness
from equipoise.advice.forecast.answer import Forecast, Inquiry, Terms
from equipoise.advice.forecast.forecast import forecast
from equipoise.advice.forecast.published import results_of
from equipoise.advice.plans.planned import Plan
from equipoise.errors import EvidenceError, SpecError
from equipoise.spec.hardware import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeResults:
    """What is published of the nearest chip. there_s: modelled times on it, by size. record: of carrying."""

    like: LikeChip
    forecast: Forecast
    there_s: Mapping[int, float]
    record: LikeChipRecord

    def witness(self, modelled: Witness) -> Witness | None:
        """Its results carried over to the chip that the model's witness is of; None where none can be."""
        published = published_witness(self.forecast)
        if published is None:
            return None
        here_s = {size: time.value for size, time in modelled.times.items()}
        found = over_to(published, self.like, here_s=here_s, there_s=self.there_s, record=self.record)
        return None if found is None else carried(found, modelled)


def like_results(
    plan: Plan, asked: Accelerator, sizes: Sequence[int], scores: pl.DataFrame
) -> LikeResults | None:
    """Results of the chip nearest to one without; None where none is near, or nothing can be told of it.

    plan: of the chip asked about.
    """
    question, workload = plan.question, plan.workload.slug
    like = nearest_chip(results_of(scores).best, workload, asked, sizes)
    if like is None:
        return None
    batch = question.global_batch_samples
    inquiry = Inquiry(
        workload=workload,
        accelerator=like.chip.slug,
        sizes=tuple(sizes),
        global_batch_samples=None if batch is None else float(batch),
    )
    try:
        return LikeResults(
            like=like,
            forecast=forecast(scores, inquiry, terms=Terms()),
            there_s=modelled_s(question, like.chip.slug, sizes, scores),
            record=like_chip_record(like.nearness),
        )
    except (EvidenceError, SpecError):
        return None

"""Published pretrainings of language models: facts, and those nearest to what an answer shows.

They are shown and change no estimate but by the factor that all of them give (`combine.PlanRecord`).
"""

import math
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from msgspec import Struct, convert

from equipoise.decide.answer import Answer
from equipoise.decide.combine import planned_pretrainings, pretraining_kind, record_of
from equipoise.decide.published_steps import (
    FARTHEST,
    OTHER_KIND,
    OTHER_MODEL,
    PER_DOUBLING_OF_PARAMS,
    chips_apart,
)
from equipoise.decide.training import has_usual_batch
from equipoise.files import shipped_table
from equipoise.spec.catalogue import shipped
from equipoise.units import TRILLION

MOST_NEAR: Final = 5


class Pretraining(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A language model whose pretraining was published in accelerator-hours.

    family: trainings of one project. num_accelerators: None where it is not known. batch_tokens: None where
    it is not published. precision: of products, as strategies name it. strategy: what is stated of the rest,
    as `TrainingQuery.fixed` takes it.
    """

    title: str
    family: str
    workload: str
    tokens: float
    sequence_tokens: int
    accelerator: str
    accelerator_hours: float
    source: str
    num_accelerators: int | None = None
    batch_tokens: int | None = None
    precision: str | None = None
    strategy: str | None = None


class NearPretraining(Struct, frozen=True, kw_only=True):
    """A published pretraining near to the candidate that is shown.

    distance: as of published steps, by kind and size of model and by chip. num_accelerators: None where it
    is not known. accelerator_hours_per_t_tokens: of each 1e12 tokens. model_ratio: accelerator-hours as they
    would be planned, the factor of pretrainings included, over those published.
    """

    title: str
    distance: float
    tokens: float
    active_params: float
    accelerator: str
    num_accelerators: int | None
    accelerator_hours: float
    accelerator_hours_per_t_tokens: float
    model_ratio: float
    source: str


@cache
def pretrainings() -> tuple[Pretraining, ...]:
    """The published pretrainings: facts of data/pretrainings.toml, each with its source."""
    path = Path(str(files("equipoise"))) / "data" / "pretrainings.toml"
    return convert(tuple(shipped_table(path)["pretraining"]), tuple[Pretraining, ...])


def _is_pretraining(answer: Answer) -> bool:
    """As Training.is_pretraining, of a transformer."""
    question, about = answer.question, answer.workload
    is_stated = not question.is_to_target and not question.counts_examples
    return is_stated and has_usual_batch(about) and about.transformer is not None and about.rollout is None


def near_published_pretrainings(answer: Answer | None) -> tuple[NearPretraining, ...]:
    """The published pretrainings nearest to the candidate shown, the nearest first.

    Empty where no language model is trained in full on a stated amount of text, or nothing is near.
    """
    shown = None if answer is None else answer.shown
    if answer is None or shown is None or not _is_pretraining(answer):
        return ()
    about = answer.workload.transformer
    assert about is not None
    kind = pretraining_kind(answer.workload)
    apart = chips_apart(
        list(dict.fromkeys(each.accelerator for each in pretrainings())), shown.accelerator, shipped()
    )
    found = []
    for each in pretrainings():
        planned = planned_pretrainings().get(each.title)
        if planned is None or each.accelerator not in apart:
            continue
        distance = apart[each.accelerator] + OTHER_MODEL * (each.workload != answer.workload.slug)
        distance += OTHER_KIND * (planned.kind != kind)
        distance += PER_DOUBLING_OF_PARAMS * abs(math.log2(planned.active_params / about.active_params))
        if distance > FARTHEST:
            continue
        found.append(
            NearPretraining(
                title=each.title,
                distance=distance,
                tokens=each.tokens,
                active_params=planned.active_params,
                accelerator=each.accelerator,
                num_accelerators=each.num_accelerators,
                accelerator_hours=each.accelerator_hours,
                accelerator_hours_per_t_tokens=each.accelerator_hours / each.tokens * TRILLION,
                model_ratio=planned.step_hours_ratio / record_of(planned.kind).bias,
                source=each.source,
            )
        )
    found.sort(key=lambda each: (each.distance, each.title))
    return tuple(found[:MOST_NEAR])

"""What is trained, once for all systems: workload, budget, batch, and what may be chosen of strategies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from equipoise.decide.knobs import knob_choices
from equipoise.decide.query import TrainingQuery
from equipoise.decide.training_budget import TrainingBudget, training_budget
from equipoise.errors import EvidenceError, UsageError
from equipoise.perfmodel.space import Value
from equipoise.runs.queries import comparable
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.torch_model import count_function
from equipoise.spec.workload import Workload
from equipoise.units import format_count

# Batches of pretraining runs of language models whose samples against batch nobody has published: 4 Mi
# tokens, as all sizes of LLaMA and Llama 2 had (Touvron et al. 2023, in both papers).
_USUAL_BATCH_TOKENS: Final = 2**22
USUAL_LORA_RANK: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained. name: as asked. budget: how much of it.

    global_batch_samples: stated by the user or by the user's own model; None where it is to be chosen.
    choices: values that knobs of the strategy may take; is_fixed: whether the user fixed any of them.
    chosen_for_you: what was chosen because the question leaves it open, in words.
    """

    name: str
    workload: Workload
    budget: TrainingBudget
    global_batch_samples: int | None
    choices: Mapping[str, tuple[Value, ...]]
    is_fixed: bool
    chosen_for_you: tuple[str, ...]


def training(asked: TrainingQuery, catalogue: Catalogue, scores: pl.DataFrame | None) -> Training:
    """What a question trains: a workload of the catalogue, or the model that `module:function` returns.

    The batch of the user's own model is kept at every size (a batch that changes is another training), unless
    the question states one. Raises SpecError with the nearest names or why the model cannot be counted,
    UsageError where the question states no training budget or a batch that exceeds it.
    """
    chosen: list[str] = []
    batch = asked.global_batch_samples
    if ":" in asked.workload:
        counted = count_function(asked.workload)
        about = counted.workload(asked.workload, asked.workload)
        if batch is None:
            batch = counted.num_samples
            chosen.append(
                f"global batch {format_count(batch)}: what {asked.workload} returns, kept at every size "
                "(--global-batch for another)"
            )
    else:
        about = catalogue.workload(asked.workload)
    budget = training_budget(asked, about, scores)
    published = _published_batch(about, scores) if batch is None and not budget.is_to_target else None
    if published is not None:
        batch = published
        chosen.append(
            f"global batch {format_count(batch)}: the median of published ones (--global-batch for another)"
        )
    if batch is None and budget.batches is None and budget.samples is not None and _has_usual_batch(about):
        batch = _batch_of_tokens(about, budget)
        chosen.append(
            f"global batch {format_count(batch)}: the usual 4 Mi tokens (--global-batch for another)"
        )
    if batch is not None:
        _refuse_batch_beyond(batch, budget)
    knobs = knob_choices(asked.fixed, precision=asked.precision)
    return Training(
        name=asked.workload,
        workload=about,
        budget=budget,
        global_batch_samples=batch,
        choices=_with_workload(dict(knobs), about),
        is_fixed=bool(asked.fixed),
        chosen_for_you=tuple(chosen),
    )


def _has_usual_batch(about: Workload) -> bool:
    is_text = about.area == "language" and about.transformer is not None
    return is_text and about.sequence_tokens is not None and about.trained == "full"


def usual_batch(about: Workload) -> int:
    """The global batch of a language model whose samples against batch nobody has published.

    Raises EvidenceError where there is no usual one.
    """
    if not _has_usual_batch(about) or about.sequence_tokens is None:
        raise EvidenceError(
            f"no published result of {about.title} states a global batch",
            missing=("the global batch: --global-batch N",),
        )
    return max(1, _USUAL_BATCH_TOKENS // about.sequence_tokens)


def _published_batch(about: Workload, scores: pl.DataFrame | None) -> int | None:
    """The median global batch of the workload's comparable results; None where none states one."""
    if scores is None:
        return None
    batches = comparable(scores, workload=about.slug)["global_batch_samples"].drop_nulls()
    middle = batches.median()
    return round(float(middle)) if isinstance(middle, (int, float)) else None


def _batch_of_tokens(about: Workload, budget: TrainingBudget) -> int:
    usual = usual_batch(about)
    samples = budget.samples_at(usual)
    assert samples is not None
    return max(1, min(usual, math.floor(samples)))


def _refuse_batch_beyond(batch: int, budget: TrainingBudget) -> None:
    """Refuse a global batch of more samples than the whole training has: no step is made of a part."""
    samples = budget.samples_at(batch)
    if samples is not None and batch > samples:
        raise UsageError(
            f"--global-batch {batch:,} exceeds the {math.floor(samples):,} samples of the whole training: "
            "give at most that"
        )


def _with_workload(asked: dict[str, tuple[Value, ...]], about: Workload) -> dict[str, tuple[Value, ...]]:
    """The values knobs may take, with what the workload itself fixes: the part that is trained, its rank."""
    choices = asked
    choices.setdefault("trained", (about.trained,))
    if choices["trained"] != ("full",):
        ranks: tuple[Value, ...] = (about.lora_rank or USUAL_LORA_RANK,)
        if "full" in choices["trained"]:
            ranks = (0, *ranks)
        choices.setdefault("lora_rank", ranks)
    if "powersgd" in choices.get("compression", ()) or "topk" in choices.get("compression", ()):
        choices.setdefault("compression_rank", (0, 1, 2, 4, 8, 16, 32, 100, 1000))
    return choices

"""The workload that a question asks for: its model, which weights are trained, on samples of which length."""

from typing import Final

from msgspec.structs import replace

from equipoise.decide.query import TrainingQuery
from equipoise.errors import UsageError
from equipoise.spec.strategy import TRAINED, Trained
from equipoise.spec.workload import Workload
from equipoise.units import format_count, format_si

USUAL_LORA_RANK: Final = 16
# Sequences of a step of a fine-tuning whose batch nobody states: those of Stanford Alpaca (Taori et al. 2023,
# table of hyperparameters of its repository). Direct preference optimisation: 64 pairs of two (Rafailov et
# al. 2023, appendix B), the same number.
USUAL_FINE_TUNING_BATCH: Final = 128
_PER_PAIR: Final = 2
_WIDENED: Final = "their interval is wider by an assumed factor of two"


def as_asked(query: TrainingQuery, about: Workload) -> Workload:
    """The workload with the sequence length, trained weights and preference pairs that a question states.

    Preferences: each sequence also runs forward through the model as it was (Rafailov et al. 2023,
    equation 7). With adapters that is the frozen model itself; with all weights trained it is a second copy.
    Raises UsageError where the workload's model has no such training.
    """
    trained, is_preference = trained_part(query), "dpo" in query.train
    if query.sequence_tokens is None and trained is None and not is_preference:
        return about
    if about.transformer is None or about.sequence_tokens is None:
        option = "--sequence" if query.sequence_tokens is not None else f"--train {','.join(query.train)}"
        raise UsageError(f"{option}: {about.title} is known by figures per sample, not as a transformer")
    positions = about.transformer.position_embeddings
    if query.sequence_tokens is not None:
        if 0 < positions < query.sequence_tokens:
            raise UsageError(
                f"--sequence {query.sequence_tokens}: {about.title} has {positions:,} position embeddings; "
                "give at most that"
            )
        about = replace(about, sequence_tokens=query.sequence_tokens)
    if trained is not None:
        rank = None if trained == "full" else about.lora_rank or USUAL_LORA_RANK
        about = replace(about, trained=trained, lora_rank=rank)
    if is_preference:
        if about.area != "language":
            raise UsageError(f"--train dpo: {about.title} is no language model, which preferences are about")
        about = replace(
            about, frozen_share=1.0, frozen_params=about.params if about.trained == "full" else None
        )
    return about


def trained_part(query: TrainingQuery) -> Trained | None:
    """Which weights a question trains; None where it leaves that to the workload."""
    return next((each for each in TRAINED if each in query.train), None)


def not_validated(about: Workload) -> tuple[str, ...]:
    """What of a training no published or measured times were held against, in words."""
    found = []
    if about.trained == "qlora":
        found.append(
            "No published times of QLoRA are in the data: its times are those of LoRA with the traffic of "
            f"dequantisation, and {_WIDENED}."
        )
    if about.frozen_share:
        found.append(
            "No published times of training beside a frozen model are in the data: it is counted as "
            f"{about.frozen_share:.2g} further forward passes, and {_WIDENED}."
        )
    return tuple(found)


def samples_of_examples(query: TrainingQuery, about: Workload) -> float:
    """The samples of the passes over a data set that a question states.

    Raises UsageError for epochs of a data set of unknown size.
    """
    examples = query.training_examples or about.dataset_samples
    if examples is None:
        raise UsageError(
            f"--epochs: the size of a data set for {about.title} is not known; give --examples N"
        )
    return examples * (query.num_epochs or 1.0) * (_PER_PAIR if "dpo" in query.train else 1)


def examples_words(query: TrainingQuery, about: Workload, samples: float) -> str:
    """What passes over a data set are for, as in "the time to ..."."""
    unit = "tokens" if about.sequence_tokens else "samples"
    amount = f"{format_si(samples * (about.sequence_tokens or 1))} {unit}"
    epochs = query.num_epochs or 1.0
    what = "preference pairs" if "dpo" in query.train else "examples"
    examples = query.training_examples or about.dataset_samples or 0
    passes = f"{epochs:g} epoch{'' if epochs == 1 else 's'}"
    return f"train {passes} on {format_count(examples)} {what} ({amount})"


def usual_fine_tuning_batch(query: TrainingQuery, about: Workload) -> int | None:
    """The global batch of a fine-tuning where nobody states one; None for any other training."""
    is_fine_tuning = about.trained != "full" or "dpo" in query.train or query.counts_examples
    return USUAL_FINE_TUNING_BATCH if is_fine_tuning and about.area == "language" else None
